"""The one door between a user's state machine and its node: what comes out of it is an answer, or an ``Exception``.

Whoever wrote it may call ``sys.exit``, let ``next`` run dry, or count what another thread is changing. Let through to
the event loop, the first would end the node, the second keep somebody waiting for ever, the third end whatever looked.
"""

from __future__ import annotations

import errno
import operator
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

import structlog

from logboom import errors
from logboom.commands import Value
from logboom.errors import LogboomError
from logboom.state_machine import ApplyBatch, Entry, Machine, Position, Results, Sealed, StateDump
from logboom.types import GlobalLogIndex, PartitionLogIndex
from ports.scrub import Pieces
from ports.telling import TOLD_MAX, tellable

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

OF_THE_DISK: Final = frozenset(
    (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN)
)


def answer(name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``call`` gives. Raises an Exception for whatever it raises, StopIteration apart: that is none elsewhere.

    Its text can be had: whoever gets it asks for that, on the loop, too, where nobody could tell whose error it is.
    """
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        if _is_wanted(error):
            raise
        raise _instead(name, error) from error


def kept(name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``answer`` of what reads or writes files. An OSError ends the node, so it has to be one of the disk.

    Whoever wrote it may ask another service, too, or look for a file of his own: then it is his partition alone.
    """
    with _of_the_disk(name):
        return answer(name, call, *args, **kwargs)


@contextmanager
def _of_the_disk(name: str) -> Iterator[None]:
    """An OSError that comes out of it is."""
    try:
        yield
    except OSError as error:
        if error.errno in OF_THE_DISK:
            raise
        raise RuntimeError(_story(name, error)) from error


def each(name: str, make: Callable[[], Iterator[T]]) -> Generator[T, None, None]:
    """The same of what is iterated over."""
    try:
        yield from make()
    except GeneratorExit:
        raise
    except BaseException as error:
        if _is_wanted(error):
            raise
        raise _instead(name, error) from error


def _is_wanted(error: BaseException) -> bool:
    """It is an Exception, and has a text, of a bounded size: its argument may be a batch."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        return False
    try:
        return all(type(text) is str and len(text.encode()) <= TOLD_MAX for text in (repr(error), str(error)))
    except BaseException:  # noqa: BLE001 - a user's code, and so is what it raises: it is told in another one's text
        return False


def _instead(name: str, error: BaseException) -> Exception:
    """What is raised in its place: of its kind, where more depends on that than what is said."""
    story = _story(name, error)
    if isinstance(error, LogboomError):
        ours: type[LogboomError] = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return ours(story)
    return OSError(error.errno, story) if isinstance(error, OSError) else RuntimeError(story)


def _story(name: str, error: BaseException) -> str:
    return f"the state machine {name!r} raised {tellable(error)}"


class Guarded:
    """A machine of a user; see Machine for everything in it."""

    def __init__(self, name: str, machine: Machine) -> None:
        self._name, self._machine = name, machine
        self._unsaved_bytes = 0
        self._told = False
        self.needs_records = bool(machine.needs_records)
        self.applies_in_memory = bool(getattr(machine, "applies_in_memory", False))
        # What a machine may have, and its node looks for.
        if hasattr(machine, "get_at_once"):
            self.get_at_once = self._get_at_once
        if hasattr(machine, "scrub"):
            self.scrub = self._scrub
        if hasattr(machine, "discard"):
            self.discard = self._discard
        self._optional: Any = machine

    def position(self) -> Position:
        """See Machine."""
        return _position(kept(self._name, self._machine.position))

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """See Machine. Raises TypeError for what is no bytes: it would never be found, and so be applied again."""
        with _of_the_disk(self._name):
            for key, value in each(self._name, lambda: iter(self._machine.meta())):
                yield _raw(key, "key of meta"), _raw(value, "value of meta")

    @property
    def unsaved_bytes(self) -> int:
        """See Machine. The last that was a number where it is none: the loop asks at any time, beside ``apply``."""
        try:
            self._unsaved_bytes = int(answer(self._name, lambda: self._machine.unsaved_bytes))
        except Exception as error:
            if not self._told:
                self._told = True
                log.exception("unsaved_bytes_failed", state_machine=self._name, error=repr(error))
        return self._unsaved_bytes

    def checkpoint(self) -> None:
        """See Machine."""
        kept(self._name, self._machine.checkpoint)

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        """See Machine. Raises RuntimeError for a want of memory: ours passes, a user's may be one command's."""
        try:
            return answer(self._name, self._machine.apply, batches, seal)
        except (MemoryError, OSError) as error:
            if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
                raise RuntimeError(_story(self._name, error)) from error
            raise

    def get(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position]:
        """See Machine."""
        values, position = answer(self._name, self._machine.get, keys)
        return values, _position(position)

    def scan(
        self, *, start: bytes, end: bytes | None, limit: int, chunk: int
    ) -> Iterator[tuple[list[tuple[bytes, Value]], Position]]:
        """See Machine."""
        begin = partial(self._machine.scan, start=start, end=end, limit=limit, chunk=chunk)
        with closing(each(self._name, begin)) as chunks:
            for rows, position in chunks:
                yield rows, _position(position)

    def digest(self) -> tuple[bytes, Position]:
        """See Machine."""
        found, position = answer(self._name, self._machine.digest)
        return found, _position(position)

    def dump(self) -> StateDump:
        """See Machine."""
        found = answer(self._name, self._machine.dump)
        try:
            return GuardedDump(self._name, found, _position(answer(self._name, lambda: found.position)))
        except Exception:
            # Nobody else knows of it. Of two errors the first says what is wrong.
            with suppress(Exception):
                answer(self._name, found.close)
            raise

    def load(self, entries: Iterator[Entry], position: Position) -> None:
        """See Machine."""
        kept(self._name, self._machine.load, entries, position)

    def close(self) -> None:
        """See Machine."""
        kept(self._name, self._machine.close)

    def _get_at_once(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position] | None:
        found = answer(self._name, self._optional.get_at_once, keys)
        return None if found is None else (found[0], _position(found[1]))

    def _scrub(self) -> Pieces:
        return each(self._name, self._optional.scrub)

    def _discard(self) -> None:
        kept(self._name, self._optional.discard)


class GuardedDump:
    """One of its dumps."""

    def __init__(self, name: str, dump: StateDump, position: Position) -> None:
        self._name, self._dump, self.position = name, dump, position

    def entries(self) -> Iterator[Entry]:
        """See StateDump."""
        return each(self._name, lambda: iter(self._dump.entries()))

    def close(self) -> None:
        """See StateDump."""
        answer(self._name, self._dump.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def guard(name: str, machine: Machine) -> Machine:
    """``machine``, as its node knows it."""
    return cast(Machine, Guarded(name, machine))


def _position(found: Any) -> Position:
    index, global_index = map(operator.index, found)
    if min(index, global_index) < 0:
        raise ValueError(f"the state machine is at {found!r:.80}: a position is two numbers, as seal gave them")
    return Position(PartitionLogIndex(index), GlobalLogIndex(global_index))


def _raw(found: Any, what: str) -> bytes:
    if not isinstance(found, bytes | bytearray | memoryview):
        raise TypeError(f"the state machine has {found!r:.40} as a {what}: they are bytes, as seal gave them")
    return bytes(found)
