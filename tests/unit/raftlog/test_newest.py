"""A journal whose last file is gone, or has nothing in it, though it had been written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import google_crc32c
import pytest

from logboom.errors import CorruptData, IncompatibleVersion
from raftlog.journal import journal_codec as codec
from raftlog.journal import journal_newest
from raftlog.journal.journal import cluster_hash
from raftlog.journal.journal_base import Base
from raftlog.journal.journal_files import NEWEST
from server.world.disk_os import OsDisk
from tests.unit.raftlog.journal_files import content, files, grown, opened

CLUSTER = cluster_hash("c")


def last_file(directory: Path) -> Path:
    found = files(directory)
    assert len(found) > 2
    return found[-1]


def damage(path: Path, how: str) -> None:
    size = path.stat().st_size
    if how == "gone":
        path.unlink()
    elif how == "part of a header":
        path.write_bytes(path.read_bytes()[:20] + bytes(size - 20))
    else:
        path.write_bytes(bytes(size if how == "zeros" else 0))


def read_newest(directory: Path) -> int:
    return journal_newest.decode((directory / NEWEST).read_bytes(), cluster=CLUSTER, path="")


HOWS = ("gone", "cut to nothing", "zeros", "part of a header")


@pytest.mark.parametrize("how", HOWS)
def test_what_was_in_the_last_file_is_missed(tmp_path: Path, how: str) -> None:
    grown(tmp_path, 120).close()
    damage(last_file(tmp_path), how)
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"missing|nothing is left"):
            opened(tmp_path)


@pytest.mark.parametrize("how", HOWS)
def test_also_right_after_a_start_of_this_release(tmp_path: Path, how: str) -> None:
    """What an older one has written does not say which file is the newest; from the first start on it does."""
    grown(tmp_path, 120).close()
    (tmp_path / NEWEST).unlink()
    opened(tmp_path).close()
    damage(last_file(tmp_path), how)
    with pytest.raises(CorruptData):
        opened(tmp_path)


@pytest.mark.parametrize("how", HOWS)
def test_a_file_that_a_crash_kept_from_being_made_is_made(tmp_path: Path, how: str) -> None:
    journal = grown(tmp_path, 120)
    wanted, before = content(journal), (tmp_path / NEWEST).read_bytes()
    journal._files.roll()
    journal.close()
    (tmp_path / NEWEST).write_bytes(before)  # the crash came before it, and before the first record
    damage(last_file(tmp_path), how)
    again = opened(tmp_path)
    assert content(again) == wanted
    again.close()
    assert read_newest(tmp_path) == int(files(tmp_path)[-1].stem)


def test_an_older_release_may_have_gone_on(tmp_path: Path) -> None:
    """It does not touch ``newest``, which then names a file that others follow."""
    opened(tmp_path).close()
    early = (tmp_path / NEWEST).read_bytes()
    journal = grown(tmp_path, 120)
    wanted = content(journal)
    journal.close()
    (tmp_path / NEWEST).write_bytes(early)
    again = opened(tmp_path)
    assert content(again) == wanted
    again.close()
    assert (tmp_path / NEWEST).read_bytes() != early


def test_an_older_release_may_have_compacted(tmp_path: Path) -> None:
    opened(tmp_path).close()
    early = (tmp_path / NEWEST).read_bytes()
    journal = grown(tmp_path, 120)
    job = journal.compaction(Base(journal.last_index, journal.entries[-1][2], b""))
    job.run()
    job.done()
    journal.close()
    assert not (tmp_path / f"{1:020d}.journal").exists()
    (tmp_path / NEWEST).write_bytes(early)
    opened(tmp_path).close()
    assert (tmp_path / NEWEST).read_bytes() != early


def rot(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("at", [0, 6, 7, 8, 20, 30])
def test_rot_in_it_alone_costs_nothing_and_is_mended(tmp_path: Path, at: int) -> None:
    """A whole journal was given up for one bit of it: with one or two voters nothing helped any more."""
    journal = grown(tmp_path, 120)
    wanted, good = content(journal), (tmp_path / NEWEST).read_bytes()
    journal.close()
    rot(tmp_path / NEWEST, at)
    again = opened(tmp_path)
    assert content(again) == wanted
    assert again.mended is not None
    again.close()
    assert (tmp_path / NEWEST).read_bytes() == good
    assert opened(tmp_path).mended is None


def test_scrubbing_tells_of_a_bad_sector_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended there: nobody was told, and no other file was read again."""
    journal = grown(tmp_path, 120)
    monkeypatch.setattr(OsDisk, "read_file", cannot_be_read)
    assert [str(piece.damage.fields["path"]) for piece in journal.scrub() if piece.damage] == [str(tmp_path / NEWEST)]
    assert sum(piece.nbytes for piece in journal.scrub()) > 0, "what else there is, is scrubbed"
    journal.close()


def cannot_be_read(_: OsDisk, path: Path) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


@pytest.mark.parametrize("how", HOWS)
def test_rot_in_it_is_damage_where_the_last_file_is_none(tmp_path: Path, how: str) -> None:
    """Only it could tell whether that had been made."""
    grown(tmp_path, 120).close()
    rot(tmp_path / NEWEST, 20)
    damage(last_file(tmp_path), how)
    if how == "gone":  # the one before it may be the last
        for path in files(tmp_path):
            path.unlink()
    with pytest.raises(CorruptData, match="newest"):
        opened(tmp_path)


@pytest.mark.parametrize("raw", [b"", bytes(32)])
def test_one_that_is_empty_is_damage(tmp_path: Path, raw: bytes) -> None:
    """Of a disk that lost what it said was synced: a file may be gone, too."""
    grown(tmp_path, 120).close()
    (tmp_path / NEWEST).write_bytes(raw)
    last_file(tmp_path).unlink()
    with pytest.raises(CorruptData, match="newest"):
        opened(tmp_path)


def test_another_clusters_is_left_alone(tmp_path: Path) -> None:
    grown(tmp_path, 10).close()
    raw = journal_newest.encode(1, cluster=cluster_hash("another"))
    (tmp_path / NEWEST).write_bytes(raw)
    with pytest.raises(codec.AnotherClusters):
        opened(tmp_path)
    assert (tmp_path / NEWEST).read_bytes() == raw


def test_another_releases_is_refused_and_left_alone(tmp_path: Path) -> None:
    grown(tmp_path, 10).close()
    raw = bytearray((tmp_path / NEWEST).read_bytes())
    raw[6] += 1
    raw[-4:] = google_crc32c.value(bytes(raw[:-4])).to_bytes(4, "little")
    (tmp_path / NEWEST).write_bytes(raw)
    with pytest.raises(IncompatibleVersion, match="newest"):
        opened(tmp_path)
    assert (tmp_path / NEWEST).read_bytes() == raw


def test_scrubbing_reads_it_and_the_next_file_mends_it(tmp_path: Path) -> None:
    journal = grown(tmp_path, 10)
    (tmp_path / NEWEST).write_bytes(b"not this")
    (found,) = [piece.damage for piece in journal.scrub() if piece.damage is not None]
    gone = journal.outlives(found)
    assert not gone()
    journal._files.roll()
    assert gone()
    assert not [piece for piece in journal.scrub() if piece.damage is not None]
    journal.close()


def test_a_first_file_without_a_header_is_of_a_first_start_that_was_cut_short(tmp_path: Path) -> None:
    header = codec.segment_header(first_sequence=1, cluster=CLUSTER, salt=b"s" * 8)
    (tmp_path / f"{1:020d}.journal").write_bytes(header[:9])
    journal = opened(tmp_path)
    assert len(journal) == 1
    journal.close()
    assert read_newest(tmp_path) == 1
