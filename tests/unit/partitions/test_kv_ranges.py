"""Ranges of keys that are removed: what that may cost, however much was removed there before, and that it is right."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.state_file import ModelStateView, StateFiles
from logboom.commands import DELETE_KEYS_MAX, DELETE_LEAST, Command, Delete, DeletePrefix, DeleteRange, Put, Txn
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch, Position
from logboom.types import GlobalLogIndex, PartitionLogIndex, Status, WideRecord
from partitions.apply.apply_core import RANGES_MAX
from partitions.machines import kv_apply, kv_layers
from partitions.machines.kv import KvMachine
from partitions.machines.kv_layers import Emptied, Ordered
from ports.state_file import KEY_BYTES_MAX
from tests.unit.partitions.worker_world import HeldOffload, inline, turn, world

KEYS = [bytes((a, *rest)) for a in b"ab\xff" for rest in ((), (0,), (98,), (255,), (255, 255))]
SOME = st.sampled_from(KEYS)
RANGES = st.one_of(
    st.builds(DeletePrefix, SOME),
    st.tuples(SOME, SOME).filter(lambda ends: ends[0] < ends[1]).map(lambda ends: DeleteRange(*ends)),
    st.builds(DeleteRange, SOME),
)
COMMANDS = st.one_of(
    st.builds(Put, SOME, st.binary(max_size=3)),
    st.builds(Delete, SOME),
    st.builds(Txn, st.just(()), st.lists(st.builds(Put, SOME, st.just(b"t")), min_size=1, max_size=3)),
    RANGES,
    RANGES,
)
STEPS = st.one_of(st.lists(COMMANDS, min_size=1, max_size=5), st.sampled_from(["save", "fail", "crash"]))


class Reads:
    """A machine over a file that counts what is read of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = StateFiles(random.Random(0))
        self.machine = self._opened()
        self.entries = 0
        self.index = 0
        whole = ModelStateView.entries

        def counted(view: ModelStateView, start: bytes) -> Iterator[tuple[bytes, bytes]]:
            assert len(start) <= KEY_BYTES_MAX, "no file looks for such a key"
            for entry in whole(view, start):
                self.entries += 1
                yield entry

        monkeypatch.setattr(ModelStateView, "entries", counted)

    def _opened(self) -> KvMachine:
        return KvMachine(self.files.open(Path("/state"), ApplySettings()))

    def again(self) -> int:
        """After a crash, whatever was not saved has to be applied once more. Returns from where on."""
        self.files.crash(power=False)
        self.machine = self._opened()
        self.index = self.machine.position().applied_index
        return self.index

    def apply(self, *groups: Sequence[Command | WideRecord]) -> list[list[Status]]:
        """Batches of one group."""
        batches = []
        for commands in groups:
            self.index += 1
            rows = [each if isinstance(each, WideRecord) else each.record() for each in commands]
            records = RecordBlock.from_records(rows).as_wide()
            at = PartitionLogIndex(self.index), GlobalLogIndex(self.index)
            batches.append(ApplyBatch(*at, 0, records.count, records.nbytes, bytes(16), records))
        position = Position(PartitionLogIndex(self.index), GlobalLogIndex(self.index))
        results = self.machine.apply(batches, lambda _: (position, {}))
        return [
            [Status(each) for each in (found if len(found) == len(rows) else found * len(rows))]
            for found, rows in zip(results, groups, strict=True)
        ]

    def keys(self) -> list[bytes]:
        chunks = self.machine.scan(start=b"", end=None, limit=0, chunk=100)
        return [key for rows, _ in chunks for key, _ in rows]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def rows(count: int, prefix: bytes = b"k") -> list[Command]:
    return [Put(b"%s%05d" % (prefix, n), b"v") for n in range(count)]


def test_where_nothing_was_before_another_state_was_loaded_is_looked_at(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Reads(monkeypatch)
    other.apply(rows(3))
    assert reads.apply([DeletePrefix(b"k")]) == [[Status.NOT_FOUND]]
    with other.machine.dump() as dump:
        reads.machine.load(iter(list(dump.entries())), dump.position)
    assert reads.apply([DeletePrefix(b"k")]) == [[Status.OK]]
    assert reads.keys() == []


# -- what it costs


def test_a_prefix_that_is_removed_again_and_again_is_gone_through_once(reads: Reads) -> None:
    count = 6 * DELETE_KEYS_MAX + 1
    reads.apply(rows(count))
    reads.machine.checkpoint()
    for _ in range(6):
        assert reads.apply([DeletePrefix(b"k")]) == [[Status.MORE]]
    assert reads.apply([DeletePrefix(b"k")]) == [[Status.OK]]
    assert reads.entries <= count + 10
    reads.entries = 0
    for _ in range(10):
        assert reads.apply([DeletePrefix(b"k")]) == [[Status.NOT_FOUND]]
    assert reads.entries == 0


def test_so_it_is_over_a_checkpoint_and_where_something_was_written_meanwhile(reads: Reads) -> None:
    count = 3 * DELETE_KEYS_MAX
    reads.apply(rows(count))
    reads.machine.checkpoint()
    reads.apply([DeletePrefix(b"k")])
    reads.machine.checkpoint()
    reads.entries = 0
    reads.apply([DeletePrefix(b"k")])
    reads.apply([Put(b"k00007", b"again"), Put(b"k01500", b"again")])
    assert reads.apply([DeletePrefix(b"k")]) == [[Status.MORE]]
    assert reads.apply([DeletePrefix(b"k")]) == [[Status.OK]]
    assert reads.apply([DeletePrefix(b"k")]) == [[Status.NOT_FOUND]]
    assert reads.entries <= count
    assert reads.keys() == []


def test_many_in_one_batch_do_not_sort_all_that_is_in_memory_each_time(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_in: list[int] = []
    renew = Ordered.renew

    def counted(order: Ordered) -> None:
        before = len(order._keys)
        renew(order)
        sorted_in.append(len(order._keys) - before)

    monkeypatch.setattr(Ordered, "renew", counted)
    reads.apply(rows(5_000))
    most = DELETE_KEYS_MAX // DELETE_LEAST
    reads.apply([DeletePrefix(b"%d" % n) for n in range(most)])
    reads.apply([DeletePrefix(b"%d" % n) for n in range(most)])
    assert sum(sorted_in) == 5_000


@pytest.mark.parametrize(("payload", "bounded"), [(b"\6z", True), (b"\5\0\1\0\1\0\1\0\0\0k\2", False)])
def test_a_transaction_has_memory_for_what_its_batches_remove(payload: bytes, *, bounded: bool) -> None:
    """Each may change a thousand keys, and takes a hundred bytes of the log."""
    with world(HeldOffload) as w:

        async def story() -> None:
            w.commit(3 * RANGES_MAX, records=1, payload=payload, wide=True)
            w.notify()
            while w.under_way:
                before = len(w.reported)
                w.finish()
                assert len(w.reported) - before == (RANGES_MAX if bounded else 3 * RANGES_MAX)
            assert len(w.reported) == 3 * RANGES_MAX

        w.run(story)


@pytest.mark.parametrize(("payload", "elsewhere"), [(b"\6z", 1), (b"\5\0\1\0\1\0\1\0\0\0k\2", 0)])
def test_ranges_are_removed_on_threads(payload: bytes, elsewhere: int) -> None:
    """A thousand keys are work for milliseconds, in which the loop would answer nobody."""
    with inline() as w:

        async def story() -> None:
            w.commit(records=1, payload=payload, wide=True)
            w.notify()
            await turn()
            assert (w.under_way, len(w.reported)) == (elsewhere, 1 - elsewhere)
            while w.under_way:
                w.finish()

        w.run(story)


# -- that it is right


def test_a_range_may_end_behind_all_keys_that_there_can_be(reads: Reads) -> None:
    longest = b"k" * KEY_BYTES_MAX
    for end in (longest + b"k" * 100, b"\xff" * 1_000, b"\xff" * KEY_BYTES_MAX + b"\0"):
        reads.apply([Put(b"k", b""), Put(longest, b""), Put(b"k" * 510 + b"l", b"")])
        reads.machine.checkpoint()
        left = [b"k" * 510 + b"l"] if end[:1] == b"k" else []
        assert reads.apply([WideRecord(b"\6" + end, b"k")]) == [[Status.OK]]
        assert reads.keys() == left
        assert reads.apply([WideRecord(b"\6" + end, b"a")]) == [[Status.NOT_FOUND]]
        assert reads.apply([WideRecord(b"\6", b"a")]) == [[Status.OK if left else Status.NOT_FOUND]]
        reads.apply([Put(longest, b"")])
        assert reads.keys() == [longest]
        assert reads.apply([DeleteRange(b"a")]) == [[Status.OK]]


def model(state: dict[bytes, Any], commands: Sequence[Command], most: int, least: int) -> list[Status]:
    """Of one batch, said once more."""
    found, left = list[Status](), most
    for command in commands:
        if isinstance(command, Put):
            state[command.key] = command.value
            found.append(Status.OK)
        elif isinstance(command, Delete):
            found.append(Status.OK if state.pop(command.key, None) is not None else Status.NOT_FOUND)
        elif isinstance(command, Txn):
            state.update((each.key, each.value) for each in command.then if isinstance(each, Put))
            found.append(Status.OK)
        elif left <= 0:
            found.append(Status.MORE)
        else:
            gone = sorted(key for key in state if _removes(command, key))
            for key in gone[:left]:
                del state[key]
            found.append(Status.MORE if len(gone) > left else Status.OK if gone else Status.NOT_FOUND)
            left -= max(least, min(len(gone), left))
    return found


def _removes(command: Command, key: bytes) -> bool:
    if isinstance(command, DeletePrefix):
        return key.startswith(command.prefix)
    assert isinstance(command, DeleteRange)
    return command.start <= key and (command.end is None or key < command.end)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=25), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_they_do_what_they_do_to_a_dictionary(steps: list[Any], most: int, least: int, kept: int) -> None:
    """Over checkpoints, those that fail, and crashes; whatever is remembered of where nothing is."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(kv_apply, "DELETE_KEYS_MAX", most)
        monkeypatch.setattr(kv_apply, "DELETE_LEAST", least)
        monkeypatch.setattr(kv_layers, "EMPTIED_MAX", kept)
        reads = Reads(monkeypatch)
        log: list[list[Command]] = []
        states: list[dict[bytes, Any]] = [{}]
        for step in steps:
            if step == "save":
                reads.machine.checkpoint()
            elif step == "fail":
                reads.files.fault = _fails
                with pytest.raises(OSError, match="no"):
                    reads.machine.checkpoint()
                reads.files.fault = None
            elif step == "crash":
                saved = reads.again()
                assert reads.keys() == sorted(states[saved])
                reads.apply(*log[saved:])  # as one group
            else:
                log.append(step)
                states.append(dict(states[-1]))
                expected = model(states[-1], step, most, least)
                assert reads.apply(step) == [expected]
            assert reads.keys() == sorted(states[-1])


def _fails(_: str, __: Path) -> None:
    raise OSError("no")


def test_what_fails_while_it_is_applied_leaves_nothing_behind(reads: Reads) -> None:
    reads.apply([Put(b"a", b""), Put(b"b", b"")])
    reads.machine.checkpoint()
    records = RecordBlock.from_records([DeleteRange(b"a").record()])
    batch = ApplyBatch(PartitionLogIndex(2), GlobalLogIndex(2), 0, 1, records.nbytes, bytes(16), records)

    def fails(_: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        reads.machine.apply([batch], fails)
    assert reads.keys() == [b"a", b"b"]
    assert reads.apply([DeleteRange(b"a")]) == [[Status.OK]]
    assert reads.keys() == []


# -- what is remembered


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 11), st.integers(0, 12))), st.integers(1, 5))
def test_nothing_is_forgotten_to_be_there(steps: list[tuple[bool, int, int]], kept: int) -> None:
    """Against a set. More may be looked at than there is, never less; and exactly so where all can be remembered."""
    places = [bytes((n,)) for n in range(12)]
    for most in (kept, 64):
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(kv_layers, "EMPTIED_MAX", most)
            emptied, unknown = Emptied(), set(places)
            for is_filled, low, high in steps:
                if is_filled:
                    emptied.filled(places[low])
                    unknown.add(places[low])
                else:
                    end = places[high] if high < 12 else None
                    emptied.add((places[low], end))
                    unknown -= set(places[low:high])
                for start in range(12):
                    for stop in range(start, 13):
                        end = places[stop] if stop < 12 else None
                        rest = list(emptied.rest(places[start], end))
                        seen = {k for k in places for a, b in rest if a <= k and (b is None or k < b)}
                        expected = unknown & set(places[start:stop])
                        assert expected <= seen <= set(places[start:stop])
                        assert most < 64 or seen == expected
                        assert sorted(rest, key=lambda each: each[0]) == rest
