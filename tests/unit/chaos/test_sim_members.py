"""Members and partitions that come and go in the simulator: what is drawn, what happens, what is noticed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.drawing import draw
from chaos.sim.drawn_faults import DAMAGE
from chaos.sim.electorate import Electorate
from chaos.sim.runner import run
from chaos.sim.simulation import Outcome
from logboom import config
from logboom.types import NodeId
from raftlog.entries.configuration import Configuration, Role, Seat
from tests.unit.chaos.sim_world import real

SECONDS = 12.0
MOVING = next(seed for seed in range(1, 100) if draw(seed, seconds=SECONDS).members_change)
FROM_ONE = next(seed for seed in range(1, 100) if draw(seed, seconds=SECONDS).nodes == 1)
DESTROYING = next(seed for seed in range(1, 100) if draw(seed, seconds=SECONDS).begun_go)


def played(seed: int) -> Outcome:
    print(f"seed {seed}, {SECONDS} s")
    return run(draw(seed, seconds=SECONDS)).outcome


# -- what is drawn


def test_a_third_of_the_seeds_change_their_members_and_some_begin_with_one_node() -> None:
    drawn = [draw(seed) for seed in range(1, 301)]
    moving = [parameters for parameters in drawn if parameters.members_change]
    assert 0.25 < len(moving) / len(drawn) < 0.4
    assert {parameters.nodes for parameters in moving} == {1, 3, 5}
    assert all(parameters.nodes != 1 for parameters in drawn if not parameters.members_change)
    for parameters in moving:
        assert parameters.nodes == len(parameters.settings.cluster.members)
        assert len(parameters.victims) == (parameters.nodes > 1)
    assert any(parameters.begun_go for parameters in drawn)


def test_with_one_node_nothing_is_damaged() -> None:
    for seed in range(1, 301):
        parameters = draw(seed)
        if parameters.nodes == 1:
            assert not DAMAGE & {*parameters.kinds, *(fault.kind for fault in parameters.faults)}, seed


def test_nodes_that_join_have_settings_that_are_valid() -> None:
    for seed in (MOVING, FROM_ONE):
        settings = real(draw(seed).of_joining(7))
        config.check(settings)
        config.check_node(settings)
        assert (settings.node.id, settings.node.join) == ("n7", True)


# -- what happens


@pytest.mark.parametrize("seed", [MOVING, FROM_ONE])
def test_members_change_and_all_holds(seed: int) -> None:
    outcome = played(seed)
    assert outcome.failure is None
    assert outcome.changes["add"] > 0
    assert outcome.changes["voters"] > 0


def test_partitions_of_the_beginning_go_and_all_holds() -> None:
    outcome = played(DESTROYING)
    assert outcome.failure is None
    assert outcome.destroyed > 0


def test_a_moving_seed_is_the_same_again() -> None:
    seed = next(seed for seed in range(1, 100) if draw(seed, seconds=5.0).members_change)
    print(f"seed {seed}, 5 s")
    assert run(draw(seed, seconds=5.0)).outcome == run(draw(seed, seconds=5.0)).outcome


# -- what is noticed


class Looked:
    """An electorate, and what it has complained about."""

    def __init__(self, *voters: str) -> None:
        self.broken: list[str] = []
        self.votes: dict[tuple[str, int], set[str]] = {}
        self.begins = said(1, *voters)
        self.electorate = Electorate(self.begins, self.votes, lambda invariant, _: self.broken.append(invariant))

    def hands_up(self, host: str, configuration: Configuration, *, committed_in: int = 2) -> list[str]:
        """A node is handed up that entry."""
        at: Any = SimpleNamespace(name=host)
        self.electorate.handed_up(at, configuration.index, 2, committed_in, configuration.fields())
        return self.broken

    def leads(self, host: str, term: int, by: Configuration | None = None) -> list[str]:
        """A node begins to lead, ``by`` a configuration (None: the one that the cluster began with)."""
        self.electorate._in[host] = [by or self.begins]
        self.electorate.leads(SimpleNamespace(name=host), term)  # type: ignore[arg-type]
        return self.broken


def said(index: int, *voters: str, removed: tuple[str, ...] = ()) -> Configuration:
    seats = tuple(Seat(NodeId(each), f"{each}:1", f"{each}:2", Role.VOTER) for each in voters)
    return Configuration(seats, tuple(map(NodeId, removed)), 2, index)


def test_one_voter_at_a_time_is_fine() -> None:
    looked = Looked("n1", "n2", "n3")
    looked.hands_up("n1", said(5, "n1", "n2", "n3", "n4"))
    looked.hands_up("n2", said(5, "n1", "n2", "n3", "n4"))
    assert looked.hands_up("n2", said(8, "n1", "n3", "n4", removed=("n2",))) == []


def test_two_voters_at_once_are_noticed() -> None:
    assert Looked("n1").hands_up("n1", said(5, "n1", "n2", "n3")) == ["OneVoterAtATime"]


def test_two_who_are_told_other_things_are_noticed() -> None:
    looked = Looked("n1", "n2")
    looked.hands_up("n1", said(5, "n1", "n2", "n3"))
    assert looked.hands_up("n2", said(5, "n1", "n2", "n4")) == ["MembersAgree"]


def test_whoever_is_removed_and_forgotten_is_noticed() -> None:
    assert Looked("n1", "n2").hands_up("n1", said(5, "n1")) == ["IdsNotReused"]


def test_an_id_that_comes_again_is_noticed() -> None:
    looked = Looked("n1", "n2")
    looked.hands_up("n1", said(5, "n1", removed=("n2",)))
    assert set(looked.hands_up("n1", said(7, "n1", "n2"))) == {"IdsNotReused"}


def test_a_leader_needs_the_votes_of_a_majority() -> None:
    looked = Looked("n1", "n2", "n3")
    looked.votes["n4", 3] = {"n1"}
    assert looked.leads("n1", 3) == ["ElectedByQuorum"]
    looked.broken.clear()
    looked.votes["n2", 3] = {"n1"}
    assert looked.leads("n1", 3) == []


def test_whoever_is_removed_leads_no_later_term() -> None:
    looked = Looked("n1", "n2", "n3")
    looked.hands_up("n1", said(5, "n1", "n2", removed=("n3",)), committed_in=3)
    looked.votes.update({(node, term): {"n3"} for node in ("n1", "n2") for term in (3, 4)})
    assert looked.leads("n3", 3) == []
    assert looked.leads("n3", 4) == ["RemovedLeads"]


def test_whoever_has_its_removal_in_its_journal_may_lead_to_commit_it() -> None:
    """The leader that removed it may be the only one that knows that it is committed."""
    looked = Looked("n1", "n2", "n3")
    removal = said(5, "n1", "n2", removed=("n3",))
    looked.hands_up("n1", removal, committed_in=3)
    looked.votes.update({(node, 4): {"n3"} for node in ("n1", "n2")})
    assert looked.leads("n3", 4, by=removal) == []


@pytest.mark.parametrize(("leads", "index", "wrong"), [(True, 5, ["RemovedLeads"]), (False, 5, []), (True, 6, [])])
def test_whoever_is_told_that_it_is_removed_leads_no_more(leads: bool, index: int, wrong: list[str]) -> None:
    """``index``: of what its journal says last; what is not committed yet may have it back."""
    looked, alone = Looked("n1", "n2"), said(5, "n2", removed=("n1",))
    looked.electorate._in["n1"] = [looked.begins, said(index, "n2", removed=("n1",))]
    engine = SimpleNamespace(is_leader=leads, applied_index=5, term=2)
    host: Any = SimpleNamespace(name="n1")
    host.node = SimpleNamespace(
        pipeline=SimpleNamespace(parent=SimpleNamespace(members=alone), raft=SimpleNamespace(engine=engine))
    )
    looked.electorate.handed_up(host, 5, 2, 2, alone.fields())
    assert looked.broken == []
    looked.electorate.instant()
    looked.electorate.instant()
    assert looked.broken == wrong
