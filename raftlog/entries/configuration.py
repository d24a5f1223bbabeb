"""Who the members of a cluster are, and the rules by which that changes. Sans-io.

A configuration is a value; a control entry of the parent log, ``{"do": "members", "members": [[id, peer address,
client address, role], …], "removed": [id, …]}``, holds a whole one (Raft dissertation, chapter 4). ``"rejoined":
[[id, token], …]`` is in it once a member has lost its journal (docs/decisions/0019-damaged-journal.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

from logboom.errors import CorruptData, InvalidRequest
from logboom.settings import Member
from logboom.types import ID_LENGTH_MAX, NodeId, is_address
from ports.invariant import invariant
from raftlog.entries.entry import CONTROL_BYTES_MAX, control_bytes

MEMBERS: Final = "members"
"""What such a control entry does."""
SEATS_MAX: Final = 31
REMOVED_MAX: Final = 512
"""Ids that are remembered; with so many gone nobody is removed any more. Keeps an entry well below its bound."""
REJOIN_TOKEN_BYTES: Final = 16
NOT_IN_IDS: Final = frozenset(" ,=@/\t\r\n")


class Role(StrEnum):
    """What a member does."""

    VOTER = "voter"
    JOINING = "joining"
    """Counts for nothing yet; made a voter by whoever leads when it has caught up."""
    LEARNER = "learner"
    """Counts for nothing until it is promoted."""


class Seat(NamedTuple):
    """One member."""

    node: NodeId
    peer_address: str
    client_address: str
    role: Role


@dataclass(frozen=True)
class Configuration:
    """All members, by rising id, and those who were: their ids are not given again."""

    seats: tuple[Seat, ...] = ()
    removed: tuple[NodeId, ...] = ()
    term: int = 0
    index: int = 0
    """Where the parent log says so; 1: the settings do, 0: nobody does."""
    rejoined: tuple[tuple[NodeId, bytes], ...] = ()
    """Members that have lost their journal, by rising id, each with the token of the last time: there it began anew."""

    @cached_property
    def voters(self) -> tuple[NodeId, ...]:
        """Those whose votes and acknowledgements count."""
        return tuple(seat.node for seat in self.seats if seat.role is Role.VOTER)

    @cached_property
    def joining(self) -> tuple[NodeId, ...]:
        """Those that become voters once they have caught up."""
        return tuple(seat.node for seat in self.seats if seat.role is Role.JOINING)

    @cached_property
    def ids(self) -> tuple[NodeId, ...]:
        """Of all members."""
        return tuple(seat.node for seat in self.seats)

    def seat(self, node: NodeId) -> Seat | None:
        """None: not a member."""
        return next((seat for seat in self.seats if seat.node == node), None)

    def says_the_same(self, other: Configuration) -> bool:
        """Wherever it is said."""
        return (self.seats, self.removed, self.rejoined) == (other.seats, other.removed, other.rejoined)

    def newer(self, other: Configuration) -> bool:
        """By the order that Raft gives to logs."""
        return (self.term, self.index) > (other.term, other.index)

    # -- rules: each makes the next configuration, or raises InvalidRequest

    def adding(self, seat: Seat) -> Configuration:
        """With one more. The same once more is no change."""
        known = self.seat(seat.node)
        if known is not None:
            if known[:3] == seat[:3]:
                return self
            raise InvalidRequest(
                f"{seat.node} is a member already, at {known.peer_address} and {known.client_address}: to have it "
                f"elsewhere, `logboom members update {seat.node}`"
            )
        _check_seat(seat)
        if seat.node in self.removed:
            raise InvalidRequest(f"{seat.node} was a member once, and ids are not used again: choose another")
        self._check_free(seat)
        if len(self.seats) >= SEATS_MAX:
            raise InvalidRequest(f"there are {SEATS_MAX} members, and cannot be more")
        return _fitting(replace(self, seats=tuple(sorted((*self.seats, seat)))), seat.node)

    def moving(self, node: NodeId, *, peer_address: str = "", client_address: str = "") -> Configuration:
        """With one elsewhere; an address that is empty stays. Who votes stays as it is, and what was promised too.

        The same once more is no change, but where the settings speak: those of other nodes may name another address.
        """
        before = self._member(node)
        seat = before._replace(
            peer_address=peer_address or before.peer_address, client_address=client_address or before.client_address
        )
        if seat == before and self.index > 1:
            return self
        _check_addresses(seat)
        self._check_free(seat)
        return _fitting(replace(self, seats=tuple(seat if each.node == node else each for each in self.seats)), node)

    def _check_free(self, seat: Seat) -> None:
        for other in self.seats:
            if other.node != seat.node and set(other[1:3]) & set(seat[1:3]):
                raise InvalidRequest(f"{other.node} is at one of these addresses")

    def removing(self, node: NodeId) -> Configuration:
        """Without one, for good. One that is gone is no change."""
        if node in self.removed:
            return self
        self._member(node)
        if self.voters == (node,):
            raise InvalidRequest(f"{node} is the only voter: add another first")
        if len(self.removed) >= REMOVED_MAX:
            raise InvalidRequest(f"{REMOVED_MAX} members have been removed: no more can be")
        rest = tuple(seat for seat in self.seats if seat.node != node)
        rejoined = tuple(row for row in self.rejoined if row[0] != node)
        return replace(self, seats=rest, removed=tuple(sorted((*self.removed, node))), rejoined=rejoined)

    def giving(self, node: NodeId, role: Role) -> Configuration:
        """With another role for one. A voter stays one."""
        before = self._member(node)
        if before.role in (Role.VOTER, role):
            return self
        seats = tuple(seat._replace(role=role) if seat.node == node else seat for seat in self.seats)
        return replace(self, seats=seats)

    def rejoining(self, node: NodeId, token: bytes) -> Configuration:
        """One has forgotten what it promised, and begins anew: a voter joins again. The same once more is no change."""
        before = self._member(node)
        if self.rejoined_with(node) == token:
            return self
        if self.voters == (node,):
            raise InvalidRequest(f"{node} is the only voter: nobody else knows what is committed")
        role = Role.JOINING if before.role is Role.VOTER else before.role
        seats = tuple(seat._replace(role=role) if seat.node == node else seat for seat in self.seats)
        rejoined = tuple(sorted([*(row for row in self.rejoined if row[0] != node), (node, token)]))
        return replace(self, seats=seats, rejoined=rejoined)

    def rejoined_with(self, node: NodeId) -> bytes | None:
        """The token with which it began anew the last time; None: it never has."""
        return next((token for each, token in self.rejoined if each == node), None)

    def check_step(self, following: Configuration) -> None:
        """Any majority of one has a node in common with any of the other. A broken one is a bug here."""
        changed = set(self.voters) ^ set(following.voters)
        invariant(len(changed) <= 1 and bool(following.voters), "voters {} after {}", following.voters, self.voters)

    def _member(self, node: NodeId) -> Seat:
        found = self.seat(node)
        if found is None:
            raise InvalidRequest(f"{node} is not a member; members are {', '.join(self.ids) or 'not known'}")
        return found

    # -- as fields of a control entry

    def fields(self) -> dict[str, Any]:
        """What ``parse`` reads."""
        said = {"do": MEMBERS, "members": [list(map(str, seat)) for seat in self.seats], "removed": [*self.removed]}
        return said | {"rejoined": [list(row) for row in self.rejoined]} if self.rejoined else said

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, term: int, index: int) -> Configuration:
        """Of a control entry. Raises CorruptData."""
        rows, removed = fields.get("members"), fields.get("removed")
        if not isinstance(rows, list) or not isinstance(removed, list) or not all(_is_id(each) for each in removed):
            raise CorruptData(f"members at Raft index {index} that are no lists")
        seats = []
        for row in rows:
            if not (isinstance(row, list) and len(row) == 4 and all(isinstance(each, str) for each in row)):
                raise CorruptData(f"a member at Raft index {index} that is none")
            node, peer, client, role = row
            if not _is_id(node) or not is_address(peer) or not is_address(client) or role not in set(Role):
                raise CorruptData(f"a member at Raft index {index} that cannot be")
            seats.append(Seat(NodeId(node), peer, client, Role(role)))
        found = cls(tuple(seats), tuple(map(NodeId, removed)), term, index, _rejoined(fields, index))
        if list(found.ids) != sorted(set(found.ids)) or not found.voters or set(found.ids) & set(found.removed):
            raise CorruptData(f"members at Raft index {index} that cannot be together")
        ids = [node for node, _ in found.rejoined]
        if ids != sorted(set(ids)) or not set(ids) <= set(found.ids):
            raise CorruptData(f"members at Raft index {index} of whom others have rejoined")
        return found

    @classmethod
    def of_settings(cls, members: tuple[Member, ...]) -> Configuration:
        """What a cluster begins with: all of them vote."""
        seats = [Seat(NodeId(m.id), m.peer_address, m.client_address, Role.VOTER) for m in members]
        return cls(tuple(sorted(seats)), index=1)


NOBODY: Final = Configuration()
"""Of a node that waits until it is added."""


def _fitting(now: Configuration, node: NodeId) -> Configuration:
    if _bytes_at_most(now) > CONTROL_BYTES_MAX:
        raise InvalidRequest(
            f"there is no room for {node}: ids and addresses of all members, and the ids of those that were removed, "
            f"take {CONTROL_BYTES_MAX} bytes at most"
        )
    return now


def _bytes_at_most(now: Configuration) -> int:
    """Of an entry with these members, whatever becomes of them: only adding, or a longer address, makes it larger."""
    rejoined = tuple((node, bytes(REJOIN_TOKEN_BYTES)) for node in now.ids)
    seats = tuple(seat._replace(role=Role.JOINING) for seat in now.seats)
    return control_bytes(replace(now, seats=seats, rejoined=rejoined).fields())


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= ID_LENGTH_MAX


def _rejoined(fields: Mapping[str, Any], index: int) -> tuple[tuple[NodeId, bytes], ...]:
    rows = fields.get("rejoined", [])
    if not isinstance(rows, list):
        raise CorruptData(f"members at Raft index {index} whose rejoined are no list")
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and _is_id(row[0]) and _is_token(row[1])):
            raise CorruptData(f"a member at Raft index {index} that cannot have rejoined")
    return tuple((NodeId(node), token) for node, token in rows)


def _is_token(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == REJOIN_TOKEN_BYTES


def _check_seat(seat: Seat) -> None:
    if not _is_id(seat.node) or NOT_IN_IDS & set(seat.node):
        raise InvalidRequest(f"{seat.node!r} cannot be an id: 1 to {ID_LENGTH_MAX} characters, without blanks and ,=@/")
    _check_addresses(seat)


def _check_addresses(seat: Seat) -> None:
    for address in seat[1:3]:
        if not is_address(address):
            raise InvalidRequest(f"{address!r} is not host:port")
    if seat.peer_address == seat.client_address:
        raise InvalidRequest("the addresses for nodes and for clients must differ")
