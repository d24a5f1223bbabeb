"""What is removed, what stays, and what a start from a base finds."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IndexCompacted
from logboom.settings import LogSettings
from partitions.batch import parse_batch
from partitions.log import ChainBroken, PartitionLog
from partitions.opening import LogBase
from partitions.segment import BatchRef, pack_index, parse_index, segment_ordinal
from server.disk_os import OsDisk
from tests.unit.partitions.compaction_world import (
    COUNT,
    DIRECTORY,
    append,
    base_at,
    commit,
    digests,
    flush,
    grown,
    open_log,
    raw,
    settle,
)
from tests.unit.partitions.test_storage import chain, make


def ordinals(disk: SimDisk) -> list[int]:
    return sorted(segment_ordinal(name) for name in disk.list(DIRECTORY) if name.endswith(".log"))


def kept(log: PartitionLog) -> int:
    """How many batches of ``chain`` have been removed."""
    ends = [batch.last_index for batch in chain(COUNT)]
    first = log.first_available_index
    return 0 if first == 1 else ends.index(first - 1) + 1


class TestBase:
    @pytest.mark.parametrize("at", [1, 7, 20, COUNT])
    def test_a_start_goes_on_from_it(self, at: int) -> None:
        disk, log, batches = grown()
        base = base_at(batches, at)
        log.save_places(base.last_index)()
        disk.power_loss()
        again = open_log(disk, base)
        assert (again.committed_index, again.durable_index) == (base.last_index, base.last_index)
        assert (again.committed_global_index, again.durable_global_index) == (base.global_index, base.global_index)
        assert all(again.holds(batch.last_index, batch.digest) for batch in batches)
        assert all(again.is_durable(batch.last_index, batch.digest) for batch in batches)
        assert digests(again) == [batch.digest for batch in batches[:at]]
        commit(again, batches[at:], start=at)
        assert digests(again) == [batch.digest for batch in batches]
        assert again.durable_index == batches[-1].last_index

    def test_it_may_lie_before_what_the_places_tell(self) -> None:
        """They were saved for a later base, which the journal did not come to."""
        disk, log, batches = grown()
        log.save_places(batches[29].last_index)()
        disk.kill()
        again = open_log(disk, base_at(batches, 12))
        assert again.committed_index == batches[11].last_index
        commit(again, batches[12:], start=12)
        assert digests(again) == [batch.digest for batch in batches]

    def test_what_lost_a_conflict_below_it_is_not_held(self) -> None:
        disk, log, batches = grown(count=6)
        disk = SimDisk(random.Random(2))
        log = open_log(disk)
        dead = make(1, bytes(16), [b"dead"], term=9)
        append(log, [dead, *batches])
        commit(log, batches)
        log.save_places(batches[3].last_index)()
        disk.kill()
        again = open_log(disk, base_at(batches, 4))
        assert not again.holds(1, dead.digest)
        assert again.holds(batches[4].last_index, batches[4].digest)

    @pytest.mark.parametrize("what", ["missing", "damaged", "short", "other"])
    def test_without_places_that_reach_it_the_node_is_told_what_to_do(self, what: str) -> None:
        disk, log, batches = grown()
        base = base_at(batches, 20)
        if what != "missing":
            log.save_places(batches[5 if what == "short" else 25].last_index)()
        if what == "damaged":
            disk.flip(DIRECTORY / "places", 100, 4)
        if what == "other":
            base = base._replace(digest=bytes(16))
        disk.kill()
        with pytest.raises(CorruptData, match="rebuilt from a snapshot") as caught:
            open_log(disk, base)
        assert caught.value.path == str(DIRECTORY / "places")

    def test_a_node_from_a_snapshot_begins_behind_it_with_nothing(self) -> None:
        disk, batches = SimDisk(random.Random(1)), chain(COUNT)
        base = base_at(batches, 10, empty_ok=True)
        log = open_log(disk, base)
        assert log.first_available_index == base.last_index + 1
        assert log.holds(base.last_index, base.digest)
        assert log.is_durable(base.last_index, base.digest)
        with pytest.raises(IndexCompacted):
            log.read_batch(base.last_index, base.digest)
        with pytest.raises(ChainBroken):
            log.append(batches[11])
        assert not log.append(batches[3]), "committed, and never to be here"
        append(log, batches[10:20])
        commit(log, batches[10:20], start=10)
        assert digests(log, after=base.last_index) == [batch.digest for batch in batches[10:20]]
        disk.power_loss()
        again = open_log(disk, base)
        commit(again, batches[10:20], start=10)
        assert digests(again, after=base.last_index) == [batch.digest for batch in batches[10:20]]
        settle(again, base_at(batches, 18))
        disk.power_loss()
        again = open_log(disk, base_at(batches, 18))
        commit(again, batches[18:20], start=18)
        append(again, batches[20:])


class TestPlaces:
    def test_batches_that_only_the_journal_had_synced_are_synced_first(self) -> None:
        disk, batches = SimDisk(random.Random(1)), chain(5)
        log = open_log(disk)
        for batch in batches:
            log.append(batch)
            flush(log, journaled=True)
        commit(log, batches)
        log.save_places(batches[-1].last_index)()
        twin = disk.twin()
        again = open_log(twin, base_at(batches, 5))
        assert digests(again) == [batch.digest for batch in batches]

    def test_a_start_scans_only_what_came_after(self) -> None:
        disk, batches = SimDisk(random.Random(1)), chain(20)
        settings = LogSettings(segment_bytes=1 << 16)
        log = open_log(disk, settings=settings)
        append(log, batches[:15])
        commit(log, batches[:15])
        log.save_places(batches[9].last_index)()
        append(log, batches[15:])
        disk.kill()
        read: list[int] = []
        disk.hook = lambda what, path, size: read.append(size) if what == "read" and path.suffix == ".log" else None
        again = open_log(disk, base_at(batches, 10), settings=settings)
        disk.hook = None
        (name,) = again._names.values()
        proven = 64 + sum(batch.nbytes for batch in batches[:15])
        assert max(read) == disk.open(DIRECTORY / name).size() - proven
        assert all(again.holds(batch.last_index, batch.digest) for batch in batches)

    def test_what_an_index_names_is_not_written_again(self) -> None:
        disk, log, batches = grown(count=3)
        log.save_places(batches[0].last_index)()
        more = chain(4)[3:]
        append(log, more)
        disk.kill()
        again = open_log(disk)
        assert again.write_again(lambda _: False) == more[0].nbytes
        assert again.found_last() == [batch.digest for batch in [*batches, *more]]

    def test_a_sealed_segment_with_an_index_of_a_part_is_scanned_to_its_end(self) -> None:
        disk, log, batches = grown(count=3)
        log.save_places(batches[0].last_index)()
        (name,) = [name for name in disk.list(DIRECTORY) if name.endswith(".idx")]
        part = disk.read_file(DIRECTORY / name)
        more = chain(COUNT)[3:]
        append(log, more)
        disk.replace_file(DIRECTORY / name, part)
        disk.kill()
        for _ in range(2):  # the second start has the index that the first one made
            again = open_log(disk)
            assert all(again.holds(batch.last_index, batch.digest) for batch in [*batches, *more])
        assert disk.read_file(DIRECTORY / name) != part

    def test_an_index_of_a_part_never_takes_the_place_of_a_whole_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk, log, batches = grown(count=3)
        (name,) = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]

        def pack(refs: list[BatchRef], *, ordinal: int, end: int, whole: bool = True) -> bytes:
            if not whole:
                append(log, chain(COUNT)[3:])  # it is sealed while its part is packed
            return pack_index(refs, ordinal=ordinal, end=end, whole=whole)

        monkeypatch.setattr("partitions.open_segment.pack_index", pack)
        log.save_places(batches[-1].last_index)()
        known = parse_index(disk.read_file(DIRECTORY / name.replace(".log", ".idx")), ordinal=1)
        assert known is not None
        assert known.whole

    def test_a_part_of_an_index_is_never_taken_for_a_whole_one(self) -> None:
        _, log, batches = grown(count=3)
        refs = [log.find(batch.last_index, batch.digest) for batch in batches]
        index = pack_index([ref for ref in refs if ref], ordinal=1, end=1000, whole=False)
        for position in range(24, 32):
            for bit in range(8):
                flipped = bytearray(index)
                flipped[position] ^= 1 << bit
                assert parse_index(bytes(flipped), ordinal=1) is None

    def test_after_a_failed_sync_they_are_not_saved(self) -> None:
        """The next sync would succeed, on top of pages that the disk never got."""
        disk, log, batches = grown(count=3)
        more = chain(4)[3]
        log.append(more)

        def fail(what: str, path: Path, size: int) -> None:
            if what == "sync":
                raise OSError(5, "injected")

        disk.hook = fail
        with pytest.raises(OSError, match="injected"):
            flush(log)
        disk.hook = None
        with pytest.raises(OSError, match="before"):
            log.save_places(batches[-1].last_index)()
        assert not disk.exists(DIRECTORY / "places")

    def test_they_are_saved_while_others_write_and_roll(self, tmp_path: Path) -> None:
        batches = chain(300)
        log = open_log(OsDisk(), directory=tmp_path)
        append(log, batches[:20])
        commit(log, batches[:20])
        failed: list[BaseException] = []
        jobs = [log.save_places(batches[k].last_index) for k in range(20)]

        def save() -> None:
            try:
                for job in jobs:
                    job()
            except BaseException as error:  # noqa: BLE001
                failed.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        append(log, batches[20:])
        thread.join()
        log.close()
        assert not failed
        again = open_log(OsDisk(), base_at(batches, 20), directory=tmp_path)
        commit(again, batches[20:], start=20)
        assert digests(again) == [batch.digest for batch in batches]
        again.close()


class TestCompact:
    @pytest.mark.parametrize("at", [3, 17, COUNT])
    def test_old_segments_go_and_what_is_asked_for_stays(self, at: int) -> None:
        disk, log, batches = grown()
        keep_from = batches[at - 1].header.first_index if at < COUNT else batches[-1].last_index + 1
        before = ordinals(disk)
        settle(log, base_at(batches, at), keep_from=keep_from)
        gone = kept(log)
        assert gone <= at
        if at > 10:
            assert gone > 0
            assert ordinals(disk) == before[-len(ordinals(disk)) :]
            assert len(ordinals(disk)) < len(before)
        assert digests(log, after=log.first_available_index - 1) == [batch.digest for batch in batches[gone:]]
        stay = {name.split(".")[0] for name in disk.list(DIRECTORY) if name.endswith(".log")}
        assert {name.split(".")[0] for name in disk.list(DIRECTORY) if name.endswith(".idx")} <= stay

    def test_what_is_gone_cannot_be_read(self) -> None:
        _, log, batches = grown()
        settle(log, base_at(batches, 30))
        first = log.first_available_index
        assert first > 1
        for ask in (
            lambda: log.read_committed(after_index=first - 2, through_index=first, max_bytes=1 << 20),
            lambda: log.read_batch(1, batches[0].digest),
        ):
            with pytest.raises(IndexCompacted) as caught:
                ask()
            assert caught.value.first == first
        assert not log.holds(1, batches[0].digest)
        assert not log.append(batches[0])

    def test_it_is_gone_after_a_start_too(self) -> None:
        disk, log, batches = grown()
        base = base_at(batches, 30)
        settle(log, base)
        first, gone = log.first_available_index, kept(log)
        disk.power_loss()
        again = open_log(disk, base)
        assert again.first_available_index == first
        assert again.damage == []
        commit(again, batches[30:], start=30)
        assert digests(again, after=first - 1) == [batch.digest for batch in batches[gone:]]
        append(again, chain(COUNT + 5)[COUNT:])

    def test_what_may_yet_be_committed_stays(self) -> None:
        disk = SimDisk(random.Random(1))
        batches = chain(COUNT)
        log = open_log(disk)
        tip = make(batches[4].last_index + 1, batches[4].digest, [b"x"] * 200, term=7)
        append(log, [*batches[:5], tip, *batches[5:]])
        commit(log, batches[:20])
        settle(log, base_at(batches, 20))
        assert log.holds(tip.last_index, tip.digest)
        assert log.read_batch(tip.last_index, tip.digest) == raw(tip)
        commit(log, batches[20:], start=20)
        settle(log, base_at(batches, COUNT))
        assert tip.last_index > batches[-1].last_index or not log.holds(tip.last_index, tip.digest)

    def test_what_lost_a_conflict_goes_with_its_segment(self) -> None:
        disk = SimDisk(random.Random(1))
        batches = chain(COUNT)
        log = open_log(disk)
        dead = make(1, bytes(16), [b"dead"], term=9)
        append(log, [dead, *batches])
        commit(log, batches)
        settle(log, base_at(batches, COUNT))
        assert not log.holds(1, dead.digest)
        assert 1 not in ordinals(disk)

    def test_a_crash_between_removals_leaves_a_log_that_opens(self) -> None:
        for cut in range(1, 40):
            disk, log, batches = grown()
            base = base_at(batches, 30)
            log.save_places(base.last_index)()
            job, left = log.compact(base.last_index + 1), [cut]

            def stop(what: str, path: Path, size: int, left: list[int] = left) -> None:
                left[0] -= what in ("remove", "sync_directory")
                if not left[0]:
                    raise OSError(5, "injected")

            disk.hook = stop
            try:
                job()
                done = True
            except OSError:
                done = False
            disk.hook = None
            disk.kill() if cut % 2 else disk.power_loss()
            again = open_log(disk, base)
            assert again.damage == []
            commit(again, batches[30:], start=30)
            gone = kept(again)
            assert digests(again, after=again.first_available_index - 1) == [b.digest for b in batches[gone:]]
            names = disk.list(DIRECTORY)
            assert all(name.replace(".idx", ".log") in names for name in names)
            if done:
                return
        pytest.fail("it never came to its end")

    def test_a_segment_that_is_missing_in_the_middle_is_damage(self) -> None:
        disk, log, batches = grown()
        base = base_at(batches, 30)
        log.save_places(base.last_index)()
        disk.kill()
        ref = log.find(batches[15].last_index, batches[15].digest)
        assert ref is not None
        disk.remove(DIRECTORY / log._names[ref.segment])
        again = open_log(disk, base)
        assert len(again.damage) == 1
        assert again.first_available_index > batches[15].last_index
        commit(again, batches[30:], start=30)
        with pytest.raises(IndexCompacted):
            digests(again)

    def test_damage_that_was_mended_is_read_where_it_is_now(self) -> None:
        disk, log, batches = grown()
        bad = batches[20]
        assert log.lose(bad.last_index, bad.digest)
        assert log.append(parse_batch(memoryview(raw(bad))))
        flush(log)
        settle(log, base_at(batches, 30), keep_from=bad.header.first_index)
        wanted = [batch.digest for batch in batches[kept(log) :]]
        assert bad.digest in wanted
        assert digests(log, after=log.first_available_index - 1) == wanted
        disk.power_loss()
        again = open_log(disk, base_at(batches, 30))
        commit(again, batches[30:], start=30)
        assert digests(again, after=log.first_available_index - 1) == wanted

    def test_a_reader_in_another_thread_sees_it_whole_or_gone(self, tmp_path: Path) -> None:
        batches = chain(400)
        log = open_log(OsDisk(), directory=tmp_path)
        append(log, batches)
        commit(log, batches)
        at = {batch.header.first_index: number for number, batch in enumerate(batches)}
        wrong: list[object] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                first = log.first_available_index
                try:
                    found = log.read_committed(after_index=first - 1, through_index=1 << 40, max_bytes=20_000)
                except IndexCompacted as error:
                    if error.first <= first:
                        wrong.append(error)
                    continue
                except BaseException as error:  # noqa: BLE001
                    wrong.append(error)
                    return
                numbers = [at[each.header.first_index] for each in found]
                if [batches[n].digest for n in numbers] != [each.header.digest for each in found] or not found:
                    wrong.append(numbers)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for count in range(5, 400, 5):
            settle(log, base_at(batches, count))
        stop.set()
        for thread in threads:
            thread.join()
        log.close()
        assert not wrong
        assert log.first_available_index > batches[350].last_index

    def test_files_in_use_are_closed_when_nobody_uses_them_any_more(self) -> None:
        _, log, batches = grown()
        with log._reader._files.use(1) as file:
            settle(log, base_at(batches, 30))
            assert file.read(offset=0, length=6) == b"LBSEGM"
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.read(offset=0, length=6)


class TestPoint:
    def test_so_many_bytes_stay(self) -> None:
        _, log, batches = grown()
        through = batches[29].last_index
        assert log.compaction_point(through, 0, now=0.0) == through + 1
        for nbytes in (1, 150, 1000, 3000):
            point = log.compaction_point(through, nbytes, now=0.0)
            kept = [batch.nbytes for batch in batches[:30] if batch.last_index >= point]
            assert sum(kept) >= nbytes > sum(kept[1:])
        assert log.compaction_point(through, 1 << 40, now=0.0) == 1

    def test_a_reader_holds_it_back_until_it_has_moved_on_or_sleeps(self) -> None:
        _, log, batches = grown()
        through = batches[29].last_index
        lease = log.lease(5, now=10.0)
        other = log.lease(9, now=10.0)
        assert log.compaction_point(through, 0, now=10.5) == 5
        lease.move(20, now=10.5)
        assert log.compaction_point(through, 0, now=10.6) == 9
        assert log.compaction_point(through, 0, now=11.2) == 20
        lease.release()
        lease.release()
        assert log.compaction_point(through, 0, now=11.2) == through + 1
        other.move(9, now=12.0)
        assert log.compaction_point(through, 0, now=12.5) == 9

    def test_it_is_never_before_what_is_there(self) -> None:
        _, log, batches = grown()
        settle(log, base_at(batches, 25))
        first = log.first_available_index
        assert log.compaction_point(batches[29].last_index, 1 << 40, now=0.0) == first


def test_base_of_nothing_is_the_beginning() -> None:
    disk, _, batches = grown(count=3)
    disk.kill()
    again = open_log(disk, LogBase())
    commit(again, batches)
    assert again.first_available_index == 1
