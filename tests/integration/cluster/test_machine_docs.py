"""The state machine of docs/state-machines.md, as it stands there, through kills and a snapshot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logboom import Record, Status
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[3] / "docs" / "state-machines.md").read_text()


def install(directory: Path) -> None:
    """As a package would be."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [entry] = re.findall(r"^windows = .*$", PAGE, re.MULTILINE)
    about = directory / "my_package-1.0.dist-info"
    about.mkdir(parents=True)
    (directory / "my_package.py").write_text(code)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[logboom.state_machines]\n{entry.replace(chr(34), '')}\n")


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    settings = {"snapshot.retain_bytes": 0, "log.segment_bytes": 6 << 20}
    place = tmp_path / "c"
    with (
        LocalCluster(partitions=1, state_machine="windows", directory=place, settings=settings) as cluster,
        cluster.client(timeout=30) as client,
    ):

        def count(times: int) -> None:
            for _ in range(times):
                client.submit(0, [Record(bytes(1 << 14), b"k%d" % (k % 10)) for k in range(60)])

        receipt = client.submit(0, [Record(b"", b"k0"), Record(b"")])
        assert receipt.results == (Status.OK, Status.INVALID)
        away = next(node for node in cluster.nodes if node != cluster.leader())
        cluster.kill(away)
        count(8)
        client.create_snapshot()
        count(8)
        client.create_snapshot()  # the log goes up to the one before
        others = [node for node in cluster.nodes if node != away]
        while not all("compacted" in cluster.log(node).read_text() for node in others):
            client.create_snapshot()
            count(1)
        cluster.restart(away)
        cluster.wait_serving()
        client.barrier(client.submit(0, Record(b"", b"k0")), scope="all")
        assert '"installing"' in cluster.log(away).read_text()
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.start()
        last = client.submit(0, Record(b"", b"k0"))
        client.barrier(last, scope="all")
        for node in cluster.nodes:
            rows = list(client.scan(0, node=node, at_least=last.global_index))
            assert sum(number for _, (number,) in rows) == last.first_index - 1  # one was refused
            key, value = rows[0]
            assert client.get_many(0, [key, b"none"], node=node, at_least="session") == [value, None]
        told = client.status_all(digests=True)
        assert len({str(each["digests"]) for each in told.values()}) == 1
