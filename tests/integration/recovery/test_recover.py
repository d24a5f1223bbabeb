"""Most nodes are lost for good: the one that is left begins again alone, and others join it (docs/decisions/0032)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logboom import Add, Put
from logboom.cli import cli
from logboom.errors import ConfigError, LogboomError
from logboom.testing import LocalCluster
from raftlog.journal.journal import Journal
from server.directory.refill import REFILL
from server.directory.refill import encode as encode_refill
from tests.integration.recovery.losing_world import SMALL, equal, said, stop, votes
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


def recover(cluster: LocalCluster, node: str, *words: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["recover", "--config", str(cluster.config(node)), *words, "-o", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def verified(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CliRunner().invoke(cli, ["verify", str(directory), "-o", "json"]).stdout)
    return found


def test_the_one_that_is_left_goes_on_with_all_it_has_and_others_join_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as cluster:
        with cluster.client(timeout=30) as boom:
            for number in range(400):
                boom.submit(number % 2, [Add(b"n", 1), Put(b"key %d" % number, b"x" * 300)])
            boom.create_snapshot()
            boom.submit(0, [Put(b"last", b"here")])
            boom.barrier(boom.last_seen, scope="all")
            before = boom.last_seen
        for node in cluster.nodes:
            stop(cluster, node)
        looked = recover(cluster, "n1")
        assert (looked["done"], looked["voters"], looked["gone"]) == (False, ["n1", "n2", "n3"], ["n2", "n3"])
        assert recover(cluster, "n1") == looked, "looking changes nothing"
        with monkeypatch.context() as patched:  # a crash between its steps; then once more
            patched.setattr(Journal, "flush", lambda _: (_ for _ in ()).throw(OSError(5, "crashed")))
            assert CliRunner().invoke(cli, ["recover", "--config", str(cluster.config("n1")), "--yes"]).exit_code
        done = recover(cluster, "n1", "--yes")
        assert (done["done"], done["voters"], done["gone"]) == (True, ["n1"], ["n2", "n3"])
        assert (done["last_term"], done["last_index"]) > (looked["last_term"], looked["last_index"])
        assert done["lineage"] != looked["lineage"] == ""
        assert not verified(cluster.data_dirs["n1"])["damaged"]
        cluster.start_node("n1")
        with cluster.client(timeout=30) as boom:
            assert boom.get(0, b"last") == b"here"
            assert boom.get(0, b"n")[0] + boom.get(1, b"n")[0] == 400
            assert boom.submit(0, [Put(b"last", b"goes on")]).global_index > before
            cluster.start_node("n2")  # with all that it had
            wait_for(lambda: bool(said(cluster, "n2", "peer_refused")))
            cluster.forget("n2")
            cluster.forget("n3")
            for _ in range(2):
                node = cluster.add_node()
                assert node not in ("n2", "n3")
                cluster.take_in(node, boom)
                wait_for(lambda node=node: votes(boom, cluster, node))  # type: ignore[misc]
            wait_for(lambda: equal(boom, cluster))
            stop(cluster, "n1")
            assert boom.get(0, b"last") == b"goes on"
            assert boom.status(node=cluster.addresses[node])["lineage"] == done["lineage"]


def test_from_what_nothing_can_begin(tmp_path: Path) -> None:
    with LocalCluster(nodes=3, partitions=1, settings=SMALL, directory=tmp_path) as cluster:
        with cluster.client(timeout=30) as boom:
            boom.submit(0, [Put(b"key", b"x")])
            boom.barrier(boom.last_seen, scope="all")
        for number, words in enumerate(("in use by another process", "no data directory", "forgotten", "empty")):
            if number == 1:
                shutil.rmtree(stop(cluster, "n1"))
            if number == 2:
                cluster.start_node("n1")
                wait_for(lambda: bool(said(cluster, "n1", "rejoined")))
                (stop(cluster, "n1") / "rejoin.json").write_text("whatever is in there")
            if number == 3:
                (cluster.data_dirs["n1"] / "rejoin.json").unlink()
                (cluster.data_dirs["n1"] / REFILL).write_bytes(encode_refill(1 << 40, 4711, ""))
            result = CliRunner().invoke(cli, ["recover", "--config", str(cluster.config("n1")), "--yes"])
            assert isinstance(result.exception, LogboomError), result.output
            assert words in result.exception.message


@pytest.mark.parametrize("others", [(), ("n4", "n5")])
def test_settings_that_name_others_than_it_began_with_are_refused(tmp_path: Path, others: tuple[str, ...]) -> None:
    """The journal names nobody before members change: those that are gone would be none whose ids are used up."""
    with LocalCluster(nodes=3, partitions=1, settings=SMALL, directory=tmp_path) as cluster:
        with cluster.client(timeout=30) as boom:
            boom.submit(0, [Put(b"key", b"x")])
            boom.barrier(boom.last_seen, scope="all")
        for node in cluster.nodes:
            stop(cluster, node)
        config = cluster.config("n1")
        named = {node: cluster.peer_addresses[node] for node in cluster.nodes}
        members = [
            f"{node}={named[was]}@{cluster.addresses[was]}" for node, was in zip(("n1", *others), named, strict=False)
        ]
        environment = {"LOGBOOM_CLUSTER__MEMBERS": ",".join(members)}
        result = CliRunner(env=environment).invoke(cli, ["recover", "--config", str(config), "--yes"])
        assert isinstance(result.exception, ConfigError), result.output
        assert "n1, n2, n3" in result.exception.message
        assert recover(cluster, "n1")["gone"] == ["n2", "n3"]
