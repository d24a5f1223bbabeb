"""A session that finds records without a cluster, in a client that has what it is given, and misbehaves on request."""

from __future__ import annotations

import asyncio

import pytest

from logboom.background import Background
from logboom.client.reads import LogBatch
from logboom.errors import IndexCompacted, Unavailable, Voided
from logboom.records import RecordBlock
from logboom.spark.columns import LOG
from logboom.spark.connection import Session
from logboom.spark.options import read_options
from logboom.spark.read import read_log, read_merged
from logboom.spark.shares import EVERYTHING, Merged, Span
from logboom.types import Watermark

LATER = object()
"""What follows in a stream comes when the node has been asked how far it is."""
HANGS = object()
"""In place of what a node has: it does not answer."""
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
        self.durable, self.looks = 0, asyncio.Queue()
        """How far every node says that it is, and that it was asked for that."""
        self.given = self.closed = 0
        self.nodes = {"n1": "n:1"}
        self.held = {}
        """By node, where its logs begin and end: first offset, global index in front of that, last; or an error."""
        self.late = set()
        """Nodes that answer, but not at once, where their logs begin."""
        self.looked, self.scanned = [], []

    def tail(self, partition_id, *, start=0, start_global=0, follow=True, on_node=None, node=None, **how):
        if not follow:
            return self._look(node, partition_id, start, start_global)
        self.asked.append(start)
        if on_node is not None:
            on_node("n:1")
        return self._stream(self.answers.pop(0))

    async def _look(self, node, partition, start, start_global):
        """Where a node's log begins."""
        self.looked.append(node)
        held = self.held.get(node, {} if node in self.nodes.values() else Unavailable("nobody is there"))
        if held is HANGS:
            await asyncio.Event().wait()
        for _ in range(10 * (node in self.late)):  # turns of the loop
            await asyncio.sleep(0)
        if isinstance(held, Exception):
            raise held
        first, before_global, last = held.get(partition, (1, 0, 1 << 60))
        if start_global:
            start = first if start_global > before_global else 1
        if start < first:
            raise IndexCompacted("removed", first=first)
        if start <= last:
            yield batch(start, partition=partition)

    async def members(self):
        return self.nodes

    async def watermarks(self, partitions, *, node, timeout):
        assert node == "n:1"
        self.looks.put_nowait(partitions)
        if isinstance(self.durable, Exception):
            raise self.durable
        return [Watermark(p, self.durable, self.durable, 0, 0, 0, "running") for p in partitions]

    def scan_log(self, partitions, *, start_global, on_compacted, on_void, node):
        assert on_compacted == "error", "from a common index on, logs that begin earlier would lack more"
        self.asked.append(start_global)
        self.scanned.append((node, list(partitions)))
        return self._stream(self.answers.pop(0), on_void)

    def scan_blocks(self, partition_id, **how):
        self.asked.append(how)
        return self._stream(self.answers.pop(0))

    async def _stream(self, items, on_void=None):
        try:
            for item in items:
                if item is None:
                    await asyncio.Event().wait()
                if callable(item):  # what happens meanwhile
                    item()
                    continue
                if item is LATER:
                    await self.looks.get()
                    continue
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


def batch(first, count=1, *, partition=0, global_index=None, size=1):
    block = RecordBlock.from_columns(keys=None, payloads=[b"%0*d" % (size, k) for k in range(first, first + count)])
    return LogBatch(partition, first, global_index or first, 1, 1000, b"p" * 16, 0, first, block)


def offsets(found):
    return [k for columns in found for k in columns["offset"].to_pylist()]


def log(found, share, span=EVERYTHING, **options):
    return read_log(read_options({**E, **options}), share, span, LOG, found)


def merged(found, parts, low, high, **options):
    return read_merged(read_options({**E, **options}), Merged(Span(low, high), parts), LOG, found)


@pytest.fixture
def session():
    made = []

    def make(*answers):
        made.append(Local(Client(*answers)))
        return made[-1]

    yield make
    for each in made:
        each.end()
