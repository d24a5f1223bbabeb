"""Files of a log that is closed while somebody reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from partitions.log.files import OpenFiles


def test_what_somebody_reads_is_closed_when_he_is_done() -> None:
    """Else he reads whatever has been opened under that descriptor since; and what he opened then stayed open."""
    closed: list[int] = []

    def open_file(segment: int) -> Any:
        return SimpleNamespace(close=lambda: closed.append(segment))

    files = OpenFiles(open_file, files_max=3)
    with files.use(1):
        with files.use(2):
            pass
        files.close()
        files.close()
        assert closed == [2]
    assert closed == [2, 1]
    with files.use(3):
        assert closed == [2, 1]
    assert closed == [2, 1, 3]
