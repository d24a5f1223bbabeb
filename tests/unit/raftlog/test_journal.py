"""The journal against what disks do: torn writes, rot anywhere, files written anew without what is settled."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import google_crc32c
import pytest

from logboom.errors import CorruptData, IncompatibleVersion
from ports.sync import Redo
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from raftlog.journal.journal_codec import SEGMENT_HEADER
from server.world.disk_os import OsDisk, OsFile
from tests.unit.raftlog.journal_files import content, digest, files, grown, opened


def test_what_was_synced_is_there_again_over_several_files(tmp_path: Path) -> None:
    journal = grown(tmp_path, 120, redo=True)
    before = content(journal)
    journal.close()
    assert len(files(tmp_path)) > 2
    again = opened(tmp_path)
    assert content(again) == before
    assert [bytes(again.find_redo(digest(k)) or b"") for k in range(120)] == [
        b"batch" + b"%d" % k * 9 for k in range(120)
    ]
    assert again.durable_index == again.last_index
    again.add(b"\x10", again.last_index + 1, 121)
    again.flush()
    again.close()


def test_a_conflict_is_cut_and_stays_cut(tmp_path: Path) -> None:
    journal = grown(tmp_path, 10)
    journal.truncate_from(6)
    journal.add(b"\x10new", 6, 99)
    journal.flush()
    before = content(journal)
    journal.close()
    again = opened(tmp_path)
    assert content(again) == before
    assert again.last_index == 6
    again.close()


def test_a_write_torn_at_any_byte_leaves_all_that_was_synced_before(tmp_path: Path) -> None:
    journal = grown(tmp_path / "whole", 8)
    before = content(journal)
    (path,) = files(tmp_path / "whole")
    start = journal._files.open_tail().offset
    journal.redo(Redo(digest(7), [b"batch"]))
    journal.add(b"\x10last", journal.last_index + 1, 50)
    journal.flush()
    end = journal._files.open_tail().offset
    after = content(journal)
    journal.close()
    raw = path.read_bytes()
    for cut in range(start, end + 1):
        directory = tmp_path / str(cut)
        directory.mkdir()
        (directory / path.name).write_bytes(raw[:cut] + bytes(len(raw) - cut))
        torn = opened(directory)
        # The last bytes of a record are its padding: without them it is whole.
        assert content(torn) in ((before,) if cut < end - 8 else (before, after)), f"cut at {cut}"
        torn.close()
        again = opened(directory)
        assert content(again) == content(torn)
        again.close()


@pytest.mark.parametrize("redo", [False, True])
def test_any_byte_flipped_is_refused_or_was_never_relied_on(tmp_path: Path, *, redo: bool) -> None:
    """Before the last group every byte counts; in it a flip looks like a torn tail, and nothing before it goes."""
    journal = grown(tmp_path / "whole", 30, redo=redo)
    last_start = journal._files.open_tail().offset
    journal.add(b"\x10last", journal.last_index + 1, 50)
    journal.flush()
    end, whole = journal._files.open_tail().offset, content(journal)
    shorter = (whole[0][:-1], *whole[1:])  # type: ignore[index]
    journal.close()
    paths = files(tmp_path / "whole")
    directory = tmp_path / "flipped"
    refused: list[tuple[str, str]] = []
    for path in paths:
        raw = path.read_bytes()
        size = end if path == paths[-1] else len(raw.rstrip(b"\0"))
        for at in range(0, size, 1 if path == paths[-1] else 7):
            directory.mkdir(exist_ok=True)
            for other in directory.iterdir():
                other.unlink()
            for each in paths:
                damaged = bytearray(each.read_bytes())
                if each == path:
                    damaged[at] ^= 0x41
                (directory / each.name).write_bytes(damaged)
            try:
                found = opened(directory)
            except (CorruptData, IncompatibleVersion) as error:
                refused.append((path.name, str(error)))
                continue
            held = content(found)
            found.close()
            padding = held == whole
            assert padding or (path == paths[-1] and at >= last_start and held == shorter), f"{path.name} at {at}"
    assert len(refused) > 500
    assert all(name in story for name, story in refused)


class TestSettled:
    def test_files_are_written_anew_without_it(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 120, redo=True)
        before, sizes = content(journal), sum(path.stat().st_size for path in files(tmp_path))
        through = journal.taken_sequence
        journal.settled(through)
        journal.flush()
        journal.strip(through)
        journal.close()
        assert sum(path.stat().st_size for path in files(tmp_path)) < sizes
        again = opened(tmp_path)
        assert content(again) == before
        assert all(again.find_redo(digest(k)) is None for k in range(120))
        again.close()

    def test_what_is_not_settled_stays(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 60, redo=True)
        through = journal.taken_sequence
        journal.settled(through)
        journal.redo(Redo(digest(1000), [b"later"]))
        journal.flush()
        journal.strip(through)
        journal.close()
        again = opened(tmp_path)
        assert again.find_redo(digest(59)) is None
        assert bytes(again.find_redo(digest(1000)) or b"") == b"later"
        again.close()

    def test_a_crash_before_the_record_only_repeats_work(self, tmp_path: Path) -> None:
        """Stripped first, SETTLED never written."""
        journal = grown(tmp_path, 120, redo=True)
        before = content(journal)
        journal.strip(journal.taken_sequence)
        journal.close()
        again = opened(tmp_path)
        assert content(again) == before
        again.close()

    def test_a_file_that_went_missing_shows(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 120, redo=True)
        through = journal.taken_sequence
        journal.settled(through)
        journal.flush()
        journal.strip(through)
        journal.close()
        files(tmp_path)[1].unlink()
        with pytest.raises(CorruptData, match="missing"):
            opened(tmp_path)

    def test_rot_in_a_stripped_file_shows(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 120, redo=True)
        journal.strip(journal.taken_sequence)
        journal.close()
        path = files(tmp_path)[0]
        raw = bytearray(path.read_bytes())
        raw[SEGMENT_HEADER.size + 20] ^= 1
        path.write_bytes(raw)
        with pytest.raises(CorruptData, match="damaged"):
            opened(tmp_path)

    @pytest.mark.parametrize("at", [3, 7, 20, SEGMENT_HEADER.size + 20])
    def test_a_sealed_file_that_rotted_is_not_written_anew(self, tmp_path: Path, at: int) -> None:
        """Stripping it would seal the damage in; where it was in the header, the node ended."""
        journal = grown(tmp_path, 120, redo=True)
        path = files(tmp_path)[0]
        raw = bytearray(path.read_bytes())
        raw[at] ^= 1
        path.write_bytes(raw)
        journal.strip(journal.taken_sequence)
        journal.close()
        assert path.read_bytes() == bytes(raw)

    def test_a_sealed_file_that_cannot_be_read_is_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a bad sector in what nobody needed any more, the node ended."""
        journal = grown(tmp_path, 120, redo=True)
        before = [(path, path.read_bytes()) for path in files(tmp_path)]

        def fails(_: OsDisk, path: Path) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        monkeypatch.setattr(OsDisk, "read_file", fails)
        journal.strip(journal.taken_sequence)
        journal.close()
        assert [(path, path.read_bytes()) for path in files(tmp_path)] == before


def crc_of(raw: bytes) -> bytes:
    return google_crc32c.value(bytes(raw)).to_bytes(4, "little")


@pytest.mark.parametrize("bit", range(16))
def test_a_format_that_rot_made_another_is_damage(tmp_path: Path, bit: int) -> None:
    """The node did not start any more, and called for another release; one that is damaged rejoins."""
    journal = grown(tmp_path, 120)
    journal.close()
    path = files(tmp_path)[0]
    raw = bytearray(path.read_bytes())
    raw[6 + bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    with pytest.raises(CorruptData, match=f"{path.name}: damaged"):
        opened(tmp_path)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("records", [0, 3])
def test_a_journal_of_another_format_is_refused_by_name_and_left_alone(
    tmp_path: Path, version: int, records: int
) -> None:
    """Format 1 had a shorter header, and no salt. A file without records is not taken for one that was being made."""
    journal = opened(tmp_path)
    for term in range(1, records + 1):
        journal.setCurrentTerm(term, "n1")
        journal.flush()
    journal.close()
    (path,) = files(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[6:8] = version.to_bytes(2, "little")
    raw[SEGMENT_HEADER.size - 4 : SEGMENT_HEADER.size] = crc_of(raw[: SEGMENT_HEADER.size - 4])
    path.write_bytes(raw)
    with pytest.raises(IncompatibleVersion, match=f"journal of format {version}"):
        opened(tmp_path)
    assert path.read_bytes() == raw


def found_by_scrub(journal: Journal) -> list[str]:
    return [str(piece.damage) for piece in journal.scrub() if piece.damage is not None]


def test_scrubbing_finds_every_flipped_byte_of_sealed_files(tmp_path: Path) -> None:
    journal = grown(tmp_path, 60, redo=True)
    assert not found_by_scrub(journal)
    first = files(tmp_path)[0]
    good = first.read_bytes()
    for at in random.Random(1).sample(range(len(good)), 200):
        bad = bytearray(good)
        bad[at] ^= 1
        first.write_bytes(bad)
        journal_says, start_refuses = bool(found_by_scrub(journal)), True
        if not journal_says:
            # A spare byte of a header that no checksum covers: the next start does not mind either.
            start_refuses = False
            opened(tmp_path).close()
        assert journal_says == start_refuses
    first.write_bytes(good)
    assert not found_by_scrub(journal)
    journal.close()


def test_scrubbing_passes_over_what_is_stripped_or_removed(tmp_path: Path) -> None:
    journal = grown(tmp_path, 60, redo=True)
    journal.settled(journal.taken_sequence)
    journal.flush()
    pieces = journal.scrub()
    journal.strip(journal.taken_sequence - 1)
    assert not [piece for piece in pieces if piece.damage]
    pieces = journal.scrub()
    journal.write_base(Base(journal.last_index, journal.entries[-1][2], b"state"))
    assert not [piece for piece in pieces if piece.damage]
    journal.close()


def test_what_scrubbing_has_found_is_mended_when_the_journal_begins_later(tmp_path: Path) -> None:
    journal = grown(tmp_path, 60)
    middle = journal.entry(journal.base_index + 1)
    journal.write_base(Base(journal.base_index + 1, middle[2], b"state"))
    first, base = files(tmp_path)[0], tmp_path / "base"
    for path in (first, base):
        raw = bytearray(path.read_bytes())
        raw[60] ^= 1
        path.write_bytes(raw)
    found = [piece.damage for piece in journal.scrub() if piece.damage is not None]
    mended = [journal.outlives(damage) for damage in found]
    assert [each() for each in mended] == [False, False]
    journal.write_base(Base(journal.last_index, journal.entries[-1][2], b"state"))
    assert [each() for each in mended] == [True, True]
    assert not found_by_scrub(journal)
    journal.close()


@pytest.mark.parametrize("times", [1, 2])
def test_scrubbing_reads_a_second_time_what_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    journal = grown(tmp_path, 60)
    read, failed = OsFile.read_anew, 0

    def fails(file: OsFile, *, offset: int, length: int) -> bytes:
        nonlocal failed
        if failed < times:
            failed += 1
            raise OSError(errno.EIO, "no")
        return read(file, offset=offset, length=length)

    monkeypatch.setattr(OsFile, "read_anew", fails)
    pieces = list(journal.scrub())
    assert [piece.again for piece in pieces].count(True) == 1
    assert len([piece for piece in pieces if piece.damage]) == times - 1
    journal.close()


def test_scrubbing_finds_a_file_that_is_gone(tmp_path: Path) -> None:
    journal = grown(tmp_path, 60)
    files(tmp_path)[0].unlink()
    assert len(found_by_scrub(journal)) == 1
    journal.close()


def test_a_term_counts_as_durable_once_its_group_is_synced(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.setCurrentTerm(3, None)
    job = journal.take()
    assert job is not None
    journal.setCurrentTerm(4, None)
    job.run()
    assert journal.durable_term == 0
    job.done()
    assert journal.durable_term == 3, "the later one came while the group was under way"
    journal.flush()
    journal.close()
    assert opened(tmp_path).durable_term == 4
