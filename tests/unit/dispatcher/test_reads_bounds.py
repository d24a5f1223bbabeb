"""A GET: each key is looked up once, however often it is named, and answers are bounded all the same."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading import reads
from logboom.errors import InvalidRequest, RecordTooLarge
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.scans_world import Backend

POSITION = Position(PartitionLogIndex(1), GlobalLogIndex(1))


def backend() -> Backend:
    asked: list[list[bytes]] = []

    def get(keys: Sequence[bytes]) -> tuple[list[bytes | None], Position]:
        asked.append(list(keys))
        return [None if key == b"gone" else key * 10 for key in keys], POSITION

    made = Backend(scans_max=1)
    made.machine = SimpleNamespace(get=get, asked=asked)
    return made


def asking(keys: list[bytes]) -> Frame:
    return Frame(Kind.GET, 1, {"partition": 0, "read": "stale", "keys": keys})


async def test_a_key_that_is_named_often_is_looked_up_once_and_answered_each_time() -> None:
    node = backend()
    header, body = await reads.get(node, asking([b"k", b"gone", b"k", b"l"]), 5.0)
    assert header["found"] == [True, False, True, True]
    assert bytes(body[1]) == b"b" + b"k" * 10 + b"b" + b"k" * 10 + b"b" + b"l" * 10
    assert node.machine.asked == [[b"k", b"gone", b"l"]]


async def test_what_would_be_too_much_is_refused_before_it_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "REPLY_BYTES_MAX", 50)
    many: list[Any] = [b"k"] * 5
    with pytest.raises(RecordTooLarge, match="ask for fewer") as refused:
        await reads.get(backend(), asking(many), 5.0)
    assert (refused.value.size, refused.value.limit) == (55, 50)
    assert (await reads.get(backend(), asking(many[:4]), 5.0))[0]["data"] == 44


def test_of_too_many_lengths_none_is_looked_at() -> None:
    """A quarter of a million of them were gone through first: 57 ms of the loop."""
    frame = Frame(Kind.GET, 1, {"partition": 0, "lengths": [-1] * (reads.KEYS_MAX + 1)}, memoryview(b""))
    with pytest.raises(InvalidRequest, match="at most"):  # and not for the first of them, which is wrong
        reads.keys_of(frame)
