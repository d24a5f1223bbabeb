"""What decides which records take effect again is the same on all nodes, and stays so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import ConfigError, WrongNode
from logboom.settings import ApplySettings
from logboom.types import NodeId
from raftlog.links.hello import Identity, check_remembers
from server.directory.remembered import NAMES, REMEMBERED, check_remembered, remembered

WHERE = Path("/data")


def disk() -> SimDisk:
    found = SimDisk(random.Random(0))
    found.make_directory(WHERE)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_cannot_change_once_anything_was_written(name: str) -> None:
    """Found by review: with another limit of ranges at one node its state differed from the others, for good."""
    there, changed = disk(), ApplySettings(**{name: 7})  # type: ignore[arg-type]
    check_remembered(there, WHERE, ApplySettings(), used=False)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"apply.{name}: 7, and /data was begun with") as caught:
            check_remembered(there, WHERE, changed, used=True)
        assert caught.value.path == f"apply.{name}"
    check_remembered(there, WHERE, ApplySettings(linger_ms=1), used=True)
    check_remembered(there, WHERE, changed, used=False)  # nothing is in there yet
    with pytest.raises(ConfigError):
        check_remembered(there, WHERE, ApplySettings(), used=True)


def test_a_directory_that_does_not_say_goes_on_with_what_is_set() -> None:
    for left in (None, b"", b"{}\n", b'{"checksum":"00000000"}\n'):
        there, own = disk(), ApplySettings(producers_max=9)
        if left is not None:
            there.replace_file(WHERE / REMEMBERED, left)
        check_remembered(there, WHERE, own, used=True)
        with pytest.raises(ConfigError):
            check_remembered(there, WHERE, ApplySettings(), used=True)


@pytest.mark.parametrize("theirs", [[65_536, 4, 16], [1], "x", {}, 5])
def test_nodes_that_remember_otherwise_do_not_talk(theirs: object) -> None:
    mine = Identity(NodeId("n1"), "c", b"", remembers=remembered(ApplySettings()))
    with pytest.raises(WrongNode, match="n2 remembers other numbers"):
        check_remembers(mine, NodeId("n2"), {"remembers": theirs})


def test_nodes_of_an_earlier_release_do_not_say() -> None:
    mine = Identity(NodeId("n1"), "c", b"", remembers=remembered(ApplySettings()))
    for header in ({}, {"remembers": [65_536, 1_024, 16]}):
        check_remembers(mine, NodeId("n2"), header)
    check_remembers(Identity(NodeId("n1"), "c", b""), NodeId("n2"), {"remembers": [1, 2, 3]})
