"""How writes to a partition are answered, where the log has said so: its ``ack``, and if it is linearizable. Sans-io.

``{"do": "set", "partition": id, "begun": n, "token": 16 bytes}`` with ``ack`` (``committed``, ``durable`` or
``applied``), ``linearizable`` (bool) or both; what it does not say stays as it was. A ``create`` (``.lifecycle``) may
say the same. What the log has not said is as in the settings. It counts for every write behind its place in the log.
Nobody proposes either before all nodes have agreed on ``partition_settings`` (``.agreed``); in front of that it has no
effect.

As bytes (little-endian): how many u32; then of each partition that was set, by rising id: id u32, ack u8 (0 not said,
1 committed, 2 durable, 3 applied), linearizable u8 (0 not said, 1 no, 2 yes).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from logboom.config import PARTITIONS_MAX
from logboom.errors import CorruptData
from logboom.settings import ClusterSettings
from logboom.types import Ack, PartitionId

SET: Final = "set"
"""What the control entry does."""
TOKEN_BYTES: Final = 16
ID_MAX: Final = (1 << 32) - 1
COUNT: Final = struct.Struct("<I")
ROW: Final = struct.Struct("<IBB")
ACKS: Final = (None, Ack.COMMITTED, Ack.DURABLE, Ack.APPLIED)
SAID: Final = (None, False, True)


class Chosen(NamedTuple):
    """What was said of one partition. None: nothing, it is as in the settings."""

    ack: Ack | None = None
    linearizable: bool | None = None

    def then(self, later: Chosen) -> Chosen:
        """What is said later counts, and of what it does not say what was said before."""
        return Chosen(
            self.ack if later.ack is None else later.ack,
            self.linearizable if later.linearizable is None else later.linearizable,
        )

    def fields(self) -> dict[str, Any]:
        """What ``parse`` reads."""
        said = {"ack": None if self.ack is None else str(self.ack), "linearizable": self.linearizable}
        return {name: value for name, value in said.items() if value is not None}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Chosen:
        """Raises CorruptData for what no leader proposes."""
        ack, linearizable = fields.get("ack"), fields.get("linearizable")
        if ack is not None and (not isinstance(ack, str) or ack not in set(Ack)):
            raise CorruptData(f"a control entry with ack {ack!r:.40}")
        if linearizable is not None and type(linearizable) is not bool:
            raise CorruptData(f"a control entry with linearizable {linearizable!r:.40}")
        return cls(None if ack is None else Ack(ack), linearizable)


NOTHING: Final = Chosen()
AllChosen = Mapping[PartitionId, Chosen]
"""Of those of which something was said."""


class Choice(NamedTuple):
    """A control entry, read."""

    partition_id: PartitionId
    begun: int
    """Partitions that the settings of the proposer name."""
    chosen: Chosen
    token: bytes
    """Whoever waits for it knows it by that."""

    def fields(self) -> dict[str, Any]:
        """What ``parse`` reads."""
        about = {"do": SET, "partition": self.partition_id, "begun": self.begun, "token": self.token}
        return {**about, **self.chosen.fields()}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Choice:
        """Raises CorruptData for what no leader proposes."""
        partition, begun, token = fields.get("partition"), fields.get("begun"), fields.get("token")
        if type(partition) is not int or not 0 <= partition <= ID_MAX:
            raise CorruptData(f"a control entry that sets partition {partition!r:.40}")
        if type(begun) is not int or not 1 <= begun <= PARTITIONS_MAX:
            raise CorruptData(f"a control entry of a cluster that began with {begun!r:.40} partitions")
        if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
            raise CorruptData(f"partition {partition} is set without a token")
        chosen = Chosen.parse(fields)
        if chosen == NOTHING:
            raise CorruptData(f"partition {partition} is set to nothing")
        return cls(PartitionId(partition), begun, chosen, token)


def is_linearizable(cluster: ClusterSettings, chosen: AllChosen, partition_id: PartitionId) -> bool:
    """As the log has said, else as the settings say: asked with every request."""
    said = chosen.get(partition_id, NOTHING).linearizable
    return cluster.is_linearizable(partition_id) if said is None else said


def acknowledgement(cluster: ClusterSettings, chosen: AllChosen, partition_id: PartitionId) -> tuple[Ack, bool]:
    """Its ack, and whether it is linearizable: as the log has said, else as the settings say."""
    ack = chosen.get(partition_id, NOTHING).ack
    return cluster.partition(partition_id).ack if ack is None else ack, is_linearizable(cluster, chosen, partition_id)


def encode_chosen(chosen: AllChosen) -> bytes:
    """See the module."""
    rows = [ROW.pack(p, ACKS.index(each.ack), SAID.index(each.linearizable)) for p, each in sorted(chosen.items())]
    return COUNT.pack(len(rows)) + b"".join(rows)


def decode_chosen(raw: bytes) -> tuple[dict[PartitionId, Chosen], int]:
    """What ``encode_chosen`` made, and how many bytes of ``raw`` it is. Raises CorruptData."""
    if len(raw) < COUNT.size:
        raise CorruptData(f"settings of partitions in {len(raw)} bytes")
    (count,) = COUNT.unpack_from(raw)
    end = COUNT.size + count * ROW.size
    if not count or len(raw) < end:
        raise CorruptData(f"settings of {count} partitions in {len(raw)} bytes")
    found, last = dict[PartitionId, Chosen](), -1
    for partition, ack, linearizable in ROW.iter_unpack(raw[COUNT.size : end]):
        if partition <= last or ack >= len(ACKS) or linearizable >= len(SAID) or not (ack or linearizable):
            raise CorruptData(f"settings of partition {partition}, after {last}, that cannot be")
        found[PartitionId(partition)] = Chosen(ACKS[ack], SAID[linearizable])
        last = partition
    return found, end
