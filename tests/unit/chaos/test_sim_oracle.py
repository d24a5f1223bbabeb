"""What the oracle compares with what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.oracle import Oracle
from raftlog.entries.configuration import NOBODY

FIRST: Any = SimpleNamespace(global_index=74, raft_index=79, states_digest=b"same", parent=b"at 79")
NEXT: Any = SimpleNamespace(global_index=74, raft_index=80, states_digest=b"same", parent=b"at 80")
"""Two cuts with nothing between them: a node that missed the one takes the other."""


@pytest.mark.parametrize("theirs", [FIRST, NEXT], ids=["the same", "the next"])
def test_sets_of_one_cut_are_compared(theirs: Any) -> None:
    wrong = list[str]()
    oracle = Oracle([], NOBODY, lambda invariant, _: wrong.append(invariant))
    oracle.check_sets("n1", [FIRST])
    oracle.check_sets("n2", [theirs])
    assert not wrong
    for what in ("states_digest", "parent"):
        oracle.check_sets("n3", [SimpleNamespace(**vars(theirs) | {what: b"other"})])  # type: ignore[list-item]
    assert wrong == ["SnapshotEquivalence"] * 2
