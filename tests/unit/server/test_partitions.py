"""What a start does about the directories of partitions that were destroyed."""

from __future__ import annotations

import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from chaos.sim.disk import SimDisk
from dispatcher.upkeep.rebuilding import Rebuilt
from logboom.errors import CorruptData, InvalidRequest
from logboom.settings import ApplySettings, LogSettings, Settings, SnapshotSettings
from logboom.state_machine import NOWHERE, Position
from logboom.types import NO_DIGEST, NO_PRODUCER, DurabilityMode, GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from partitions.apply.apply_core import AppliedBatch
from partitions.machines.absent import AbsentMachine
from partitions.machines.guarded import guard
from partitions.machines.log import LogMachine
from raftlog.entries.entry import Route, pack_control, pack_routes
from raftlog.entries.lifecycle import Change, PartitionKind
from raftlog.entries.parent_state import ParentState
from raftlog.journal.journal import Journal
from server.directory import partitions
from server.directory.changes import created_in
from server.directory.partitions import PartitionRooms
from server.directory.states import NOTHING_VOID, anywhere
from server.directory.trials import THERE, carry_over
from tests.unit.partitions.batches import flush, make
from tests.unit.raftlog.store import failing_syncs

ROOT = Path("/data/partitions")


class Killed(Exception):
    pass


def made(disk: SimDisk, settings: Settings | None = None) -> PartitionRooms:
    data_dir = SimpleNamespace(
        partition=lambda p: ROOT / str(p), partition_directories=lambda d: d.list(ROOT) if d.exists(ROOT) else []
    )
    world = SimpleNamespace(
        disk=disk, apply_offload=None, save_offload=None, clock=None, open_state_file=None, no_files_left=lambda _: None
    )
    return PartitionRooms(
        settings=settings or Settings(),
        world=cast(Any, world),
        data_dir=cast(Any, data_dir),
        sets=cast(Any, None),
        fatal=lambda _: None,
    )


def filled(disk: SimDisk, *names: str) -> None:
    for name in names:
        disk.make_directory(ROOT / name / "state")
        for path in (ROOT / name / "a.log", ROOT / name / "state" / "b"):
            file = disk.open(path, create=True)
            file.write([b"x"], offset=0)
            file.sync()
            disk.sync_directory(path.parent)


def test_a_batch_that_came_ahead_of_its_entry_is_found_at_a_start() -> None:
    """Found by review: others that had lost it asked for it, and were told for ever that this node cannot say now."""
    disk = SimDisk(random.Random(1))
    journal = Journal.open(disk=disk, directory=Path("/j"), cluster_id="c", random_bytes=random.Random(0).randbytes)
    kind = PartitionKind("kv", DurabilityMode.WRITE_BEHIND)
    for number in (1, 2, 3):
        change = Change(PartitionId(number), 1, kind, bytes(15) + bytes([number]))
        journal.add(pack_control(change.fields()), number + 1, 1)
    journal.add(pack_routes([Route(PartitionId(1), Term(1), PartitionLogIndex(1), bytes(16))]), 5, 1)
    rooms, one = made(disk), PartitionId(3)
    store = rooms.open_log(one, kind)
    batch = make(1, NO_DIGEST, [b"x"])
    store.append(batch)
    flush(store)
    store.close()
    disk.kill()
    again = made(disk)
    assert created_in(journal, begun=1, untouched=again.untouched) == {1: kind, 3: kind}
    assert again.open_log(one, kind).holds(1, batch.digest)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("calls", range(1, 9))
def test_what_a_crash_left_of_a_removal_goes_at_the_next_start(calls: int, power: bool) -> None:
    for seed in range(10):
        disk = SimDisk(random.Random(seed))
        filled(disk, "0", "1", "2", "stranger")
        state = ParentState()
        state.change(Change(PartitionId(1), 2))
        left = calls

        def die(*_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        disk.hook = die
        with suppress(Killed):
            made(disk).remove_gone(state)
        disk.hook = None
        disk.power_loss() if power else disk.kill()
        for _ in range(2):
            made(disk).remove_gone(state)
            assert disk.list(ROOT) == ["0", "2", "stranger"]
            disk.power_loss()  # it may come back once more, if it was gone and nobody had synced that
        assert all(disk.exists(ROOT / name / "state" / "b") for name in ("0", "2", "stranger"))


def test_of_a_partition_that_was_opened_and_never_written_nothing_is_there() -> None:
    disk = SimDisk(random.Random(0))
    disk.make_directory(ROOT)
    rooms, partition = made(disk), PartitionId(3)
    assert rooms.untouched(partition)
    store = rooms.open_log(partition, PartitionKind("log", DurabilityMode.WRITE_AHEAD))
    assert rooms.untouched(partition)
    assert store.append(make(1, NO_DIGEST, [b"x" * 100]))
    job = store.take()
    assert job is not None
    job.run()
    assert not rooms.untouched(partition)
    filled(disk, "4")
    assert not rooms.untouched(PartitionId(4))


def test_a_state_machine_that_nobody_has_is_refused_before_it_is_proposed() -> None:
    rooms = made(SimDisk(random.Random(0)))
    rooms.check("kv")
    with pytest.raises(InvalidRequest, match="not known"):
        rooms.check("nobody-has-this")


@pytest.mark.parametrize(
    ("machine", "snapshot", "counted"),
    [
        ("kv", SnapshotSettings(), 7),
        ("log", SnapshotSettings(), 0),
        ("log", SnapshotSettings(retain_log_ms=1), 7),
        ("log", SnapshotSettings(retain_log_bytes=1), 7),
    ],
)
async def test_what_is_kept_for_ever_is_not_counted_as_reclaimable(
    machine: str, snapshot: SnapshotSettings, counted: int
) -> None:
    rooms, p = made(SimDisk(random.Random(1)), Settings(snapshot=snapshot)), PartitionId(0)
    rooms._kinds[p], rooms._apply[p] = PartitionKind(machine, DurabilityMode.WRITE_AHEAD), ApplySettings()
    rooms.logs[p] = cast(Any, SimpleNamespace(partition_id=p, committed_index=3))
    rooms.machines[p] = cast(Any, SimpleNamespace(position=lambda: NOWHERE, meta=list, unsaved_bytes=0))
    worker = rooms.worker(p, lambda *_: None)
    worker._clock = cast(Any, SimpleNamespace(monotonic=lambda: 0.0))
    worker.pause()
    worker._ended([AppliedBatch(1, 3, 1, NO_PRODUCER, 0, 0, 3, 7, 0, b"", None)], None)  # type: ignore[arg-type]
    assert (rooms.counts.bytes, rooms.counts.reclaimable) == (7, counted)


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_is_opened_after_the_start_survives_a_failed_sync_and_the_next_power_loss(seed: int) -> None:
    """Its batch is there when its entry comes, and counts as held: it had better be on the disk."""
    disk = SimDisk(random.Random(seed))
    disk.make_directory(ROOT)
    partition, kind = PartitionId(3), PartitionKind("log", DurabilityMode.WRITE_AHEAD)
    batch = make(1, NO_DIGEST, [b"x" * 100])
    log = made(disk).open_log(partition, kind)
    log.append(batch)
    job = log.take()
    assert job is not None
    disk.hook = failing_syncs(1)  # the header's goes well
    with pytest.raises(OSError, match=str(errno.EIO)):
        job.run()
    disk.hook = None
    disk.kill()
    assert made(disk).open_log(partition, kind).holds(batch.last_index, batch.digest)
    disk.power_loss()
    assert made(disk).open_log(partition, kind).holds(batch.last_index, batch.digest)


def test_a_trial_that_does_not_end_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: whoever asked for another machine waited for it, on threads that partitions of theirs need."""
    disk, begun, go_on = SimDisk(random.Random(0)), threading.Event(), threading.Event()
    disk.make_directory(ROOT)
    rooms = made(disk)
    rooms._data_dir.path = ROOT
    opened: list[Path] = []

    def opens(name: str, directory: Path, *_: object, **__: object) -> Any:
        opened.append(directory)
        if name == "hangs":
            begun.set()
            go_on.wait(60)
        raise RuntimeError("no")

    monkeypatch.setattr("server.directory.partitions.open_machine", opens)

    def tried(name: str) -> None:
        trial = rooms.trial(name)
        assert trial is not None
        with pytest.raises(InvalidRequest, match="RuntimeError"):
            trial(PartitionId(7))

    with ThreadPoolExecutor(2) as threads:
        hangs = threads.submit(tried, "hangs")
        assert begun.wait(20)
        try:
            threads.submit(tried, "other").result(5)
        finally:
            go_on.set()
        hangs.result(60)
    assert len({path.parent for path in opened}) == 2, "each in a directory of its own"


def test_of_what_is_removed_nothing_is_remembered() -> None:
    disk = SimDisk(random.Random(0))
    disk.make_directory(ROOT)
    rooms = made(disk)
    for number in range(10, 15):
        rooms.logs[PartitionId(number)] = rooms.open_log(
            PartitionId(number), PartitionKind("log", DurabilityMode.WRITE_AHEAD)
        )
        rooms.open(PartitionId(number), PartitionKind("log", DurabilityMode.WRITE_AHEAD))
        rooms.remove(PartitionId(number))
    assert (rooms._kinds, rooms._apply) == ({}, {})


class Closing:
    """A machine of which only the end is looked at."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.closed = False

    def close(self) -> None:
        self.closed = True
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(("number", "ends"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True)])
def test_a_state_for_which_there_is_no_room_keeps_no_node_from_stopping(number: int, ends: bool) -> None:
    """Found by review: a node that was stopped on a full disk ended with 1; the log has what is not saved."""
    rooms = made(SimDisk(random.Random(1)))
    one, other = Closing(OSError(number, "the disk")), Closing()
    rooms.machines = cast(Any, {PartitionId(0): one, PartitionId(1): other})
    with pytest.raises(OSError, match="the disk") if ends else nullcontext():
        rooms.close()
    assert (one.closed, other.closed) == (True, not ends)


def test_a_machine_whose_dump_says_another_position_is_refused_when_it_is_tried() -> None:
    disk = SimDisk(random.Random(1))
    one, other = LogMachine(disk, Path("/one")), LogMachine(disk, Path("/other"))
    dump = one.dump
    carry_over(one, other)
    assert other.position() == THERE
    stale = cast(Any, dump())
    stale.position = Position(PartitionLogIndex(0), GlobalLogIndex(0))
    setattr(one, "dump", lambda: stale)  # noqa: B010 - of a user, so to say
    with pytest.raises(ValueError, match="its dump says"):
        carry_over(one, LogMachine(disk, Path("/third")))


def test_one_that_nobody_needs_keeps_no_other_from_being_saved() -> None:
    rooms = made(SimDisk(random.Random(1)))
    gone, kept = Closing(OSError(errno.EIO, "of a user's machine")), Closing()
    rooms.ending = cast(Any, {PartitionId(0): gone})
    rooms.machines = cast(Any, {PartitionId(1): kept})
    rooms.close()
    assert gone.closed
    assert kept.closed


@pytest.mark.parametrize("error", [ModuleNotFoundError("no service"), CorruptData("a file"), TypeError("open")])
def test_a_class_that_does_not_open_when_a_state_is_made_anew_costs_its_partition(error: Exception) -> None:
    """Its node ended, whatever that raised; at a start one whose class found even a new state damaged did."""

    def fails(*_: object) -> NoReturn:
        raise error

    disk, p = SimDisk(random.Random(0)), PartitionId(3)
    filled(disk, "3")
    rooms, closed = made(disk), list[bool]()
    rooms._kinds[p], rooms._apply[p] = PartitionKind("mine", DurabilityMode.WRITE_AHEAD), ApplySettings()
    rooms.logs[p] = cast(Any, SimpleNamespace(first_available_index=1))
    rooms._states._open_machine = fails
    damaged = cast(Any, SimpleNamespace(close=lambda: closed.append(True)))
    (machine, lacks), _ = rooms.rebuild(p, damaged, 7, NOTHING_VOID)
    assert lacks is not None
    assert (lacks.to_be_fetched, repr(error) in lacks.story) == (False, True)
    with pytest.raises(CorruptData, match="cannot be opened here"):
        machine.get([b"k"])
    rooms.retire(damaged, machine)
    assert closed == [True]
    disk.make_directory(ROOT / "3" / "state")
    assert rooms._state(p, rooms.logs[p], None).rebuilt.lacks is not None
    rooms._kinds[p] = rooms._kinds[p]._replace(state_machine="kv")
    if not disk.exists(ROOT / "3" / "state"):
        disk.make_directory(ROOT / "3" / "state")
    with pytest.raises(type(error)):
        rooms.rebuild(p, damaged, 7, NOTHING_VOID)


@pytest.mark.parametrize("what", ["meta", "position"])
@pytest.mark.parametrize("how", ["start", "open", "rebuild"])
def test_one_that_opens_and_fails_behind_that_costs_its_partition_and_is_put_away(how: str, what: str) -> None:
    """It is asked once to see that it can be read, and then for its worker: of that its node ended, or nobody heard."""
    disk, p, asked = SimDisk(random.Random(0)), PartitionId(30), list[str]()
    rooms, kind = made(disk), PartitionKind("mine", DurabilityMode.WRITE_AHEAD)

    def answers(name: str, found: Any) -> Any:
        asked.append(name)
        if name == what and asked.count(name) == 2:
            raise ConnectionError("no service")
        return found

    machine = SimpleNamespace(
        needs_records=False,
        position=lambda: answers("position", NOWHERE),
        meta=lambda: iter(answers("meta", [])),
        close=lambda: asked.append("close"),
        discard=lambda: asked.append("discard"),
    )
    rooms._world.users_offload = None
    rooms._states._open_machine = lambda *_: guard("mine", cast(Any, machine))
    rooms._states._sets = cast(Any, SimpleNamespace(sets=list))
    disk.make_directory(ROOT)
    if how == "start":
        share: dict[str, Any] = {"apply": ApplySettings(), "logs": LogSettings(), "leads_to": anywhere}
        rooms.open_all(ParentState(), {p: kind}, installing=None, **share)
        lacks = rooms.lacking[p]
    else:
        rooms.logs[p] = rooms.open_log(p, kind)
        rooms._kinds[p], rooms._apply[p] = kind, ApplySettings()
        found: Any = (
            rooms.open(p, kind) if how == "open" else rooms.rebuild(p, cast(Any, Closing()), 0, NOTHING_VOID)[0]
        )
        lacks, rooms.machines[p] = found.lacks, found.machine
    assert "no service" in lacks.story
    assert isinstance(rooms.machines[p], AbsentMachine)
    assert rooms.worker(p, lambda *_: None).applied == NOWHERE
    rooms.close()
    assert (asked.count("close"), "discard" in asked) == (1, False), "it may be whole"


def test_a_machine_that_does_not_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node did not start, and said nothing: neither of which partition, nor that it waited for anything."""
    told, seen = threading.Event(), list[Any]()

    def warning(event: str, **about: Any) -> None:
        seen.append((event, about["partition"], about["state_machine"]))
        told.set()

    monkeypatch.setattr(partitions, "SLOW_S", 0.01)
    monkeypatch.setattr(partitions, "log", SimpleNamespace(warning=warning))
    rooms, p = made(SimDisk(random.Random(0))), PartitionId(3)
    rooms._kinds[p], rooms._apply[p] = PartitionKind("mine", DurabilityMode.WRITE_AHEAD), ApplySettings()

    def opens(*_: object, **__: object) -> Rebuilt:
        assert told.wait(20)
        return Rebuilt(AbsentMachine("slow"), None)

    rooms._states = cast(Any, SimpleNamespace(open=opens))
    assert rooms._state(p, cast(Any, None), None)
    assert seen == [("state_machine_still_opening", p, "mine")]
