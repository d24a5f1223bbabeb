"""What a start from a base finds, and what is made durable before it."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IndexCompacted
from logboom.settings import LogSettings
from partitions.log.log import ChainBroken
from partitions.log.opening import LogBase
from partitions.log.segment import BatchRef, pack_index, parse_index
from server.world.disk_os import OsDisk
from tests.unit.partitions.batches import chain, make
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
    settle,
)


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
        with pytest.raises(CorruptData, match="has to be replaced") as caught:
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

        monkeypatch.setattr("partitions.log.open_segment.pack_index", pack)
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


def test_base_of_nothing_is_the_beginning() -> None:
    disk, _, batches = grown(count=3)
    disk.kill()
    again = open_log(disk, LogBase())
    commit(again, batches)
    assert again.first_available_index == 1
