"""What machines of users give to reads: what is no value is an error at once, and what is large leaves in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading import reads
from dispatcher.reading.scans import PIECE_BYTES
from dispatcher.reading.views import _first
from logboom.client.reads import decode_value
from logboom.errors import InvalidRequest
from logboom.records import RecordBlock
from logboom.state_machine import NOWHERE
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.scans_world import Backend, scan


async def get(*values: Any) -> list[bytes]:
    backend: Any = Backend(scans_max=1)
    backend.machine = SimpleNamespace(get=lambda _: (list(values), NOWHERE))
    header = {"partition": 0, "read": "stale", "keys": [b"a"]}
    reply, sections = await reads.get(backend, Frame(Kind.GET, 1, header, memoryview(b"")), 5.0)
    return list(RecordBlock(len(reply["found"]), *sections).payloads())


async def scanned(*rows: Any) -> tuple[list[int], list[tuple[bytes, Any]]]:
    backend = Backend(scans_max=1)
    backend.machine = SimpleNamespace(scan=lambda **_: iter([(list(rows), NOWHERE)]))
    counts, found = [], []
    async for header, sections in scan(backend):
        counts.append(header["count"])
        block = RecordBlock(header["count"], *sections)
        found += zip(block.keys(), map(decode_value, block.payloads()), strict=True)
    return counts, found


@pytest.mark.parametrize("value", [bytearray(b"x"), [1, 2], "text", 5, (), ("1",), {}])
async def test_what_is_no_value_is_said_to_be_none(value: Any) -> None:
    """A bytearray and a list were taken for numbers: b"x" was read as (120,); others, for a mistake of the reader's."""
    with pytest.raises(InvalidRequest, match="the state machine gave"):
        await get(value)
    with pytest.raises(InvalidRequest, match="the state machine gave"):
        await scanned((b"k", value))


async def test_as_many_values_as_keys() -> None:
    """The client asked again until its deadline, and learned of a ValueError."""
    with pytest.raises(InvalidRequest, match="gave 0 values for 1 keys"):
        await get()
    assert await get(b"v") == [b"bv"]


async def test_keys_are_bytes() -> None:
    with pytest.raises(InvalidRequest, match="the state machine gave 'k'"):
        await scanned(("k", b"v"))


async def test_a_chunk_of_many_bytes_leaves_in_several_frames() -> None:
    """A thousand values of 16 KiB and more were in a frame that no client takes: no scan could be answered."""
    rows = [(b"%04d" % k, bytes(PIECE_BYTES // 4)) for k in range(10)]
    rows.insert(3, (b"0002a", bytes(2 * PIECE_BYTES)))
    counts, found = await scanned(*rows)
    assert counts == [3, 1, 3, 3, 1]
    assert found == rows


async def test_a_scan_begins_off_the_loop() -> None:
    """What is no generator does all of its work when it is called."""
    backend, here = Backend(scans_max=1), []

    async def run(job: Any) -> Any:
        here.append(True)
        try:
            return job()
        finally:
            here.pop()

    def begin(**_: Any) -> Iterator[Any]:
        assert here, "on the loop"
        return iter([])

    backend.run = run  # type: ignore[method-assign]
    backend.machine = SimpleNamespace(scan=begin)
    assert [each async for each in scan(backend)] == []


def test_a_view_says_why_a_machine_cannot_be_read() -> None:
    machine: Any = SimpleNamespace(scan=lambda **_: iter([([("k", b"v")], NOWHERE)]))
    view = _first(machine, start=b"", end=None, limit=0)
    with pytest.raises(InvalidRequest, match="the state machine gave"):
        view.more()
