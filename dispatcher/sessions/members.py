"""What an operator may ask of the leader about the members: ADMIN requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from dispatcher.pipeline.backend import Backend
from dispatcher.requests.requests import field_of
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError, NotLeader, Unavailable
from logboom.types import NodeId
from ports.timers import wait
from raftlog.entries.configuration import Role, Seat
from raftlog.members.changes import Change

log = structlog.get_logger(__name__)

ACTIONS: Final = ("members", "member_add", "member_update", "member_remove", "member_promote", "transfer")
POLL_S: Final = 0.01


async def act(backend: Backend, header: Mapping[str, Any], deadline: float, by: str = "") -> dict[str, Any]:
    """Header of an ADMIN_REPLY. Raises InvalidRequest, NotLeader, Unavailable, UnknownOutcome, DeadlineExceeded."""
    action = header["action"]
    if action == "members":
        if header.get("leader") is True and not backend.raft.engine.is_leader:
            raise NotLeader("this node does not lead", leader=backend.leader_address())
        return {"members": members(backend)}
    try:
        if action == "transfer":
            to = None if header.get("id") is None else NodeId(field_of(header, "id", str))
            await hand_over(backend, to, deadline)
        else:
            await _change(backend, str(action), header, deadline)
    except NotLeader as error:
        raise NotLeader(error.message, leader=backend.leader_address()) from None
    # Only now: before, its id may be anything, of any size.
    log.info("admin", action=action, member=header.get("id"), by=by)
    return {"members": members(backend)}


async def _change(backend: Backend, action: str, header: Mapping[str, Any], deadline: float) -> None:
    try:
        await _try_change(backend, action, header, deadline)
    except InvalidRequest:
        # Whoever was replaced and has not heard of it goes by old members: that is no reason to refuse for good.
        await _answer(backend, deadline, "this node could not prove that it leads", backend.raft.read_index)
        raise


async def _try_change(backend: Backend, action: str, header: Mapping[str, Any], deadline: float) -> None:
    node = NodeId(field_of(header, "id", str))
    change: Change
    if action == "member_add":
        role = Role.LEARNER if header.get("learner") is True else Role.JOINING
        seat = Seat(node, field_of(header, "peer_address", str), field_of(header, "client_address", str), role)
        change = lambda now: now.adding(seat)  # noqa: E731
    elif action == "member_update":
        peer, client = (field_of(header, name, str, "") for name in ("peer_address", "client_address"))
        if not (peer or client):
            raise InvalidRequest("say what changes: peer_address, client_address, or both")
        change = lambda now: now.moving(node, peer_address=peer, client_address=client)  # noqa: E731
    elif action == "member_promote":
        change = lambda now: now.giving(node, Role.JOINING)  # noqa: E731
    else:
        change = lambda now: now.removing(node)  # noqa: E731
        if not backend.raft.admits:
            raise NotLeader("this node does not lead", leader=None)
        change(backend.members)  # whatever would be refused is refused before leadership moves
        if node == backend.node_id and node in backend.members.voters:
            await hand_over(backend, None, deadline)
            raise NotLeader("leadership was handed over: ask the new leader", leader=backend.leader_address())
    await _answer(
        backend, deadline, "the change goes on", lambda done: backend.raft.members.changes.propose(change, done)
    )


async def hand_over(backend: Backend, to: NodeId | None, deadline: float) -> None:
    """Until ``to`` (None: any other) leads and this node knows. Raises what ``Transfer`` does, or Unavailable."""
    transfer = backend.raft.members.transfer
    await _answer(backend, deadline, "leadership may still move", lambda done: transfer.begin(to, done))
    while backend.leader_address() is None:
        if backend.clock.monotonic() >= deadline:
            raise Unavailable("leadership was handed over, and nobody leads yet", retry_after=0.1)
        await wait(POLL_S)
    leader = backend.raft.engine.leader
    if to is not None and leader != to:
        raise Unavailable(f"{leader} leads, and not {to}", retry_after=0.1)


async def _answer(
    backend: Backend,
    deadline: float,
    late: str,
    begin: Callable[[Callable[[LogboomError | None], None]], None],
) -> None:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[None] = loop.create_future()

    def done(error: LogboomError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    begin(done)
    backend.raft.poke()
    waits = DeadlineExceeded(f"not done in time; {late}", outcome="unknown")
    timer = loop.call_later(max(0.0, deadline - backend.clock.monotonic()), lambda: done(waits))
    try:
        await answer
    finally:
        timer.cancel()


def members(backend: Backend) -> dict[str, Any]:
    """The configuration that counts on this node; where it leads, how far the others are."""
    current, raft = backend.members, backend.raft
    engine = raft.engine
    rows = []
    for seat in current.seats:
        own = seat.node == backend.node_id
        held = engine.journal.durable_index if own else engine.acknowledged_by(seat.node) if engine.is_leader else None
        rows.append(
            {
                "id": seat.node,
                "peer_address": seat.peer_address,
                "client_address": seat.client_address,
                "role": str(seat.role),
                "connected": own or raft.links.connected(seat.node),
                "raft_index": held,
            }
        )
    return {
        "node": backend.node_id,
        "leader": engine.leader,
        "term": current.term,
        "index": current.index,
        "committed": current.index <= max(1, engine.commit_index),
        "standing": raft.members.roster.standing,
        "raft_index": engine.journal.last_index,
        "members": rows,
        "removed": list(current.removed),
    }
