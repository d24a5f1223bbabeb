"""Whose disk speaks under a member's id, and whether it is an earlier one (docs/decisions/0031-lost-disk.md, 0034).

Every data directory has an id of its own, as in Kafka's KIP-853. Nodes say it when they meet, and remember whose they
have met. A member that comes back with another one has lost its disk: whom it voted for, and what it acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import Any, Final

from logboom.errors import ProtocolError, Unavailable, WrongNode
from logboom.types import NodeId, is_lineage
from raftlog.entries.configuration import REJOIN_TOKEN_BYTES, SEATS_MAX, Configuration
from raftlog.links.hello import Claim, Identity, is_alike
from raftlog.links.marks import Marks

DIRECTORY_BYTES: Final = REJOIN_TOKEN_BYTES
"""Who has lost its journal takes the token of that time for its directory's id: so the log knows it."""
FEW_VOTERS: Final = 2
"""With one or two no majority is without the one that has everything: an empty one does no harm, and is needed.

But for a *lone* one: by all that it has it alone votes, as it did when the cluster began, and asks nobody."""

ROWS_MAX: Final = 8
"""Members that PEER_HELLO tells of all: nobody takes a long frame of whom he does not know yet."""
MET_MAX: Final = 2 * SEATS_MAX
"""With more only members are remembered: whoever may speak to a node that joins can call himself anything."""

ALONE: Final = (
    "It alone votes, so it cannot be given back what it lacks: remove the data of the others to go on without that, or "
    "stop it, and go on with one of them (`logboom recover`)"
)

FORMER: Final = (
    "It alone votes by what it has, which is from before others did: its disk was lost, or put back, and what it has "
    "committed alone since is in no other log. "
)
OTHERS_GO_ON: Final = "Move its data directory away, and start it with an empty one"
OR_IT: Final = ". Unless it is the one that is right: then stop the others for good, and remove their data"

Met = dict[NodeId, bytes]
"""By member: the id of its directory. Never changed, only replaced."""


class Directories:
    """What one node knows of its own and of others'."""

    def __init__(
        self,
        node_id: NodeId,
        own: bytes,
        met: Met,
        keep: Callable[[bytes, Met], None],
        *,
        marks: Marks | None = None,
        behind: Callable[[str], None] = lambda _: None,
        former: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``keep`` makes a new ``own`` and ``met`` durable on return; may raise Unavailable.

        Without ``marks`` this node neither says how far its journal is, nor remembers others'. ``behind`` makes it so
        that this node has forgotten what it promised, durable on return, and has it start anew; may raise Unavailable.
        ``former`` ends this node, and makes it so that no start goes on with its data; may raise Unavailable.
        """
        self.own = own
        self.met = met
        self.marks = marks
        self._behind = behind
        self._former = former
        self._node_id = node_id
        self._keep = keep
        self.forget: Callable[[str], bool] = lambda _: False
        """Others, of a history with this lineage, have met this node with another disk. False: it cannot begin anew."""
        self.leader: Callable[[], NodeId | None] = lambda: None
        """Who leads now, as far as this node knows."""
        self.wait_for: Callable[[Claim, str, bool], bool] = lambda *_: False
        """Others know of this configuration, in a history with this lineage, which this node takes if it may (True).
        True is returned where it has said to them that it has another one."""
        self.empty: Callable[[], bool] = lambda: False
        """There is nothing in its journal."""
        self.lacks: Callable[[], bool] = lambda: False
        """What counts here is from before what others have told of: that it votes alone by that says nothing."""
        self._changed = set[NodeId]()
        self.before: Configuration | None = None
        """The configuration that counts still should the current one be cut off."""
        self._current = Configuration()
        self._settled = False

    def follow(self, current: Configuration, *, settled: bool, rejoining: bool = False) -> None:
        """The configuration that counts here; ``settled``: it is committed; ``rejoining``: but of a time before."""
        self._current, self._settled = current, settled
        token = current.rejoined_with(self._node_id)
        if settled and not rejoining and token not in (None, self.own):
            with suppress(Unavailable):  # the node stops
                self.renew(token or self.own)

    def fields(self, linked: Container[NodeId] = (), peer: NodeId | None = None) -> dict[str, Any]:
        """Of PEER_HELLO. ``linked``: there is a link with those; another process is not to take their place.

        Where members are many it is about ``peer`` alone, who is dialled; others are, if they are not let in otherwise.
        """
        ids = self._current.ids
        about = ids if len(ids) <= ROWS_MAX else [each for each in ids if each == peer]
        met = {each: known for each in about if (known := self._known(each))}
        said = {
            "directory": self.own,
            "met": [[each, known] for each, known in met.items() if self._counts(each)],
            "lone": self._is_lone,
            "voters": len(self._current.voters),
            "leader": self.leader(),
            "met_lone": [[each, known] for each, known in met.items() if not self._counts(each)],
        }
        if self.marks is None:
            return said
        apart = [each for each in about if each not in linked]
        return (
            said
            | self.marks.fields([each for each in apart if self.matters(each)])
            | {"heard_lone": self.marks.fields([each for each in apart if not self.matters(each)])["heard"]}
        )

    def beat(self, *, rejoining: bool) -> dict[str, Any]:
        """Of PING."""
        return {} if self.marks is None else self.marks.beat(rejoining=rejoining)

    def told(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """Of PING, or a Raft message. Raises ProtocolError."""
        if self.marks is not None:
            self.marks.told(peer, header)

    def find_out(
        self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim, identity: Identity
    ) -> None:
        """Who has met this node before its disk was lost knows more of its promises than it does. Raises WrongNode.

        Strangers, which have other settings, have not met this node, and nothing of theirs is waited for.
        """
        lineage = header.get("lineage", "")
        if not is_lineage(lineage):
            return
        of_few = self._are_others(header, "met_lone")
        two = header.get("voters") == FEW_VOTERS
        lost = self._are_others(header) or (self._is_lone and of_few and not two)
        if not is_alike(identity, header):
            return
        if lost and self.forget(lineage):
            raise WrongNode(f"{peer} has met this node with another data directory: this one is empty, and begins anew")
        if theirs is not None and {peer, self._node_id} <= set(theirs.ids):
            self._find_out_what_comes(peer, header, theirs, mine, lineage, lost=of_few and two)

    def _find_out_what_comes(
        self, peer: NodeId, header: Mapping[str, Any], theirs: Claim, mine: Claim, lineage: str, *, lost: bool
    ) -> None:
        """Who is fed as it is, empty or ``lost`` of two, leads nobody on the way. Raises WrongNode as ``find_out``.

        Where more vote a lost disk is found out; and they may go on without that entry, which need not be committed,
        and without the peer: what would wait for it might be the only one that can lead.
        """
        lone, empty, voters = self._is_lone, self.empty(), header.get("voters")
        few = type(voters) is int and voters <= FEW_VOTERS
        behind = self.marks is not None and self.marks.lacks(self._node_id, self.own, header, "heard_lone")
        # With data a lone one has led: it ends (``check``).
        waits = (empty and lost) if lone else (empty and few) or lost or (behind and voters == FEW_VOTERS)
        if not waits or not (lost or _newer(theirs, mine)):
            return
        if self.wait_for(theirs, lineage, empty and lost) or (lone and not self._is_lone):
            raise WrongNode(f"{peer} has met this node with another data directory: this one is empty, and is fed")

    def check_own(self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim) -> None:
        """Raises WrongNode for one that has met another directory, and has not missed that this node began anew."""
        if self._are_others(header) and not _newer(mine, theirs):
            raise WrongNode(
                f"{peer} has met this node with another data directory, and this one has data: it is from before the "
                "member began anew, or of a second process with this id. Stop it and remove its data",
                former=True,
            )

    def check(
        self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim, *, rejoining: bool = False
    ) -> None:
        """Raises WrongNode for a member that has lost its disk and does not say so, or one that came back from before.

        One with a newer configuration knows better what has become of it since. ``rejoining``: this node is about to.
        """
        lone = self._is_lone_before(peer, header, theirs, mine)
        if not rejoining:
            self._check_lone(peer, header, theirs, mine)
            self.check_own(peer, header, theirs, mine)
        self._check_own_age(peer, header, theirs, mine)
        self._check_age(peer, header, lone=lone)
        directory, known = _directory(header.get("directory")), self._known(peer)
        if None in (directory, known) or directory == known or header.get("rejoining") is True:
            return
        if (self._counts(peer) or lone) and not _newer(theirs, mine):
            if lone and self._current.voters != (peer,):
                story = f"{peer} has another data directory than when this node met it"
                raise WrongNode(f"{story}. {self._former_of(peer)}", former=True)
            raise WrongNode(
                f"{peer} has another data directory than when this node met it, and does not say that it has forgotten "
                "what it promised. An empty one finds that out by itself and begins anew; one with data is from before "
                "its member began anew, or of a second process with this id: stop it and remove its data",
                former=True,
            )

    def _check_own_age(self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim) -> None:
        """Raises WrongNode for a member that has heard more of this directory's journal than there is."""
        knows = peer in self._current.ids or self._has_both(peer, theirs, mine)
        if self.marks is None or not knows or not self.marks.lacks(self._node_id, self.own, header):
            return
        told = f"{peer} has heard more of this node's journal than there is: its disk was put back to an earlier one"
        if self._current.voters == (self._node_id,):
            raise WrongNode(f"{told}. {ALONE}", former=True)
        self._behind(told)
        raise WrongNode(f"{told}. It begins anew")

    def find_former(
        self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim, identity: Identity
    ) -> None:
        """Ends this node as ``check`` does, where its cluster was restored, or recovered, before its disk was lost.

        They are of another history then than what anybody begins by himself. With other settings they are strangers: a
        restore that is tried elsewhere, under the same name. Raises WrongNode.
        """
        if identity.lineage == "" != header.get("lineage", "") and mine[:2] == (0, 1) and is_alike(identity, header):
            told, ends = self._is_former(peer, header, theirs, mine)
            if ends:
                self._former(told)
                raise WrongNode(told)

    def _check_lone(self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim) -> None:
        """Raises WrongNode if it leads alone beside the others that are its cluster, and ends this node if they go on.

        What it has committed since stands in its journal and its states: nothing can be made of it but to begin anew.
        """
        told, ends = self._is_former(peer, header, theirs, mine)
        if ends:
            self._former(told)
            raise WrongNode(told)
        if told:
            raise WrongNode(told, former=True)

    def _is_former(
        self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim
    ) -> tuple[str, bool]:
        """Why this node is not one that leads alone, or nothing; and whether it must not go on.

        That is so where others lead. One of more than two that nobody leads may be what is left of a cluster that was
        given up, and is not to end the one that was begun in its place. The other one of two is led by nobody without
        this node: beside it nothing is to be acknowledged, and people have to say which of the two is right.
        """
        voters = header.get("voters")
        if not (self._is_lone and self._has_both(peer, theirs, mine)) or type(voters) is not int:
            return "", False
        others = self._are_others(header) or self._are_others(header, "met_lone")
        lacks = self.marks is not None and any(
            self.marks.lacks(self._node_id, self.own, header, field) for field in ("heard", "heard_lone")
        )
        known = f"{peer} has met this node with another data directory"
        if (others or lacks) and voters > 1:
            led = isinstance(leader := header.get("leader"), str) and leader != self._node_id
            known = known if others else f"{peer} has heard more of its journal"
            return f"{known}. {former(voters, led=led)}", led or voters <= FEW_VOTERS
        return f"{known}. {ALONE}" if others and voters == 1 else "", False

    def _is_lone_before(self, peer: NodeId, header: Mapping[str, Any], theirs: Claim | None, mine: Claim) -> bool:
        """A member alone votes by what it has, which is from before what counts here.

        Raises WrongNode where that is committed, and others vote: what it has now was not there then, for its vote for
        that was needed. So it was for what came before the last change: only that can be missing there, which is not
        committed, and whoever came with an earlier one is a member by what it has.
        """
        said, alone = header.get("lone"), theirs is not None and theirs.ids == (peer,)
        lone = peer in self._current.ids and (said is True or (said is None and alone)) and _newer(mine, theirs)
        later = self._settled or (theirs is not None and self._node_id not in theirs.ids)
        if lone and header.get("rejoining") is not True and later and self._current.voters != (peer,):
            raise WrongNode(f"{peer} is a member of this cluster. {self._former_of(peer)}", former=True)
        return lone

    def _former_of(self, peer: NodeId) -> str:
        return former(len(self._current.voters), led=self.leader() not in (None, peer))

    def _check_age(self, peer: NodeId, header: Mapping[str, Any], *, lone: bool) -> None:
        """Raises WrongNode for a member whose disk was put back."""
        if self.marks is None or not self.marks.is_behind(peer, header):
            return  # who is rejoining has a directory of its own from then on: nobody has heard of it till it is back
        if lone and self._current.voters != (peer,):
            story = f"{peer} has less of its journal than it has had before"
            raise WrongNode(f"{story}. {self._former_of(peer)}", former=True)
        if self.matters(peer):
            alone = self._current.voters == (peer,)
            raise WrongNode(
                f"{peer} has less of its journal than it has had before: its disk was put back to an earlier one, or a "
                "second process with this id has a copy. "
                + (ALONE if alone else "It finds that out, and begins anew, when no other process has its place"),
                former=True,
            )
        self._changed.add(peer)

    def meet(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """It is introduced, and is remembered. Durable on return."""
        if self.marks is not None:
            self.marks.meet(peer, header, self._may_return)
        theirs = _directory(header.get("directory"))
        rejoins = header.get("rejoining") is True
        if rejoins:
            self._changed.add(peer)
        if theirs is not None and not rejoins and self.met.get(peer) != theirs:
            met = {node: each for node, each in self.met.items() if self._may_return(node)} | {peer: theirs}
            self._keep(self.own, met)
            if peer in self.met:
                self._changed.add(peer)
            self.met = met

    def has_changed(self, peer: NodeId) -> bool:
        """It was let in with another directory than before, or says that it has forgotten; asked once a link."""
        changed = peer in self._changed
        self._changed.discard(peer)
        return changed

    def renew(self, own: bytes) -> None:
        """From now on this is another directory. Durable on return; raises Unavailable."""
        self._keep(own, self.met)
        self.own = own

    @property
    def _is_lone(self) -> bool:
        return self._current.voters == (self._node_id,) and not self.lacks()

    def _has_both(self, peer: NodeId, theirs: Claim | None, mine: Claim) -> bool:
        """It knows of a newer configuration, with both nodes."""
        return _newer(theirs, mine) and {peer, self._node_id} <= set(theirs.ids if theirs else ())

    def _are_others(self, header: Mapping[str, Any], field: str = "met") -> bool:
        return _met(header.get(field)).get(self._node_id, self.own) != self.own

    def _known(self, peer: NodeId) -> bytes | None:
        return self._current.rejoined_with(peer) or self.met.get(peer)

    def _may_return(self, peer: NodeId) -> bool:
        """A node that joins, or is behind, meets members that it does not yet know to be any."""
        gone = self._settled and peer in self._current.removed
        return peer in self._current.ids or (not gone and len(self.met) < MET_MAX)

    def matters(self, peer: NodeId) -> bool:
        """What it has forgotten would be missed: of two voters the other one has it all, and is needed."""
        return self._counts(peer) or self._current.voters == (peer,)

    def _counts(self, peer: NodeId) -> bool:
        few = self.before is not None and len(self.before.voters) <= FEW_VOTERS
        return counts(peer, self._current, settled=self._settled or few)


def former(voters: int, *, led: bool) -> str:
    """What is said of a node that alone votes by what it has, though so many do. ``led``: those go on without it."""
    return f"{FORMER}{OTHERS_GO_ON}{OR_IT if voters <= FEW_VOTERS or not led else ''}"


def counts(node: NodeId, current: Configuration, *, settled: bool) -> bool:
    """``settled``: no other configuration counts, or none of more voters.

    That this one has lost its disk matters where this configuration counts. Who is no member may begin as it is.
    """
    many = not settled or len(current.voters) > FEW_VOTERS
    return node in current.ids and (node not in current.voters or many)


def _newer(one: Claim | None, other: Claim | None) -> bool:
    return one is not None and (other is None or one[:2] > other[:2])


def _directory(said: Any) -> bytes | None:
    """None: of a release that says nothing."""
    if said is None or (isinstance(said, bytes) and len(said) == DIRECTORY_BYTES):
        return said
    raise ProtocolError("PEER_HELLO: bad field directory")


def _met(said: Any) -> dict[str, bytes]:
    if said is None:
        return {}
    try:
        found = {peer: _directory(each) for peer, each in said}
    except (TypeError, ValueError) as error:
        raise ProtocolError("PEER_HELLO: bad field met") from error
    return {peer: each for peer, each in found.items() if isinstance(peer, str) and each is not None}
