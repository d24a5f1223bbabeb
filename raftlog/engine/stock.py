"""PySyncObj 0.3.17, fenced in: the only module that imports it.

Checked by version and source hash, since the classes beside this one override its private methods by their mangled
names. No threads, sockets, files, clock or randomness of its own: all of it is passed in.
docs/decisions/0002-pysyncobj.md lists every hole and what closes it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pysyncobj.serializer
import pysyncobj.syncobj as stock
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from logboom.errors import IncompatibleVersion
from logboom.settings import RaftSettings
from logboom.types import NodeId
from ports.clock import Clock
from ports.invariant import InvariantViolated, invariant
from ports.rng import Rng
from raftlog.engine.messages import Message
from raftlog.engine.patience import Patience
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership

SUPPORTED: Final = "0.3.17"
SOURCE_HASHES: Final = {
    stock: "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    pysyncobj.serializer: "4d39fde2f15000ad8f507ec229ebd4f6a86371b6f84d4dc1439a9cccd52857ee",
}
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2


def check_version() -> None:
    """The overrides below must never meet another PySyncObj. Raises IncompatibleVersion."""
    if VERSION != SUPPORTED:
        raise IncompatibleVersion(f"pysyncobj {VERSION}; install {SUPPORTED}", found=VERSION, supported=SUPPORTED)
    for module, expected in SOURCE_HASHES.items():
        with open(inspect.getfile(module), "rb") as source:  # noqa: PTH123 - the package's own file
            if hashlib.sha256(source.read()).hexdigest() != expected:
                raise IncompatibleVersion(
                    f"{module.__name__} is not the released pysyncobj {SUPPORTED}: reinstall it",
                    found="changed source",
                    supported=SUPPORTED,
                )


class _NoPickle:
    """Stands where PySyncObj calls pickle: whatever reaches it must not be executed."""

    @staticmethod
    def _refuse(*_: object, **__: object) -> bytes:
        raise InvariantViolated("pysyncobj tried to pickle; the overlay must have closed that path")

    dumps = loads = load = dump = to_bytes = _refuse


class _NoPoller:
    def poll(self, timeout: float) -> None:
        """Nothing to poll: the event loop drives."""

    def subscribe(self, *_: object) -> None:
        """No sockets here."""

    def unsubscribe(self, *_: object) -> None:
        """No sockets here."""


class Peer(Node):  # type: ignore[misc]
    """Another node, or this one."""

    id = NodeId("")
    """In the place of the base class's property, which is asked for several times with each message."""
    __eq__ = object.__eq__
    __hash__ = object.__hash__
    """There is one object for each, looked up with each message, too. Nothing depends on the order of a set of them."""

    def __init__(self, node_id: NodeId) -> None:
        super().__init__(node_id)
        self.__dict__["id"] = node_id  # the base class lets nobody set it


class Outbound(Transport):  # type: ignore[misc]
    """Hands messages to ``Given.send``. What promises something says on how much of the journal it rests."""

    ready = True

    def __init__(self, send: Callable[[NodeId, Message], bool], journal: Journal) -> None:
        super().__init__(None, None, None)
        self._send = send
        self._journal = journal

    def send(self, node: Node, message: Message) -> bool:
        if message["type"] == "response_vote" or (message.get("success") and "rejoining" not in message):
            message["journal"] = self._journal.queued_sequence  # it leaves once all that is queued is on the disk
        return self._send(node.id, message)

    def destroy(self) -> None:
        """Connections are not ours."""


class Given(NamedTuple):
    """What an engine is made of; see ``Engine``."""

    membership: Membership
    journal: Journal
    settings: RaftSettings
    clock: Clock
    rng: Rng
    send: Callable[[NodeId, Message], bool]
    sendable: Callable[[NodeId], int]
    too_far: Callable[[NodeId], None]
    members_moved: Callable[[], None]


class Stock(SyncObj):  # type: ignore[misc]
    """PySyncObj with everything replaced that is not Raft, and what the rest sees of its state."""

    def __init__(self, given: Given) -> None:
        check_version()
        self.membership = given.membership
        self.journal = given.journal
        self.clock = given.clock
        self.rng = given.rng
        self.settings = given.settings
        self.patience = Patience(given.settings)
        # PySyncObj takes these as module globals.
        stock.pickle = pysyncobj.serializer.pickle = _NoPickle()
        stock.monotonicTime = given.clock.monotonic
        stock.createPoller = lambda _: _NoPoller()
        stock.createJournal = lambda j: j
        conf = SyncObjConf(
            autoTick=False,
            journalFile=given.journal,
            appendEntriesPeriod=given.settings.heartbeat_ms / 1000,
            raftMinTimeout=given.settings.election_min_ms / 1000,
            raftMaxTimeout=given.settings.election_max_ms / 1000,
            leaderFallbackTimeout=given.settings.fallback_ms / 1000,
            connectionTimeout=max(1.0, given.settings.election_max_ms / 1000),
            appendEntriesUseBatch=True,
            appendEntriesBatchSizeBytes=given.settings.message_bytes_max,
            logCompactionMinEntries=1 << 60,
            logCompactionMinTime=1 << 60,
            dynamicMembershipChange=False,
        )
        super().__init__(Peer(given.membership.node_id), [], conf, transport=Outbound(given.send, given.journal))

    # -- private state of the base class, by its mangled names

    def _set(self, name: str, value: Any) -> None:
        invariant("_SyncObj__" + name in self.__dict__, "pysyncobj has no {}", name)
        self.__dict__["_SyncObj__" + name] = value

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        low, high = self.settings.election_min_ms, self.settings.election_max_ms
        return (low + (high - low) * self.rng.random()) / 1000 * self.patience.stretch

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803 - overrides the base class
        raise InvariantViolated("the stock tick counts unsynced entries; use tick()")

    # -- what the rest sees

    @property
    def is_leader(self) -> bool:
        """Believes to lead; proven only by a read round."""
        return bool(self._SyncObj__raftState == LEADER)

    @property
    def is_candidate(self) -> bool:
        """Campaigning."""
        return bool(self._SyncObj__raftState == CANDIDATE)

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this node knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else NodeId(node.id)

    @property
    def term(self) -> int:
        """Current term."""
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        """Highest Raft index known to be committed."""
        return int(self._SyncObj__raftCommitIndex)

    @property
    def applied_index(self) -> int:
        """Highest Raft index handed to ``apply``."""
        return int(self._SyncObj__raftLastApplied)

    def term_at(self, index: int) -> int | None:
        """Term of a journal entry, its base's included; None if it has none there."""
        journal = self.journal
        return journal.entry(index)[2] if journal.base_index <= index <= journal.last_index else None

    def _last_entry(self) -> dict[str, int]:
        _, index, term = self.journal[-1]
        return {"last_log_index": index, "last_log_term": term}
