"""``delete_prefix``: in time, or told how far it came; and never so much at once that nothing is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logboom import Client
from logboom.client import prefixes
from logboom.commands import DELETE_KEYS_MAX, KEY_BYTES_MAX, DeleteRange, from_record
from logboom.errors import DeadlineExceeded, Unavailable
from logboom.records import RecordBlock
from logboom.types import KV_TXN, Status, WideRecord
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, entries, fails, silent


class Keys:
    """A node with one partition, that scans and removes ranges as one does."""

    def __init__(self, node: FakeNode, keys: list[bytes]) -> None:
        self.keys = sorted(keys)
        self.asked = list[str]()
        node.features = [KV_TXN]
        node.answers |= {Kind.SCAN: self.scan, Kind.SUBMIT: self.submit}

    def scan(self, session: Session, frame: Frame) -> None:
        start, end, limit = (frame.header[name] for name in ("start", "end", "limit"))
        found = [key for key in self.keys if key >= start and (end is None or key < end)][:limit]
        self.asked.append(f"scan {len(found)}")
        if found:
            entries(session, frame, found, more=False)
        else:
            session.send(frame, Kind.ENTRIES, {"count": 0, "metadata": 0, "data": 0, "global_index": 5})

    def submit(self, session: Session, frame: Frame) -> None:
        (row,) = frame.header["parts"]
        block = RecordBlock.parse(row[3], frame.body[: row[4]], frame.body[row[4] :])
        command = from_record(WideRecord(block.payloads()[0], block.keys()[0]))
        assert isinstance(command, DeleteRange)
        found = [key for key in self.keys if key >= command.start and (command.end is None or key < command.end)]
        gone = set(found[:DELETE_KEYS_MAX])
        self.asked.append(f"remove {len(gone)}")
        self.keys = [key for key in self.keys if key not in gone]
        status = Status.MORE if len(found) > len(gone) else Status.OK if gone else Status.NOT_FOUND
        session.send(frame, Kind.SUBMITTED, {"parts": [[0, 1, 1, 1, 0, bytes((status,))]], "commit_index": 1})


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 2048, 2049, 5000])
async def test_all_with_the_prefix_are_removed_and_none_beside(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "LOOK_KEYS", 2 * DELETE_KEYS_MAX)
    async with cluster() as [node], Client(node.address) as boom:
        others = [b"j\xff", b"l", b"z"]
        kv = Keys(node, [*others, *(b"k%05d" % k for k in range(count))])
        await boom.delete_prefix(0, b"k")
        assert kv.keys == others
        looks = [each for each in kv.asked if each.startswith("scan")]
        assert len(looks) == count // (2 * DELETE_KEYS_MAX) + 1, "not all are looked at before the first is removed"
        assert len(kv.asked) - len(looks) <= count // DELETE_KEYS_MAX + 1, "from bound to bound"


@pytest.mark.parametrize(("prefix", "others"), [(b"k", [b"j", b"l"]), (b"\xff", [b"j", b"\xfe"])])
async def test_large_values_are_not_all_looked_at_first(
    prefix: bytes, others: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 4 GiB of them came before the first key was removed."""
    most = KEY_BYTES_MAX
    keys = [prefix, prefix * most, prefix + b"\xff" * (most - 1), *(prefix + b"%05d" % k for k in range(9))]
    monkeypatch.setattr(prefixes, "LOOK_BYTES", 1)
    async with cluster() as [node], Client(node.address) as boom:
        kv = Keys(node, [*others, *set(keys)])
        await boom.delete_prefix(0, prefix)
        assert kv.keys == others
        assert kv.asked[:2] == [f"scan {len(set(keys))}", "remove 1"]


async def test_the_time_counts_while_keys_are_looked_at() -> None:
    """It went on for as long as keys came, and said only then that time was up, as if it had removed some.

    Then it had removed none, however often it was called. Now half of the time is for what has been seen.
    """
    async with cluster() as [node], Client(node.address) as boom:
        kv = Keys(node, [b"k%05d" % k for k in range(5000)])

        def slowly(session: Session, frame: Frame, behind: bytes = b"") -> None:
            key = next((key for key in kv.keys if key > behind and key >= frame.header["start"]), None)
            if key is not None and not session.transport.is_closing():
                entries(session, frame, [key], more=True)
                session.loop.call_later(0.01, slowly, session, frame, key)

        node.answers[Kind.SCAN] = slowly
        await boom.partitions()
        left = len(kv.keys)
        for _ in range(2):
            async with asyncio.timeout(5.0):
                with pytest.raises(DeadlineExceeded, match="some keys are removed") as late:
                    await boom.delete_prefix(0, b"k", timeout=0.5)
            assert late.value.outcome == "unknown"
            assert len(kv.keys) < left - 2
            left = len(kv.keys)


async def test_what_is_seen_is_removed_though_no_more_comes() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        kv = Keys(node, [b"k1", b"k2", b"k3", b"k4"])
        node.once(Kind.SCAN, lambda session, frame: entries(session, frame, [b"k1", b"k2"], more=True))
        await boom.delete_prefix(0, b"k", timeout=2.0)
        assert not kv.keys
        assert kv.asked == ["remove 2", "scan 2", "remove 2"]


async def test_who_is_late_is_told_what_the_look_was_told() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        Keys(node, [])
        await boom.partitions()
        node.answers[Kind.SCAN] = silent
        node.once(Kind.SCAN, fails(Unavailable("it starts")))
        with pytest.raises(DeadlineExceeded, match="the one before: it starts") as late:
            await boom.delete_prefix(0, b"k", timeout=0.3)
        assert late.value.outcome == "not_applied"
        assert not node.of(Kind.SUBMIT)


async def test_who_is_late_behind_some_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "LOOK_KEYS", 2 * DELETE_KEYS_MAX)
    async with cluster() as [node], Client(node.address) as boom:
        kv = Keys(node, [b"k%05d" % k for k in range(5000)])
        await boom.partitions()
        scan: Any = kv.scan
        node.answers[Kind.SCAN] = silent
        node.once(Kind.SCAN, scan)
        with pytest.raises(DeadlineExceeded, match="some keys are removed") as late:
            await boom.delete_prefix(0, b"k", timeout=0.5)
        assert late.value.outcome == "unknown"
        assert 0 < len(kv.keys) < 5000
        node.answers[Kind.SCAN] = scan
        await boom.delete_prefix(0, b"k")
        assert not kv.keys
