"""Targets: where a journal begins, and the parent state in there.

As in ``batches``: an odd first byte puts the checksum right before the decoder sees the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import google_crc32c

from chaos.fuzz.files import CLUSTER
from chaos.fuzz.target import Target, holds
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import KV_TXN, NUMBER_MAX, PARTITION_SETTINGS, Ack, PartitionId, PartitionLogIndex, Term
from raftlog.entries.agreed import agreeing
from raftlog.entries.chosen import Choice, Chosen
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import BEFORE_LIFECYCLES, ParentState
from raftlog.journal import journal_base, journal_newest
from raftlog.journal.journal_base import BEGINNING, CRC, Base, BaseRecord, HardState

PATH: Final = "/data/base"
T = TypeVar("T")


def base(data: bytes) -> None:
    """First byte odd: sealed."""
    raw, record = _decoded(data, journal_base.decode)
    if record is not None:
        holds(journal_base.encode(record, cluster=CLUSTER) == raw, "a base does not come back")
        first = record.base.index, record.first_sequence, record.hard.floor
        holds(min(first) >= 1, "a base before the first")


def newest(data: bytes) -> None:
    """As ``base``."""
    raw, sequence = _decoded(data, journal_newest.decode)
    if sequence is not None:
        again = journal_newest.encode(sequence, cluster=CLUSTER)
        holds(again == raw, "what names the newest file does not come back")
        holds(1 <= sequence <= NUMBER_MAX, "a file that cannot be")


def _decoded(data: bytes, decode: Callable[..., T]) -> tuple[bytes, T | None]:
    raw = data[1:]
    if data[:1] and data[0] & 1:
        raw = raw[: -CRC.size]
        raw += CRC.pack(google_crc32c.value(raw))
    try:
        return raw, decode(raw, cluster=CLUSTER, path=PATH)
    except (CorruptData, IncompatibleVersion) as error:
        holds(PATH in str(error), "an error that does not say which file")
        return raw, None


def parent_state(data: bytes) -> None:
    """The bytes are the state's."""
    try:
        state = ParentState.decode(data)
    except (CorruptData, IncompatibleVersion):
        return
    if data[:1] == bytes((BEFORE_LIFECYCLES,)):  # is read, and written as the next one
        holds(ParentState.decode(state.encode()) == state, "a state of before lifecycles does not come back")
    else:
        holds(not data or state.encode() == data, "a state does not come back")


def _state() -> bytes:
    state = ParentState()
    state.apply(2, [Route(PartitionId(p), Term(1), PartitionLogIndex(p + 5), bytes([p] * 16)) for p in range(3)])
    return state.encode()


def _base_seeds() -> list[bytes]:
    records = [BEGINNING, BaseRecord(Base(9, 3, _state()), 40, HardState(4, "n2", 7))]
    return [flag + journal_base.encode(record, cluster=CLUSTER) for flag in (b"\0", b"\1") for record in records]


def _newest_seeds() -> list[bytes]:
    return [flag + journal_newest.encode(40, cluster=CLUSTER) for flag in (b"\0", b"\1")]


def _state_seeds() -> list[bytes]:
    agreed = ParentState()
    agreed.control(2, 1, agreeing([KV_TXN]))
    chosen = agreed.copy()
    chosen.control(3, 1, agreeing([PARTITION_SETTINGS]))
    chosen.choose(Choice(PartitionId(1), 2, Chosen(Ack.DURABLE, linearizable=True), bytes(16)))
    return [_state(), ParentState().encode(), agreed.encode(), chosen.encode()]


TARGETS = [
    Target("base", base, _base_seeds, "where a journal begins"),
    Target("newest", newest, _newest_seeds, "which file of a journal is the newest"),
    Target("parent_state", parent_state, _state_seeds, "the parent state in a journal's base"),
]
