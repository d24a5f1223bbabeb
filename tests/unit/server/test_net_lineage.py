"""Nodes of two histories of one cluster (docs/decisions/0030-lineage.md): whom links let in, and how often they try."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.errors import LineageMismatch, Unavailable, WrongNode
from logboom.settings import Member
from logboom.types import NodeId
from logboom.wire import Kind, encode
from ports.net import Connection
from raftlog.entries.configuration import Configuration
from raftlog.links.directories import Directories, Met
from raftlog.links.hello import Identity, check_lineage
from server.world.clock_os import OsClock
from tests.unit.server.net_world import Raw, until
from tests.unit.server.peers_world import HELLO, Dials, Events, links_of

THIS, OTHER = "ab" * 16, "cd" * 16
UNSAID = object()


def meets(mine: str | None, theirs: object) -> bool:
    header = {} if theirs is UNSAID else {"lineage": theirs}
    try:
        check_lineage(Identity(NodeId("n1"), "c1", b"", mine), NodeId("n2"), header)
    except LineageMismatch:
        return False
    return True


@pytest.mark.parametrize(("a", "b"), [*itertools.product(("", THIS, OTHER), repeat=2), (None, ""), (None, THIS)])
def test_both_sides_see_it_alike(a: str | None, b: str | None) -> None:
    assert meets(a, b) == meets(b, a) == (a == b or a is None)
    if b == "":
        assert meets(a, UNSAID) == meets(a, "")  # an older release is in the first history


class Port:
    """The peer port of n9, which joins, or is of a history."""

    def __init__(self, lineage: str | None, adopt: Callable[[str], None] | None = None) -> None:
        self.events, self.taken = Events(), list[str]()
        self.links = links_of("n9", self.events, lineage=lineage, adopt=adopt or self.taken.append)

    async def hears(self, address: str, lineage: object, node: str = "n1") -> Raw:
        raw = await Raw().connect(address)
        said = {} if lineage is UNSAID else {"lineage": lineage}
        await raw.say(*encode(Kind.PEER_HELLO, HELLO | {"node": node} | said))
        return raw


@pytest.mark.parametrize("theirs", [UNSAID, "", THIS])
async def test_who_joins_takes_the_first_it_is_let_in_to_and_no_other(theirs: object) -> None:
    port = Port(None)
    address = await port.links.start("127.0.0.1:0")
    right = await port.hears(address, theirs)
    await until(lambda: port.events.ups == ["n1"])
    assert port.taken == ["" if theirs is UNSAID else theirs]
    wrong = await port.hears(address, OTHER, "n2")
    await wrong.ended()
    again = await port.hears(address, theirs, "n2")
    await until(lambda: port.events.ups == ["n1", "n2"])
    assert len(port.taken) == 1
    for each in (right, wrong, again):
        each.close()
    await port.links.close()


async def test_who_cannot_keep_a_lineage_has_no_link() -> None:
    def full(_: str) -> None:
        raise Unavailable("the disk is full")

    port = Port(None, full)
    address = await port.links.start("127.0.0.1:0")
    raw = await port.hears(address, THIS)
    await raw.ended()
    assert (port.events.ups, port.links.identity.lineage) == ([], None)
    raw.close()
    await port.links.close()


async def test_two_that_wait_to_be_taken_in_have_no_link() -> None:
    port = Port(None)
    address = await port.links.start("127.0.0.1:0")
    raw = await port.hears(address, None)
    await raw.ended()
    assert (port.events.ups, port.taken) == ([], [])
    raw.close()
    await port.links.close()


class ByAddress(Dials):
    """Counts them apart."""

    def __init__(self) -> None:
        super().__init__(clock=OsClock(), on_fatal=lambda _: None)
        self.dialled = Counter[str]()

    async def dial(self, address: str, *args: Any, **options: Any) -> Connection:
        self.dialled[address] += 1
        return await super().dial(address, *args, **options)


async def test_a_node_of_another_history_is_seldom_dialled() -> None:
    """While one that is away is dialled again and again."""
    port, dials = Port(OTHER), ByAddress()
    stranger, away = await port.links.start("127.0.0.1:0"), "127.0.0.1:1"
    links = links_of("n1", port.events, lineage=THIS, network=dials)
    await links.start("127.0.0.1:0")
    links.set_members({NodeId("n9"): stranger, NodeId("n2"): away}, current=_members(), settled=True, guests=())
    await until(lambda: dials.dialled[away] >= 10)
    assert dials.dialled[stranger] == 1
    assert port.events.ups == []
    await links.close()
    await port.links.close()


async def test_one_with_a_former_disk_is_dialled_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once: an empty one has heard then that its disk was lost, and comes to say so."""
    monkeypatch.setattr("raftlog.links.dialling.REDIAL_MIN_S", 0.005)
    monkeypatch.setattr("raftlog.links.dialling.REDIAL_MAX_S", 0.02)
    port, events, dials = Port(THIS), Events(), ByAddress()
    former, away = await port.links.start("127.0.0.1:0"), "127.0.0.1:1"
    links = links_of("n1", events, lineage=THIS, network=dials)
    links.directories = _directories("n1", {NodeId("n9"): b"f" * 16})
    port.links.directories = _directories("n9", {})
    await links.start("127.0.0.1:0")
    pauses: dict[NodeId, list[float]] = {NodeId("n9"): [], NodeId("n2"): []}
    pause_of = links.refusals.pause

    def noted(peer: NodeId, usual: float) -> float:
        pauses[peer].append(pause_of(peer, usual))
        return pauses[peer][-1]

    monkeypatch.setattr(links.refusals, "pause", noted)
    members = {NodeId("n9"): former, NodeId("n2"): away}
    links.set_members(members, current=_members(), settled=True, guests=())
    await until(lambda: all(len(each) >= 6 for each in pauses.values()))
    assert pauses[NodeId("n9")][:6] == [0.005 * 2**k for k in range(6)]
    assert max(pauses[NodeId("n2")]) == 0.02
    assert dials.dialled[former] >= 6
    links.directories.met = {NodeId("n9"): b"n9" * 8}
    await until(lambda: events.ups == ["n9"])
    await links.close()
    await port.links.close()


@pytest.mark.parametrize("full", [False, True])
async def test_whose_disk_it_is_is_on_the_disk_before_there_is_a_link(full: bool) -> None:
    port, kept = Port(THIS), list[Met]()

    def keep(_: bytes, met: Met) -> None:
        assert port.events.ups == []
        if full:
            raise Unavailable("the disk is full")
        kept.append(met)

    port.links.directories = Directories(NodeId("n9"), b"n9" * 8, {}, keep)
    raw = await Raw().connect(await port.links.start("127.0.0.1:0"))
    await raw.say(*encode(Kind.PEER_HELLO, HELLO | {"lineage": THIS, "directory": b"n1" * 8}))
    if full:
        await raw.ended()
    else:
        await until(lambda: port.events.ups == ["n1"])
    assert (port.events.ups, kept) == (([], []) if full else (["n1"], [{"n1": b"n1" * 8}]))
    raw.close()
    await port.links.close()


@pytest.mark.parametrize("rejoining", [False, True])
async def test_who_has_found_out_that_its_disk_is_lost_begins_anew_once(rejoining: bool) -> None:
    """The next one says the same of it, and would have it draw another token."""
    links, asked = links_of("n9", Events()), list[str]()
    links.directories, links.rejoining = _directories("n9", {}), rejoining
    links.directories.forget = lambda lineage: bool(asked.append(lineage)) or True
    link: Any = SimpleNamespace(connection=SimpleNamespace(remote="there"), expected="n1")
    said = HELLO | {"lineage": "", "rejoining": False, "met": [["n9", b"f" * 16]]}
    with nullcontext() if rejoining else pytest.raises(WrongNode, match="begins anew"):
        assert links.check_hello(said, link) == "n1"
    assert asked == ([] if rejoining else [""])


def _directories(node: str, met: Met) -> Directories:
    return Directories(NodeId(node), node.encode() * 8, met, lambda *_: None)


async def test_a_node_that_is_of_this_history_by_now_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.links.refusals.STRANGER_S", 0.05)
    port, events = Port(OTHER), Events()
    address = await port.links.start("127.0.0.1:0")
    links = links_of("n1", events, lineage=THIS)
    await links.start("127.0.0.1:0")
    links.set_members({NodeId("n9"): address}, current=_members(), settled=True, guests=())
    await until(lambda: NodeId("n9") in links.refusals.strangers)
    assert events.ups == port.events.ups == []
    port.links.identity = Identity(NodeId("n9"), "c1", b"digest", THIS)
    await until(lambda: events.ups == ["n9"])
    assert not links.refusals.strangers
    await links.close()
    await port.links.close()


def _members() -> Configuration:
    return Configuration.of_settings(
        [Member(id=n, peer_address="a:1", client_address="a:2") for n in ("n1", "n2", "n9")]
    )
