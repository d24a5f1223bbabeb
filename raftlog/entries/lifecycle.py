"""Which partitions there are: those that the cluster began with, and what control entries have changed since. Sans-io.

``{"do": "create", "partition": id, "state_machine": name, "mode": mode, "token": 16 bytes, "begun": n}`` and
``{"do": "destroy", "partition": id, "begun": n}``. ``begun`` is how many partitions the settings of the proposer
name: the first such entry, or ``set``, fixes it for ever. Ids are given in order and never again. An entry that does
not fit what was decided before it has no effect, on any node. A ``create`` may have fields of ``.chosen`` as well.

As bytes (little-endian): begun, next id, created, destroyed u32 each; for each created one that lives, by rising
id: id u32, mode u8, length of the name u8, token 16, name; for each that the cluster began with and that is
destroyed, rising: id u32.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from logboom.config import PARTITIONS_MAX
from logboom.errors import ConfigError, CorruptData
from logboom.settings import ClusterSettings
from logboom.types import DurabilityMode, PartitionId
from ports.invariant import invariant
from raftlog.entries.chosen import NOTHING, Chosen

CREATE: Final = "create"
DESTROY: Final = "destroy"
CHANGES: Final = frozenset((CREATE, DESTROY))
"""What these control entries do."""
TOKEN_BYTES: Final = 16
ID_MAX: Final = (1 << 32) - 1
NAME_BYTES_MAX: Final = 255
MODES: Final = (DurabilityMode.WRITE_AHEAD, DurabilityMode.WRITE_BEHIND)
HEAD: Final = struct.Struct("<IIII")
ROW: Final = struct.Struct("<IBB16s")
ID: Final = struct.Struct("<I")


class PartitionKind(NamedTuple):
    """What a partition is."""

    state_machine: str
    mode: DurabilityMode


class Change(NamedTuple):
    """A control entry, read. ``kind`` None: the partition is destroyed."""

    partition_id: PartitionId
    begun: int
    kind: PartitionKind | None = None
    token: bytes = b""
    """Whoever asks for a partition again with the same one is told of the first."""
    chosen: Chosen = NOTHING
    """How writes to what is created are answered, as far as that is not left to the settings."""

    def fields(self) -> dict[str, Any]:
        """What ``parse`` reads."""
        common = {"partition": self.partition_id, "begun": self.begun}
        if self.kind is None:
            return {"do": DESTROY, **common}
        named = {"state_machine": self.kind.state_machine, "mode": str(self.kind.mode), "token": self.token}
        return {"do": CREATE, **common, **named, **self.chosen.fields()}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Change:
        """Raises CorruptData for what no leader proposes."""
        partition, begun = fields.get("partition"), fields.get("begun")
        if type(partition) is not int or not 0 <= partition <= ID_MAX:
            raise CorruptData(f"a control entry about partition {partition!r}")
        if type(begun) is not int or not 1 <= begun <= PARTITIONS_MAX:
            raise CorruptData(f"a control entry of a cluster that began with {begun!r} partitions")
        if fields.get("do") == DESTROY:
            return cls(PartitionId(partition), begun)
        name, mode, token = fields.get("state_machine"), fields.get("mode"), fields.get("token")
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
            raise CorruptData(f"partition {partition} is created without the name of a state machine")
        if not isinstance(mode, str) or mode not in set(MODES):
            raise CorruptData(f"partition {partition} is created with mode {mode!r}")
        if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
            raise CorruptData(f"partition {partition} is created without a token")
        return cls(
            PartitionId(partition), begun, PartitionKind(name, DurabilityMode(mode)), token, Chosen.parse(fields)
        )


class Created(NamedTuple):
    """A partition that was created and lives."""

    kind: PartitionKind
    token: bytes


@dataclass(frozen=True)
class Lifecycle:
    """As of one place in the parent log. A value."""

    begun: int = 0
    """Partitions that the cluster began with; 0: the log has said nothing, the settings tell."""
    next_id: int = 0
    created: Mapping[PartitionId, Created] = field(default_factory=dict)
    destroyed: frozenset[PartitionId] = frozenset()
    """Of those that it began with."""

    def begins_with(self, settings: int) -> int:
        """Partitions at the beginning; ``settings``: as those say."""
        return self.begun or settings

    def ids(self, settings: int) -> list[PartitionId]:
        """Of all that live, ascending."""
        begun = (PartitionId(p) for p in range(self.begins_with(settings)))
        return [*(p for p in begun if p not in self.destroyed), *sorted(self.created)]

    def lives(self, partition_id: PartitionId, settings: int) -> bool:
        """There is such a partition."""
        begun = partition_id < self.begins_with(settings) and partition_id not in self.destroyed
        return begun or partition_id in self.created

    def is_gone(self, partition_id: int) -> bool:
        """It was there, and is destroyed."""
        if partition_id < self.begun:
            return partition_id in self.destroyed
        return partition_id < self.next_id and partition_id not in self.created

    def with_token(self, token: bytes) -> PartitionId | None:
        """The living partition that was created with it."""
        return next((p for p, each in self.created.items() if each.token == token), None)

    def refuses(self, change: Change) -> str:
        """Why this cannot come next; empty: it can."""
        if change.begun != self.begins_with(change.begun):
            return f"the cluster began with {self.begun} partitions, not {change.begun}"
        count = self.begins_with(change.begun) - len(self.destroyed) + len(self.created)
        if change.kind is None:
            if not self.lives(change.partition_id, change.begun):
                return f"partition {change.partition_id} does not exist"
            return "it is the last partition" if count == 1 else ""
        if change.partition_id != max(self.next_id, change.begun):
            return f"partition {change.partition_id} is not the next one"
        if count >= PARTITIONS_MAX or change.partition_id == ID_MAX:
            return f"there are {count} partitions, and cannot be more"
        return "it was created before" if self.with_token(change.token) is not None else ""

    def fixed(self, begun: int) -> Lifecycle:
        """From now on that is what the cluster began with, if nothing else is."""
        begun = self.begins_with(begun)
        return replace(self, begun=begun, next_id=max(self.next_id, begun))

    def after(self, change: Change) -> Lifecycle:
        """What ``refuses`` has nothing against."""
        wrong = self.refuses(change)
        invariant(not wrong, "partitions cannot change so: {}", wrong)
        fixed, partition = self.fixed(change.begun), change.partition_id
        if change.kind is not None:
            created = {**self.created, partition: Created(change.kind, change.token)}
            return replace(fixed, next_id=partition + 1, created=created)
        if partition < fixed.begun:
            return replace(fixed, destroyed=self.destroyed | {partition})
        return replace(fixed, created={p: each for p, each in self.created.items() if p != partition})

    # -- as bytes

    def encode(self) -> bytes:
        """See the module."""
        rows = [HEAD.pack(self.begun, self.next_id, len(self.created), len(self.destroyed))]
        for partition, (kind, token) in sorted(self.created.items()):
            name = kind.state_machine.encode()
            rows += [ROW.pack(partition, MODES.index(kind.mode), len(name), token), name]
        return b"".join([*rows, *(ID.pack(partition) for partition in sorted(self.destroyed))])

    @classmethod
    def decode(cls, raw: bytes) -> tuple[Lifecycle, int]:
        """What ``encode`` made, and how many bytes of ``raw`` it is. Raises CorruptData."""
        try:
            found, end = cls._parsed(raw)
        except (struct.error, ValueError, IndexError) as error:  # UnicodeDecodeError is one
            raise CorruptData(f"partitions that cannot be read: {error}") from error
        if found.encode() != raw[:end]:
            raise CorruptData("partitions out of order")
        below = all(found.begun <= p < found.next_id for p in found.created)
        if not below or any(p >= found.begun for p in found.destroyed) or (found.begun == 0) != (found.next_id == 0):
            raise CorruptData(f"partitions that cannot be: {found.begun} at the beginning, {found.next_id} is next")
        if found.begun and (found.next_id < found.begun or not found.ids(found.begun)):
            raise CorruptData("no partitions")
        return found, end

    @classmethod
    def _parsed(cls, raw: bytes) -> tuple[Lifecycle, int]:
        begun, next_id, living, dead = HEAD.unpack_from(raw)
        if begun > PARTITIONS_MAX:
            raise ValueError(f"{begun} at the beginning")
        created: dict[PartitionId, Created] = {}
        at = HEAD.size
        for _ in range(living):
            partition, mode, length, token = ROW.unpack_from(raw, at)
            at += ROW.size + length
            name = bytes(raw[at - length : at]).decode()
            if not name or at > len(raw):
                raise ValueError(f"partition {partition} without a state machine")
            created[PartitionId(partition)] = Created(PartitionKind(name, MODES[mode]), token)
        end = at + dead * ID.size
        if end > len(raw):
            raise ValueError(f"{len(raw)} bytes")
        destroyed = frozenset(PartitionId(p) for (p,) in ID.iter_unpack(raw[at:end]))
        return cls(begun, next_id, created, destroyed), end


def kind_of(cluster: ClusterSettings, lifecycle: Lifecycle, partition_id: PartitionId) -> PartitionKind:
    """Of a partition that lives; ``cluster``: the settings of those that nobody created."""
    created = lifecycle.created.get(partition_id)
    if created is not None:
        return created.kind
    chosen = cluster.partition(partition_id)
    return PartitionKind(chosen.state_machine, chosen.mode)


def wrong_begin(begun: int, settings: int) -> ConfigError:
    """The settings do not say what the cluster began with."""
    return ConfigError(
        f"cluster.partitions: {settings}, and the cluster began with {begun} and has created, destroyed or set "
        f"partitions since: set it to {begun}, and use `logboom partitions create` for more",
        path="cluster.partitions",
    )
