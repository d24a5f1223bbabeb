"""A fake node for code that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.unit.logboom.fake_server import FakeNode


@pytest.fixture
def node(monkeypatch) -> Iterator[FakeNode]:
    """A fake node on a loop of its own; LOGBOOM_ENDPOINTS names it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    fake = FakeNode()
    asyncio.run_coroutine_threadsafe(fake.start(), loop).result()
    monkeypatch.setenv("LOGBOOM_ENDPOINTS", fake.address)
    monkeypatch.delenv("LOGBOOM_TLS_DIR", raising=False)
    yield fake
    asyncio.run_coroutine_threadsafe(fake.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
