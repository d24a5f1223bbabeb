"""Senders for code that blocks: threads, room, callbacks, forks and a client that is closed meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from logboom import Put, Record, SyncClient
from logboom.errors import DeadlineExceeded, InvalidRequest, UnknownOutcome
from logboom.types import KIB, Receipt
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import PATIENCE_S, ROOT, until
from tests.unit.logboom.fake_server import FakeNode, Session, silent

COMMAND = Record(b"c" * KIB)
ROOM = 3 * KIB
"""For two of them."""


class Held:
    """Submits that a node answers when it is told to."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.frames: list[tuple[Session, Frame]] = []
        node.answers[Kind.SUBMIT] = lambda session, frame: self.frames.append((session, frame))

    def let_go(self) -> None:
        del self._node.answers[Kind.SUBMIT]
        for session, frame in self.frames:
            session.loop.call_soon_threadsafe(session.usual, frame)


def test_threads_share_a_sender(node: FakeNode) -> None:
    with SyncClient(node.address) as boom:
        out, answers = boom.sender(1, wait="committed"), list[Future[Receipt]]()

        def work() -> None:
            answers.extend([out.send(Record(b"%d" % n)) for n in range(50)])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        receipts = [answer.result(PATIENCE_S) for answer in answers]
        assert sorted(r.first_index for r in receipts) == list(range(1, 201))
        assert boom.last_seen == max(r.global_index for r in receipts)


def test_what_is_no_command_is_refused_where_it_is_sent(node: FakeNode) -> None:
    with SyncClient(node.address) as boom:
        with pytest.raises(InvalidRequest, match="committed, durable or applied"):
            boom.sender(0, wait="soon")
        out = boom.sender(0)
        with pytest.raises(InvalidRequest, match="non-empty"):
            out.send(Put(b"", b""))
        assert out.send(COMMAND).result(PATIENCE_S).first_index == 1


def test_it_blocks_while_there_is_no_room(node: FakeNode) -> None:
    with SyncClient(node.address, max_in_flight_bytes=ROOM) as boom:
        boom.partitions()
        held, out, answers = Held(node), boom.sender(0), list[Future[Receipt]]()

        def work() -> None:
            answers.extend([out.send(COMMAND) for _ in range(5)])
            all_sent.set()

        all_sent = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: held.frames)
        assert not all_sent.wait(0.05)
        held.let_go()
        thread.join(PATIENCE_S)
        assert sorted(answer.result(PATIENCE_S).first_index for answer in answers) == [1, 2, 3, 4, 5]


def test_a_large_one_that_waits_is_passed_by_none_that_came_after_it(node: FakeNode) -> None:
    """Small ones of other threads had what was given back, for as long as there were any: it never had room."""
    large = Record(b"l" * 2 * KIB)
    with SyncClient(node.address, max_in_flight_bytes=ROOM) as boom:
        boom.partitions()
        held, out = Held(node), boom.sender(0)
        answers, threads = [out.send(COMMAND)], list[threading.Thread]()

        def send(record: Record) -> None:
            thread = threading.Thread(target=lambda: answers.append(out.send(record)))
            thread.start()
            threads.append(thread)
            until(lambda: not thread.is_alive() or len(out._line._turns) == len(threads))

        until(lambda: held.frames)
        send(large)
        send(Record(b"small"))  # for which there is room
        assert len(answers) == 1
        held.let_go()
        for thread in threads:
            thread.join(PATIENCE_S)
        for answer in answers:
            assert answer.result(PATIENCE_S).count == 1
        assert node.log[0] == [COMMAND.payload, large.payload, b"small"]


def test_who_gives_up_waiting_lets_those_behind_go(node: FakeNode) -> None:
    with SyncClient(node.address, max_in_flight_bytes=ROOM) as boom:
        boom.partitions()
        held, out, given_up = Held(node), boom.sender(0), Future[BaseException]()
        answers, sender = [out.send(COMMAND)], out._line._sender
        until(lambda: held.frames)
        patient, sender.timeout = sender.timeout, 0.2

        def give_up() -> None:
            try:
                out.send(Record(b"l" * 2 * KIB))
            except DeadlineExceeded as error:
                given_up.set_result(error)

        thread = threading.Thread(target=give_up)
        thread.start()
        until(lambda: out._line._turns)
        sender.timeout = patient
        answers.append(out.send(Record(b"small")))  # for which there was room all the time
        assert given_up.done()
        thread.join(PATIENCE_S)
        held.let_go()
        assert [answer.result(PATIENCE_S).count for answer in answers] == [1, 1]


def test_a_callback_passes_who_waits(node: FakeNode) -> None:
    """It cannot wait: who waits is let in by the thread that it is called on."""
    with SyncClient(node.address, max_in_flight_bytes=ROOM) as boom:
        boom.partitions()
        held, out, told = Held(node), boom.sender(0), Future[Future[Receipt]]()
        first, second = out.send(Record(b"first")), out.send(COMMAND)
        until(lambda: held.frames)
        large = Future[Future[Receipt]]()
        thread = threading.Thread(target=lambda: large.set_result(out.send(Record(b"l" * 2 * KIB))))
        thread.start()
        until(lambda: out._line._turns)
        first.add_done_callback(lambda _: told.set_result(out.send(Record(b"next"))))
        held.let_go()
        for sent in (told, large):
            assert sent.result(PATIENCE_S).result(PATIENCE_S).count == 1
        assert second.result(PATIENCE_S).count == 1
        thread.join(PATIENCE_S)


def test_who_waits_for_room_in_vain_has_sent_nothing(node: FakeNode) -> None:
    with SyncClient(node.address, max_in_flight_bytes=ROOM) as boom:
        boom.partitions()
        held, out = Held(node), boom.sender(0, timeout=0.2)
        first = [out.send(COMMAND), out.send(COMMAND)]
        with pytest.raises(DeadlineExceeded, match="max_in_flight_bytes") as caught:
            out.send(COMMAND)
        assert caught.value.outcome == "not_applied"
        for answer in first:
            with pytest.raises(DeadlineExceeded) as caught:
                answer.result(PATIENCE_S)
            assert caught.value.outcome == "unknown"
        held.let_go()
        assert out.send(COMMAND).result(PATIENCE_S).count == 1  # their room is there again


def test_a_callback_may_send_the_next_one(node: FakeNode) -> None:
    with SyncClient(node.address) as boom:
        out, second = boom.sender(0), Future[Future[Receipt]]()
        out.send(COMMAND).add_done_callback(lambda _: second.set_result(out.send(COMMAND)))
        assert second.result(PATIENCE_S).result(PATIENCE_S).first_index == 2


def test_a_callback_that_would_wait_for_itself_is_told_so(node: FakeNode) -> None:
    with SyncClient(node.address, max_in_flight_bytes=ROOM) as boom:
        boom.partitions()
        held, out, told = Held(node), boom.sender(0), Future[BaseException]()

        def one_more(_: Future[Receipt]) -> None:
            try:
                for _ in range(3):
                    out.send(COMMAND)
            except InvalidRequest as error:
                told.set_result(error)

        out.send(COMMAND).add_done_callback(one_more)
        until(lambda: held.frames)
        held.let_go()
        node.answers[Kind.SUBMIT] = silent
        assert "on the client's own thread" in str(told.result(PATIENCE_S))


def test_who_cancels_is_told_nothing_more(node: FakeNode) -> None:
    with SyncClient(node.address) as boom:
        boom.partitions()
        held, out = Held(node), boom.sender(0)
        one, two = out.send(Record(b"one")), out.send(Record(b"two"))
        until(lambda: held.frames)
        assert one.cancel()
        held.let_go()
        assert two.result(PATIENCE_S).count == 1
        with pytest.raises(CancelledError):
            one.result(0)
        assert b"one" in node.log[0]


def test_closing_ends_what_is_on_its_way_and_who_waits_for_room(node: FakeNode) -> None:
    boom = SyncClient(node.address, max_in_flight_bytes=ROOM)
    boom.partitions()
    held, out, ended = Held(node), boom.sender(0), Future[BaseException]()
    answers = [out.send(COMMAND), out.send(COMMAND)]

    def work() -> None:
        try:
            out.send(COMMAND)
        except InvalidRequest as error:
            ended.set_result(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: held.frames and out._line._turns)
    boom.close()
    for answer in answers:
        assert isinstance(answer.exception(PATIENCE_S), UnknownOutcome)
    assert "closed" in str(ended.result(PATIENCE_S))
    thread.join(PATIENCE_S)
    with pytest.raises(InvalidRequest, match="closed"):
        out.send(COMMAND)


def test_what_comes_too_late_for_the_loop_is_told_so(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    boom = SyncClient(node.address)
    out, running = boom.sender(0), boom._running
    assert running is not None
    monkeypatch.setattr(running, "soon", lambda callback: None)  # as if the loop ended before it
    answer = out.send(COMMAND)
    assert not answer.done()
    boom.close()
    error = answer.exception(PATIENCE_S)
    assert isinstance(error, InvalidRequest)
    assert error.outcome == "not_applied"


def test_one_that_nobody_expected_to_fail_keeps_nobody_waiting(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    with SyncClient(node.address) as boom:
        out, running = boom.sender(0), boom._running
        assert running is not None
        send, soon, begun = out._line._sender.send, running.soon, list[Callable[[], object]]()

        def broken(record: Record) -> Any:
            if record.payload == b"breaks":
                raise RuntimeError("nobody expected that")
            return send(record)

        monkeypatch.setattr(out._line._sender, "send", broken)
        monkeypatch.setattr(running, "soon", begun.append)
        answers = [out.send(Record(payload)) for payload in (b"breaks", b"goes")]
        soon(begun[0])  # both in one turn
        assert isinstance(answers[0].exception(PATIENCE_S), RuntimeError)
        assert answers[1].result(PATIENCE_S).count == 1


def test_a_callback_that_ends_the_process_keeps_nobody_waiting(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the client's thread, and with it whatever came behind; then only what else was to hear the answer."""
    heard = list[Future[Receipt]]()

    def ends(_: Future[Receipt]) -> None:
        sys.exit(7)

    def refuses(_: Record) -> Any:
        raise RuntimeError("nobody expected that")

    with SyncClient(node.address) as boom:
        boom.partitions()
        held, out, running = Held(node), boom.sender(0), boom._running
        assert running is not None
        answers = [out.send(Record(b"%d" % n)) for n in range(3)]
        answers[0].add_done_callback(ends)
        answers[0].add_done_callback(heard.append)
        held.let_go()
        assert [answer.result(PATIENCE_S).count for answer in answers] == [1, 1, 1]
        until(lambda: caplog.records and heard)
        assert heard == answers[:1]
        with pytest.raises(SystemExit):
            answers[0].add_done_callback(ends)  # this one is called at once, by us
        monkeypatch.setattr(out._line._sender, "send", refuses)
        begin, begun = running.soon, list[Callable[[], object]]()
        monkeypatch.setattr(running, "soon", begun.append)
        answers = [out.send(COMMAND) for _ in range(2)]
        answers[0].add_done_callback(ends)
        begin(begun[0])  # both in one turn
        assert [type(answer.exception(PATIENCE_S)) for answer in answers] == [RuntimeError] * 2
        monkeypatch.undo()
        assert boom.partitions()
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["7", "7"]


def test_a_forked_child_sends_with_its_own_client(node: FakeNode) -> None:
    script = """
import os, sys
from logboom import Put, SyncClient
boom = SyncClient(sys.argv[1])
out = boom.sender(0)
out.send(Put(b"parent", b"")).result()
child = os.fork()
out.send(Put(b"either", b"")).result()
if child == 0:
    boom.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
boom.close()
"""
    subprocess.run([sys.executable, "-c", script, node.address], check=True, timeout=30, cwd=ROOT)
    assert len(node.log[0]) == 3
    assert len({frame.header["producer"] for frame in node.of(Kind.SUBMIT)}) == 2
