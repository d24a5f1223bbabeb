"""A client that may not is told at once, and asks nobody again; where another node lets it in it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from logboom import Client, Put
from logboom.errors import PermissionDenied
from logboom.wire import Kind
from tests.unit.logboom.fake_server import applies_and_cuts, cluster, fails

DENIED = PermissionDenied("'me' does not have the right", principal="me", right="write", partition_id=3)
SHUT_OUT = PermissionDenied("'me' does not have the right", principal="me", right="status", partition_id=None)


async def test_commands_that_travel_together_are_each_told_and_none_is_sent_again() -> None:
    async with cluster() as (node,), Client(node.address, timeout=20) as boom:
        node.answers[Kind.SUBMIT] = fails(DENIED)
        told = await asyncio.gather(*(boom.submit(3, Put(b"k", b"v")) for _ in range(20)), return_exceptions=True)
        assert {type(error) for error in told} == {PermissionDenied}
        assert len({id(error) for error in told}) == 20
        sent = [part[3] for frame in node.of(Kind.SUBMIT) for part in frame.header["parts"]]
        assert sum(sent) == 20
        assert all(isinstance(error, PermissionDenied) and error.right == "write" for error in told)


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (Kind.GET, lambda boom: boom.get(3, b"k")),
        (Kind.TAIL, lambda boom: anext(boom.tail(3))),
        (Kind.BARRIER, lambda boom: boom.barrier(5)),
        (Kind.ADMIN, lambda boom: boom.transfer()),
    ],
)
async def test_whatever_is_asked_is_asked_once(kind: Kind, ask: Callable[[Client], Awaitable[object]]) -> None:
    async with cluster() as (node,), Client(node.address, timeout=20) as boom:
        node.answers[kind] = fails(DENIED)
        with pytest.raises(PermissionDenied):
            await ask(boom)
        assert len(node.of(kind)) == 1


async def test_what_was_under_way_when_rights_were_taken_away_may_have_been_done() -> None:
    async with cluster() as (node,), Client(node.address, timeout=20) as boom:
        node.once(Kind.SUBMIT, applies_and_cuts)
        await boom.partitions()
        node.answers[Kind.HELLO] = fails(SHUT_OUT)
        with pytest.raises(PermissionDenied) as caught:
            await boom.submit(3, Put(b"k", b"v"))
        assert (caught.value.outcome, caught.value.right) == ("unknown", "status")


async def test_who_is_shut_out_by_all_is_told_at_once() -> None:
    async with cluster(3) as nodes, Client([node.address for node in nodes], timeout=20) as boom:
        for node in nodes:
            node.answers[Kind.HELLO] = fails(SHUT_OUT)
        for ask in (boom.partitions, boom.status_all, lambda: boom.submit(0, Put(b"k", b"v"))):
            with pytest.raises(PermissionDenied) as caught:
                await ask()
            assert caught.value.outcome == "not_applied"
        assert all(len(node.of(Kind.HELLO)) <= 3 for node in nodes)


async def test_where_another_node_lets_it_in_it_goes_on_there() -> None:
    """As while the nodes are given other rules, one after the other."""
    async with cluster(2) as (leader, other), Client([leader.address, other.address], timeout=20) as boom:
        leader.answers[Kind.HELLO] = fails(SHUT_OUT)
        receipt = await boom.submit(1, Put(b"k", b"v"))
        assert receipt.first_index == 1
        (asked,) = other.of(Kind.SUBMIT)
        assert asked.header["forward"]
