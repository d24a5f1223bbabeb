"""A node of the same name and other settings, as of a restore that is tried elsewhere, reaches one that is empty."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from logboom.errors import WrongNode
from logboom.types import NodeId
from raftlog.links.directories import Directories
from raftlog.links.hello import Claim, Identity

N1, N2 = NodeId("n1"), NodeId("n2")
VOTERS = (N1, N2, NodeId("n3"))
IDENTITY = Identity(N1, "c", b"same", remembers=(1, 2, 4))


@pytest.mark.parametrize("lineage", ["", "ab" * 16])
@pytest.mark.parametrize("strange", [{"settings": b"others"}, {"remembers": [1, 2, 3]}])
def test_nobody_begins_anew_for_what_strangers_say(strange: dict[str, Any], lineage: str) -> None:
    """Each node of a fresh cluster that one of three voters had reached did: then there was nobody left to lead."""
    asked: list[str] = []
    known = Directories(N1, bytes(16), {}, lambda *_: None)
    known.forget = lambda lineage: bool(asked.append(lineage) or True)
    said = {"settings": b"same", "remembers": [1, 2, 4], "lineage": lineage, "met": [[N1, bytes([1]) * 16]]}
    for header, begins in ((said | strange, False), (said, True)):
        with suppress(WrongNode):
            known.find_out(N2, header, Claim(3, 20, VOTERS), Claim(0, 1, VOTERS), IDENTITY)
        assert asked == [lineage] * begins
