"""Which nodes' logs a backup is made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logboom.cli import cli
from logboom.errors import CorruptData, InvalidRequest, Unavailable, WrongNode
from logboom.types import GlobalLogIndex, PartitionId
from server.offline import backup as backup_module
from server.offline import backup_source
from server.offline.backup_dir import LogArchive
from server.offline.verify import verify
from server.world.disk_os import OsDisk
from snapshots.states import StatesWriter
from tests.unit.dispatcher.installing_world import COUNT, LOG, G, Source, Wire
from tests.unit.partitions.batches import chain
from tests.unit.partitions.compaction_world import append, commit
from tests.unit.server.backup_nodes import Nodes, taken
from tests.unit.snapshots.states_world import Dump, entries


def cut_off(source: Source, *, first: int) -> Source:
    source.log.save_places(source.batches[-1].last_index)()
    source.log.compact(source.batches[first].header.first_index)()
    return source


DOWN = {"n3": "unavailable: it is down"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_source, "PAUSE_S", 0.0)


@pytest.fixture
def whole() -> Source:
    return Source("n2", Wire(), big=10)


def test_what_one_node_lacks_comes_from_another(whole: Source, tmp_path: Path) -> None:
    """Found by review: what lay in front of where the first node's log begins was left out, without a word."""
    nodes = Nodes(n1=cut_off(Source("n1", Wire(), big=10), first=20), n2=whole, n3=whole)
    done, batches = taken(nodes, tmp_path / "kept")
    assert [batch.digest for batch in batches] == [batch.digest for batch in whole.batches]
    assert done.batches == len(whole.batches)


def test_a_log_of_many_files_is_whole(whole: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_module, "FILE_BYTES", 1_000)
    kept = tmp_path / "kept"
    done, batches = taken(Nodes(n1=whole, n2=whole, n3=whole), kept)
    assert [batch.digest for batch in batches] == [batch.digest for batch in whole.batches]
    assert done.batches == len(whole.batches)
    assert len(LogArchive(OsDisk(), kept / "logs" / str(LOG), PartitionId(LOG)).paths()) > 3


def test_of_several_that_lack_it_the_one_that_begins_first_counts(tmp_path: Path) -> None:
    late, early = (cut_off(Source(n, Wire(), big=10), first=first) for n, first in (("n1", 30), ("n2", 10)))
    nodes = Nodes(n1=late, n2=early, n3=late)
    nodes.down.add("n3")
    done, batches = taken(nodes, tmp_path / "kept")
    assert batches[0].header.first_index == early.log.first_available_index < late.log.first_available_index
    assert done.not_asked == [(LOG, 1, early.log.first_available_index - 1, DOWN)]


class TestWhoDoesNotAnswer:
    @pytest.mark.parametrize("first", [20, None])
    def test_is_asked_again_as_it_may_have_what_the_others_have_lost(
        self, whole: Source, tmp_path: Path, first: int | None
    ) -> None:
        """Found by review: one that was starting again counted as one that has nothing."""
        late = Source("n1", Wire(), big=10)
        late = emptied(late) if first is None else cut_off(late, first=first)
        nodes, kept = Nodes(n1=late, n2=whole, n3=late), tmp_path / "kept"
        nodes.down_for["n2"] = 1
        done, batches = taken(nodes, kept)
        assert [batch.digest for batch in batches] == [batch.digest for batch in whole.batches]
        assert (list(kept.rglob("*.nothing")), done.not_asked) == ([], [])

    def test_is_waited_for_once(self, tmp_path: Path) -> None:
        late = cut_off(Source("n1", Wire(), big=10), first=20)
        nodes = Nodes(n1=late, n2=late, n3=late)
        nodes.down.add("n3")
        for _ in range(2):
            nodes.asked.clear()
            done, _ = taken(nodes, tmp_path / "kept")
            assert [each.nodes for each in done.not_asked] == [DOWN]
        assert nodes.asked.count("n3") == backup_source.FAILURES_MAX

    def test_is_said_and_what_is_missing_for_that(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        silent = {"n2": "unavailable: it is down", "n3": "corrupt_data: a batch is damaged"}
        missing = [backup_module.NotAsked(*each) for each in ((3, 1, 899, silent), (4, 7, 8, {}), (4, 9, 9, {}))]
        done = backup_module.Done(7, "n1", 0, 0, 0, 1, missing)
        monkeypatch.setattr(backup_module, "backup", lambda *_, **__: done)
        result = CliRunner().invoke(cli, ["backup", str(tmp_path), "--endpoints", "127.0.0.1:1", "-o", "json"])
        assert (result.exit_code, json.loads(result.stdout)["sets"]) == (0, 1)
        assert (
            "partition 3: n2 (unavailable: it is down), n3 (corrupt_data: a batch is damaged) did not give its records "
            "1 to 899, and no other node has them"
        ) in result.stderr
        assert "partition 4: its records 7 to 8, 9 to 9 are lost on all nodes" in result.stderr
        assert "`logboom partitions void 4 --index 8 --index 9`" in result.stderr

    def test_may_have_a_log_of_which_most_have_nothing(self, whole: Source, tmp_path: Path) -> None:
        """Where one never came back there was no backup any more. The next one gets it."""
        gone, kept = emptied(Sound("n1", Wire(), big=10)), tmp_path / "kept"
        nodes = Nodes(n1=gone, n2=whole, n3=gone)
        nodes.fails["n2"] = CorruptData("the batch that ends at 7 is damaged")
        done, batches = taken(nodes, kept)
        end = gone.batches[-1].last_index
        said = {"n2": "corrupt_data: the batch that ends at 7 is damaged"}
        assert (done.sets, batches, done.not_asked) == (1, [], [(LOG, 1, end, said)])
        assert noticed(kept) == []
        nodes.fails.clear()
        done, batches = taken(nodes, kept)
        assert (len(batches), list(kept.rglob("*.nothing")), done.not_asked) == (len(whole.batches), [], [])

    def test_may_have_a_log_of_which_few_have_nothing(self, whole: Source, tmp_path: Path) -> None:
        """No backup without is complete, and none says that nobody has it: the next one gets it."""
        gone, kept = emptied(Source("n1", Wire(), big=10)), tmp_path / "kept"
        nodes = Nodes(n1=gone, n2=whole, n3=gone)
        nodes.down |= {"n2", "n3"}
        with pytest.raises(Unavailable, match=r"n2 \(unavailable: it is down\), n3"):
            taken(nodes, kept)
        assert list(kept.rglob("*.nothing")) == []
        nodes.down.clear()
        done, batches = taken(nodes, kept, resume=True)
        assert (len(batches), done.bytes, done.sets) == (len(whole.batches), 0, 1)


class TestLost:
    @pytest.mark.parametrize("number", [0, 20, COUNT - 1])
    def test_what_nobody_has_is_said_and_the_rest_is_copied(self, tmp_path: Path, number: int) -> None:
        """No backup was complete until it was void."""
        kept, lost = tmp_path / "kept", [Sound(n, Wire(), big=10, lost=(number,)) for n in ("n1", "n2", "n3")]
        nodes, gone = Nodes(n1=lost[0], n2=lost[1], n3=lost[2]), lost[0].batches[number]
        for _ in range(2):
            done, batches = taken(nodes, kept)
            assert done.not_asked == [(LOG, gone.header.first_index, gone.last_index, {})]
            assert [each.digest for each in batches] == [b.digest for b in lost[0].batches if b is not gone]
        assert not verify(kept).damaged
        whole = nodes.nodes["n2"] = Sound("n2", Wire(), big=10)
        done, batches = taken(nodes, kept)
        assert ([each.digest for each in batches], done.not_asked) == ([b.digest for b in whole.batches], [])
        assert noticed(kept) == []

    def test_what_is_void_on_one_node_is_not_lost_because_of_another_that_is_behind(self, tmp_path: Path) -> None:
        lost = [Source(n, Wire(), big=10, lost=(20,)) for n in ("n1", "n2", "n3")]
        void = lost[0].batches[20]
        lost[1].log.void(void.last_index, void.digest)
        with pytest.raises(InvalidRequest, match="was declared void: write to any partition"):
            taken(Nodes(n1=lost[0], n2=lost[1], n3=lost[2]), tmp_path / "kept")

    def test_what_may_be_on_one_that_does_not_answer_is_not_lost(self, tmp_path: Path) -> None:
        lost = [Source(n, Wire(), big=10, lost=(20,)) for n in ("n1", "n2")]
        nodes, gone = Nodes(n1=lost[0], n2=lost[1], n3=lost[1]), lost[0].batches[20]
        nodes.down.add("n3")
        done, _ = taken(nodes, tmp_path / "kept")
        assert done.not_asked == [(LOG, gone.header.first_index, gone.last_index, DOWN)]


def test_a_node_that_was_named_is_the_only_one(whole: Source, tmp_path: Path) -> None:
    late = cut_off(Source("n1", Wire(), big=10), first=20)
    _, batches = taken(Nodes(n1=late, n2=whole, n3=whole), tmp_path / "kept", node="n1")
    assert batches[0].header.first_index == late.log.first_available_index


def test_a_node_that_has_the_set_and_not_the_log_yet_is_passed_over(whole: Source, tmp_path: Path) -> None:
    nodes = Nodes(n1=Source("n1", Wire(), big=10), n2=whole, n3=whole)
    nodes.nodes["n1"].log.durable_index = whole.batches[4].last_index
    _, batches = taken(nodes, tmp_path / "kept")
    assert [batch.digest for batch in batches] == [batch.digest for batch in whole.batches]
    with pytest.raises(InvalidRequest):
        taken(nodes, tmp_path / "other", node="n1")


@pytest.mark.parametrize("number", [20, -1])
def test_a_set_that_does_not_know_what_is_void_since_is_refused(whole: Source, tmp_path: Path, number: int) -> None:
    """Found by review: a restore of it had nothing of what lies in front; of the last one it was "another history"."""
    void = whole.batches[number]
    whole.log.lose(void.last_index, void.digest)
    whole.log.void(void.last_index, void.digest)
    with pytest.raises(InvalidRequest, match="void"):
        taken(Nodes(n1=whole, n2=whole, n3=whole), tmp_path / "kept")


class TestUnfinished:
    """Found by review: each backup that failed at the logs left a whole set that nothing ever removed."""

    @staticmethod
    def _next(nodes: Nodes) -> None:
        """Another snapshot, a little later."""
        nodes.at = GlobalLogIndex(nodes.at + 1)
        for source in {id(each): each for each in nodes.nodes.values()}.values():
            source.set_at(nodes.at)

    @pytest.mark.parametrize("resume", [False, True])
    def test_sets_of_backups_that_failed_go(
        self, whole: Source, tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nodes, kept = Nodes(n1=whole, n2=whole, n3=whole), tmp_path / "kept"
        taken(nodes, kept)
        shutil.rmtree(kept / "logs")
        with monkeypatch.context() as patch:
            patch.setattr(backup_module._Copy, "_log", fail)
            for _ in range(3):
                self._next(nodes)
                with pytest.raises(Unavailable):
                    taken(nodes, kept, resume=resume)
                assert len(list(kept.glob("*.set"))) == 2
        self._next(nodes)
        taken(nodes, kept, resume=resume)
        assert sorted(int(path.stem) for path in kept.glob("*.set")) == [G, nodes.at]

    @pytest.mark.parametrize("resume", [False, True])
    def test_so_do_those_of_first_ones(
        self, whole: Source, tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found by review: nothing was listed yet that they could have been newer than."""
        nodes, kept = Nodes(n1=whole, n2=whole, n3=whole), tmp_path / "kept"
        with monkeypatch.context() as patch:
            patch.setattr(backup_module._Copy, "_log", fail)
            for _ in range(3):
                with pytest.raises(Unavailable):
                    taken(nodes, kept, resume=resume)
                assert [int(path.stem) for path in kept.glob("*.set")] == [nodes.at]
                self._next(nodes)
        taken(nodes, kept, resume=resume)
        assert [int(path.stem) for path in kept.glob("*.set")] == [nodes.at]

    def test_but_none_that_is_whole(self, whole: Source, tmp_path: Path) -> None:
        """An older copy of the list was put back."""
        nodes, kept = Nodes(n1=whole, n2=whole, n3=whole), tmp_path / "kept"
        taken(nodes, kept)
        older = (kept / "backup.json").read_bytes()
        self._next(nodes)
        taken(nodes, kept)
        (kept / "backup.json").write_bytes(older)
        self._next(nodes)
        taken(nodes, kept)
        assert len(list(kept.glob("*.set"))) == 3

    def test_but_none_that_are_older_than_what_is_listed(self, whole: Source, tmp_path: Path) -> None:
        """A list that was lost, and begun anew, does not name them."""
        nodes, kept = Nodes(n1=whole, n2=whole, n3=whole), tmp_path / "kept"
        for _ in range(2):
            taken(nodes, kept)
            self._next(nodes)
        (kept / "backup.json").unlink()
        for _ in range(2):
            taken(nodes, kept)
            self._next(nodes)
        assert len(list(kept.glob("*.set"))) == 4


def fail(*_: Any) -> None:
    raise Unavailable("nobody gives it")


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        ([LOG, LOG + 1], [], False),
        ([LOG], [LOG], True),
        ([LOG, LOG + 1, LOG + 2], [LOG, LOG + 1, LOG + 2], True),
        ([LOG], [LOG, LOG + 1], False),
        ([LOG, LOG + 1, LOG + 2], [LOG, LOG + 1], False),
    ],
)
def test_a_set_that_does_not_know_of_the_partitions_is_refused(
    whole: Source, tmp_path: Path, before: list[int], now: list[int], refused: bool
) -> None:
    """Found by review: where nothing was written since, what had been destroyed came back with a restore."""
    nodes = Nodes(n1=whole, n2=whole, n3=whole)
    # For the cluster's id, twice for what there was, for who leads, twice for what there is.
    nodes.partitions = [before] * 4 + [now] * 9
    if refused:
        with pytest.raises(InvalidRequest, match="write to any partition"):
            taken(nodes, tmp_path / "kept")
        assert not list((tmp_path / "kept").glob("*.states*"))
    else:
        taken(nodes, tmp_path / "kept")


def test_what_is_somebody_elses_is_left_as_it_is(whole: Source, tmp_path: Path) -> None:
    """Found by review: a node's own `snapshots` passed for one of backups, and what it was writing was removed."""
    nodes = Nodes(n1=whole, n2=whole, n3=whole)
    data, foreign = tmp_path / "data", tmp_path / "foreign"
    for path in (data / "manifest.json", data / "snapshots" / f"{7:020d}.states.partial", foreign / "thesis.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    before = sorted(tmp_path.rglob("*"))
    for directory in (data / "snapshots", data, foreign):
        with pytest.raises(WrongNode):
            taken(nodes, directory)
    assert sorted(tmp_path.rglob("*")) == before


def test_whatever_lies_in_a_backup_all_of_it_is_looked_at(whole: Source, tmp_path: Path) -> None:
    nodes, kept = Nodes(n1=whole, n2=whole, n3=whole), tmp_path / "kept"
    taken(nodes, kept)
    before = {each.path for each in verify(kept).findings}  # its states are made up
    link, directory, file = kept / "logs" / str(LOG) / f"{99:020d}.batches", kept / f"{7:020d}.set", kept / "logs" / "5"
    link.symlink_to(tmp_path / "nowhere")
    directory.mkdir()
    file.touch()
    assert {each.path for each in verify(kept).findings} - before == {str(link), str(directory), str(file)}


def emptied(source: Source) -> Source:
    """Of its log nothing is left."""
    end = source.batches[-1].last_index
    source.log.save_places(end)()
    sealing = source.log.sealing(end + 1)
    assert sealing is not None
    sealing()
    source.log.compact(end + 1)()
    return source


def noticed(kept: Path) -> list[str]:
    """Where something is wrong with logs."""
    return [each.path for each in verify(kept).findings if str(kept / "logs") in each.path]


def test_a_log_of_which_nobody_has_anything_up_to_the_set_is_noted(tmp_path: Path) -> None:
    """Found by a test: such a backup was refused, as of another history, or damaged."""
    kept = tmp_path / "kept"
    gone = [emptied(Source(n, Wire(), big=10)) for n in ("n1", "n2", "n3")]
    for _ in range(2):
        done, batches = taken(Nodes(n1=gone[0], n2=gone[1], n3=gone[2]), kept)
        assert (done.batches, batches) == (0, [])
    assert noticed(kept) == []
    (note,) = (kept / "logs" / str(LOG)).iterdir()
    raw = note.read_bytes()
    for damaged in (raw[:-1] + bytes([raw[-1] ^ 1]), raw + b"x", raw[:24] + b"\xff" * 8 + raw[32:], b""):
        note.write_bytes(damaged)
        assert noticed(kept) == [str(note)]
        with pytest.raises(CorruptData):
            LogArchive(OsDisk(), note.parent, PartitionId(LOG)).run_to(
                gone[0].batches[-1].last_index, gone[0].batches[-1].digest
            )


def test_where_one_node_has_something_that_is_no_note(whole: Source, tmp_path: Path) -> None:
    gone = [emptied(Source(n, Wire(), big=10)) for n in ("n1", "n3")]
    _, batches = taken(Nodes(n1=gone[0], n2=whole, n3=gone[1]), tmp_path / "kept")
    assert len(batches) == len(whole.batches)
    assert not list((tmp_path / "kept" / "logs" / str(LOG)).glob("*.nothing"))


class Sound(Source):
    """``verify`` finds nothing wrong with its sets, and so looks for the logs up to them."""

    def written_by(self, writer: StatesWriter) -> StatesWriter:
        writer.add(LOG, "log", Dump(entries(3), self.batches[-1].last_index))
        writer.add(PartitionId(LOG + 1), "kv", Dump(entries(3), 0))
        return writer


def goes_on(nodes: Nodes) -> None:
    """More is written to the log, and the next set ends there."""
    nodes.at = GlobalLogIndex(nodes.at + 100)
    for source in nodes.nodes.values():
        more = chain(COUNT + 10)[len(source.batches) :]
        append(source.log, more)
        commit(source.log, more, start=len(source.batches))
        source.batches += more
        source.set_at(nodes.at)


def trimmed() -> Nodes:
    """All have lost the first records."""
    return Nodes(**{n: cut_off(Sound(n, Wire(), big=10), first=20) for n in ("n1", "n2", "n3")})


def test_what_was_gone_before_the_first_backup_is_no_note_of_the_next(tmp_path: Path) -> None:
    """Found by review: each later one noted that nothing was left of what it had just copied."""
    nodes, kept = trimmed(), tmp_path / "kept"
    taken(nodes, kept)
    goes_on(nodes)
    taken(nodes, kept)
    archive = LogArchive(OsDisk(), kept / "logs" / str(LOG), PartitionId(LOG))
    assert (archive.notes(), noticed(kept)) == ([], [])
    archive.paths()[-1].unlink()
    assert noticed(kept) == [str(archive.directory)]
    end = nodes.nodes["n1"].batches[-1]
    with pytest.raises(CorruptData):
        archive.run_to(end.last_index, end.digest)


def test_a_note_beside_what_it_is_of_is_told_and_goes_with_the_next_backup(tmp_path: Path) -> None:
    nodes, kept = trimmed(), tmp_path / "kept"
    taken(nodes, kept)
    archive = LogArchive(OsDisk(), kept / "logs" / str(LOG), PartitionId(LOG))
    end = nodes.nodes["n1"].batches[-1]
    archive.note_nothing(end.last_index, end.digest, "c")
    (note,) = archive.notes()
    assert noticed(kept) == [str(note)]
    goes_on(nodes)
    taken(nodes, kept)
    assert (archive.notes(), noticed(kept)) == ([], [])


def test_a_note_goes_once_another_node_has_given_what_it_is_of(tmp_path: Path) -> None:
    whole = Sound("n2", Wire(), big=10)
    nodes, kept = Nodes(n1=emptied(Sound("n1", Wire(), big=10)), n2=whole, n3=whole), tmp_path / "kept"
    archive = LogArchive(OsDisk(), kept / "logs" / str(LOG), PartitionId(LOG))
    taken(nodes, kept, node="n1")
    assert len(archive.notes()) == 1
    _, batches = taken(nodes, kept)
    assert (len(batches), archive.notes(), noticed(kept)) == (len(whole.batches), [], [])


def test_a_note_stays_beside_what_was_written_after_it(tmp_path: Path) -> None:
    nodes = Nodes(**{n: emptied(Sound(n, Wire(), big=10)) for n in ("n1", "n2", "n3")})
    kept = tmp_path / "kept"
    taken(nodes, kept)
    goes_on(nodes)
    _, batches = taken(nodes, kept)
    archive = LogArchive(OsDisk(), kept / "logs" / str(LOG), PartitionId(LOG))
    assert (len(batches), len(archive.notes()), noticed(kept)) == (10, 1, [])


def test_what_is_gone_in_front_lets_no_set_in_that_ends_otherwise(tmp_path: Path) -> None:
    """Found by review: of a log that began at 1 such a set was refused, of any other it was listed."""
    nodes, kept = trimmed(), tmp_path / "kept"
    taken(nodes, kept)
    nodes.at = GlobalLogIndex(G + 1)
    for source in nodes.nodes.values():
        source.digest = b"another history."
        source.set_at(nodes.at)
    with pytest.raises(WrongNode):
        taken(nodes, kept)
    assert not list((kept / "logs" / str(LOG)).glob("*.nothing"))
