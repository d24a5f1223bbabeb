"""Commands over several keys, on real nodes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter

import pytest
from click.testing import CliRunner

from logboom import Add, Client, Compare, DeletePrefix, DeleteRange, Put, RecordBlock, Status, SyncClient, Txn
from logboom.cli import cli
from logboom.commands import from_record
from logboom.errors import Unavailable
from logboom.testing import LocalCluster
from logboom.types import KV_TXN, WideRecord
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


def move(giver: bytes, taker: bytes, amount: int) -> Txn:
    return Txn([Compare(giver, ">=", amount)], [Add(giver, -amount), Add(taker, amount)], [Add(b"refused", 1)])


def connected(client: SyncClient, at: str, node: str) -> bool:
    return bool({row[0]: row[2] for row in client.status(node=at)["members"]}[node])


async def test_transfers_add_up_on_every_node_over_a_leader_that_dies() -> None:
    with LocalCluster(partitions=2) as own:
        async with Client(own.endpoints) as boom:
            await boom.submit(0, [Add(b"%d" % n, 100) for n in range(5)])

            told, under_way = Counter[Status](), asyncio.Event()

            async def some(begin: int) -> None:
                for n in range(begin, begin + 40):
                    receipt = await boom.submit(0, move(b"%d" % (n % 5), b"%d" % (n * 7 % 5), 60), timeout=60)
                    told.update(receipt.results or ())
                    if told.total() > 80:
                        under_way.set()

            leader = await asyncio.to_thread(own.leader)
            several = asyncio.gather(*(some(begin) for begin in range(8)))
            await under_way.wait()
            own.kill(leader)
            assert not several.done()
            await boom.submit(0, Put(b"without it", b""), timeout=60)
            own.restart(leader)
            await several
            assert told.total() == 320
            assert set(told) <= {Status.OK, Status.OTHERWISE, Status.UNKNOWN_RESULT}
            assert told[Status.OK] > 20
            await asyncio.to_thread(own.wait_serving)
            commit = (await boom.submit(0, Add(b"ended", 1))).global_index
            for address in own.addresses.values():
                values = await boom.get_many(0, [b"%d" % n for n in range(5)], at_least=commit, node=address)
                assert sum(value[0] for value in values if isinstance(value, tuple)) == 500
                assert all(isinstance(value, tuple) and value[0] >= 0 for value in values)
                (refused,) = await boom.get(0, b"refused", at_least=commit, node=address) or (0,)
                assert told[Status.OTHERWISE] <= refused <= told[Status.OTHERWISE] + told[Status.UNKNOWN_RESULT]
            await boom.barrier(commit, scope="all")
            digests = [(await boom.status(node=a, digests=True))["digests"] for a in own.addresses.values()]
            assert digests[0] == digests[1] == digests[2]


async def test_what_was_agreed_on_stays_so_over_restarts_and_snapshots_and_all_have_to_say_that_they_can() -> None:
    with LocalCluster(partitions=1, settings={"snapshot.retain_bytes": 0, "log.mixed_bytes_max": 0}) as own:
        async with Client(own.endpoints) as boom:
            await boom.submit(0, Add(b"a", 10))
            leader, *followers = own.nodes
            assert (await boom.status())["agreed"] == []
            for node in own.nodes:
                own.kill(node)
            for node in (leader, followers[1]):
                own.start_node(node)
            assert await boom.get(0, b"a") == (10,)
            with pytest.raises(Unavailable, match=f"whether {followers[0]} can"):
                await boom.submit(0, move(b"a", b"b", 1), timeout=5)
            assert await boom.get(0, b"b") is None
            own.restart(followers[0])
            assert (await boom.submit(0, move(b"a", b"b", 1), timeout=60)).results == (Status.OK,)
            for _ in range(3):  # the entry that says so is in no journal any more
                await boom.submit(0, [Put(b"%d" % n, bytes(1000)) for n in range(100)])
                await boom.create_snapshot()
            for node in own.nodes:
                own.kill(node, signal.SIGKILL)
            for node in own.nodes:
                if node != followers[0]:
                    own.start_node(node)
            assert (await boom.submit(0, move(b"a", b"b", 1), timeout=60)).results == (Status.OK,)
            assert await boom.get_many(0, [b"a", b"b"]) == [(8,), (2,)]
            assert (await boom.status())["agreed"] == [KV_TXN]


async def test_a_member_that_is_down_forbids_nothing_that_it_knew() -> None:
    with LocalCluster(partitions=1) as own:
        async with Client(own.endpoints) as boom:
            await boom.submit(0, Add(b"a", 10))
            leader = await asyncio.to_thread(own.leader)
            away = next(node for node in own.nodes if node != leader)
            with own.client() as watcher:
                await asyncio.to_thread(wait_for, lambda: connected(watcher, own.addresses[leader], away))
                own.kill(away)
                await asyncio.to_thread(wait_for, lambda: not connected(watcher, own.addresses[leader], away))
            assert (await boom.submit(0, move(b"a", b"b", 1), timeout=30)).results == (Status.OK,)
            own.start_node(away)
            commit = (await boom.token()).global_index
            assert await boom.get(0, b"b", at_least=commit, node=own.addresses[away]) == (1,)


async def test_a_request_that_comes_again_takes_effect_once_and_is_answered_alike(cluster: LocalCluster) -> None:
    producer = os.urandom(16)
    async with Client(cluster.endpoints) as boom:
        await boom.submit(1, Add(b"x", 5))
        block = RecordBlock.from_records([move(b"x", b"y", 3).record(), move(b"x", b"y", 3).record()])
        for duplicate in (0, 2, 2):
            receipt = await boom.submit_block(1, block, producer_id=producer, sequence=0)
            assert (receipt.results, receipt.duplicate) == ((Status.OK, Status.OTHERWISE), duplicate)
        assert await boom.get_many(1, [b"x", b"y", b"refused"]) == [(2,), (3,), (1,)]


async def test_a_prefix_is_removed_however_many_keys_have_it(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        rows = [Put(b"p/%05d" % n, b"v") for n in range(2500)]
        await boom.submit(2, [Put(b"o", b""), *rows, Put(b"q", b"")])
        receipt = await boom.submit(2, DeletePrefix(b"p/"))
        assert receipt.results == (Status.MORE,)
        await boom.delete_prefix(2, b"p/")
        assert [key async for key, _ in boom.scan(2)] == [b"o", b"q"]
        await boom.delete_prefix(2, b"p/")
        await boom.delete_prefix(2, b"q")
        assert [key async for key, _ in boom.scan(2)] == [b"o"]


async def test_a_log_gives_them_to_whoever_follows_one_of_their_keys(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        txn = Txn((Compare(b"w/a", "==", None),), (Put(b"v", b""), Put(b"w/b", b"1")))
        first = await boom.submit(3, [txn, Put(b"v", b"2"), DeletePrefix(b"w/")])
        await boom.barrier(first.global_index, scope="all")
        seen = []
        async for batch in boom.tail(3, start=first.first_index, key_prefix=b"w/"):
            seen += batch.records.records()
        assert seen == [txn.record(), DeletePrefix(b"w/").record()]
        found = [each async for each in boom.tail_metadata(3, start=first.first_index, key_prefix=b"w/")]
        payloads = await boom.fetch([each for batch in found for each in batch.descriptors()])
        assert all(batch.block.wide for batch in found)
        commands = [from_record(WideRecord(bytes(payload), b"w/")) for payload in payloads]
        assert commands == [txn, DeleteRange(b"w/", b"w0")]
        again = await boom.submit(4, seen)  # into another partition
        assert again.results == (Status.OK, Status.OK)
        assert await boom.get_many(4, [b"v", b"w/b"]) == [b"", None]


def test_the_shell_knows_them(cluster: LocalCluster) -> None:
    def run(*words: str, lines: str | None = None, status: int = 0) -> str:
        result = CliRunner().invoke(cli, [*words, "--endpoints", cluster.endpoints], input=lines)
        assert result.exit_code == status, result.output
        return result.output

    txn = {
        "op": "txn",
        "compares": [{"key": "n", "operator": ">=", "numbers": [2]}, {"key": "t", "value": None}],
        "then": [{"op": "add", "key": "n", "numbers": [-2]}, {"key": "t", "value": "taken"}],
        "otherwise": [{"op": "delete", "key": "t"}],
    }
    lines = "\n".join(map(json.dumps, [{"op": "add", "key": "n", "numbers": [3]}, txn, txn, txn]))
    said = json.loads(run("submit", "-p", "5", "--format", "jsonl", "-o", "json", lines=lines))
    assert said[0]["results"] == {"ok": 2, "otherwise": 2}
    run("barrier", "-g", str(said[0]["global_index"]), "-p", "5", "--scope", "all")  # a tail ends where its node does
    shown = [json.loads(line) for line in run("tail", "-p", "5", "-o", "jsonl").splitlines()]
    assert {**txn, "compares": [txn["compares"][0], {"key": "t", "operator": "==", "value": None}]}.items() <= {
        **shown[1],
        "then": [shown[1]["then"][0], {"key": "t", "value": "taken"}],
    }.items()
    assert shown[1]["then"][1] == {"op": "put", "key": "t", "value": "taken"}
    assert json.loads(run("submit", "-p", "5", "-o", "json", "delete-prefix", "n"))[0]["results"] == {"ok": 1}
    assert "no such key" in run("get", "-p", "5", "n", status=1)
    assert "name one" in run("submit", "--by-key", "delete-prefix", "n", status=2)
