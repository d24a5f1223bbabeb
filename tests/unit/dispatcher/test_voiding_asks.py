"""Nothing is void before every member has said that it does not have it."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.voiding import Voiding
from logboom.errors import InvalidRequest, Unavailable
from logboom.types import PartitionId
from raftlog.links.lacks import Lack
from raftlog.repair.seals import Seals

P, DIGEST = PartitionId(3), b"d" * 32
DEADLINE = 2.0


class Members:
    """n1 leads and lacks the batch; of the others ``said`` tells what they say each time they are asked."""

    def __init__(self, *said: dict[str, Lack | None]) -> None:
        self.said = list(said)
        self.sealed = list[bytes]()
        self.asked = list[bool]()
        """Whether for a void, each time."""
        self.held = False
        ticks = itertools.count()
        repair = SimpleNamespace(
            own=lambda *_, **__: Lack.ABSENT,
            ask_all=lambda _, *, void: self.asked.append(void),
            said=lambda *_: self.said.pop(0) if len(self.said) > 1 else self.said[0],
            seals=Seals(lambda digest, on: self.sealed.append(digest) if on else None),
        )
        raft = SimpleNamespace(
            admits=True, engine=SimpleNamespace(term=7), repair=repair, propose_control=lambda _: None
        )
        pipeline = SimpleNamespace(
            raft=raft,
            node_id="n1",
            clock=SimpleNamespace(monotonic=lambda: 0.1 * next(ticks)),
            payloads=SimpleNamespace(holds=lambda _: self.held),
        )
        self.voiding: Any = Voiding(pipeline)  # type: ignore[arg-type]
        hole = SimpleNamespace(first_index=4, last_index=5, digest=DIGEST, global_index=9)
        self.voiding.declaring._known = lambda *_: None
        self.voiding.declaring._hole_at = lambda *_: (SimpleNamespace(last_index=5, digest=DIGEST), hole)

        async def carried_out(*_: object) -> None: ...

        self.voiding.declaring._carried_out = carried_out

    async def void(self) -> Any:
        return await self.voiding.void(P, 4, yes=True, deadline=DEADLINE)


@pytest.mark.parametrize("silent", [None, Lack.UNKNOWN])
async def test_one_that_says_nothing_is_waited_for_and_nothing_is_sealed(silent: Lack | None) -> None:
    """He may have the only copy, however many say that they do not."""
    members = Members({"n2": Lack.ABSENT, "n3": Lack.ABSENT, "n4": Lack.ABSENT, "n5": silent})
    with pytest.raises(Unavailable, match="n5 must say first"):
        await members.void()
    assert members.sealed == []


async def test_once_he_has_spoken_it_goes_on() -> None:
    members = Members({"n2": Lack.ABSENT, "n3": None}, {"n2": Lack.ABSENT, "n3": Lack.DAMAGED})
    await members.void()
    assert members.sealed == [DIGEST]
    assert not any(not void for void in members.asked), "it would take off what was sealed"


@pytest.mark.parametrize("ends", ["turned up", "silence", "set", "left"])
async def test_where_it_comes_to_no_void_whoever_has_sealed_it_is_told_to_take_it_again(ends: str) -> None:
    """It had turned up, so that nobody asked for it any more: who had sealed it was lost until the term changed."""
    said = {"n2": Lack.ABSENT, "n3": Lack.COMPACTED if ends == "set" else None}
    members = Members(said)
    members.held = ends == "turned up"
    asking = asyncio.ensure_future(members.void())
    await asyncio.sleep(0)
    if ends == "left":
        asking.cancel()
    with pytest.raises((Unavailable, InvalidRequest, asyncio.CancelledError)):
        await asking
    assert (members.asked[0], members.asked[-1], members.sealed) == (True, False, [])


async def test_while_another_one_asks_for_the_void_seals_stay() -> None:
    members = Members({"n2": Lack.ABSENT, "n3": None})
    with members.voiding._pipeline.raft.repair.seals.asking(DIGEST):
        with pytest.raises(Unavailable):
            await members.void()
        assert members.asked
        assert all(members.asked)
