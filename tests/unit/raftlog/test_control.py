"""Control entries and the parent state: as bytes, and in order with what is routed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from logboom.errors import CorruptData, IncompatibleVersion, NotLeader
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from ports.invariant import InvariantViolated
from raftlog.entries.entry import (
    CONTROL_BYTES_MAX,
    KIND_NOOP,
    Route,
    pack_control,
    pack_routes,
    unpack_control,
    unpack_routes,
)
from raftlog.entries.parent_state import HEADER, ROW, VERSION, ParentState, Tail
from raftlog.proposals import Proposals
from tests.unit.raftlog.cluster import Cluster, SimNode


def route(partition: int, index: int) -> Route:
    return Route(PartitionId(partition), Term(1), PartitionLogIndex(index), index.to_bytes(16, "big"))


class TestBytes:
    def test_a_control_entry_is_what_went_in_and_routes_nothing(self) -> None:
        fields = {"cut": 7, "name": "x", "raw": b"\0\x10", "list": [1, None, True]}
        command = pack_control(fields)
        assert unpack_control(command) == fields
        assert unpack_routes(command) == []

    def test_other_commands_are_no_control_entries(self) -> None:
        assert unpack_control(KIND_NOOP) is None
        assert unpack_control(pack_routes([route(0, 1)])) is None

    @pytest.mark.parametrize(
        "command",
        [b"\x11", b"\x11\xc0", b"\x11\x81\x01\x02", b"\x11\x80\x80", b"\x11\x81\xa1\xff\x01", b"\x11\x91\x01"],
    )
    def test_what_is_malformed_is_refused_where_entries_come_in(self, command: bytes) -> None:
        with pytest.raises(CorruptData):
            unpack_control(command)
        with pytest.raises(CorruptData):
            unpack_routes(command)

    @pytest.mark.parametrize("term", [1, (1 << 32) - 1, 1 << 32, (1 << 62) - 1])
    def test_a_routing_entry_has_the_low_bits_of_a_term(self, term: int) -> None:
        """Found by review: with a term of more it could not be written, and each leader ended at its first one."""
        (found,) = unpack_routes(pack_routes([route(7, 9)._replace(term_hint=Term(term))]))
        assert found == route(7, 9)._replace(term_hint=Term(term % (1 << 32)))

    def test_size_is_bounded_both_ways(self) -> None:
        with pytest.raises(InvariantViolated):
            pack_control({"raw": bytes(CONTROL_BYTES_MAX)})
        with pytest.raises(CorruptData):
            unpack_control(pack_control({"raw": bytes(CONTROL_BYTES_MAX - 20)}) + bytes(40))


class TestProposals:
    def test_order_is_kept_around_a_control_entry(self) -> None:
        proposals = Proposals(entry_bytes_max=1 << 20)
        proposals.request([route(0, 1)], 10)
        proposals.request([route(0, 2)], 10)
        proposals.control({"cut": 1})
        proposals.control({"cut": 2})
        proposals.request([route(0, 3)], 10)
        first, one, two, last = proposals.take()
        assert [each.last_index for each in unpack_routes(first)] == [1, 2]
        assert (unpack_control(one), unpack_control(two)) == ({"cut": 1}, {"cut": 2})
        assert [each.last_index for each in unpack_routes(last)] == [3]
        assert not proposals
        assert proposals.take() == []


class TestParentState:
    def test_equal_states_are_equal_bytes_whatever_their_history(self) -> None:
        one, other = ParentState(), ParentState()
        one.apply(2, [route(3, 5), route(1, 2)])
        one.control(3)
        other.apply(2, [route(1, 1)])
        other.apply(3, [route(3, 5)])
        other.tails[PartitionId(1)] = Tail(PartitionLogIndex(2), (2).to_bytes(16, "big"), GlobalLogIndex(2))
        other.tails[PartitionId(3)] = other.tails[PartitionId(3)]._replace(global_index=GlobalLogIndex(1))
        assert one.encode() == other.encode()
        assert ParentState.decode(one.encode()) == one

    def test_nothing_applied_is_no_bytes_or_few(self) -> None:
        assert ParentState.decode(b"") == ParentState.decode(ParentState().encode()) == ParentState()

    def test_a_control_entry_moves_the_raft_index_alone(self) -> None:
        state = ParentState()
        state.apply(2, [route(0, 1)])
        before = state.copy()
        state.control(5)
        assert (state.raft_index, state.global_index, state.tails) == (5, before.global_index, before.tails)
        with pytest.raises(InvariantViolated):
            state.control(5)

    def test_a_copy_does_not_move_along(self) -> None:
        state = ParentState()
        state.apply(2, [route(0, 1)])
        copied = state.copy()
        state.apply(3, [route(0, 2), route(1, 1)])
        assert (copied.global_index, copied.raft_index, len(copied.tails)) == (1, 2, 1)
        assert copied.tails[PartitionId(0)].last_index == 1

    def test_many_partitions_survive(self) -> None:
        rng = random.Random(1)
        tails = {
            PartitionId(p): Tail(PartitionLogIndex(rng.randint(1, 1 << 40)), rng.randbytes(16), GlobalLogIndex(p + 1))
            for p in rng.sample(range(100_000), 30_000)
        }
        state = ParentState(GlobalLogIndex(1 << 41), 77, tails)
        assert ParentState.decode(state.encode()) == state

    def test_nonsense_is_refused(self) -> None:
        state = ParentState()
        state.apply(2, [route(0, 1), route(1, 4)])
        raw = state.encode()
        rest = raw[HEADER.size + 2 * ROW.size :]
        rows = [raw[HEADER.size + k * ROW.size :][: ROW.size] for k in range(2)]
        head = raw[: HEADER.size]
        zero, ahead = ROW.pack(1, 0, bytes(16), 2), ROW.pack(1, 4, bytes(16), 3)
        bad = [head + rows[1] + rows[0] + rest, head + rows[0] * 2 + rest, head + rows[0] + zero + rest]
        bad += [raw[:3], raw[:-1], raw + b"\0", head + rows[0] + ahead + rest]
        bad += [HEADER.pack(2, 1, 2, 2) + raw[HEADER.size :], HEADER.pack(2, 2, 0, 2) + raw[HEADER.size :]]
        for each in bad:
            with pytest.raises(CorruptData):
                ParentState.decode(each)
        with pytest.raises(IncompatibleVersion):
            ParentState.decode(bytes((VERSION + 1,)) + raw[1:])

    def test_what_was_written_before_partitions_came_and_went_is_read(self) -> None:
        state = ParentState()
        state.apply(2, [route(0, 1), route(1, 4)])
        raw = state.encode()
        assert ParentState.decode(b"\x01" + raw[1 : HEADER.size + 2 * ROW.size]) == state


def test_every_node_is_handed_control_entries_once_and_in_order_with_routes() -> None:
    cluster = Cluster(3)
    heard: dict[str, list[tuple[int, Any]]] = {node: [] for node in cluster.ids}

    def listen(node: SimNode) -> None:
        control, committed = node.control, node.committed

        def on_control(raft_index: int, term: int, fields: Mapping[str, Any]) -> None:
            heard[node.node_id].append((raft_index, dict(fields)))
            control(raft_index, term, fields)

        def on_committed(raft_index: int, term: int, routes: Any) -> None:
            heard[node.node_id].append((raft_index, len(routes)))
            committed(raft_index, term, routes)

        node.control, node.committed = on_control, on_committed  # type: ignore[method-assign]

    async def story() -> None:
        for each in cluster.ids:
            await cluster.start(each)
            listen(cluster.nodes[each])
        while cluster.leader() is None:
            await cluster.sleep(0.1)
        leader = cluster.leader()
        assert leader is not None
        for number in range(5):
            leader.submit(number)
            leader.raft.propose_control({"number": number})
        follower = next(node for node in cluster.nodes.values() if node is not leader)
        with pytest.raises(NotLeader):
            follower.raft.propose_control({})
        await cluster.sleep(2)

    cluster.tell(story())
    cluster.check()
    (log,) = {tuple(map(repr, each)) for each in heard.values()}
    assert [said for _, said in heard[cluster.ids[0]]] == [
        said for number in range(5) for said in (1 + number % 2, {"number": number})
    ]
    assert len(log) == 10


@pytest.mark.parametrize("control", [False, True])
def test_what_is_held_back_for_later_is_proposed_before_a_turn_and_before_a_control_entry(control: bool) -> None:
    """Else the end of a partition would be ordered in front of what had been admitted to it."""
    cluster = Cluster(3)
    order: list[str] = []

    async def story() -> None:
        for each in cluster.ids:
            await cluster.start(each)
        while (leader := cluster.leader()) is None or not leader.raft.admits:
            await cluster.sleep(0.1)
        held = [1]

        def orders() -> None:
            if held:
                leader.submit(held.pop())

        def committed(raft_index: int, term: int, routes: Any) -> None:
            order.append("held back")
            once_committed(raft_index, term, routes)

        def handed_up(raft_index: int, term: int, fields: Mapping[str, Any]) -> None:
            order.append("control")
            once_handed_up(raft_index, term, fields)

        once_committed, once_handed_up = leader.committed, leader.control
        leader.orders, leader.committed, leader.control = orders, committed, handed_up  # type: ignore[method-assign]
        if control:
            leader.raft.propose_control({"do": "something"})
        else:
            leader.raft.poke()
        await cluster.sleep(1.0)

    cluster.tell(story())
    assert order == ["held back", *(["control"] if control else [])]


def test_who_has_heard_of_a_newer_term_or_lacks_a_batch_proposes_nothing_that_was_held_back() -> None:
    """It would be built in a term that somebody else leads."""
    cluster = Cluster(3)
    asked: list[bool] = []

    async def story() -> None:
        for each in cluster.ids:
            await cluster.start(each)
        while (leader := cluster.leader()) is None or not leader.raft.admits:
            await cluster.sleep(0.1)
        leader.orders = lambda: asked.append(True)  # type: ignore[method-assign]
        leader.raft._orders()
        assert asked == [True]
        leader.raft._leading_term = leader.raft.engine.term - 1
        leader.raft._orders()
        leader.raft._leading_term = leader.raft.engine.term
        leader.raft.engine.may_lead = False  # it lacks what the next batch would follow
        leader.raft._orders()
        leader.raft.engine.may_lead = True

    cluster.tell(story())
    assert asked == [True]
