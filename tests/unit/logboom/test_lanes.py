"""Single commands in lanes: deadlines of their own, places in flight that come back, answers that are none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from logboom import Client, Put
from logboom.client.lanes import BESIDE_COMMANDS_MAX, IN_FLIGHT_MAX, LARGE_PART
from logboom.client.parts import Part
from logboom.errors import (
    DeadlineExceeded,
    LogboomError,
    NotLeader,
    Overloaded,
    PermissionDenied,
    Unavailable,
    UnknownOutcome,
)
from logboom.types import KIB
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Answer, Session, cluster, cuts, fails, silent, until


async def known(client: Client) -> None:
    """The leader's address, from its WELCOME: commands need no task from here on."""
    await client.partitions()


@contextmanager
def loop_complains() -> Iterator[list[dict[str, Any]]]:
    """What the loop is told of."""
    loop, seen = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    try:
        yield seen
    finally:
        loop.set_exception_handler(None)


async def test_a_command_needs_no_task_once_the_leader_is_known() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        await boom.submit(0, Put(b"a", b""))
        before = len(asyncio.all_tasks())
        node.answers[Kind.SUBMIT] = silent
        waiting = asyncio.ensure_future(boom.submit(0, Put(b"b", b"")))
        await until(lambda: len(node.of(Kind.SUBMIT)) == 2)
        assert len(asyncio.all_tasks()) == before + 1
        waiting.cancel()


def parts_sent(boom: Client) -> list[int]:
    """How many commands each part has that leaves from here on."""
    sent, post = list[int](), boom._submitter.post

    def noted(part: Part, **rest: Any) -> Any:
        sent.append(part.records.count)
        return post(part, **rest)

    boom._submitter.post = noted  # type: ignore[method-assign]
    return sent


async def test_one_at_a_time_leaves_at_once_and_many_leave_together() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        sent = parts_sent(boom)
        for turns in (1, 0, 0):  # before the first nobody knows that it is alone
            one = asyncio.ensure_future(boom.submit(0, Put(b"a", b"")))
            await asyncio.sleep(0)
            for _ in range(turns):
                assert not sent
                await asyncio.sleep(0)
            assert sent == [1]
            await one
            sent.clear()
        for counts in ([1, 9], [10], [10]):
            await asyncio.gather(*(boom.submit(0, Put(b"a", b"")) for _ in range(10)))
            assert sent == counts
            sent.clear()


async def test_while_many_are_in_flight_the_next_ones_wait_and_leave_together() -> None:
    held: list[tuple[Session, Frame]] = []

    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        sent = parts_sent(boom)
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        tasks = list[asyncio.Future[Any]]()

        async def add(count: int) -> None:
            tasks.extend(asyncio.ensure_future(boom.submit(0, Put(b"a", b""))) for _ in range(count))
            for _ in range(4):
                await asyncio.sleep(0)

        await add(BESIDE_COMMANDS_MAX)
        await add(3)  # beside little
        await add(5)
        await add(7)
        assert sent == [BESIDE_COMMANDS_MAX, 3]
        await add(LARGE_PART)  # worth a frame of its own, whatever is in flight
        assert sent == [BESIDE_COMMANDS_MAX, 3, LARGE_PART + 12]
        await add(9)
        await until(lambda: len(held) == 3)
        del node.answers[Kind.SUBMIT]
        for session, frame in held:
            session.usual(frame)
        await asyncio.gather(*tasks)
        assert sum(sent) == len(tasks)
        assert sent[3:] == [9]


async def test_each_expires_at_its_own_deadline() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.answers[Kind.SUBMIT] = silent
        started = time.monotonic()
        ended: dict[str, float] = {}

        async def submit(name: str, timeout: float) -> None:
            with pytest.raises(DeadlineExceeded) as caught:
                await boom.submit(0, Put(name.encode(), b""), timeout=timeout)
            assert caught.value.outcome == "unknown"
            ended[name] = time.monotonic() - started

        late = asyncio.ensure_future(submit("late", 600.0))
        await asyncio.gather(submit("soon", 0.1), submit("between", 0.3))
        assert not late.done()
        assert ended["soon"] >= 0.1
        assert ended["between"] >= 0.3
        late.cancel()


async def test_what_expires_is_taken_back_and_makes_room() -> None:
    async with cluster() as [node], Client(node.address, max_in_flight_bytes=100_000) as boom:
        await known(boom)
        node.answers[Kind.SUBMIT] = silent
        submits = [asyncio.ensure_future(boom.submit(0, Put(b"a", b""), timeout=0.1))]
        for k in range(1, IN_FLIGHT_MAX):
            await until(lambda k=k: len(node.of(Kind.SUBMIT)) == k)  # type: ignore[misc]
            submits.append(asyncio.ensure_future(boom.submit(0, Put(b"a", b""), timeout=0.1)))
        errors = await asyncio.gather(*submits, return_exceptions=True)
        assert [type(each) for each in errors] == [DeadlineExceeded] * IN_FLIGHT_MAX
        del node.answers[Kind.SUBMIT]
        await boom.submit(0, Put(b"b", b""))
        await until(lambda: len(node.of(Kind.CANCEL)) == IN_FLIGHT_MAX)
        assert boom._submitter.budget.used == 0


async def test_what_waits_for_a_place_in_flight_was_not_applied() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.answers[Kind.SUBMIT] = silent
        stuck = []
        for k in range(IN_FLIGHT_MAX):
            stuck.append(asyncio.ensure_future(boom.submit(0, Put(b"a", b""), timeout=20.0)))
            await until(lambda k=k: len(node.of(Kind.SUBMIT)) == k + 1)  # type: ignore[misc]
        with pytest.raises(DeadlineExceeded) as caught:
            await boom.submit(0, Put(b"b", b""), timeout=0.1)
        assert caught.value.outcome == "not_applied"
        for each in stuck:
            each.cancel()


async def test_no_more_parts_are_in_flight_than_may_be_however_many_have_collected() -> None:
    held: list[tuple[Session, Frame]] = []
    async with cluster(frame_bytes=64 * KIB) as [node], Client(node.address) as boom:
        await known(boom)
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        tasks = []
        for k in range(IN_FLIGHT_MAX):
            tasks.append(asyncio.ensure_future(boom.submit(0, Put(b"a", b""))))
            await until(lambda k=k: len(held) == k + 1)  # type: ignore[misc]
        tasks += [asyncio.ensure_future(boom.submit(0, Put(b"b", bytes(40 * KIB)))) for _ in range(3)]
        sent = parts_sent(boom)
        for count in (1, 2, 3):
            session, frame = held.pop(0)
            session.usual(frame)
            await until(lambda count=count: len(sent) >= count and len(held) >= IN_FLIGHT_MAX)  # type: ignore[misc]
            assert (len(sent), len(held)) == (count, IN_FLIGHT_MAX)
        del node.answers[Kind.SUBMIT]
        for session, frame in held:
            session.usual(frame)
        await asyncio.gather(*tasks)
        assert sent == [1, 1, 1]


async def test_who_gives_up_while_he_waits_for_a_place_gives_back_what_he_took() -> None:
    held: list[tuple[Session, Frame]] = []
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        first = []
        for k in range(IN_FLIGHT_MAX):
            first.append(asyncio.ensure_future(boom.submit(0, Put(b"a", b""))))
            await until(lambda k=k: len(held) == k + 1)  # type: ignore[misc]
        given_up, last = [asyncio.ensure_future(boom.submit(0, Put(key, b""))) for key in (b"b", b"c")]
        await asyncio.sleep(0)
        given_up.cancel()
        del node.answers[Kind.SUBMIT]
        for session, frame in held:
            session.usual(frame)
        await asyncio.gather(*first, last)
        assert boom._submitter.budget.used == 0


async def test_those_who_travel_together_wait_for_admission_as_long_as_the_most_patient() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        await asyncio.gather(*(boom.submit(0, Put(b"a", b""), admission_wait=seconds) for seconds in (0.0, 5.0, 2.0)))
        assert [frame.header["admission_wait_ms"] for frame in node.of(Kind.SUBMIT)] == [5_000]


async def test_of_several_that_travel_together_as_many_as_had_been_applied_are_repetitions() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        reply = {"parts": [[0, 7, 9, 5, 2, b"\0"]], "commit_index": 5}
        node.once(Kind.SUBMIT, lambda session, frame: session.send(frame, Kind.SUBMITTED, reply))
        found = await asyncio.gather(*(boom.submit(0, Put(b"a", b"")) for _ in range(3)))
        assert [(each.first_index, each.duplicate) for each in found] == [(7, 1), (8, 1), (9, 0)]


async def test_a_node_that_does_not_read_gets_nothing_more() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        await boom.submit(0, Put(b"a", b""))
        (connection,) = boom._cluster._connections.values()
        connection.pause_writing()
        waiting = asyncio.ensure_future(boom.submit(0, Put(b"b", b"")))
        with pytest.raises(DeadlineExceeded):
            await boom.submit(1, Put(b"c", b""), timeout=0.1)
        assert len(node.of(Kind.SUBMIT)) == 1
        connection.resume_writing()
        assert (await waiting).first_index == 2


async def test_what_nobody_waits_for_any_more_is_taken_back_too() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.answers[Kind.SUBMIT] = silent
        waiting = asyncio.ensure_future(boom.submit(0, Put(b"a", b""), timeout=0.1))
        await until(lambda: node.of(Kind.SUBMIT))
        waiting.cancel()
        await until(lambda: node.of(Kind.CANCEL))
        assert boom._submitter.budget.used == 0


async def test_what_cannot_be_sent_is_told_at_once_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        with monkeypatch.context() as broken, loop_complains() as seen:
            broken.setattr(boom._submitter, "_header", lambda *_, **__: {}["what it needs"])
            for _ in range(IN_FLIGHT_MAX + 1):
                with pytest.raises(UnknownOutcome, match="the client failed"):
                    await boom.submit(0, Put(b"a", b""), timeout=5.0)
            assert len(seen) == IN_FLIGHT_MAX + 1
        assert boom._submitter.budget.used == 0
        await boom.submit(0, Put(b"b", b""))


@pytest.mark.parametrize("header", [{}, {"parts": []}, {"parts": [[0, 1]]}, {"parts": [[0, 1, 1, 1, 0, b"", 7]]}])
async def test_an_answer_that_is_none(header: dict[str, Any]) -> None:
    def malformed(session: Session, frame: Frame) -> None:
        session.send(frame, Kind.SUBMITTED, header)

    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.once(Kind.SUBMIT, malformed)
        with loop_complains() as seen:
            with pytest.raises(UnknownOutcome, match="the client failed"):
                await boom.submit(0, Put(b"a", b""))
            assert len(seen) == 1
        assert (await boom.submit(0, Put(b"b", b""))).first_index == 1
        assert boom._submitter.budget.used == 0


async def test_a_lost_connection_is_followed_by_the_same_sequences_on_another() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.once(Kind.SUBMIT, cuts, fails(NotLeader("not me", leader=node.address)))
        receipt = await boom.submit(0, Put(b"a", b""), timeout=5.0)
        assert receipt.first_index == 1
        sent = [frame.header["parts"] for frame in node.of(Kind.SUBMIT)]
        assert len(sent) == 3
        assert sent[0] == sent[1] == sent[2]


@pytest.mark.parametrize("sent", [False, True])
async def test_what_was_cancelled_before_it_began_keeps_nobody(sent: bool) -> None:
    """It stayed in front for ever: whoever cancels all tasks once, and goes on, could send nothing there any more."""
    async with cluster() as [node], Client(node.address) as boom:
        if sent:
            await known(boom)
            node.once(Kind.SUBMIT, fails(NotLeader("not me", leader=node.address)))
        start = boom._submitter.start

        def cancelled(work: Any) -> asyncio.Task[None]:
            boom._submitter.start = start  # type: ignore[method-assign]
            task = start(work)
            task.cancel()
            return task

        boom._submitter.start = cancelled  # type: ignore[method-assign]
        first, second = (boom.sender(0).send(Put(key, b"")) for key in (b"a", b"b"))
        with pytest.raises(LogboomError, match="was cancelled") as gone:
            await first
        assert gone.value.outcome == ("unknown" if sent else "not_applied")
        with suppress(LogboomError):  # it may have been of the same part
            await second
        assert (await boom.submit(0, Put(b"c", b""), timeout=5.0)).count == 1
        assert boom._submitter.budget.used == 0
        assert boom._submitter.lane(0, None).idle


async def test_what_nobody_waits_for_any_more_is_not_sent_once_somebody_leads() -> None:
    """It was in front, and waited for a leader: there it was done, up to its timeout after it had been given up."""
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.HELLO] = silent
        given_up = [boom.sender(0).send(Put(key, b"")) for key in (b"a", b"b")]
        await until(lambda: node.of(Kind.HELLO))
        lane = boom._submitter.lane(0, None)
        await until(lambda: lane._in_front is not None)
        behind = asyncio.ensure_future(boom.submit(0, Put(b"c", b"")))
        for each in given_up:
            each.cancel()
        del node.answers[Kind.HELLO]
        for session in list(node.sessions):
            session.transport.abort()
        await behind
        assert node.log[0] == [Put(b"c", b"").record().payload]
        await until(lambda: lane.idle)
        assert boom._submitter.budget.used == 0


async def test_what_one_of_several_still_waits_for_is_sent_as_it_is() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.HELLO] = silent
        given_up, wanted = (boom.sender(0).send(Put(key, b"")) for key in (b"a", b"b"))
        await until(lambda: node.of(Kind.HELLO))
        given_up.cancel()
        del node.answers[Kind.HELLO]
        for session in list(node.sessions):
            session.transport.abort()
        assert (await wanted).first_index == 2


async def test_what_may_be_there_already_is_sent_until_it_is_known() -> None:
    """Were it given up its numbers would be settled, while it may be on its way."""
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.once(Kind.SUBMIT, cuts)
        waiting = boom.sender(0).send(Put(b"a", b""))
        await until(lambda: node.of(Kind.SUBMIT))
        waiting.cancel()
        await until(lambda: len(node.of(Kind.SUBMIT)) == 2)
        await until(lambda: boom._submitter.lane(0, None).idle)
        assert len(node.log[0]) == 1


@pytest.mark.parametrize(
    "error", [Overloaded("no room", retry_after=0.01), NotLeader("not me"), Unavailable("it starts")]
)
@pytest.mark.parametrize("before", [[], ["refused"], ["cut"]])
async def test_what_was_refused_is_not_sent_again_for_nobody(error: LogboomError, before: list[str]) -> None:
    """It was until its timeout, as what may be there; which that may be is what an earlier attempt left unknown."""
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)

        def refuses_whom_nobody_waits_for(session: Session, frame: Frame) -> None:
            waiting.cancel()
            session.fail(frame, error)

        earlier = {"refused": fails(error), "cut": cuts}
        node.once(Kind.SUBMIT, *(earlier[each] for each in before), refuses_whom_nobody_waits_for)
        waiting = boom.sender(0).send(Put(b"a", b""))
        await asyncio.wait([waiting])
        await until(lambda: boom._submitter.lane(0, None).idle)
        there = before == ["cut"]
        assert len(node.of(Kind.SUBMIT)) == len(before) + (2 if there else 1)
        assert len(node.log.get(0, [])) == (1 if there else 0)
        assert boom._submitter.budget.used == 0


async def test_who_is_told_is_told_what_was_behind_it() -> None:
    """As of every other request: the last attempt's error, which says why nobody knows."""
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.once(Kind.SUBMIT, cuts)
        node.answers[Kind.HELLO] = fails(PermissionDenied("no rule lets you in"))
        with pytest.raises(PermissionDenied) as caught:
            await boom.submit(0, Put(b"a", b""), timeout=5.0)
        assert caught.value.outcome == "unknown"
        cause = caught.value.__cause__
        assert isinstance(cause, PermissionDenied)
        assert cause.outcome == "not_applied"


@pytest.mark.parametrize("answer", [cuts, fails(PermissionDenied("no rule lets you in"))])
async def test_what_is_over_holds_its_commands_no_longer(answer: Answer) -> None:
    """The collector does not look at them: a traceback that leads to the part, and from there to an error, stayed."""
    async with cluster() as [node], Client(node.address) as boom:
        await known(boom)
        node.once(Kind.SUBMIT, answer)
        waiting = boom.sender(0).send(Put(b"a", b""))
        lane = boom._submitter.lane(0, None)
        await asyncio.sleep(0)
        (batch,) = lane._in_flight
        assert batch.singles
        await asyncio.wait([waiting])
        assert lane.idle
        assert lane._commands_in_flight == 0
        assert not batch.singles


async def test_an_error_whose_fields_have_names_like_ours_is_told_as_it_is() -> None:
    """Making it anew failed, and whoever waited was never told."""
    odd = PermissionDenied("no rule lets you in")
    odd.fields |= {"outcome": "none", "message": "of a later release"}
    async with cluster() as [node], Client(node.address) as boom, asyncio.timeout(10):
        await known(boom)
        node.once(Kind.SUBMIT, fails(odd))
        with pytest.raises(PermissionDenied, match="no rule lets you in") as caught:
            await boom.submit(0, Put(b"a", b""), timeout=3.0)
        assert caught.value.fields == odd.fields
