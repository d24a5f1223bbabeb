"""A journal that ends otherwise than its leader's, as that of one who has led and was cut off."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.errors import ProtocolError
from raftlog.engine import messages
from tests.unit.raftlog.sides import FOLLOWER, LEADER, Side


def rounds_until_one(leader: Side, follower: Side, *, at_most: int) -> int:
    """Of the leader, until the other one has the same journal."""
    for number in range(1, at_most + 1):
        for message in leader.to(FOLLOWER):
            follower.engine.receive(LEADER, message)
        for answer in follower.to(LEADER):
            leader.engine.receive(FOLLOWER, answer)
        if follower.journal.last_index == leader.journal.last_index:
            shared = max(leader.journal.base_index, follower.journal.base_index)
            if follower.journal.after(shared) == leader.journal.after(shared):
                return number
        leader.tick()
    raise AssertionError(f"not in {at_most} rounds")


@pytest.mark.parametrize("longer", [False, True])
def test_one_who_has_led_and_was_cut_off_is_caught_up_in_a_few_rounds(longer: bool) -> None:
    """Each entry that nobody else had cost a round trip, and what fits into four messages was sent with each."""
    clock = SimpleNamespace(now=1000.0)
    leader = Side(clock, LEADER, [1] * 50 + [2] * (10 if longer else 900))
    follower = Side(clock, FOLLOWER, [1] * 50 + [1] * 500)
    leader.lead()
    assert rounds_until_one(leader, follower, at_most=5) <= 4


@pytest.mark.parametrize("seed", range(200))
def test_however_two_journals_differ_they_become_one_in_a_round_for_each_term(seed: int) -> None:
    rng = random.Random(seed)
    common = sorted(rng.choice((1, 2, 3)) for _ in range(rng.randrange(1, 30)))
    last = common[-1]
    tails = [
        sorted(rng.choice(range(last + 1 + odd, last + 9, 2)) for _ in range(rng.randrange(0, 40))) for odd in (0, 1)
    ]
    tails[rng.randrange(2)][:0] = [last] * rng.randrange(10)  # of them one may have gone on in that term
    clock = SimpleNamespace(now=1000.0)
    bases = [rng.randrange(1, len(common) + 2) if rng.random() < 0.5 else 1 for _ in range(2)]
    leader = Side(clock, LEADER, common + tails[0], base=bases[0])
    follower = Side(clock, FOLLOWER, common + tails[1], base=bases[1])
    while leader.engine.term < follower.engine.term:
        leader.engine.receive(FOLLOWER, {"type": "pre_vote_no", "term": follower.engine.term})
    leader.lead()
    terms = len({*common, *tails[0], *tails[1]})
    assert rounds_until_one(leader, follower, at_most=2 * terms + 4) <= terms + 2
    assert leader.far == [], "it has what the leader's journal begins with"


def test_a_leader_of_an_earlier_release_goes_back_as_it_did() -> None:
    """It knows nothing of terms in answers."""
    clock = SimpleNamespace(now=1000.0)
    leader, follower = Side(clock, LEADER, [1] * 5 + [2] * 5), Side(clock, FOLLOWER, [1] * 9)
    leader.lead()
    for _ in range(8):
        for message in leader.to(FOLLOWER):
            follower.engine.receive(LEADER, message)
        for answer in follower.to(LEADER):
            answer.pop("term_before", None)
            leader.engine.receive(FOLLOWER, answer)
        leader.tick()
    assert follower.journal.entries == leader.journal.entries


@pytest.mark.parametrize("value", [-1, 1 << 62, True, b"1", None])
def test_a_term_before_that_is_none_is_refused(value: Any) -> None:
    reply = {"type": "next_node_idx", "term": 4, "next_node_idx": 5, "reset": True, "success": False, "seq": 17}
    with pytest.raises(ProtocolError, match="term_before"):
        messages.decode(memoryview(messages.encode(reply | {"term_before": value})))
    with pytest.raises(ProtocolError, match="term_before"):
        messages.decode(memoryview(messages.encode({"type": "response_vote", "term": 4, "term_before": 1})))
