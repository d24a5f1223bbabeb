"""The blocking client: the same calls, on a thread of its own, over forks and interruptions."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from logboom import Client, Put, SyncClient, background
from logboom.client.log_batches import Descriptor
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError, NoSuchPartition, Overloaded, Voided
from logboom.wire import Kind
from tests.unit.logboom.command_line import PATIENCE_S, ROOT, until
from tests.unit.logboom.fake_server import FakeNode, entries, fails, records, silent


@contextmanager
def command(*words: str, stdout: int) -> Iterator[subprocess.Popen[str]]:
    """It ends with the test, whatever becomes of that: leaving the block of a process waits for it.

    And it hears Ctrl-C: what a shell starts with ``&`` does not, nor what is started there.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        whole = [sys.executable, "-m", "logboom", *words]
        process = subprocess.Popen(whole, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_it_has_every_method_of_the_client() -> None:
    def public(kind: object) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Client("127.0.0.1:1")) == public(SyncClient)  # also what only a client that was made has
    assert inspect.signature(SyncClient.submit) == inspect.signature(Client.submit)
    assert SyncClient.tail.__doc__ == Client.tail.__doc__


def test_it_says_what_it_was_made_with(node: FakeNode) -> None:
    mine = bytes(range(16))
    with SyncClient(node.address, producer_id=mine, timeout=7.5, admission_wait=0.5) as boom:
        assert (boom.producer_id, boom.timeout, boom.admission_wait) == (mine, 7.5, 0.5)
    with SyncClient(node.address) as boom:
        boom.submit(0, Put(b"a", b""))
        assert boom.producer_id == node.of(Kind.SUBMIT)[0].header["producer"]


def test_calls_block_and_errors_come_through(node: FakeNode) -> None:
    with SyncClient(node.address) as boom:
        assert boom.submit(0, [Put(b"a", b"")]).count == 1
        assert boom.last_seen == 1
        assert boom.partitions() == [0, 1, 2, 3]
        node.answers[Kind.SUBMIT] = silent
        with pytest.raises(DeadlineExceeded):
            boom.submit(0, Put(b"a", b""), timeout=0.05)


def test_threads_share_it(node: FakeNode) -> None:
    with SyncClient(node.address) as boom:
        threads = [threading.Thread(target=boom.submit, args=(0, Put(b"a", b""))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(node.log[0]) == 8


def test_closing_ends_the_thread_and_open_iterators(node: FakeNode) -> None:
    node.answers[Kind.TAIL] = lambda session, frame: records(session, frame, 1, 1, [b"1"])
    with SyncClient(node.address) as boom:
        tail = boom.tail(0, follow=True)
        assert next(tail).first_index == 1
        running = boom._running
    assert running is not None
    assert not running.thread.is_alive()
    tail.close()  # type: ignore[attr-defined]
    boom.close()
    with pytest.raises(InvalidRequest, match="closed"):
        boom.submit(0, Put(b"a", b""))


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (Kind.TAIL, lambda boom: list(boom.tail(0, follow=True))),
        (Kind.GET, lambda boom: boom.get(0, b"k", timeout=600)),
    ],
)
def test_closing_brings_back_a_thread_that_waits_for_the_next_attempt(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: Kind, call: Any
) -> None:
    node.answers[kind] = lambda session, frame: session.fail(frame, Overloaded("full", retry_after=60.0))
    asleep, ended, sleep = threading.Event(), list[BaseException](), asyncio.sleep

    async def sleeping(delay: float, *rest: Any) -> None:
        if delay > 0:
            asleep.set()
            delay = 600
        await sleep(delay, *rest)

    def work() -> None:
        try:
            call(boom)
        except LogboomError as error:
            ended.append(error)

    monkeypatch.setattr(asyncio, "sleep", sleeping)
    boom = SyncClient(node.address, timeout=600)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert asleep.wait(20)
    boom.close()
    thread.join(20)
    assert [type(each) for each in ended] == [InvalidRequest]
    assert (str(ended[0]), ended[0].outcome) == ("this client is closed", "unknown")
    assert not caplog.records


def test_closing_ends_a_tail_that_another_thread_follows(node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    node.answers[Kind.TAIL] = lambda session, frame: records(session, frame, 1, 1, [b"1"])
    boom, ended = SyncClient(node.address), list[str]()

    def work() -> None:
        try:
            list(boom.tail(0, follow=True))
        except InvalidRequest as error:
            ended.append(str(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until(lambda: node.of(Kind.CREDIT))
    boom.close()
    thread.join(20)
    assert ended == ["this client is closed"]
    assert not caplog.records


def test_an_open_iterator_of_a_closed_client_says_so(node: FakeNode) -> None:
    node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a", b"b"], more=True)
    with SyncClient(node.address) as boom:
        rows = boom.scan(0)
        next(rows)
    with pytest.raises(InvalidRequest, match="closed"):
        next(rows)


def on_the_clients_thread(boom: SyncClient, call: Callable[[], Any]) -> BaseException | None:
    """What came of a call within a callback, which the client makes on its own thread."""
    ended = list[BaseException | None]()

    def work() -> None:
        try:
            boom.fetch([Descriptor(0, 1, 1)], lambda _: [(0, call() or 0)])
        except LookupError:
            ended.append(None)  # as the callers below say that they came to their end
        except LogboomError as error:
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "the client waits for itself"
    return ended[0]


def test_an_abandoned_iterator_may_be_collected_on_the_clients_own_thread(node: FakeNode) -> None:
    node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a", b"b"], more=True)

    def collect() -> None:
        held.clear()  # as the collector may, with whatever is in a cycle
        raise LookupError

    with SyncClient(node.address) as boom:
        held = [boom.scan(0)]
        next(held[0])
        assert len(node.sessions) == 2
        assert on_the_clients_thread(boom, collect) is None
        until(lambda: len(node.sessions) == 1)
        assert boom.submit(0, Put(b"a", b"")).count == 1


def test_a_callback_that_would_wait_for_itself_is_told_so(node: FakeNode) -> None:
    node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a", b"b"], more=True)
    begun = list[Any]()

    def given(one: Any) -> Iterator[Any]:
        begun.append(one)  # one that waits for another call would do so for ever
        yield one

    with SyncClient(node.address) as boom:
        rows = boom.scan(0)
        next(rows)
        for call in (
            lambda: boom.get(0, b"k"),
            lambda: next(rows),
            lambda: next(boom.scan(0)),
            lambda: boom.submit_by_key(given(Put(b"k", b""))),
            lambda: next(boom.scan_log(given(0))),
            boom.close,
        ):
            error = on_the_clients_thread(boom, call)
            assert isinstance(error, InvalidRequest)
            assert "on the client's own thread" in str(error)
        assert not begun
        assert boom.submit(0, Put(b"a", b"")).count == 1


class Collector:
    """A callback that can also be iterated."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, given: Any) -> list[tuple[int, int]]:
        self.told.append(given)
        return []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.told)


def test_a_callback_that_can_be_iterated_is_one_all_the_same(node: FakeNode) -> None:
    void = fails(Voided("lost", partition_id=0, first=1, next=2, global_index=1))
    node.once(Kind.TAIL, void, lambda session, frame: session.send(frame, Kind.END, {"next_index": 2}))
    node.answers[Kind.DATA_READ] = fails(NoSuchPartition("enough seen"))
    one = Descriptor(0, 1, 1)
    with SyncClient(node.address) as boom:
        select, on_void = Collector(), Collector()
        with pytest.raises(NoSuchPartition, match="enough"):
            boom.fetch([one], select)
        assert list(boom.tail(0, on_void=on_void)) == []
    assert select.told == [one]
    assert [type(each) for each in on_void] == [Voided]


@pytest.mark.parametrize("ends", [SystemExit(7), KeyboardInterrupt()])
def test_a_callback_that_ends_the_process_ends_nothing_but_its_own_call(
    node: FakeNode, caplog: pytest.LogCaptureFixture, ends: BaseException
) -> None:
    """It ended the client's thread: whoever waited did so for ever, and ``close`` too."""

    def select(_: Descriptor) -> Any:
        raise ends

    def on_void(_: Any) -> None:
        raise ends

    def work() -> None:
        for call in (
            lambda: boom.fetch([Descriptor(0, 1, 1)], select),
            lambda: next(boom.tail(0, on_void=on_void)),
            lambda: told.append(boom.submit(0, Put(b"a", b"")).count),
        ):
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - which one is the question
                told.append(error)
        boom.close()

    node.answers[Kind.TAIL] = fails(Voided("lost", partition_id=0, first=1, next=2, global_index=1))
    boom, told = SyncClient(node.address), list[Any]()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), told
    assert told == [ends, ends, 1]
    assert not caplog.records


def test_what_ends_the_process_in_the_turn_in_which_the_client_is_closed_keeps_nobody(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop forgets then that it was stopped."""
    end = background._end

    async def last(client: Client) -> None:
        await end(client)
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def go() -> None:
            over.set_result(None)
            loop.call_soon(sys.exit, 7)  # right behind the one that stops the loop

        loop.call_soon(go)
        await over

    monkeypatch.setattr(background, "_end", last)
    boom = SyncClient(node.address)
    boom.partitions()
    closing = threading.Thread(target=boom.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["7"], "it was in no call"


@pytest.mark.parametrize(
    "call",
    [
        lambda boom, of: boom.submit_by_key(of(Put(b"k", b""))),
        lambda boom, of: boom.submit_by_key(commands=of(Put(b"k", b""))),
        lambda boom, of: boom.submit_many({0: of(Put(b"k", b""))}),
        lambda boom, of: boom.barrier(5, partitions=of(1)),
        lambda boom, of: boom.barrier(of(boom.submit(0, Put(b"k", b"")))),
        lambda boom, of: list(boom.scan_log(of(1))),
        lambda boom, of: boom.get_many(0, of(b"k")),
        lambda boom, of: boom.fetch(of(Descriptor(0, 1, 1)), lambda _: ()),
    ],
)
def test_a_generator_may_wait_for_what_another_thread_is_given(node: FakeNode, call: Any) -> None:
    """It was run on the client's own thread: that waited for an answer which nobody but itself could receive."""
    node.features = ["log_scan"]
    node.answers[Kind.LOG_SCAN] = lambda session, frame: session.send(frame, Kind.END, {"batches": 0})
    for kind in (Kind.GET, Kind.DATA_READ):
        node.answers[kind] = fails(NoSuchPartition("enough seen"))
    asked, known, ended, where = threading.Event(), threading.Event(), list[str](), set[int]()

    def given(one: Any) -> Iterator[Any]:
        asked.set()
        where.add(threading.get_ident())
        assert known.wait(20)
        yield one

    def work() -> None:
        with suppress(NoSuchPartition):
            call(boom, given)
        ended.append("in time")

    boom = SyncClient(node.address)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert asked.wait(20)
    other = threading.Thread(target=lambda: boom.submit(0, Put(b"other", b"")) and known.set(), daemon=True)
    other.start()
    other.join(20)
    thread.join(20)
    assert (known.is_set(), ended, where) == (True, ["in time"], {thread.ident})
    boom.close()


def test_what_has_no_length_is_refused_as_the_other_client_does(node: FakeNode) -> None:
    with SyncClient(node.address) as boom, pytest.raises(InvalidRequest, match="not generator"):
        boom.submit(0, (Put(b"k", b"") for _ in range(2)))  # type: ignore[arg-type]


def test_leaving_an_iterator_early_frees_it_at_the_node(node: FakeNode) -> None:
    node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a", b"b"], more=True)
    with SyncClient(node.address) as boom:
        for key, _ in boom.scan(0):
            assert key == b"a"
            break
        until(lambda: len(node.sessions) == 1)


def test_a_forked_child_connects_anew(node: FakeNode) -> None:
    node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a", b"b"], more=True)
    script = """
import os, sys
from logboom import Put, SyncClient
from logboom.errors import InvalidRequest
boom = SyncClient(sys.argv[1])
boom.submit(0, Put(b"parent", b""))
rows, left = boom.scan(0), boom.scan(0)
next(rows), next(left)
child = os.fork()
if child == 0:
    boom.submit(0, Put(b"child", b""))
    try:
        next(rows)
    except InvalidRequest as error:
        assert "fork" in str(error)
    else:
        raise AssertionError
    del left
    boom.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
boom.submit(0, Put(b"parent", b""))
boom.close()
"""
    subprocess.run([sys.executable, "-c", script, node.address], check=True, timeout=30, cwd=ROOT)
    assert len(node.log[0]) == 3
    assert len({frame.header["producer"] for frame in node.of(Kind.SUBMIT)}) == 2


def test_ctrl_c_ends_a_following_tail_cleanly(node: FakeNode) -> None:
    node.answers[Kind.TAIL] = lambda session, frame: records(session, frame, 1, 1, [b"1"])
    with command("tail", "-p", "0", "-f", "--endpoints", node.address, stdout=subprocess.PIPE) as tail:
        until(lambda: node.of(Kind.CREDIT))
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=PATIENCE_S)
    assert tail.returncode == 130
    assert out.startswith("0\t1\t1")
    assert "Traceback" not in err
    until(lambda: not node.sessions)


def test_ctrl_c_before_anybody_waits_for_the_next_item_ends_it_too(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.answers[Kind.TAIL] = lambda session, frame: records(session, frame, 1, 1, [b"1"])
    with SyncClient(node.address) as client:
        rows = client.tail(0, follow=True)
        next(rows)

        def interrupted(_: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(background, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(rows)
        until(lambda: node.of(Kind.CANCEL))


def test_a_reader_that_goes_away_is_no_error(node: FakeNode) -> None:
    node.answers[Kind.SCAN] = lambda session, frame: entries(
        session, frame, [b"%05d" % k for k in range(50_000)], more=False
    )
    read, write = os.pipe()
    with command("scan", "-p", "0", "--endpoints", node.address, stdout=write) as scan:
        os.close(write)
        os.read(read, 10)
        os.close(read)
        _, err = scan.communicate(timeout=20)
    assert err == ""
