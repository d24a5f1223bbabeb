"""What a start finds in the data directory, and opens: the journal, an install that was intended, the partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from logboom.errors import CorruptData, IndexCompacted
from logboom.settings import Settings
from logboom.types import GlobalLogIndex, NodeId
from raftlog.entries.configuration import NOBODY, Configuration
from raftlog.entries.lifecycle import kind_of, wrong_begin
from raftlog.entries.parent_state import ParentState
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership, Refill, Rejoining
from raftlog.links.directories import FEW_VOTERS
from server.directory.agreement import member_of
from server.directory.changes import begun_in, changes_in, created_in, ordered_in
from server.directory.data_dir import DataDir
from server.directory.directories import DIRECTORIES, own_id, refuse_former
from server.directory.install import Intent, install_logs
from server.directory.manifest import Manifest
from server.directory.partitions import PartitionRooms
from server.directory.refill import NOT_YET, Refills
from server.directory.rejoin import NO_MAJORITY, PERHAPS_ALONE, Memory, open_journal
from server.directory.remembered import check_remembered
from server.directory.shares import apply_share, log_share
from server.world.world import World
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)


class Opened:
    """All that a node has on its disk, open, and as old as its journal's base."""

    def __init__(
        self, settings: Settings, node_id: NodeId, world: World, *, fatal: Callable[[BaseException], None]
    ) -> None:
        """Opens it, in order (blocking). Raises typed errors; the process has to end then."""
        self._settings = settings
        self._node_id = node_id
        self._world = world
        self._fatal = fatal
        disk = world.disk
        manifest = Manifest.of(self._node_id, settings.cluster, joins=settings.node.join)
        self.data_dir = DataDir(
            Path(settings.node.data_dir).absolute(),
            disk=disk,
            manifest=manifest,
        )
        refuse_former(disk, self.data_dir.path)
        self._memory = Memory(disk, self.data_dir.path, self._world.rng.randbytes)
        self._refills = Refills(disk, self.data_dir.path, offload=world.apply_offload, fatal=fatal)
        self.journal, self._token = open_journal(
            self._open_journal,
            self._memory,
            begun=disk.exists(self.data_dir.path / DIRECTORIES),
            own=own_id(disk, self.data_dir.path),
            needed=self._is_needed,
            disk=disk,
            directory=self.data_dir.journal,
            partition=self.data_dir.partition,
        )
        self.sets = SnapshotStore(disk, self.data_dir.snapshots)
        intent = Intent(disk, self.data_dir.path)
        installing = self._install_logs(intent.read())
        self.parent = ParentState.decode(self.journal.base.state)
        self.membership = self._membership()
        begun = self.data_dir.manifest
        manifest = msgspec.structs.replace(manifest, members=begun.members, voids=begun.voids, lineage=begun.lineage)
        self.rooms = PartitionRooms(settings=settings, world=world, data_dir=self.data_dir, sets=self.sets, fatal=fatal)
        self._check_begin()
        if self.data_dir.manifest != manifest:
            self.data_dir.manifest.check_partitions(manifest, self._used())
            self.data_dir.adopt(manifest)
        self._open_partitions(installing)
        used = any(store.highest_index for store in self.rooms.logs.values())
        check_remembered(disk, self.data_dir.path, settings.apply, used=used)
        intent.done()

    def _open_journal(self, begun: bool) -> Journal:  # noqa: FBT001 - as open_journal has it
        return Journal.open(
            disk=self._world.disk,
            directory=self.data_dir.journal,
            cluster_id=self._settings.cluster.id,
            segment_bytes=self._settings.raft.journal_segment_bytes,
            random_bytes=self._world.rng.randbytes,
            begun=begun,
        )

    def _begins(self, parent: ParentState) -> Configuration:
        if parent.members is not None:
            return parent.members
        begun = self.data_dir.manifest
        return Configuration.of_settings(self._settings.cluster.members) if begun.members else NOBODY

    def _is_needed(self, journal: Journal) -> bool:
        """With this journal it is one of so few voters that nobody leads without it."""
        begins = self._begins(ParentState.decode(journal.base.state))
        voters = Membership(node_id=self._node_id, journal=journal, begins=begins).current.voters
        return self._node_id in voters and len(voters) <= FEW_VOTERS

    def _forget(self, foreign: bool) -> Rejoining:  # noqa: FBT001 - as Membership has it
        if foreign:
            self.data_dir.take_lineage(None, fatal=self._fatal)
        return self._memory.forget(offload=self._world.apply_offload, fatal=self._fatal)

    def _wait_for(self, term: int, index: int, lineage: str, foreign: bool) -> Refill:  # noqa: FBT001 - so has Membership
        refill = self._refills.keep(term, index, lineage)
        if foreign:
            self.data_dir.take_lineage(None, fatal=self._fatal)
        return refill

    def _membership(self) -> Membership:
        """What the log says counts; the settings only where it has said nothing yet.

        Then who is to join (`node.join`) is a member all the same, if it was one when its data were begun.
        """
        begun = self.data_dir.manifest
        begins = self._begins(self.parent)
        found = Membership(
            node_id=self._node_id, journal=self.journal, begins=begins, forget=self._forget, wait_for=self._wait_for
        )
        found.refill = self._refills.found()
        if found.refill is not None and found.lacks:
            waits, last = found.refill, self.journal.last_index
            log.warning("waits_for_members", term=waits.term, index=waits.index, last_index=last, advice=NOT_YET)
        if self._token is not None:
            found.rejoining = self._memory.rejoining(self._token, offload=self._world.apply_offload, fatal=self._fatal)
        if found.rejoining is not None and self._node_id in found.current.voters and len(found.current.voters) <= 2:
            alone = found.current.index <= 1 and len(found.current.voters) == 1
            write, advice = (log.warning, PERHAPS_ALONE) if alone else (log.error, NO_MAJORITY)
            write("rejoin_needs_a_leader", advice=advice, voters=list(found.current.voters))
        if found.current.index <= 1:
            begun.check_members(Manifest.of(self._node_id, self._settings.cluster), str(self.data_dir.path))
        elif set(found.current.ids) != {m.id for m in self._settings.cluster.members}:
            log.warning("cluster_members_of_settings_ignored", members=list(found.current.ids))
        self._compare_address(found.current)
        return found

    def _compare_address(self, current: Configuration) -> None:
        """Others go by what the log says, this node binds what its settings say."""
        seat, own = current.seat(self._node_id), member_of(self._settings)
        if current.index > 1 and seat is not None and seat[1:3] != (own.peer_address, own.client_address):
            log.warning(
                "address_of_settings_differs",
                settings=[own.peer_address, own.client_address],
                others_know=list(seat[1:3]),
                advice=f"`logboom members update {self._node_id}` tells them, if the settings are right",
            )

    def _check_begin(self) -> None:
        """The log and the settings agree on the partitions that the cluster began with.

        As far as the log is known to be committed: this node may have been the only one that was asked to create a
        partition, and the others begin with what the settings say now. What comes to be committed all the same ends
        the node where it is handed up (``Partitioning.check_begun``).
        """
        partitions, alone = self._settings.cluster.partitions, self.membership.current.voters == (self._node_id,)
        settled = sum(kind.count for kind in self.data_dir.manifest.partitions)
        said = begun_in(
            self.journal,
            committed=alone and self._token is None,
            opened=lambda partition: partition >= settled and not self.rooms.untouched(partition),
        )
        for begun in (self.parent.lifecycle.begins_with(partitions), *sorted(said)):
            if begun != partitions:
                raise wrong_begin(begun, partitions)

    def _used(self) -> set[int]:
        """Partitions of the settings that something was ordered for, committed or not."""
        if self._token is not None:  # the journal cannot tell
            return set(range(sum(kind.count for kind in self.data_dir.manifest.partitions)))
        begun, changes = self._settings.cluster.partitions, changes_in(self.journal)
        created = {
            *self.parent.lifecycle.created,
            *(change.partition_id for change in changes if change.kind is not None and change.begun == begun),
        }
        return {int(p) for p in {*self.parent.tails, *ordered_in(self.journal)} - created}

    def _install_logs(self, global_index: GlobalLogIndex | None) -> SetMeta | None:
        if global_index is None:
            return None
        try:
            meta = self.sets.get(global_index)
        except IndexCompacted as error:  # damaged since; whatever it was to fill asks for another
            if self._is_just_restored():
                raise self._not_restored(global_index) from error
            log.error("installing_given_up", global_index=global_index, error=str(error))
            return None
        if meta.raft_index < self.journal.base.index:  # a release before this one went on while it fetched the set
            log.error("installing_given_up", global_index=global_index, error="the journal begins behind it")
            return None
        install_logs(meta, disk=self._world.disk, journal=self.journal, directory_of=self.data_dir.partition)
        return meta

    def _is_just_restored(self) -> bool:
        """It has what `logboom restore` has put there and nothing else: empty it might lead, and the rest be gone."""
        begun = self.data_dir.manifest
        empty = self.journal.last_index == self.journal.base_index == 1
        return empty and self._token is None and bool(begun.members and begun.lineage)

    def _not_restored(self, global_index: GlobalLogIndex) -> CorruptData:
        why = next((str(each.error) for each in self.sets.damaged if each.global_index == global_index), "it is gone")
        path = str(self.data_dir.snapshots)
        story = f"{path}: the snapshot at {global_index}, which was restored here, cannot be used ({why})"
        return CorruptData(f"{story}: remove the data directory, and restore it again", path=path)

    def _open_partitions(self, installing: SetMeta | None) -> None:
        """Those that live where the journal begins, and those created since of which something is here."""
        cluster, lifecycle = self._settings.cluster, self.parent.lifecycle
        kinds = {p: kind_of(cluster, lifecycle, p) for p in lifecycle.ids(cluster.partitions)}
        kinds |= created_in(self.journal, begun=cluster.partitions, untouched=self.rooms.untouched)
        self.rooms.remove_gone(self.parent)
        self.rooms.open_all(
            self.parent,
            kinds,
            installing=installing,
            apply=apply_share(self._settings.apply, [kind.state_machine for kind in kinds.values()]),
            logs=log_share(self._settings.log, len(kinds)),
            leads_to=self.journal.leads_to,
        )
        created = {int(change.partition_id) for change in changes_in(self.journal)}
        strangers = self.data_dir.strangers(self._world.disk, {*map(int, kinds), *created})
        if strangers:
            log.warning("unknown_partition_directories_left_alone", names=strangers)
