"""A node that has fallen silent: its machine is off, frozen, or behind a firewall, and no connection was ended."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from logboom import Client, Put
from logboom.client import connection as connection_module
from logboom.client import lookout
from logboom.errors import DeadlineExceeded, UnknownOutcome
from logboom.wire import Kind
from tests.unit.logboom.fake_server import cluster, silent


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_it_is_so_however_little_those_who_ask_wait(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that gave up took with it since when the node was silent: whose leader had died had none, for good."""
    monkeypatch.setattr(connection_module, "BEAT_S", 0.02)
    monkeypatch.setattr(connection_module, "PING_AFTER_S", 0.05)
    monkeypatch.setattr(connection_module, "DEAD_AFTER_S", 0.3)
    for name in ("LOOK_S", "LONE_S", "SOON_S"):  # which might find out by chance
        monkeypatch.setattr(lookout, name, 3600.0)
    async with cluster(2) as [frozen, other], Client(frozen.address) as boom:
        await boom.submit(0, Put(b"a", b""))
        other.leader = other.address
        for kind in (Kind.SUBMIT, Kind.PING, Kind.HELLO, Kind.GET, Kind.ADMIN):
            frozen.answers[kind] = silent
        async with asyncio.timeout(30):
            while not other.log.get(0):
                with suppress(DeadlineExceeded, UnknownOutcome):
                    await boom.submit(0, Put(b"b", b""), timeout=0.1)
                await asyncio.sleep(pause)
        assert frozen.of(Kind.PING)


async def test_who_lives_and_answers_nothing_else_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BEAT_S", 0.01)
    monkeypatch.setattr(connection_module, "PING_AFTER_S", 0.02)
    monkeypatch.setattr(connection_module, "DEAD_AFTER_S", 0.2)
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"a", b""))
        node.answers[Kind.SUBMIT] = silent
        while len(node.of(Kind.PING)) < 8:  # each after more than 0.05 s of silence
            with pytest.raises(DeadlineExceeded):
                await boom.submit(0, Put(b"b", b""), timeout=0.05)
        assert len(node.of(Kind.HELLO)) == 1
        del node.answers[Kind.SUBMIT]
        await boom.submit(0, Put(b"c", b""))
