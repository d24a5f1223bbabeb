"""What crashes leave beside a log's segments goes at the next start; segments are numbered as long as it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitions.log.segment import segment_name, segment_ordinal
from tests.unit.partitions.batches import chain, commit, flush, open_log


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_halves_of_files_go_at_a_start(tmp_path: Path) -> None:
    """A node that was killed while it wrote an index kept the half for ever, long after its segment had gone."""
    batches = chain(80)
    log = open_log(tmp_path)
    for batch in batches:
        log.append(batch)
        flush(log)
    commit(log, batches)
    log.close()
    wanted = names(tmp_path)
    index = min(path for path in tmp_path.glob("*.idx"))
    (tmp_path / f"{index.name}.new").write_bytes(index.read_bytes()[:100])
    index.unlink()  # it is made anew, through a file of that very name
    (tmp_path / "00000000000000000001-00009999.idx.new").write_bytes(b"half")
    (tmp_path / "places.new").write_bytes(b"half")
    again = open_log(tmp_path)
    commit(again, batches)
    again.close()
    assert names(tmp_path) == wanted


@pytest.mark.parametrize("ordinal", [1, 99_999_999, 100_000_000, (1 << 32) - 1])
def test_the_number_of_a_segment_is_in_its_name(ordinal: int) -> None:
    """The nine digits of the hundred millionth were read as eight: the next start took its file for a misplaced one."""
    assert segment_ordinal(segment_name(1 << 40, ordinal)) == ordinal


@pytest.mark.parametrize("name", ["{}.save.log", "notes.log", "{}-copy.log", "\u00b2.log"])
def test_a_copy_beside_a_segment_is_none(tmp_path: Path, name: str) -> None:
    """It was written to in the place of the segment that it was a copy of, or the start ended with a stack."""
    batches = chain(8)
    log = open_log(tmp_path)
    for batch in batches[:4]:
        log.append(batch)
        flush(log)
    log.close()
    segment = max(tmp_path.glob("*.log"))
    copy = tmp_path / name.format(segment.stem)
    copy.write_bytes(segment.read_bytes())
    before = copy.read_bytes()
    log = open_log(tmp_path)
    for batch in batches[4:]:
        log.append(batch)
        flush(log)
    log.close()
    assert copy.read_bytes() == before
    copy.unlink()
    again = open_log(tmp_path)
    commit(again, batches)
    again.close()
