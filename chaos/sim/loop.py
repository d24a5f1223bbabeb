"""An event loop on virtual time, for many processes at once: ``time`` jumps to the next timer.

Every callback belongs to a ``Process`` (a node's or a client's incarnation), inherited from
whoever scheduled it. Nothing of a dead process ever runs again; what a stopped one should have
run waits until it goes on. Callbacks take no time, but for those of a process that is slow: there one begins
when the one before has ended, and what comes meanwhile, from timers, lines or disks, stands in line.
Threads, executors and sockets do not exist here.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final, NoReturn

EPOCH_S: Final = 1_000.0
"""Simulated seconds at the start: no test should profit from a clock at zero."""


class ProcessDied(BaseException):
    """Raised to end the running process on the spot, wherever it is."""


class StandsStill(RuntimeError):
    """Nothing is scheduled any more, and somebody still waits."""


class Process:
    """One incarnation. Whoever holds a dead one's objects can do no harm with them."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.stopped = False
        self.tasks: set[asyncio.Task[Any]] = set()
        """Kept after death, so that no coroutine is collected, and its ``finally`` run, in the middle of things."""
        self._backlog: list[_Handle] = []
        self.takes: Callable[[], float] | None = None
        """Seconds that its next callback takes; None: none of them takes any."""
        self.line: deque[_Handle] = deque()
        """What waits for what came before it."""
        self.turn: _Handle | None = None
        """Of those the one that runs next."""
        self.busy_until = 0.0
        self.served = False
        """It will be looked at the line."""

    @property
    def slow(self) -> bool:
        """Its callbacks take time, or some still wait for those which did."""
        return self.takes is not None or bool(self.line)

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.alive else ' dead'}>"


class _Handle:
    """What a call_soon or call_later gives back (asyncio.TimerHandle's methods)."""

    __slots__ = ("_when", "args", "callback", "context", "dropped", "owner")

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context | None,
        owner: Process | None,
    ) -> None:
        self._when = when
        self.callback = callback
        self.args = args
        self.context = context
        self.owner = owner
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    """See the module. The network attaches ``create_connection`` and ``create_server``."""

    def __init__(self) -> None:
        self.now = EPOCH_S
        self.current: Process | None = None
        """Whose callback is running; None: the simulator's own."""
        self.events = 0
        self.trace = 0
        """Hash over the order and time of everything that ran."""
        self.after_instant: Callable[[], None] | None = None
        """Called whenever time is about to move on."""
        self.on_error: Callable[[Process | None, dict[str, Any]], None] | None = None
        self.halted = False
        """Stop after the event that is running."""
        self.network: Any = None
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._sequence = itertools.count(1)
        self._processes = itertools.count(1)
        self._running = False
        self._dead: list[Process] = []
        self._spawned = set[Coroutine[Any, Any, Any]]()
        """What has not begun, of the dead too: somebody has to close it."""

    # -- processes

    def process(self, name: str) -> Process:
        """A new incarnation; its first code is what ``run_as`` gives it."""
        return Process(name, next(self._processes))

    def run_as(self, process: Process | None, callback: Callable[..., Any], *args: Any, delay: float = 0.0) -> _Handle:
        """Schedule a callback that belongs to ``process``."""
        return self._at(self.now + delay, callback, args, None, process)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a task in ``process``; what it raises goes to ``on_error``."""
        self._spawned.add(coroutine)
        self.run_as(process, self._begin, coroutine)

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._spawned.remove(coroutine)
        self.create_task(coroutine).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.call_exception_handler({"message": "a task failed", "exception": task.exception()})

    def kill(self, process: Process) -> None:
        """Nothing of it runs any more."""
        process.alive = False
        process._backlog.clear()  # noqa: SLF001 - its own module
        process.line.clear()
        self._dead.append(process)
        for task in process.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - not a mistake here

    def stop_process(self, process: Process) -> None:
        """As SIGSTOP: it stands still, the world goes on."""
        process.stopped = True

    def continue_process(self, process: Process) -> None:
        """As SIGCONT: everything that was due meanwhile happens at once, in order."""
        process.stopped = False
        backlog, process._backlog = process._backlog, []  # noqa: SLF001 - its own module
        self._ready.extendleft(reversed(backlog))  # before whatever came a moment ago
        self._look_at_line(process)

    def _stands_in_line(self, process: Process, handle: _Handle) -> bool:
        """False: it is its turn."""
        if handle is process.turn:
            process.turn = None
            return False
        process.line.append(handle)
        self._look_at_line(process)
        return True

    def _look_at_line(self, process: Process) -> None:
        if process.line and not process.served:
            process.served = True
            self.run_as(None, self._serve, process, delay=process.busy_until - self.now)

    def _serve(self, process: Process) -> None:
        process.served = False
        while process.line and process.line[0].dropped:
            process.line.popleft()
        if process.line and not process.stopped:
            process.turn = process.line.popleft()
            process.busy_until = self.now + (process.takes() if process.takes is not None else 0.0)
            self._ready.appendleft(process.turn)
            self._look_at_line(process)

    def forget(self) -> None:
        """Nothing that is scheduled is ever run, nor what waits in a process that stands still."""
        self._ready.clear()
        self._timers.clear()
        for coroutine in self._spawned:
            coroutine.close()
        self._spawned.clear()

    # -- running

    def run_until_complete(self, future: Any) -> Any:
        """Run until ``future`` is done. Raises StandsStill if that cannot happen."""
        main: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        self._running = True
        try:
            with self.entered():
                self._run(main)
        finally:
            self._running = False
            self.current = None
        return main.result() if main.done() else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What code that runs meanwhile begins is this loop's. Without a loop asyncio would make it one of the real
        world, which keeps what was begun, and never runs it."""
        asyncio._set_running_loop(self)  # noqa: SLF001 - what loops do
        try:
            yield
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001 - what loops do

    def run_within(self, future: asyncio.Future[Any]) -> Any:
        """For code that blocks, in a callback of a process of its own: the world goes on until ``future`` is done.

        One process at a time. Raises ProcessDied if it is killed meanwhile.
        """
        process = self.current
        self._run(future, process)
        self.current = process
        if not future.done() or not (process is None or process.alive):
            raise ProcessDied
        return future.result()

    def _run(self, main: asyncio.Future[Any], within: Process | None = None) -> None:
        """``within``: whose code waits for it."""
        ready, timers = self._ready, self._timers
        while not main.done() and not self.halted and (within is None or within.alive):
            handle = ready.popleft() if ready else self._next(timers)
            if handle.dropped:
                continue
            owner = handle.owner
            if owner is not None and not (owner.alive and not owner.stopped):
                if owner.alive:
                    owner._backlog.append(handle)  # noqa: SLF001 - its own module
                continue
            if owner is not None and (owner.takes or owner.line or owner.turn) and self._stands_in_line(owner, handle):
                continue
            self.current = owner
            self.events += 1
            self.trace = hash((self.trace, self.now, owner.number if owner is not None else 0))
            try:
                if handle.context is None:
                    handle.callback(*handle.args)
                else:
                    handle.context.run(handle.callback, *handle.args)
            except ProcessDied:
                continue  # whoever raised it has seen to the rest
            except Exception as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": f"in {handle.callback!r}", "exception": error})

    def _next(self, timers: list[tuple[float, int, _Handle]]) -> _Handle:
        if not timers:
            raise StandsStill("nothing is scheduled any more")
        when, _, handle = heapq.heappop(timers)
        if when > self.now and not handle.dropped:
            if self.after_instant is not None:
                self.current = None
                self.after_instant()
            self.now = when
        return handle

    def _at(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context | None,
        owner: Process | None,
    ) -> _Handle:
        handle = _Handle(when, callback, args, context, owner)
        if when <= self.now:
            self._ready.append(handle)
        else:
            heapq.heappush(self._timers, (when, next(self._sequence), handle))
        return handle

    # -- asyncio.AbstractEventLoop, as far as it exists here

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = _Handle(self.now, callback, args, context, self.current)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self._at(self.now + delay, callback, args, context, self.current)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self._at(when, callback, args, context, self.current)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "sim", context=context)
        if self.current is not None:
            tasks, owner = self.current.tasks, self.current
            tasks.add(task)
            task.add_done_callback(lambda done: tasks.discard(done) if owner.alive else None)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._running:
            return  # tasks that a run left behind are collected: it is over, whatever they say
        if self.on_error is None:
            raise RuntimeError(context.get("message", "an error")) from context.get("exception")
        self.on_error(self.current, context)

    def set_exception_handler(self, handler: Any) -> None:
        """There is one for all: ``on_error``."""

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def look_up(self, host: Any, port: Any) -> Any:
        return [(None, None, 0, "", (host, port))]

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.bind(protocol_factory, host, port)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("a thread in the simulation")

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> NoReturn:
        raise RuntimeError("a thread in the simulation")

    async def shutdown_asyncgens(self) -> None:
        """None are tracked."""

    def _asyncgen_firstiter(self, agen: Any) -> None:
        """None are tracked."""
