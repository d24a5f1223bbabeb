"""A session that finds records without a cluster, in a client that has what it is given, and misbehaves on request."""

from __future__ import annotations

import asyncio

import pytest

from logboom.background import Background
from logboom.errors import Voided
from logboom.spark.connection import Session

E = {"endpoints": "a:1", "requestTimeoutMs": "2000"}


class Local(Session):
    """A session whose client is here."""

    def __init__(self, client):
        self.client = client
        super().__init__(None)

    def _made(self):
        return Background(self.client)

    def end(self):
        self._background.close()


class Client:
    """``answers``: what each stream in turn gives, in the end perhaps an error; None: nothing more, ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.timeout = 2.0
        self.given = self.closed = 0

    def tail(self, partition_id, *, start, **how):
        self.asked.append(start)
        return self._stream(self.answers.pop(0))

    def scan_log(self, partitions, *, start_global, on_compacted, on_void, node):
        assert on_compacted == "error", "from a common index on, logs that begin earlier would lack more"
        self.asked.append(start_global)
        return self._stream(self.answers.pop(0), on_void)

    def scan_blocks(self, partition_id, **how):
        self.asked.append(how)
        return self._stream(self.answers.pop(0))

    async def _stream(self, items, on_void=None):
        try:
            for item in items:
                if item is None:
                    await asyncio.Event().wait()
                if on_void is not None and isinstance(item, Voided):
                    on_void(item)
                    continue
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.closed += 1

    async def close(self):
        pass


@pytest.fixture
def session():
    made = []

    def make(*answers):
        made.append(Local(Client(*answers)))
        return made[-1]

    yield make
    for each in made:
        each.end()
