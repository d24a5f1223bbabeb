"""What a journal calls durable behind a cut, and what a node that has just started takes for all there is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from chaos.sim.host import Host

Fail = Callable[[str, str], None]


def look_at_cuts(host: Host, journal: Any, on_disk: Callable[[int], bool], fail: Fail) -> None:
    """What takes the place of entries that were cut off is durable once it is synced, and not before."""
    delete, written = journal.deleteEntriesFrom, journal.written
    cut = False

    def deleted(position: int) -> None:
        nonlocal cut
        delete(position)
        cut = True
        if journal.durable_index > journal.last_index:
            fail("DurableTrue", f"{host.name}: {journal.durable_index} is durable, {journal.last_index} the last")

    def was_written(job: Any) -> None:
        nonlocal cut
        written(job)
        look, cut, index = cut, False, journal.durable_index
        if look and index > journal.base_index and (index > journal.last_index or not on_disk(index)):
            fail("DurableTrue", f"{host.name}: entry {index} is durable, and not on its disk")

    journal.deleteEntriesFrom, journal.written = deleted, was_written


def look_at_covering(host: Host, engine: Any, committed: Sequence[int], fail: Fail) -> None:
    """What is to cover all that was shown before a start covers what was committed then.

    ``committed``: the term of each entry, by its index. What is of a later term than its own a node has not shown; whom
    it follows may lead no more, and not know of it.
    """
    covering, terms = engine.covering_commit, tuple(committed)

    def covering_commit() -> int | None:
        found: int | None = covering()
        top = bisect_right(terms, engine.term) - 1
        if found is not None and found < top:
            fail("CoversAll", f"{host.name} goes by commit index {found}; {top} was committed when it started")
        return found

    engine.covering_commit = covering_commit


def carrying(journal: Any) -> int:
    """Full files with batches in them."""
    return sum(each.last_redo > 0 for each in journal._files.sealed)  # noqa: SLF001 - an observer
