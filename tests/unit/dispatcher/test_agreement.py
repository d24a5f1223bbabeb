"""When something may be used that a node of an earlier release would not understand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.agreement import Agreement
from dispatcher.pipeline.submitting import Submitting
from dispatcher.requests.requests import SubmitPart, SubmitRequest, encode_submit, parse_submit
from logboom.commands import DeletePrefix, Put
from logboom.errors import IncompatibleVersion, InvalidRequest, NotLeader, Unavailable
from logboom.records import RecordBlock
from logboom.settings import RaftSettings
from logboom.types import KV_TXN, MIXED, GlobalLogIndex, Level, NodeId, PartitionId, ProducerId
from logboom.wire import Frame, Kind
from raftlog.entries.agreed import agreeing
from raftlog.entries.parent_state import ParentState

OTHERS = ("n2", "n3")


class Leader:
    """Of three; which of the others are there, which of those know it, and which knew it when they were last here."""

    def __init__(
        self, *, there: tuple[str, ...] = OTHERS, know: tuple[str, ...] = OTHERS, knew: tuple[str, ...] = ()
    ) -> None:
        self.there, self.know, self.knew = there, know, knew
        self.proposed: list[dict[str, Any]] = []
        self.term = 5
        self.node_id = NodeId("n1")
        self.parent = ParentState()
        self.members = SimpleNamespace(seats=[SimpleNamespace(node=node) for node in ("n1", *OTHERS)])
        links = SimpleNamespace(
            connected=lambda node: node in self.there,
            speaks=lambda node, feature: feature in (KV_TXN, MIXED) and node in self.there and node in self.know,
            knew=lambda node, feature: feature == KV_TXN and node in self.knew,
        )
        self.raft = SimpleNamespace(links=links, engine=self, propose_control=self.proposed.append, admits=True)
        self.settings = SimpleNamespace(raft=RaftSettings(agree_after_s=100))
        self.agreement = Agreement(self)  # type: ignore[arg-type]

    def check(self) -> None:
        self.agreement.check(KV_TXN)

    def hand_up(self) -> None:
        self.parent.control(self.parent.raft_index + 1, self.term, self.proposed[-1])


def test_it_is_agreed_on_when_somebody_asks_and_all_know_it() -> None:
    leader = Leader()
    assert not leader.proposed
    for _ in range(3):
        with pytest.raises(Unavailable, match="being agreed on") as refused:
            leader.check()
        assert refused.value.outcome == "not_applied"
    assert leader.proposed == [agreeing([KV_TXN])]  # once
    leader.hand_up()
    leader.check()


class TestUnasked:
    """What nobody asks for."""

    def test_a_cluster_that_has_ordered_nothing_has_no_way_back(self) -> None:
        leader = Leader()
        leader.agreement.consider(MIXED, 0.0)
        leader.agreement.consider(MIXED, 0.1)
        assert leader.proposed == [agreeing([MIXED])]  # once
        leader.hand_up()
        leader.term = 9
        leader.agreement.consider(MIXED, 0.2)
        assert leader.proposed == [agreeing([MIXED])]

    @pytest.mark.parametrize("lacking", [{"there": ("n3",)}, {"know": ("n2",)}])
    def test_not_while_somebody_is_away_or_does_not_know_it(self, lacking: dict[str, Any]) -> None:
        leader = Leader(**lacking)
        leader.agreement.consider(MIXED, 0.0)
        leader.agreement.consider(MIXED, 1_000.0)
        assert leader.proposed == []

    def test_a_cluster_that_was_upgraded_has_time_to_go_back(self) -> None:
        """Counted from when all were there, and knew it: anew when somebody was put back, or away."""
        leader = Leader()
        leader.parent.global_index = GlobalLogIndex(7)
        for now in (0.0, 50.0, 99.0):
            leader.agreement.consider(MIXED, now)
        leader.there = ("n2",)
        leader.agreement.consider(MIXED, 99.5)
        leader.there = OTHERS
        for now in (99.9, 100.0, 199.0):
            leader.agreement.consider(MIXED, now)
        assert leader.proposed == []
        leader.agreement.consider(MIXED, 199.9)
        assert leader.proposed == [agreeing([MIXED])]

    def test_of_what_was_known_before_others_led_nothing_counts(self) -> None:
        """Others may have been put back then, and upgraded again: this node hears of neither."""
        leader = Leader()
        leader.parent.global_index = GlobalLogIndex(7)
        leader.agreement.consider(MIXED, 0.0)
        leader.agreement.lost_leadership()
        for now in (101.0, 200.0):
            leader.agreement.consider(MIXED, now)
        assert leader.proposed == []
        leader.agreement.consider(MIXED, 201.0)
        assert leader.proposed == [agreeing([MIXED])]

    def test_only_who_leads_has_it_agreed_on(self) -> None:
        leader = Leader()
        leader.raft.admits = False
        leader.agreement.consider(MIXED, 0.0)
        assert leader.proposed == []


def test_what_was_lost_with_a_term_is_proposed_again() -> None:
    leader = Leader()
    for leader.term in (5, 5, 7):
        with pytest.raises(Unavailable):
            leader.check()
    assert len(leader.proposed) == 2


def test_a_node_of_an_earlier_release_is_named() -> None:
    leader = Leader(know=("n3",))
    with pytest.raises(IncompatibleVersion, match="n2: of an earlier release") as refused:
        leader.check()
    assert not refused.value.retryable
    assert refused.value.outcome == "not_applied"
    assert not leader.proposed


def test_of_who_is_away_nobody_knows_it_but_once_it_is_agreed_on_it_may_be_away() -> None:
    leader = Leader(there=("n2",))
    with pytest.raises(Unavailable, match=r"whether n3 can. Start n3.*logboom members remove n3"):
        leader.check()
    assert not leader.proposed
    leader.there = OTHERS
    with pytest.raises(Unavailable):
        leader.check()
    leader.hand_up()
    leader.there = ()
    leader.check()


def test_who_is_away_counts_as_what_it_was_when_it_was_last_here() -> None:
    """Else a member that is down for a week forbids it for a week, though it knew it when it went."""
    leader = Leader(there=("n2",), knew=("n3",))
    with pytest.raises(Unavailable, match="being agreed on"):
        leader.check()
    assert leader.proposed == [agreeing([KV_TXN])]
    back = Leader(know=("n2",), knew=("n3",))
    with pytest.raises(IncompatibleVersion, match="n3: of an earlier release"):
        back.check()


def request(**how: Any) -> SubmitRequest:
    records = RecordBlock.from_records([Put(b"k", b"v").record(), DeletePrefix(b"k").record()])
    part = SubmitPart(PartitionId(0), 0, 0, records)
    return SubmitRequest(ProducerId(bytes(16)), 0, False, Level.APPLIED, 9.0, (part,), records.nbytes, **how)


def test_a_request_says_so_from_node_to_node() -> None:
    plain = RecordBlock.from_records([Put(b"k", b"v").record()])
    for wide in (False, True):
        several = request(wide=wide)
        records = several.parts[0].records.as_wide(wide=wide)
        parts = SubmitPart(PartitionId(0), 0, 0, records), SubmitPart(PartitionId(1), 0, 0, plain)
        header, body = encode_submit(several._replace(parts=parts), now=0.0)
        assert header.get("wide") == ([0] if wide else None)
        found = parse_submit(Frame(Kind.FORWARD, 1, header, memoryview(b"".join(map(bytes, body)))), now=0.0)
        assert (found.wide, [part.records.wide for part in found.parts]) == (wide, [wide, False])
    header["wide"] = [b"0"]
    with pytest.raises(InvalidRequest, match="wide"):
        parse_submit(Frame(Kind.FORWARD, 1, header, memoryview(b"".join(map(bytes, body)))), now=0.0)


@pytest.mark.parametrize("known", [False, True])
def test_it_is_not_passed_on_to_a_leader_that_would_read_it_as_nothing(known: bool) -> None:
    passed: list[str] = []
    pipeline: Any = SimpleNamespace(
        node_id="n1",
        address_of=lambda node: f"{node}:7",
        forwarding=SimpleNamespace(forward=lambda leader, *_: passed.append(leader) or True),
        raft=SimpleNamespace(engine=SimpleNamespace(leader="n2"), links=SimpleNamespace(speaks=lambda *_: known)),
    )
    submitting: Any = SimpleNamespace(_pipeline=pipeline)
    if known:
        Submitting._redirect(submitting, request(forward=True, wide=True), pytest.fail)
    else:
        with pytest.raises(NotLeader) as sent_on:
            Submitting._redirect(submitting, request(forward=True, wide=True), pytest.fail)
        assert sent_on.value.fields["leader"] == "n2:7"
    Submitting._redirect(submitting, request(forward=True), pytest.fail)
    assert passed == ["n2"] * (1 + known)
