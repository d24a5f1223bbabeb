"""Of a connection that has ended little is left until garbage is looked for, which may be after many thousands."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from logboom import certs
from ports.net import ConnectionLimits
from tests.unit.server.net_world import LIMITS, Session, serving, until


@pytest.fixture
def _nobody_looks_for_garbage() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def secured() -> int:
    return sum(isinstance(each, ssl.SSLObject) for each in gc.get_objects())


@pytest.mark.usefixtures("_nobody_looks_for_garbage")
async def test_what_tls_has_for_one_goes_with_it(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, ["n1", "n2"])
    server, _ = certs.peer_contexts(tmp_path, "n1")
    _, client = certs.peer_contexts(tmp_path, "n2")
    async with serving(tls=server) as it:
        before = secured()
        for number in range(3):
            mine = Session()
            made = await it.network.dial(it.address, mine, limits=ConnectionLimits(**LIMITS), tls=client)
            await until(lambda number=number: len(it.sessions) > number and it.sessions[number].connection)
            made.close()
            await it.session_of(number)
            await until(lambda mine=mine: mine.ends)
            assert made.queued == it.sessions[number].open.queued == 0
            made.abort()
        await until(lambda: secured() == before)
