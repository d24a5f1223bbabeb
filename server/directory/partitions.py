"""The one place that knows how a partition is opened: its log, its machine, its worker, its share of the memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from dispatcher.pipeline.rooms import Opened, Progressed
from dispatcher.upkeep.compaction import removes
from dispatcher.upkeep.rebuilding import Rebuilt, Remade, SetNeeded
from logboom.errors import ConfigError, InvalidRequest
from logboom.settings import ApplySettings, LogSettings, Settings
from logboom.state_machine import Machine
from logboom.types import PartitionId
from partitions.apply.apply_core import Begun
from partitions.apply.apply_counts import ApplyCounts
from partitions.apply.slow_groups import SlowGroups
from partitions.apply.worker import ApplyWorker
from partitions.log.files import Shelf
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from partitions.machines import BUILT_IN, discard, machine_class, open_machine
from partitions.machines.absent import AbsentMachine
from ports.invariant import InvariantViolated
from ports.offload import Offload
from raftlog.entries.lifecycle import PartitionKind
from raftlog.entries.parent_state import EMPTY, ParentState
from raftlog.entries.voids import Voids
from server.directory.data_dir import DataDir, number_in
from server.directory.descriptors import Descriptors
from server.directory.directories import NO_ROOM
from server.directory.shares import later_apply_share, later_log_share, without_age
from server.directory.states import NOTHING_VOID, STATE, LeadsTo, States
from server.directory.trials import carry_over, kept
from server.world.world import World
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

SLOW_S: Final = 30.0


class PartitionRooms:
    """See the module and ``dispatcher.pipeline.rooms.Rooms``."""

    def __init__(
        self,
        *,
        settings: Settings,
        world: World,
        data_dir: DataDir,
        sets: SnapshotStore,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._world = world
        self._disk = world.disk
        self._data_dir = data_dir
        self._fatal = fatal
        self._states = States(
            disk=world.disk, sets=sets, directory_of=data_dir.partition, open_machine=self._open_machine
        )
        self._kinds: dict[PartitionId, PartitionKind] = {}
        """Of all that were open here, until they are removed."""
        self._kinds_tried: set[str] = set()
        """State machines of users that could be opened here."""
        self._trying: dict[str, threading.Lock] = {}
        """Of those that were not: one trial of each at a time, which may not end."""
        self._users: dict[str, Offload] = {}
        """Threads of users' state machines."""
        self.lacking: dict[PartitionId, SetNeeded] = {}
        """Partitions whose state is gone, and why nothing here makes it anew; as found at the start."""
        self.logs: dict[PartitionId, PartitionLog] = {}
        self.machines: dict[PartitionId, Machine] = {}
        self.ending: dict[PartitionId, Machine] = {}
        self.destroyed: set[PartitionId] = set()
        self.counts = ApplyCounts()
        self._slow = SlowGroups()
        self._apply: dict[PartitionId, ApplySettings] = {}
        self._fresh_logs: dict[PartitionId, PartitionLog] = {}
        self._fresh: dict[PartitionId, Opened] = {}
        """Partitions that were opened, and have no worker yet."""
        self._descriptors = Descriptors(world, self.logs, self.destroyed, self._stateless, lambda: self._shelf.count)
        self._shelf = Shelf(settings.log.open_files_node_max, may_keep=self._descriptors.to_spare)

    # -- at a start

    def open_all(
        self,
        parent: ParentState,
        kinds: dict[PartitionId, PartitionKind],
        *,
        installing: SetMeta | None,
        apply: ApplySettings,
        logs: LogSettings,
        leads_to: LeadsTo,
    ) -> None:
        """Those in ``kinds``, from the journal's base, where ``parent`` is the state. Blocking.

        ``leads_to``: where the journal does.
        """
        directories = [self._data_dir.partition(p) for p in kinds]
        self._disk.make_directories(directories)
        # Of those that are there no name is synced, which were a sync for each: the first file of a log does that.
        states = (each / STATE for each in directories)
        self._disk.make_directories([each for each in states if not self._disk.exists(each)])
        for partition_id, kind in kinds.items():
            tail = parent.tails.get(partition_id, EMPTY)
            base = LogBase(tail.last_index, tail.digest, tail.global_index)
            self.logs[partition_id] = self._open_log(partition_id, kind, logs, base)
            self._kinds[partition_id], self._apply[partition_id] = kind, apply
            store = self.logs[partition_id]
            if store.highest_index or partition_id >= self._settings.cluster.partitions:
                found, begun = self._state(partition_id, store, installing, parent.voids, leads_to)
            else:  # whoever has just written the settings had better be told than have an empty partition damaged
                trial = self.trial(kind.state_machine)
                if trial is not None:
                    machine_class(kind.state_machine)  # which says better what there is
                    trial(partition_id)
                found = self._states.open(partition_id, store, installing, parent.voids, leads_to=leads_to)
                begun = Begun.of(found.machine, apply)
            self.machines[partition_id] = found.machine
            self._fresh[partition_id] = Opened(found.machine, found.lacks, begun)
            if found.lacks is not None:
                self.lacking[partition_id] = found.lacks

    def remove_gone(self, parent: ParentState) -> None:
        """Directories of what was destroyed before the journal begins: a crash may have left them. Blocking."""
        for number in map(number_in, self._data_dir.partition_directories(self._disk)):
            if number is not None and parent.lifecycle.is_gone(number):
                self.remove(PartitionId(number))
                log.info("partition_removed", partition=number)

    # -- while the node runs (Rooms)

    def check(self, state_machine: str) -> None:
        """See Rooms."""
        try:
            machine_class(state_machine)
        except ConfigError as error:
            raise InvalidRequest(error.message) from error
        except Exception as error:  # a user's module
            raise InvalidRequest(f"state machine {state_machine!r} cannot be loaded: {error!r}") from error

    def check_room(self, more: int) -> None:
        """See Rooms. Where it is handed up nobody can refuse it: all nodes would end, then and at every start."""
        why = self._descriptors.lacking(more)
        if why is not None:
            raise InvalidRequest(f"no room for another partition: {why}")

    def room(self) -> int | None:
        """See Rooms."""
        return self._descriptors.room()

    def waits_for_files(self, more: int) -> str | None:
        """See Rooms."""
        return self._descriptors.waits(more)

    def file_left(self) -> bool:
        """See Rooms."""
        return self._descriptors.one_left()

    def trial(self, state_machine: str) -> Callable[[PartitionId], None] | None:
        """See Rooms. In a directory of its own, which is removed."""
        known = state_machine in BUILT_IN or state_machine in self._kinds_tried
        if known:
            return None
        alone = self._trying.setdefault(state_machine, threading.Lock())
        return partial(self._try, state_machine, alone, list(self._trying).index(state_machine))

    def _try(self, state_machine: str, alone: threading.Lock, place: int, partition_id: PartitionId) -> None:
        directory = self._data_dir.path / f"trial-{place}"
        with alone:
            if self._disk.exists(directory):
                self._disk.remove_directory(directory)
            self._disk.make_directory(directory)
            opened = list[Machine]()
            doing = "opened"
            try:
                for name in ("one", "other"):
                    opened.append(self._on_trial(state_machine, partition_id, directory / name))
                doing = "dumped and loaded"  # as whoever lags is given it, long after it was created
                carry_over(*opened)
                doing = "opened again"  # as after a restart
                opened[0].checkpoint()
                opened.pop(0).close()
                opened.append(self._on_trial(state_machine, partition_id, directory / "one"))
                kept(opened[-1])
                doing = "closed"
                for machine in opened:
                    discard(machine)
            except Exception as error:
                for machine in opened:
                    with suppress(Exception):
                        discard(machine)
                raise InvalidRequest(f"state machine {state_machine!r} cannot be {doing} here: {error!r}") from error
            finally:
                if self._disk.exists(directory):
                    self._disk.remove_directory(directory)
        self._kinds_tried.add(state_machine)

    def _on_trial(self, state_machine: str, partition_id: PartitionId, directory: Path) -> Machine:
        machine = open_machine(
            state_machine,
            directory,
            partition_id,
            later_apply_share(self._settings.apply, len(self.machines) + 1),
            disk=self._disk,
            open_state_file=self._world.open_state_file,
        )
        machine.position()
        for _ in machine.meta():
            pass
        return machine

    def open_log(self, partition_id: PartitionId, kind: PartitionKind) -> PartitionLog:
        """See Rooms."""
        directory = self._data_dir.partition(partition_id)
        self._disk.make_directories((directory, directory / STATE))
        count = len(self.logs) + 1
        store = self._open_log(partition_id, kind, later_log_share(self._settings.log, count), LogBase())
        # What a process before this one left here came ahead of its entry, which is acknowledged as soon as it comes:
        # a start did not see this log, so nothing proves that it is on the disk.
        store.write_again(lambda _: False)
        self._fresh_logs[partition_id] = store
        return store

    def open(self, partition_id: PartitionId, kind: PartitionKind) -> Opened:
        """See Rooms."""
        store = self.logs[partition_id]
        self._fresh_logs.pop(partition_id, None)
        self._kinds[partition_id] = kind
        self._apply[partition_id] = later_apply_share(self._settings.apply, len(self.machines) + 1)
        found, begun = self._state(partition_id, store, None)
        opened = self._fresh[partition_id] = Opened(found.machine, found.lacks, begun)
        return opened

    def rebuild(self, partition_id: PartitionId, damaged: Machine, applied: int, voids: Voids) -> Remade:
        """Another machine in the place of a damaged one, which stays open; see States. Blocking."""
        store = self.logs[partition_id]
        return self._or_absent(partition_id, lambda: self._states.rebuild(partition_id, store, damaged, applied, voids))

    def renew(self, partition_id: PartitionId, through_index: int) -> bool:
        """Its state is made anew at the next start: see States. Blocking."""
        return self._states.renew(partition_id, through_index)

    @property
    def moves(self) -> int:
        """Entries that were loaded into machines made anew."""
        return self._states.moves

    def retire(self, gone: Machine, other: Machine) -> None:
        """Close one of the two that ``rebuild`` had to do with, for good. Blocking."""
        self._states.retire(gone, other)

    def offload(self, state_machine: str) -> Offload:
        """See Rooms."""
        if state_machine in BUILT_IN or self._world.users_offload is None:
            return self._world.apply_offload
        if state_machine not in self._users:
            try:
                self._users[state_machine] = self._world.users_offload(state_machine)
            except OSError as error:  # not one more thread is to be had
                log.warning("no_threads_of_its_own", state_machine=state_machine, error=str(error))
                return self._world.apply_offload
        return self._users[state_machine]

    def offloads(self) -> list[Offload]:
        """To be closed before this is."""
        return list(self._users.values())

    def worker(self, partition_id: PartitionId, progressed: Progressed, begun: Begun | None = None) -> ApplyWorker:
        """See Rooms."""
        fresh = self._fresh.pop(partition_id, None)
        offload = self.offload(self._kinds[partition_id].state_machine)
        return ApplyWorker(
            log=self.logs[partition_id],
            machine=self.machines[partition_id],
            offload=offload,
            save_offload=self._world.save_offload if offload is self._world.apply_offload else offload,
            clock=self._world.clock,
            settings=self._apply[partition_id],
            on_progress=progressed,
            fatal=self._fatal,
            counts=self.counts,
            slow=self._slow,
            begun=fresh.begun if fresh is not None else begun,
            reclaimable=removes(self._settings.snapshot, self._kinds[partition_id].state_machine),
        )

    def untouched(self, partition_id: PartitionId) -> bool:
        """See Rooms. A few names are looked at, on the loop: opening it has made no more than directories."""
        directory = self._data_dir.partition(partition_id)
        if not self._disk.exists(directory):
            return True
        names = self._disk.list(directory)
        return not names or (names == [STATE] and not self._disk.list(directory / STATE))

    def remove(self, partition_id: PartitionId) -> None:
        """See Rooms."""
        directory = self._data_dir.partition(partition_id)
        for known in (self._kinds, self._apply, self._fresh_logs):
            known.pop(partition_id, None)
        if self._disk.exists(directory):
            self._disk.remove_directory(directory)
            self._disk.sync_directory(directory.parent)

    def close(self) -> None:
        """All files, after everything that uses them has ended."""
        for partition_id, store in self._fresh_logs.items():
            self.logs.setdefault(partition_id, store)
        for partition_id, fresh in self._fresh.items():
            self.machines[partition_id] = fresh.machine
        for partition_id, machine in self.ending.items():
            try:
                discard(machine)
            except Exception as error:  # of a user: nobody needs it any more, and the others are to be saved
                log.exception("state_not_closed", partition=partition_id, error=repr(error))
        for partition_id, machine in self.machines.items():
            try:
                machine.close()
            except InvariantViolated:
                raise
            except Exception as error:  # a full map or disk, or a user's machine: the log has all that is not saved
                if isinstance(error, OSError) and error.errno not in NO_ROOM:
                    raise
                log.exception("state_not_saved", partition=partition_id, error=repr(error))
        self._states.close()
        for store in self.logs.values():
            store.close()

    # -- parts

    def _stateless(self) -> int:
        """Partitions whose states have given back their files, and which a start would open with all of them."""
        gone = [p for p in self.destroyed.copy() if p in self.logs and p not in self.ending]
        kinds = (self._kinds.get(p) for p in gone)  # which another thread may forget
        return sum(kind is None or kind.state_machine != "log" for kind in kinds)

    def _open_log(
        self, partition_id: PartitionId, kind: PartitionKind, settings: LogSettings, base: LogBase
    ) -> PartitionLog:
        if kind.state_machine != "log" or not self._settings.snapshot.retain_log_ms:
            settings = without_age(settings)
        opened = PartitionLog.open(
            disk=self._disk,
            directory=self._data_dir.partition(partition_id),
            partition_id=partition_id,
            settings=settings,
            mode=kind.mode,
            base=base,
            headers_only=kind.state_machine == "log",
            clock=self._world.clock,
            shelf=self._shelf,
        )
        for damage in opened.damage:
            log.error("damaged_bytes_fenced", partition=partition_id, **damage._asdict())
        return opened

    def _state(
        self,
        partition_id: PartitionId,
        store: PartitionLog,
        installing: SetMeta | None,
        voids: Voids = NOTHING_VOID,
        leads_to: LeadsTo | None = None,
    ) -> Remade:
        name = self._kinds[partition_id].state_machine
        with nullcontext() if name in BUILT_IN else _named_if_slow(partition_id, name):
            return self._or_absent(
                partition_id, lambda: self._states.open(partition_id, store, installing, voids, leads_to=leads_to)
            )

    def _or_absent(self, partition_id: PartitionId, find: Callable[[], Rebuilt]) -> Remade:
        """A user's class that is not here, or that cannot open it, costs its partition on this node, not the node."""
        name, apply = self._kinds[partition_id].state_machine, self._apply[partition_id]
        try:
            found = find()
            try:
                return Remade(found, Begun.of(found.machine, apply))
            except Exception:
                self._states.put_away(found.machine)
                raise
        except (OSError, InvariantViolated):
            raise
        except Exception as error:
            if name in BUILT_IN:
                raise
            log.exception("state_machine_not_opened", partition=partition_id, state_machine=name, error=repr(error))
            story = f"partition {partition_id}: its state machine {name!r} cannot be opened here: {error!r}"
            absent = AbsentMachine(story)
            return Remade(Rebuilt(absent, SetNeeded(story, to_be_fetched=False)), Begun.of(absent, apply))

    def _open_machine(self, partition_id: PartitionId, directory: Path) -> Machine:
        return open_machine(
            self._kinds[partition_id].state_machine,
            directory,
            partition_id,
            self._apply[partition_id],
            disk=self._disk,
            open_state_file=self._world.open_state_file,
        )


@contextmanager
def _named_if_slow(partition_id: PartitionId, name: str) -> Iterator[None]:
    """A call that does not return keeps its node from starting, or its partition from being there: nobody says why."""

    def tell() -> None:
        why = "its `open` or `load` has not returned: until then it is not there, and a node that starts does not go on"
        log.warning(
            "state_machine_still_opening", partition=partition_id, state_machine=name, after_s=SLOW_S, reason=why
        )

    timer = threading.Timer(SLOW_S, tell)
    timer.daemon = True
    with suppress(RuntimeError):  # not one more thread is to be had
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
