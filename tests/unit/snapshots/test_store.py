"""Sets on a disk: complete or not there. What power losses leave is tests/storage's business, too."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import msgspec
import pytest

from chaos.sim.disk import SimDisk, SimFile
from logboom.errors import CorruptData, IndexCompacted, Unavailable
from logboom.types import GlobalLogIndex, PartitionId
from ports.disk import File
from ports.invariant import InvariantViolated
from server.world.disk_os import OsDisk
from snapshots.meta import SetMeta, encode
from snapshots.states import StatesWriter, read_section, verify_states
from snapshots.store import SnapshotStore
from tests.unit.snapshots.states_world import Dump, dumps, entries, set_meta

HERE = Path("/n/snapshots")


def index(number: int) -> GlobalLogIndex:
    return GlobalLogIndex(number)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(0))


@pytest.fixture
def store(disk: SimDisk) -> SnapshotStore:
    return SnapshotStore(disk, HERE)


def fill(writer: StatesWriter) -> SetMeta:
    for partition_id, dump in dumps(writer.global_index).items():
        writer.add(partition_id, "kv", dump)
    return set_meta(writer.finish())


def make(store: SnapshotStore, number: int) -> SetMeta:
    writer = store.begin(index(number))
    meta = fill(writer)
    store.complete(writer, meta)
    return meta


def fetched(store: SnapshotStore, number: int) -> bytes:
    """What another node has of a set is here; its description."""
    other = SnapshotStore(SimDisk(random.Random(2)), HERE)
    make(other, number)
    source, (file, _) = other.open_states(index(number)), store.fetch(index(number))
    file.write([source.read(offset=0, length=source.size())], offset=0)
    for each in (source, file):
        each.close()
    return other.raw_meta(index(number))


def indices(store: SnapshotStore) -> list[int]:
    return [meta.global_index for meta in store.sets()]


def content(store: SnapshotStore, meta: SetMeta) -> dict[PartitionId, Dump]:
    file = store.open_states(meta.global_index)
    try:
        verify_states(file, meta)
        return {each.partition_id: list(read_section(file, each)) for each in meta.partitions}  # type: ignore[misc]
    finally:
        file.close()


def expected(number: int) -> dict[PartitionId, object]:
    return {partition: dump.given for partition, dump in dumps(number).items()}


class TestSets:
    def test_a_complete_one_is_there_after_opening_again(self, disk: SimDisk, store: SnapshotStore) -> None:
        metas = [make(store, number) for number in (30, 10, 20)]
        for each in (store, SnapshotStore(disk, HERE)):
            assert each.sets() == sorted(metas, key=lambda meta: meta.global_index)
            for meta in metas:
                assert content(each, meta) == expected(meta.global_index)
            assert each.damaged == ()

    def test_on_real_files(self, tmp_path: Path) -> None:
        store = SnapshotStore(OsDisk(), tmp_path / "snapshots")
        meta = make(store, 10)
        store.begin(index(20)).close()
        store = SnapshotStore(OsDisk(), tmp_path / "snapshots")
        assert (store.sets(), content(store, meta)) == ([meta], expected(10))
        assert sorted(each.name for each in (tmp_path / "snapshots").iterdir()) == [
            f"{10:020d}.set",
            f"{10:020d}.states",
        ]

    def test_equal_states_are_equal_bytes(self, tmp_path: Path) -> None:
        """Whatever the disk, and whatever there was before."""
        one, other = SnapshotStore(SimDisk(random.Random(1)), HERE), SnapshotStore(OsDisk(), tmp_path)
        make(other, 5)
        assert make(one, 10).states_digest == make(other, 10).states_digest

    def test_the_newest_are_kept(self, disk: SimDisk, store: SnapshotStore) -> None:
        for number in (10, 20, 30, 40):
            make(store, number)
        assert store.prune(2, but=[index(10)]) == [20]
        assert [store.prune(2), store.prune(2)] == [[10], []]
        assert indices(store) == indices(SnapshotStore(disk, HERE)) == [30, 40]
        assert len(disk.list(HERE)) == 4
        with pytest.raises(InvariantViolated):
            store.prune(0)

    def test_what_was_removed_can_be_read_on_but_not_opened(self, store: SnapshotStore) -> None:
        meta, kept = make(store, 10), make(store, 20)
        file = store.open_states(index(10))
        store.remove(index(10))
        verify_states(file, meta)
        for number in (10, 15):
            with pytest.raises(IndexCompacted) as caught:
                store.open_states(index(number))
            assert caught.value.first == kept.global_index

    def test_an_index_has_one_set(self, store: SnapshotStore) -> None:
        make(store, 10)
        for act in (store.receive, store.discard):
            with pytest.raises(InvariantViolated):
                act(index(10))
        with pytest.raises(Unavailable, match="already"):
            store.begin(index(10))
        with pytest.raises(InvariantViolated):
            store.remove(index(11))

    def test_it_is_made_by_one_at_a_time(self, disk: SimDisk, store: SnapshotStore) -> None:
        """One that is taken here may wait for a user's machine for ever; another node's may come meanwhile."""
        raw = fetched(store, 10)
        taken = store.begin(index(10))
        for other in (lambda: store.begin(index(10)), lambda: store.adopt_fetched(raw, index(10))):
            with pytest.raises(Unavailable, match="being made here already"):
                other()
        store.abandon(taken)
        assert store.adopt_fetched(raw, index(10)).global_index == 10
        store.drop(index(10))
        store.drop(index(10))
        make(store, 10)
        fetched(store, 10)
        assert store.adopt_fetched(raw, index(10)).global_index == 10, "the same was taken here meanwhile"
        assert not [name for name in disk.list(HERE) if name.endswith("fetch")]

    def test_a_meta_that_does_not_fit_is_not_published(self, disk: SimDisk, store: SnapshotStore) -> None:
        writer = store.begin(index(10))
        meta = fill(writer)
        with pytest.raises(InvariantViolated):
            store.complete(writer, msgspec.structs.replace(meta, states_digest=bytes(16)))
        assert indices(store) == indices(SnapshotStore(disk, HERE)) == []


class TestForGood:
    @pytest.mark.parametrize("seed", range(20))
    def test_what_was_removed_is_gone_after_a_power_loss(self, seed: int) -> None:
        disk = SimDisk(random.Random(seed))
        store = SnapshotStore(disk, HERE)
        for number in (10, 20):
            make(store, number)
        store.remove(index(10))
        names = disk.list(HERE)
        disk.power_loss()
        assert disk.list(HERE) == names
        assert indices(SnapshotStore(disk, HERE)) == [20]

    def test_nothing_is_left_open(self, disk: SimDisk, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> None:
        left: list[Path] = []
        opened, closed = SimDisk.open, SimFile.close

        def opening(on: SimDisk, path: Path, **how: bool) -> SimFile:
            left.append(path)
            return opened(on, path, **how)

        def closing(file: SimFile) -> None:
            left.remove(file.path)
            closed(file)

        monkeypatch.setattr(SimDisk, "open", opening)
        monkeypatch.setattr(SimFile, "close", closing)
        meta = make(store, 10)
        assert content(store, meta) == expected(10)
        list(store.scrub(index(10)))
        abandoned = store.begin(index(20))
        store.abandon(abandoned)
        SnapshotStore(disk, HERE)
        disk.flip(HERE / f"{10:020d}.states", 3, 1)
        with pytest.raises(CorruptData):
            store.open_states(index(10))
        assert left == []


class TestLeftovers:
    def test_an_abandoned_one_leaves_nothing(self, disk: SimDisk, store: SnapshotStore) -> None:
        writer = store.begin(index(10))
        fill(writer)
        store.abandon(writer)
        assert disk.list(HERE) == []
        assert make(store, 10) == store.sets()[0]

    def test_what_belongs_to_no_set_goes_and_nothing_else(self, disk: SimDisk, store: SnapshotStore) -> None:
        make(store, 10)
        names = [f"{n:020d}.{kind}" for n, kind in ((20, "states"), (10, "states.partial"), (30, "set.new"))]
        for name in [*names, "README", "0010.states", f"{40:020d}.state"]:
            disk.open(HERE / name, create=True)
        assert indices(SnapshotStore(disk, HERE)) == [10]
        left = {"README", "0010.states", f"{40:020d}.state", f"{10:020d}.set", f"{10:020d}.states"}
        assert set(disk.list(HERE)) == left

    @pytest.mark.parametrize("number", range(60))
    def test_a_call_that_fails_leaves_a_whole_set_or_none(self, number: int, disk: SimDisk) -> None:
        store = SnapshotStore(disk, HERE)
        old = make(store, 10)
        calls = 0

        def fail(*_: object) -> None:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                raise OSError(errno.EIO, "Input/output error")

        disk.hook = fail
        writer = None
        try:
            writer = store.begin(index(20))
            store.complete(writer, fill(writer))
            store.remove(index(10))
        except OSError:
            disk.hook = None
            if 20 not in indices(store) and writer is not None:
                store.abandon(writer)
                assert len(disk.list(HERE)) == 2
        disk.hook = None
        disk.power_loss()
        again = SnapshotStore(disk, HERE)
        assert again.damaged == ()
        assert set(indices(again)) >= set(indices(store))
        for meta in again.sets():
            assert content(again, meta) == expected(meta.global_index)
        assert old in again.sets() or 20 in indices(again)


def spoil(disk: SimDisk, name: str, at: int = 40) -> None:
    disk.flip(HERE / name, at, 1)


class TestDamage:
    def test_a_damaged_set_is_reported_left_alone_and_not_offered(self, disk: SimDisk, store: SnapshotStore) -> None:
        for number in (10, 20, 30):
            make(store, number)
        names = disk.list(HERE)
        spoil(disk, f"{20:020d}.set")
        disk.cut(HERE / f"{30:020d}.states", 50)
        for _ in range(2):
            store = SnapshotStore(disk, HERE)
            assert indices(store) == [10]
            assert [each.global_index for each in store.damaged] == [20, 30]
            assert str(HERE / f"{20:020d}.set") in str(store.damaged[0].error)
            assert str(HERE / f"{30:020d}.states") in str(store.damaged[1].error)
            assert disk.list(HERE) == names

    def test_one_that_the_disk_cannot_read_is_damaged_too(self, disk: SimDisk, store: SnapshotStore) -> None:
        """Found by review: a bad sector in a set, which others replace, kept its node from starting."""
        for number in (10, 20):
            make(store, number)
        bad, errors = HERE / f"{20:020d}.set", [errno.EIO, errno.EACCES]

        def hook(operation: str, path: Path, _: int) -> None:
            if operation == "read" and path == bad:
                raise OSError(errors[0], "the disk")

        disk.hook = hook
        again = SnapshotStore(disk, HERE)
        assert (indices(again), [each.global_index for each in again.damaged]) == ([10], [20])
        errors.pop(0)
        with pytest.raises(OSError, match="the disk"):
            SnapshotStore(disk, HERE)

    def test_one_without_its_states_or_under_another_name(self, disk: SimDisk, store: SnapshotStore) -> None:
        for number in (10, 20):
            make(store, number)
        disk.remove(HERE / f"{10:020d}.states")
        disk.rename(HERE / f"{20:020d}.set", HERE / f"{21:020d}.set")
        store = SnapshotStore(disk, HERE)
        assert (indices(store), [each.global_index for each in store.damaged]) == ([], [10, 21])

    def test_newer_sets_take_the_place_of_damaged_ones(self, disk: SimDisk, store: SnapshotStore) -> None:
        """Found by review: they lay there for ever, and `logboom verify` called the node damaged for as long."""
        for number in (10, 20, 50):
            make(store, number)
        disk.flip(HERE / f"{10:020d}.set", 30, 1)
        disk.flip(HERE / f"{50:020d}.set", 30, 1)
        again = SnapshotStore(disk, HERE)
        make(again, 30)
        assert [each.global_index for each in again.damaged] == [10, 50]
        assert again.prune(2) == []
        assert [each.global_index for each in again.damaged] == [50]
        assert [name for name in disk.list(HERE) if name.startswith(f"{10:020d}")] == []
        assert [each.global_index for each in SnapshotStore(disk, HERE).damaged] == [50]
        make(again, 60)
        again.prune(2)
        assert (indices(again), indices(SnapshotStore(disk, HERE)), again.damaged) == ([30, 60], [30, 60], ())

    def test_a_new_set_takes_the_place_of_a_damaged_one(self, disk: SimDisk, store: SnapshotStore) -> None:
        make(store, 10)
        make(store, 20)
        spoil(disk, f"{10:020d}.set")
        store = SnapshotStore(disk, HERE)
        meta = make(store, 10)
        assert store.damaged == ()
        assert content(SnapshotStore(disk, HERE), meta) == expected(10)
        assert indices(store) == [10, 20]

    def test_states_of_another_set_are_not_opened(self, disk: SimDisk, store: SnapshotStore) -> None:
        make(store, 10)
        spoil(disk, f"{10:020d}.states", 9)
        with pytest.raises(CorruptData, match="another snapshot set"):
            store.open_states(index(10))


class TestReceived:
    """A set of another node's."""

    def sent(self, number: int) -> tuple[bytes, bytes]:
        other = SnapshotStore(SimDisk(random.Random(9)), HERE)
        meta = make(other, number)
        file = other.open_states(index(number))
        return encode(meta), file.read(offset=0, length=file.size())

    def receive(self, store: SnapshotStore, number: int, raw: bytes) -> Path:
        file: File = store.receive(index(number))
        file.write([raw], offset=0)
        file.close()
        return store.partial_path(index(number))

    def test_it_is_a_set_as_any(self, disk: SimDisk, store: SnapshotStore) -> None:
        raw, states = self.sent(50)
        meta = store.adopt(raw, self.receive(store, 50, states))
        disk.power_loss()
        store = SnapshotStore(disk, HERE)
        assert (store.sets(), content(store, meta)) == ([meta], expected(50))

    def test_what_was_not_adopted_is_gone_after_a_start(self, disk: SimDisk, store: SnapshotStore) -> None:
        self.receive(store, 50, self.sent(50)[1])
        assert SnapshotStore(disk, HERE).sets() == []
        assert disk.list(HERE) == []

    def test_a_second_attempt_begins_anew(self, store: SnapshotStore) -> None:
        raw, states = self.sent(50)
        self.receive(store, 50, states + b"too long")
        assert store.adopt(raw, self.receive(store, 50, states)).global_index == 50

    def test_states_that_are_not_what_was_announced(self, disk: SimDisk, store: SnapshotStore) -> None:
        raw, states = self.sent(50)
        damaged = states[:100] + bytes([states[100] ^ 1]) + states[101:]
        for wrong in (damaged, states[:-1], states + b"\0", b"", self.sent(51)[1]):
            path = self.receive(store, 50, wrong)
            with pytest.raises(CorruptData, match=str(path)):
                store.adopt(raw, path)
            store.discard(index(50))
            assert (disk.list(HERE), store.sets()) == ([], [])

    def test_a_meta_that_is_damaged_or_of_another_set(self, store: SnapshotStore) -> None:
        raw, states = self.sent(50)
        path = self.receive(store, 50, states)
        for wrong in (raw[:-1], b"", self.sent(51)[0]):
            with pytest.raises(CorruptData, match=str(path)):
                store.adopt(wrong, path)
        assert store.adopt(raw, path).global_index == 50


def test_a_large_state_goes_through_in_bounded_pieces(disk: SimDisk, store: SnapshotStore) -> None:
    sizes: list[int] = []
    disk.hook = lambda what, _, size: sizes.append(size) if what in ("read", "write") else None
    writer = store.begin(index(10))
    given = entries(40_000, value=bytes(100))
    writer.add(PartitionId(0), "kv", Dump(given))
    meta = set_meta(writer.finish())
    store.complete(writer, meta)
    assert content(store, meta) == {0: given}
    assert max(sizes) < 2 << 20


class TestScrub:
    def damage(self, store: SnapshotStore, number: int) -> list[CorruptData]:
        return [piece.damage for piece in store.scrub(index(number)) if piece.damage is not None]

    def test_a_whole_set_is_read_wholly(self, store: SnapshotStore) -> None:
        meta = make(store, 5)
        pieces = list(store.scrub(index(5)))
        assert sum(piece.nbytes for piece in pieces) == meta.states_bytes + len(encode(meta))
        assert not self.damage(store, 5)

    def test_any_flipped_byte_is_found(self, store: SnapshotStore, disk: SimDisk) -> None:
        meta = make(store, 5)
        for kind, size in (("states", meta.states_bytes), ("set", len(encode(meta)))):
            path = HERE / f"{5:020d}.{kind}"
            for offset in range(size):
                disk.flip(path, offset, 1)
                assert self.damage(store, 5), f"{kind} at {offset}"
                disk.flip(path, offset, 1)
        assert not self.damage(store, 5)

    def test_a_file_that_is_cut_or_gone(self, store: SnapshotStore, disk: SimDisk) -> None:
        meta = make(store, 5)
        disk.cut(HERE / f"{5:020d}.states", meta.states_bytes - 1)
        assert self.damage(store, 5)
        disk.remove(HERE / f"{5:020d}.states")
        assert self.damage(store, 5)

    @pytest.mark.parametrize("times", [1, 2])
    def test_what_cannot_be_read_twice_is_damaged(self, store: SnapshotStore, disk: SimDisk, times: int) -> None:
        make(store, 5)
        failed = 0

        def hook(operation: str, path: Path, _: int) -> None:
            nonlocal failed
            if operation == "read" and path.suffix == ".states" and failed < times:
                failed += 1
                raise OSError(errno.EIO, "no")

        disk.hook = hook
        pieces = list(store.scrub(index(5)))
        assert [piece.again for piece in pieces].count(True) == 1
        assert [piece for piece in pieces if piece.damage] == pieces[len(pieces) - (times - 1) :]

    def test_a_set_that_is_removed_meanwhile_is_no_damage(self, store: SnapshotStore) -> None:
        make(store, 5)
        pieces = store.scrub(index(5))
        next(pieces)
        store.remove(index(5))
        assert not [piece.damage for piece in pieces if piece.damage]
        assert not self.damage(store, 5)
