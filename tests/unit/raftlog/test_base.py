"""A journal that begins at a base, and an engine that has to do with peers which lack what is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logboom.errors import CorruptData
from ports.invariant import InvariantViolated
from raftlog.journal import journal_base
from raftlog.journal.journal import cluster_hash
from raftlog.journal.journal_base import Base, BaseRecord, HardState
from raftlog.links import gate
from tests.unit.raftlog.base_world import PEER, Node, compact, files, grown, opened
from tests.unit.raftlog.voter_world import append_entries


class TestCompaction:
    def test_files_below_go_and_what_is_above_stays(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 100)
        before, above = files(tmp_path), journal.after(60)
        compact(journal, 60)
        left = files(tmp_path)
        assert 1 <= len(left) < len(before)
        assert left == before[-len(left) :]
        assert journal.entries == [(b"\x01", 60, 1), *above]
        journal.close()
        again = opened(tmp_path)
        assert again.entries == journal.entries
        assert (again.base, again.term, again.vote) == (Base(60, 1, b"state at 60"), 1, "n2")
        again.close()

    def test_everything_may_go_and_life_goes_on(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 100)
        compact(journal, journal.last_index)
        assert len(journal) == 1
        journal.add(b"\x10", 102, 1)
        journal.flush()
        journal.close()
        again = opened(tmp_path)
        assert [index for _, index, _ in again.entries] == [101, 102]
        again.close()

    def test_batches_that_are_still_needed_keep_their_files(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 100, redo=True)
        before = files(tmp_path)
        compact(journal, 60)
        assert files(tmp_path) == before
        journal.settled(journal.taken_sequence)
        compact(journal, 61)
        assert len(files(tmp_path)) < len(before)
        journal.close()

    def test_batches_that_were_settled_before_a_restart_keep_none(self, tmp_path: Path) -> None:
        """Without small batches ever after nobody would say so again, and no file would go."""
        journal = grown(tmp_path, 100, redo=True)
        journal.settled(journal.taken_sequence)
        journal.flush()
        before = files(tmp_path)
        journal.close()
        again = opened(tmp_path)
        assert not again.carried
        compact(again, 60)
        assert len(files(tmp_path)) < len(before)
        again.close()

    @pytest.mark.parametrize("restarted", [False, True])
    def test_nor_do_those_that_were_settled_in_the_file_that_is_written(
        self, tmp_path: Path, *, restarted: bool
    ) -> None:
        """It went on behind them, so that it was never taken for settled: nor was anything behind it ever removed."""
        journal = grown(tmp_path, 3, redo=True)
        journal.settled(journal.taken_sequence)
        for index in range(journal.last_index + 1, 120):
            journal.add(b"\x10" + b"r" * 96, index, 1)
            journal.flush()
        before = files(tmp_path)
        if restarted:
            journal.close()
            journal = opened(tmp_path)
            journal.forget_redo()
        compact(journal, 100)
        assert len(files(tmp_path)) < len(before)
        journal.close()

    def test_a_crash_before_files_are_removed_is_made_up_for(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 100)
        old = {path: path.read_bytes() for path in tmp_path.glob("*.journal")}
        compact(journal, 60)
        left = files(tmp_path)
        journal.close()
        for path, raw in old.items():
            if path.name not in left:
                path.write_bytes(raw)
        again = opened(tmp_path)
        assert again.entries == journal.entries
        assert files(tmp_path) == left
        again.close()

    def test_a_missing_first_file_shows(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 100)
        compact(journal, 60)
        journal.close()
        (tmp_path / files(tmp_path)[0]).unlink()
        with pytest.raises(CorruptData, match="missing"):
            opened(tmp_path)

    def test_neither_back_nor_beyond_what_is_synced(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 10)
        compact(journal, 5)
        journal.add(b"\x10", 12, 1)
        for base in (Base(5, 1, b""), Base(4, 1, b""), Base(12, 1, b""), Base(6, 2, b"")):
            with pytest.raises(InvariantViolated):
                journal.compaction(base)
        with pytest.raises(InvariantViolated):
            journal.entry(4)
        with pytest.raises(InvariantViolated):
            journal.truncate_from(5)
        journal.close()


class TestInstall:
    def test_what_follows_the_base_stays(self, tmp_path: Path) -> None:
        journal = grown(tmp_path, 10)
        journal.install(Base(6, 1, b"theirs"))
        journal.close()
        again = opened(tmp_path)
        assert [index for _, index, _ in again.entries] == [6, 7, 8, 9, 10, 11]
        assert again.base.state == b"theirs"
        again.close()

    @pytest.mark.parametrize(("index", "term"), [(6, 2), (50, 1), (50, 4)])
    def test_else_nothing_does_but_term_and_vote(self, tmp_path: Path, index: int, term: int) -> None:
        journal = grown(tmp_path, 10)
        journal.install(Base(index, term, b"theirs"))
        journal.install(Base(index, term, b"theirs"))  # as after a crash
        journal.add(b"\x10", index + 1, term)
        journal.flush()
        journal.close()
        again = opened(tmp_path)
        assert [each[1:] for each in again.entries] == [(index, term), (index + 1, term)]
        assert (again.term, again.vote) == ((1, "n2") if term == 1 else (term, None))
        assert again.floor == index
        again.close()


RECORD = BaseRecord(Base(9, 3, b"state"), 40, HardState(4, "n2", 7))
CLUSTER = cluster_hash("c")


class TestFile:
    def test_it_comes_back(self) -> None:
        for record in (RECORD, journal_base.BEGINNING):
            assert (
                journal_base.decode(journal_base.encode(record, cluster=CLUSTER), cluster=CLUSTER, path="p") == record
            )

    def test_any_bit_flipped_is_refused_by_name(self) -> None:
        raw = journal_base.encode(RECORD, cluster=CLUSTER)
        for at in range(len(raw)):
            damaged = bytearray(raw)
            damaged[at] ^= 4
            with pytest.raises(CorruptData, match="the path"):
                journal_base.decode(bytes(damaged), cluster=CLUSTER, path="the path")

    def test_so_is_one_that_is_cut_or_of_another_cluster(self) -> None:
        raw = journal_base.encode(RECORD, cluster=CLUSTER)
        for short in (raw[:-1], raw[:20], b"", raw + b"\0"):
            with pytest.raises(CorruptData):
                journal_base.decode(short, cluster=CLUSTER, path="p")
        with pytest.raises(CorruptData, match="another cluster"):
            journal_base.decode(raw, cluster=cluster_hash("d"), path="p")

    @pytest.mark.parametrize(
        "record",
        [
            RECORD._replace(base=Base(0, 3, b"")),
            RECORD._replace(first_sequence=0),
            RECORD._replace(hard=HardState(1 << 62, None, 1)),
            RECORD._replace(hard=HardState(1, None, 0)),
        ],
    )
    def test_nonsense_with_a_right_checksum_is_refused(self, record: BaseRecord) -> None:
        with pytest.raises(CorruptData, match="nonsense"):
            journal_base.decode(journal_base.encode(record, cluster=CLUSTER), cluster=CLUSTER, path="p")


def test_it_starts_where_the_base_is(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert (node.engine.commit_index, node.engine.applied_index) == (11, 11)
    assert [node.engine.term_at(index) for index in (10, 11, 16, 17)] == [None, 1, 1, None]


class TestFollower:
    def heard(self, node: Node, first: int, last: int) -> dict[str, Any]:
        node.engine.receive(PEER, append_entries(first, last))
        return node.sent[-1][1]

    @pytest.mark.parametrize(("first", "last", "following"), [(3, 6, 12), (3, 11, 12), (5, 14, 15), (9, 18, 19)])
    def test_what_is_below_the_base_is_taken_as_held(
        self, tmp_path: Path, first: int, last: int, following: int
    ) -> None:
        node = Node(tmp_path)
        answer = self.heard(node, first, last)
        assert (answer["success"], answer["next_node_idx"]) == (True, following)
        assert node.journal.last_index == max(16, last)

    def test_another_term_at_the_base_stops_the_node(self, tmp_path: Path) -> None:
        message = append_entries(10, 13)
        message["entries"] = [(command, index, 9) for command, index, _ in message["entries"]]
        with pytest.raises(InvariantViolated, match="our base"):
            Node(tmp_path).engine.receive(PEER, message | {"term": 9})

    def test_the_gate_asks_for_no_payload_behind_the_base(self) -> None:
        message, missing = gate.pass_through(append_entries(10, 14), lambda route, *_: route.last_index == 12, above=11)
        assert (missing, [index for _, index, _ in message["entries"]]) == (13, [10, 11, 12])


class TestLeader:
    def test_who_lacks_what_is_gone_hears_that_there_is_a_leader(self, tmp_path: Path) -> None:
        node = Node(tmp_path)
        node.lead()
        node.answers(5, reset=True)
        assert [set(message) for message in node.told()] == [{"type", "term", "commit_index", "seq"}]
        assert node.far == [PEER]
        assert node.engine.lagging == {PEER}

    def test_who_has_the_base_is_sent_the_rest(self, tmp_path: Path) -> None:
        node = Node(tmp_path)
        node.lead()
        node.answers(12, reset=True)
        (message,) = node.told()
        assert (message["prevLogIdx"], message["entries"][0][1]) == (11, 12)
        assert not node.engine.lagging

    def test_after_a_snapshot_it_comes_down_to_the_base(self, tmp_path: Path) -> None:
        node = Node(tmp_path)
        node.lead()
        node.answers(5, reset=True)
        node.engine.connected(PEER, up=False)
        node.engine.connected(PEER, up=True)
        node.sent.clear()
        node.engine.tick()
        assert [message["prevLogIdx"] for message in node.told()] == [17]
        node.now += 1
        node.answers(12, reset=True)
        assert [message["prevLogIdx"] for message in node.told()][-1] == 11
        node.answers(12, success=True)
        assert not node.engine.lagging
        assert node.engine.acknowledged_by(PEER) >= 11

    def test_one_that_only_seems_too_far_is_tried_once(self, tmp_path: Path) -> None:
        """A long journal need not have the base in it."""
        node = Node(tmp_path)
        node.lead()
        node.answers(5, reset=True)
        node.now += 1
        node.answers(14)
        assert [message.get("prevLogIdx") for message in node.told()] == [11]
        node.answers(11, reset=True)
        assert node.far == [PEER]
        node.now += 1
        node.answers(14)
        assert [message.get("prevLogIdx") for message in node.told()] == [None]

    def test_it_is_tried_again_when_the_base_has_moved(self, tmp_path: Path) -> None:
        """It says the same of its end after a snapshot of the former base: it was left for another one."""
        node = Node(tmp_path)
        node.lead()
        node.answers(5, reset=True)
        node.now += 1
        node.answers(14)
        assert [message.get("prevLogIdx") for message in node.told()] == [11]
        node.answers(11, reset=True)
        compact(node.journal, 12)
        node.now += 1
        node.answers(14)
        assert [message.get("prevLogIdx") for message in node.told()][-1] == 12
