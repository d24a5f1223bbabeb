"""Batches, logs, deduplication and the kv machine: what they promise, on real files."""

from __future__ import annotations

import random
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logboom.commands import Add, Cas, Command, Delete, Put
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch, Position
from logboom.types import (
    KIB,
    MIB,
    GlobalLogIndex,
    PartitionLogIndex,
    Status,
)
from partitions.apply.dedupe import Dedupe
from partitions.log.batch import parse_batch
from partitions.log.log import ChainBroken
from partitions.machines.kv import KvMachine
from partitions.machines.kv_apply import apply_blocks
from partitions.machines.kv_file import KvFile
from tests.unit.partitions.batches import chain, commit, flush, make, open_log


class TestBatch:
    def test_every_flipped_byte_is_noticed(self) -> None:
        raw = b"".join(bytes(b) for b in make(1, bytes(16), [b"payload", b"x"]).buffers)
        assert parse_batch(raw).records().payloads() == [b"payload", b"x"]
        for position in range(len(raw) - 1):
            damaged = bytearray(raw)
            damaged[position] ^= 1
            if 116 <= position < 128 and position >= 124:
                continue  # padding of the header
            with pytest.raises((CorruptData, IncompatibleVersion)):
                parse_batch(bytes(damaged))


class TestLog:
    def test_rotates_reopens_and_reads_back(self, tmp_path: Path) -> None:
        batches = chain(60)
        log = open_log(tmp_path)
        for batch in batches:
            assert log.append(batch)
            flush(log)
        log.close()
        assert len(list(tmp_path.glob("*.log"))) > 2
        for index in tmp_path.glob("*.idx"):
            index.unlink()
        log = open_log(tmp_path)
        assert log.damage == []
        commit(log, batches)
        found = log.read_committed(after_index=0, through_index=log.committed_index, max_bytes=1 << 20)
        assert [b.header.digest for b in found] == [b.digest for b in batches]
        assert log.durable_index == batches[-1].last_index
        log.close()

    def test_little_is_reserved_for_little_and_more_in_few_steps(self, tmp_path: Path) -> None:
        """4 MiB at once were 40 GiB for ten thousand partitions, all of it looked through at the next start."""
        log = open_log(tmp_path, segment_bytes=64 * MIB)
        sizes: list[int] = []
        first, previous = 1, bytes(16)
        for _ in range(24):
            batch = make(first, previous, [bytes(500_000)])
            log.append(batch)
            flush(log)
            sizes.append(next(tmp_path.glob("*.log")).stat().st_size)
            first, previous = batch.last_index + 1, batch.digest
        assert sizes[0] <= 2 * MIB, "for four like the first"
        assert len(set(sizes)) <= 4
        assert max(sizes) <= 12 * MIB + 4 * MIB
        small = open_log(tmp_path / "small")
        small.append(make(1, bytes(16), [b"x"]))
        flush(small)
        assert next((tmp_path / "small").glob("*.log")).stat().st_size <= 64 * KIB

    def test_a_tail_torn_anywhere_leaves_the_batches_before_it(self, tmp_path: Path) -> None:
        batches = chain(4)
        log = open_log(tmp_path / "whole", segment_bytes=1 << 16)
        for batch in batches:
            log.append(batch)
        flush(log)
        log.close()
        (file,) = (tmp_path / "whole").glob("*.log")
        ends = [64]
        for batch in batches:
            ends.append(ends[-1] + batch.nbytes)
        raw = file.read_bytes()[: ends[-1]]
        for cut in range(64, ends[-1], 7):
            place = tmp_path / f"cut{cut}"
            place.mkdir()
            (place / file.name).write_bytes(raw[:cut] + bytes(4096))
            log = open_log(place, segment_bytes=1 << 16)
            whole = sum(end <= cut for end in ends[1:])
            assert [log.holds(b.last_index, b.digest) for b in batches] == [k < whole for k in range(4)]
            again = batches[whole]
            assert log.append(again)
            flush(log)
            commit(log, batches[: whole + 1])
            log.close()

    def test_damage_between_batches_is_fenced_and_never_cut(self, tmp_path: Path) -> None:
        batches = chain(5)
        log = open_log(tmp_path, segment_bytes=1 << 16)
        for batch in batches:
            log.append(batch)
        flush(log)
        log.close()
        (file,) = tmp_path.glob("*.log")
        raw = bytearray(file.read_bytes())
        raw[64 + batches[0].nbytes + 130] ^= 0xFF
        file.write_bytes(raw)
        log = open_log(tmp_path, segment_bytes=1 << 16)
        assert [log.holds(b.last_index, b.digest) for b in batches] == [True, False, True, True, True]
        assert len(log.damage) == 1
        assert file.read_bytes() == bytes(raw)
        log.close()

    def test_rot_after_opening_is_not_served(self, tmp_path: Path) -> None:
        batches = chain(2)
        log = open_log(tmp_path, segment_bytes=1 << 16)
        for batch in batches:
            log.append(batch)
        flush(log)
        commit(log, batches)
        (file,) = tmp_path.glob("*.log")
        with file.open("r+b") as handle:
            handle.seek(64 + batches[0].nbytes - 1)  # the last payload byte of the first batch
            handle.write(b"\xff")
        with pytest.raises(CorruptData) as error:
            log.read_committed(after_index=0, through_index=1, max_bytes=1 << 20)
        assert error.value.path == str(file)
        log.close()

    def test_two_batches_may_claim_one_index_and_the_parent_log_decides(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        old, new = make(1, bytes(16), [b"old"], term=1), make(1, bytes(16), [b"new"], term=2)
        assert log.append(old)
        assert log.append(new)
        assert not log.append(new)
        with pytest.raises(ChainBroken):
            log.append(make(9, old.digest, [b"far"]))
        flush(log)
        commit(log, [new])
        (found,) = log.read_committed(after_index=0, through_index=1, max_bytes=1 << 20)
        assert found.records is not None
        assert found.records.payloads() == [b"new"]
        log.close()

    def test_a_newer_format_is_refused_untouched(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        log.append(chain(1)[0])
        flush(log)
        log.close()
        (file,) = tmp_path.glob("*.log")
        raw = bytearray(file.read_bytes())
        raw[6] = 9
        raw[60:64] = google_crc32c.value(bytes(raw[:60])).to_bytes(4, "little")  # else a bit has changed
        file.write_bytes(raw)
        with pytest.raises(IncompatibleVersion):
            open_log(tmp_path)
        assert file.read_bytes() == bytes(raw)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=30), st.integers(0, 1 << 30))
def test_each_sequence_takes_effect_once(parts: list[tuple[int, int]], seed: int) -> None:
    """Against a plain set of applied numbers, with restarts from what was stored."""
    rng, limits = random.Random(seed), ApplySettings()
    dedupe, applied, stored = Dedupe(limits), set[int](), dict[bytes, bytes]()
    for number, (first, count) in enumerate(parts, 1):
        header = make(number, bytes(16), [b"x"] * count, sequence=first).header
        decision = dedupe.decide(header)
        skipped = {first + k for start, stop in decision.skip for k in range(start, stop)}
        wanted = set(range(first, first + count))
        assert skipped == wanted & applied
        dedupe.record(header, decision, GlobalLogIndex(number))
        for key, value in dedupe.changes().items():
            assert value is not None
            stored[key] = value
        if rng.random() < 0.2:
            dedupe.rollback()  # the transaction failed: the same batch comes again
            assert dedupe.decide(header) == decision
            dedupe.record(header, decision, GlobalLogIndex(number))
            stored.update({k: v for k, v in dedupe.changes().items() if v is not None})
        dedupe.commit()
        applied |= wanted
        if rng.random() < 0.2:
            dedupe = Dedupe(limits, stored.items())


def test_gaps_and_old_epochs_are_refused() -> None:
    dedupe = Dedupe(ApplySettings())
    gap = make(1, bytes(16), [b"x"], sequence=5, dense=1).header
    assert dedupe.decide(gap).refused == "out_of_sequence"
    newer = make(1, bytes(16), [b"x"], sequence=0, epoch=2).header
    dedupe.record(newer, dedupe.decide(newer), GlobalLogIndex(1))
    dedupe.changes()
    dedupe.commit()
    assert dedupe.decide(make(2, bytes(16), [b"x"], sequence=1, epoch=1).header).refused == "producer_fenced"


KEYS = st.sampled_from([b"a", b"b", b"c"])
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5, 5)
COMMANDS = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=3)),
    st.builds(Delete, KEYS),
    st.builds(Cas, KEYS, st.none() | st.binary(max_size=1), st.none() | st.binary(max_size=1)),
    st.builds(Add, KEYS, NUMBERS),
    st.builds(lambda k, n: Add(k, n, n), KEYS, NUMBERS),
)


def blocks(commands: list[Command]) -> ApplyBatch:
    block = RecordBlock.from_records([c.record() for c in commands])
    return ApplyBatch(PartitionLogIndex(1), GlobalLogIndex(1), 0, block.count, block.nbytes, bytes(16), block)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(COMMANDS, min_size=16, max_size=40)
    | st.lists(st.builds(Add, KEYS, NUMBERS), min_size=16, max_size=40)
    | st.lists(st.builds(Put, KEYS, st.binary(max_size=3)), min_size=16, max_size=40)
)
def test_whole_blocks_and_single_records_do_the_same(commands: list[Command]) -> None:
    together, state, _ = apply_blocks([blocks(commands)], lambda _: None, lambda *_: iter(()))
    alone, other, _ = apply_blocks([blocks([c]) for c in commands], lambda _: None, lambda *_: iter(()))
    spread = together[0] if len(together[0]) > 1 else together[0] * len(commands)
    assert spread == b"".join(alone)
    assert state == other


def test_committing_what_a_start_found_looks_at_each_batch_a_few_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a chaos run (seed 777): beyond 8,192 held batches every commit went through all of them."""
    monkeypatch.setattr("partitions.log.tentative.PRUNE", 16)
    log = open_log(tmp_path, segment_bytes=1 << 20)
    batches = chain(400)
    for batch in batches:
        log.append(batch)
    flush(log)
    log.close()
    log = open_log(tmp_path, segment_bytes=1 << 20)
    tentative = log._tentative
    rebuilt, held = 0, tentative._held
    for number, batch in enumerate(batches):
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number + 1, term=1)
        rebuilt, held = rebuilt + (tentative._held is not held), tentative._held
    assert rebuilt < 5
    log.close()


class TestKv:
    def seal(self, index: int):  # type: ignore[no-untyped-def]
        return lambda _: (Position(PartitionLogIndex(index), GlobalLogIndex(index)), {b"p" * 16: b"meta"})

    def test_state_position_and_meta_survive(self, tmp_path: Path) -> None:
        machine = KvMachine(KvFile(tmp_path, ApplySettings()))
        statuses = machine.apply([blocks([Put(b"k", b"v"), Add(b"n", 1, 2), Delete(b"none")])], self.seal(3))
        assert list(statuses[0]) == [Status.OK, Status.OK, Status.NOT_FOUND]
        digest = machine.digest()
        machine.close()
        machine = KvMachine(KvFile(tmp_path, ApplySettings()))
        assert machine.get([b"k", b"n", b"x"]) == (
            [b"v", (1, 2), None],
            Position(PartitionLogIndex(3), GlobalLogIndex(3)),
        )
        assert list(machine.meta()) == [(b"p" * 16, b"meta")]
        assert machine.digest() == digest
        machine.close()

    def test_a_failed_transaction_leaves_nothing(self, tmp_path: Path) -> None:
        machine = KvMachine(KvFile(tmp_path, ApplySettings()))

        def fail(_: object) -> tuple[Position, dict[bytes, bytes | None]]:
            raise OSError("injected")

        with pytest.raises(OSError, match="injected"):
            machine.apply([blocks([Put(b"k", b"v")])], fail)
        assert machine.get([b"k"])[0] == [None]
        machine.close()

    def test_damage_is_reported_not_served(self, tmp_path: Path) -> None:
        machine = KvMachine(KvFile(tmp_path, ApplySettings()))
        machine.apply([blocks([Put(b"k", b"precious-value")])], self.seal(1))
        machine.close()
        file = tmp_path / "data.mdb"
        raw = file.read_bytes()
        file.write_bytes(raw.replace(b"precious-value", b"precious-valuf"))
        machine = KvMachine(KvFile(tmp_path, ApplySettings()))
        with pytest.raises(CorruptData):
            machine.get([b"k"])
        machine.close()
        file.write_bytes(raw[: len(raw) - 4096])
        with pytest.raises(CorruptData, match="truncated"):
            KvMachine(KvFile(tmp_path, ApplySettings()))
