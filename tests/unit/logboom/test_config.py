"""Configuration: where values come from, what is refused, and that the page about it is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from logboom import config, config_reference
from logboom.config import load, to_toml
from logboom.errors import ConfigError
from logboom.settings import Settings
from logboom.types import MIB, DurabilityMode

ROOT = Path(__file__).resolve().parents[3]
LARGE = {"net.peer_frame_bytes": 100 * MIB, "net.peer_send_buffer_bytes": 100 * MIB, "log.segment_bytes": 100 * MIB}
"""As they have to be for the batches that follow."""
MEMBERS = "n1=a:7801@b:7701, n2=a:7802@b:7702,n3=[::1]:7803@b:7703"


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def test_defaults_are_fine() -> None:
    assert load(environment={}) == Settings()


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    path = file(tmp_path, '[node]\nid = "file"\ndata_dir = "file"\nlog_level = "debug"\n[cluster]\npartitions = 3\n')
    environment = {"LOGBOOM_NODE__ID": "env", "LOGBOOM_NODE__DATA_DIR": "env", "HOME": "/", "LOGBOOM_TLS_DIR": "/x"}
    settings = load(path, environment, {"node.id": "flag", "node.log_level": None})
    assert (settings.node.id, settings.node.data_dir, settings.node.log_level) == ("flag", "env", "debug")
    assert settings.cluster.partitions == 3


@pytest.mark.parametrize("service", ["LOGBOOM", "LOGBOOM_NODE", "LOGBOOM_N1_CLIENTS"])
def test_what_kubernetes_says_of_a_service_is_no_setting(service: str) -> None:
    rest = ("", "_7701_TCP", "_7701_TCP_PROTO", "_7701_TCP_PORT", "_7701_TCP_ADDR")
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP_OPS", *(f"PORT{each}" for each in rest)]
    assert load(environment={f"{service}_{name}": "tcp://10.96.0.12:7701" for name in names}) == Settings()


@pytest.mark.parametrize("name", ["LOGBOOM_NODE_ID", "LOGBOOM_SUPPORT", "LOGBOOM_NODE__PORT", "LOGBOOM_PORTS"])
def test_what_only_looks_like_a_service_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"environment variable|unknown setting"):
        load(environment={name: "7701"})


def test_the_images_of_the_compose_file_are_no_settings() -> None:
    assert load(environment={"LOGBOOM_IMAGE": "logboom:1", "LOGBOOM_DEMO_IMAGE": "demo:1"}) == Settings()


def test_members_as_text() -> None:
    members = load(environment={"LOGBOOM_CLUSTER__MEMBERS": MEMBERS}).cluster.members
    assert [m.id for m in members] == ["n1", "n2", "n3"]
    assert (members[2].peer_address, members[2].client_address) == ("[::1]:7803", "b:7703")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    flags = {
        "cluster.members": MEMBERS,
        "cluster.overrides": {"3": {"state_machine": "log", "mode": "write_behind"}},
        "node.data_dir": 'C:\\"quoted" ünïcode',
        "raft.heartbeat_ms": "40",
    }
    settings = load(environment={}, flags=flags)
    assert settings.cluster.partition(3).mode is DurabilityMode.WRITE_BEHIND
    assert settings.cluster.partition(2).state_machine == "kv"
    assert load(file(tmp_path, to_toml(settings)), environment={}) == settings


@pytest.mark.parametrize(
    ("flags", "path", "says"),
    [
        ({"raft.hartbeat_ms": 1}, "raft.hartbeat_ms", "did you mean raft.heartbeat_ms"),
        ({"rafft.heartbeat_ms": 1}, "rafft", "did you mean raft"),
        ({"http.addr": 1}, "http.addr", "unknown setting http.addr; docs/configuration.md has all"),
        ({"node.log_level": "loud"}, "node.log_level", "debug, info, warning, error"),
        ({"node.log_format": "jsn"}, "node.log_format", "auto, json, console"),
        ({"node.client_address": "foo"}, "node.client_address", "is not host:port"),
        ({"node.peer_address": "foo:99999"}, "node.peer_address", "is not host:port"),
        ({"trace.endpoint": "http://"}, "trace.endpoint", "is not an http address"),
        ({"trace.endpoint": "http://a..b:4318/v1/traces"}, "trace.endpoint", "is not an http address"),
        ({"trace.endpoint": "http://a:x/v1/traces"}, "trace.endpoint", "is not an http address"),
        ({"raft": 3}, "raft", "section"),
        ({"raft.heartbeat_ms": "soon"}, "raft.heartbeat_ms", "int"),
        ({"raft.heartbeat_ms": 50}, "raft.election_min_ms", "3 x heartbeat_ms"),
        ({"raft.election_max_ms": 100}, "raft.election_max_ms", "election_min_ms"),
        ({"raft.fallback_ms": 30}, "raft.fallback_ms", "heartbeat_ms"),
        ({"cluster.partitions": 0}, "cluster.partitions", "1 to 100000"),
        ({"cluster.partitions": 100_001}, "cluster.partitions", "1 to 100000"),
        ({"cluster.mode": "sometimes"}, "cluster.mode", "sometimes"),
        ({"cluster.members": "n1=a:1"}, "cluster.members", "id=peer_host:port@client_host:port"),
        ({"cluster.members": "n1=a:1@b:2,n1=a:3@b:4"}, "cluster.members[0].id", "twice"),
        ({"cluster.members": "n1=a:1@b:x"}, "cluster.members[0].client_address", "host:port"),
        ({"cluster.members": "n1=a:70000@b:1"}, "cluster.members[0].peer_address", "host:port"),
        ({"cluster.members": "n1=a:\N{SUPERSCRIPT TWO}@b:1"}, "cluster.members[0].peer_address", "host:port"),
        ({"cluster.members": f"n1=a:{'7' * 5000}@b:1"}, "cluster.members[0].peer_address", "host:port"),
        ({"cluster.overrides": {"8": {}}}, "cluster.overrides.8", "partition id below 8"),
        ({"log.batch_bytes_max": 8 * 1024 * 1024}, "log.batch_bytes_max", "peer_frame_bytes"),
        ({"raft.message_bytes_max": 64 * 1024 * 1024}, "raft.message_bytes_max", "peer_frame_bytes"),
        ({"raft.entry_bytes_max": 8 * 1024 * 1024}, "raft.message_bytes_max", "entry_bytes_max"),
        ({"admission.node_bytes": 1}, "admission.node_bytes", "one request"),
        ({"log.linger_ms": 0}, "log.linger_ms", "positive"),
        ({"lag.look_ms": 0}, "lag.look_ms", "positive"),
        ({"lag.throttle_percent": 101}, "lag.throttle_percent", "1 to 100"),
        ({"lag.node_percent": 0}, "lag.node_percent", "1 to 100"),
        ({"admission.fair_share_percent": 0}, "admission.fair_share_percent", "1 to 100"),
        (
            {"net.peer_frame_bytes": 512 * 1024, "log.batch_bytes_max": 64 * 1024},
            "net.peer_frame_bytes",
            "pieces of a mebibyte",
        ),
        ({"net.client_frame_bytes": 10}, "net.client_frame_bytes", "16384 or more"),
        ({"net.unauthenticated_frame_bytes": 1024}, "net.unauthenticated_frame_bytes", "4096 or more"),
        ({"raft.heartbeat_ms": 4}, "raft.heartbeat_ms", "nobody would lead for long"),
        ({"net.handshake_ms": 1}, "net.handshake_ms", "would not meet"),
        ({"net.frame_ms": 1}, "net.frame_ms", "would lose each other"),
        ({"net.peer_send_buffer_bytes": MIB}, "net.peer_send_buffer_bytes", "one frame (net.peer_frame_bytes"),
        ({"net.client_send_buffer_bytes": MIB}, "net.client_send_buffer_bytes", "one batch (log.batch_bytes_max)"),
        ({"reads.window_bytes": 16 * MIB}, "net.client_send_buffer_bytes", "a window of a scan (reads.window_bytes)"),
        ({"net.peer_send_buffer_bytes": 1 << 32}, "net.peer_send_buffer_bytes", "1073741824 or less"),
        ({"net.client_send_buffer_bytes": 1 << 40}, "net.client_send_buffer_bytes", "1073741824 or less"),
        ({"http.connections_max": 1 << 31}, "http.connections_max", "65536 or less"),
        ({"raft.entry_bytes_max": 8 * MIB}, "raft.message_bytes_max", "net.peer_frame_bytes"),
        ({"raft.message_bytes_max": 16 * MIB}, "raft.message_bytes_max", "raft.entry_bytes_max"),
        ({"log.batch_bytes_max": 1000}, "log.batch_bytes_max", "8192 or more"),
        ({"log.batch_bytes_max": 80 * MIB, **LARGE}, "log.batch_bytes_max", "no client takes a larger frame"),
        ({"log.batch_bytes_max": 40 * MIB, **LARGE}, "net.client_send_buffer_bytes", "one batch"),
        ({"cluster.id": ""}, "cluster.id", "1 to 255 bytes"),
        ({"cluster.id": "ä" * 128}, "cluster.id", "not 256"),
        ({"raft.journal_segment_bytes": 1 << 40}, "raft.journal_segment_bytes", "takes all of it from the disk"),
        ({"apply.linger_ms": 70_000, "lag.slow_ms": 0, "lag.stalled_ms": 0}, "apply.linger_ms", "after a start"),
        ({"apply.linger_ms": 5_000}, "apply.linger_ms", "below lag.slow_ms (5000)"),
        ({"apply.linger_ms": 15_000, "lag.slow_ms": 0}, "apply.linger_ms", "below lag.stalled_ms (15000)"),
        ({"apply.kv_map_bytes": 65536}, "apply.kv_map_bytes", "1048576 or more"),
        ({"snapshot.bytes_per_s": 64}, "snapshot.bytes_per_s", "no snapshot would ever be complete"),
        ({"cluster.members": f"{'n' * 65}=a:1@b:2"}, "cluster.members[0].id", "over 64 characters"),
    ],
)
def test_what_is_refused_is_named(flags, path: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment={}, flags=flags)
    assert caught.value.path == path
    assert says in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize("text", ["[node", "node = [1,", "\0"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.toml"):
        load(file(tmp_path, text), environment={})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: No such file"):
        load(tmp_path / "gone.toml", environment={})


def test_a_variable_without_a_section_is_explained() -> None:
    with pytest.raises(ConfigError, match="LOGBOOM_NODE__ID"):
        load(environment={"LOGBOOM_PARTITIONS": "3"})


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ({"cluster.members": MEMBERS, "node.id": "n1"}, "node.data_dir"),
        ({"cluster.members": MEMBERS, "node.id": "n4", "node.data_dir": "d"}, "node.id"),
        ({"node.id": "n1", "node.data_dir": "d"}, "cluster.members"),
        ({}, "cluster.members"),
    ],
)
def test_a_node_must_know_who_it_is(flags, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.check_node(load(environment={}, flags=flags))
    assert caught.value.path == path


@pytest.mark.parametrize(
    "path",
    [
        "raft.inline_sync_bytes_max",
        "raft.redo_bytes_max",
        "raft.commit_linger_ms",
        "raft.spare_linger_ms",
        "log.recent_bytes",
        "apply.inline_bytes",
    ],
)
def test_what_zero_turns_off_may_be_zero_and_nothing_less(path: str) -> None:
    section, name = path.split(".")
    assert getattr(getattr(load(environment={}, flags={path: 0}), section), name) == 0
    with pytest.raises(ConfigError, match=f"{path} must not be negative"):
        load(environment={}, flags={path: -1})


# -- docs/configuration.md


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == config_reference.render(), "run: python -m logboom.config_reference > docs/configuration.md"


def test_every_setting_has_a_meaning() -> None:
    bare = [line for line in config_reference.render().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not bare


def test_the_example_on_the_page_loads(tmp_path: Path) -> None:
    example = config_reference.render().split("```toml\n")[1].split("```")[0]
    config.check_node(load(file(tmp_path, example), environment={}))
