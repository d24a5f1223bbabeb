"""Writes on real nodes: exactly once over leader changes, gates, budgets."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from logboom import Add, Client, Delete, Put, RecordBlock, Status
from logboom.cli import cli
from logboom.client.connection import NodeConnection
from logboom.commands import from_record
from logboom.errors import LogboomError, NoSuchPartition, NotLeader, Overloaded, RecordTooLarge
from logboom.testing import LocalCluster
from logboom.types import KIB, MIB
from logboom.wire import HEADER_BYTES_MAX, Kind, encode
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


async def _caught_up(client: Client, cluster: LocalCluster) -> int:
    commit = max([(await client.status(node=a))["commit_index"] for a in cluster.addresses.values()])
    await client.barrier(commit, scope="all", timeout=30)
    return int(commit)


async def test_a_request_over_several_partitions_is_one(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        receipts = await boom.submit_many({p: [Put(b"k%d" % p, b"v"), Add(b"n", 1, 2)] for p in range(8)})
        indices = [r.global_index for r in receipts.parts]
        assert indices == list(range(indices[0], indices[0] + 8))
        assert all(r.results == (Status.OK, Status.OK) for r in receipts.parts)
        assert await boom.get(5, b"n") == (1, 2)


async def test_the_same_sequences_from_two_clients_over_a_leader_change_apply_once() -> None:
    """Both send producer P, sequences 0..; the leader dies in between; every counter ends at exactly 1."""
    producer = os.urandom(16)
    blocks = [RecordBlock.from_records([Add(b"k%d-%d" % (b, i), 1).record() for i in range(20)]) for b in range(40)]

    acknowledged, under_way = list[int](), asyncio.Event()

    async def send(client: Client, order: range) -> None:
        for b in order:
            await client.submit_block(0, blocks[b], producer_id=producer, sequence=20 * b, timeout=30)
            acknowledged.append(b)
            if len(acknowledged) == 10:
                under_way.set()

    with LocalCluster() as own:
        async with Client(own.endpoints) as first, Client(own.endpoints) as second:
            await first.submit_block(0, blocks[0], producer_id=producer, sequence=0)
            leader = await asyncio.to_thread(own.leader)
            term = (await first.status(node=own.addresses[leader]))["term"]
            both = asyncio.gather(send(first, range(40)), send(second, range(39, -1, -1)))
            await under_way.wait()
            own.kill(leader)
            assert not both.done()
            await both
            assert len(acknowledged) == 80
            own.restart(leader)
            await asyncio.to_thread(own.wait_serving)
            commit = await _caught_up(first, own)
            assert (await first.status())["term"] > term
            for address in own.addresses.values():
                state = {k: v async for k, v in first.scan(0, at_least=commit, node=address)}
                assert len(state) == 800
                assert set(state.values()) == {(1,)}


async def test_a_link_that_loses_payload_never_lets_an_entry_through_without_it() -> None:
    """Raft messages pass, half of the payload does not: nodes wait for it, catch up, and agree."""
    with LocalCluster(environment={"LOGBOOM_FAULTS": "drop_payload:0.5"}) as own:
        assert all("fault_hook_on" in own.log(node).read_text() for node in own.nodes)
        async with Client(own.endpoints) as boom:
            for k in range(60):
                await boom.submit(k % 8, Put(b"k%d" % k, os.urandom(200)), timeout=20)
            await _caught_up(boom, own)
            digests = [(await boom.status(node=a, digests=True))["digests"] for a in own.addresses.values()]
            assert [row[2] for row in digests[0]] == [row[2] for row in digests[1]] == [row[2] for row in digests[2]]


async def test_what_lost_all_of_its_payload_is_held_by_nobody_but_the_leader_and_not_acknowledged() -> None:
    """So the hook is asked, and what comes through in the test before was sent again."""
    value = os.urandom(200)

    def holds(directory: Path) -> bool:
        return any(value in path.read_bytes() for kind in ("*.log", "*.journal") for path in directory.rglob(kind))

    patience = {"raft.election_min_ms": 2500, "raft.election_max_ms": 5000}  # another leader would be given it, too
    with LocalCluster(environment={"LOGBOOM_FAULTS": "drop_payload:1"}, settings=patience) as own:
        async with Client(own.endpoints) as boom:
            leader = await asyncio.to_thread(own.leader)
            with pytest.raises(LogboomError) as failed:
                await boom.submit(0, Put(b"k", value), wait="committed", timeout=2.0)
            assert failed.value.outcome == "unknown"
            await asyncio.to_thread(wait_for, lambda: holds(own.data_dirs[leader]))
            assert not any(holds(own.data_dirs[node]) for node in own.nodes if node != leader)
            assert {(await boom.status(node=address))["commit_index"] for address in own.addresses.values()} == {0}


async def test_a_full_budget_refuses_by_name_and_returns_to_zero() -> None:
    limits = {"admission.partition_ops": 100, "admission.retry_after_ms": 20_000}
    with LocalCluster(settings=limits) as own:
        async with Client(own.endpoints) as boom:
            leader = own.addresses[await asyncio.to_thread(own.leader)]
            await boom.admin("pause", 2, node=leader)
            await boom.submit(2, [Put(b"a%d" % k, b"") for k in range(60)], wait="committed")
            before = (await boom.watermarks([2], node=leader))[0].log_index
            with pytest.raises(Overloaded) as refused:
                await boom.submit(2, [Put(b"b%d" % k, b"") for k in range(60)], wait="committed", timeout=5)
            error = refused.value
            assert (error.partition_id, error.limit, error.maximum, error.used) == (2, "partition_ops", 100, 60)
            assert 20 <= error.retry_after <= 25  # later than the deadline: said at once, not tried again
            assert error.outcome == "not_applied"
            with pytest.raises(RecordTooLarge):
                await boom.submit(2, [Put(b"c%d" % k, b"") for k in range(101)], wait="committed")
            assert (await boom.watermarks([2], node=leader))[0].log_index == before
            waiting = asyncio.ensure_future(boom.submit(2, Put(b"d", b""), wait="committed"))
            await asyncio.sleep(0)
            waiting.cancel()
            await boom.admin("resume", 2, node=leader)
            await boom.submit(2, Put(b"e", b""), timeout=10)
            await _caught_up(boom, own)
            status = await boom.status(node=leader)
            assert status["node_backlog"] == [0, 0]
            assert all(row[1:] == [0, 0] for row in status["backlog"])


async def test_budget_returns_after_a_leader_change() -> None:
    """Who leads has work under way that nobody can acknowledge, then stands still; another leads, and it goes on."""
    with LocalCluster(settings={"raft.fallback_ms": 60_000}) as own:
        async with Client(own.endpoints) as boom, Client(own.endpoints) as watching:
            leader = await asyncio.to_thread(own.leader)
            followers = [node for node in own.nodes if node != leader]
            for node in followers:
                own.kill(node, signal.SIGSTOP)
            load = [asyncio.ensure_future(boom.submit(k % 8, Add(b"n", 1))) for k in range(400)]
            async with asyncio.timeout(30):
                while (await watching.status(node=own.addresses[leader]))["node_backlog"][0] < 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not any(each.done() for each in load)
            own.kill(leader, signal.SIGSTOP)
            for node in followers:
                own.kill(node, signal.SIGCONT)
            async with asyncio.timeout(30):
                while (await watching.status(node=own.addresses[followers[0]]))["leader"] not in followers:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            own.kill(leader, signal.SIGCONT)
            receipts = await asyncio.gather(*load)
            assert len(receipts) == 400
            await _caught_up(boom, own)
            for address in own.addresses.values():
                assert (await boom.status(node=address))["node_backlog"] == [0, 0]
            total = [await boom.get(p, b"n") for p in range(8)]
            assert sum(n[0] for n in total if isinstance(n, tuple)) == 400


async def test_a_partition_that_does_not_exist(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        with pytest.raises(NoSuchPartition) as refused:
            await boom.submit(99, Put(b"k", b"v"))
        assert (refused.value.partition_id, refused.value.partitions) == (99, 8)


@pytest.mark.parametrize("asked", [True, False])
async def test_a_follower_forwards_on_request(cluster: LocalCluster, asked: bool) -> None:
    """It answers for the leader; a client that did not ask for that is sent there."""
    leader = await asyncio.to_thread(cluster.leader)
    follower = next(n for n in cluster.nodes if n != leader)
    value = b"of %d" % asked
    block = RecordBlock.from_records([Put(b"via follower", value).record()])
    parts = [[1, 0, 0, 1, len(block.metadata), len(block.data)]]
    header = {"producer": bytes([asked] * 16), "epoch": 0, "wait": "applied", "timeout_ms": 30_000, "forward": asked}
    at = await NodeConnection.open(cluster.addresses[follower], tls=None, timeout=5.0, token=None)
    request = at.request(Kind.SUBMIT, {**header, "parts": parts}, (block.metadata, block.data))
    async with Client(cluster.endpoints) as boom:
        if asked:
            assert (await request).header["parts"][0][-1] == bytes([Status.OK])
            assert await boom.get(1, b"via follower") == value
        else:
            with pytest.raises(NotLeader) as refused:
                await request
            assert refused.value.leader == cluster.addresses[leader]
            assert await boom.get(1, b"via follower") != value
    at.close()


async def test_results_of_many_records_come_back_the_short_way_and_the_long(cluster: LocalCluster) -> None:
    """Found by reading: a byte for each was more than a header might have; a node was cut off for it."""
    count = HEADER_BYTES_MAX + 1000
    block = RecordBlock.from_records([(Delete(b"none") if k % 2 else Put(b"k", b"")).record() for k in range(count)])
    body, status = (block.metadata, block.data), bytes((Status.OK, Status.NOT_FOUND))
    header = {"producer": bytes(16), "epoch": 0, "wait": "applied", "timeout_ms": 30_000, "forward": True}
    part = [2, 0, 0, count, *map(len, body)]
    leader = await asyncio.to_thread(cluster.leader)
    for node in (leader, next(n for n in cluster.nodes if n != leader)):
        at = await NodeConnection.open(cluster.addresses[node], tls=None, timeout=5.0, token=None)
        reply = await at.request(Kind.SUBMIT, {**header, "parts": [part]}, body)
        assert reply.header["parts"][0][-1] == status * (count // 2)
        at.close()
    assert "link_cut" not in "".join(cluster.log(node).read_text() for node in cluster.nodes)


async def test_what_fills_a_frame_is_not_passed_on_but_sent_to_the_leader(cluster: LocalCluster) -> None:
    """Found by reading: with what one node adds for the other it was more than a frame, and the link was cut."""
    leader = await asyncio.to_thread(cluster.leader)
    at = await NodeConnection.open(
        cluster.addresses[next(n for n in cluster.nodes if n != leader)], tls=None, timeout=5.0, token=None
    )
    blocks = [RecordBlock.from_records([Put(b"k", bytes(size)).record()]) for size in (3 * MIB, 3 * MIB, 2 * MIB)]
    header = {"producer": bytes(16), "epoch": 0, "wait": "committed", "timeout_ms": 30_000, "forward": True}
    parts = [[p, 0, 0, 1, len(block.metadata), len(block.data)] for p, block in enumerate(blocks)]
    body = [section for block in blocks for section in (block.metadata, block.data)]
    over = sum(map(len, encode(Kind.SUBMIT, {**header, "parts": parts}, body))) - at.welcome["frame_bytes"]
    body[-1], parts[-1][-1] = body[-1][over:], parts[-1][-1] - over
    body[-2] = RecordBlock.from_columns(payloads=[body[-1]], keys=[b"k"]).metadata
    with pytest.raises(NotLeader) as refused:
        await at.request(Kind.SUBMIT, {**header, "parts": parts}, body)
    assert refused.value.leader == cluster.addresses[leader]
    at.close()
    assert "link_cut" not in "".join(cluster.log(node).read_text() for node in cluster.nodes)


async def test_many_keys_are_read_in_one_request(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        keys = [b"%0500d" % number for number in range(10_000)]
        await boom.submit(4, [Put(key, b"%d" % number) for number, key in enumerate(keys[:1000])])
        assert await boom.get_many(4, keys) == [b"%d" % number for number in range(1000)] + [None] * 9000


async def test_write_behind_applies_and_survives_the_death_of_every_process() -> None:
    with LocalCluster(settings={"cluster.mode": "write_behind"}) as own:
        async with Client(own.endpoints) as boom:
            await asyncio.gather(*[boom.submit(k % 8, Put(b"k%d" % k, b"v")) for k in range(200)])
            for node in own.nodes:
                own.kill(node)
            await asyncio.to_thread(own.start)
            values = [await boom.get(k % 8, b"k%d" % k) for k in range(200)]
            assert set(values) == {b"v"}


def test_errors_name_what_may_have_happened() -> None:
    assert Overloaded("x").retryable
    assert LogboomError("x").outcome == "not_applied"


async def test_where_little_is_taken_at_once_many_small_commands_are_taken_all_the_same(tmp_path: Path) -> None:
    """Clients put commands together, up to what a node takes: it was not asked, and refused them as too large."""
    lines = tmp_path / "lines"
    lines.write_text("".join(f"put f{k} {'v' * 40}\n" for k in range(2_000)))
    limits = {"log.batch_bytes_max": 16 * KIB, "admission.partition_ops": 300}
    with LocalCluster(nodes=1, partitions=1, settings=limits) as own:
        async with Client(own.endpoints, admission_wait=20) as boom:
            await asyncio.gather(*(boom.submit(0, Put(b"k%d" % k, bytes(50))) for k in range(2_000)))
            told = await asyncio.to_thread(
                CliRunner().invoke, cli, ["submit", "-p", "0", "-f", str(lines), "--endpoints", own.endpoints]
            )
            assert told.exit_code == 0, told.output
            assert (await boom.watermarks([0]))[0].log_index == 4_000


def test_a_log_partition_keeps_a_command_as_the_record_that_it_is(tmp_path: Path) -> None:
    """OK, and no effect: there is nothing to have one on (docs/from-kafka-and-etcd.md)."""
    settings = {"cluster.overrides": {"1": {"state_machine": "log"}}}
    with (
        LocalCluster(nodes=1, partitions=2, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        commands = [Put(b"k", b"v"), Add(b"n", 3), Delete(b"k")]
        assert [*client.submit(1, commands, wait="applied").results] == [Status.OK] * 3
        records = [record for batch in client.tail(1) for record in batch.records.records()]
        assert [from_record(record) for record in records] == commands
        with pytest.raises(LogboomError):
            client.get(1, b"k")
