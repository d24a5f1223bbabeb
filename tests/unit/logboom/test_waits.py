"""Barriers, watermarks and freshness, as the client asks for them."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from logboom import Client, Put, Token
from logboom.errors import BY_CODE, InvalidRequest, LineageMismatch, NoSuchPartition, NotLeader, Unavailable
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Session, cluster, fails, until


@pytest.mark.parametrize("scope", ["quorum", "all"])
async def test_a_barrier_over_several_nodes_asks_one_which_asks_the_others(scope: str) -> None:
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        result = await boom.barrier(9, partitions=[1], scope=scope, level="durable", mode=1)
        assert result.global_index == 9
        [header] = [frame.header for node in nodes for frame in node.of(Kind.BARRIER)]
        assert (header["scope"], header["level"], header["partitions"], header["mode"]) == (scope, "durable", [1], 1)


async def test_a_barrier_over_several_nodes_goes_on_elsewhere_when_the_one_that_was_asked_is_lost() -> None:
    async with cluster(2) as [first, second], Client(first.address) as boom:
        await boom.members()
        first.answers[Kind.BARRIER] = lambda session, _: session.transport.abort()
        second.answers[Kind.BARRIER] = lambda session, frame: session.usual(frame)
        for _ in range(4):  # whichever is asked first
            assert (await boom.barrier(9, scope="quorum", timeout=5.0)).node_id == "n2"


async def test_receipts_are_a_vector_of_targets() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        first = await boom.submit(2, Put(b"a", b""))
        receipts = await boom.submit_many({0: [Put(b"a", b"")], 2: [Put(b"b", b"")]})
        both = [first, *receipts.parts]
        at = {part.partition_id: part.global_index for part in receipts.parts}
        for target in (first, receipts, both, {0: 7}):
            await boom.barrier(target)
        await boom.barrier(both, partitions=[1, 3])
        headers = [frame.header for frame in node.of(Kind.BARRIER)]
        assert [header.get("targets") for header in headers] == [
            [[2, first.global_index]],
            [[0, at[0]], [2, at[2]]],
            [[0, at[0]], [2, at[2]]],
            [[0, 7]],
            None,
        ]
        assert (headers[-1]["global_index"], headers[-1]["partitions"]) == (receipts.global_index, [1, 3])


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize(("mode", "index"), [("all", 900), ("any", 5), (1, 5), (2, 70), (3, 900)])
async def test_of_several_targets_only_what_must_have_been_reached_was_seen(
    mode: str | int, index: int, watch: bool
) -> None:
    """Any of them was reached: the highest may be far ahead, and every read of the session would wait for it."""
    async with cluster() as [node], Client(node.address) as boom:
        targets = {0: 5, 1: 900, 2: 70}
        if watch:
            result = [step.done async for step in boom.barrier_watch(targets, mode=mode)][-1]
        else:
            result = await boom.barrier(targets, mode=mode)
        assert result is not None
        assert (result.global_index, boom.last_seen) == (index, index)
        assert node.of(Kind.BARRIER)[0].header["mode"] == mode


async def test_one_index_that_any_partition_has_reached_was_seen() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        assert (await boom.barrier({0: 5, 1: 9}, partitions=[2, 3], mode="any")).global_index == 9
        assert boom.last_seen == 9


async def test_a_token_names_its_cluster() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"a", b""))
        token = await boom.token()
        assert token.global_index == boom.last_seen == 1
        await boom.barrier(token)
        header = node.of(Kind.BARRIER)[0].header
        assert (header["cluster"], header["global_index"]) == (token.cluster, 1)
        with pytest.raises(LineageMismatch, match="another"):
            await boom.get(0, b"a", at_least=Token("another", 1))


async def test_a_token_is_compared_by_a_client_that_has_met_nobody_yet() -> None:
    """It is handed from one program to another, whose first call is with it."""
    async with cluster() as [node]:
        for token in (Token("another", 1), Token("test", 1, "ab" * 16)):
            async with Client(node.address) as boom:
                with pytest.raises(LineageMismatch):
                    await boom.get(0, b"a", at_least=token)
            async with Client(node.address) as boom:
                with pytest.raises(LineageMismatch):
                    await boom.barrier(token)
        assert [*node.of(Kind.GET), *node.of(Kind.BARRIER)] == []


async def test_nodes_of_two_histories_are_not_taken_for_one_cluster() -> None:
    async with cluster(3) as nodes:
        nodes[2].lineage = "ab" * 16
        async with Client(nodes[0].address) as boom:
            for _ in range(12):  # whichever is asked first
                await boom.barrier(1)
            with pytest.raises(LineageMismatch, match="new client"):
                await boom.barrier(1, node="n3")
            assert not nodes[2].of(Kind.BARRIER)
            assert len(nodes[2].of(Kind.HELLO)) <= 3


async def test_a_node_that_follows_nobody_does_not_say_which_history_counts() -> None:
    """It may be one from before a restore, which the others have no link with, and be met first."""
    async with cluster(3) as nodes:
        for node in nodes[1:]:
            node.lineage, node.leader = "ab" * 16, nodes[1].address
            node.members = {each.name: each.address for each in nodes[1:]}
        nodes[0].leader = None
        nodes[0].answers[Kind.SUBMIT] = fails(NotLeader("there is none"))
        async with Client(nodes[0].address, timeout=5.0) as boom:
            assert await boom.token() == Token("test", 0, "")
            await boom.submit(0, Put(b"a", b""))
            assert (await boom.token()).lineage == "ab" * 16
            with pytest.raises(Unavailable, match=r"\(first history\).* follows nobody"):
                await boom.barrier(1, node=nodes[0].address, timeout=0.5)


async def test_a_node_that_is_about_to_begin_with_an_empty_disk_is_asked_again() -> None:
    """Met alone while the others were being started it ended what it was asked for: as of another history, for good."""
    async with cluster(2) as nodes:
        for node in nodes:
            node.lineage = "ab" * 16
        async with Client([each.address for each in nodes], timeout=20.0) as boom:
            await boom.submit(0, Put(b"a", b""))
            empty, other = nodes
            empty.lineage, empty.leader = "", None
            await other.stop()
            for session in list(empty.sessions):
                session.transport.abort()
            asked = asyncio.ensure_future(boom.barrier(1))
            await until(lambda: asked.done() or len(empty.of(Kind.HELLO)) >= 4)
            assert not asked.done()
            empty.lineage, empty.leader = "ab" * 16, empty.address
            await asked
            async with asyncio.timeout(20):
                await until(lambda: len(empty.sessions) == 1)  # it keeps no connection that it has turned away


@pytest.mark.parametrize("seed", range(4))
async def test_a_node_that_joins_and_has_met_nobody_does_not_give_tokens_of_the_first_history(seed: int) -> None:
    async with cluster(2) as nodes:
        nodes[1].lineage = "ab" * 16
        welcome = {"version": 1, "cluster": "test", "node": "n1", "leader": None, "partitions": [[0, "kv", "x"]]}
        nodes[0].answers[Kind.HELLO] = lambda session, frame: session.send(
            frame, Kind.WELCOME, {**welcome, "members": {}, "frame_bytes": 1 << 20, "lineage": None}
        )
        both = f"{nodes[0].address},{nodes[1].address}"
        async with Client(both, timeout=5.0, rng=random.Random(seed)) as boom:
            assert (await boom.token()).lineage == "ab" * 16


async def test_a_barrier_timeout_is_the_answer_and_not_retried() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = fails(BY_CODE["barrier_timeout"]("not yet", behind=[3]))
        with pytest.raises(BY_CODE["barrier_timeout"]) as caught:
            await boom.barrier(9, timeout=0.9)
        assert caught.value.behind == [3]
        assert len(node.of(Kind.BARRIER)) == 1


@pytest.mark.parametrize("watch", [False, True])
async def test_whom_a_node_lets_wait_no_longer_asks_again_while_there_is_time(watch: bool) -> None:
    """A node ends whatever has taken ten minutes; a barrier of eleven was told that its time was over."""
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.BARRIER, *[fails(BY_CODE["barrier_timeout"]("not yet", behind=[3]))] * 2)
        if watch:
            assert [each.done is not None async for each in boom.barrier_watch(9, timeout=30.0)] == [True]
        else:
            await boom.barrier(9, timeout=30.0)
        assert len(node.of(Kind.BARRIER)) == 3


async def test_a_barrier_that_is_blocked_is_not_asked_again() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = fails(BY_CODE["barrier_blocked"]("paused", blocked=[[3, "paused"]]))
        with pytest.raises(BY_CODE["barrier_blocked"]):
            await boom.barrier(9, timeout=30.0)
        assert len(node.of(Kind.BARRIER)) == 1


async def test_scope_leader_follows_the_leader() -> None:
    async with cluster(2) as [first, second], Client(first.address) as boom:
        first.answers[Kind.BARRIER] = fails(NotLeader("no", leader=second.address))
        assert (await boom.barrier(9, scope="leader")).node_id == "n2"


@pytest.mark.parametrize(
    "how",
    [
        {"scope": "everywhere"},
        {"level": "cooked"},
        {"node": "n9"},
        {"mode": 0},
        {"mode": "most"},
        {"node": "n1", "scope": "leader"},
    ],
)
async def test_a_bad_barrier_is_refused(how) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest):
            await boom.barrier(1, **how)


@pytest.mark.parametrize("target", ["9", None, True, [], [9], datetime(2026, 11, 22)])  # noqa: DTZ001 - that is it
async def test_a_target_that_is_none_is_refused(target) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest):
            await boom.barrier(target)
        assert not node.of(Kind.BARRIER)


async def test_who_watches_a_barrier_hears_of_all_that_moves_and_of_the_end() -> None:
    told = {"node": "n1", "frontiers": [[0, 3], [1, 9]], "reached": 1, "needed": 2}
    reached = {"node": "n1", "watermarks": [], "frontiers": [[0, 9], [1, 9]]}
    rest = [
        lambda session, frame: session.send(frame, Kind.BARRIER_PROGRESS, {**told, "frontiers": [[0, 7]]}, more=True),
        lambda session, frame: session.send(frame, Kind.REACHED, reached),
    ]

    def progress(session: Session, frame: Frame) -> None:
        assert frame.header["progress_ms"] == 50
        session.send(frame, Kind.BARRIER_PROGRESS, told, more=True)

    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = progress
        steps = []
        async for step in boom.barrier_watch(9, partitions=[0, 1], every=0.05):
            steps.append(step)
            if rest:
                rest.pop(0)(node.sessions[0], node.of(Kind.BARRIER)[0])
    assert [step.frontiers for step in steps] == [{0: 3, 1: 9}, {0: 7, 1: 9}, {0: 9, 1: 9}]
    assert [(step.reached, step.needed) for step in steps] == [(1, 2), (1, 2), (2, 2)]
    assert [step.done is not None for step in steps] == [False, False, True]
    assert steps[-1].done is not None
    assert steps[-1].done.global_index == 9


async def test_a_barrier_that_is_watched_goes_on_elsewhere_and_ends_with_its_timeout() -> None:
    def half(session: Session, frame: Frame) -> None:
        told = {"node": "n1", "frontiers": [[0, 3]], "reached": 0, "needed": 1}
        session.send(frame, Kind.BARRIER_PROGRESS, told, more=True)
        asyncio.get_running_loop().call_later(0.01, session.transport.abort)

    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.BARRIER, half, fails(BY_CODE["barrier_timeout"]("not yet", behind=[0])))
        steps = boom.barrier_watch(9, partitions=[0], timeout=0.9)
        assert (await anext(steps)).reached == 0
        with pytest.raises(BY_CODE["barrier_timeout"]):
            await anext(steps)
        assert len(node.of(Kind.BARRIER)) == 2


async def test_who_stops_watching_frees_the_waiter() -> None:
    def once(session: Session, frame: Frame) -> None:
        told = {"node": "n1", "frontiers": [[0, 3]], "reached": 0, "needed": 1}
        session.send(frame, Kind.BARRIER_PROGRESS, told, more=True)

    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = once
        steps = boom.barrier_watch(9, partitions=[0])
        await anext(steps)
        await steps.aclose()
        await until(lambda: node.of(Kind.CANCEL))
        assert node.of(Kind.CANCEL)[0].request_id == node.of(Kind.BARRIER)[0].request_id


async def test_watermarks_come_whole_whatever_is_sent() -> None:
    def mark(partition: int, applied: int) -> list[Any]:
        return [partition, applied, applied, applied, 0, applied, "running"]

    head = {"node": "n1", "commit_index": 9, "minimum": 4}
    looks: list[Any] = [([mark(0, 4), mark(2, 3)], False, []), ([mark(1, 5)], True, []), ([mark(0, 7)], True, [2])]

    def watched(session: Session, frame: Frame, begin: int, end: int) -> None:
        for n, (rows, whole, gone) in list(enumerate(looks))[begin:end]:
            told = {**head, "watermarks": rows, "first": n == 0, "whole": whole, "gone": gone}
            session.send(frame, Kind.WATCHED, told, more=True)

    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.WATCH] = lambda session, frame: watched(session, frame, 0, 2)
        stream = boom.watermarks_stream([0, 1], every=0.2)
        updates = [await anext(stream)]
        watched(node.sessions[0], node.of(Kind.WATCH)[0], 2, 3)
        updates.append(await anext(stream))
        await stream.aclose()
    assert [[m.applied_index for m in update.watermarks] for update in updates] == [[4, 5, 3], [7, 5]]
    assert (updates[0].minimum, updates[0].commit_index) == (4, 9)
    assert node.of(Kind.WATCH)[0].header == {"partitions": [0, 1], "every_ms": 200}


async def test_a_time_is_asked_of_the_leader_and_then_waited_for() -> None:
    async with cluster(2) as [first, second], Client(first.address) as boom:
        first.answers[Kind.INDEX_AT] = fails(NotLeader("no", leader=second.address))
        second.answers[Kind.INDEX_AT] = lambda s, f: s.send(f, Kind.INDEX_IS, {"global_index": 7, "cluster": "test"})
        when = datetime(2026, 11, 22, 3, 5, tzinfo=UTC)
        await boom.barrier(when, partitions=[0])
        header = second.of(Kind.INDEX_AT)[0].header
        assert header["timestamp_ms"] == int(when.timestamp() * 1000) + 1
        [asked] = first.of(Kind.BARRIER) + second.of(Kind.BARRIER)
        assert asked.header["global_index"] == 7


@pytest.mark.parametrize(
    ("how", "sent"),
    [
        ({}, ("linearizable", 0, None)),
        ({"stale": True}, ("stale", 0, None)),
        ({"at_least": 7}, ("at_least", 7, None)),
        ({"at_least": Token("test", 7)}, ("at_least", 7, None)),
        ({"at_least": "session"}, ("at_least", 1, None)),
        ({"max_staleness": 0.25}, ("bounded", 0, 250)),
        ({"max_staleness": 0, "at_least": "session"}, ("bounded", 1, 0)),
    ],
)
async def test_how_new_a_read_has_to_be(how: dict[str, Any], sent: tuple[object, ...]) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.GET] = fails(NoSuchPartition("enough seen"))
        await boom.submit(0, Put(b"a", b""))
        with pytest.raises(NoSuchPartition):
            await boom.get(0, b"a", **how)
        header = node.of(Kind.GET)[0].header
        assert (header["read"], header["at_least"], header.get("max_staleness_ms")) == sent


@pytest.mark.parametrize(
    "how", [{"stale": True, "at_least": 1}, {"stale": True, "max_staleness": 1.0}, {"max_staleness": -1}]
)
async def test_reads_that_cannot_be_both(how: dict[str, Any]) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest):
            await boom.get(0, b"a", **how)


@pytest.mark.parametrize(("features", "sent"), [(None, "applied"), ([], "applied"), (["ack"], None)])
async def test_a_submit_that_does_not_say_leaves_it_to_nodes_that_know_that(features: Any, sent: str | None) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.features = features
        await boom.submit(0, Put(b"a", b""))
        await boom.submit_many({0: [Put(b"a", b"")], 1: [Put(b"b", b"")]})
        await boom.submit(0, Put(b"a", b""), wait="committed")
        assert [frame.header["wait"] for frame in node.of(Kind.SUBMIT)] == [sent, sent, "committed"]
