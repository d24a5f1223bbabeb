"""Write-behind: what a majority has synced, whatever the order in which nodes say so."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.barriers.stability import AGAIN_S, EARLY_MAX, Stability, parse_progress
from logboom.errors import ProtocolError
from logboom.types import NodeId, PartitionId

P, Q = PartitionId(1), PartitionId(2)


def nodes(count: int) -> list[NodeId]:
    return [NodeId(f"n{k}") for k in range(1, count + 1)]


def stability(count: int = 3) -> Stability:
    return Stability(node_id=NodeId("n1"), members=nodes(count), partitions=[P, Q])


class TestStable:
    @pytest.mark.parametrize(("count", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
    def test_it_takes_a_majority(self, count: int, needed: int) -> None:
        rule = stability(count)
        moved = [rule.update(node, P, 5) for node in nodes(count)]
        assert moved == [k == needed for k in range(1, count + 1)]
        assert rule.stable(P) == 5

    def test_one_node_far_ahead_moves_nothing(self) -> None:
        rule = stability()
        assert not rule.update(NodeId("n2"), P, 1000)
        assert rule.stable(P) == 0

    def test_partitions_are_apart(self) -> None:
        rule = stability()
        for node in nodes(3):
            rule.update(node, P, 5)
        assert (rule.stable(P), rule.stable(Q)) == (5, 0)

    def test_a_node_that_says_less_than_before_takes_nothing_back(self) -> None:
        rule = stability()
        rule.update(NodeId("n1"), P, 9)
        rule.update(NodeId("n2"), P, 9)
        assert not rule.update(NodeId("n1"), P, 2)
        assert rule.stable(P) == 9
        assert rule.rows(NodeId("n2")) == [(P, 9)]

    def test_partitions_without_the_rule_have_no_stable_index(self) -> None:
        rule = stability()
        assert rule.stable(PartitionId(9)) is None
        assert not rule.update(NodeId("n1"), PartitionId(9), 5)
        assert rule.partitions == [P, Q]

    def test_strangers_have_no_say(self) -> None:
        rule = stability()
        rule.update(NodeId("n1"), P, 5)
        assert not rule.update(NodeId("n9"), P, 5)
        assert rule.stable(P) == 0


class TestTelling:
    def test_a_node_tells_only_its_own(self) -> None:
        rule = stability()
        rule.update(NodeId("n2"), P, 5)
        assert rule.untold() == []
        rule.update(NodeId("n1"), Q, 3)
        assert rule.untold() == [NodeId("n2"), NodeId("n3")]
        assert rule.rows(NodeId("n2")) == [(Q, 3)]

    def test_what_was_told_is_not_said_twice(self) -> None:
        rule = stability()
        rule.update(NodeId("n1"), P, 3)
        rule.told(NodeId("n2"))
        rule.update(NodeId("n1"), P, 3)
        rule.update(NodeId("n1"), P, 2)
        assert rule.untold() == [NodeId("n3")]
        rule.update(NodeId("n1"), Q, 1)
        assert (rule.rows(NodeId("n2")), rule.rows(NodeId("n3"))) == ([(Q, 1)], [(P, 3), (Q, 1)])

    def test_over_a_new_link_everything_is_said_again(self) -> None:
        rule = stability()
        rule.update(NodeId("n1"), P, 3)
        rule.told(NodeId("n2"))
        rule.forget_told(NodeId("n2"))
        assert rule.rows(NodeId("n2")) == [(P, 3)]
        rule.told(NodeId("n3"))
        rule.forget_told(NodeId("n3"))
        rule.update(NodeId("n1"), P, 4)
        assert rule.rows(NodeId("n3")) == [(P, 4)]


class TestAgain:
    """A node that is new, or has lost its journal, is told all at once, and comes to know partitions one by one."""

    COUNT, EVERY = 2 * EARLY_MAX, 1000

    def meet(self) -> dict[NodeId, Stability]:
        """Two that have all partitions, and a third that has none; each has a new link with each."""
        three, every = nodes(3), list(map(PartitionId, range(self.COUNT)))
        rules = {n: Stability(node_id=n, members=three, partitions=[] if n == three[2] else every) for n in three}
        for one in three:
            for other in three:
                if one != other:
                    rules[one].link_up(other)
            for partition in rules[one].partitions:
                rules[one].update(one, partition, partition + 1)
        return rules

    @staticmethod
    def exchange(rules: dict[NodeId, Stability], now: float, *, lost: bool = False) -> list[int]:
        """Until nobody has anything to say; how many rows there were in each round. ``lost``: no link has room."""
        rows = list[int]()
        while said := [(one, to, header) for one, rule in rules.items() for to, header in rule.news(now)]:
            for one, to, header in said if not lost else ():
                rules[one].told(to, again="again" in header)
                rules[to].heard(one, json.loads(json.dumps(header)), is_gone=lambda _: False)
            rows.append(sum(len(header["durable"]) for _, _, header in said))
            if lost:
                break
        return rows

    @pytest.mark.parametrize("full", [False, True])
    def test_what_was_more_than_is_kept_is_told_again_until_all_is_known(self, *, full: bool) -> None:
        """It was told once: all the others were applied nowhere on that node, for as long as nobody wrote to them."""
        rules, third, now = self.meet(), nodes(3)[2], 0.0
        self.exchange(rules, now)
        for number in range(self.COUNT):
            rules[third].add(PartitionId(number))
            rules[third].update(third, PartitionId(number), number + 1)
            if number % self.EVERY == 0:
                now += 1.0
                self.exchange(rules, now, lost=full and number < self.COUNT / 2)
        self.exchange(rules, now + AGAIN_S)
        assert [p for p in rules[third].partitions if rules[third].stable(p) != p + 1] == []
        assert self.exchange(rules, now + 10 * AGAIN_S) == [], "nothing is asked for any more"

    def test_it_is_asked_for_now_and_then_and_not_with_each_that_comes(self) -> None:
        """Each answer is of thousands."""
        rules, third = self.meet(), nodes(3)[2]
        self.exchange(rules, 0.0)
        rounds = 0
        for number in range(100):
            rules[third].add(PartitionId(number))
            rounds += bool(self.exchange(rules, AGAIN_S + number / 100))
        assert rounds == 1

    def test_whoever_has_a_new_link_says_it_without_being_asked(self) -> None:
        rules, (first, second, third) = self.meet(), nodes(3)
        self.exchange(rules, 0.0)
        rules[third].link_down(first, member=True)
        rules[third].add(PartitionId(0))
        rules[third].link_up(first)
        asked = [to for to, header in rules[third].news(AGAIN_S) if "again" in header]
        assert asked == [second]

    def test_where_all_of_it_is_kept_nobody_is_asked(self) -> None:
        rule = stability()
        for number in range(EARLY_MAX):
            rule.early(NodeId("n2"), PartitionId(10 + number), 1)
        rule.add(PartitionId(10))
        assert rule.news(AGAIN_S) == []


WORDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=40)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), WORDS, st.integers(0, 1 << 30))
def test_every_order_of_the_same_words_gives_the_same_and_it_never_goes_back(
    count: int, words: list[tuple[int, int]], seed: int
) -> None:
    members, ends = nodes(count), []
    words = [(node % count, index) for node, index in words]
    for shuffle in (False, True):
        if shuffle:
            random.Random(seed).shuffle(words)
        rule, said = stability(count), dict.fromkeys(members, 0)
        for node, index in words:
            before = rule.stable(P)
            moved = rule.update(members[node], P, index)
            said[members[node]] = max(said[members[node]], index)
            stable = max(i for i in range(21) if sum(s >= i for s in said.values()) * 2 > count)
            assert rule.stable(P) == stable
            assert moved == (stable > (before or 0))
        ends.append(rule.stable(P))
    assert ends[0] == ends[1]


class TestProgress:
    def test_what_one_node_tells_another_reads(self) -> None:
        rule = stability()
        rule.update(NodeId("n1"), P, 3)
        rule.update(NodeId("n1"), Q, 4)
        assert parse_progress({"durable": [list(row) for row in rule.rows(NodeId("n2"))]}) == [(P, 3), (Q, 4)]

    def test_nothing_to_tell_is_fine(self) -> None:
        assert parse_progress({"durable": []}) == []

    @pytest.mark.parametrize("header", [{}, {"durable": None}, {"durable": {"1": 2}}, {"durable": "12"}])
    def test_without_a_list_it_is_refused(self, header: dict[str, object]) -> None:
        with pytest.raises(ProtocolError, match="without a list"):
            parse_progress(header)

    @pytest.mark.parametrize(
        "row", [None, 5, "12", [], [1], [1, 2, 3], [1, -1], [-1, 1], [1, 2.0], [1, True], ["1", 2], [[1], 2], {1: 2}]
    )
    def test_a_row_that_is_not_two_numbers_is_named(self, row: object) -> None:
        with pytest.raises(ProtocolError) as refused:
            parse_progress({"durable": [[1, 2], row]})
        assert repr(row) in refused.value.message


class TestMembers:
    def test_only_voters_count_and_what_was_stable_stays_so(self) -> None:
        rule = stability(3)
        for node in nodes(2):
            rule.update(node, P, 5)
        assert rule.stable(P) == 5
        assert rule.set_members(nodes(5), voters=nodes(3)) == []
        rule.update(NodeId("n4"), P, 9)
        rule.update(NodeId("n5"), P, 9)
        assert rule.stable(P) == 5, "learners were counted"
        rule.update(NodeId("n3"), P, 7)
        assert rule.set_members(nodes(5), voters=nodes(5)) == [P]
        assert rule.stable(P) == 7
        assert rule.set_members(nodes(2), voters=nodes(2)) == []
        assert rule.stable(P) == 7

    def test_who_spoke_before_it_was_a_member_is_remembered(self) -> None:
        """It says everything once per link."""
        rule = stability(1)
        rule.forget_told(NodeId("n2"))
        rule.update(NodeId("n2"), P, 4)
        rule.update(NodeId("n1"), P, 6)
        assert rule.stable(P) == 6
        rule.update(NodeId("n1"), P, 8)
        rule.set_members(nodes(2), voters=nodes(2))
        rule.update(NodeId("n2"), P, 9)
        rule.update(NodeId("n1"), P, 10)
        assert rule.stable(P) == 9

    def test_who_is_linked_is_remembered_through_configurations_of_before_it_came(self) -> None:
        """A log that is replayed begins with those, and what was said once is not said again."""
        rule = stability(3)
        n1, n4 = NodeId("n1"), NodeId("n4")
        rule.link_up(n4)
        rule.update(n4, P, 4)
        rule.update(n1, P, 6)
        rule.set_members(nodes(2), voters=nodes(2))
        assert rule.set_members([n1, n4], voters=[n1, n4]) == [P]
        assert rule.stable(P) == 4

    @pytest.mark.parametrize("last", ["link", "seat"])
    def test_who_is_neither_a_member_nor_linked_is_forgotten(self, last: str) -> None:
        rule = stability(3)
        n1, n2 = nodes(2)
        rule.link_up(n2)
        rule.update(n2, P, 4)
        if last == "link":
            rule.set_members([n1], voters=[])
            rule.link_down(n2, member=False)
        else:
            rule.link_down(n2, member=True)
            rule.set_members([n1], voters=[])
        rule.update(n1, P, 6)
        assert not rule.untold()
        assert rule.set_members([n1, n2], voters=[n1, n2]) == []
        assert rule.update(n2, P, 5)

    def test_what_a_member_has_said_outlives_its_link(self) -> None:
        rule = stability(3)
        n1, n2 = nodes(2)
        rule.link_up(n2)
        rule.update(n2, P, 4)
        rule.link_down(n2, member=True)
        assert rule.update(n1, P, 6)

    def test_new_members_are_told_and_old_ones_not(self) -> None:
        rule = stability(2)
        rule.update(NodeId("n1"), P, 3)
        rule.set_members([NodeId("n1"), NodeId("n3")], voters=[NodeId("n1")])
        assert rule.untold() == [NodeId("n3")]
        assert rule.rows(NodeId("n3")) == [(P, 3)]


def test_what_a_node_said_before_its_disk_went_counts_no_more() -> None:
    rule = stability()
    rule.update(NodeId("n1"), P, 5)
    rule.update(NodeId("n2"), P, 9)
    rule.update(NodeId("n3"), P, 3)
    assert rule.stable(P) == 5
    rule.forget(NodeId("n2"))
    rule.update(NodeId("n1"), P, 9)
    assert rule.stable(P) == 5, "it stays; one node alone makes nothing more stable"
    assert rule.update(NodeId("n2"), P, 7), "it is taken at its word from then on, though it was further before"
    assert rule.stable(P) == 7


def test_what_a_node_said_early_before_its_disk_went_counts_no_more() -> None:
    """It was counted once the partition was opened: applied was what one node alone had."""
    rule, late = stability(), PartitionId(9)
    n1, n2, n3 = nodes(3)
    rule.early(n2, late, 100)
    rule.early(n3, late, 40)
    rule.forget(n2)
    rule.add(late)
    rule.update(n1, late, 100)
    assert rule.stable(late) == 40, "what the other one said stays"
    assert rule.update(n2, late, 70)
