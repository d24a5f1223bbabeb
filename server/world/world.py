"""Everything outside a node, in one place: the real world here, a simulated one in ``chaos/sim``."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from logboom.settings import ApplySettings
from partitions.machines.kv_file import KvFile
from ports.clock import Clock
from ports.counts import Counted
from ports.disk import Disk
from ports.http import HttpServers
from ports.net import Network
from ports.offload import Offload, Place
from ports.rng import Rng
from ports.state_file import StateFile
from server.world import logs, memory
from server.world.accepting import Port
from server.world.arenas import Lists
from server.world.clock_os import OsClock
from server.world.crowd import Crowd
from server.world.disk_os import OsDisk
from server.world.http_os import OsHttp
from server.world.net_os import AsyncioNetwork
from server.world.offload_os import SlowOffload, ThreadOffload
from server.world.open_files import OpenFilesCount

OFFLOAD_THREADS = 4
SAVE_THREADS = 2
"""So few: their syncs would stand in the way of those that commits wait for."""
OTHERWISE: Final = "slow"
SETS: Final = "snapshot"
SCRUBBING: Final = "scrub"
STATES: Final = "rebuild"
"""Threads, one of each, of work that lasts; see ``World.lasting``."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside a node: clock, randomness, disk, network, threads, state files.

    Timers are not in it: they are those of the running event loop.
    """

    clock: Clock
    rng: Rng
    disk: Disk
    network: Network
    sync_offload: Offload
    """For group syncs. A pool of its own: they must not wait for applying."""
    apply_offload: Offload
    """For applying, reading and everything else that blocks, but for the calls of users' state machines."""
    save_offload: Offload
    """For checkpoints: thousands of partitions take turns, and applying does not wait for its turn among them.

    And for compaction, which frees room while the next snapshot, slowly, takes it."""
    slow_offload: Offload
    """For what may take minutes: snapshots, written or fetched, scrubbing, states that are made anew. One at a time."""
    sleep: Callable[[float], None]
    """Holds up a thread of an offload for so many seconds; never the loop."""
    open_state_file: Callable[[Path, ApplySettings], StateFile]
    """In a directory that exists. Blocking."""
    resident_bytes: Callable[[], int]
    """Memory of this process, but for files that are mapped."""
    memory_limit_bytes: Callable[[], int | None] = lambda: None
    """What whoever runs it lets it have; None: nobody says."""
    http: HttpServers | None = None
    """For operators; None: there is no such port in this world."""
    users_offload: Callable[[str], Offload] | None = None
    """For a state machine of a user, by its name: whose calls do not return keeps these threads, and no others."""
    background: Callable[[str], Offload] | None = None
    """A thread of its own, by name, for what must hold up nothing else."""
    fsyncs: Callable[[], dict[str, Counted]] = dict
    """How long syncs took, by kind of file, if somebody counts."""
    log_lines_lost: Callable[[], int] = int
    """Since the process began; of a world that counts them."""
    no_files_left: Callable[[int], str | None] = lambda _: None
    """Why the process cannot have so many more files open; None: it can."""
    files_left: Callable[[], int | None] = lambda: None
    """So many more files the process can have open; None: any number."""
    lasting: Mapping[str, Offload] = field(default_factory=dict)
    """Threads for what calls machines of users and may not return, by name; what is not in here does the slow one."""
    give_up: Callable[[str], None] = lambda _: None
    """On the job that one of ``lasting`` has, which may never return: the next gets another thread. Raises OSError."""
    places: Callable[[], Mapping[str, Place]] = dict
    """Where the thread of ``slow_offload`` is, and those of ``lasting``, by name; not of one that has nothing to do."""


def real_world(*, page_cache_bytes: int, fatal: Callable[[BaseException], None]) -> World:
    """The operating system's. ``fatal`` is called, on the loop, with what goes wrong inside the network.

    ``page_cache_bytes``: see ``log.page_cache_bytes``.
    """
    clock, disk = OsClock(), OsDisk(page_cache_bytes=page_cache_bytes)
    slow = {name: SlowOffload(name=name) for name in (OTHERWISE, SETS, SCRUBBING, STATES)}

    port, open_files = partial(Port, crowds=list[Crowd]()), OpenFilesCount()

    def places() -> dict[str, Place]:
        found = {name: offload.place() for name, offload in slow.items()}
        return {name: place for name, place in found.items() if place is not None}

    return World(
        clock=clock,
        rng=random.Random(secrets.randbits(128)),
        disk=disk,
        network=AsyncioNetwork(clock=clock, on_fatal=fatal, port=port),
        sync_offload=ThreadOffload(workers=OFFLOAD_THREADS, name="sync"),
        apply_offload=ThreadOffload(workers=OFFLOAD_THREADS, name="apply"),
        save_offload=ThreadOffload(workers=SAVE_THREADS, name="save"),
        slow_offload=slow[OTHERWISE],
        lasting={name: slow[name] for name in (SETS, SCRUBBING, STATES)},
        give_up=lambda name: slow[name].give_up(),
        places=places,
        sleep=slow[SETS].sleep,
        open_state_file=partial(_state_file, Lists()),
        http=OsHttp(on_fatal=fatal, port=port),
        users_offload=lambda name: ThreadOffload(workers=OFFLOAD_THREADS, name=f"machine-{name}"),
        background=lambda name: ThreadOffload(workers=1, name=name),
        fsyncs=disk.syncs.snapshot,
        log_lines_lost=logs.lost,
        no_files_left=open_files.none_left,
        files_left=open_files.left,
        resident_bytes=memory.taken_bytes,
        memory_limit_bytes=memory.limit_bytes,
    )


def _state_file(lists: Lists, directory: Path, settings: ApplySettings) -> StateFile:
    with lists.apart():
        return KvFile(directory, settings)
