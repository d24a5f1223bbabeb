"""Files of a log that is closed while somebody reads them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from partitions.log.files import OpenFiles, Shelf


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


class Segments:
    """Files of some logs that share a shelf, and which of them are open."""

    def __init__(self, shelf: Shelf, logs: int) -> None:
        self.opened: list[str] = []
        self.logs = {
            name: OpenFiles(partial(self.open_file, name), files_max=2, shelf=shelf) for name in "abcdefgh"[:logs]
        }

    def open_file(self, log: str, segment: int) -> Any:
        self.opened.append(name := f"{log}{segment}")
        return SimpleNamespace(close=lambda: self.opened.remove(name))

    def read(self, *names: str) -> None:
        for log, segment in names:
            with self.logs[log].use(int(segment)):
                pass


def test_many_logs_keep_no_more_open_than_one_shelf_has_room_for() -> None:
    """Found by reading: each kept one, of however many that somebody had read once."""
    segments = Segments(Shelf(3), 4)
    segments.read("a1", "b1", "c1", "a1", "d1")
    assert segments.opened == ["a1", "c1", "d1"], "the one that was read least recently goes"
    with segments.logs["c"].use(1), segments.logs["a"].use(1):
        segments.read("b1", "b2")
        assert segments.opened == ["a1", "c1", "b2"], "nobody's that is in use"
        segments.read("d1")
        assert segments.opened == ["a1", "c1", "d1"]
    segments.logs["a"].close()
    segments.logs["c"].forget(1)
    segments.read("b1", "b2", "d1")
    assert segments.opened == ["d1", "b1", "b2"], "what is closed has given its room back"
    segments.read("d1", "c1")
    assert segments.opened == ["d1", "b2", "c1"], "of one log the older one"


def test_where_the_process_has_none_to_spare_what_is_opened_does_not_stay() -> None:
    few = False
    segments = Segments(Shelf(3, may_keep=lambda: not few), 4)
    segments.read("a1", "b1")
    few = True
    segments.read("a1")
    assert segments.opened == ["a1", "b1"], "nothing was opened"
    with segments.logs["a"].use(1):
        segments.read("c1")
        assert segments.opened == ["a1"], "nobody's that is in use"
    segments.read("d1", "c1")
    assert segments.opened == []


def test_as_many_are_closed_as_the_process_lacks() -> None:
    """Others have opened meanwhile what was kept for them: one for one would never give it back."""
    left = 1
    segments = Segments(Shelf(8, may_keep=lambda: left - len(segments.opened) >= -2), 6)
    segments.read("a1", "b1", "c1")
    assert segments.opened == ["a1", "b1", "c1"]
    left = -1
    segments.read("d1")
    assert segments.opened == ["d1"]
