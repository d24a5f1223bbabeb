"""A fault run on real processes: ``logboom chaos run --seconds 60 --seed 1``.

Three nodes on loopback, four clients, and a seeded sequence of kill -9 and SIGSTOP on leader
and followers, two at once, all at once, and of wires between them that are slow, one-way, or lost; in between a node is
away for long, another loses its disk, members are replaced, and partitions come and go. All through that others follow
the logs, wait, and read. Then everything that was recorded is checked.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from chaos.checkers.streams import Row
from chaos.effects import saved_effects
from chaos.history import History
from chaos.readings import Readings, Told, watch_views
from chaos.streams import Streams, rows_of
from chaos.transfers import accounts_of, is_account
from chaos.turnover import Turnover
from chaos.verdict import Observed, check, report
from chaos.waits import Waits
from chaos.wire_faults import WireFaults
from chaos.wires import WiredCluster, Wires
from chaos.workload import KV_PARTITIONS, LOG_PARTITIONS, Workload
from logboom import Client
from logboom.cli import main, talk
from logboom.testing import LocalCluster
from logboom.types import KIB

BEGAN = time.monotonic()
CLIENTS = 4
CONCURRENCY = 3
PARTITIONS = KV_PARTITIONS + len(LOG_PARTITIONS)
WIRES_SHARES = (0.2, 0.5, 0.8)
BOTH_SHARE = 0.2
"""Of the faults: of wires, as each run has it, and of wires and processes at the same time."""
ALL_AT_ONCE_BEFORE_END_S = 8.0
TURNOVER_S = 13.0
"""Something that takes long begins so often,"""
LAST_TURN_S = 8.0
"""and not so shortly before the end."""
CATCH_UP_S = 20.0
"""Whoever follows has come to the end by then, or never will."""
SNAPSHOTS = {
    "snapshot.age_ms": 2000,
    "snapshot.retain_bytes": 0,
    "log.batch_bytes_max": 128 * KIB,
    "raft.journal_segment_bytes": 64 * KIB,
    "scrub.pause_ms": 3000,
}
"""Often, and of small files: who is away for a while is given one."""


def settings_of(seed: int) -> dict[str, Any]:
    """What nodes are told beside that; each run has others."""
    rng = random.Random(f"settings {seed}")
    overrides: dict[str, dict[str, str]] = {str(p): {"state_machine": "log"} for p in LOG_PARTITIONS}
    if rng.random() < 0.5:
        overrides[str(rng.randrange(KV_PARTITIONS))] = {"mode": "write_behind"}
    drawn = {
        "log.segment_bytes": rng.choice([256 * KIB, 1024 * KIB]),
        "snapshot.retain_log_bytes": rng.choice([0, 0, 128 * KIB]),
        "net.peer_send_buffer_bytes": rng.choice([2 * 1024 * KIB, 16 * 1024 * KIB]),
    }
    frame = min(drawn["net.peer_send_buffer_bytes"], 8 * 1024 * KIB)
    return {**SNAPSHOTS, **drawn, "cluster.overrides": overrides, "net.peer_frame_bytes": frame}


async def inject(cluster: WiredCluster, rng: random.Random, seen: Observed, until: float) -> None:
    """The fault schedule: one fault after the other, each undone before the next."""
    all_at_once_due = True
    wires, wires_share = WireFaults(cluster, rng, say), rng.choice(WIRES_SHARES)
    async with Client(cluster.endpoints, timeout=5.0) as client:
        turnover = Turnover(cluster, client, rng, seen.changed, say)
        order: list[Callable[[], Awaitable[None]]] = []
        next_turn = time.monotonic()
        beside: list[asyncio.Future[None]] = []
        while time.monotonic() < until:
            if not order:
                order = rng.sample([turnover.away, turnover.lost_disk, turnover.member, turnover.partitions], 4)
            if next_turn <= time.monotonic() < until - LAST_TURN_S:
                next_turn = time.monotonic() + TURNOVER_S
                act, seen.turns = order.pop(), seen.turns + 1
                if act == turnover.partitions:  # while others are killed and stopped
                    beside.append(asyncio.ensure_future(act()))
                else:
                    await act()
                    await asyncio.to_thread(cluster.wait_serving)
            await asyncio.sleep(rng.uniform(0.5, 2.0))
            last_chance = time.monotonic() > until - ALL_AT_ONCE_BEFORE_END_S
            all_at_once = all_at_once_due and (rng.random() < 0.3 or last_chance)
            all_at_once_due = all_at_once_due and not all_at_once
            dice = 1.0 if all_at_once else rng.random()
            strikes: list[Awaitable[str]] = [wires.strike()] if dice < wires_share + BOTH_SHARE else []
            if dice >= wires_share:
                strikes.append(strike(cluster, rng, seen, all_at_once=all_at_once))
            seen.faults.update(await asyncio.gather(*strikes))
            await asyncio.to_thread(cluster.wait_serving)
        await asyncio.gather(*beside)


async def strike(cluster: LocalCluster, rng: random.Random, seen: Observed, *, all_at_once: bool) -> str:
    """Signals to one node, two or all, and undone; returns what it was."""
    if all_at_once:
        fault, victims, number = "kill all", list(cluster.nodes), signal.SIGKILL
    else:
        leader = await asyncio.to_thread(cluster.leader)
        followers = [n for n in cluster.nodes if n != leader]
        fault, victims, number = rng.choice(
            [
                ("kill leader", [leader], signal.SIGKILL),
                ("kill follower", [rng.choice(followers)], signal.SIGKILL),
                ("kill two", [leader, rng.choice(followers)], signal.SIGKILL),
                ("stop leader", [leader], signal.SIGSTOP),
                ("stop follower", [rng.choice(followers)], signal.SIGSTOP),
            ]
        )
    say(f"  {fault}: {', '.join(victims)}")
    for node in victims:
        await asyncio.to_thread(cluster.kill, node, number)
    if fault == "kill leader":
        seen.leader_deaths_ns.append(seen.history.now_ns())
    await asyncio.sleep(rng.uniform(0.2, 2.0))
    for node in victims:
        if number == signal.SIGSTOP:
            cluster.kill(node, signal.SIGCONT)
        else:
            cluster.restart(node)
    return fault


async def collect(cluster: LocalCluster, seen: Observed) -> None:
    """Everything back up: wait until all nodes are equally far, then read each one."""
    nodes = {node: cluster.addresses[node] for node in cluster.nodes}
    seen.nodes = [*nodes]
    async with Client(list(nodes.values()), timeout=30.0) as client:
        commit = max([(await client.status(node=a))["commit_index"] for a in nodes.values()])
        await client.barrier(commit, scope="all", timeout=30.0)
        for node, address in nodes.items():
            status = await client.status(node=address, digests=True)
            seen.digests[node] = {row[0]: row[2] for row in status["digests"]}
            state: dict[tuple[int, str], int] = {}
            for partition in seen.partitions("kv"):
                entries = [each async for each in client.scan(partition, at_least=commit, node=address)]
                numbers = [(key, value) for key, value in entries if isinstance(value, tuple)]
                state |= {(partition, key.decode()): int(value[0]) for key, value in numbers if not is_account(key)}
                seen.accounts.setdefault(node, {})[partition] = accounts_of(numbers)
            seen.states[node] = state
            for partition in [*seen.partitions("kv"), *seen.partitions("log")]:
                rows: list[tuple[int, int, bytes]] = []
                longest: list[Row] = []
                async for batch in client.tail(partition, node=address):
                    rows.append((batch.first_index, batch.global_index, bytes(batch.records.data)))
                    longest += rows_of(batch)
                    if partition in seen.partitions("log") and node == cluster.nodes[0]:
                        payloads = enumerate(batch.records.payloads(), batch.first_index)
                        seen.records.setdefault(partition, []).extend((i, p.decode()) for i, p in payloads)
                seen.logs.setdefault(partition, {})[node] = rows
                seen.rows[partition] = max(seen.rows.get(partition, []), longest, key=len)


async def play(cluster: WiredCluster, *, seed: int, seconds: float) -> Observed:
    """Load and faults for ``seconds``, then quiet, then collect."""
    rng = random.Random(seed)
    seen = Observed(History(time.monotonic_ns), seed=seed, seconds=seconds)
    seen.removes = bool(settings_of(seed)["snapshot.retain_log_bytes"])
    clients = [Client(cluster.endpoints) for _ in range(CLIENTS)]
    told = Told()
    loads: list[Workload | Readings] = []
    work: list[asyncio.Task[None]] = []
    for k, client in enumerate(clients):
        load = Workload(
            client,
            seen.history,
            k,
            random.Random(rng.random()),
            created=seen.changed.living,
            requests=seen.requests,
            partners=clients,
            addresses=lambda: [cluster.addresses[node] for node in cluster.nodes],
            problems=seen.moving,
        )
        reads = Readings(
            client,
            seen.history,
            k,
            random.Random(rng.random()),
            told=told,
            processes=CLIENTS,
            partitions=KV_PARTITIONS,
            addresses=lambda: [cluster.addresses[node] for node in cluster.nodes],
        )
        loads += [load, reads]
        work += [asyncio.create_task(load.run(CONCURRENCY)), asyncio.create_task(reads.run())]
    stopped = asyncio.Event()
    waits = Waits(cluster, seen.history, seen.waited, random.Random(rng.random()), lambda: seen.changed.steps)
    work += [asyncio.create_task(waits.poll(stopped)), asyncio.create_task(waits.barriers(stopped))]
    viewer = Client(cluster.endpoints)
    viewing = watch_views(viewer, seen.history, seen.views, KV_PARTITIONS, random.Random(rng.random()))
    watching = [asyncio.create_task(waits.follow()), asyncio.create_task(viewing)]
    streams = Streams(cluster.endpoints, random.Random(rng.random()), kv=range(KV_PARTITIONS), logs=LOG_PARTITIONS)
    seen.followed = streams.followed
    try:
        await inject(cluster, rng, seen, time.monotonic() + seconds)
        for each in loads:
            each.stopped = True
        stopped.set()
        await asyncio.gather(*work)
        await collect(cluster, seen)
        await streams.caught_up({p: rows[-1].index for p, rows in seen.rows.items() if rows}, within_s=CATCH_UP_S)
    finally:
        for task in (*work, *watching):
            task.cancel()
        ends = await asyncio.gather(*work, *watching, return_exceptions=True)
        seen.failed += [repr(end) for end in ends if isinstance(end, Exception)]
        await streams.leave()
        for client in (*clients, viewer):
            await client.close()
    return seen


def say(line: str) -> None:
    """To the person watching."""
    talk(f"{time.monotonic() - BEGAN:6.1f} {line}")


def run(*, seconds: float, seed: int | None, keep: bool, directory: Path) -> int:
    """0: everything held; 1: something did not, and its files are kept in ``directory``.

    ``seed`` None: a new one. ``keep``: they stay when all is well, too.
    """
    seed = seed if seed is not None else random.SystemRandom().randrange(1 << 32)
    directory = directory.absolute() / f"run-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    say(f"chaos: seed {seed}, {seconds:.0f} s, data in {directory}")
    well = False
    with Wires() as wires:
        cluster = WiredCluster(wires, partitions=PARTITIONS, directory=directory, settings=settings_of(seed))
        started = time.monotonic()
        try:
            cluster.start()
            seen = asyncio.run(play(cluster, seed=seed, seconds=seconds))
            seen.seconds = time.monotonic() - started
            seen.history.write(directory / "history.jsonl")
            words = ("snapshot_complete", "compacted", "starting_anew")
            logs = {node: cluster.log(node).read_text() for node in cluster.addresses}
            seen.logged = {node: log.splitlines() for node, log in logs.items()}
            told = {word: sum(log.count(f'"{word}"') for log in logs.values()) for word in words}
            seen.installs = told["starting_anew"]
            say(", ".join(f"{word} {count}" for word, count in told.items()))
            cluster.stop()
            seen.effects = saved_effects({node: cluster.data_dirs[node] for node in seen.nodes}, seen.partitions("log"))
            well = report(seen, check(seen))
        finally:
            cluster.stop()
            if well and not keep:
                shutil.rmtree(directory, ignore_errors=True)
            else:
                say(f"kept: {directory}\nreplay: logboom chaos run --seed {seed} --seconds {seconds:.0f}")
    return 0 if well else 1


if __name__ == "__main__":
    main(["chaos", "run", *sys.argv[1:]])
