"""What goes wrong once, in a way that nobody has thought of, costs a node neither its ticks nor its links."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from logboom.types import NodeId
from ports.seldom import Seldom
from raftlog.links.dialling import Dialling
from raftlog.links.refusals import Refusals
from raftlog.turns import Turns


class Unheard(Exception):
    """Of no kind that anybody catches."""


def fails(*_: object) -> None:
    raise Unheard


async def test_a_tick_that_fails_is_followed_by_others() -> None:
    """There were none any more: the node neither stood for election nor sent a sign of life."""
    turns = Turns(lambda: None, cast("Any", SimpleNamespace(rest=fails)), every_s=60.0)
    turns.begin()
    with pytest.raises(Unheard):
        turns._on_timer()
    assert turns._timer is not None
    turns.close()


class Network:
    def __init__(self) -> None:
        self.dialled = 0
        self.again = asyncio.Event()

    async def dial(self, *_: object, **__: object) -> None:
        self.dialled += 1
        if self.dialled == 3:
            self.again.set()
        raise Unheard


class Link:
    peer = None

    def __init__(self) -> None:
        self.settled = self.gone = asyncio.Event()

    def abort(self) -> None:
        pass


async def test_who_could_not_be_called_for_an_unheard_of_reason_is_called_again() -> None:
    """The task that calls ended, and nobody looked at it: that member was never called again."""
    network, now = Network(), asyncio.get_running_loop().time
    seldom = Seldom(now)
    dialling = Dialling(
        node_id=NodeId("n1"),
        links={},
        link_to=lambda _: cast("Any", Link()),
        refusals=Refusals(now, seldom),
        seldom=seldom,
        network=cast("Any", network),
        clock=cast("Any", SimpleNamespace(monotonic=now)),
        rng=random.Random(1),
        limits=cast("Any", SimpleNamespace(handshake_s=1.0)),
        tls=None,
    )
    with capture_logs() as lines:
        dialling.begin({NodeId("n2"): "there:1"})
        async with asyncio.timeout(10):
            await network.again.wait()
        for task in dialling.tasks():
            task.cancel()
        await asyncio.gather(*dialling.tasks(), return_exceptions=True)
    assert [line["event"] for line in lines][:2] == ["dial_failed"] * 2
    assert isinstance(lines[0]["exc_info"], Unheard)
