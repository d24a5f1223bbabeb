"""Of whom a backup asks what it copies: one node, and others for what that does not have, or once it is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from logboom.client.operations import LogPiece
from logboom.errors import CorruptData, DeadlineExceeded, IndexCompacted, LogboomError, Unavailable, UnknownOutcome
from logboom.sync_client import SyncClient
from logboom.types import GlobalLogIndex, PartitionId
from raftlog.entries.parent_state import ParentState
from server.offline.world import OfflineWorld
from snapshots.meta import SetMeta

T = TypeVar("T")

PIECE_S: Final = 10.0
"""How long a node may take to answer one request; then another one is asked."""
FAILURES_MAX: Final = 10
"""So many requests may fail in a row; then the backup is given up, or what nobody else has of a log left out."""
PAUSE_S: Final = 0.5
SILENT_AGAIN_S: Final = 60.0
"""Whoever was waited for in vain is asked for what others have lost no more often: there may be thousands of that."""


class Standing(NamedTuple):
    """What may change and is no write, as whoever leads knows it."""

    partitions: frozenset[int]
    chosen: dict[int, tuple[str | None, bool | None]]
    """What was set of partitions, by id: `ack`, and `linearizable`."""

    @staticmethod
    def in_set(meta: SetMeta) -> Standing:
        """What a set knows of it."""
        chosen = ParentState.decode(meta.parent).chosen
        return Standing(
            frozenset(each.partition_id for each in meta.partitions),
            {p: (each.ack and str(each.ack), each.linearizable) for p, each in chosen.items()},
        )


class Source:
    """The node that is asked; another one when it is lost."""

    def __init__(
        self, client: SyncClient, node: str | None, timeout: float, bytes_per_s: int, world: OfflineWorld
    ) -> None:
        self._client = client
        self._world = world
        self._bytes_per_s = bytes_per_s
        self._due = self._world.monotonic()
        """When the next piece may be asked for."""
        self._wanted = node
        self._timeout = timeout
        self.node = node or ""
        self._helpful = ""
        """Who had of a log what ``node`` did not."""
        self._silent: dict[str, str] = {}
        """Whoever was waited for in vain, and why."""
        self._silent_at = 0.0
        """When somebody of ``_silent`` was last waited for in vain."""
        self.unheard: dict[str, str] = {}
        """Who did not say what he has of the last piece of a log, of which the others have nothing, and why."""
        self.most_heard = True
        """Those in ``unheard`` are less than half of the members."""

    def find(self, sets: Sequence[GlobalLogIndex], *, patience: float = 0.0) -> GlobalLogIndex | None:
        """The newest of these sets that a node has, which is asked from now on."""
        deadline = self._world.monotonic() + patience
        while sets:
            for node in self._candidates():
                try:
                    there = {row["global_index"] for row in self._client.snapshots(node=node, timeout=2.0)["sets"]}
                except LogboomError:
                    continue
                if found := there & set(sets):
                    self.node = node
                    return GlobalLogIndex(max(found))
            if self._world.monotonic() > deadline:
                return None
            self._world.sleep(0.1)
        return None

    def standing(self) -> Standing:
        """As it is now."""
        status = self._client.status(timeout=self._timeout)
        if status["leader"]:
            status = self._client.status(node=status["leader"], timeout=self._timeout)
        chosen = {partition: (ack, linearizable) for partition, ack, linearizable in status.get("chosen", ())}
        return Standing(frozenset(row[0] for row in status["partitions"]), chosen)

    def _candidates(self) -> list[str]:
        """Followers first: the leader has enough to do."""
        if self._wanted is not None:
            return [self._wanted]
        leader = self._client.status(timeout=self._timeout)["leader"]
        return sorted(self._client.members(), key=lambda node: (node == leader, node))

    def ask(self, global_index: GlobalLogIndex, call: Callable[[str], T]) -> T:
        """``call`` with a node that has the set; again, perhaps with another, after what may pass."""
        failures = 0
        while True:
            try:
                return call(self.node)
            except (Unavailable, UnknownOutcome, DeadlineExceeded, CorruptData, IndexCompacted) as error:
                failures += 1
                if failures == FAILURES_MAX:
                    raise
                self._world.sleep(PAUSE_S)
                if self.find([global_index]) is None and isinstance(error, IndexCompacted):
                    raise

    def piece(self, global_index: GlobalLogIndex, name: str, offset: int) -> tuple[int, memoryview]:
        """Of a set's file."""
        read = self._client.read_snapshot
        total, piece = self.ask(
            global_index,
            lambda node: read(global_index, name, offset, node=node, timeout=PIECE_S),  # type: ignore[arg-type]
        )
        self._keep_pace(len(piece))
        return total, piece

    def log(self, global_index: GlobalLogIndex, partition: PartitionId, after: int, through: int) -> LogPiece:
        """Of a partition's log: what comes next, of whoever has it; else of the node whose log goes on the soonest."""
        read = self._client.read_log

        def call(node: str) -> LogPiece:
            return read(global_index, partition, after=after, through=through, node=node, timeout=PIECE_S)

        found, self.unheard, self.most_heard = self.ask(global_index, call), {}, True
        if not (found.batches or found.void or self._wanted):
            found = self._of_others(found, call, after)
        self._keep_pace(sum(len(raw) for _, raw in found.batches))
        return found

    def _of_others(self, found: LogPiece, call: Callable[[str], LogPiece], after: int) -> LogPiece:
        """``found`` has nothing, and is not void. All are heard before that counts, but silent ones only once in all.

        For what is lost those are not even asked again for a while.
        """
        members = set(self._client.members())
        unheard = sorted(members - {self.node}, key=lambda node: (node != self._helpful, node))
        why, passed_over = dict(self._silent), list[str]()
        if found.lost and self._world.monotonic() < self._silent_at + SILENT_AGAIN_S:
            passed_over = [node for node in unheard if node in self._silent]
            unheard = [node for node in unheard if node not in self._silent]
        for attempt in range(FAILURES_MAX):
            if attempt:
                self._world.sleep(PAUSE_S)
            heard = set()
            for node in unheard:
                try:
                    other = call(node)
                except LogboomError as error:
                    why[node] = f"{error.code}: {error.message}"
                    continue
                heard.add(node)
                if other.batches or other.void:  # a node that is behind does not know of that yet
                    self._helpful = node
                    return other
                if other.first > after + 1 and not after + 1 < found.first <= other.first:
                    found = other
            self._silent = {node: said for node, said in self._silent.items() if node not in heard}
            unheard = [node for node in unheard if node not in heard]
            if self._silent.keys() >= set(unheard):
                break
        if unheard:
            self._silent_at = self._world.monotonic()
        self._silent.update((node, why[node]) for node in unheard)
        self.unheard = {node: why[node] for node in sorted([*unheard, *passed_over])}
        self.most_heard = 2 * len(self.unheard) < len(members)
        return found

    def _keep_pace(self, nbytes: int) -> None:
        now = self._world.monotonic()
        self._due = max(self._due, now - 1.0) + nbytes / self._bytes_per_s
        if self._due > now:
            self._world.sleep(self._due - now)
