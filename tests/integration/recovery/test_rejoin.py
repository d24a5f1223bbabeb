"""Journals of real nodes, damaged in many places: each node comes back under its own id, and nothing is lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logboom import Put
from logboom.cli import cli
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from raftlog.journal.journal_codec import RECORD_HEADER, SEGMENT_HEADER
from tests.integration.recovery.losing_world import SMALL, Load, equal, ready, rejoined, segments, votes
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as running:
        yield running


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 4
    path.write_bytes(raw)


def rot_record(journal: Path, file: Path) -> None:
    flip(file, SEGMENT_HEADER.size + RECORD_HEADER.size)


def rot_header(journal: Path, file: Path) -> None:
    flip(file, SEGMENT_HEADER.size - 2)


def rot_base(journal: Path, file: Path) -> None:
    flip(journal / "base", 70)


def lose_segment(journal: Path, file: Path) -> None:
    file.unlink()


def found_in(directory: Path) -> dict[str, Any]:
    return json.loads(CliRunner().invoke(cli, ["verify", str(directory), "-o", "json"]).stdout)  # type: ignore[no-any-return]


def test_every_node_in_turn_loses_its_journal_and_votes_again(cluster: LocalCluster) -> None:
    """Under load; the leader among them, and each time in another place. In the end all that was said is there."""
    damages = [rot_record, rot_header, lose_segment, rot_base]
    with Load(cluster) as load, cluster.client(timeout=30) as boom:
        turns = [*cluster.nodes, cluster.leader()]
        for node, damage in zip(turns, damages, strict=True):
            wait_for(lambda node=node: ready(cluster, node))  # type: ignore[misc]
            cluster.kill(node)
            wait_for(lambda node=node: not cluster.alive(node))  # type: ignore[misc]
            directory = cluster.data_dirs[node]
            for file in segments(directory / "journal"):  # one behind the base, which was to go, counts for nothing
                damage(directory / "journal", file)
                if (found := found_in(directory))["damaged"]:
                    break
            assert found["damaged"]
            assert any("rejoins" in each["advice"] for each in found["findings"]), found["findings"]
            before, times = sum(load.acknowledged), rejoined(cluster, node)
            cluster.start_node(node)
            wait_for(lambda node=node, times=times: rejoined(cluster, node) > times)  # type: ignore[misc]
            wait_for(lambda node=node: votes(boom, cluster, node))  # type: ignore[misc]
            wait_for(lambda before=before: sum(load.acknowledged) > before + 20)  # type: ignore[misc]
            assert not (directory / "rejoin.json").exists()
            assert (directory / "journal.damaged-1").is_dir()
    with cluster.client(timeout=30) as boom:
        wait_for(lambda: equal(boom, cluster))
        load.check(boom)
        roles = [each["role"] for each in boom.member_list()["members"]]
        assert roles == ["voter"] * 3
    # What each says of itself afterwards: nothing is damaged any more.
    node = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.kill(node, signal.SIGTERM)
    wait_for(lambda: not cluster.alive(node))
    found = json.loads(CliRunner().invoke(cli, ["verify", str(cluster.data_dirs[node]), "-o", "json"]).stdout)
    assert not found["damaged"], found
    assert any("set aside" in each["problem"] for each in found["findings"])


@pytest.mark.parametrize("damage", [rot_record, rot_base])
def test_a_node_that_is_alone_says_what_to_do_and_waits(tmp_path: Path, damage: Callable[[Path, Path], None]) -> None:
    with LocalCluster(nodes=1, partitions=1, settings=SMALL, directory=tmp_path) as cluster:
        with cluster.client() as boom:
            for _ in range(400):
                boom.submit(0, [Put(b"key", b"x" * 100)])
        wait_for(lambda: ready(cluster, "n1"))
        cluster.kill("n1")
        wait_for(lambda: not cluster.alive("n1"))
        damage(cluster.data_dirs["n1"] / "journal", segments(cluster.data_dirs["n1"] / "journal")[0])
        cluster.start_node("n1")
        wait_for(lambda: "logboom restore" in cluster.log("n1").read_text())
        with cluster.client(timeout=5) as boom:
            wait_for(lambda: boom.status(node=cluster.addresses["n1"])["role"] == "rejoining")
            with pytest.raises(LogboomError):
                boom.submit(0, [Put(b"key", b"y")], timeout=1.0)
        cluster.kill("n1")
        wait_for(lambda: not cluster.alive("n1"))
        found = json.loads(CliRunner().invoke(cli, ["verify", str(cluster.data_dirs["n1"]), "-o", "json"]).stdout)
        assert not found["damaged"], found
        assert any("not taken back yet" in each["problem"] for each in found["findings"])
