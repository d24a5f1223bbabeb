"""A damaged journal is set aside and another begun; where it begins, and what is refused instead."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.opening import LogBase, begin_places
from raftlog.entries.parent_state import ParentState, Tail
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import BEGINNING, Base
from raftlog.journal.journal_codec import SEGMENT_HEADER, AnotherClusters
from server.directory.journal_of import OF, JournalOf
from server.directory.rejoin import REJOIN, Memory, Opened, decode, encode, open_journal, set_aside
from server.world.disk_os import OsDisk

DATA = Path("/n")
JOURNAL = DATA / "journal"
TAIL = Tail(PartitionLogIndex(7), b"d" * 16, GlobalLogIndex(7))
STATE = ParentState(GlobalLogIndex(7), 9, {PartitionId(0): TAIL}).encode()
BASE = Base(9, 1, STATE)


@pytest.fixture
def disk() -> SimDisk:
    """With a journal of four files behind a base, and the places of its one partition."""
    disk = SimDisk(random.Random(0))
    disk.make_directory(partition(0))
    begin_places(disk, partition(0), PartitionId(0), LogBase(*TAIL))
    journal = opening(disk)
    journal.setCurrentTerm(1, "n1")
    for index in range(2, 40):
        journal.add(b"\x00" + bytes(60), index, 1)
        journal.flush()
    job = journal.compaction(BASE)
    job.run()
    job.done()
    journal.close()
    assert len(segments(disk)) >= 4
    return disk


def partition(number: int) -> Path:
    return DATA / "partitions" / str(number)


def opening(disk: SimDisk, cluster_id: str = "c", *, begun: bool = False) -> Journal:
    return Journal.open(
        disk=disk,
        directory=JOURNAL,
        cluster_id=cluster_id,
        segment_bytes=1024,
        random_bytes=random.Random(0).randbytes,
        begun=begun,
    )


def opened(
    disk: SimDisk, cluster_id: str = "c", *, begun: bool = True, own: bytes | None = None, needed: bool = False
) -> Opened:
    memory = Memory(disk, DATA, random.Random(len(disk.list(DATA))).randbytes)
    return open_journal(
        lambda begun: opening(disk, cluster_id, begun=begun),
        memory,
        begun=begun,
        own=own,
        needed=lambda _: needed,
        disk=disk,
        directory=JOURNAL,
        partition=partition,
    )


def cannot_read(bad: Path) -> Callable[[str, Path, int], None]:
    def hook(operation: str, path: Path, _size: int) -> None:
        if operation == "read" and path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    return hook


def segments(disk: SimDisk) -> list[Path]:
    return [JOURNAL / name for name in disk.list(JOURNAL) if name.endswith(".journal")]


def test_a_whole_journal_stays(disk: SimDisk) -> None:
    journal, token = opened(disk)
    assert (token, journal.last_index, journal.vote) == (None, 39, "n1")
    assert not set_aside(disk, JOURNAL)


@pytest.mark.parametrize("where", ["record", "magic", "header", "missing", "base", "no base"])
def test_what_is_damaged_is_set_aside_and_the_next_begins_at_its_base_if_that_is_whole(
    disk: SimDisk, where: str
) -> None:
    first, second = segments(disk)[:2]
    base = JOURNAL / "base"
    if where == "missing":
        disk.remove(second)
    elif where == "no base":
        disk.remove(base)
    elif where == "base":
        disk.flip(base, 60, 4)
    else:
        disk.flip(second, {"record": 200, "magic": 2, "header": SEGMENT_HEADER.size - 1}[where], 4)
    before = {name: disk.read_file(JOURNAL / name) for name in disk.list(JOURNAL)}
    journal, token = opened(disk)
    assert token is not None
    assert journal.last_index == journal.base.index
    assert journal.base == (BEGINNING.base if "base" in where else BASE)
    assert (journal.term, journal.vote) == (journal.base.term, None)
    (aside,) = set_aside(disk, JOURNAL)
    left = {name: disk.read_file(aside / name) for name in disk.list(aside)}
    assert left == {name: raw for name, raw in before.items() if name in left}
    assert first.name in left
    journal.add(b"\x00", journal.last_index + 1, 3)
    journal.flush()
    journal.close()
    again, same = opened(disk)
    assert (again.last_index, same) == (journal.last_index, token), "goes on where it was, for the same time"


def test_a_base_that_the_partition_logs_do_not_reach_is_not_begun_at(disk: SimDisk) -> None:
    disk.flip(segments(disk)[1], 200, 4)
    disk.flip(partition(0) / "places", 30, 4)
    assert opened(disk).journal.base == BEGINNING.base


def test_another_time_has_another_token_and_both_are_kept(disk: SimDisk) -> None:
    disk.flip(segments(disk)[1], 200, 4)
    journal, first = opened(disk)
    for index in range(10, 40):
        journal.add(b"\x00" + bytes(60), index, 3)
        journal.flush()
    journal.close()
    disk.flip(segments(disk)[1], 200, 4)
    _, second = opened(disk)
    assert None not in (first, second)
    assert first != second
    assert [path.name for path in set_aside(disk, JOURNAL)] == ["journal.damaged-2", "journal.damaged-1"]


def test_another_clusters_journal_is_left_alone(disk: SimDisk) -> None:
    with pytest.raises(AnotherClusters):
        opened(disk, "another")
    assert not set_aside(disk, JOURNAL)
    assert not disk.exists(DATA / REJOIN)


def test_another_releases_journal_is_left_alone(disk: SimDisk) -> None:
    path, end = segments(disk)[0], SEGMENT_HEADER.size - 4
    disk.flip(path, 6, 64)
    header = disk.read_file(path)[: end + 4]
    right = google_crc32c.value(header[:end]).to_bytes(4, "little")
    for at in range(4):
        disk.flip(path, end + at, header[end + at] ^ right[at])
    with pytest.raises(IncompatibleVersion):
        opened(disk)
    assert not disk.exists(DATA / REJOIN)


def test_a_file_that_cannot_be_read_still_says_that_it_has_forgotten(disk: SimDisk) -> None:
    disk.flip(segments(disk)[1], 200, 4)
    opened(disk).journal.close()
    disk.flip(DATA / REJOIN, 20, 1)
    found = opened(disk)
    assert found.token is not None
    assert len(set_aside(disk, JOURNAL)) == 1


def test_over_is_over(disk: SimDisk) -> None:
    memory = Memory(disk, DATA, random.Random(1).randbytes)
    memory.over()
    token = memory.lose()
    assert memory.token() == token
    memory.over()
    disk.power_loss()
    assert memory.token() is None


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"token":"00"}', encode(b"t" * 16)[:-3], encode(b"t" * 15)])
def test_what_is_no_token_is_refused(raw: bytes) -> None:
    assert decode(encode(b"t" * 16), path="x") == b"t" * 16
    with pytest.raises(CorruptData, match="x "):
        decode(raw, path="x")


@pytest.mark.parametrize("rest", ["nothing", "zeros", "half a header"])
@pytest.mark.parametrize("base", [True, False])
def test_what_reads_as_if_it_had_just_been_begun_is_damaged_where_it_was_in_use(
    disk: SimDisk, rest: str, base: bool
) -> None:
    """Behind a base the first file is whole; without one the caller knows."""
    first, *others = segments(disk)
    for path in others:
        disk.remove(path)
    if not base:
        disk.remove(JOURNAL / "base")
        disk.rename(first, first := JOURNAL / f"{1:020d}.journal")
    raw = disk.read_file(first) if base else b""
    disk.replace_file(first, {"nothing": b"", "zeros": bytes(1024), "half a header": raw[:20]}[rest])
    journal, token = opened(disk, begun=not base)
    assert token is not None
    assert (journal.last_index, journal.vote) == (journal.base_index, None)
    assert len(set_aside(disk, JOURNAL)) == 1
    assert opened(disk)[1] == token, "it has not been taken back yet"


def test_a_journal_that_is_missing_is_damaged_where_it_was_in_use(disk: SimDisk) -> None:
    disk.remove_directory(JOURNAL)
    assert opened(disk, begun=False).token is None
    disk.remove_directory(JOURNAL)
    assert opened(disk).token is not None


def test_a_crash_in_front_of_the_next_journal_does_not_begin_another_time(disk: SimDisk) -> None:
    disk.remove_directory(JOURNAL)
    token = opened(disk).token
    disk.remove_directory(JOURNAL)
    assert opened(disk).token == token
    assert len(set_aside(disk, JOURNAL)) == 1


class TestOfAnotherDirectory:
    """A journal that lies on a file system of its own, and comes back when another was begun in its place."""

    OWN, FORMER = b"o" * 16, b"f" * 16

    def test_it_has_forgotten_what_the_other_promised_and_is_set_aside(self, disk: SimDisk) -> None:
        JournalOf(disk, JOURNAL).say(self.FORMER)
        journal, token = opened(disk, own=self.OWN)
        assert token is not None
        assert (journal.last_index, journal.base, journal.vote) == (BASE.index, BASE, None)
        (aside,) = set_aside(disk, JOURNAL)
        assert JournalOf(disk, aside).said() == self.FORMER
        assert JournalOf(disk, JOURNAL).said() == token
        journal.close()
        again, same = opened(disk, own=self.OWN)
        assert (again.last_index, same) == (journal.last_index, token), "a crash in front of the directory's new id"

    def test_it_is_so_before_the_cluster_has_taken_the_node_back_too(self, disk: SimDisk) -> None:
        first = Memory(disk, DATA, random.Random(1).randbytes).lose()
        JournalOf(disk, JOURNAL).say(self.FORMER)
        token = opened(disk, own=first).token
        assert token not in (None, first)
        assert len(set_aside(disk, JOURNAL)) == 1

    @pytest.mark.parametrize("said", ["own", "nothing", "damaged", "a bad sector", "of nobody known"])
    def test_what_does_not_say_that_it_is_anothers_stays(self, disk: SimDisk, said: str) -> None:
        own: bytes | None = self.OWN
        if said != "nothing":
            JournalOf(disk, JOURNAL).say(self.OWN)
        if said == "damaged":
            disk.flip(JOURNAL / OF, 20, 1)
        if said == "a bad sector":
            disk.hook = cannot_read(JOURNAL / OF)
        if said == "of nobody known":
            own = None
        journal, token = opened(disk, own=own)
        assert (token, journal.last_index, journal.vote) == (None, 39, "n1")

    def test_one_without_whose_vote_nobody_leads_keeps_what_it_has(self, disk: SimDisk) -> None:
        JournalOf(disk, JOURNAL).say(self.FORMER)
        journal, token = opened(disk, own=self.OWN, needed=True)
        assert (token, journal.last_index, journal.vote) == (None, 39, "n1")
        assert not set_aside(disk, JOURNAL)


class TestMounted:
    """Found by review: a journal's directory that a file system is mounted on cannot be moved, and each start ended."""

    @staticmethod
    def _opened(directory: Path) -> Opened:
        disk = OsDisk()

        def opening(begun: bool) -> Journal:
            return Journal.open(
                disk=disk,
                directory=directory / "journal",
                cluster_id="c",
                segment_bytes=1024,
                random_bytes=random.Random(0).randbytes,
                begun=begun,
            )

        return open_journal(
            opening,
            Memory(disk, directory, os.urandom),
            begun=True,
            own=None,
            needed=lambda _: False,
            disk=disk,
            directory=directory / "journal",
            partition=lambda number: directory / str(number),
        )

    @staticmethod
    def _begun(disk: SimDisk, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A damaged one, with what is not its own in there."""
        journal = directory / "journal"
        journal.mkdir()
        for name in disk.list(JOURNAL):
            (journal / name).write_bytes(disk.read_file(JOURNAL / name))
        damaged = sorted(journal.glob("*.journal"))[1]
        damaged.write_bytes(bytes(100))
        (journal / "lost+found").mkdir()
        rename = Path.rename

        def busy(source: Path, target: Path) -> Path:
            if source == journal:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
            return rename(source, target)

        monkeypatch.setattr(Path, "rename", busy)
        return journal

    def test_its_files_are_moved(self, disk: SimDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        journal = self._begun(disk, tmp_path, monkeypatch)
        before = {path.name: path.read_bytes() for path in journal.iterdir() if path.is_file()}
        for number in (1, 2):
            opened, token = self._opened(tmp_path)
            assert token is not None
            assert opened.last_index == opened.base_index
            opened.close()
            aside = journal / f"damaged-{number}"
            assert set_aside(OsDisk(), journal)[0] == aside
            if number == 1:
                assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
            again, same = self._opened(tmp_path)
            assert (again.last_index, same) == (opened.last_index, token)
            again.close()
            (journal / "newest").write_bytes(b"")
        assert (journal / "lost+found").is_dir()

    def test_a_crash_in_the_midst_of_it_leaves_a_node_that_has_forgotten(
        self, disk: SimDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = self._begun(disk, tmp_path, monkeypatch)
        names = {path.name for path in journal.iterdir() if path.is_file()}
        crashes, rename, finished = 0, OsDisk.rename, False

        def dies(real: OsDisk, source: Path, target: Path) -> None:
            nonlocal crashes
            if target.parent.name.startswith("damaged-"):
                crashes += 1
                if crashes % 2 == 0:
                    raise KeyboardInterrupt
            rename(real, source, target)

        monkeypatch.setattr(OsDisk, "rename", dies)
        while not finished:
            try:
                opened, token = self._opened(tmp_path)
                finished = True
            except KeyboardInterrupt:
                assert (tmp_path / REJOIN).exists()
        assert crashes > 1
        assert token is not None
        opened.close()
        kept = {path.name for aside in set_aside(OsDisk(), journal) for path in aside.iterdir()}
        assert kept | {path.name for path in journal.iterdir()} >= names
