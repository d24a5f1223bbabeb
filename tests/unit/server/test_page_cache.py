"""What the disk tells the kernel of pages that nobody close to the end of a file needs any more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from logboom.types import KIB, MIB
from server.world.disk_os import OsDisk
from server.world.page_cache import FOLIO_BYTES, PageCache

BLOCK = bytes(MIB)


class Advised(NamedTuple):
    name: str
    start: int
    end: int


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[Advised]:
    found: list[Advised] = []
    really = os.posix_fadvise

    def advise(fd: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - what the descriptor is open on
        found.append(Advised(Path(path).name, offset, offset + length))
        really(fd, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return found


def append(disk: OsDisk, path: Path, offset: int, blocks: int) -> None:
    file = disk.open(path, create=True)
    for number in range(blocks):
        file.write([BLOCK], offset=offset + number * MIB)
        file.sync()
    file.close()


def test_the_oldest_of_all_files_goes_first_and_the_newest_stays(tmp_path: Path, given_back: list[Advised]) -> None:
    disk = OsDisk(page_cache_bytes=4 * MIB)
    append(disk, tmp_path / "a", 0, 2)
    append(disk, tmp_path / "b", 0, 2)
    assert not given_back
    append(disk, tmp_path / "a", 2 * MIB, 1)
    append(disk, tmp_path / "c", 0, 2)
    assert given_back == [Advised("a", 0, MIB), Advised("a", 0, 2 * MIB), Advised("b", 0, MIB)]


def test_what_begins_in_a_large_page_of_an_older_range_goes_with_it(tmp_path: Path, given_back: list[Advised]) -> None:
    disk = OsDisk(page_cache_bytes=MIB)
    append(disk, tmp_path / "a", 64 * MIB, 3)
    ends = [64 * MIB + MIB, 64 * MIB + 2 * MIB]
    assert given_back == [Advised("a", end - MIB - FOLIO_BYTES, end) for end in ends]


def test_only_what_is_synced_counts_and_little_is_not_worth_a_call(tmp_path: Path, given_back: list[Advised]) -> None:
    disk = OsDisk(page_cache_bytes=MIB)
    file = disk.open(tmp_path / "a", create=True)
    for number in range(8):
        file.write([BLOCK], offset=number * MIB)
    assert not given_back
    file.sync()
    assert given_back == [Advised("a", 0, 8 * MIB)], "more than is kept: all of it"
    for number in range(7):
        file.write([bytes(128 * KIB)], offset=8 * MIB + number * 128 * KIB)
        file.sync()
    assert len(given_back) == 1
    file.write([bytes(128 * KIB)], offset=9 * MIB - 128 * KIB)
    file.sync()
    file.write([BLOCK], offset=9 * MIB)
    file.sync()
    assert given_back[1:] == [Advised("a", 8 * MIB - FOLIO_BYTES, 9 * MIB)]
    file.close()


def append_to_each(disk: OsDisk, files: list[Path], block: bytes, offset: int) -> None:
    for path in files:
        file = disk.open(path, create=True)
        file.write([block], offset=offset)
        file.sync()
        file.close()


def test_of_many_files_that_have_little_each_the_oldest_go_too(tmp_path: Path, given_back: list[Advised]) -> None:
    disk, block = OsDisk(page_cache_bytes=4 * MIB), bytes(256 * KIB)
    files = [tmp_path / f"{number:02}" for number in range(24)]
    append_to_each(disk, files, block, 0)
    assert given_back == [Advised(path.name, 0, len(block)) for path in files[:8]], "all but the newest 4 MiB"


def test_a_range_is_as_young_as_its_end_and_what_was_given_back_does_not_count_again(
    tmp_path: Path, given_back: list[Advised]
) -> None:
    disk, block = OsDisk(page_cache_bytes=MIB), bytes(256 * KIB)
    grows = disk.open(tmp_path / "grows", create=True)
    grows.write([block], offset=0)
    grows.sync()
    append_to_each(disk, [tmp_path / "other"], block, 0)
    grows.write([block], offset=len(block))
    grows.sync()
    append_to_each(disk, [tmp_path / name for name in "abc"], block, 0)
    assert given_back == [Advised("other", 0, len(block)), Advised("grows", 0, 2 * len(block))]
    grows.write([block], offset=2 * len(block))
    grows.sync()
    assert len(given_back) == 2, "with a, b and c it is no more than is kept"
    grows.close()


def test_as_many_go_as_are_above_what_is_kept(tmp_path: Path, given_back: list[Advised]) -> None:
    disk, block = OsDisk(page_cache_bytes=MIB), bytes(256 * KIB)
    append_to_each(disk, [tmp_path / name for name in "abcd"], block, 0)
    assert not given_back
    append(disk, tmp_path / "large", 0, 1)
    assert [each.name for each in given_back] == ["a", "b", "c", "d"]


def test_what_a_file_has_after_all_of_it_was_given_back_counts_alone(tmp_path: Path, given_back: list[Advised]) -> None:
    disk, block = OsDisk(page_cache_bytes=512 * KIB), bytes(256 * KIB)
    grows = disk.open(tmp_path / "grows", create=True)
    for start, others in ((0, "ab"), (1, "cd")):
        grows.write([block], offset=start * len(block))
        grows.sync()
        append_to_each(disk, [tmp_path / name for name in others], block, 0)
    append_to_each(disk, [tmp_path / "e"], block, 0)
    assert [each.name for each in given_back] == ["grows", "a", "b", "grows", "c"]
    grows.close()


def test_what_a_sync_that_failed_left_is_kept(
    tmp_path: Path, given_back: list[Advised], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    file = OsDisk(page_cache_bytes=MIB).open(tmp_path / "a", create=True)
    monkeypatch.setattr(os, "fdatasync", fails)
    for number in range(4):
        file.write([BLOCK], offset=number * MIB)
        with pytest.raises(OSError, match="Input"):
            file.sync()
    assert not given_back
    file.close()


def test_what_is_written_while_a_sync_lasts_waits_for_the_next(
    tmp_path: Path, given_back: list[Advised], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.fdatasync
    file = OsDisk(page_cache_bytes=MIB).open(tmp_path / "a", create=True)

    def slowly(fd: int) -> None:
        monkeypatch.setattr(os, "fdatasync", really)
        really(fd)
        file.write([BLOCK, BLOCK], offset=2 * MIB)

    monkeypatch.setattr(os, "fdatasync", slowly)
    file.write([BLOCK, BLOCK], offset=0)
    file.sync()
    assert given_back == [Advised("a", 0, 2 * MIB)]
    file.sync()
    assert given_back[1:] == [Advised("a", 0, 4 * MIB)]
    file.close()


def test_a_file_that_is_removed_meanwhile_holds_up_nobody(tmp_path: Path, given_back: list[Advised]) -> None:
    disk = OsDisk(page_cache_bytes=MIB)
    append(disk, tmp_path / "a", 0, 1)
    disk.remove(tmp_path / "a")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the one that is listing counts every time
    append(disk, tmp_path / "b", 0, 2)
    assert given_back == [Advised("b", 0, MIB)]
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_file_that_is_still_written_to_is_not_opened_again(
    tmp_path: Path, given_back: list[Advised], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(page_cache_bytes=MIB)
    file = disk.open(tmp_path / "a", create=True)
    monkeypatch.setattr(os, "open", None)
    for number in range(2):
        file.write([BLOCK], offset=number * MIB)
        file.sync()
    assert given_back == [Advised("a", 0, MIB)]
    file.close()


def test_the_kernel_decides_if_it_is_told_to(tmp_path: Path, given_back: list[Advised]) -> None:
    append(OsDisk(), tmp_path / "a", 0, 8)
    assert not given_back


def test_what_was_given_back_reads_the_same(tmp_path: Path, given_back: list[Advised]) -> None:
    disk = OsDisk(page_cache_bytes=MIB)
    file = disk.open(tmp_path / "a", create=True)
    content = os.urandom(3 * MIB + 17)
    file.write([content[:MIB], content[MIB : 2 * MIB + 5]], offset=0)
    file.sync()
    file.write([content[2 * MIB + 5 :]], offset=2 * MIB + 5)
    file.sync()
    assert given_back
    assert file.read(offset=0, length=len(content)) == content
    file.close()


def test_small_syncs_are_told_of_together_and_the_rest_at_the_end(
    tmp_path: Path, given_back: list[Advised], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a small write waits for no bookkeeping."""
    told: list[tuple[str, int, int]] = []

    def synced(self: PageCache, path: Path, start: int, end: int, *, fd: int) -> None:
        told.append((path.name, start, end))

    monkeypatch.setattr(PageCache, "synced", synced)
    file = OsDisk(page_cache_bytes=MIB).open(tmp_path / "a", create=True)
    for number in range(40):
        file.write_synced([bytes(KIB)], offset=number * KIB)
    assert told == [("a", 0, 16 * KIB), ("a", 16 * KIB, 32 * KIB)]
    file.write([bytes(KIB)], offset=40 * KIB)
    file.close()
    assert told[2:] == [("a", 32 * KIB, 40 * KIB)], "what is not synced is not the oldest"
