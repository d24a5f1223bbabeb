"""docs/configuration.md says what logboom.settings says."""

from __future__ import annotations

import configparser
import re
import textwrap
from pathlib import Path

import msgspec
import pytest

from logboom import config, config_reference
from logboom.errors import ConfigError
from logboom.settings import Settings

FILE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_file_is_current() -> None:
    assert FILE.read_text() == config_reference.render(), config_reference.__doc__


def test_every_setting_is_there() -> None:
    text = FILE.read_text()
    for section in msgspec.structs.fields(Settings):
        begin = text.index(f"## [{section.name}]")
        for field in msgspec.structs.fields(section.type):
            assert f"| `{field.name}` |" in text[begin:], f"{section.name}.{field.name}"


def test_the_example_loads(tmp_path: Path) -> None:
    example = FILE.read_text().split("```toml\n")[1].split("```")[0]
    file = tmp_path / "n1.toml"
    file.write_text(example)
    settings = config.load(file, environment={})
    config.check_node(settings)
    assert [member.id for member in settings.cluster.members] == ["n1", "n2", "n3"]


def test_the_manifest_for_kubernetes_gives_a_node_all_it_needs() -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", (FILE.parent / "kubernetes.md").read_text(), re.DOTALL)
    joined = re.sub(r"\\\n\s*", "", manifest)
    given = dict(re.findall(r'name: (LOGBOOM_\w+),?\s+value: "?([^"}\n]+)', joined))
    assert joined.count("name: LOGBOOM_") == len(given) + 1  # and this one, by the pod's name:
    of_services = {"LOGBOOM_SERVICE_HOST": "10.96.0.1", "LOGBOOM_PORT_7701_TCP": "tcp://10.96.0.1:7701"}
    for pod in ("logboom-0", "logboom-1", "logboom-2"):
        settings = config.load(
            environment={**given, **of_services, "LOGBOOM_NODE__ID": pod, "LOGBOOM_NODE__DATA_DIR": "/var/lib/logboom"}
        )
        config.check_node(settings)
        assert len(settings.cluster.members) == 3
        for port in (settings.node.client_address, settings.node.peer_address, settings.node.probe_address):
            assert re.search(rf"(?:p|P)ort: {port.rpartition(':')[2]}\b", joined), port


def test_the_manifest_for_kubernetes_lets_nobody_in_but_who_has_to_be() -> None:
    """Whoever reached the port for probes, which has no TLS, could have all nodes restarted."""
    (manifest,) = re.findall(r"```yaml\n(.*?)```", (FILE.parent / "kubernetes.md").read_text(), re.DOTALL)
    (policy,) = (part for part in manifest.split("---\n") if "kind: NetworkPolicy" in part)
    assert "podSelector: {matchLabels: {app: logboom}}\n  policyTypes: [Ingress]" in policy
    rules = re.findall(r"- ports: \[\{port: (\d+)\}\].*\n(?: +from: \[(.*)\]\n)?", policy)
    assert rules == [
        ("7701", ""),
        ("7801", "{podSelector: {matchLabels: {app: logboom}}}"),
        ("7901", "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}"),
    ]
    assert policy.count("port: ") == len(rules)


def test_the_unit_for_systemd_tries_as_often_as_it_takes() -> None:
    """Else it gives up after five starts within ten seconds, and stays down: a name may be late for longer."""
    (unit,) = re.findall(r"```ini\n(.*?)```", (FILE.parent / "operating.md").read_text(), re.DOTALL)
    read = configparser.ConfigParser()
    read.read_string(textwrap.dedent(unit))
    assert read["Unit"]["StartLimitIntervalSec"] == "0"
    assert int(read["Service"]["RestartSec"]) >= 1
    assert read["Service"]["Restart"] == "always"
    assert read["Install"]["WantedBy"] == "multi-user.target"
    assert read["Service"]["User"] != "root"
    assert read["Service"]["StateDirectory"] == "logboom"


def test_what_containers_log_is_bounded() -> None:
    """Engines keep every line for ever unless they are told not to."""
    compose = (FILE.parents[1] / "docker-compose.yml").read_text()
    nodes = compose.split("x-node:")[1].split("x-environment:")[0]
    assert re.search(r'logging: \{driver: [\w-]+, options: \{max-size: \d+m, max-file: "\d+"\}\}', nodes)


def test_the_manifest_for_kubernetes_is_let_in_where_pods_are_restricted() -> None:
    """By the Pod Security Standard of that name."""
    text = (FILE.parent / "kubernetes.md").read_text()
    for wanted in (
        "runAsNonRoot: true",
        "allowPrivilegeEscalation: false",
        "capabilities: {drop: [ALL]}",
        "seccompProfile: {type: RuntimeDefault}",
    ):
        assert wanted in text, wanted


LINGERING = {"raft.spare_linger_ms", "raft.commit_linger_ms", "snapshot.retain_bytes"}
"""A 0 needs no words there: not at all, nothing."""


def test_a_zero_is_taken_where_the_table_says_what_it_means_and_nowhere_else() -> None:
    for section, rows in re.findall(r"^## \[(\w+)\]\n(.*?)(?=^##)", FILE.read_text(), re.MULTILINE | re.DOTALL):
        for key, default, meaning in re.findall(r"^\| `(\w+)` \| `(\d+)`[^|]* \| (.*) \|$", rows, re.MULTILINE):
            path = f"{section}.{key}"
            if path in LINGERING or re.search(r"(?<!\d)\b0: ", meaning):
                config.load(environment={}, flags={path: 0})
                continue
            assert int(default) > 0, path
            with pytest.raises(ConfigError, match=key):
                config.load(environment={}, flags={path: 0})


def test_what_is_checked_is_told() -> None:
    """Whatever a start may be refused for is in the tables, or under "Checked together"."""
    text = FILE.read_text()
    _, _, together = text.partition("## Checked together")
    source = Path(config.__file__).read_text()
    named = set(re.findall(r'_wrong\(\s*"([a-z]+\.[a-z_]+)"', source)) | set(config.LEAST) | set(config.MOST)
    assert "raft.fallback_ms" in named
    buffers = {
        "net.client_frame_bytes",
        "net.peer_frame_bytes",
        "net.client_send_buffer_bytes",
        "net.peer_send_buffer_bytes",
    }
    for path in named - buffers - {"cluster.members", "node.data_dir"}:
        assert f"`{path}`" in together, path
