"""A node's saved states: opened, and made anew when they are damaged or lag behind what the log still has. Blocking.

What is damaged is moved aside, never overwritten: ``state.damaged-<n>``, the newest one is kept. While a set is loaded
``state.loading`` lies beside the state: a start that finds it removes what is there of that state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from dispatcher.upkeep.rebuilding import Rebuilt, SetNeeded
from logboom.errors import CorruptData, IncompatibleVersion, IndexCompacted
from logboom.state_machine import Machine, Position
from logboom.types import NUMBER_MAX, GlobalLogIndex, PartitionId
from partitions.apply.dedupe import Producer
from partitions.log.log import PartitionLog
from partitions.machines import discard
from partitions.machines.guarded import Guarded
from partitions.machines.log import LogMachine
from ports.disk import Disk
from ports.invariant import InvariantViolated
from raftlog.entries.voids import Void, Voids
from server.directory.data_dir import number_in
from server.directory.install import check_section, find_section, restore_state
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

STATE: Final = "state"
"""Directory of a partition's state machine, in the partition's own."""
ASIDE: Final = "state.damaged-"
NOTHING_VOID: Final = Voids()
LOADING: Final = "state.loading"
"""Half of a set opens at NOWHERE, as a state does that has nothing: no log may be applied to it."""

LeadsTo = Callable[[int, int], bool]
"""Whether the journal leads to what was cut at this Raft index, in this term."""


def anywhere(_index: int, _term: int) -> bool:
    """Of sets that are looked at by what they have of a partition."""
    return True


class States:
    """See the module. ``open_machine``: in this directory, which exists. Of one partition one call at a time."""

    def __init__(
        self,
        *,
        disk: Disk,
        sets: SnapshotStore,
        directory_of: Callable[[int], Path],
        open_machine: Callable[[PartitionId, Path], Machine],
    ) -> None:
        self._disk = disk
        self._sets = sets
        self._directory_of = directory_of
        self._open_machine = open_machine
        self.moves = 0
        """Entries that were loaded: whether a machine takes any."""
        self._lock = threading.Lock()
        """For ``_retired``, which several threads change: one may be in a call that does not return."""
        self._retired: list[Machine] = []
        """Damaged, and open while somebody may look into them; and what was made and has not taken its place yet."""

    def _moved(self) -> None:
        self.moves += 1

    def open(
        self,
        partition_id: PartitionId,
        store: PartitionLog,
        installing: SetMeta | None,
        voids: Voids = NOTHING_VOID,
        *,
        leads_to: LeadsTo | None,
    ) -> Rebuilt:
        """At start. ``installing``: the node is made from this set, and no state stays behind it.

        ``voids``: of where the journal begins. ``leads_to``: where it leads; no state begins with another set, but with
        ``installing``: the others may be lost that this node has fetched it from. None: the partition is begun.
        """
        void = voids.needed(partition_id)
        needed = _needed(store, void)
        section = find_section(installing, partition_id) if installing is not None else None
        if section is not None:
            needed = max(needed, section.applied_index)
        half = self._disk.exists(self._marker(partition_id))
        if half:
            log.warning("state_half_loaded", partition=partition_id)
            self._remove_state(partition_id)
            self._loaded(partition_id)
        try:
            machine, at = self._opened(partition_id)
        except CorruptData as error:
            log.error("state_damaged", partition=partition_id, error=str(error))
            self._set_aside(partition_id)
            return self._remade(
                partition_id, self._opened(partition_id)[0], needed, installing, leads_to=leads_to, void=void
            )
        except Exception:
            if half or section is not None:  # a later start that can open it must not go on with what is there
                self._disk.replace_file(self._marker(partition_id), b"")
            raise
        most: int | None = None
        if at.applied_index >= needed and not half:
            most = self._further(partition_id, store, machine, leads_to)
            if most is None:
                return Rebuilt(machine, None)
            installing = None
        return self._remade(partition_id, machine, needed, installing, leads_to=leads_to, most=most, void=void)

    def rebuild(
        self,
        partition_id: PartitionId,
        store: PartitionLog,
        damaged: Machine,
        applied: int,
        voids: Voids = NOTHING_VOID,
    ) -> Rebuilt:
        """While the node runs: another machine in the place of a damaged one, which stays open until ``retire``.

        It had ``applied`` so far, which it is not asked itself any more. ``voids``: as of now.
        """
        with self._lock:
            self._retired.append(damaged)
        self._set_aside(partition_id)
        # Nor from a set that was fetched, and not installed: its log would be behind it, and who waits in between.
        void = voids.needed(partition_id, applied)
        needed = _needed(store, void)
        rebuilt = self._remade(partition_id, self._opened(partition_id)[0], needed, None, most=applied, void=void)
        with self._lock:
            self._retired.append(rebuilt.machine)  # nobody may be there any more to close it
        return rebuilt

    def renew(self, partition_id: PartitionId, through_index: int) -> bool:
        """While the node runs: the next start goes on from the newest set, which reaches so far, whatever is saved.

        Unless it is damaged: then it stands for nothing. False: no whole one does.
        """
        for meta in reversed(self._sets.sets()):
            section = find_section(meta, partition_id)
            if section is None or section.applied_index < through_index:
                continue
            try:
                check_section(self._sets, meta, section)
            except IndexCompacted:
                continue
            except (CorruptData, IncompatibleVersion) as error:
                log.error("snapshot_damaged", partition=partition_id, global_index=meta.global_index, error=str(error))
                self._sets.drop(meta.global_index)
            else:
                log.warning("state_to_be_made_anew", partition=partition_id, global_index=meta.global_index)
                self._disk.replace_file(self._marker(partition_id), b"")
                return True
        return False

    def retire(self, gone: Machine, other: Machine) -> None:
        """Nobody looks into ``gone`` any more; who closes ``other`` is known."""
        self._forget(gone, other)
        _give_up(gone)

    def put_away(self, machine: Machine) -> None:
        """It is of no use for now, and whole for all that is known: the next start opens it again."""
        self._forget(machine)
        with suppress(Exception):
            machine.close()

    def _forget(self, *machines: Machine) -> None:
        """Once: what was made and is damaged in its turn is in there twice."""
        with self._lock:
            for machine in machines:
                at = next((at for at, each in enumerate(self._retired) if each is machine), None)
                if at is not None:
                    del self._retired[at]

    def close(self) -> None:
        """Of what was damaged nothing is saved that matters."""
        for machine in self._retired:
            _give_up(machine)
        self._retired.clear()

    def _further(
        self, partition_id: PartitionId, store: PartitionLog, machine: Machine, leads_to: LeadsTo | None
    ) -> int | None:
        """Where a set is that has more than what was saved of a whole state, if it is to be gone on from all the same.

        It has what a batch in between did that can be read no more: nobody else may have that. Of a ``log`` it costs
        nothing to load, else it is loaded where something of the log is damaged. A user's machine may not take what
        the log gives it again.
        """
        helps = isinstance(machine, LogMachine) or (store.damage and not isinstance(machine, Guarded))
        if leads_to is None or not helps:
            return None
        for meta in reversed(self._sets.sets()):
            section = find_section(meta, partition_id)
            if section is None or not leads_to(meta.raft_index, meta.raft_term):
                continue
            if section.applied_index <= machine.position().applied_index:
                return None
            try:
                check_section(self._sets, meta, section)
            except (CorruptData, IncompatibleVersion, IndexCompacted) as error:  # what there is is whole
                log.error("snapshot_damaged", partition=partition_id, global_index=meta.global_index, error=str(error))
                continue
            return section.applied_index
        return None

    def _opened(self, partition_id: PartitionId) -> tuple[Machine, Position]:
        """And where it is. Raises CorruptData for all that is read of it before it applies anything."""
        directory = self._directory_of(partition_id) / STATE
        if not self._disk.exists(directory):
            self._disk.make_directory(directory)
        machine = self._open_machine(partition_id, directory)
        try:
            at = _look(machine)
        except CorruptData:
            _give_up(machine)
            raise
        except Exception:  # it may be whole: a user's ``discard`` would leave nothing of it
            self.put_away(machine)
            raise
        return machine, at

    def _remade(
        self,
        partition_id: PartitionId,
        machine: Machine,
        needed: int,
        installing: SetMeta | None,
        *,
        leads_to: LeadsTo | None = anywhere,
        most: int | None = None,
        void: Void | None = None,
    ) -> Rebuilt:
        refused: SetNeeded | None = None
        for meta in self._candidates(partition_id, needed, most, installing, leads_to):
            try:
                self._load(meta, partition_id, machine)
            except IndexCompacted:
                continue
            except (CorruptData, IncompatibleVersion) as error:
                log.error("snapshot_damaged", partition=partition_id, global_index=meta.global_index, error=str(error))
                machine = self._begun_anew(partition_id, machine)
                self._sets.drop(meta.global_index)
            except (OSError, InvariantViolated):
                raise
            except Exception as error:  # a machine of a user: other nodes may never have to load it
                log.exception("state_not_loaded", partition=partition_id, global_index=meta.global_index)
                story = f"partition {partition_id}: its state machine cannot load a snapshot: {error!r}"
                refused = refused or SetNeeded(story, meta.global_index)
                machine = self._begun_anew(partition_id, machine)
            else:
                return Rebuilt(machine, None)
        if needed == 0:
            log.warning("state_begins_anew", partition=partition_id)
            return Rebuilt(machine, None)
        if void is not None and needed == void.last_index:
            why = f"partition {partition_id}: states have what the batch up to {needed} did, which is void by now, and"
            lacks = SetNeeded(f"{why} there is no snapshot from behind it", GlobalLogIndex(void.global_index - 1))
        else:
            why = f"partition {partition_id}: the log begins at {needed + 1}, and there is no snapshot to begin with"
            lacks = SetNeeded(why)
        return Rebuilt(machine, refused or lacks)

    def _begun_anew(self, partition_id: PartitionId, half: Machine) -> Machine:
        """An empty one in the place of one that has loaded a part of something."""
        _give_up(half)
        self._remove_state(partition_id)
        self._loaded(partition_id)
        return self._opened(partition_id)[0]

    def _load(self, meta: SetMeta, partition_id: PartitionId, machine: Machine) -> None:
        """A crash in the midst of it leaves the marker."""
        self._disk.replace_file(self._marker(partition_id), b"")
        try:
            restore_state(self._sets, meta, partition_id, machine, moved=self._moved)
        except IndexCompacted:
            self._loaded(partition_id)  # nothing was
            raise
        try:
            _look(machine)
        except CorruptData as error:  # nor is the set damaged: the machine of a user gives back something else
            raise ValueError(f"what it has loaded: {error}") from error
        self._loaded(partition_id)

    def _loaded(self, partition_id: PartitionId) -> None:
        """What is there is whole, or nothing."""
        marker = self._marker(partition_id)
        self._disk.remove(marker)
        self._disk.sync_directory(marker.parent)

    def _remove_state(self, partition_id: PartitionId) -> None:
        directory = self._directory_of(partition_id)
        if self._disk.exists(directory / STATE):
            self._disk.remove_directory(directory / STATE)
            self._disk.sync_directory(directory)

    def _marker(self, partition_id: PartitionId) -> Path:
        return self._directory_of(partition_id) / LOADING

    def _candidates(
        self, partition_id: PartitionId, needed: int, most: int | None, first: SetMeta | None, leads_to: LeadsTo | None
    ) -> Iterator[SetMeta]:
        """Sets that its log goes on from, the newest first."""
        for meta in [first] if first is not None else reversed(self._sets.sets()):
            section = find_section(meta, partition_id)
            if section is None or not needed <= section.applied_index <= (NUMBER_MAX if most is None else most):
                continue
            if first is not None or (leads_to is not None and leads_to(meta.raft_index, meta.raft_term)):
                yield meta

    def _set_aside(self, partition_id: PartitionId) -> None:
        directory = self._directory_of(partition_id)
        names = (name.removeprefix(ASIDE) for name in self._disk.list(directory) if name.startswith(ASIDE))
        before = [number for number in map(number_in, names) if number is not None]
        target = directory / f"{ASIDE}{1 + max(before, default=0)}"
        self._disk.move_directory(directory / STATE, target)
        log.warning("state_set_aside", partition=partition_id, path=str(target))
        for number in before:
            self._disk.remove_directory(directory / f"{ASIDE}{number}")


def _needed(store: PartitionLog, void: Void | None) -> int:
    """A state goes on from no index before this."""
    return max(store.first_available_index - 1, 0 if void is None else void.last_index)


def _look(machine: Machine) -> Position:
    """Read what its worker begins with; returns where it is. Raises CorruptData.

    Of our own machines the bytes are checked. What a user's hands back has to be what it was given: nobody could begin.
    """
    users = isinstance(machine, Guarded)
    at = machine.position()
    for _, raw in machine.meta():
        if users:
            Producer.decode(raw)
    return at


def _give_up(machine: Machine) -> None:
    # It saves nothing: what is damaged is worth nothing, and where a user's would write by path is another's by now.
    with suppress(Exception):
        discard(machine)
