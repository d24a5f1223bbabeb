"""What crashes leave beside a journal's files: it goes with them, or at the next start. And how large a file may be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raftlog.journal.journal_codec import SEGMENT_HEADER
from server.world.disk_os import OsDisk, OsFile
from tests.unit.raftlog.base_world import compact, files, grown, opened


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def torn(directory: Path) -> Path:
    """The last file ends in a write that a crash has cut."""
    path = directory / files(directory)[-1]
    raw = path.read_bytes()
    end = len(raw.rstrip(b"\0"))
    path.write_bytes(raw[: end + 8] + b"half of a record" + raw[end + 24 :])
    return path.with_suffix(".broken")


def test_what_a_torn_tail_held_goes_with_its_file(tmp_path: Path) -> None:
    """It stayed for ever: one more for each crash of a node that runs for years."""
    grown(tmp_path, 20).close()
    aside = torn(tmp_path)
    journal = opened(tmp_path)
    assert aside.exists()
    for index in range(journal.last_index + 1, 120):
        journal.add(b"\x10" + b"r" * 96, index, 1)
        journal.flush()
    compact(journal, 60)
    assert aside.with_suffix(".journal").name not in files(tmp_path)
    assert not aside.exists()
    journal.close()


@pytest.mark.parametrize(("number", "starts"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_where_there_is_no_room_for_it_the_journal_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, number: int, starts: bool
) -> None:
    """A node that was killed while its disk was full did not start again, for a copy that only people look at."""
    journal = grown(tmp_path, 20)
    journal.close()
    aside, replace = torn(tmp_path), OsDisk.replace_file

    def full(disk: OsDisk, path: Path, *content: bytes) -> None:
        if path != aside:
            return replace(disk, path, *content)
        path.with_name(f"{path.name}.new").write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(OsDisk, "replace_file", full)
    if not starts:
        with pytest.raises(OSError, match=os.strerror(number)):
            opened(tmp_path)
        return
    again = opened(tmp_path)
    assert again.entries == journal.entries
    assert not any("broken" in name for name in names(tmp_path))
    again.add(b"\x10", again.last_index + 1, 1)
    again.flush()
    again.close()
    last = opened(tmp_path)
    assert last.entries == again.entries
    last.close()


def test_what_means_nothing_goes_at_a_start(tmp_path: Path) -> None:
    """A node that was killed while it wrote a file anew, 16 MiB of it by default, kept the half for ever."""
    journal = grown(tmp_path, 100)
    compact(journal, 60)
    journal.close()
    wanted, first, last = names(tmp_path), files(tmp_path)[0], files(tmp_path)[-1]
    for name in (f"{first}.new", "00000000000000000001.journal.new", "00000000000000000001.broken",
                 f"{last}.new".replace("journal", "broken")):  # fmt: skip
        (tmp_path / name).write_bytes(b"left")
    kept = (tmp_path / last).with_suffix(".broken")
    kept.write_bytes(b"of a file that is there: for whoever wants to know")
    again = opened(tmp_path)
    assert again.entries == journal.entries
    assert names(tmp_path) == wanted | {kept.name}
    again.close()


def test_all_of_a_file_is_read_however_large_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind two gibibytes nothing was: with `raft.journal_segment_bytes` above that what was synced there was gone."""
    grown(tmp_path, 1).close()
    large, read_to, read = 3 << 30, 0, OsFile.read

    def partly(file: OsFile, *, offset: int, length: int) -> bytes:
        nonlocal read_to
        read_to = max(read_to, offset + length)
        return read(file, offset=offset, length=min(length, 1 << 16))

    monkeypatch.setattr(OsFile, "size", lambda _: large)
    monkeypatch.setattr(OsFile, "read", partly)
    opened(tmp_path).close()
    assert read_to >= large > SEGMENT_HEADER.size


@pytest.mark.parametrize("name", ["{}.save.journal", "notes.journal", "\u00b2.journal"])
def test_a_copy_beside_a_file_is_none(tmp_path: Path, name: str) -> None:
    """The journal passed for damaged: its node forgot its votes, and where it is the only voter nothing helped."""
    journal = grown(tmp_path, 100)
    first, last = files(tmp_path)[0], files(tmp_path)[-1]
    journal.close()
    for each in (first, last):
        (tmp_path / name.format(Path(each).stem)).write_bytes((tmp_path / each).read_bytes())
    before = names(tmp_path)
    again = opened(tmp_path)
    assert (again.entries, again.term) == (journal.entries, journal.term)
    compact(again, 60)
    again.close()
    assert before - names(tmp_path) == {
        each for each in before if each[:20].isdecimal() and each[20:] == ".journal"
    } - {*files(tmp_path)}
