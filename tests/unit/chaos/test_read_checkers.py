"""Of reads, views, requests of several commands and barriers: each way to be wrong is noticed, what is right is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chaos import readings
from chaos.checkers import freshness, log_lines, together, watermarks
from chaos.checkers.together import View
from chaos.checkers.watermarks import Kept, Sample
from chaos.history import History, Operation


def tally(start: int, end: int | None, outcome: str = "ok", *, at: int = 0) -> Operation:
    return Operation(0, "tally", "t", 1, start, end, outcome, global_index=at)


def look(kind: str, result: int, start: int, end: int, *, bound: int = 0, process: int = 1) -> Operation:
    return Operation(process, "look", "t", [kind, bound], start, end, "ok", result)


HISTORY = [tally(0, 10, at=5), tally(20, 30, at=6), tally(40, None, "info"), tally(50, 55, "fail")]


class TestReads:
    @pytest.mark.parametrize("result", [2, 3])
    def test_right(self, result: int) -> None:
        assert freshness.reads([*HISTORY, look("linearizable", result, 60, 61)]) == []

    @pytest.mark.parametrize(
        "wrong",
        [
            look("linearizable", 1, 60, 61),
            look("linearizable", 4, 60, 61),
            look("linearizable", 2, 15, 16),  # before anybody asked for it
            look("bounded", 1, 60, 61, bound=10),
            look("at_least", 0, 60, 61, bound=5),
            look("session", 0, 60, 61, process=0),
            look("stale", 4, 60, 61),
        ],
    )
    def test_too_old_or_from_nowhere(self, wrong: Operation) -> None:
        assert len(freshness.reads([*HISTORY, wrong])) == 1

    @pytest.mark.parametrize(
        "right",
        [
            look("bounded", 1, 60, 61, bound=35),
            look("at_least", 1, 60, 61, bound=5),
            look("session", 0, 60, 61),
            look("stale", 0, 60, 61),
        ],
    )
    def test_as_old_as_it_may_be(self, right: Operation) -> None:
        assert freshness.reads([*HISTORY, right]) == []

    def test_a_session_never_goes_back(self) -> None:
        shown = [look("stale", 2, 60, 61), look("session", 1, 62, 63)]
        assert "showed 1" in freshness.reads([*HISTORY, *shown])[0]
        assert freshness.reads([*HISTORY, shown[0], look("session", 1, 60, 63)]) == []  # at the same time

    def test_a_linearizable_read_shows_what_anybody_was_shown_before(self) -> None:
        """Also of what nobody has been told of yet."""
        shown = [look("linearizable", 3, 60, 61), look("linearizable", 2, 62, 63, process=2)]
        assert "showed 2; 3 to 3" in freshness.reads([*HISTORY, *shown])[0]
        assert "showed 2; 3 to 3" in freshness.reads([*HISTORY, look("stale", 3, 60, 61), shown[1]])[0]
        assert freshness.reads([*HISTORY, shown[0], look("linearizable", 2, 60, 63, process=2)]) == []
        assert freshness.reads([*HISTORY, shown[0], look("stale", 2, 62, 63, process=2)]) == []

    def test_the_end(self) -> None:
        assert freshness.tallies(HISTORY, {(0, "t"): 2}) == freshness.tallies(HISTORY, {(0, "t"): 3}) == []
        assert freshness.tallies(HISTORY, {(0, "t"): 1}) != []
        assert freshness.tallies(HISTORY, {(0, "t"): 4}) != []
        assert freshness.tallies(HISTORY, {(1, "t"): 2}) != []


def request(outcome: str = "ok", **more: Any) -> list[Operation]:
    return [Operation(0, "add", key, 1, 0, 10, outcome, partition=p, **more) for p, key in ((1, "a"), (2, "b"))]


class TestTogether:
    def test_whole(self) -> None:
        assert together.whole([request()], {(1, "a"): 1, (2, "b"): 1}) == together.whole([request("info")], {}) == []
        assert "half" in together.whole([request("info")], {(1, "a"): 1})[0]
        assert "half" in together.whole([request()], {(1, "a"): 1, (1, "b"): 1})[0]

    def test_views(self) -> None:
        both = frozenset({(1, "a"), (2, "b")})
        partitions = frozenset({1, 2})
        assert together.views([request(global_index=7)], [View(20, 9, partitions, both)]) == []
        assert together.views([request("info")], [View(20, 9, partitions, frozenset())]) == []
        assert together.views([request()], [View(20, 9, frozenset({1}), frozenset({(1, "a")}))]) == []
        assert "half" in together.views([request("info")], [View(20, 9, partitions, frozenset({(1, "a")}))])[0]
        assert "lacks" in together.views([request(global_index=10)], [View(20, 9, partitions, frozenset())])[0]
        assert "lacks" in together.views([request(global_index=7)], [View(5, 9, partitions, frozenset())])[0]
        assert together.views([request(global_index=10)], [View(5, 9, partitions, frozenset())]) == []


async def test_a_view_in_which_nothing_is_says_something_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        """A client to whom every partition is empty, and whose program ends when it looks again."""

        asked = False

        async def scan_view(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            if self.asked:
                raise asyncio.CancelledError
            self.asked = True
            for each in list[Any]():
                yield each

    seen: list[View] = []
    client: Any = Empty()
    monkeypatch.setattr(readings, "VIEW_PAUSE_S", 0.0)
    with pytest.raises(asyncio.CancelledError):
        await readings.watch_views(client, History(lambda: 20), seen, 3, random.Random(1))
    assert [each.keys for each in seen] == [frozenset()]
    acknowledged = [Operation(0, "add", "a", 1, 0, 10, "ok", partition=p) for p in seen[0].partitions]
    assert "lacks" in together.views([acknowledged], seen)[0]


def sample(node: str, applied: int, asked: int, partition: int = 1) -> Sample:
    return Sample(node, partition, 9, 9, 9, applied, asked)


class TestBarriers:
    def kept(self, scope: str, *nodes: str) -> Kept:
        return Kept(scope, 50, 100, nodes, {1: 50})

    def test_right(self) -> None:
        samples = [sample("n1", 40, 99), sample("n1", 50, 100), sample("n2", 60, 101), sample("n3", 40, 102)]
        assert watermarks.barriers([self.kept("all", "n1", "n2")], samples) == []
        assert watermarks.barriers([self.kept("quorum", "n1", "n2", "n3")], samples) == []

    def test_one_that_has_not_come_so_far(self) -> None:
        samples = [sample("n1", 50, 100), sample("n2", 49, 101)]
        assert "n2" in watermarks.barriers([self.kept("all", "n1", "n2")], samples)[0]
        assert watermarks.barriers([self.kept("node", "n1")], samples) == []

    def test_a_majority_that_has_not(self) -> None:
        samples = [sample("n1", 50, 100), sample("n2", 49, 101), sample("n3", 49, 102)]
        assert "n3" in watermarks.barriers([self.kept("quorum", "n1", "n2", "n3")], samples)[0]

    def test_what_it_shows_itself(self) -> None:
        assert "was at 49" in watermarks.barriers([Kept("node", 50, 100, ("n1",), {1: 49})], [])[0]


def test_errors_and_stacks_in_a_log_are_told_once_each() -> None:
    well = ['{"event": "role", "level": "info"}', '{"event": "link_silent", "level": "warning"}', ""]
    assert log_lines.unexpected("n1", well) == []
    bad = ['{"event": "unhandled", "level": "error"}'] * 2 + ["Traceback (most recent call last):", "[1]"]
    told = log_lines.unexpected("n1", [*well, *bad])
    assert [each.split(":")[1] for each in told] == [" 2 times unhandled", " 2 times no line of its own"]
