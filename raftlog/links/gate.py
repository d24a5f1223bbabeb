"""The gate: no routing entry enters this node's journal before its payload is here (I2).

A leader may always send fewer entries, so cutting an ``append_entries`` yields a legal Raft
message. What was cut is asked for, and the leader sends it again, payload first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftlog.engine.messages import Message
from raftlog.entries.entry import Route, unpack_routes

Holds = Callable[[Route, int, int], bool]
"""Of what an entry routes, its Raft index, and the term of the leader that sends it."""


class Passed(NamedTuple):
    """What may go on to the engine, and the first Raft index that had to stay outside (None: nothing)."""

    message: Message
    missing_from: int | None


def pass_through(message: Message, holds: Holds, *, above: int = 0) -> Passed:
    """Cut ``append_entries`` at the first entry of which a payload is not held.

    Nothing is asked about entries up to ``above``: the journal has them behind it.
    """
    entries = message.get("entries")
    if not entries:
        return Passed(message, None)
    term = message["term"]
    for position, (command, index, _) in enumerate(entries):
        if index > above and not all(holds(route, index, term) for route in unpack_routes(command)):
            # With nothing left it still asks whether the entry before is held, and keeps us from campaigning.
            return Passed(dict(message, entries=entries[:position]), index)
    return Passed(message, None)


def agrees(message: Message, index: int, term_before: int | None) -> bool:
    """Of a whole message that was cut before the entry at ``index``: the journals are one up to there.

    They are if the entry before is of ``term_before`` here and in the leader's; None: there is none here.
    """
    entries = message["entries"]
    position = index - entries[0][1]
    return bool(term_before == (entries[position - 1][2] if position else message["prevLogTerm"]))


def foretold(message: Message, index: int) -> list[Route]:
    """Of a whole message that was cut before the entry at ``index``: what it routes there."""
    entries = message["entries"]
    return unpack_routes(entries[index - entries[0][1]][0])
