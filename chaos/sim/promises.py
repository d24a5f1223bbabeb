"""Promises that nobody misses who looks at the outcome: what is acknowledged is held, what is saved stays, new is new,
and what is void nobody has.

Each takes a second mishap to hurt: the others lose what only they held, the power fails in between, a producer that
should be forgotten sends again. So they are looked at when they are made.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.state_file import ModelStateFile
from dispatcher.pipeline.backend import Backend
from logboom.types import GlobalLogIndex, NodeId
from partitions.apply.worker import ApplyWorker
from partitions.machines.kv import KvMachine
from raftlog.engine import messages
from raftlog.entries.voids import Void

NOTHING: Final = 1 << 62
Fail = Callable[[str, str], None]


def look_at_acknowledging(host: Host, raft: Any, fail: Fail) -> None:
    """No reply tells of an entry whose batch was missing here when it was queued, unless its leader calls it lost."""
    hold, send_now = raft.group.hold, raft.outbound.send_now
    missing = NOTHING

    def held(send: Callable[[], None]) -> None:
        first = raft.repair.first_index

        def released() -> None:
            nonlocal missing
            missing = first
            try:
                send()
            finally:
                missing = NOTHING

        hold(released)

    def sent(peer: NodeId, body: bytes) -> None:
        message: Any = messages.decode(memoryview(body)) if missing < NOTHING else {"type": "", "success": False}
        if message["type"] == "next_node_idx" and message["success"] and message["next_node_idx"] > missing:
            reached = message["next_node_idx"] - 1
            fail("AckHeld", f"{host.name} acknowledges entry {reached}; the batch of entry {missing} is missing")
        send_now(peer, body)

    raft.group.hold, raft.outbound.send_now = held, sent


def look_at_freshness(host: Host, freshness: Any, committed_at: Sequence[float], fail: Fail) -> None:
    """An index covers what was committed when it is said to be of. ``committed_at``: when, by global index."""
    recent = freshness.recent

    async def found(max_age: float, deadline: float) -> GlobalLogIndex:
        since = asyncio.get_running_loop().time() - max_age
        index: GlobalLogIndex = await recent(max_age, deadline)
        as_of = max(since, freshness._known[0])  # noqa: SLF001 - an observer
        due = bisect_left(committed_at, as_of)  # at the same instant it may come a little later
        if index < due:
            fail("FreshEnough", f"{host.name} goes by {index} as of {as_of}, for what was asked as of {since}: {due}")
        return index

    freshness.recent = found


def look_at_producers(host: Host, backend: Backend, fail: Fail) -> None:
    """No more of them are known after a transaction than the settings say: which, is the same on all nodes."""
    most = backend.settings.apply.producers_max
    for partition_id, worker in backend.workers.items():
        _look_at_commits(f"{host.name}: partition {partition_id}", worker.dedupe, most, fail)


def _look_at_commits(where: str, dedupe: Any, most: int, fail: Fail) -> None:
    commit = dedupe.commit

    def committed() -> None:
        commit()
        if len(dedupe) > most:
            fail("ProducersBounded", f"{where} knows {len(dedupe)} producers, and is to know {most}")

    dedupe.commit = committed


def check_saved(host: Host, worker: ApplyWorker, fail: Fail) -> None:
    """What counts as saved a power loss, which may undo a state file's last transaction, would leave now."""
    file: Any = getattr(worker.machine, "_file", None)
    if not isinstance(worker.machine, KvMachine) or not isinstance(file, ModelStateFile):
        return
    left = (file._file.undo or file._file.latest).position.applied_index  # noqa: SLF001 - an observer
    if worker.saved_index > left:
        where = f"{host.name}: partition {worker.log.partition_id}"
        fail("SavedStays", f"{where} counts as saved up to {worker.saved_index}; the power leaves {left}")


def check_void(
    hosts: Sequence[Host],
    void: Void,
    damaged: Collection[str],
    fail: Fail,
    *,
    head: bytes = b"",
    members: Collection[str] = (),
) -> None:
    """When it is declared nobody has it, who was not asked included.

    ``head``: what the batch begins with on a disk, empty: not known; it is looked for on those of ``members`` that
    are down, too.
    """
    for host in hosts:
        if host.node is None and head and host.name in members and host.name not in damaged:
            if host.disk.keeps(host.path("partitions", str(void.partition_id)), ".log", head):
                story = f"{host.name} is down and has what is declared void: {void.partition_id}/{void.last_index}"
                fail("VoidProven", story)
            continue
        log = None if host.node is None else host.node.pipeline.logs.get(void.partition_id)
        if log is None or host.name in damaged or log.is_hole(void.last_index, void.digest):
            continue
        if log.find(void.last_index, void.digest) is not None and log.is_durable(void.last_index, void.digest):
            fail("VoidProven", f"{host.name} has what is declared void: {void.partition_id}/{void.last_index}")
