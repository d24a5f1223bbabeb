"""What a data directory says of itself: whose it is, and what must stay as it was when its data was written.

One small file, JSON so that people can read it, with a checksum so that a flipped bit is noticed. It says
nothing that the journal and the partition logs know better: indices and watermarks are theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, groupby, repeat
from typing import Annotated, Any, Final

import google_crc32c
import msgspec

from logboom.config import PARTITIONS_MAX
from logboom.errors import ConfigError, CorruptData, IncompatibleVersion, WrongNode
from logboom.settings import ClusterSettings
from logboom.types import DurabilityMode, NodeId, is_lineage
from raftlog.entries.voids import Void

FORMAT_VERSION: Final = 4
"""The format that says a lineage. 1 was a file called identity.json, with neither a checksum nor the rest."""
BEFORE_LINEAGE: Final = 3
"""The format that is written in a cluster's first history, once something was declared void."""
BEFORE_VOIDS: Final = 2
"""The format that is written as long as nothing was declared void."""


class VoidBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A committed batch that was lost on all nodes and declared void, for people: the log knows better."""

    partition: int
    first_index: int
    last_index: int
    digest: str
    global_index: int
    applied: bool


class PartitionKinds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``count`` consecutive partitions are."""

    count: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    state_machine: str
    mode: DurabilityMode


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one node's data directory is: whose, and what it holds."""

    node: str
    cluster: str
    members: tuple[str, ...]
    """Ids of all nodes that the directory was begun with, sorted; none: it was begun by one that joins."""
    partitions: tuple[PartitionKinds, ...]
    """From partition 0 on."""
    voids: tuple[VoidBatch, ...] = ()
    """The last of what was declared void."""
    lineage: str | None = ""
    """The history of the cluster that the data are of; empty: its first. None: a node joins, and has met nobody."""

    @staticmethod
    def of(node: NodeId, cluster: ClusterSettings, *, joins: bool = False) -> Manifest:
        """What a node with these settings writes."""
        each = map(cluster.partition, range(cluster.partitions))
        kinds = groupby(each, lambda chosen: (chosen.state_machine, DurabilityMode(chosen.mode)))
        return Manifest(
            node=node,
            cluster=cluster.id,
            members=() if joins else tuple(sorted(member.id for member in cluster.members)),
            partitions=tuple(PartitionKinds(sum(1 for _ in same), *kind) for kind, same in kinds),
            lineage=None if joins else "",
        )

    @property
    def version(self) -> int:
        """The oldest format that can say this."""
        if self.lineage != "":
            return FORMAT_VERSION
        return BEFORE_LINEAGE if self.voids else BEFORE_VOIDS

    def with_voids(self, voids: Iterable[Void]) -> Manifest:
        """The same manifest, which says what was declared void."""
        rows = (
            VoidBatch(
                partition=v.partition_id,
                first_index=v.first_index,
                last_index=v.last_index,
                digest=v.digest.hex(),
                global_index=v.global_index,
                applied=v.applied,
            )
            for v in voids
        )
        return msgspec.structs.replace(self, voids=tuple(rows))

    def check_owner(self, wanted: Manifest, where: str) -> None:
        """Raises WrongNode if the directory was made by others than ``wanted`` names."""
        if (self.node, self.cluster) != (wanted.node, wanted.cluster):
            raise WrongNode(
                f"{where} belongs to node {self.node!r} of cluster {self.cluster!r}, "
                f"not to {wanted.node!r} of {wanted.cluster!r}"
            )

    def check_members(self, wanted: Manifest, where: str) -> None:
        """Raises ConfigError for other members than those at the beginning. Only while the log says nothing of them."""
        if self.members and self.members != wanted.members:
            # Two configurations may have majorities that share no node: what one has committed the other forgets.
            raise ConfigError(
                f"cluster.members: {', '.join(wanted.members)}, and {where} is of a cluster with "
                f"{', '.join(self.members)}. Members are changed with `logboom members` while it runs",
                path="cluster.members",
            )

    def check_partitions(self, wanted: Manifest, used: Collection[int]) -> None:
        """Raises ConfigError if a partition in ``used``, those that something was ordered for, is to change."""
        now = list(wanted._each())
        before = chain(self._each(), repeat(None))
        for partition, had in zip(range(max(used, default=-1) + 1), before, strict=False):
            if partition in used:
                _check(partition, had, now[partition] if partition < len(now) else None, len(now))

    def _each(self) -> Iterator[PartitionKinds]:
        return chain.from_iterable(repeat(kind, kind.count) for kind in self.partitions)


def _check(partition: int, had: PartitionKinds | None, wanted: PartitionKinds | None, partitions: int) -> None:
    if wanted is None:
        raise ConfigError(
            f"cluster.partitions: {partitions}, and partition {partition} has data: set it to {partition + 1} or more",
            path="cluster.partitions",
        )
    if had is None:  # a manifest from before the partition was used: the directory was put together by hand
        raise CorruptData(f"partition {partition} has data, and the manifest does not name it")
    if had.state_machine != wanted.state_machine:
        path = f'cluster.overrides."{partition}".state_machine'
        raise ConfigError(
            f"{path}: {wanted.state_machine!r}, and partition {partition} has data of {had.state_machine!r}. "
            "Use another partition for it",
            path=path,
        )
    if had.mode is DurabilityMode.WRITE_BEHIND and wanted.mode is not had.mode:
        # What was committed write-behind may be on fewer disks than write-ahead takes for granted.
        path = f'cluster.overrides."{partition}".mode'
        raise ConfigError(
            f"{path}: {str(wanted.mode)!r}, and partition {partition} has data that was written behind. "
            "Use another partition for it",
            path=path,
        )


def encode(manifest: Manifest) -> bytes:
    """The file."""
    fields = msgspec.to_builtins(manifest)
    for name, without in (("voids", ()), ("lineage", "")):
        if fields[name] == without:
            del fields[name]
    return sealed(fields | {"format": manifest.version})


def decode(raw: bytes, *, path: str) -> Manifest:
    """Raises CorruptData or IncompatibleVersion, naming ``path``."""
    fields = unsealed(raw, path=path, advice=": put it back from a copy")
    version = fields.pop("format", None)
    if version is None:
        raise CorruptData(f"{path} is no manifest", path=path)
    if version not in (FORMAT_VERSION, BEFORE_LINEAGE, BEFORE_VOIDS):
        raise IncompatibleVersion(
            f"{path} has format {version}; this release reads {FORMAT_VERSION}. Nothing was changed",
            found=version,
            supported=FORMAT_VERSION,
        )
    try:
        found = msgspec.convert(fields, Manifest)
    except msgspec.ValidationError as error:
        raise CorruptData(f"{path} is no manifest: {error}", path=path) from error
    if not (found.lineage is None or is_lineage(found.lineage)) or encode(found) != raw:
        raise CorruptData(f"{path} is no manifest of format {version}", path=path)
    return found


def sealed(fields: dict[str, Any]) -> bytes:
    """A file with these fields and their checksum."""
    # Every format is read this far: a newer one must seal itself in the same way.
    checksum = google_crc32c.value(msgspec.json.encode(fields, order="sorted"))
    return msgspec.json.encode(fields | {"checksum": f"{checksum:08x}"}, order="sorted") + b"\n"


def unsealed(raw: bytes, *, path: str, advice: str = "", only: Collection[str] = ()) -> dict[str, Any]:
    """The fields of such a file; ``only`` these, if it says which. Raises CorruptData, naming ``path``."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        del fields["checksum"]
        whole = sealed(fields) == raw
    except (msgspec.MsgspecError, KeyError, ValueError, RecursionError) as error:
        raise CorruptData(f"{path} cannot be read: {error}", path=path) from error
    if not whole:
        raise CorruptData(f"{path} does not match its checksum{advice}", path=path)
    if only and fields.keys() - only:
        raise CorruptData(f"{path} says more than it should: {', '.join(sorted(fields.keys() - only))}", path=path)
    return fields


def unsealed_id(said: object, nbytes: int, *, path: str) -> bytes:
    """One of the ids in there. Raises CorruptData, naming ``path``."""
    with suppress(TypeError, ValueError):
        found = bytes.fromhex(said)  # type: ignore[arg-type]  # whatever it is
        if len(found) == nbytes and found.hex() == said:
            return found
    raise CorruptData(f"{path} has an id that is none", path=path)
