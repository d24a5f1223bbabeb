"""A node that speaks the wire protocol over real sockets and does what a test tells it to.

``answers`` maps a kind to a function of (session, frame); without one, submits are applied to an
in-memory log that deduplicates by (producer, partition, sequence), as a real node does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from logboom.errors import LogboomError
from logboom.records import RecordBlock
from logboom.wire import FLAG_MORE, Frame, FrameDecoder, Kind, encode

Answer = Callable[["Session", Frame], None]


class FakeNode:
    def __init__(self, name: str = "n1", *, partitions: int = 4, frame_bytes: int = 8 * 1024 * 1024) -> None:
        self.name = name
        self.partitions = partitions
        self.frame_bytes = frame_bytes
        self.members: dict[str, str] = {}
        self.features: list[str] | None = None
        """None: of the first release."""
        self.cluster = "test"
        self.lineage: str | None = None
        """None: of a release that knows of none."""
        self.takes: dict[str, int] = {}
        """What it says of one partition's share of a request; nothing: of a release that does not."""
        self.leader: str | None = None
        self.address = ""
        self.frames: list[Frame] = []
        self.answers: dict[Kind, Answer] = {}
        self.sessions: list[Session] = []
        self.log: dict[int, list[bytes]] = {}
        self.applied: dict[tuple[bytes, int, int], int] = {}
        self.global_index = 0
        self._server: asyncio.Server | None = None

    @property
    def rows(self) -> list[list[Any]]:
        """Which partitions there are, as nodes say it."""
        return [[p, "kv", "write_ahead"] for p in range(self.partitions)]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = (self.address.rsplit(":", 1)) if self.address else ("127.0.0.1", "0")
        self._server = await loop.create_server(lambda: Session(self), host, int(port))
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        self.members[self.name] = self.address
        self.leader = self.leader or self.address

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions):
            session.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()
        self._server = None

    def of(self, kind: Kind) -> list[Frame]:
        return [frame for frame in self.frames if frame.kind is kind]

    def once(self, kind: Kind, *answers: Answer) -> None:
        """These answers first, one each; then as before."""
        usual, queue = self.answers.get(kind), list(answers)

        def answer(session: Session, frame: Frame) -> None:
            if queue:
                queue.pop(0)(session, frame)
            elif usual is not None:
                usual(session, frame)
            else:
                session.usual(frame)

        self.answers[kind] = answer

    def submit(self, frame: Frame) -> list[list[Any]]:
        """Apply, each (producer, partition, sequence) once."""
        rows, offset, header = [], 0, frame.header
        for partition, first, _, count, metadata, data in header["parts"]:
            middle = offset + metadata
            block = RecordBlock.parse(count, frame.body[offset:middle], frame.body[middle : middle + data])
            offset = middle + data
            log = self.log.setdefault(partition, [])
            known = [(header["producer"], partition, first + k) for k in range(count)]
            duplicate = sum(key in self.applied for key in known)
            if duplicate < count:
                self.global_index += 1
            for key, payload in zip(known, block.payloads(), strict=True):
                if key not in self.applied:
                    log.append(payload)
                    self.applied[key] = len(log)
            indices = [self.applied[key] for key in known]
            rows.append([partition, indices[0], indices[-1], self.global_index, duplicate, b"\0"])
        return rows


class Session(asyncio.Protocol):
    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.decoder = FrameDecoder(frame_bytes_max=64 * 1024 * 1024)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.loop = asyncio.get_running_loop()
        self.node.sessions.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.node.sessions.remove(self)

    def data_received(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            self.node.frames.append(frame)
            answer = self.node.answers.get(frame.kind)
            if answer is not None:
                answer(self, frame)
            else:
                self.usual(frame)

    def send(
        self, frame: Frame, kind: Kind, header: dict[str, Any], body: Sequence[bytes] = (), *, more: bool = False
    ) -> None:
        flags = FLAG_MORE if more else 0
        self.transport.writelines(encode(kind, header, body, request_id=frame.request_id, flags=flags))

    def fail(self, frame: Frame, error: LogboomError) -> None:
        self.send(frame, Kind.ERROR, error.to_wire())

    def usual(self, frame: Frame) -> None:
        node = self.node
        if frame.kind is Kind.HELLO:
            welcome = {
                "version": 1,
                "cluster": node.cluster,
                "node": node.name,
                "leader": node.leader,
                "members": node.members,
                "partitions": node.rows,
                "frame_bytes": node.frame_bytes,
                **node.takes,
            }
            if node.lineage is not None:
                welcome["lineage"] = node.lineage
            if node.features is not None:
                welcome["features"] = node.features
            self.send(frame, Kind.WELCOME, welcome)
        elif frame.kind is Kind.SUBMIT:
            rows = node.submit(frame)
            self.send(frame, Kind.SUBMITTED, {"parts": rows, "commit_index": node.global_index})
        elif frame.kind is Kind.PING:
            self.send(frame, Kind.PONG, {})
        elif frame.kind is Kind.ADMIN and frame.header["action"] == "partitions":
            self.send(frame, Kind.ADMIN_REPLY, {"partitions": node.rows, "key_partitions": node.partitions})
        elif frame.kind is Kind.BARRIER:
            marks = [[p, 1, 1, 1, 0, frame.header.get("global_index", 0), "running"] for p in range(node.partitions)]
            reached = {"global_index": frame.header.get("global_index", 0), "node": node.name, "watermarks": marks}
            self.send(frame, Kind.REACHED, reached)


async def until(condition: Callable[[], Any]) -> None:
    """Let the loop run until something is so; pytest's time-out ends it otherwise."""
    loop = asyncio.get_running_loop()
    while not condition():
        turn = loop.create_future()
        loop.call_later(0.001, turn.set_result, None)
        await turn


def fails(error: LogboomError) -> Answer:
    return lambda session, frame: session.fail(frame, error)


def silent(session: Session, frame: Frame) -> None:
    """No answer, ever."""


def cuts(session: Session, frame: Frame) -> None:
    """The connection breaks."""
    session.transport.abort()


def applies_and_cuts(session: Session, frame: Frame) -> None:
    """The worst moment: it took effect, and nobody heard."""
    session.node.submit(frame)
    session.transport.abort()


@asynccontextmanager
async def cluster(count: int = 1, **how: Any) -> AsyncIterator[list[FakeNode]]:
    """Nodes that know of each other; the first leads."""
    nodes = [FakeNode(f"n{k + 1}", **how) for k in range(count)]
    for node in nodes:
        await node.start()
    for node in nodes:
        node.members = {each.name: each.address for each in nodes}
        node.leader = nodes[0].address
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


def entries(session: Session, frame: Any, keys: list[bytes], *, more: bool) -> None:
    block = RecordBlock.from_columns(payloads=[b"b" + key.upper() for key in keys], keys=keys)
    header = {
        "count": block.count,
        "metadata": len(block.metadata),
        "data": len(block.data),
        "global_index": 5,
    }
    session.send(frame, Kind.ENTRIES, header, [bytes(block.metadata), bytes(block.data)], more=more)


def records(session: Session, frame: Any, first: int, global_index: int, payloads: list[bytes]) -> None:
    block = RecordBlock.from_columns(payloads=payloads)
    header = {
        "partition": frame.header["partition"],
        "first_index": first,
        "count": block.count,
        "global_index": global_index,
        "term": 1,
        "timestamp_ms": 1,
        "producer": bytes(16),
        "epoch": 0,
        "sequence": first - 1,
        "metadata": len(block.metadata),
        "data": len(block.data),
    }
    session.send(frame, Kind.RECORDS, header, [bytes(block.metadata), bytes(block.data)], more=True)


def members(*rows: tuple[str, str], removed: tuple[str, ...] = (), connected: bool = True) -> Any:
    """What a leader answers of members: ids and roles."""

    def answer(session: Session, frame: Frame) -> None:
        each = {"peer_address": "h:1", "client_address": "h:2", "connected": connected, "raft_index": 9}
        about = {
            "node": "n1", "leader": "n1", "term": 1, "index": 5, "committed": True, "raft_index": 9,
            "removed": list(removed),
            "members": [{"id": name, "role": role, **each} for name, role in rows],
        }  # fmt: skip
        session.send(frame, Kind.ADMIN_REPLY, {"members": about})

    return answer
