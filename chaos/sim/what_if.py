"""What would be left of a node if its power failed now, and took with it everything that is not synced?"""

from __future__ import annotations

import random

from chaos.sim.host import Host
from dispatcher.pipeline.backend import Backend
from logboom.types import DurabilityMode
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from raftlog.entries.entry import unpack_routes
from raftlog.entries.parent_state import EMPTY, ParentState
from raftlog.journal.journal import Journal


def forgotten(host: Host, backend: Backend) -> str:
    """Something that the node has acknowledged, and would not find again. Empty: nothing.

    What no member has it has acknowledged without: who had it alone has rotted, say, before anybody else did.
    """
    disk = host.disk.twin()
    settings, live = backend.settings, backend.raft.journal
    salts = random.Random(0).randbytes  # should it have to begin a file
    journal = Journal.open(
        disk=disk, directory=host.path("journal"), cluster_id=settings.cluster.id, random_bytes=salts
    )
    tails = ParentState.decode(journal.base.state).tails
    logs = {
        partition: PartitionLog.open(
            disk=disk,
            directory=host.path("partitions", str(partition)),
            partition_id=partition,
            settings=settings.log,
            mode=log.mode,
            base=LogBase(*tails.get(partition, EMPTY)),
        )
        for partition, log in backend.logs.items()
        if log.mode is DurabilityMode.WRITE_AHEAD
    }
    for command, index, term in live.entries[1 : live.floor - live.base_index + 1]:
        if index <= journal.base_index:
            continue  # its state is on the disk, and it is gone in memory in a moment
        if index > journal.last_index or journal.entry(index) != (command, index, term):
            return f"entry {index}, of {live.floor} acknowledged"
        for route in unpack_routes(command):
            log = logs.get(route.partition_id)
            held = log is None or log.holds(route.last_index, route.digest) or backend.payloads.is_hole(route)
            if not held and journal.find_redo(route.digest) is None:
                return f"the batch of entry {index}, {route}"
    return ""
