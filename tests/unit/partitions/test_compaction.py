"""What is removed, what stays, and what the next start finds."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import IndexCompacted
from logboom.settings import LogSettings
from partitions.log import committed
from partitions.log.batch import parse_batch
from partitions.log.columns import Columns, ref_at
from partitions.log.compaction import Taken
from partitions.log.log import PartitionLog
from partitions.log.places import encode_places
from partitions.log.segment import segment_ordinal
from server.world.disk_os import OsDisk
from tests.unit.partitions.batches import P, chain, make
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


def ordinals(disk: SimDisk) -> list[int]:
    return sorted(segment_ordinal(name) for name in disk.list(DIRECTORY) if name.endswith(".log"))


def kept(log: PartitionLog) -> int:
    """How many batches of ``chain`` have been removed."""
    ends = [batch.last_index for batch in chain(COUNT)]
    first = log.first_available_index
    return 0 if first == 1 else ends.index(first - 1) + 1


def of_times(*times_ms: int, disk: SimDisk | None = None) -> tuple[PartitionLog, int]:
    """A log of batches of three records, each stamped so, and its last index."""
    log, end, batches = open_log(disk or SimDisk(random.Random(1))), 0, []
    for timestamp_ms in times_ms:
        digest = batches[-1].digest if batches else bytes(16)
        batches.append(make(end + 1, digest, [b"x"] * 3, timestamp_ms=timestamp_ms))
        end = batches[-1].last_index
    append(log, batches)
    commit(log, batches)
    return log, end


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

    @pytest.mark.parametrize("ends", [True, False])
    def test_a_segment_that_begins_with_what_need_not_be_kept_takes_no_more(self, ends: bool) -> None:
        """Found by review: of a log with a few records a day all were kept until they filled a segment, years later."""
        disk, batches = SimDisk(random.Random(1)), chain(COUNT)
        log = open_log(disk, settings=LogSettings())
        for upto in (10, 20, 30):
            append(log, batches[upto - 10 : upto])
            commit(log, batches[upto - 10 : upto], start=upto - 10)
            log.save_places(log.committed_index)()
            log.compact(batches[upto - 5].header.first_index, ends=ends)()
        assert ordinals(disk) == ([3] if ends else [1])
        assert kept(log) == (20 if ends else 0)
        disk.power_loss()
        again = open_log(disk, base_at(batches, 30), settings=LogSettings())
        assert digests(again, after=again.first_available_index - 1) == [b.digest for b in batches[kept(again) : 30]]

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

    def test_who_reads_while_it_goes_is_never_told_of_a_place_without_its_file(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A tail ended with an error that no client knows, in place of going on where the log begins now."""
        _, log, batches = grown()
        seen, forget = list[list[bytes]](), log._committed.forget

        def read() -> None:
            position = log.position_after(0)
            try:
                seen.append([batch.digest for batch in log.chunks.at(position, 1).batches()])
            except IndexCompacted:
                seen.append([])

        def forgetting(gone: Any) -> None:
            read()
            forget(gone)
            with pytest.raises(IndexCompacted):
                log.position_after(0)

        monkeypatch.setattr(log._committed, "forget", forgetting)
        settle(log, base_at(batches, 30))
        assert seen == [[batches[0].digest]]

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

    def test_what_stays_for_a_batch_above_leaves_no_gap_behind_it(self) -> None:
        disk, batches = SimDisk(random.Random(1)), chain(COUNT)
        log = open_log(disk)
        small = make(batches[0].last_index + 1, batches[0].digest, [b""] * 60, term=9)  # of many records
        append(log, [batches[0], small, *batches[1:]])
        commit(log, batches[:25])
        assert log.committed_index < small.last_index
        place = log.find(small.last_index, small.digest)
        assert place is not None
        assert place.segment == 1
        base = base_at(batches, 20)
        settle(log, base)
        disk.power_loss()
        again = open_log(disk, base)
        assert again.damage == []
        commit(again, batches[20:], start=20)
        settle(again, base_at(batches, COUNT))
        assert 1 not in ordinals(disk)
        assert len(ordinals(disk)) < 3
        disk.power_loss()
        assert open_log(disk, base_at(batches, COUNT)).damage == []

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
        with log._reader.files.use(1) as file:
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
        lease = log.lease(5, by=Taken(10.0))
        other = log.lease(9, by=Taken(10.0))
        assert log.compaction_point(through, 0, now=10.5) == 5
        lease.move(20, now=10.5)
        assert log.compaction_point(through, 0, now=10.6) == 9
        assert log.compaction_point(through, 0, now=11.2) == 20
        lease.release()
        lease.release()
        assert log.compaction_point(through, 0, now=11.2) == through + 1
        other.move(9, now=12.0)
        assert log.compaction_point(through, 0, now=12.5) == 9

    def test_what_is_outdated_goes_whatever_its_size_and_what_somebody_reads_stays(self) -> None:
        _, log, batches = grown()
        through = batches[29].last_index
        assert log.compaction_point(through, None, now=0.0) == 1
        assert log.compaction_point(through, None, outdated_to=7, now=0.0) == 8
        assert log.compaction_point(through, 0, outdated_to=7, now=0.0) == through + 1
        assert log.compaction_point(through, None, outdated_to=through + 99, now=0.0) == through + 1
        log.lease(5, by=Taken(0.0))
        assert log.compaction_point(through, None, outdated_to=7, now=0.0) == 5

    def test_what_is_older_than_a_time(self) -> None:
        log, end = of_times(*(1000 + 10 * number for number in range(6)))
        for asked in (range(1000, 1060, 10), range(1050, 990, -10)):
            assert [log.last_before(ms, through_index=end, now_ms=5000) for ms in asked] == [
                ms // 10 * 3 - 300 for ms in asked
            ]
        assert log.last_before(2000, through_index=end, now_ms=5000) == end
        assert log.last_before(2000, through_index=6, now_ms=5000) == 6
        assert log.last_before(0, through_index=end, now_ms=5000) == 0

    @pytest.mark.parametrize(("at", "older"), [(0, 2), (1, 1), (2, 2), (3, 2)])
    def test_a_damaged_header_is_as_old_as_what_is_behind_it(self, at: int, older: int) -> None:
        """Nothing behind it was ever removed by its age where the others had removed it so: nobody could mend it."""
        disk = SimDisk(random.Random(1))
        log, end = of_times(1000, 1000, 2000, 2000, disk=disk)
        position = log._committed.columns.at(at)
        segment, offset, _ = log._committed.columns.place(position)
        disk.flip(DIRECTORY / log._names[segment], offset, 0x40)
        assert log.last_before(1500, through_index=end, now_ms=5000) == 3 * older

    @pytest.mark.parametrize(
        ("times", "older"),
        [
            ((1000, 2000, 2000, 10, 2000, 2000), 1),  # a leader whose clock began in 1970, for a moment
            ((2000, 2000, 2000, 10, 10, 10), 0),  # and still leads
            ((1000, 9000, 1000, 2000, 2000, 2000), 3),  # one whose clock is years ahead keeps nothing for years
            ((9000, 2000, 1000, 1000, 1000, 1000), 0),
            ((9000, 9000), 0),
            ((1000, 1000, 9000), 2),
        ],
    )
    def test_a_clock_that_was_wrong_makes_nothing_else_older(self, times: tuple[int, ...], older: int) -> None:
        log, end = of_times(*times)
        for _ in range(2):
            assert log.last_before(1500, through_index=end, now_ms=5000) == 3 * older

    def test_it_is_never_before_what_is_there(self) -> None:
        _, log, batches = grown()
        settle(log, base_at(batches, 25))
        first = log.first_available_index
        assert log.compaction_point(batches[29].last_index, 1 << 40, now=0.0) == first


@pytest.mark.parametrize("meanwhile", ["nothing", "more is committed", "one is damaged and mended"])
def test_what_stays_of_a_long_log_is_copied_by_another_thread(monkeypatch: pytest.MonkeyPatch, meanwhile: str) -> None:
    """All that is known of where its batches are was copied on the loop at each compaction: 50 bytes for every one."""
    monkeypatch.setattr(committed, "STEP", 3)
    _, log, batches = grown()
    _, other, _ = grown()
    keep_from, more = batches[20].last_index, chain(COUNT + 5)[COUNT:]
    copied, part = list[int](), Columns.part

    def counted(columns: Columns, begin: int, end: int, *, step: int = 0) -> Columns:
        copied.append(0 if step else end - begin)
        return part(columns, begin, end, step=step)

    monkeypatch.setattr(Columns, "part", counted)
    job = log.shortening(keep_from)
    assert job is not None
    job()
    for each in (log, other):
        if meanwhile == "more is committed":
            append(each, more)
            commit(each, more, start=COUNT)
        elif meanwhile != "nothing":
            lost = batches[30]
            each._committed.lose(lost.last_index, lost.digest)
            found = ref_at(each._committed.columns, 30)
            each._committed.mend([found._replace(offset=found.offset + 1)])
    del copied[:]
    log.compact(keep_from)()
    assert (sum(copied) > 0) is (meanwhile == "one is damaged and mended"), "that has moved what was copied"
    other.compact(keep_from)()
    one, two = (encode_places(each._committed.columns, P) for each in (log, other))
    assert one == two
    assert log.first_available_index == other.first_available_index > 1
    assert log.shortening(1) is None
