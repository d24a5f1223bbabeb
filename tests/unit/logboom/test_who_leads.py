"""Whom a client believes to lead: what another node says of itself is none of that, and who takes a write leads."""

from __future__ import annotations

import pytest

from logboom import Client, Put
from logboom.errors import LogboomError, Unavailable
from logboom.wire import Kind
from tests.unit.logboom.fake_server import Answer, cluster, cuts, fails, until

GONE = Unavailable("it is recovering")


async def everywhere(boom: Client, count: int) -> None:
    """Connections to all, as a client has them that has worked for a while."""
    for address in boom._cluster.addresses():
        await boom._cluster.connection(address)
    assert len(boom._cluster._live()) == count


@pytest.mark.parametrize("answer", [fails(GONE), cuts])
@pytest.mark.parametrize("node", ["n2", None])
async def test_another_node_that_fails_leaves_the_leader_what_it_is(answer: Answer, node: str | None) -> None:
    """Every single command needed a task then, and every write one more connection's answer, until one was lost."""
    async with cluster(3) as nodes, Client([each.address for each in nodes]) as boom:
        await everywhere(boom, 3)
        led = boom._cluster.leader_now()
        assert led is not None
        assert led.address == nodes[0].address
        for each in nodes[1:]:
            each.answers[Kind.GET] = answer
        nodes[0].answers[Kind.GET] = fails(LogboomError("enough"))
        for _ in range(6):
            with pytest.raises(LogboomError):
                await boom.get(0, b"k", stale=True, node=node, timeout=0.3)
        assert nodes[1].of(Kind.GET)
        assert boom._cluster.leader_now() is led


@pytest.mark.parametrize("answer", [fails(GONE), cuts])
async def test_who_was_believed_to_lead_and_fails_is_not_any_more(answer: Answer) -> None:
    async with cluster(3) as nodes, Client([each.address for each in nodes]) as boom:
        await everywhere(boom, 3)
        nodes[0].answers[Kind.GET] = answer
        with pytest.raises(LogboomError):
            await boom.get(0, b"k", node="n1", timeout=0.05)
        assert boom._cluster.leader_now() is None


async def test_whoever_passes_requests_on_is_believed_that_it_cannot() -> None:
    """The leader is out of reach from here, and may be gone: only from whoever is asked it is learned who leads now."""
    async with cluster(3) as nodes, Client([each.address for each in nodes]) as boom:
        await everywhere(boom, 3)
        await nodes[0].stop()
        await until(lambda: len(boom._cluster._live()) == 2)
        for each in nodes[1:]:
            each.leader = nodes[2].address
            each.once(Kind.SUBMIT, fails(GONE))
        await boom.submit(0, Put(b"k", b""), timeout=10.0)
        sent = [frame.header["forward"] for each in nodes[1:] for frame in each.of(Kind.SUBMIT)]
        assert sent.count(True) == 1
        assert not sent[-1] or not sent[0]


async def test_who_takes_a_write_that_it_was_not_to_pass_on_leads() -> None:
    """With a node that did not say who leads, when it was met, commands had a task each for ever."""
    async with cluster() as [node], Client(node.address) as boom:
        node.leader = None
        await boom.submit(0, Put(b"k", b""))
        found = boom._cluster.leader_now()
        assert found is not None
        assert found.address == node.address
