"""Committed batches that were lost everywhere and were declared void (docs/decisions/0018-void.md). Sans-io.

``{"do": "void", "partition": id, "first_index": n, "last_index": n, "digest": 16 bytes, "global_index": n,
"applied": bool}``. The leader proposes it for a batch that no member has. What every node makes of it depends on the
log alone: one that does not fit what was decided before it has no effect, on any node.

As bytes (little-endian): how many there ever were u64, kept u32; then for each that is kept, the oldest first:
partition u32, first index, last index u64, digest 16, global index u64, Raft index of the void u64, applied u8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from logboom.errors import CorruptData
from logboom.types import DIGEST_BYTES, NUMBER_MAX, GlobalLogIndex, PartitionId, PartitionLogIndex
from raftlog.entries.entry import unpack_control

VOID: Final = "void"
"""What the control entry does."""
KEPT_MAX: Final = 1024
HEAD: Final = struct.Struct("<QI")
ROW: Final = struct.Struct("<IQQ16sQQB")


class Void(NamedTuple):
    """One batch that counts as nothing."""

    partition_id: PartitionId
    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    digest: bytes
    global_index: GlobalLogIndex
    raft_index: int = 0
    """Of the void itself; 0: it is not ordered yet."""
    applied: bool = False
    """Some state has what it did: whoever has not applied it takes a snapshot instead of stepping over it."""

    def fields(self) -> dict[str, Any]:
        """What ``parse`` reads."""
        return {
            "do": VOID,
            "partition": self.partition_id,
            "first_index": self.first_index,
            "last_index": self.last_index,
            "digest": self.digest,
            "global_index": self.global_index,
            "applied": self.applied,
        }

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, raft_index: int = 0) -> Void:
        """Raises CorruptData for what no leader proposes."""
        numbers = [fields.get(name) for name in ("partition", "first_index", "last_index", "global_index")]
        if any(type(number) is not int or not 0 <= number < NUMBER_MAX for number in numbers):
            raise CorruptData(f"a void of {numbers!r}")
        partition, first, last, assigned = (int(number or 0) for number in numbers)
        digest, applied = fields.get("digest"), fields.get("applied")
        if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES or type(applied) is not bool:
            raise CorruptData(f"a void of partition {partition} without a digest, or whether it was applied")
        found = cls(
            PartitionId(partition),
            PartitionLogIndex(first),
            PartitionLogIndex(last),
            digest,
            GlobalLogIndex(assigned),
            raft_index,
            applied,
        )
        found.check()
        return found

    def check(self) -> None:
        """Raises CorruptData if there can be no such batch."""
        if not 0 < self.first_index <= self.last_index or self.global_index < 1 or self.partition_id >= 1 << 32:
            raise CorruptData(f"a void of partition {self.partition_id} from {self.first_index} to {self.last_index}")


@dataclass(frozen=True)
class Voids:
    """All of them, as of one place in the parent log. A value: of the rows the newest ``KEPT_MAX`` are kept."""

    count: int = 0
    """How many there ever were."""
    kept: tuple[Void, ...] = ()

    def of(self, partition_id: PartitionId) -> list[Void]:
        """Those of one partition that are kept, in the order in which they were declared."""
        return [each for each in self.kept if each.partition_id == partition_id]

    def find(self, partition_id: PartitionId, last_index: int, digest: bytes) -> Void | None:
        """What counts of this batch: the last word."""
        wanted = partition_id, last_index, digest
        rows = (each for each in reversed(self.kept) if (each.partition_id, each.last_index, each.digest) == wanted)
        return next(rows, None)

    def needed(self, partition_id: PartitionId, through: int = NUMBER_MAX) -> Void | None:
        """The last one, up to index ``through``, that states have in them: none of its partition begins in front of it.

        The log says of it what it says of any other: from there on it would be stepped over.
        """
        last_words = {(each.last_index, each.digest): each for each in self.of(partition_id)}
        found = [each for each in last_words.values() if each.applied and each.last_index <= through]
        return max(found, key=lambda each: each.last_index, default=None)

    def needed_behind(self, index: GlobalLogIndex, lives: Callable[[PartitionId], bool]) -> bool:
        """A set that ends at ``index`` does not stand for all of those, in partitions that live."""
        if not any(each.applied and each.global_index > index for each in self.kept):  # it is asked all the time
            return False
        last_words = {(each.partition_id, each.last_index, each.digest): each for each in self.kept}
        return any(v.applied and v.global_index > index and lives(v.partition_id) for v in last_words.values())

    def after(self, void: Void) -> Voids:
        """With one more; unchanged if it says nothing new."""
        before = self.find(void.partition_id, void.last_index, void.digest)
        if before is not None and (before.applied == void.applied or void.applied):
            return self  # once nobody has it applied, nobody ever will
        return replace(self, count=self.count + 1, kept=(*self.kept, void)[-KEPT_MAX:])

    def encode(self) -> bytes:
        """See the module."""
        return HEAD.pack(self.count, len(self.kept)) + b"".join(ROW.pack(*each) for each in self.kept)

    @classmethod
    def decode(cls, raw: bytes) -> tuple[Voids, int]:
        """What ``encode`` made, and how many bytes of ``raw`` it is. Raises CorruptData."""
        if len(raw) < HEAD.size:
            raise CorruptData(f"voids in {len(raw)} bytes")
        count, kept = HEAD.unpack_from(raw)
        end = HEAD.size + kept * ROW.size
        if kept > min(count, KEPT_MAX) or count >= NUMBER_MAX or len(raw) < end:
            raise CorruptData(f"{kept} voids of {count} in {len(raw)} bytes")
        rows = []
        for partition, first, last, digest, assigned, raft_index, applied in ROW.iter_unpack(raw[HEAD.size : end]):
            if applied > 1 or max(first, last, assigned, raft_index) >= NUMBER_MAX:
                raise CorruptData(f"a void of partition {partition} from {first} to {last}")
            rows.append(Void(partition, first, last, digest, assigned, raft_index, bool(applied)))
            rows[-1].check()
        return cls(count, tuple(rows)), end


def voided_in(commands: Iterable[bytes]) -> dict[bytes, Void]:
    """By digest: what these commands of the parent log declare void. Raises CorruptData."""
    found = (unpack_control(command) for command in commands)
    voids = [Void.parse(fields) for fields in found if fields is not None and fields.get("do") == VOID]
    return {void.digest: void for void in voids}
