"""Barriers over several nodes, in any order of events, against a model that looks at all nodes at once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from logboom.types import Level, Scope
from tests.unit.dispatcher.barrier_desk import PARTITIONS, reached
from tests.unit.dispatcher.frontier_world import BOTH, N1, N2, N3, NODES, World

STEP = st.one_of(
    st.tuples(
        st.just("wait"),
        st.sampled_from(NODES),
        st.integers(0, 12),
        st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True),
        st.sampled_from([Level.ORDERED, Level.DURABLE, Level.APPLIED]),
        st.sampled_from([Scope.NODE, *BOTH]),
        st.integers(1, 3),
    ),
    st.tuples(st.just("apply"), st.sampled_from(NODES), st.sampled_from(PARTITIONS), st.integers(0, 12)),
    st.tuples(st.just("durable"), st.sampled_from(NODES), st.sampled_from(PARTITIONS), st.integers(0, 12)),
    st.tuples(st.just("commit"), st.sampled_from(NODES), st.integers(0, 4)),
    st.tuples(st.sampled_from(["sever", "mend"]), st.sampled_from([(N1, N2), (N1, N3), (N2, N3)])),
    st.tuples(st.sampled_from(["cancel", "look"]), st.integers(0, 99)),
    st.tuples(st.just("talk")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_whatever_happens_nobody_is_told_what_is_not_so_and_everybody_what_is(steps: list[Any]) -> None:
    world = World()
    waiting: list[tuple[Any, Any, list[Any]]] = []
    commit = dict.fromkeys(NODES, 0)

    def there(step: Any) -> bool:
        _, asked, target, partitions, level, scope, need = step
        names = [asked] if scope is Scope.NODE else NODES
        enough = 2 if scope is Scope.QUORUM else len(names)
        counts = [
            sum(world[name].barriers.frontier(p, level) >= target for name in names) >= enough for p in partitions
        ]
        return sum(counts) >= min(need, len(partitions))

    for now, step in enumerate(steps):
        kind, *rest = step
        if kind == "wait":
            asked, target, partitions, level, scope, need = rest
            need = min(need, len(partitions))
            waiter, answers = world[asked].wait(target, partitions, level, reach=scope, need=need)
            waiting.append((step, waiter, answers))
        elif kind == "apply":
            world[rest[0]].apply(rest[1], rest[2])
        elif kind == "durable":
            world[rest[0]].barriers.durable(rest[1], rest[2])
        elif kind == "commit":
            commit[rest[0]] += rest[1]
            world[rest[0]].commit(commit[rest[0]])
        elif kind == "sever":
            world.sever(*rest[0])
        elif kind == "mend":
            world.mend(*rest[0])
        elif kind == "cancel" and waiting:
            asked_for, waiter, answers = waiting.pop(rest[0] % len(waiting))
            if waiter is not None:
                world[asked_for[1]].barriers.cancel(waiter)
        elif kind == "look" and waiting:
            asked_for, waiter, answers = waiting[rest[0] % len(waiting)]
            if waiter is not None and not answers:
                world[asked_for[1]].barriers.progress(waiter, float(now))
        else:
            world.talk()
        for asked_for, _, answers in waiting:
            assert len(answers) <= 1
            assert not answers or there(asked_for), asked_for
    for pair in ((N1, N2), (N1, N3), (N2, N3)):
        world.mend(*pair)
    world.talk()
    for asked_for, _, answers in waiting:
        assert reached(answers) == there(asked_for), asked_for
    for node in world.nodes.values():
        node.barriers.expire(1000.0)
    world.talk()
    for node in world.nodes.values():
        assert (len(node.barriers), len(node.others), len(node.telling)) == (0, 0, 0)
    assert all(len(answers) == 1 for _, _, answers in waiting)
