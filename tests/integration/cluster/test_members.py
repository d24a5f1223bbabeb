"""Members that change while real processes serve (docs/decisions/0016-membership.md)."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from logboom import Add, SyncClient
from logboom.cli import cli
from logboom.client import lookout
from logboom.config import load
from logboom.errors import InvalidRequest, LogboomError
from logboom.testing import LocalCluster, free_ports
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


class Load:
    """One writer that never gives up: whatever fails here was a failed write."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.acknowledged = 0
        self.error: LogboomError | None = None
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._cluster.client(timeout=20) as self.client:
            while not self._stop.is_set():
                try:
                    self.client.submit(0, Add(b"n", 1), wait="committed")
                except LogboomError as error:
                    self.error = error
                    return
                self.acknowledged += 1

    def more(self, count: int = 20) -> None:
        """Until so many more are acknowledged."""
        end = self.acknowledged + count
        wait_for(lambda: self.error is not None or self.acknowledged >= end)
        assert self.error is None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients ask who the members are every two seconds, not every half a minute: else two tests wait for a minute."""
    monkeypatch.setattr(lookout, "LOOK_S", 2.0)


def roles(client: SyncClient) -> dict[str, str]:
    return {each["id"]: each["role"] for each in client.member_list()["members"]}


def grow(cluster: LocalCluster, client: SyncClient) -> str:
    """One more voter."""
    node = cluster.add_node()
    cluster.take_in(node, client)
    wait_for(lambda: roles(client)[node] == "voter")
    return node


def standing(cluster: LocalCluster, client: SyncClient, node: str) -> str:
    try:
        return str(client.member_list(node=cluster.addresses[node], timeout=1.0)["standing"])
    except LogboomError:
        return "away"


def digests(cluster: LocalCluster, client: SyncClient, nodes: list[str]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        try:
            found.add(str(client.status(node=cluster.addresses[node], digests=True)["digests"]))
        except LogboomError as error:
            found.add(error.code)
    return found


@contextmanager
def running(directory: Path, nodes: int = 3, **settings: Any) -> Iterator[tuple[LocalCluster, SyncClient]]:
    with (
        LocalCluster(nodes=nodes, partitions=2, directory=directory, settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        yield cluster, client


def test_from_one_to_three_to_five_to_three_without_a_failed_write(tmp_path: Path) -> None:
    with running(tmp_path, nodes=1) as (cluster, client):
        with Load(cluster) as load:
            load.more()
            for _ in range(4):
                grow(cluster, client)
                load.more()
            assert list(roles(client).values()) == ["voter"] * 5
            for node in ("n1", cluster.leader()):  # the first one, and whoever leads
                if node in roles(client):
                    client.remove_member(node)
                    load.more()
            while len(roles(client)) > 3:
                client.remove_member(max(roles(client)))
                load.more()
        assert load.error is None
        left = sorted(roles(client))
        assert "n1" not in left
        assert client.get(0, b"n") == (load.acknowledged,)
        wait_for(lambda: len(digests(cluster, client, left)) == 1)
        wait_for(lambda: standing(cluster, client, "n1") == "removed")


def test_a_removed_node_does_no_harm_and_is_told(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        client.submit(0, Add(b"n", 1))
        away = next(n for n in cluster.nodes if n != cluster.leader())
        cluster.kill(away)
        client.remove_member(away)
        before = client.status(node=cluster.addresses[cluster.leader()])["term"]
        cluster.start_node(away)  # it was not there to hear of it
        wait_for(lambda: standing(cluster, client, away) == "removed")
        assert client.submit(0, Add(b"n", 1)).global_index > 0
        leader = next(n for n in cluster.nodes if n != away)
        assert client.status(node=cluster.addresses[leader])["term"] == before
        with pytest.raises(InvalidRequest, match="not used again"):
            cluster.take_in(away, client)


def test_leadership_moves_and_nobody_notices(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client), Load(cluster) as load:
        for node in ("n1", "n2", "n3", "n1"):
            load.more()
            assert client.transfer(node)["leader"] == node
        for node in ("n1", "n2", "n3"):  # a rolling restart
            load.more()
            cluster.kill(node, signal.SIGTERM)
            assert cluster.wait_ended(node) == 0
            cluster.start_node(node)
            cluster.wait_serving()
        load.more()


@pytest.mark.usefixtures("looks_often")
def test_who_follows_while_all_members_are_replaced_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, nodes=1) as (cluster, client), cluster.client(timeout=20) as reader:
        got: list[int] = []

        def follow() -> None:
            for batch in reader.tail(0, follow=True):
                got.append(batch.global_index)
                if len(got) == 3:
                    return

        following = threading.Thread(target=follow)
        following.start()
        grow(cluster, client)
        client.submit(0, Add(b"n", 1))
        wait_for(lambda: len(got) == 1)
        for gone in ("n1", "n2"):
            wait_for(lambda: set(reader.members()) == set(roles(client)), 60.0)  # it is told when it looks again
            if len(cluster.nodes) < 2:
                grow(cluster, client)
                wait_for(lambda: set(reader.members()) == set(roles(client)), 60.0)
            client.remove_member(gone)
            cluster.kill(gone)
            cluster.forget(gone)
            client.submit(0, Add(b"n", 1))
        following.join(30)
        assert not following.is_alive()
        assert len(got) == 3


def test_the_log_wins_over_the_settings_of_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, nodes=1) as (cluster, client):
        grow(cluster, client)
        grow(cluster, client)
        client.submit(0, Add(b"n", 1))
        for node in cluster.nodes:
            cluster.kill(node)
        for node in cluster.nodes:  # n1's file still names it alone; n2 still is to join
            cluster.start_node(node)
        cluster.wait_serving()
        assert roles(client) == dict.fromkeys(("n1", "n2", "n3"), "voter")
        assert client.submit(0, Add(b"n", 1)).global_index > 0
        assert client.get(0, b"n") == (2,)
        assert "cluster_members_of_settings_ignored" in cluster.log("n1").read_text()


def moved(cluster: LocalCluster, node: str) -> dict[str, str]:
    """Its machine is another one, with its data: its own file says where, once it is started."""
    cluster.kill(node, signal.SIGTERM)
    assert cluster.wait_ended(node) == 0
    client, peer = free_ports(2)
    cluster.addresses[node], cluster.peer_addresses[node] = f"127.0.0.1:{client}", f"127.0.0.1:{peer}"
    own = f"{node}={cluster.peer_addresses[node]}@{cluster.addresses[node]}"
    rest = [f"{n}={each['peer']}@{each['client']}" for n, each in known_in(cluster.config(node)).items() if n != node]
    cluster._write_config(node, {**cluster._flags, "cluster.members": ",".join([*rest, own])})
    return {"peer_address": cluster.peer_addresses[node], "client_address": cluster.addresses[node]}


def known_in(config: Path) -> dict[str, dict[str, str]]:
    members = load(config, environment={}).cluster.members
    return {m.id: {"peer": m.peer_address, "client": m.client_address} for m in members}


def told(client: SyncClient, node: str) -> str:
    client.get(0, b"n", stale=True)  # who asks for nothing is told nothing
    return client.members()[node]


def connected(client: SyncClient, count: int) -> bool:
    try:
        return sum(bool(each["connected"]) for each in client.member_list()["members"]) == count
    except LogboomError:
        return False


@pytest.mark.usefixtures("looks_often")
def test_all_members_move_to_other_addresses_and_no_write_fails(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client), cluster.client(timeout=20) as reader:
        with Load(cluster) as load:
            load.more()
            for node in ("n1", "n2", "n3"):
                there = moved(cluster, node)
                if node == "n2":  # before it is there; the others afterwards
                    client.update_member(node, **there)
                cluster.start_node(node)
                if node != "n2":
                    wait_for(lambda: connected(client, 3))  # nobody has found it: it has called
                    client.update_member(node, **there)
                wait_for(lambda: connected(client, 3))
                for each in (reader, load.client):  # else all that it knows of might be gone by the time it asks
                    wait_for(lambda: told(each, node) == cluster.addresses[node])  # noqa: B023 - at once
                load.more()
        assert load.error is None
        for node in cluster.nodes:  # what they know of each other they know from the log: the files of others are old
            cluster.kill(node, signal.SIGTERM)
            cluster.wait_ended(node)
        for node in cluster.nodes:
            cluster.start_node(node)
        cluster.wait_serving()
        with cluster.client(timeout=20) as fresh:
            wait_for(lambda: connected(fresh, 3))
            assert fresh.members() == cluster.addresses
            assert fresh.get(0, b"n") == (load.acknowledged,)
            wait_for(lambda: len(digests(cluster, fresh, cluster.nodes)) == 1)
        for node in cluster.nodes:
            last = cluster.log(node).read_text().rpartition('"event": "stopped"')[2]
            assert "address_of_settings_differs" not in last, "of itself each knows it"


def test_two_of_three_that_have_changed_places_are_found(tmp_path: Path) -> None:
    """Each was turned away when it called, as somebody answered where it was to be: the cluster stood still."""
    with running(tmp_path) as (cluster, client):
        client.update_member("n3", client_address=f"127.0.0.1:{free_ports(1)[0]}")  # now the log says who is where
        client.submit(0, Add(b"n", 1))
        client.barrier(client.token(), scope="all")
        for node in ("n2", "n3"):
            cluster.kill(node, signal.SIGTERM)
            assert cluster.wait_ended(node) == 0
        there = cluster.peer_addresses
        there["n2"], there["n3"] = there["n3"], there["n2"]
        rows = ",".join(f"{node}={there[node]}@{cluster.addresses[node]}" for node in cluster.nodes)
        for node in ("n2", "n3"):
            cluster._write_config(node, {**cluster._flags, "cluster.members": rows})
            cluster.start_node(node)
        wait_for(lambda: all(each["connected"] for each in seen_by(client, cluster.addresses["n1"])))
        assert client.submit(0, Add(b"n", 1)).global_index > 0
        assert "address_of_settings_differs" in cluster.log("n2").read_text()


def seen_by(client: SyncClient, address: str) -> list[dict[str, Any]]:
    members: list[dict[str, Any]] = client.member_list(node=address)["members"]
    return members


def test_who_was_added_with_a_wrong_address_is_added_with_the_right_one(tmp_path: Path) -> None:
    """Found by review: its id was burned, and the node had to be made anew under another one."""
    with running(tmp_path) as (cluster, client):
        node = cluster.add_node()
        wrong, other = (f"127.0.0.1:{port}" for port in free_ports(2))
        client.add_member(node, peer_address=wrong, client_address=other)
        with pytest.raises(InvalidRequest, match=f"members update {node}"):
            cluster.take_in(node, client)
        with pytest.raises(InvalidRequest, match="n1 is at one of these"):
            client.update_member(node, peer_address=cluster.peer_addresses["n1"])
        client.update_member(node, peer_address=cluster.peer_addresses[node])
        wait_for(lambda: roles(client)[node] == "voter")
        client.update_member(node, client_address=cluster.addresses[node])
        with cluster.client(timeout=20) as fresh:
            assert fresh.submit(0, Add(b"n", 1)).global_index > 0
            assert fresh.members() == cluster.addresses
            wait_for(lambda: len(digests(cluster, fresh, cluster.nodes)) == 1)


def test_a_node_whose_file_says_another_address_than_the_log_tells_so(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        client.update_member("n3", client_address="127.0.0.1:9")
        cluster.kill("n3", signal.SIGTERM)
        cluster.wait_ended("n3")
        cluster.start_node("n3")
        wait_for(lambda: "address_of_settings_differs" in cluster.log("n3").read_text())


def test_the_command_line(tmp_path: Path) -> None:
    def logboom(*words: str) -> list[dict[str, Any]]:
        result = CliRunner().invoke(cli, ["members", *words, "--endpoints", cluster.endpoints, "-o", "json"])
        assert result.exit_code == 0, result.output
        rows: list[dict[str, Any]] = json.loads(result.stdout)
        return rows

    with running(tmp_path, nodes=1) as (cluster, _):
        node = cluster.add_node()
        spec = f"{node}={cluster.peer_addresses[node]}@{cluster.addresses[node]}"
        assert [row["role"] for row in logboom("add", spec, "--timeout", "30s")] == ["voter", "voter"]
        assert {row["node"]: row["leads"] for row in logboom("transfer", node)} == {"n1": False, node: True}
        at = cluster.addresses[node].replace("127.0.0.1", "localhost")
        assert [row["client_address"] for row in logboom("update", node, "--client-address", at)][1] == at
        assert [row["node"] for row in logboom("remove", "n1")] == [node]
        assert [row["connected"] for row in logboom("list")] == [True]


def test_a_lost_disk_comes_back_under_another_name(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        client.submit(0, Add(b"n", 7))
        lost = next(n for n in cluster.nodes if n != cluster.leader())
        cluster.kill(lost)
        shutil.rmtree(cluster.data_dirs[lost])
        client.remove_member(lost)
        cluster.forget(lost)
        node = cluster.add_node()
        cluster.take_in(node, client, learner=True)
        assert roles(client)[node] == "learner"
        client.promote_member(node)
        wait_for(lambda: roles(client)[node] == "voter")
        wait_for(lambda: len(digests(cluster, client, cluster.nodes)) == 1)
        assert client.get(0, b"n") == (7,)


def test_who_joins_is_given_a_snapshot_when_the_log_begins_later(tmp_path: Path) -> None:
    small = {"raft.journal_segment_bytes": 65536, "snapshot.retain_bytes": 0}
    with running(tmp_path, **small) as (cluster, client):
        for _ in range(2):
            for _ in range(50):
                client.submit(0, Add(b"n", 1))
            client.create_snapshot()
        wait_for(lambda: client.snapshots(node=cluster.addresses[cluster.leader()])["base"] > 1)
        node = grow(cluster, client)
        wait_for(lambda: len(digests(cluster, client, cluster.nodes)) == 1)
        assert client.snapshots(node=cluster.addresses[node])["base"] > 1
        first = cluster.leader()
        client.remove_member(first)
        assert client.submit(0, Add(b"n", 1)).global_index > 0
        assert client.get(0, b"n") == (101,)
