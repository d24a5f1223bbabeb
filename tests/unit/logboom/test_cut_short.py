"""A node lets nobody wait longer than ``net.request_ms_max``: with more time left the client asks again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from logboom import Client, Put
from logboom.client import waits
from logboom.errors import BarrierFuture, DeadlineExceeded, LogboomError
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, fails

CUT = DeadlineExceeded("the deadline passed before the level asked for was reached", outcome="unknown")
NOT_YET = DeadlineExceeded("the deadline passed while the request waited for admission", outcome="not_applied")
PRODUCER = bytes(range(16))
Ask = Callable[[Client], Awaitable[Any]]


def cut_off(session: Session, frame: Frame) -> None:
    """By the node's own limit: it takes effect all the same."""
    session.node.submit(frame)
    session.fail(frame, CUT)


async def single(boom: Client) -> None:
    await boom.submit(0, Put(b"k", b"v"))


async def sender(boom: Client) -> None:
    await boom.sender(0).send(Put(b"k", b"v"))


async def block(boom: Client) -> None:
    await boom.submit(0, [Put(b"k", b"v"), Put(b"l", b"v")])


async def dense(boom: Client) -> None:
    await boom.submit(0, Put(b"k", b"v"), producer_id=PRODUCER, sequence=0, dense=True)


@pytest.mark.parametrize("write", [single, sender, block, dense])
async def test_a_write_is_sent_again_with_its_sequences(write: Ask) -> None:
    """``timeout=3600`` ended after ten minutes, with an outcome that nobody knew."""
    async with cluster() as [node], Client(node.address, timeout=20) as boom:
        node.once(Kind.SUBMIT, cut_off, cut_off, fails(NOT_YET))
        await write(boom)
        sent = [frame.header["parts"] for frame in node.of(Kind.SUBMIT)]
        assert len(sent) == 4
        assert len({tuple(map(tuple, parts)) for parts in sent}) == 1
        assert len(node.log[0]) == sent[0][0][3], "each once"


@pytest.mark.parametrize("write", [single, sender, block])
async def test_what_may_have_been_done_stays_in_doubt(write: Ask) -> None:
    async with cluster() as [node], Client(node.address, timeout=2.5) as boom:
        node.answers[Kind.SUBMIT] = fails(NOT_YET)
        node.once(Kind.SUBMIT, fails(CUT))
        with pytest.raises(DeadlineExceeded, match="for admission") as caught:
            await write(boom)
        assert caught.value.outcome == "unknown"
        assert len(node.of(Kind.SUBMIT)) > 2


@pytest.mark.parametrize("write", [single, sender, block])
async def test_at_the_end_of_ones_own_time_it_is_the_end(write: Ask) -> None:
    async with cluster() as [node], Client(node.address, timeout=0.9) as boom:
        node.answers[Kind.SUBMIT] = fails(CUT)
        with pytest.raises(DeadlineExceeded) as caught:
            await write(boom)
        assert caught.value.outcome == "unknown"
        assert len(node.of(Kind.SUBMIT)) == 1


AGAIN: list[Ask] = [
    lambda boom: boom.create_partition(),
    lambda boom: boom.set_partition(2, ack="durable"),
    lambda boom: boom.destroy_partition(2),
    lambda boom: boom.add_member("n4", peer_address="h:1", client_address="h:2"),
    lambda boom: boom.remove_member("n4"),
]


@pytest.mark.parametrize("ask", AGAIN)
async def test_so_is_what_has_a_token_or_names_what_is_to_be_so(ask: Ask) -> None:
    said = {"partition": 2, "ack": "durable", "linearizable": False}
    said |= {"members": {"members": [], "term": 1, "index": 1, "removed": []}}
    async with cluster() as [node], Client(node.address, timeout=20) as boom:
        node.features = ["partition_settings"]
        node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, said)
        node.once(Kind.ADMIN, fails(CUT))
        await ask(boom)
        first, second = ({**frame.header, "timeout_ms": 0} for frame in node.of(Kind.ADMIN))
        assert first == second


@pytest.mark.parametrize("ask", [lambda boom: boom.create_snapshot(), lambda boom: boom.transfer()])
async def test_but_not_what_would_be_done_once_more(ask: Ask) -> None:
    """Whoever asks for a snapshot while one is taken is given the next one."""
    async with cluster() as [node], Client(node.address, timeout=20) as boom:
        node.answers[Kind.ADMIN] = fails(CUT)
        with pytest.raises(DeadlineExceeded) as caught:
            await ask(boom)
        assert caught.value.outcome == "unknown"
        assert len(node.of(Kind.ADMIN)) == 1


async def test_nor_a_read_which_has_no_place_in_its_time() -> None:
    """A rate says so at once."""
    async with cluster() as [node], Client(node.address, timeout=20) as boom:
        node.answers[Kind.GET] = fails(NOT_YET)
        with pytest.raises(DeadlineExceeded):
            await boom.get(0, b"k")
        assert len(node.of(Kind.GET)) == 1


class TestTimes:
    """A time to come that is farther ahead than a node lets anybody wait."""

    @staticmethod
    def _ahead(node: FakeNode, *ahead_ms: int) -> None:
        node.answers[Kind.INDEX_AT] = lambda s, f: s.send(f, Kind.INDEX_IS, {"global_index": 7, "cluster": "test"})
        futures = [BarrierFuture("beyond the deadline", timestamp_ms=9_000 + ms, now_ms=9_000) for ms in ahead_ms]
        node.once(Kind.INDEX_AT, *map(fails, futures))

    @pytest.mark.parametrize(
        "ask",
        [
            lambda boom, when: boom.index_at(when, timeout=3600),
            lambda boom, when: boom.barrier(when, timeout=3600),
        ],
    )
    async def test_is_waited_for_here(self, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """``barrier --at`` twenty minutes before, ``--timeout 1h``, was refused at once."""
        monkeypatch.setattr(waits, "LOOK_S", 0.01)
        async with cluster() as [node], Client(node.address) as boom:
            self._ahead(node, 1_200_000, 1_190_000, 5)
            await ask(boom, datetime.now(UTC) + timedelta(minutes=20))
            asked = [frame.header["timestamp_ms"] for frame in node.of(Kind.INDEX_AT)]
            assert len(asked) == 4
            assert len(set(asked)) == 1

    @pytest.mark.parametrize("error", [BarrierFuture("no", timestamp_ms=99_000, now_ms=9_000), BarrierFuture("no")])
    async def test_beyond_the_deadline_it_is_refused_at_once(self, error: LogboomError) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            node.answers[Kind.INDEX_AT] = fails(error)
            with pytest.raises(BarrierFuture):
                await boom.index_at(datetime.now(UTC) + timedelta(seconds=90), timeout=60)
            assert len(node.of(Kind.INDEX_AT)) == 1

    async def test_a_clock_that_stands_still_is_not_waited_for_beyond_the_deadline(self) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            node.answers[Kind.INDEX_AT] = fails(BarrierFuture("no", timestamp_ms=9_050, now_ms=9_000))
            with pytest.raises((BarrierFuture, DeadlineExceeded)) as caught:
                await boom.index_at(datetime.now(UTC), timeout=0.3)
            assert caught.value.outcome == "not_applied"
            assert len(node.of(Kind.INDEX_AT)) > 1
