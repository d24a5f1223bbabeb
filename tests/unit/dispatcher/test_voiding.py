"""A void that is asked for: what has changed while the members were asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.voiding import Voiding
from logboom.errors import NotLeader
from logboom.types import PartitionId
from raftlog.links.lacks import Lack

P, DIGEST = PartitionId(3), b"d" * 32


async def test_who_may_not_propose_any_more_once_all_have_answered_seals_nothing() -> None:
    """Sealed and not proposed, the batch was refused by all when somebody brought it: its partition stayed lost."""
    sealed: list[bytes] = []
    raft = SimpleNamespace(
        admits=True,
        engine=SimpleNamespace(term=7),
        repair=SimpleNamespace(seal=lambda digest, **_: sealed.append(digest)),
        propose_control=lambda _: pytest.fail("proposed"),
    )
    voiding: Any = Voiding(SimpleNamespace(raft=raft))  # type: ignore[arg-type]
    hole = SimpleNamespace(first_index=4, last_index=5, digest=DIGEST, global_index=9)
    voiding._known = lambda *_: None
    voiding._hole_at = lambda *_: (None, hole)

    async def ask(*_: object, **__: object) -> dict[str, Lack]:
        raft.admits = False  # of the same term still: another lead is being handed over, or another batch is damaged
        return {"n1": Lack.ABSENT, "n2": Lack.ABSENT}

    voiding._ask = ask
    with pytest.raises(NotLeader):
        await voiding.void(P, 4, yes=True, deadline=0.0)
    assert sealed == []
