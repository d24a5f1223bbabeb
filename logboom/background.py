"""The thread behind a client for code that blocks: its event loop, the calls that wait for it, the iterators."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, cast

from logboom.client import Client
from logboom.errors import InvalidRequest, LogboomError, Outcome

T = TypeVar("T")
_END: Any = object()
ANSWERS_S: Final = 0.1
"""What is under way when a client is closed has this long to say what became of it."""
CANCELLED_S: Final = 1.0


class Line(Protocol):
    """Has calls for the loop that it does not wait for."""

    def over(self) -> None:
        """The loop has ended."""


class Background:
    """A client and the event loop it lives on, on a thread of their own, of one process."""

    def __init__(self, client: Client, *, name: str = "logboom") -> None:
        self.client = client
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.closed = False
        # The collector may run anything within anything, so also what takes it while this thread has it.
        self._lock = threading.RLock()
        self._ending: set[asyncio.Task[None]] = set()
        self._calls: set[_Call] = set()
        self._closing: asyncio.Task[None] | None = None
        self._stopped = False
        self._closers = deque[threading.Lock]()
        """Released when all is over: threads that wait for that."""
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet()
        # A daemon: whoever ends without closing is not waited for.
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over():
                pass
        finally:
            self.loop.close()
            try:
                for waiting in list(self._calls):  # it came too late for the loop
                    waiting.fail(closed_error())
                with self._lock:
                    lines, self._lines = list(self._lines), weakref.WeakSet()
                for line in lines:
                    line.over()
            finally:
                for closer in list(self._closers):
                    closer.release()

    def _is_over(self) -> bool:
        """Run the loop until it is stopped, or until a callback asks to end the process, which is not for it to do.

        Whoever made the call in which that was (``select``, ``on_void``) has it raised; all others go on.
        """
        try:
            self.loop.run_forever()
        except (KeyboardInterrupt, SystemExit) as error:
            if not any(waiting.ended_with(error) for waiting in list(self._calls)):
                story = {"message": "raised on the client's own thread, in no call of anybody's", "exception": error}
                self.loop.call_exception_handler(story)
            if self._stopped:  # in the same turn, which the loop has forgotten
                self.loop.stop()
            return False
        return True

    def start(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin a request; its result or error comes through the future. Raises InvalidRequest when closed."""
        with self._lock:  # so that ``close`` sees every task
            if self.closed:
                raise closed_error()
            return asyncio.run_coroutine_threadsafe(call(self.client), self.loop)

    def run(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """A request, and its result. Interrupted (Ctrl-C), it cancels the work. Raises InvalidRequest when closed."""
        self.check_thread()
        waiting = _Call(lambda: call(self.client))
        self._calls.add(waiting)
        try:
            self.soon(self._begin, waiting)
            return cast("T", _wait(waiting))
        except CancelledError:
            if self.closed:
                raise closed_error(outcome="unknown") from None
            raise
        except BaseException:
            with suppress(InvalidRequest):
                self.soon(waiting.cancel)
            raise
        finally:
            self._calls.discard(waiting)

    def _begin(self, waiting: _Call) -> None:
        if self.closed:  # so that ``close`` sees every task
            waiting.fail(closed_error())
        else:
            waiting.begin(self.loop)

    def soon(self, callback: Callable[..., object], *args: object) -> None:
        """Call it on the loop, of which nobody waits for the end. Raises InvalidRequest when that is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed
            raise closed_error() from None

    def add(self, line: Line) -> None:
        """It is told when the loop has ended, should it still be there."""
        with self._lock:
            self._lines.add(line)

    @property
    def is_own_thread(self) -> bool:
        """Called on the thread of the loop."""
        return threading.get_ident() == self.thread.ident

    def check_thread(self) -> None:
        """Raises InvalidRequest where waiting would be for oneself."""
        if self.is_own_thread:
            raise InvalidRequest(
                "this call was made on the client's own thread, in a callback (select, on_void) or a destructor, and "
                "would wait for itself: make it when the outer call has returned, or with another client"
            )

    def iterate(self, call: Callable[[Client], AsyncIterator[T]]) -> Generator[T, None, None]:
        """A stream, item by item."""

        async def begin() -> AsyncIterator[T]:
            return call(self.client)  # on the loop: deadlines are by its clock

        iterator = self.run(lambda _: begin())

        turn = asyncio.Lock()  # an interrupted step has ended before the iterator is closed
        steps: set[asyncio.Task[Any]] = set()

        async def step() -> Any:
            steps.add(cast("asyncio.Task[Any]", asyncio.current_task()))
            async with turn:
                item = await anext(iterator, _END)
            steps.clear()
            return item

        async def end() -> None:
            for task in steps:
                task.cancel()  # Ctrl-C may have come before anybody waited for it
            async with turn:
                with suppress(LogboomError):  # nobody is there to be told
                    await _aclose(iterator)

        try:
            while (item := self._step(step)) is not _END:
                yield item
        finally:
            self._end_soon(end)

    def _step(self, step: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self.pid != os.getpid():
            raise InvalidRequest("this iterator is the parent's, from before the fork: begin one here")
        return self.run(lambda _: step())

    def _end_soon(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have the loop end an iterator, and do not wait for it.

        The collector may have come upon the iterator on any thread, the loop's own too, and within anything: nothing
        may be waited for here, no lock be taken.
        """

        def begin() -> None:
            if self.closed:
                return  # that ends it
            task = self.loop.create_task(end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        if self.pid == os.getpid():
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(begin)

    def abandon(self) -> None:
        """Nobody will call again: ``close``, which nobody waits for. See ``_end_soon`` for where this may be called."""
        if self.pid == os.getpid():
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._end_here)

    def close(self) -> None:
        """Close the client, end whatever is still under way, and the thread. Interrupted, it can be called again."""
        with self._lock:
            self.closed = True
        # Not by ``join``: interrupted in there, a thread counts as ended that has not.
        ended = threading.Lock()
        ended.acquire()
        self._closers.append(ended)
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._end_here)
            ended.acquire()
        self.thread.join()
        if self._closing is not None:
            self._closing.result()

    def _end_here(self) -> None:
        if self._closing is None:
            self._closing = self.loop.create_task(self._end_all())

    async def _end_all(self) -> None:
        self.closed = True
        try:
            await _end(self.client)
        finally:
            self._stopped = True
            self.loop.stop()


class _Call:
    """A call on the loop, for one thread that waits for it.

    Not a future: what those hold while they are waited for they go on holding if Ctrl-C comes in the wrong moment
    (then the loop waits for it for ever), or release twice. What is waited for here is a lock of the interpreter's,
    taken in one step or not at all.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._make = make
        self._task: asyncio.Task[Any] | None = None
        self._given_up = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    # -- on the loop

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Unless nobody waits any more."""
        if self._given_up:
            return
        try:
            self._task = loop.create_task(self._make())
        except BaseException as error:  # noqa: BLE001 - whoever called is told
            self.fail(error)
        else:
            self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._task = None  # it is to end on this thread: Ctrl-C would be lost in the middle of that
        error = CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._result = task.result()
            self._end()
        else:
            self.fail(error)

    def ended_with(self, error: BaseException) -> bool:
        """Whoever waits is about to be told of it."""
        task = self._task
        return task is not None and task.done() and not task.cancelled() and task.exception() is error

    def fail(self, error: BaseException) -> None:
        """It ends so, unless it has ended."""
        if self._ended.locked():
            self._error = error
            self._end()

    def _end(self) -> None:
        with suppress(RuntimeError):  # it has
            self._ended.release()

    # -- for whoever waits

    def result(self) -> Any:
        """Once. Raises what the call raised."""
        self._ended.acquire()
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # whose traceback names this frame


async def _end(client: Client) -> None:
    await client.close()
    if others := _others():
        await asyncio.wait(others, timeout=ANSWERS_S)
    if others := _others():  # between two attempts, or asleep
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=CANCELLED_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _aclose(iterator: AsyncIterator[Any]) -> None:
    closing = getattr(iterator, "aclose", None)
    if closing is not None:
        await closing()


def closed_error(outcome: Outcome = "not_applied") -> InvalidRequest:
    """For whoever comes too late."""
    return InvalidRequest("this client is closed", outcome=outcome)


def _wait(waiting: _Call) -> Any:
    return waiting.result()
