"""Targets: what clients ask of a node, and what nodes say to each other, on real sessions and links without a node.

An input is a list of frames, each: kind u8 (an index), request id u8, u16 header length, header, u16 body
length, body. Whatever they are, the session answers with frames that a client can read, or ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from chaos.fuzz.disk import MemoryDisk
from chaos.fuzz.nodeless import DIGEST, ME, MEMBERS, PARTITIONS, SETTINGS, NoNode, Sent, Still
from chaos.fuzz.samples import PRODUCER, batch, block, raw, submit_header
from chaos.fuzz.target import Cursor, Target, framed, holds, packed
from dispatcher.admission.admission import Admission
from dispatcher.admission.pressure import Pressure
from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.goals import Want
from dispatcher.barriers.stability import Stability
from dispatcher.barriers.telling import Telling
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.forwarding import Forwarding
from dispatcher.pipeline.freshness import INDICES, Freshness
from dispatcher.pipeline.payloads import PartitionPayloads
from dispatcher.requests.requests import SubmitReply, SubmitRequest
from dispatcher.sessions.answering import Answering
from dispatcher.sessions.service import ClientService
from dispatcher.sessions.session import Session
from dispatcher.sessions.waits import Waits
from logboom.access import Right, Rule, Rules
from logboom.certs import Renewed
from logboom.errors import LogboomError, ProtocolError, QuotaExceeded, from_wire
from logboom.settings import LogSettings
from logboom.types import DurabilityMode, GlobalLogIndex, Level, NodeId, PartitionId, ProducerId, Scope
from logboom.wire import Frame, FrameDecoder, Kind
from partitions.log.log import PartitionLog
from ports.net import ConnectionLimits
from raftlog.engine import messages
from raftlog.entries.entry import ROUTE, pack_routes
from raftlog.journal.journal import Journal
from raftlog.links.directories import DIRECTORY_BYTES, Directories
from raftlog.links.hello import Identity
from raftlog.links.link import PeerLink
from raftlog.links.links import Links
from raftlog.repair.repair import Repair

KINDS: Final = list(Kind)
FRAMES_MAX: Final = 32
ERROR_BYTES_MAX: Final = 4096
DEEP: Final = b"\x91" * 1000 + b"\xc0"
"""msgpack that can be read and not be printed: a list in a list in a list."""
OTHER: Final = NodeId("n2")
RULES: Final = Renewed(lambda: Rules([Rule("*", (Right.WRITE,), "0")]), [])
OF_READERS: Final = {
    Kind.VALUES,
    Kind.ENTRIES,
    Kind.RECORDS,
    Kind.BATCHES,
    Kind.DATA,
    Kind.SNAPSHOT_PIECE,
    Kind.LOG_PIECE,
}


class _Answering(Answering):
    """Each at once."""

    def _run(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        _at_once(self._guarded(frame, work))

    async def _guarded(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        # Not the real one: it would hide what must not happen.
        try:
            await work(frame)
        except LogboomError as error:
            self._client.fail(frame.request_id, error)


class _Session(Session):
    """Without an event loop: nothing that is asked has to wait here."""

    def __init__(self, service: ClientService) -> None:
        super().__init__(service)
        never: Any = SimpleNamespace(cancel=lambda: None)
        self._waits = Waits(self._backend, self, self._named, later=lambda *_: never)
        self.answering = _Answering(self, service, partitions=self._named.shown, pace=self._reads)


class AtOnce:
    """There is no loop whose turns could be too long."""

    now = 0.0

    def is_over(self) -> bool:
        """Never."""
        return False


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    holds(False, "a request waits")  # noqa: FBT003 - reads as a sentence


# -- client port


def session(data: bytes) -> None:
    """First byte: whether HELLO is done already; whether the client may write to partition 0 alone."""
    cursor = Cursor(data)
    backend, connection, first = NoNode(), Sent(), cursor.number(1)
    rules = RULES if first & 2 else None
    service = ClientService(cast("Any", backend), SETTINGS, rules=rules)
    service.one_status = nullcontext()
    service.turns = cast("Any", AtOnce())
    handler = _Session(service)
    handler.opened(connection)
    if first & 1:
        handler.frame(Frame(Kind.HELLO, 1, {"version": 1}))
    try:
        for frame in _frames(cursor):
            if not connection.open:
                break
            handler.frame(frame)
        handler.read_done()
    except ProtocolError as error:
        handler.refuse(error)
    for request in backend.submitted:
        holds(
            (request.wait is None or request.wait in Level) and request.deadline <= 1000 + 600,
            "a request that was admitted is sound",
        )
        holds(rules is None or {part.partition_id for part in request.parts} <= {0}, "a write that no rule allows")
    told = {frame.kind for frame in _readable(connection.sent)}
    holds(rules is None or not told & OF_READERS, "a read that no rule allows")
    handler.closed(None)
    holds(not len(backend.barriers), "a client that is gone leaves nothing behind")


def _frames(cursor: Cursor) -> Iterator[Frame]:
    for _ in range(FRAMES_MAX):
        if not cursor.left:
            return
        kind, request_id = KINDS[cursor.number(1) % len(KINDS)], cursor.number(1)
        header = cursor.take(cursor.number(2))
        frame = framed(kind, header, cursor.take(cursor.number(2)), request_id=request_id)
        if frame is not None:
            yield frame


def _readable(sent: list[bytes]) -> list[Frame]:
    decoder, frames = FrameDecoder(frame_bytes_max=SETTINGS.net.client_frame_bytes), list[Frame]()
    for raw_frame in sent:
        (frame,) = decoder.feed(raw_frame)
        frames.append(frame)
        if frame.kind is Kind.ERROR:
            holds(len(raw_frame) <= ERROR_BYTES_MAX, f"an ERROR frame of {len(raw_frame)} bytes")
            holds(from_wire(frame.header).code == frame.header["code"], "an error that the other side cannot name")
    return frames


def _listed(*frames: tuple[Kind, Mapping[str, Any], bytes]) -> bytes:
    rows = []
    for number, (kind, header, body) in enumerate(frames, 1):
        raw_header = packed(header)
        rows.append(struct.pack("<BBH", KINDS.index(kind), number, len(raw_header)) + raw_header)
        rows.append(struct.pack("<H", len(body)) + body)
    return b"".join(rows)


def _one(kind: Kind, name: bytes, value: bytes) -> bytes:
    """A frame whose header has one field more than it should."""
    needed = packed({"version": 1, "partition": 0, "keys": [b"a"], "global_index": 1, "producer": PRODUCER, "epoch": 0})
    header = bytes([needed[0] + 1]) + needed[1:] + bytes([0xA0 + len(name)]) + name + value
    return struct.pack("<BBH", KINDS.index(kind), 1, len(header)) + header + bytes(2)


def _session_seeds() -> list[bytes]:
    read = {"partition": 0, "read": "at_least", "at_least": 4, "timeout_ms": 100}
    asks: list[tuple[Kind, Mapping[str, Any], bytes]] = [
        (Kind.SUBMIT, submit_header(block()), b"".join((block().metadata, block().data))),
        (Kind.GET, {**read, "keys": [b"a", b"n"]}, b""),
        (Kind.SCAN, {**read, "prefix": b"a", "limit": 5}, b""),
        (Kind.SCAN, {**read, "read": "stale", "start": b"a", "end": b"c"}, b""),
        (Kind.TAIL, {"partition": 1, "start": 1, "follow": True, "credit": 100}, b""),
        (Kind.TAIL, {"partition": 1, "start_time_ms": 7, "credit": 9, "key_prefix": b"a", "header": ["n", b"v"]}, b""),
        (Kind.LOG_SCAN, {"partitions": [0, 1], "start_global": 3, "through_global": 4, "credit": 100}, b""),
        (Kind.DATA_READ, {"rows": [[0, 1, None], [1, 2, [[0, 3], [7, 1]]]]}, b""),
        (Kind.VIEW_SCAN, {"partitions": [0, 1], "prefix": b"a", "read": "at_least", "at_least": 1}, b""),
        (Kind.BARRIER, {"global_index": 9, "partitions": [0], "level": "applied", "scope": "node"}, b""),
        (Kind.BARRIER, {"global_index": 0, "level": "durable", "wait_blocked": True, "scope": "leader"}, b""),
        (Kind.BARRIER, {"targets": [[0, 9], [1, 3]], "level": "snapshotted", "mode": 1, "progress_ms": 20}, b""),
        (Kind.BARRIER, {"global_index": 9, "scope": "quorum", "mode": "any", "cluster": "fuzz"}, b""),
        (Kind.WATCH, {"partitions": [1, 0], "every_ms": 50}, b""),
        (Kind.WATCH, {}, b""),
        (Kind.INDEX_AT, {"timestamp_ms": 5, "timeout_ms": 100}, b""),
        (Kind.GET, {"partition": 0, "keys": [b"a"], "read": "bounded", "max_staleness_ms": 20}, b""),
        (Kind.WATERMARKS, {"partitions": [1, 0]}, b""),
        (Kind.STATUS, {"digests": True}, b""),
        (Kind.ADMIN, {"action": "pause", "partition": 0}, b""),
        (Kind.ADMIN, {"action": "partitions", "at_least": 5}, b""),
        (Kind.PING, {}, b""),
        (Kind.SNAPSHOT_READ, {"global_index": 5, "file": "states", "offset": 3}, b""),
        (Kind.SNAPSHOT_READ, {"global_index": 5, "file": "meta", "offset": 0}, b""),
        (Kind.LOG_READ, {"global_index": 5, "partition": 1, "after": 0, "through": 9}, b""),
    ]
    hello = (Kind.HELLO, {"version": 1, "client": "fuzz", "cluster": "fuzz", "token": "secret"}, b"")
    tail = [asks[4], (Kind.CREDIT, {"bytes": 10}, b""), (Kind.CANCEL, {}, b"")]
    singles = [b"\1" + _listed(ask) for ask in asks]
    wrong = [(Kind.HELLO, b"version"), (Kind.HELLO, b"cluster"), (Kind.GET, b"read"), (Kind.BARRIER, b"level")]
    wrong += [(Kind.BARRIER, b"mode"), (Kind.BARRIER, b"targets"), (Kind.BARRIER, b"cluster")]
    wrong += [(Kind.BARRIER, b"scope"), (Kind.SUBMIT, b"wait"), (Kind.ADMIN, b"action")]
    deep = [bytes([kind is not Kind.HELLO]) + _one(kind, name, DEEP) for kind, name in wrong]
    bound = [
        b"\3" + _listed(ask) for ask in [*asks, (Kind.SUBMIT, {**submit_header(block()), "parts": [[1] * 6]}, b"")]
    ]
    return [*deep, *singles, *bound, b"\0" + _listed(hello), b"\0" + _listed(hello, *asks), b"\1" + _listed(*tail)]


# -- peer port


class _Node:
    """What stands behind the links of a node: raftlog.core and dispatcher.pipeline.pipeline, less Raft itself."""

    def __init__(self) -> None:
        still = Still()
        identity = Identity(ME, SETTINGS.cluster.id, DIGEST)
        self.links = Links(
            identity=identity,
            members={NodeId(m.id): m for m in MEMBERS},
            network=cast("Any", None),
            clock=still,
            rng=cast("Any", None),
            limits=ConnectionLimits(),
            tls=None,
            events=self,
            directories=Directories(ME, bytes(DIRECTORY_BYTES), {OTHER: bytes(DIRECTORY_BYTES)}, lambda *_: None),
        )
        self.logs = {p: _log(p) for p in PARTITIONS}
        self.payloads = PartitionPayloads(self.logs, lambda _: None)
        self.repair = Repair(
            peers=[OTHER],
            links=self.links,
            payloads=self.payloads,
            journal=Journal(MemoryDisk(), Path("/journal"), bytes(12), 4096, bytes),
            offload=still,
            clock=still,
            damaged=lambda _: None,
        )
        self.forwarding = Forwarding(links=self.links, submit=self._submit, clock=still, bytes_max=1 << 20)
        self.stability = Stability(node_id=ME, members=[ME, OTHER], partitions=PARTITIONS)
        self.answers: list[SubmitReply | LogboomError] = []
        watermarks = Watermarks(PARTITIONS)
        self.barriers = Barriers(SETTINGS.barrier, watermarks)
        self.barriers.others.set_members(ME, [ME, OTHER], [ME, OTHER])
        self.telling = Telling(self.barriers, watermarks, may_show=lambda _: True)
        want = Want(tuple((p, GlobalLogIndex(4)) for p in PARTITIONS), reach=Scope.QUORUM)
        self.barriers.add(want, client=self, deadline=1100.0, now=1000.0, done=lambda _: None)
        admission = Admission(SETTINGS.admission, PARTITIONS)
        self.pressure = Pressure(node_id=ME, links=lambda: self.links, admission=admission, eased=lambda: None)
        self.pressure.peer_up(OTHER)
        raft = SimpleNamespace(links=self.links, read_index=lambda done: done(None))
        self.freshness = Freshness(cast("Any", SimpleNamespace(raft=raft, global_commit_index=lambda: 5)))

    def _submit(self, request: SubmitRequest, done: Callable[[SubmitReply | LogboomError], None], peer: NodeId) -> None:
        done(QuotaExceeded("enough", limit=1, used=1))

    def link_up(self, peer: NodeId) -> None:
        request = SubmitRequest(ProducerId(bytes(16)), 0, False, Level.APPLIED, 2000.0, (), 0)  # noqa: FBT003
        self.forwarding.forward(peer, request, self.answers.append)

    def link_down(self, peer: NodeId) -> None:
        self.forwarding.peer_down(peer)
        self.telling.peer_down(peer)

    def link_arriving(self, peer: NodeId, frame: Frame) -> None:
        pass

    def link_read(self, peer: NodeId) -> None:
        pass

    def link_drained(self, peer: NodeId) -> None:
        pass

    def link_frame(self, peer: NodeId, frame: Frame) -> None:
        if frame.kind is Kind.RAFT:
            messages.decode(frame.body)
        elif frame.kind is Kind.PAYLOAD:
            messages.index_in(frame.header, "term")
            self.payloads.receive(frame.body)
        elif frame.kind is Kind.NEED:
            messages.index_in(frame.header, "raft_index")
        elif frame.kind in (Kind.FETCH, Kind.FETCHED):
            self.repair.on_frame(peer, frame)
        elif frame.kind is Kind.PROGRESS:
            self.pressure.heard(peer, frame.header)
            self.stability.heard(peer, frame.header, is_gone=lambda partition_id: partition_id % 2 > 0)
        elif frame.kind is Kind.FRONTIERS_WANTED:
            self.telling.asked(peer, frame.header)
        elif frame.kind is Kind.FRONTIERS:
            self.barriers.others.heard(peer, frame.header)
        elif frame.kind in INDICES:
            self.freshness.on_frame(peer, frame)
        else:
            self.forwarding.on_frame(peer, frame)


def _log(partition: PartitionId) -> PartitionLog:
    return PartitionLog(
        disk=MemoryDisk(),
        directory=cast("Any", None),
        partition_id=partition,
        settings=LogSettings(),
        mode=DurabilityMode.WRITE_BEHIND,
        headers_only=False,
        clock=None,
        shelf=None,
    )


def peer(data: bytes) -> None:
    """First byte: whether PEER_HELLO is done already."""
    cursor = Cursor(data)
    node, connection = _Node(), Sent()
    link = PeerLink(node.links, OTHER)
    link.opened(connection)
    if cursor.number(1) & 1:
        link.frame(Frame(Kind.PEER_HELLO, 0, {**node.links.hello(), "node": OTHER}))
    for frame in _frames(cursor):
        if not connection.open:
            break
        link.frame(frame)
    forwarded = link.peer is not None
    link.closed(None)
    _readable(connection.sent)
    holds(not len(node.telling), "a node that is gone wants to hear nothing more")
    holds(len(node.barriers) <= 1, "nor does anybody wait for it")
    holds(
        len(node.answers) == forwarded,
        "a request that was forwarded is answered once, at the latest when the link ends",
    )
    for answer in node.answers:
        if isinstance(answer, SubmitReply):
            _sound(answer)


def _sound(reply: SubmitReply) -> None:
    holds(type(reply.commit_index) is int, "a commit index is a number")
    for part in reply.parts:
        *numbers, results = part
        holds(len(numbers) == 5 and all(type(n) is int for n in numbers), f"a part of a reply: {part!r}")
        holds(results is None or type(results) is bytes, "results are bytes")


def _peer_seeds() -> list[bytes]:
    hello = {"version": 1, "node": OTHER, "cluster": "fuzz", "settings": DIGEST, "members": [3, 9, ["n1", "n2"]]}
    error = QuotaExceeded("why", limit=1).to_wire()
    one, two = batch(), batch(previous=batch())
    route = ROUTE.pack(1, 2, one.last_index, one.digest)
    says: list[tuple[Kind, Mapping[str, Any], bytes]] = [
        (Kind.FORWARDED, {"parts": [[0, 1, 2, 3, 0, b"\0"], [1, 1, 2, 3, 0, None]], "commit_index": 7}, b""),
        (Kind.FORWARDED, {"error": error}, b""),
        (Kind.FORWARD, submit_header(block()), b"".join((block().metadata, block().data))),
        (Kind.RAFT, {}, packed({"type": "pre_vote_ok", "term": 3})),
        (Kind.PAYLOAD, {"term": 2}, raw(one)),
        (Kind.FETCHED, {}, raw(two)),
        (Kind.NEED, {"raft_index": 4}, b""),
        (Kind.PROGRESS, {"durable": [[0, 4], [1, 9]]}, b""),
        (Kind.PROGRESS, {"durable": [[8, 1]], "again": True}, b""),
        (Kind.PROGRESS, {"durable": [], "pressure": ["disk_free", 0.5]}, b""),
        (
            Kind.FRONTIERS_WANTED,
            {"new": True, "rows": [[0, 2, 4, 9, False], [1, 0, 0, 0, False], [7, 3, 1, 1, True]]},
            b"",
        ),
        (Kind.FRONTIERS, {"rows": [[0, 2, 4, "running"], [1, 2, 9, "paused"]]}, b""),
        (Kind.INDEX_ASK, {}, b""),
        (Kind.INDEX_TOLD, {"global_index": 4}, b""),
        (Kind.FETCH, {}, route),
        (Kind.FETCH, {}, pack_routes([])[1:]),
        (Kind.PING, {}, b""),
    ]
    listed = [b"\1" + _listed(say) for say in says]
    deep = [b"\0" + _one(Kind.PEER_HELLO, name, DEEP) for name in (b"version", b"cluster", b"node", b"members")]
    deep.append(b"\1" + _one(Kind.PROGRESS, b"durable", b"\x91" + DEEP))
    deep += [b"\1" + _one(kind, b"rows", b"\x91" + DEEP) for kind in (Kind.FRONTIERS, Kind.FRONTIERS_WANTED)]
    return [*deep, *listed, b"\0" + _listed((Kind.PEER_HELLO, hello, b""), *says[2:])]


TARGETS = [
    Target("session", session, _session_seeds, "HELLO and every request of a client, on a session without a node"),
    Target("peer", peer, _peer_seeds, "PEER_HELLO and every frame between nodes, on a link without a node"),
]
