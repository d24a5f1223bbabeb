"""What followers' signals say reaches the leader: it admits what a quorum can take, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from chaos.sim.drawing import draw
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.simulation import Simulation
from chaos.sim.stories import Stories
from chaos.sim.timeline import Timeline
from dispatcher.admission.admission import Admission
from dispatcher.admission.budgets import Verdict
from dispatcher.admission.pressure import NAME_MAX, SOURCE, Pressure
from logboom.errors import Overloaded, ProtocolError
from logboom.settings import AdmissionSettings
from logboom.types import NodeId, PartitionId
from logboom.wire import Kind
from raftlog.entries.configuration import Configuration, Role, Seat

N1, N2, N3, N4, N5 = (NodeId(f"n{k}") for k in range(1, 6))
FULL = ["disk_free", 1.0]


def members(*voters: NodeId, learners: tuple[NodeId, ...] = ()) -> Configuration:
    seats = [Seat(node, f"{node}:1", f"{node}:2", Role.VOTER) for node in voters]
    seats += [Seat(node, f"{node}:1", f"{node}:2", Role.LEARNER) for node in learners]
    return Configuration(tuple(seats))


class Desk:
    """n1, and what it sends."""

    def __init__(self, *others: NodeId, leads: bool = True) -> None:
        self.sent: list[tuple[NodeId, Any]] = []
        self.eased = 0
        self.full_links = False
        self.admission = Admission(AdmissionSettings(), [PartitionId(0)])
        links: Any = self
        self.pressure = Pressure(node_id=N1, links=lambda: links, admission=self.admission, eased=self._eased)
        self.pressure.members_changed(members(N1, *others))
        for peer in others:
            self.pressure.peer_up(peer)
        if leads:
            self.pressure.leads()
        self.sent.clear()

    def _eased(self) -> None:
        self.eased += 1

    def send(self, peer: NodeId, kind: Kind, header: dict[str, object]) -> bool:
        assert kind is Kind.PROGRESS
        if self.full_links:
            return False
        self.sent.append((peer, header["pressure"]))
        return True

    def hears(self, peer: NodeId, row: object) -> None:
        self.pressure.heard(peer, {"durable": [], "pressure": row})

    @property
    def verdict(self) -> Verdict | None:
        return self.admission.gate().verdict


class TestTelling:
    def test_what_has_changed_is_told_once(self) -> None:
        desk = Desk(N2, N3)
        for verdict in (None, Verdict("memory", 0.5), Verdict("memory", 0.5), None):
            desk.pressure.said(verdict)
        assert sorted(desk.sent) == sorted((peer, row) for row in (["memory", 0.5], []) for peer in (N2, N3))

    def test_over_a_new_link_everything_is_told(self) -> None:
        desk = Desk(N2, N3)
        desk.pressure.said(Verdict("memory", 0.5))
        desk.sent.clear()
        desk.pressure.peer_down(N2)
        desk.pressure.peer_up(N2)
        assert desk.sent == [(N2, ["memory", 0.5])]

    def test_a_full_link_is_tried_again(self) -> None:
        desk = Desk(N2)
        desk.full_links = True
        desk.pressure.said(Verdict("memory", 0.5))
        desk.full_links = False
        desk.pressure.tell()
        desk.pressure.tell()
        assert desk.sent == [(N2, ["memory", 0.5])]

    def test_a_name_that_is_too_long_is_cut(self) -> None:
        desk = Desk(N2)
        desk.pressure.said(Verdict("x" * 1000, 1.0))
        (_, row) = desk.sent[0]
        other = Desk(N2)
        other.hears(N2, row)
        assert other.verdict == Verdict(f"{'x' * NAME_MAX}@n2", 1.0)


class TestWhoShouldLead:
    @pytest.mark.parametrize(
        ("own", "full", "of", "better"),
        [
            (1.0, [], (N2, N3), (N2, N3)),
            (1.0, [N2], (N2, N3), ()),  # it could commit nothing either
            (1.0, [N2], (N2, N3, N4, N5), (N3, N4, N5)),
            (1.0, [N2, N3], (N2, N3, N4, N5), ()),
            (1.0, [], (N2,), ()),
            (1.0, [], (), ()),
            (0.9, [], (N2, N3), ()),
        ],
    )
    def test_one_who_can_take_something_with_a_quorum_that_can(
        self, own: float, full: list[NodeId], of: tuple[NodeId, ...], better: tuple[NodeId, ...]
    ) -> None:
        desk = Desk(*of)
        for peer in full:
            desk.hears(peer, FULL)
        assert desk.pressure.better() == ()
        desk.pressure.said(Verdict("disk_free", own))
        assert desk.pressure.better() == better
        desk.pressure.lost_leadership()
        assert desk.pressure.better() == ()

    def test_whoever_is_not_there_cannot(self) -> None:
        desk = Desk(N2, N3)
        desk.pressure.said(Verdict("disk_free", 1.0))
        desk.pressure.peer_down(N2)
        assert desk.pressure.better() == ()

    def test_the_one_with_the_most_room_first(self) -> None:
        desk = Desk(N2, N3)
        desk.hears(N2, ["disk_free", 0.5])
        desk.pressure.said(Verdict("disk_free", 1.0))
        assert desk.pressure.better() == (N3, N2)


class TestJudging:
    @pytest.mark.parametrize(
        ("full", "of", "withheld"),
        [
            ([N2], (N2, N3), False),
            ([N2, N3], (N2, N3), True),
            ([N2, N3], (N2, N3, N4, N5), False),
            ([N2, N3, N4], (N2, N3, N4, N5), True),
            ([N2], (N2,), True),
            ([N2, N3], (N2, N3, N4), True),
            ([], (), False),
        ],
    )
    def test_what_a_quorum_can_take_is_admitted(
        self, full: list[NodeId], of: tuple[NodeId, ...], withheld: bool
    ) -> None:
        desk = Desk(*of)
        for peer in full:
            desk.hears(peer, FULL)
        assert (desk.verdict is not None) == withheld

    def test_the_last_one_that_is_needed_counts(self) -> None:
        desk = Desk(N2, N3, N4, N5)
        for peer, pressure in ((N2, 0.2), (N3, 0.9), (N4, 0.4), (N5, 1.0)):
            desk.hears(peer, ["memory", pressure])
        assert desk.verdict == Verdict("memory@n4", 0.4)

    def test_the_refusal_names_signal_and_node(self) -> None:
        desk = Desk(N2, N3)
        for peer in (N2, N3):
            desk.hears(peer, FULL)
        with pytest.raises(Overloaded, match="disk_free@n2") as raised:
            desk.admission.admit([(PartitionId(0), 1, 1)], 0.0)
        assert raised.value.limit == "disk_free@n2"

    def test_who_is_not_connected_is_not_counted_on(self) -> None:
        desk = Desk(N2, N3)
        desk.hears(N2, FULL)
        assert desk.verdict is None
        desk.pressure.peer_down(N3)
        assert desk.verdict == Verdict("disk_free@n2", 1.0)
        desk.pressure.peer_up(N3)
        assert desk.verdict is None
        assert desk.eased == 1

    def test_without_a_quorum_nothing_is_withheld_for_that(self) -> None:
        desk = Desk(N2, N3)
        desk.hears(N2, FULL)
        desk.pressure.peer_down(N2)
        desk.pressure.peer_down(N3)
        assert desk.verdict is None

    def test_what_was_said_over_an_old_link_is_forgotten(self) -> None:
        desk = Desk(N2)
        desk.hears(N2, FULL)
        desk.pressure.peer_down(N2)
        desk.pressure.peer_up(N2)
        assert desk.verdict is None

    def test_only_voters_count(self) -> None:
        desk = Desk(N2, N3)
        desk.pressure.members_changed(members(N1, N2, learners=(N3,)))
        desk.hears(N3, FULL)
        assert desk.verdict is None
        desk.pressure.members_changed(members(N1, N3, learners=(N2,)))
        assert desk.verdict == Verdict("disk_free@n3", 1.0)

    def test_a_leader_that_does_not_vote_needs_more_of_the_others(self) -> None:
        desk = Desk(N2, N3, N4)
        desk.pressure.members_changed(members(N2, N3, N4))
        desk.hears(N2, FULL)
        assert desk.verdict is None
        desk.hears(N3, FULL)
        assert desk.verdict is not None

    def test_only_who_leads_withholds(self) -> None:
        desk = Desk(N2, N3, leads=False)
        for peer in (N2, N3):
            desk.hears(peer, FULL)
        assert desk.verdict is None
        desk.pressure.leads()
        assert desk.verdict is not None
        desk.pressure.lost_leadership()
        assert desk.verdict is None

    def test_what_the_nodes_own_signals_say_stays(self) -> None:
        desk = Desk(N2)
        desk.admission.judge(None, Verdict("memory", 0.5))
        desk.hears(N2, FULL)
        desk.hears(N2, [])
        assert desk.verdict == Verdict("memory", 0.5)
        assert SOURCE != "signals"

    @pytest.mark.parametrize(
        "row",
        [None, 1, "x", [1, 1.0], ["x"], ["x", 1], ["x", 0.0], ["x", 1.5], ["x", float("nan")], ["", 1.0],
         ["x" * (NAME_MAX + 1), 1.0], ["x", 1.0, 1]],
    )  # fmt: skip
    def test_what_makes_no_sense_is_refused(self, row: object) -> None:
        with pytest.raises(ProtocolError, match="pressure"):
            Desk(N2).hears(N2, row)

    def test_a_frame_without_it_says_nothing(self) -> None:
        desk = Desk(N2)
        desk.hears(N2, FULL)
        desk.pressure.heard(N2, {"durable": []})
        assert desk.verdict is not None


class Story:
    """In the simulator the disks of first one and then both followers run full, and have room again."""

    FIRST_S, SECOND_S, AGAIN_S, END_S = 4.0, 6.0, 8.0, 12.0

    def __init__(self, seed: int) -> None:
        drawn = draw(seed, seconds=self.END_S)
        admission = msgspec.structs.replace(
            drawn.settings.admission, signals=("disk_free",), signal_ms=50, disk_free_bytes_min=1 << 16
        )
        settings = msgspec.structs.replace(drawn.settings, admission=admission)
        drawn = replace(drawn, stories=Stories(), blackout=None)
        still = replace(drawn, partitions_change=False, begun_go=False, members_change=False)
        self.simulation = Simulation(replace(still, settings=settings, faults=()), timeline=Timeline())
        self.seen: list[str | None] = []

    def play(self) -> Any:
        loop = self.simulation.loop
        for at, full in ((self.FIRST_S, 1), (self.SECOND_S, 2), (self.AGAIN_S, 0)):
            loop.run_as(None, lambda full=full: self._fill(full), delay=at)
            loop.run_as(None, self._look, delay=at + 1.0)
        return self.simulation.play()

    def _fill(self, full: int) -> None:
        hosts = [host for host in self.simulation.hosts if host.node is not None]
        followers = [host for host in hosts if not host.node.pipeline.raft.admits]  # type: ignore[union-attr]
        assert len(followers) == 2
        for number, host in enumerate(followers):
            if number < full:
                host.disk.free_bytes = lambda path: 0  # type: ignore[method-assign]
            elif "free_bytes" in vars(host.disk):
                del host.disk.free_bytes

    def _look(self) -> None:
        leading = [h.node for h in self.simulation.hosts if h.node is not None and h.node.pipeline.raft.admits]
        verdict = leading[0].admission.gate().verdict
        self.seen.append(None if verdict is None else verdict.signal.partition("@")[0])


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_full_disks_of_two_followers_are_the_leaders_concern(seed: int) -> None:
    print("seed", seed)
    with leftovers_unseen():
        story = Story(seed)
        outcome = story.play()
    assert outcome.failure is None
    assert story.seen == [None, "disk_free", None]
