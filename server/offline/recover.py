"""``logboom recover``: a cluster of one out of a stopped node, when most of the others are lost for good.

What etcd calls to force a new cluster. The node's journal gets one more entry, of a term of its own: a configuration in
which it is the only voter. So everything that the journal has becomes committed, whether it was or not; what only
others had is gone. That is another history of the cluster, with a lineage (docs/decisions/0032-recover.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import msgspec

from logboom.errors import InvalidRequest, WrongNode
from logboom.settings import Settings
from logboom.types import LINEAGE_BYTES, NodeId
from ports.disk import Disk
from raftlog.entries.configuration import NOBODY, Configuration, Role
from raftlog.entries.entry import pack_control
from raftlog.entries.parent_state import ParentState
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership
from server.directory.data_dir import MANIFEST, SNAPSHOTS
from server.directory.directories import DIRECTORIES
from server.directory.install import INTENT
from server.directory.manifest import Manifest
from server.directory.manifest import decode as decode_manifest
from server.directory.manifest import encode as encode_manifest
from server.directory.refill import REFILL
from server.directory.refill import decode as decode_refill
from server.directory.rejoin import REJOIN
from server.offline.locking import locked
from server.offline.looking import LookingDisk
from server.offline.world import OfflineWorld, real_offline_world
from snapshots.meta import encode as encode_set
from snapshots.store import SnapshotStore


class Recovered(NamedTuple):
    """A node, and what it has: of several, take the one whose last entry is of the highest term, then index."""

    node: str
    data_dir: str
    last_term: int
    last_index: int
    """Of the Raft log's last entry; if ``done``, that is the one by which this node goes on alone."""
    committed_index: int
    """What is in front of it was committed for sure; behind it, perhaps."""
    voters: tuple[str, ...]
    """As this node knew them; itself if ``done``."""
    gone: tuple[str, ...]
    """Members that are none any more: their ids are not used again."""
    lineage: str
    """Of the history that the node is in."""
    sets_ahead: tuple[int, ...]
    """Snapshot sets, fetched from others, of what its journal does not have: they go, and what only they have."""
    done: bool


def recover(settings: Settings, *, act: bool, world: OfflineWorld | None = None) -> Recovered:
    """Have the stopped node that ``settings`` describe go on alone; without ``act`` only look what it has.

    Raises WrongNode for what is not its data directory, InvalidRequest for a node from which nothing can begin,
    CorruptData, IncompatibleVersion, ConfigError when it runs.
    """
    world = world or real_offline_world()
    disk, path = world.disk, Path(settings.node.data_dir).absolute()
    if not disk.exists(path / MANIFEST):
        raise WrongNode(f"{path} is no data directory of a node: it has no {MANIFEST}")
    with locked(disk, path, reading=not act):
        manifest = decode_manifest(disk.read_file(path / MANIFEST), path=str(path / MANIFEST))
        manifest.check_owner(Manifest.of(NodeId(settings.node.id), settings.cluster), str(path))
        for name, why in (
            (REJOIN, "it has forgotten what it acknowledged, and the others have not taken it back"),
            (INTENT, "it is being made from a snapshot: start it, stop it when it says `serving`, and try again"),
        ):
            if disk.exists(path / name):
                raise InvalidRequest(f"{path}: nothing can begin with this node: {why}")
        with _looked_at(LookingDisk(disk), path, settings, manifest, world.random_bytes) as found:
            about = found.about(done=False)  # what is refused is left as it is
        if not act:
            return about
        with _looked_at(disk, path, settings, manifest, world.random_bytes) as found:
            return found.recover()


@contextmanager
def _looked_at(
    disk: Disk, path: Path, settings: Settings, manifest: Manifest, random_bytes: Callable[[int], bytes]
) -> Iterator[_Node]:
    found = _Node(disk, path, settings, manifest, random_bytes)
    try:
        found.look()
        yield found
    finally:
        found.journal.close()


class _Node:
    """The data directory of the node that is to go on alone."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        settings: Settings,
        manifest: Manifest,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._disk = disk
        self._path = path
        self._settings = settings
        self._manifest = manifest
        self._sets = SnapshotStore(disk, path / SNAPSHOTS)
        self.journal = Journal.open(
            disk=disk,
            directory=path / "journal",
            cluster_id=manifest.cluster,
            random_bytes=random_bytes,
            begun=disk.exists(path / DIRECTORIES),
        )
        leads_to = self.journal.leads_to
        self._ahead = [meta for meta in self._sets.sets() if not leads_to(meta.raft_index, meta.raft_term)]
        self._known = NOBODY

    def look(self) -> None:
        """Who the members are. Raises InvalidRequest; ConfigError for settings with others at the beginning."""
        node, cluster, path = NodeId(self._manifest.node), self._settings.cluster, self._path
        begins = ParentState.decode(self.journal.base.state).members
        if begins is None:
            begins = Configuration.of_settings(cluster.members) if self._manifest.members else NOBODY
        self._known = Membership(node_id=node, journal=self.journal, begins=begins).current
        if self._known.index <= 1:
            self._manifest.check_members(Manifest.of(node, cluster), str(path))
        if self.journal.last_index == 1 or self._known.seat(node) is None:
            why = "it was removed from its cluster"
            if node not in self._known.removed:
                why = "it has never had anything of its cluster"
            raise InvalidRequest(f"{path}: nothing can begin with this node: {why}")
        if self._waits():
            why = "it was empty, and has not been given yet what others had by then: begin with one of those"
            raise InvalidRequest(f"{path}: nothing can begin with this node: {why}")
        if self._known.voters == (node,):
            raise InvalidRequest(f"{path}: this node is its cluster's only voter: start it")

    def _waits(self) -> bool:
        """The file outlives what it waits for until the node has handed that up. Raises CorruptData."""
        path = self._path / REFILL
        if not self._disk.exists(path):
            return False
        term, index, lineage = decode_refill(self._disk.read_file(path), path=str(path))
        _, last_index, last_term = self.journal.entries[-1]
        return self._manifest.lineage in (None, lineage) and (last_term, last_index) < (term, index)

    def about(self, *, done: bool) -> Recovered:
        """What there is."""
        _, index, term = self.journal.entries[-1]
        own = self._manifest.node
        gone = self._known.removed if done else tuple(node for node in self._known.ids if node != own)
        return Recovered(
            node=own,
            data_dir=str(self._path),
            last_term=term,
            last_index=index,
            committed_index=self.journal.base_index,
            voters=self._known.voters,
            gone=gone,
            lineage=self._manifest.lineage or "",
            sets_ahead=tuple(meta.global_index for meta in self._ahead),
            done=done,
        )

    def recover(self) -> Recovered:
        """The journal last: a crash before leaves a node that nobody talks to, and that cannot lead. Then again."""
        own = NodeId(self._manifest.node)
        alone = reduce(
            Configuration.removing, [n for n in self._known.ids if n != own], self._known.giving(own, Role.VOTER)
        )
        lineage = self._lineage()
        self._manifest = msgspec.structs.replace(self._manifest, lineage=lineage)
        self._disk.replace_file(self._path / MANIFEST, encode_manifest(self._manifest))
        self._relabel(lineage)
        if self._disk.exists(self._path / REFILL):  # of the history before
            self._disk.remove(self._path / REFILL)
            self._disk.sync_directory(self._path)
        term, index = self.journal.term + 1, self.journal.last_index + 1
        self.journal.setCurrentTerm(term, own)
        self.journal.add(pack_control(alone.fields()), index, term)
        self.journal.flush()
        self._known = alone
        return self.about(done=True)

    def _relabel(self, lineage: str) -> None:
        """Snapshot sets are of this history, too: who joins is given them. But none of what is not in it."""
        for meta in self._ahead:
            self._sets.remove(meta.global_index)
        self._sets.drop_fetches()
        for meta in self._sets.sets():
            raw = encode_set(msgspec.structs.replace(meta, lineage=lineage))
            self._disk.replace_file(self._path / SNAPSHOTS / f"{meta.global_index:020d}.set", raw)

    def _lineage(self) -> str:
        said = [self._manifest.cluster, self._manifest.lineage, self._manifest.node, *self.journal.entries[-1][1:]]
        raw = msgspec.json.encode([*said, self.journal.term])
        return hashlib.blake2b(raw, digest_size=LINEAGE_BYTES, person=b"logboom recover").hexdigest()
