"""What all nodes have agreed to know: in the log, in the parent state, and to a release that does not know it."""

from __future__ import annotations

from typing import Any

import pytest

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import KV_TXN, GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from raftlog.entries.agreed import agreed_in, agreeing, decode_agreed, encode_agreed
from raftlog.entries.entry import Route, pack_control, unpack_control
from raftlog.entries.parent_state import BEFORE_AGREED, BEFORE_CHOSEN, BEFORE_VOIDS, VERSION, ParentState
from raftlog.entries.voids import Void
from tests.unit.raftlog.cluster import Cluster


def state(*, agreed: bool, void: bool = False) -> ParentState:
    found = ParentState()
    found.apply(2, [Route(PartitionId(0), Term(1), PartitionLogIndex(5), bytes(range(16)))])
    if void:
        found.void(Void(PartitionId(0), PartitionLogIndex(1), PartitionLogIndex(5), bytes(16), GlobalLogIndex(1), 3))
    found.control(4, 1, agreeing([KV_TXN]) if agreed else {})
    return found


@pytest.mark.parametrize("void", [False, True])
@pytest.mark.parametrize("agreed", [False, True])
def test_it_is_a_part_of_the_parents_state(agreed: bool, void: bool) -> None:
    """Until it is used a release of before reads what is written."""
    found = state(agreed=agreed, void=void)
    raw = found.encode()
    assert raw[0] == (BEFORE_CHOSEN if agreed else BEFORE_AGREED if void else BEFORE_VOIDS)
    assert ParentState.decode(raw) == found == found.copy()
    assert found.agreed == ({KV_TXN} if agreed else frozenset())
    for length in range(1, len(raw)):
        with pytest.raises(CorruptData):
            ParentState.decode(raw[:length])


def test_saying_it_again_says_nothing() -> None:
    found = state(agreed=True)
    found.control(5, 1, agreeing([KV_TXN]))
    assert found.agreed == {KV_TXN}


def test_a_release_that_does_not_know_it_ends() -> None:
    """It would apply what follows as it understands it, and not as the others do."""
    said = unpack_control(pack_control(agreeing(["later"])))
    assert said is not None
    with pytest.raises(IncompatibleVersion, match="later, which this release does not know: upgrade it"):
        ParentState().control(2, 1, said)
    raw = state(agreed=True).encode()
    with pytest.raises(IncompatibleVersion, match="kw_txn"):
        ParentState.decode(raw.replace(b"kv_txn", b"kw_txn"))
    with pytest.raises(IncompatibleVersion):
        ParentState.decode(bytes((VERSION + 1,)) + raw[1:])


@pytest.mark.parametrize("names", [None, [], "kv_txn", [7], [b"kv_txn"]])
def test_an_entry_that_is_none(names: Any) -> None:
    with pytest.raises(CorruptData):
        agreed_in({"do": "agree", "features": names})


def test_bytes_that_are_none() -> None:
    raw = encode_agreed(frozenset((KV_TXN,)))
    assert decode_agreed(raw + b"more") == ({KV_TXN}, len(raw))
    for bad in (
        b"",
        b"\0",
        b"\1",
        b"\1\0",
        raw[:-1],
        b"\1\x06kv_t\xffn",
        b"\2" + raw[1:] + raw[1:],
        b"\1\x41" + b"x" * 65,
    ):
        with pytest.raises(CorruptData):
            decode_agreed(bad)


def test_of_who_was_here_is_remembered_what_it_knew_until_the_process_ends() -> None:
    cluster = Cluster(5)
    one, _, away = cluster.ids

    async def story() -> None:
        for each in cluster.ids:
            await cluster.start(each)
        await cluster.sleep(2.0)
        links = cluster.nodes[one].raft.links
        cluster.crash(away, power=False)
        await cluster.sleep(2.0)
        assert not links.connected(away)
        assert links.knew(away, KV_TXN)
        assert not links.knew(away, "of another release")
        cluster.crash(one, power=False)
        await cluster.start(one)
        await cluster.sleep(2.0)
        assert not cluster.nodes[one].raft.links.knew(away, KV_TXN)
        await cluster.start(away)
        await cluster.sleep(2.0)
        assert cluster.nodes[one].raft.links.knew(away, KV_TXN)

    cluster.tell(story())
    cluster.check()
