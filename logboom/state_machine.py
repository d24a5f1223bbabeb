"""The interface of a partition's state machine, for built-in ones and for yours (docs/state-machines.md has one).

Register a class under the entry point group ``logboom.state_machines``; its name there is
what ``cluster.state_machine`` in the configuration says.

Rules: ``apply`` is deterministic (no clock, no randomness, no I/O beyond its own state), takes
whole batches so that it can be vectorised, and saves state, position and the opaque
``meta`` entries in ONE transaction.

``apply``, ``get``, ``scan``, ``digest``, ``dump`` and ``checkpoint`` are called on threads, now this one, now that:
``apply`` on one at a time, reads and ``checkpoint`` beside it. ``open``, ``load``, ``close``, ``position`` and ``meta``
may be called on the event loop, too, at a start and an end or when a partition is opened; ``unsaved_bytes`` is read
there all the time: it is at hand. A class that says ``applies_in_memory = True``
promises that ``apply`` waits for no disk: it may be called on the loop itself, with a few commands, or a few batches
if it needs no records.

A machine may have ``get_at_once(keys)``: ``get`` that waits for nobody (None: it would have to), and seldom for a
disk. It is called with a few keys on the loop itself. Without it every read goes through a thread.

A machine may have ``scrub()``: an iterator (``ports.scrub.Pieces``) that reads all that is saved again, off the loop,
and raises CorruptData where it is damaged. Without it nobody looks before somebody reads.

Snapshots carry states from node to node: ``dump`` gives all of a machine's state, ``load`` takes it. Both
are required; a class without them is refused when its partition is opened, and one that cannot carry over what an
empty machine has when it is created. Where ``load`` raises later the partition is ``damaged`` on that node, which goes
on with the others and tries the next snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol, Self

from logboom.commands import Value
from logboom.errors import CorruptData
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex


class Position(NamedTuple):
    """How far a state machine has applied."""

    applied_index: PartitionLogIndex
    applied_global_index: GlobalLogIndex


NOWHERE = Position(PartitionLogIndex(0), GlobalLogIndex(0))


@dataclass(frozen=True, slots=True)
class ApplyBatch:
    """One committed batch to apply. ``skip``: half-open record ranges that were applied before; they take no effect.

    ``records`` is None for machines that set ``needs_records = False``.
    """

    first_index: PartitionLogIndex
    global_index: GlobalLogIndex
    timestamp_ms: int
    count: int
    nbytes: int
    digest: bytes
    records: RecordBlock | None
    skip: tuple[tuple[int, int], ...] = ()


Results = Sequence[bytes]
"""Per batch: one status byte per record, or a single byte when all are equal. 0: fine; your own: 64 to 255."""
Sealed = tuple[Position, Mapping[bytes, bytes | None]]
"""The position after the batches, and meta entries to write (None: delete) in the same transaction."""


class Space(IntEnum):
    """What an entry of a dump belongs to."""

    STATE = 0
    """What commands made."""
    META = 1
    """What ``seal`` gave: see ``Machine.meta``."""


SPACES: Final = tuple(Space)
Entry = tuple[Space, bytes, bytes]
"""One entry of a dump: space, key, value."""
ENTRY_KEY_BYTES_MAX: Final = 65_535
ENTRY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of one entry, key and value. A dump with a larger one is in no snapshot."""


class StateDump(Protocol):
    """All of a machine's state as of one moment. A context manager: leaving it is ``close``.

    One thread at a time reads it, not necessarily the one that took it. What it holds on to (memory, or
    space that the machine cannot use again) is held until it is closed; and it is closed before the machine is.
    """

    @property
    def position(self) -> Position:
        """What the state is of."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Space.STATE by ascending key, then Space.META by ascending key; each key once. Raises CorruptData.

        Nothing but the applied commands decides: at the same position it is the same on every node, byte for byte.
        """
        ...

    def close(self) -> None:
        """Idempotent. Iterators over it must not be used afterwards. On a thread, as all that is asked of a dump."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def in_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Pass on what is in the order of a dump. Raises CorruptData where it is not."""
    before = (-1, b"")
    for entry in entries:
        if entry[:2] <= before:
            raise CorruptData(f"not in the order of a dump: {entry[1]!r} after {before[1]!r}")
        before = entry[:2]
        yield entry


class Machine(Protocol):
    """An open state machine; what a node does with it. See the module."""

    needs_records: ClassVar[bool]

    def position(self) -> Position:
        """As of the last ``apply``; after opening, as of the last checkpoint."""
        ...

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """All saved meta entries, in any order; before the first ``apply``."""
        ...

    @property
    def unsaved_bytes(self) -> int:
        """Memory held by effects that a crash would undo; 0 for a machine that saves in ``apply``."""
        ...

    def checkpoint(self) -> None:
        """Save what is applied: state, position and meta in one transaction, as of one moment.

        Called beside ``apply`` when ``unsaved_bytes`` has grown, and, whatever that says, twice before the log forgets
        what is applied: then no power loss undoes it any more. Tried again if it raises, but for an OSError of the disk
        (EIO, ENOSPC and the like), which ends the node: what a sync has lost may seem saved the next time. What was
        not saved is applied again from the log after a crash, with the same effects.
        """
        ...

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        """Apply in order; before it shows, pass the results to ``seal`` and keep what it returns with the state.

        ``seal`` is called once, also for no batches (those of the group were refused, or declared void). All or
        nothing: on an exception, of ``seal`` too, no effect may remain; the same is tried again later.
        """
        ...

    def get(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position]:
        """A value (or None) for each key and the position that they are at, from one consistent view.

        A value is bytes or a tuple of numbers. Raises CorruptData, or InvalidRequest for whom it cannot answer; for
        anything else the client asks again until its deadline.
        """
        ...

    def scan(
        self, *, start: bytes, end: bytes | None, limit: int, chunk: int
    ) -> Iterator[tuple[list[tuple[bytes, Value]], Position]]:
        """Keys in [start, end) ascending, all from one view, in chunks of so many keys, or fewer; ``limit`` 0: all.

        An entry has less than 16 MiB: larger ones cannot be sent. Of several partitions that are to be seen at one
        moment nothing is applied before each has given its first chunk, or its reader has given up: then ``apply`` goes
        on beside it, as beside any read.
        """
        ...

    def digest(self) -> tuple[bytes, Position]:
        """Equal for equal state, and the position it is of."""
        ...

    def dump(self) -> StateDump:
        """The whole state as of now: what is applied, be it saved or not.

        Never called at the same time as ``apply``, which waits for it: it takes milliseconds, however large the
        state. ``apply``, ``checkpoint`` and reads go on while the dump is read.
        """
        ...

    def load(self, entries: Iterator[Entry], position: Position) -> None:
        """Put a dump of ``position`` in the place of everything that a machine had saved before; right after opening.

        On return all of it is durable, and ``position`` and ``meta`` are the dump's. Until then what a crash
        leaves opens at NOWHERE, or is still what it was, and means nothing: the caller removes the directory before
        it is used, or loads again, which begins with removing what is there. After an exception the machine can only be
        closed. Memory is bounded, whatever the number of entries. Raises CorruptData for entries that are not a
        dump of such a machine, and what ``entries`` raises.
        """
        ...

    def close(self) -> None:
        """Save and close; idempotent. One that has ``discard()``, too, is closed so when nobody needs its state."""
        ...


class StateMachine(Machine, Protocol):
    """What you register: a machine, and how it is opened. (Only the built-in ones are opened another way)."""

    @classmethod
    def open(cls, directory: Path, partition_id: PartitionId, settings: ApplySettings) -> Machine:
        """Open or create in ``directory``. Raises CorruptData rather than serve damaged state."""
        ...
