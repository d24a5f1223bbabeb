"""Batches that many producers share (docs/decisions/0038-mixed-batches.md), on real nodes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from logboom import Add, Cas, Client, Delete, Receipt, Record, Status, SyncClient
from logboom.cli import cli
from logboom.client.log_batches import LogBatch
from logboom.commands import to_record
from logboom.testing import LocalCluster
from logboom.types import MIXED
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

KV, LOG = 0, 1
SETTINGS = {"cluster.overrides": {str(LOG): {"state_machine": "log"}}}
CLIENTS, TURNS = 48, 6
NOBODY = bytes(16)
OWN = {Add: Status.OK, Cas: Status.MISMATCH, Delete: Status.NOT_FOUND, Record: Status.OK}
"""What becomes of each command of a crowd."""


class Written(NamedTuple):
    """One command of a crowd, and what was said of it."""

    producer: bytes
    sequence: int
    command: Add | Cas | Delete | Record
    receipt: Receipt


Crowd = list[Client]
"""Those with even numbers write to the kv partition, the others to the log partition."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes, a kv and a log partition, and it is agreed that batches may be mixed."""
    with LocalCluster(partitions=2, settings=SETTINGS) as running:
        with running.client() as boom:
            wait_for(lambda: agreed_everywhere(running, boom))
        yield running


@pytest.fixture(scope="module")
def unmixed() -> Iterator[LocalCluster]:
    """The same, but nobody wants to share: not even if it need not wait for that."""
    with LocalCluster(
        partitions=2, settings={**SETTINGS, "log.mixed_bytes_max": 0, "raft.agree_after_s": 0}
    ) as running:
        yield running


def agreed_everywhere(cluster: LocalCluster, boom: SyncClient) -> bool:
    return all(MIXED in boom.status(node=address)["agreed"] for address in cluster.addresses.values())


@asynccontextmanager
async def crowd_of(cluster: LocalCluster) -> AsyncIterator[Crowd]:
    """Clients of their own, which all know the cluster already."""
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(Client(cluster.endpoints, timeout=60)) for _ in range(CLIENTS)]
        await asyncio.gather(*(each.partitions() for each in crowd))
        yield crowd


def counter(number: int, name: bytes) -> bytes:
    return b"%s/%d" % (name, number)


def command(number: int, name: bytes, turn: int) -> Add | Cas | Delete | Record:
    """What differs within each turn: of TURNS in a row each kv client has one Cas, one Delete, and else Adds."""
    if number % 2:
        return Record(b"%s %d %d" % (name, number, turn))
    key = counter(number, name)
    absent = key + b"?"
    others: dict[int, Cas | Delete] = {0: Cas(absent, b"other", b"never"), 1: Delete(absent)}
    return others.get((number // 2 + turn) % TURNS, Add(key, 1))


async def write(crowd: Crowd, name: bytes, written: list[Written], turns: int = TURNS, first: int = 0) -> None:
    """Each client has one command under way, all of them at once. ``first``: turns that they have had."""

    async def one_by_one(number: int, own: Client) -> None:
        for turn in range(first, first + turns):
            chosen = command(number, name, turn)
            receipt = await own.submit(number % 2, chosen)
            written.append(Written(own.producer_id, turn, chosen, receipt))

    await asyncio.gather(*(one_by_one(number, own) for number, own in enumerate(crowd)))


async def last_indices(boom: Client) -> list[int]:
    """Of both partitions, by writing one more record to each; all nodes have all of it then."""
    found = [(await boom.submit(partition, Add(b"mark", 1))).last_index for partition in (KV, LOG)]
    await boom.barrier(boom.last_seen, scope="all")
    return [int(index) for index in found]


async def batches(boom: Client, partition: int, start: int = 0, node: str | None = None) -> list[LogBatch]:
    return [batch async for batch in boom.tail(partition, start=start, node=node)]


def shared(found: Sequence[LogBatch]) -> list[LogBatch]:
    return [batch for batch in found if len(batch.origins) > 1]


def records(found: Sequence[LogBatch]) -> dict[int, Record]:
    """By index; each is there once."""
    rows = [row for batch in found for row in zip(batch.indexes().tolist(), batch.records.records(), strict=True)]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def numbers(found: Sequence[LogBatch]) -> dict[int, tuple[bytes, int]]:
    """By index: whose record it is, and which one of his. Of a whole batch the origins are all of it, too."""
    rows = dict[int, tuple[bytes, int]]()
    for batch in found:
        if not batch.origins:
            rows.update({i: (batch.producer_id, batch.sequence + i - batch.first_index) for i in of(batch)})
            continue
        assert (batch.producer_id, batch.epoch, batch.sequence) == (NOBODY, 0, 0)
        assert len({origin.producer for origin in batch.origins}) == len(batch.origins) > 1
        mine = {
            origin.first_index + k: (bytes(origin.producer), origin.sequence + k)
            for origin in batch.origins
            for k in range(origin.record_count)
        }
        assert list(mine) == of(batch)
        rows.update(mine)
    return rows


def of(batch: LogBatch) -> list[int]:
    indexes: list[int] = batch.indexes().tolist()
    return indexes


def into(partition: int, written: Sequence[Written]) -> list[Written]:
    return [each for each in written if each.receipt.partition_id == partition]


async def counters(boom: Client, name: bytes, *, at_least: int, node: str | None = None) -> Counter[object]:
    keys = [counter(number, name) for number in range(0, CLIENTS, 2)]
    return Counter(await boom.get_many(KV, keys, at_least=at_least, node=node))


async def beside(writing: Coroutine[Any, Any, None], others: Iterable[Coroutine[Any, Any, Receipt]]) -> list[Receipt]:
    """All at once; what the others are told."""
    crowd = asyncio.ensure_future(writing)
    found = await asyncio.gather(*others)
    await crowd
    return found


def run(*args: object) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [*map(str, args), "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_new_cluster_has_agreed_on_them_and_nobody_asked(cluster: LocalCluster) -> None:
    with cluster.client() as boom:
        assert agreed_everywhere(cluster, boom)


async def test_each_of_a_crowd_has_its_own_place_and_result_and_the_log_says_whose_each_record_is(
    cluster: LocalCluster,
) -> None:
    written = list[Written]()
    async with Client(cluster.endpoints) as boom, crowd_of(cluster) as crowd:
        before = await last_indices(boom)
        await write(crowd, b"b", written)
        after = await last_indices(boom)
        assert len(written) == CLIENTS * TURNS
        for partition in (KV, LOG):
            mine = into(partition, written)
            assert all(each.receipt.count == 1 for each in mine)
            places = sorted(each.receipt.first_index for each in mine)
            assert places == list(range(before[partition] + 1, after[partition]))
            found = (await batches(boom, partition, before[partition] + 1))[:-1]
            assert shared(found), "nobody shared a batch: this shows nothing"
            there, whose = records(found), numbers(found)
            assert list(there) == places
            globals_of = {index: batch.global_index for batch in found for index in of(batch)}
            assert len(set(globals_of.values())) == len(found)
            for each in mine:
                index = each.receipt.first_index
                assert there[index] == to_record(each.command)
                assert whose[index] == (each.producer, each.sequence)
                assert globals_of[index] == each.receipt.global_index
        for each in written:
            assert (each.receipt.results, each.receipt.duplicate) == ((OWN[type(each.command)],), 0)
        assert await counters(boom, b"b", at_least=boom.last_seen) == {(TURNS - 2,): CLIENTS // 2}
        assert await boom.get_many(KV, [counter(n, b"b") + b"?" for n in range(0, CLIENTS, 2)]) == [None] * 24


async def test_readers_of_pieces_of_metadata_and_of_all_partitions_are_told_the_same(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom, crowd_of(cluster) as crowd:
        before = await last_indices(boom)
        await write(crowd, b"r", [])
        await last_indices(boom)
        whole = {p: await batches(boom, p, before[p] + 1) for p in (KV, LOG)}
        for partition, found in whole.items():
            assert shared(found)
            pieces = [each async for each in boom.tail(partition, start=before[partition] + 1, batch_records=1)]
            expected = [batch.origins for batch in found for _ in range(batch.records.count)]
            assert [piece.origins for piece in pieces] == expected
            assert [piece.first_index for piece in pieces] == [index for batch in found for index in of(batch)]
            about = [each async for each in boom.tail_metadata(partition, start=before[partition] + 1)]
            assert [(m.first_index, m.count, m.origins) for m in about] == [
                (batch.first_index, batch.records.count, batch.origins) for batch in found
            ]
            middle = shared(found)[0].first_index + 1
            rest = (await batches(boom, partition, middle))[0]
            assert (rest.first_index, rest.origins) == (middle, shared(found)[0].origins)
        first = min(batch.global_index for found in whole.values() for batch in found)
        in_order = sorted((batch for found in whole.values() for batch in found), key=lambda each: each.global_index)
        scanned = [batch async for batch in boom.scan_log([KV, LOG], start_global=first)]
        assert scanned == in_order
        chosen = [each async for each in boom.tail(KV, start=before[KV] + 1, key_prefix=counter(10, b"r"))]
        whose = numbers(whole[KV])
        for batch in chosen:
            for index in of(batch):
                assert whose[index][0] == crowd[10].producer_id
                owner = [o for o in batch.origins if o.first_index <= index <= o.last_index]
                assert [bytes(o.producer) for o in owner] == [crowd[10].producer_id] * bool(batch.origins)
        assert sum(batch.records.count for batch in chosen) == TURNS


async def test_what_comes_again_among_a_crowd_has_no_second_effect(cluster: LocalCluster) -> None:
    producer = os.urandom(16)
    async with Client(cluster.endpoints) as boom, crowd_of(cluster) as crowd:
        start = (await boom.submit(KV, Add(b"c", 0))).last_index

        async def again(own: Client, rows: list[Add], sequence: int) -> Receipt:
            return await own.submit(KV, rows, producer_id=producer, sequence=sequence)

        sent, among = 0, False
        async with asyncio.timeout(60):
            while not among:  # a copy that is skipped, in a batch whose others are not
                written = list[Written]()
                same = [again(own, [Add(b"c", 1)], 2 * sent) for own in crowd[:4]]
                copies = await beside(write(crowd, b"c", written, 1, sent), same)
                assert sorted(each.duplicate for each in copies) == [0, 1, 1, 1]
                assert {each.results for each in copies} == {(Status.OK,)}
                (first,) = (each for each in copies if not each.duplicate)
                # Of two the first is known, the second is not.
                both = [again(own, [Add(b"c", 1), Add(b"c", 1)], 2 * sent) for own in crowd[4:7]]
                pairs = await beside(write(crowd, b"d", written, 1, sent + 1), both)
                assert sorted(each.duplicate for each in pairs) == [1, 2, 2]
                assert {each.results for each in pairs} == {(Status.OK, Status.OK)}
                late = await again(crowd[8], [Add(b"c", 1)], 2 * sent)
                assert (late.duplicate, late.first_index, late.results) == (1, first.first_index, (Status.OK,))
                assert all(each.receipt.results == (OWN[type(each.command)],) for each in written)
                assert not any(each.receipt.duplicate for each in written)
                sent += 2
                await last_indices(boom)
                assert await boom.get(KV, b"c", at_least=boom.last_seen) == (sent,)
                theirs = [o for batch in shared(await batches(boom, KV, start)) for o in batch.origins]
                among = max(Counter(o.sequence for o in theirs if o.producer == producer).values(), default=0) > 1


async def test_the_log_is_the_same_on_every_node_after_a_leader_was_killed_in_a_crowd(cluster: LocalCluster) -> None:
    written = list[Written]()
    async with Client(cluster.endpoints, timeout=60) as boom, crowd_of(cluster) as crowd:
        before = await last_indices(boom)
        leader = await asyncio.to_thread(cluster.leader)
        term = (await boom.status(node=leader))["term"]
        several = asyncio.create_task(write(crowd, b"k", written, 4 * TURNS))
        await asyncio.to_thread(wait_for, lambda: len(written) > CLIENTS)
        cluster.kill(leader)
        await several
        cluster.restart(leader)
        await asyncio.to_thread(cluster.wait_serving)
        after = await last_indices(boom)
        for partition in (KV, LOG):
            nodes = [await batches(boom, partition, before[partition] + 1, node) for node in cluster.nodes]
            assert nodes[0] == nodes[1] == nodes[2]
            assert {batch.term > term for batch in shared(nodes[0])} == {False, True}, "no crowd before, or none after"
            there, whose = records(nodes[0]), numbers(nodes[0])
            assert list(there) == list(range(before[partition] + 1, after[partition] + 1))
            mine = into(partition, written)
            assert len({each.receipt.first_index for each in mine}) == len(mine) == CLIENTS // 2 * 4 * TURNS
            for each in mine:
                assert there[each.receipt.first_index] == to_record(each.command)
                assert whose[each.receipt.first_index] == (each.producer, each.sequence)
        for each in written:
            assert each.receipt.results in ((OWN[type(each.command)],), (Status.UNKNOWN_RESULT,))
        for node in cluster.nodes:
            found = await counters(boom, b"k", at_least=boom.last_seen, node=node)
            assert found == {(4 * (TURNS - 2),): CLIENTS // 2}, node
        digests = [(await boom.status(node=node, digests=True))["digests"] for node in cluster.nodes]
        assert digests[0] == digests[1] == digests[2]


async def test_what_a_crowd_has_written_is_known_to_a_cluster_that_was_killed_and_started_again(
    cluster: LocalCluster,
) -> None:
    written = list[Written]()
    async with Client(cluster.endpoints, timeout=60) as boom, crowd_of(cluster) as crowd:
        before = await last_indices(boom)
        await write(crowd, b"s", written)
        await last_indices(boom)
        logs = [await batches(boom, partition, before[partition] + 1) for partition in (KV, LOG)]
        for node in cluster.nodes:
            cluster.kill(node)
        await asyncio.to_thread(cluster.start)
        with cluster.client() as looking:
            await asyncio.to_thread(wait_for, lambda: agreed_everywhere(cluster, looking))
        latest = [each for each in written if each.sequence == TURNS - 1]

        async def again(each: Written) -> Receipt:
            where = each.receipt.partition_id
            return await boom.submit(where, each.command, producer_id=each.producer, sequence=each.sequence)

        assert len(latest) == CLIENTS
        for each, said in zip(latest, await asyncio.gather(*map(again, latest)), strict=True):
            assert (said.duplicate, said.first_index) == (1, each.receipt.first_index)
            assert (said.global_index, said.results) == (each.receipt.global_index, each.receipt.results)
        for node in cluster.nodes:
            assert [await batches(boom, p, before[p] + 1, node) for p in (KV, LOG)] == logs
            found = await counters(boom, b"s", at_least=boom.last_seen, node=node)
            assert found == {(TURNS - 2,): CLIENTS // 2}, node


async def test_files_of_a_stopped_node_have_them_and_are_in_order(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom, crowd_of(cluster) as crowd:
        await write(crowd, b"f", [])
        await last_indices(boom)
        logs = {partition: await batches(boom, partition) for partition in (KV, LOG)}
        leader = await asyncio.to_thread(cluster.leader)
    node = next(node for node in cluster.nodes if node != leader)
    cluster.kill(node, signal.SIGTERM)
    assert await asyncio.to_thread(cluster.wait_ended, node) == 0
    try:
        data = cluster.data_dirs[node]
        assert run("verify", data)["findings"] == []
        for partition, found in logs.items():
            segments = sorted((data / "partitions" / str(partition)).glob("*.log"))
            rows = [row for path in segments for row in run("inspect", "aof", path)["rows"]]
            assert shared(found)
            in_file = {(row["first_index"], row["last_index"], row["term"], row["origins"]) for row in rows}
            # Those of a leader that was killed may be beside them: nobody has ordered them.
            assert in_file >= {(b.first_index, b.last_index, b.term, len(b.origins)) for b in found}
            assert all(row["producer"] == NOBODY.hex() for row in rows if row["origins"])
    finally:
        cluster.restart(node)
        await asyncio.to_thread(cluster.wait_serving)


async def test_with_a_size_of_zero_everybody_goes_alone(unmixed: LocalCluster) -> None:
    async with Client(unmixed.endpoints) as boom, crowd_of(unmixed) as crowd:
        before = await last_indices(boom)
        await write(crowd, b"z", [])
        await last_indices(boom)
        for partition in (KV, LOG):
            found = await batches(boom, partition, before[partition] + 1)
            assert not any(batch.origins for batch in found)
            assert len(found) == CLIENTS // 2 * TURNS + 1
        assert await counters(boom, b"z", at_least=boom.last_seen) == {(TURNS - 2,): CLIENTS // 2}


def test_with_a_size_of_zero_nothing_is_agreed_on_and_there_is_a_way_back(unmixed: LocalCluster) -> None:
    with unmixed.client() as boom:
        leader = unmixed.leader()
        with pytest.raises(AssertionError, match="did not happen in time"):
            wait_for(lambda: MIXED in boom.status(node=leader)["agreed"], seconds=1.5)


async def test_a_cluster_that_has_ordered_something_waits_before_it_agrees(tmp_path: Path) -> None:
    own = LocalCluster(partitions=2, settings=SETTINGS, directory=tmp_path)
    try:
        for node in own.nodes[:2]:
            own.start_node(node)
        await asyncio.to_thread(own.wait_serving)
        async with Client(own.endpoints) as boom:
            await boom.submit(KV, Add(b"n", 1))
        own.start()
        async with Client(own.endpoints) as boom, crowd_of(own) as crowd:
            await write(crowd, b"w", [])
            await last_indices(boom)
            for partition in (KV, LOG):
                assert not any(batch.origins for batch in await batches(boom, partition))
            assert [(await boom.status(node=node))["agreed"] for node in own.nodes] == [[], [], []]
    finally:
        own.stop()
    hasty = {**SETTINGS, "raft.agree_after_s": 0}
    with LocalCluster(partitions=2, settings=hasty, directory=tmp_path) as own:
        with own.client() as waiting:
            await asyncio.to_thread(wait_for, lambda: agreed_everywhere(own, waiting))
        async with Client(own.endpoints) as boom, crowd_of(own) as crowd:
            await write(crowd, b"h", [])
            await last_indices(boom)
            for partition in (KV, LOG):
                assert shared(await batches(boom, partition))
            assert await counters(boom, b"h", at_least=boom.last_seen) == {(TURNS - 2,): CLIENTS // 2}
