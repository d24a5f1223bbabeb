"""What an operator may ask of one node: ADMIN requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from dispatcher.pipeline.backend import Backend
from dispatcher.pipeline.choosing import Acknowledgement
from dispatcher.pipeline.until_applied import until_ordered
from dispatcher.reading import reads
from dispatcher.requests.requests import field_of
from dispatcher.sessions import members
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError, NotLeader
from logboom.types import Ack, DurabilityMode, GlobalLogIndex, PartitionId
from logboom.wire import shown
from raftlog.entries.chosen import NOTHING, Chosen
from raftlog.entries.lifecycle import NAME_BYTES_MAX, TOKEN_BYTES, PartitionKind
from snapshots.meta import SetMeta

log = structlog.get_logger(__name__)

STEERING: Final = ("pause", "resume", "freeze", "thaw")
"""Actions that concern one partition on this node alone."""
ACTIONS: Final = (
    *STEERING,
    "snapshot",
    "snapshots",
    "partitions",
    "create_partition",
    "destroy_partition",
    "set_partition",
    "void_batch",
    *members.ACTIONS,
)

T = TypeVar("T")
Done = Callable[[T | LogboomError], None]


async def act(backend: Backend, header: Mapping[str, Any], deadline: float, by: str = "") -> dict[str, Any]:
    """Header of an ADMIN_REPLY; ``by`` whom it is asked, for the log.

    Raises InvalidRequest, NoSuchPartition, NotLeader, Unavailable, DeadlineExceeded, IncompatibleVersion.
    """
    action = header.get("action")
    if action not in ACTIONS:
        raise InvalidRequest(f"action must be one of {', '.join(ACTIONS)}, not {shown(action)}")
    if action in members.ACTIONS:
        return await members.act(backend, header, deadline, by)
    if action == "snapshots":
        return {"snapshots": _snapshots(backend)}
    if action == "snapshot":
        return {"snapshot": await _taken(backend, deadline)}
    if action == "partitions":
        if header.get("linearizable"):
            await backend.read_index(deadline)
        else:
            await until_ordered(backend, GlobalLogIndex(field_of(header, "at_least", int, 0)), deadline)
        return {"partitions": backend.partition_rows(), "key_partitions": backend.key_partitions()}
    if action == "create_partition":
        created = await _create_partition(backend, header, deadline)
        log.info("admin", action=action, partition=created, by=by)
        return {"partition": created}
    if action == "destroy_partition":
        destroyed = await _destroy_partition(backend, header, deadline)
        log.info("admin", action=action, partition=destroyed, by=by)
        return {"partition": destroyed}
    if action == "set_partition":
        now = await _set_partition(backend, header, deadline)
        said = {"partition": now.partition_id, "ack": str(now.ack), "linearizable": now.linearizable}
        log.info("admin", action=action, **said, by=by)
        return said
    partition = reads.partition_of_header(backend, header)
    if action == "void_batch":
        found = await _void_batch(backend, partition, header, deadline)
        if header.get("yes") is True:
            log.info("admin", action=action, partition=partition, index=header.get("index"), by=by)
        return {"void": found}
    state = getattr(backend, str(action))(partition)
    log.info("admin", action=action, partition=partition, state=state, by=by)
    return {"state": state}


async def _create_partition(backend: Backend, header: Mapping[str, Any], deadline: float) -> PartitionId:
    name = field_of(header, "state_machine", str, backend.cluster.state_machine)
    mode = field_of(header, "mode", str, str(backend.cluster.mode))
    token = _token(header)
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise InvalidRequest(f"state_machine has 1 to {NAME_BYTES_MAX} bytes")
    if mode not in set(DurabilityMode):
        raise InvalidRequest(f"mode must be write_ahead or write_behind, not {shown(mode)}")
    slow = DeadlineExceeded("not there in time, and may yet come: see `logboom partitions list`", outcome="unknown")
    kind, chosen = PartitionKind(name, DurabilityMode(mode)), _chosen(header)
    return await _called(backend, partial(backend.partitioning.create, kind, token, chosen=chosen), deadline, slow)


async def _set_partition(backend: Backend, header: Mapping[str, Any], deadline: float) -> Acknowledgement:
    partition, token, chosen = PartitionId(field_of(header, "partition", int)), _token(header), _chosen(header)
    if chosen == NOTHING:
        raise InvalidRequest("say what to set: ack, linearizable or both")
    slow = DeadlineExceeded("the partition was not set in time; ask again", outcome="unknown")
    return await _called(backend, partial(backend.choosing.choose, partition, chosen, token), deadline, slow)


def _chosen(header: Mapping[str, Any]) -> Chosen:
    """Raises InvalidRequest."""
    if "ack" in header and header["ack"] not in list(Ack):
        raise InvalidRequest(f"ack must be committed, durable or applied, not {shown(header['ack'])}")
    linearizable = field_of(header, "linearizable", bool) if "linearizable" in header else None
    return Chosen(Ack(header["ack"]) if "ack" in header else None, linearizable)


def _token(header: Mapping[str, Any]) -> bytes:
    token: bytes = field_of(header, "token", bytes)
    if len(token) != TOKEN_BYTES:
        raise InvalidRequest(f"token must have {TOKEN_BYTES} bytes, not {len(token)}")
    return token


async def _destroy_partition(backend: Backend, header: Mapping[str, Any], deadline: float) -> PartitionId:
    partition = PartitionId(field_of(header, "partition", int))
    slow = DeadlineExceeded("the partition was not gone in time; ask again", outcome="unknown")
    return await _called(backend, partial(backend.partitioning.destroy, partition), deadline, slow)


async def _void_batch(
    backend: Backend, partition: PartitionId, header: Mapping[str, Any], deadline: float
) -> dict[str, Any]:
    index, yes = field_of(header, "index", int), field_of(header, "yes", bool, default=False)
    try:
        return await backend.voiding.void(partition, index, yes=yes, deadline=deadline)
    except NotLeader as error:
        raise NotLeader(error.message, leader=backend.leader_address()) from None


async def _called(
    backend: Backend, begin: Callable[[Done[T]], Callable[[], None] | None], deadline: float, slow: LogboomError
) -> T:
    """What ``begin`` calls back with; ``slow`` is raised when that takes too long. NotLeader says who leads.

    ``begin`` may return the way to take that back: of those who wait no longer nobody is to be kept in mind.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def done(found: T | LogboomError) -> None:
        if answer.done():
            return
        if isinstance(found, LogboomError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    timer = loop.call_later(max(0.0, deadline - backend.clock.monotonic()), lambda: done(slow))
    leave: Callable[[], None] | None = None
    try:
        leave = begin(done)
        return await answer
    except NotLeader as error:
        raise NotLeader(error.message, leader=backend.leader_address()) from None
    finally:
        timer.cancel()
        if leave is not None:
            leave()


async def _taken(backend: Backend, deadline: float) -> dict[str, Any]:
    slow = DeadlineExceeded("the snapshot was not complete in time; it goes on", outcome="unknown")
    newest, under_way = backend.snapshots.store.newest, backend.snapshots.taking.progress()
    known = max(0 if each is None else each.raft_index for each in (newest, under_way))
    found = await _called(backend, backend.snapshots.taking.create, deadline, slow)
    return {**_row(found), "new": found.raft_index > known}


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
