"""A scripted workload on a simulated disk, and three ways to end it early: power loss, kill, a failing call."""

from __future__ import annotations

import errno
import os
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.sim.crash_states import CrashModel, State, fingerprint
from chaos.sim.disk import DroppedPages, Image, ShortWrite, SimDisk
from logboom.errors import LogboomError

SAMPLED = 7
"""Every so many states are also left a second time, in the middle of their recovery, and worked on."""


class Killed(Exception):
    """The process ends here."""


class World(ABC):
    """Production code at work. ``step`` is drawn from ``rng`` alone, so a seed tells everything."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.disk, self.seed, self.rng = disk, seed, random.Random(seed)
        self.marks: list[tuple[int, Any]] = []
        """From which operation on which promise binds."""

    def mark(self) -> None:
        """Something was acknowledged."""
        position = len(self.disk.trace) if self.disk.trace is not None else 0
        self.marks.append((position, self.promise()))

    @abstractmethod
    def open(self) -> None:
        """A process starts: recover, and be ready for ``step``."""

    @abstractmethod
    def step(self) -> None:
        """Do something; raises what the disk raises."""

    @abstractmethod
    def promise(self) -> Any:
        """All that was acknowledged so far."""

    @abstractmethod
    def verify(self, disk: SimDisk, promise: Any, *, again: bool = False) -> Any:
        """Recover on ``disk``, where a crash may have ended this workload at any time; returns what was found.

        ``again``: a recovery has begun or ended there before. Fails if anything promised is missing, or anything is
        there that was never written.
        """

    def play(self, steps: int) -> None:
        self.mark()
        self.open()
        self.mark()
        for _ in range(steps):
            self.step()

    def finish(self) -> None:  # noqa: B027 - most worlds have nothing under way
        """Let what is under way end."""

    @property
    def failures(self) -> Sequence[BaseException]:
        """Errors that the workload was told of, other than by an exception."""
        return ()


Make = Callable[[SimDisk, int], World]


def empty(seed: int, *, capacity: int = 1 << 40) -> SimDisk:
    disk = SimDisk(random.Random(seed), capacity=capacity)
    disk.make_directory(Path("/n"))
    return disk


@dataclass
class Explored:
    """What a run of ``explore`` has looked at."""

    states: set[bytes] = field(default_factory=set)
    verified: int = 0
    inside_recovery: int = 0
    operations: int = 0

    def add(self, other: Explored) -> None:
        self.states |= other.states
        self.verified += other.verified
        self.inside_recovery += other.inside_recovery
        self.operations += other.operations


class Explorer:
    """Verifies states, each once per promise."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.seen: set[tuple[bytes, int]] = set()
        self.found = Explored()

    def look(self, state: State, mark: int, where: str) -> None:
        key = fingerprint(state.image), mark
        if key in self.seen:
            return
        self.seen.add(key)
        self.found.states.add(key[0])
        self.found.verified += 1
        promise = self.world.marks[mark][1]
        where = f"seed {self.world.seed}, {where}: {state.story}"
        disk = SimDisk.of(state.image, random.Random(self.found.verified))
        content = self._verify(disk, promise, where)
        if self.found.verified % SAMPLED == 0:
            disk.kill()
            assert self._verify(disk, promise, f"{where}, again", again=True) == content, (
                f"{where}: recovery changes its mind"
            )
            self._crash_again(state.image, promise, mark, where)

    def _crash_again(self, image: Image, promise: Any, mark: int, where: str) -> None:
        """A power loss in the middle of the recovery from a power loss."""
        disk = SimDisk.of(image, random.Random(0))
        disk.trace = []
        self._verify(disk, promise, where)
        model = CrashModel(image)
        positions = range(1, len(disk.trace) + 1)
        chosen = self.rng.sample(positions, min(3, len(positions)))
        states: list[tuple[int, State]] = []
        for position, op in enumerate(disk.trace, 1):
            model.feed(op)
            if position in chosen:
                choices = list(model.choices(self.rng, by_chance=1))
                states += [(position, model.state(choice)) for choice in self.rng.sample(choices, min(3, len(choices)))]
        for position, state in states:
            key = fingerprint(state.image), mark
            if key not in self.seen:
                self.seen.add(key)
                self.found.states.add(key[0])
                self.found.inside_recovery += 1
                self._verify(
                    SimDisk.of(state.image, random.Random(0)),
                    promise,
                    f"{where}, then after {position} operations of its recovery: {state.story}",
                    again=True,
                )

    def _verify(self, disk: SimDisk, promise: Any, where: str, *, again: bool = False) -> Any:
        try:
            return self.world.verify(disk, promise, again=again)
        except Exception as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


def explore(make: Make, seed: int, *, steps: int, by_chance: int = 4) -> Explored:
    """A power loss after each operation of a workload, in every state worth looking at."""
    world = make(empty(seed), seed)
    world.disk.trace = trace = []
    base = world.disk.image()
    world.play(steps)
    explorer = Explorer(world, random.Random(seed))
    model = CrashModel(base)
    binding = -1
    for position in range(len(trace) + 1):
        if position:
            model.feed(trace[position - 1])
        while binding + 1 < len(world.marks) and world.marks[binding + 1][0] <= position:
            binding += 1
        for state in model.states(explorer.rng, by_chance=by_chance):
            explorer.look(state, binding, f"after operation {position}")
    explorer.found.operations = len(trace)
    return explorer.found


def kill_everywhere(make: Make, seed: int, *, steps: int, later: int, every: int = 1) -> Explored:
    """A kill before each operation; the next process works on the same page cache; then the power fails."""
    length = _calls(make, seed, steps)
    found = Explored()
    for stop in range(0, length, every):
        world = make(empty(seed), seed)
        world.disk.trace = trace = []
        base = world.disk.image()
        world.disk.hook = _at(stop, Killed)
        with suppress(Killed):
            world.play(steps)
        world.disk.hook = None
        world.disk.kill()
        killed = len(trace)
        world.open()
        world.mark()
        for _ in range(later):
            world.step()
        explorer = Explorer(world, random.Random(stop))
        model = CrashModel(base)
        for position, op in enumerate(trace, 1):
            model.feed(op)
            if position > killed and (position == len(trace) or position % SAMPLED == 0):
                mark = max(k for k, (at, _) in enumerate(world.marks) if at <= position)
                for state in model.states(explorer.rng, by_chance=2):
                    explorer.look(state, mark, f"killed before call {stop}, after operation {position}")
        explorer.found.operations = 1
        found.add(explorer.found)
    return found


FAULTS: dict[str, tuple[Callable[[int], BaseException], set[str] | None]] = {
    "EIO": (lambda size: OSError(errno.EIO, os.strerror(errno.EIO)), None),
    "ENOSPC": (
        lambda size: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        {"create", "write", "allocate", "truncate", "rename", "make_directory", "sync", "sync_directory"},
    ),
    "short write": (lambda size: ShortWrite(size // 2), {"write"}),
    "dropped pages": (lambda size: DroppedPages(), {"sync"}),
}
"""What is raised, and by which operations (None: by all)."""
CHANGES = {"write", "sync", "truncate", "allocate"}


@dataclass
class Failed:
    """A workload right after one of its calls failed."""

    world: World
    base: Image
    operation: str = ""
    path: str = ""
    number: int = 0
    reported: bool = False
    """The workload saw an error."""
    spared: bool = False
    """It was a read of what was to be written anew without what nobody needs: that is left as it is, for scrubbing."""
    afterwards: list[str] = field(default_factory=list)
    """Changes of the same file that were tried later."""

    def __str__(self) -> str:
        return f"seed {self.world.seed}, {self.operation} of {self.path} failed, call {self.number}"


def fail_everywhere(make: Make, seed: int, fault: str, *, steps: int) -> Iterator[Failed]:
    """The first call that the fault suits fails, then the second, and so on."""
    raised, operations = FAULTS[fault]
    for number in range(_calls(make, seed, steps, operations)):
        world = make(empty(seed), seed)
        failed = Failed(world, world.disk.image(), number=number)
        world.disk.trace = []
        world.disk.hook = _failing(failed, raised, operations)
        try:
            world.play(steps)
            world.finish()
        except OSError:
            failed.reported = True
        except LogboomError as error:
            failed.reported = isinstance(error.__cause__, OSError)
        assert failed.operation, f"seed {seed}: the workload is not the same every time"
        world.disk.hook = None
        yield failed


def _failing(
    failed: Failed, raised: Callable[[int], BaseException], operations: set[str] | None
) -> Callable[[str, Path, int], None]:
    calls = 0

    def hook(operation: str, path: Path, size: int) -> None:
        nonlocal calls
        if failed.operation and operation in CHANGES and str(path) == failed.path:
            failed.afterwards.append(operation)
        if operations is None or operation in operations:
            calls += 1
            if calls == failed.number + 1:
                failed.operation, failed.path = operation, str(path)
                stack = traceback.extract_stack()
                failed.spared = operation == "read" and any(frame.name == "strip" for frame in stack)
                raise raised(size)

    return hook


def _at(stop: int, raised: Callable[[], BaseException]) -> Callable[[str, Path, int], None]:
    calls = 0

    def hook(operation: str, path: Path, size: int) -> None:
        nonlocal calls
        calls += 1
        if calls > stop:
            raise raised()

    return hook


def _calls(make: Make, seed: int, steps: int, operations: set[str] | None = None) -> int:
    """How many calls the workload makes."""
    calls = 0

    def hook(operation: str, path: Path, size: int) -> None:
        nonlocal calls
        calls += operations is None or operation in operations

    world = make(empty(seed), seed)
    world.disk.hook = hook
    world.play(steps)
    return calls
