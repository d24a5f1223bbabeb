"""Reading in global order where nodes have removed records: each has, for itself."""

import pytest

from logboom.errors import DeadlineExceeded, IndexCompacted, PartitionDestroyed, Unavailable
from logboom.spark import beginnings, read
from logboom.spark.read import EMPTY_PASSES
from logboom.spark.shares import Share
from tests.unit.spark.read_world import HANGS, batch, merged, offsets, session

__all__ = ["session"]

BOTH = (Share(0, 1, 3), Share(1, 1, 2))
A, B, C = batch(1, 2, global_index=4), batch(1, 2, partition=1, global_index=6), batch(3, 1, global_index=9)
LATER = IndexCompacted("another index is the first", first=12)
GO_ON = {"failOnDataLoss": "false"}
NOTHING_YET = [[]] * EMPTY_PASSES
NO_A = {0: (4, 9, 1 << 60)}
"""All that is asked for of partition 0 was removed, the last of it at global index 9; there is more."""


@pytest.fixture
def three(session):
    """Nodes; the first task asks the second of them first."""

    def make(*answers, **held):
        found = session(*answers)
        found.client.nodes = {f"n{k}": f"n:{k}" for k in (1, 2, 3)}
        found.client.held = {f"n:{name[1:]}": each for name, each in held.items()}
        return found

    return make


def scanned(found):
    return [node for node, _ in found.client.scanned]


# -- what comes behind the range


def test_what_is_missing_is_missed_though_what_comes_next_lies_behind_the_range(session, caplog):
    """Its rows were not there, without a word: the task took that for the end."""
    behind = batch(4, global_index=12)
    with pytest.raises(IndexCompacted, match="partition 0: offset 1 is gone, 4 is the first"):
        list(merged(session([B, behind]), BOTH, 1, 9))
    with pytest.raises(IndexCompacted, match="offset 1 is gone, 501 is the first"):
        list(merged(session([batch(501, global_index=501)]), (Share(0, 1, 1000),), 1, 250))
    with pytest.raises(IndexCompacted, match="offset 3 is gone, 4 is the first"):
        list(merged(session([A, B, LATER], [A, B, behind]), BOTH, 2, 9))
    assert not caplog.text
    assert offsets(merged(session([B, behind]), BOTH, 1, 9, **GO_ON)) == [1, 2]
    assert "partition 0: 3 records from offset 1 on are gone" in caplog.text


def test_what_was_not_asked_for_is_not_missed(session):
    read, more = batch(3, global_index=8), [batch(7, global_index=12), batch(8, global_index=13)]
    assert offsets(merged(session([A, B, read, *more]), BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert offsets(merged(session([LATER], [A, B, read, *more]), BOTH, 5, 9)) == [1, 2, 3]


# -- which node is asked


def test_one_that_has_removed_less_is_read_from(three):
    """Whichever answered was, and what others had counted as lost."""
    found = three([LATER], [A, B, C], n2=NO_A, n3={0: (2, 3, 9)})
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "n:1"]


def test_and_in_the_middle_of_a_range(three):
    found = three([A, LATER], [A, B, C], n2=NO_A, n1=NO_A)
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "n:3"]


def test_not_all_tasks_ask_the_same(three):
    for low in (2, 3, 4):
        found = three([LATER], [A, B, C])
        assert offsets(merged(found, BOTH, low, 9)) == [1, 2, 1, 2, 3]
        assert scanned(found) == [None, f"n:{low % 3 + 1}"]


def test_one_that_was_named_is_the_only_one_to_be_asked(three):
    with pytest.raises(IndexCompacted, match="offset 1 is gone"):
        list(merged(three([LATER], [B, C], n2={0: (3, 8, 9)}), BOTH, 1, 9, node="n2"))


def test_and_it_has_all_of_the_time(three, monkeypatch):
    """It was left for another after a glance, and there was none."""
    monkeypatch.setattr(beginnings, "GLANCE_S", 0.0)
    found = three([LATER], [A, B, C])
    found.client.late = {"n:2"}
    assert offsets(merged(found, BOTH, 1, 9, node="n2", numRetries="0")) == [1, 2, 1, 2, 3]
    assert scanned(found) == ["n:2", "n:2"]
    with pytest.raises(DeadlineExceeded, match="no record after offset 0 came within 100 ms"):
        list(merged(three([LATER], n2=HANGS), BOTH, 1, 9, node="n2", requestTimeoutMs="100"))


def test_what_all_have_removed_is_lost_and_one_that_has_most_is_read_from(three, caplog):
    lost = {"n1": NO_A, "n2": {0: (3, 8, 9)}, "n3": NO_A}
    with pytest.raises(IndexCompacted, match="partition 0: offset 1 is gone, 3 is the first"):
        list(merged(three([LATER], **lost), BOTH, 1, 9))
    found = three([LATER], [B, C], **lost)
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [1, 2, 3]
    assert scanned(found) == [None, "n:2"]
    assert caplog.text.count("are gone") == 1


def test_one_that_cannot_be_asked_is_passed_over(three):
    down = Unavailable("down")
    found = three([LATER], [A, B, C], n2=down)
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "n:3"]
    with pytest.raises(Unavailable, match="no node says where its logs begin"):
        list(merged(three([LATER], n1=down, n2=down, n3=down), BOTH, 1, 9, numRetries="0"))


def test_where_nodes_have_other_addresses_for_clients_these_are_asked(session):
    found = session([LATER], [A, B, C])
    found.client.held = {"n:1": Unavailable("no such host"), "a:1": {}}
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "a:1"]


def test_one_that_is_behind_is_not_the_one_to_read_from(three):
    found = three([LATER], [A, B, C], n2={0: (1, 0, 0)}, n3=NO_A)
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "n:1"]


def test_what_is_removed_before_the_scan_is_under_way_is_not_read_around(three):
    """Rows of the others would have been given before it is known that some in front of them are missing."""
    found = three([LATER], [lambda: found.client.held.update({"n:2": NO_A}), B, batch(4, global_index=12)], [A, B, C])
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "n:2", "n:3"]


def test_what_was_removed_in_front_of_a_range_is_not_missed_in_it(three):
    """It was read by another task, say, or by nobody who wanted it."""
    removed = {f"n{k}": {0: (30, 200, 60)} for k in (1, 2, 3)}
    parts, first, second = (Share(0, 1, 31), Share(1, 1, 1)), batch(30, global_index=300), batch(31, global_index=400)
    other = batch(1, partition=1, global_index=350)
    assert offsets(merged(three([LATER], [first, other, second], **removed), parts, 251, 400)) == [30, 1, 31]
    assert offsets(
        merged(three([LATER], [batch(9, global_index=230), first, other, second], **removed), parts, 251, 400)
    )
    found = three([LATER], [batch(5, global_index=90), Unavailable("x")], [LATER], [first, other, second], **removed)
    assert offsets(merged(found, parts, 251, 400)) == [30, 1, 31]
    found = three([LATER], [Unavailable("gone")], [batch(31, global_index=400)], **removed)
    assert offsets(merged(found, (Share(0, 1, 31),), 301, 400)) == [31], "30 was in front of it, and nobody has seen it"


def test_of_a_partition_that_is_destroyed_the_order_goes_on_without_it(three):
    gone = PartitionDestroyed("partition 1 was destroyed", partition_id=1)
    with pytest.raises(PartitionDestroyed):
        list(merged(three([LATER], n2=gone), BOTH, 1, 9))
    found = three([LATER], [C], [A, C], n2=gone)
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [1, 2, 3]


# -- nothing is left


def test_where_all_was_removed_that_is_said(three, caplog):
    """It was waited for until the deadline."""
    nothing = {f"n{k}": {0: (4, 9, 3), 1: (3, 6, 2)} for k in (1, 2, 3)}
    with pytest.raises(IndexCompacted, match="partition 0: offset 1 is gone, 4 is the first"):
        list(merged(three([LATER], **nothing), BOTH, 1, 9))
    assert offsets(merged(three([LATER], **nothing), BOTH, 1, 9, **GO_ON)) == []
    assert "partition 0: 3 records from offset 1 on are gone" in caplog.text
    assert "partition 1: 2 records from offset 1 on are gone" in caplog.text


def test_where_nothing_is_left_of_one_the_range_ends_with_the_others(three):
    """The last batch was its: nobody would ever see that end."""
    nothing = {f"n{k}": {0: (4, 9, 3)} for k in (1, 2, 3)}
    with pytest.raises(IndexCompacted):
        list(merged(three([LATER], **nothing), BOTH, 1, 9))
    found = three([LATER], [batch(2, partition=1, global_index=6)], [B], **nothing)
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [1, 2]
    assert found.client.scanned == [(None, [0, 1]), ("n:2", [1])]


def test_one_that_is_behind_says_nothing_of_what_all_others_have_removed(three):
    """It was asked again and again, as it ended its scan each time without a batch."""
    removed = {"n1": {0: (4, 9, 3)}, "n2": {0: (1, 0, 0)}, "n3": {0: (4, 9, 3)}}
    with pytest.raises(IndexCompacted, match="offset 1 is gone, 4 is the first"):
        list(merged(three(*NOTHING_YET, **removed), (Share(0, 1, 3),), 1, 9))
    assert offsets(merged(three(*NOTHING_YET, **removed), (Share(0, 1, 3),), 1, 9, **GO_ON)) == []
    found = three(*NOTHING_YET, [A, C], n1={0: (4, 9, 3)}, n2={0: (1, 0, 0)})
    assert offsets(merged(found, (Share(0, 1, 3),), 1, 9)) == [1, 2, 3], "the third has it"
    behind = {f"n{k}": {0: (1, 0, 2)} for k in (1, 2, 3)}
    found = three([A], *NOTHING_YET, [C], **behind)
    assert offsets(merged(found, (Share(0, 1, 3),), 1, 9)) == [1, 2, 3], "all are behind"


def test_one_that_is_a_moment_behind_is_not_looked_into(three):
    """All nodes were asked where their logs begin, by each task at the front."""
    found = three(*NOTHING_YET[1:], [A, B, C])
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert found.client.looked == []


# -- what one has, and others do not


@pytest.mark.parametrize("go_on", [{}, GO_ON], ids=["fails", "goes-on"])
def test_what_one_node_has_that_is_behind_in_another_log_is_not_lost(three, go_on, caplog):
    """The one that lacked least was taken for all: what it had removed was lost, and then came, as corrupt."""
    held = {"n1": {0: (2, 3, 9)}, "n2": {0: (2, 3, 9)}, "n3": {1: (1, 0, 0)}}
    assert offsets(merged(three(*NOTHING_YET, [A, B, C], **held), BOTH, 1, 9, **go_on)) == [1, 2, 1, 2, 3]
    found = three([LATER], [A], [B, C], **held)
    assert offsets(merged(found, BOTH, 1, 9, **go_on)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "n:3", None]
    assert found.client.asked == [1, 1, 5], "not all of it from the beginning, again and again"
    assert "are gone" not in caplog.text


def test_one_that_is_behind_and_has_removed_what_nobody_wants_is_read_from_where_it_begins(three):
    """By index it refused each time: nothing came until the deadline, though it had what was wanted next."""
    held = {"n1": {0: (2, 3, 9)}, "n2": {0: (2, 3, 9)}, "n3": {1: (1, 0, 0)}}
    found = three([LATER], [LATER], [A, B, C], **held)
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert found.client.asked == [1, 1, 0]
    assert scanned(found) == [None, "n:3", "n:3"]


def test_lost_is_what_all_have_removed_wherever_it_is_least(three, caplog):
    held = {"n1": {0: (3, 5, 9), 1: (2, 5, 9)}, "n2": {0: (2, 3, 9), 1: (1, 0, 0)}, "n3": {0: (3, 5, 9), 1: (2, 5, 9)}}
    with pytest.raises(IndexCompacted, match="partition 0: offset 1 is gone, 2 is the first"):
        list(merged(three([LATER], **held), BOTH, 1, 9))
    second, rest = batch(2, global_index=4), batch(2, partition=1, global_index=6)
    found = three([LATER], [second], [rest, C], **held)
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [2, 2, 3]
    assert scanned(found) == [None, "n:2", None]
    assert "partition 0: 1 records from offset 1 on are gone" in caplog.text


def test_where_none_has_all_that_others_have_and_there_are_too_many_logs_that_is_said(three, caplog, monkeypatch):
    """One log of each is held by one node alone; no node can be read from in order."""
    monkeypatch.setattr(read, "APART_MAX", 1)
    held = {"n1": {0: (3, 5, 9)}, "n2": {1: (3, 6, 9)}, "n3": {0: (4, 9, 9), 1: (3, 6, 9)}}
    parts, third = (Share(0, 1, 3), Share(1, 1, 3)), batch(3, partition=1, global_index=7)
    with pytest.raises(IndexCompacted, match="partition 1: n:2 holds most of these logs, this one from offset 3 on"):
        list(merged(three([LATER], **held), parts, 1, 9))
    found = three([LATER], [A, third, C], **held)
    assert offsets(merged(found, parts, 1, 9, **GO_ON)) == [1, 2, 3, 3]
    assert "partition 1: 2 records from offset 1 on are gone" in caplog.text


@pytest.mark.parametrize("first", [1, 2])
def test_what_comes_of_another_node_after_all_is_not_corrupt(three, first):
    """One that was down then, and has more than any that answered."""
    held = {"n1": {0: (3, 8, 9)}, "n2": {0: (3, 8, 9)}, "n3": Unavailable("down")}
    back = [batch(k, global_index=3 + k) for k in (1, 2)][first - 1 :]
    found = three([LATER], [Unavailable("and away")], [*back, B, C], **held)
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [*range(first, 3), 1, 2, 3]


def test_nor_where_it_was_given_up_in_two_steps(three):
    held = {f"n{k}": {0: (3, 8, 20)} for k in (1, 2, 3)}
    more = {f"n:{k}": {0: (4, 9, 20)} for k in (1, 2, 3)}
    parts, last = (Share(0, 1, 4), Share(1, 1, 2)), batch(4, global_index=12)
    found = three([LATER], [lambda: found.client.held.update(more), LATER], [Unavailable("x")], [A, B, C, last], **held)
    assert offsets(merged(found, parts, 1, 12, **GO_ON)) == [1, 2, 1, 2, 3, 4]
    assert len(scanned(found)) == 4


# -- nodes that are silent


def test_one_that_is_silent_keeps_nobody_from_the_others(three):
    found = three([LATER], [A, B, C], n2=HANGS)
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert scanned(found) == [None, "n:3"]
    assert "n:1" not in found.client.looked


def test_where_all_are_silent_at_their_own_addresses_those_given_are_asked(three):
    """They took all of the task's time, and what had it was asked then."""
    silent = {f"n{k}": HANGS for k in (1, 2, 3)}
    found = three(*NOTHING_YET, [A, B, C], **silent)
    found.client.held["a:1"] = {}
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3]
    assert found.client.looked[-1] == "a:1"


def test_of_those_that_are_silent_it_is_said(three):
    silent = {f"n{k}": HANGS for k in (1, 2, 3)}
    with pytest.raises(Unavailable, match="no node says where its logs begin"):
        list(merged(three([LATER], **silent), BOTH, 1, 9, numRetries="0", requestTimeoutMs="400"))
