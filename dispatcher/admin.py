"""What an operator may ask of one node: ADMIN requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog

from dispatcher import members, reads
from dispatcher.backend import Backend
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError, NotLeader
from logboom.wire import shown
from snapshots.meta import SetMeta

log = structlog.get_logger(__name__)

STEERING: Final = ("pause", "resume", "freeze", "thaw")
"""Of one partition on this node."""
ACTIONS: Final = (*STEERING, "snapshot", "snapshots", *members.ACTIONS)


async def act(backend: Backend, header: Mapping[str, Any], deadline: float) -> dict[str, Any]:
    """Header of an ADMIN_REPLY. Raises InvalidRequest, NoSuchPartition, NotLeader, Unavailable."""
    action = header.get("action")
    if action not in ACTIONS:
        raise InvalidRequest(f"action must be one of {', '.join(ACTIONS)}, not {shown(action)}")
    if action in members.ACTIONS:
        return await members.act(backend, header, deadline)
    if action == "snapshots":
        return {"snapshots": _snapshots(backend)}
    if action == "snapshot":
        return {"snapshot": _row(await _create(backend, deadline))}
    partition = reads.partition_of_header(backend, header)
    state = getattr(backend, str(action))(partition)
    log.info("admin", action=action, partition=partition, state=state)
    return {"state": state}


async def _create(backend: Backend, deadline: float) -> SetMeta:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[SetMeta] = loop.create_future()

    def done(found: SetMeta | LogboomError) -> None:
        if answer.done():
            return
        if isinstance(found, NotLeader):
            found = NotLeader(found.message, leader=backend.leader_address())
        if isinstance(found, LogboomError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    try:
        backend.snapshots.taking.create(done)
    except NotLeader as error:
        raise NotLeader(error.message, leader=backend.leader_address()) from None
    waits = DeadlineExceeded("the snapshot was not complete in time; it goes on", outcome="unknown")
    timer = loop.call_later(max(0.0, deadline - backend.clock.monotonic()), lambda: done(waits))
    try:
        return await answer
    finally:
        timer.cancel()


def _snapshots(backend: Backend) -> dict[str, Any]:
    snapshots = backend.snapshots
    under_way, fetched = snapshots.taking.progress(), snapshots.installing.progress
    return {
        "node": backend.node_id,
        "sets": [_row(meta) for meta in snapshots.store.sets()],
        "under_way": None if under_way is None else under_way._asdict(),
        "fetching": None if fetched is None else fetched._asdict(),
        "base": backend.raft.journal.base.index,
    }


def _row(meta: SetMeta) -> dict[str, Any]:
    return {
        "global_index": meta.global_index,
        "raft_index": meta.raft_index,
        "bytes": meta.states_bytes,
        "partitions": len(meta.partitions),
        "created_ms": meta.created_ms,
    }
