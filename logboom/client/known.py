"""What nodes have said of their cluster: which history it is in, who its members are, what partitions there are."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

from logboom.errors import InvalidRequest, LineageMismatch, Unavailable
from logboom.records import RECORDS_MAX
from logboom.types import is_address, lineage_shown

PART_BYTES_MAX: Final = 1024 * 1024
PART_RECORDS_MAX: Final = 8192
"""A share grows no further, whatever a node takes; a single larger command goes alone."""
FIRST_BYTES: Final = 8 * 1024
FIRST_RECORDS: Final = 256
"""Before a node has said what it takes: the least that one may be set to."""


class Known:
    """Of one client. What comes later may be older: a node that lags says what was so."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.lineage: str | None = None
        """Which history of the cluster; None: no node has said it."""
        self.settled = False
        """``lineage`` is the one for good: a node that has a leader has said so, or something was seen of it."""
        self.superseded = False
        """A node that has a leader has said another one since."""
        self.members: dict[str, str] = {}
        self._members_at = [0, 0]
        """Term and Raft index of the entry that says who the members are."""
        self.partitions: list[list[Any]] = []
        """Id, state machine and mode of each; empty: not known."""
        self.key_partitions = 0
        self._changed = False
        """``partitions`` are others by now: only the leader can say which."""
        self._provisional = False
        """``partitions`` were said by a node that follows nobody: it may be empty, or none that the others let in."""
        self._keys_provisional = True
        """``key_partitions`` was said by such a node, or by nobody."""
        self._nobody_until = 0.0
        """Whoever leads was asked for ``partitions``, and there was nobody: not again before then."""
        self.frame_bytes = 1024 * 1024
        self.part_bytes, self.part_records = FIRST_BYTES, FIRST_RECORDS
        """Most of one partition's share of a request."""
        self.block_records = RECORDS_MAX
        """Most records of such a share that nodes take; so many travel together only where somebody has put them
        together."""
        self._leader: str | None = None

    @abstractmethod
    def _leave_them(self) -> None:
        """Whoever is connected is of another history."""

    def _learn(self, welcome: dict[str, Any]) -> None:
        """Raises InvalidRequest for a node of another cluster: when it was asked, nobody had said which one this is.

        And what ``_learn_lineage`` does.
        """
        said = welcome.get("cluster", self.id)
        if self.id not in (None, said):
            raise InvalidRequest(f"this is cluster {said!r}, not {self.id!r}")
        self._learn_lineage(welcome)
        self.id = said
        self._learn_members(welcome.get("members", {}), welcome.get("members_at"))
        followed = is_inside(welcome)
        if not self._changed and (not self.partitions or (self._provisional and followed)):
            self._learn_partitions(welcome, sure=followed)
        elif followed and self._keys_provisional:  # of the partitions what we know may be fresher: this node may lag
            self._learn_keys(welcome)
        self.frame_bytes = welcome.get("frame_bytes", self.frame_bytes)
        self.part_bytes = min(PART_BYTES_MAX, welcome.get("part_bytes", PART_BYTES_MAX))
        self.part_records = min(PART_RECORDS_MAX, welcome.get("part_records", PART_RECORDS_MAX))
        self.block_records = min(RECORDS_MAX, welcome.get("part_records", RECORDS_MAX))
        if self._leader is None:  # else what we know is from a refusal or an answer, and fresher
            self._learn_leader(welcome.get("leader"))

    def _learn_leader(self, said: Any) -> None:
        """What is no address is nobody's."""
        self._leader = said if isinstance(said, str) and is_address(said) else None

    def _learn_lineage(self, welcome: dict[str, Any]) -> None:
        """Raises LineageMismatch for a node of another history: what was seen of one says nothing about the other.

        A node that follows nobody may be one from before a restore: what it says holds until one that does speaks.
        Or it is about to begin, with an empty disk: Unavailable.
        """
        lineage = welcome.get("lineage", "")  # an older release knows of none: it is in the first
        if lineage is None:
            return
        followed = welcome.get("leader") is not None
        if self.lineage not in (None, lineage):
            story = (
                f"{welcome.get('node')} is of another history of the cluster ({lineage_shown(lineage)}) than what this "
                f"client has seen ({lineage_shown(self.lineage)})"
            )
            if not followed:
                raise Unavailable(
                    f"{story}, and follows nobody: it waits for the others, or was not stopped at a restore"
                )
            if self.settled:
                self.superseded = True
                restored = "it was restored. Make a new client; stop nodes from before the restore"
                raise LineageMismatch(f"{story}: {restored}", cluster=self.lineage, expected=lineage)
            self._leave_them()
            self.members, self._members_at, self.partitions, self._leader = {}, [0, 0], [], None
            self._keys_provisional = True
        self.lineage = lineage
        self.settled |= followed

    def _learn_members(self, members: dict[str, str], at: list[int] | None) -> None:
        if at is None:
            self.members.update(members)
        elif at >= self._members_at:  # a node that lags, or was removed, may be behind what another has said
            self._members_at, self.members = at, dict(members)

    def _learn_partitions(self, said: dict[str, Any], *, sure: bool = True, wanted: bool = False) -> None:
        """``sure``: of one that leads, or follows whoever does: it is in the cluster.

        ``wanted``: it is to be what counts for ``partitions``, whoever says it; of keys it says nothing for sure.
        """
        self.partitions = said.get("partitions", self.partitions)
        self._provisional = not (sure or wanted)
        if sure or self._keys_provisional:
            self._learn_keys(said)
            self._keys_provisional = not sure

    def _learn_keys(self, said: dict[str, Any]) -> None:
        self.key_partitions = said.get("key_partitions", len(said.get("partitions", self.partitions)))
        self._keys_provisional = False

    def forget_partitions(self) -> None:
        """Which partitions there are has changed: it is to be asked for anew."""
        self.partitions, self._changed = [], True


def is_inside(welcome: dict[str, Any]) -> bool:
    """Whoever has said it is in the cluster: it leads, or follows whoever does."""
    return welcome.get("leader") is not None and welcome.get("lineage", "") is not None
