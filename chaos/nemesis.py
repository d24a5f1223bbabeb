"""A fault run on real processes: ``python -m chaos.nemesis --seconds 60 --seed 1``.

Three nodes on loopback, four clients, and a seeded sequence of kill -9 and SIGSTOP on leader
and followers, two at once, all at once; in between a node is away for long, another loses its disk, members
are replaced, and partitions come and go. Then everything that was recorded is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.checkers import availability, exactly_once, linearizable, watermarks
from chaos.checkers.watermarks import Sample
from chaos.history import History, of_kind
from chaos.turnover import Changed, Turnover
from chaos.workload import KV_PARTITIONS, LOG_PARTITIONS, Workload
from logboom import Client, LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB

CLIENTS = 4
CONCURRENCY = 3
PARTITIONS = KV_PARTITIONS + len(LOG_PARTITIONS)
GAP_MAX_S = 10.0
RESUME_GOAL_S = 2.0
ALL_AT_ONCE_BEFORE_END_S = 8.0
TURNOVER_S = 13.0
"""Something that takes long begins so often,"""
LAST_TURN_S = 8.0
"""and not so shortly before the end."""
TURNS_MIN = 4
"""With so many each kind was there."""
SNAPSHOTS = {
    "snapshot.age_ms": 2000,
    "snapshot.retain_bytes": 0,
    "log.segment_bytes": 1024 * KIB,
    "log.batch_bytes_max": 512 * KIB,
    "raft.journal_segment_bytes": 64 * KIB,
    "scrub.pause_ms": 3000,
}
"""Often, and of small files: who is away for a while is given one."""


@dataclass
class Observed:
    """What a run leaves for the checkers."""

    history: History
    samples: list[Sample] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    leader_deaths_ns: list[int] = field(default_factory=list)
    states: dict[str, dict[str, int]] = field(default_factory=dict)
    logs: dict[int, dict[str, list[tuple[int, int, bytes]]]] = field(default_factory=dict)
    """By partition and node: what it still has, from the oldest batch on."""
    records: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    digests: dict[str, dict[int, bytes]] = field(default_factory=dict)
    barriers: list[str] = field(default_factory=list)
    changed: Changed = field(default_factory=Changed)
    installs: int = 0
    turns: int = 0
    """Of what takes long; each kind once before any comes again."""

    def partitions(self, machine: str) -> list[int]:
        """Of this state machine, that live at the end."""
        begun = range(KV_PARTITIONS) if machine == "kv" else LOG_PARTITIONS
        return [*begun, *(p for p, each in self.changed.living() if each == machine)]


async def inject(cluster: LocalCluster, rng: random.Random, seen: Observed, until: float) -> None:
    """The fault schedule: one fault after the other, each undone before the next."""
    all_at_once_due = True
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
            await strike(cluster, rng, seen, all_at_once=all_at_once)
        await asyncio.gather(*beside)


async def strike(cluster: LocalCluster, rng: random.Random, seen: Observed, *, all_at_once: bool) -> None:
    """Signals to one node, two or all, and undone."""
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
    seen.faults[fault] += 1
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
    await asyncio.to_thread(cluster.wait_serving)


async def poll_watermarks(cluster: LocalCluster, seen: Observed, stopped: asyncio.Event) -> None:
    """Sample every node's watermarks; check now and then that a barrier kept its word."""
    async with Client(cluster.endpoints, timeout=1.0) as client:
        while not stopped.is_set():
            for node in list(cluster.nodes):
                try:
                    marks = await client.watermarks(node=cluster.addresses[node], timeout=0.3)
                except LogboomError:
                    continue
                seen.samples += [
                    Sample(node, m.partition_id, m.log_index, m.durable_index, m.applied_index, m.applied_global_index)
                    for m in marks
                ]
                await check_barrier(client, cluster.addresses[node], seen)
            await asyncio.sleep(0.1)


async def check_barrier(client: Client, address: str, seen: Observed) -> None:
    """A barrier at the newest receipt: when it says reached, every partition must be there."""
    target = max((op.global_index for op in seen.history.operations[-200:]), default=0)
    try:
        reached = await client.barrier(target, node=address, timeout=0.5)
    except LogboomError:
        return
    seen.barriers += [
        f"barrier at {target} answered while partition {m.partition_id} was at {m.applied_global_index}"
        for m in reached.watermarks
        if m.applied_global_index < target
    ]


async def collect(cluster: LocalCluster, seen: Observed) -> None:
    """Everything back up: wait until all nodes are equally far, then read each one."""
    nodes = {node: cluster.addresses[node] for node in cluster.nodes}
    async with Client(list(nodes.values()), timeout=30.0) as client:
        commit = max([(await client.status(node=a))["commit_index"] for a in nodes.values()])
        await client.barrier(commit, scope="all", timeout=30.0)
        for node, address in nodes.items():
            status = await client.status(node=address, digests=True)
            seen.digests[node] = {row[0]: row[2] for row in status["digests"]}
            state: dict[str, int] = {}
            for partition in seen.partitions("kv"):
                async for key, value in client.scan(partition, at_least=commit, node=address):
                    if isinstance(value, tuple):
                        state[key.decode()] = int(value[0])
            seen.states[node] = state
            for partition in [*seen.partitions("kv"), *seen.partitions("log")]:
                rows: list[tuple[int, int, bytes]] = []
                async for batch in client.tail(partition, node=address):
                    rows.append((batch.first_index, batch.global_index, bytes(batch.records.data)))
                    if partition in seen.partitions("log") and node == cluster.nodes[0]:
                        payloads = enumerate(batch.records.payloads(), batch.first_index)
                        seen.records.setdefault(partition, []).extend((i, p.decode()) for i, p in payloads)
                seen.logs.setdefault(partition, {})[node] = rows


def check(seen: Observed, seconds: float) -> list[tuple[str, list[str]]]:
    """Every check by name, with what it found."""
    operations = seen.history.operations
    adds = [op for op in of_kind(operations, "add") if op.partition not in seen.changed.doomed]
    gap = availability.longest_gap_s(operations)
    resumed = availability.resumed_s(operations, seen.leader_deaths_ns)
    results = [
        ("conclusive", availability.conclusive(operations, seconds)),
        ("writes resume", [f"no write for {gap:.1f} s"] if gap > GAP_MAX_S else []),
        ("leader deaths survived", [f"writes resumed after {s:.1f} s" for s in resumed if s > GAP_MAX_S]),
        *[(f"exactly once on {node}", exactly_once.counters(adds, state)) for node, state in seen.states.items()],
    ]
    for partition in seen.partitions("log"):
        mine = [op for op in of_kind(operations, "append") if op.partition == partition]
        records = seen.records.get(partition, [])
        results.append((f"log {partition}", exactly_once.appends(mine, records, -1)))
        results.append((f"log {partition}: receipts", exactly_once.receipts(mine, records)))
    results += [
        *[(f"same log {partition}", _agree(logs)) for partition, logs in seen.logs.items()],
        ("same state", watermarks.digests_equal(seen.digests)),
        ("watermarks never go back", watermarks.monotonic(seen.samples)),
        ("barriers keep their word", seen.barriers),
        ("nodes and partitions come and go", [*seen.changed.problems, *_nothing_came(seen)]),
        ("registers linearizable", linearizable.registers(of_kind(operations, "get", "put", "cas"))),
    ]
    return results


def _nothing_came(seen: Observed) -> list[str]:
    """A run that is long enough and did too little proves nothing."""
    counts = {**seen.changed.counts, "installs": seen.installs}
    wanted = ("installs", "disks lost", "members added", "partitions destroyed") if seen.turns >= TURNS_MIN else ()
    return [f"no {each}" for each in wanted if not counts.get(each)]


def _agree(logs: Mapping[str, Sequence[tuple[int, int, bytes]]]) -> list[str]:
    """From where all of them still have something."""
    begin = max((rows[0][0] for rows in logs.values() if rows), default=0)
    return exactly_once.agreement({node: [row for row in rows if row[0] >= begin] for node, rows in logs.items()})


async def play(cluster: LocalCluster, *, seed: int, seconds: float) -> Observed:
    """Load and faults for ``seconds``, then quiet, then collect."""
    rng = random.Random(seed)
    seen = Observed(History(time.monotonic_ns))
    clients = [Client(cluster.endpoints) for _ in range(CLIENTS)]
    loads = [
        Workload(c, seen.history, k, random.Random(rng.random()), created=seen.changed.living)
        for k, c in enumerate(clients)
    ]
    running = [asyncio.ensure_future(load.run(CONCURRENCY)) for load in loads]
    stopped = asyncio.Event()
    poller = asyncio.ensure_future(poll_watermarks(cluster, seen, stopped))
    try:
        await inject(cluster, rng, seen, time.monotonic() + seconds)
        for load in loads:
            load.stopped = True
        await asyncio.gather(*running)
        stopped.set()
        await poller
        await collect(cluster, seen)
    finally:
        for task in (*running, poller):
            task.cancel()
        for client in clients:
            await client.close()
    return seen


def say(line: str) -> None:
    """To the person watching."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def report(seen: Observed, results: list[tuple[str, list[str]]], *, seed: int, seconds: float) -> bool:
    """Print the outcome; True if all is well."""
    operations = seen.history.operations
    outcomes = Counter(op.outcome for op in operations)
    emit: Callable[[str], object] = lambda line: sys.stdout.write(line + "\n")  # noqa: E731 - four lines of output
    emit(f"seed {seed}: {sum(seen.faults.values())} faults in {seconds:.0f} s: {dict(seen.faults)}")
    emit(
        f"{len(operations)} operations ({len(operations) / seconds:.0f}/s): {outcomes['ok']} ok, "
        f"{outcomes['fail']} refused, {outcomes['info']} unknown; "
        f"longest write gap {availability.longest_gap_s(operations):.2f} s; {len(seen.samples)} watermark samples"
    )
    counted = ", ".join(f"{each} {count}" for each, count in seen.changed.counts.items()) or "nothing"
    emit(f"came and went: {counted}; {seen.installs} nodes made anew from a snapshot")
    resumed = availability.resumed_s(operations, seen.leader_deaths_ns)
    slow = sum(each > RESUME_GOAL_S for each in resumed)
    emit(
        f"after {len(resumed)} leader deaths writes resumed in {', '.join(f'{each:.2f}' for each in resumed) or '-'} s"
        f" ({slow} over the goal of {RESUME_GOAL_S:.0f} s)"
    )
    for name, problems in results:
        emit(f"  {'FAIL' if problems else 'ok  '} {name}")
        for problem in problems[:10]:
            emit(f"         {problem}")
    return not any(problems for _, problems in results)


def main() -> int:
    """0: everything held; 1: something did not, and its files are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="replays a run's schedule (default: a new one)")
    parser.add_argument("--dir", type=Path, default=Path(".chaos"), help="where data and history go")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    directory = args.dir.absolute() / f"run-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    say(f"chaos: seed {seed}, {args.seconds:.0f} s, data in {directory}")
    overrides = {str(p): {"state_machine": "log"} for p in LOG_PARTITIONS}
    settings = {"cluster.overrides": overrides, **SNAPSHOTS}
    cluster = LocalCluster(partitions=PARTITIONS, directory=directory, settings=settings)
    started = time.monotonic()
    well = False
    try:
        cluster.start()
        seen = asyncio.run(play(cluster, seed=seed, seconds=args.seconds))
        elapsed = time.monotonic() - started
        seen.history.write(directory / "history.jsonl")
        words = ("snapshot_complete", "compacted", "starting_anew")
        told = {word: sum(cluster.log(n).read_text().count(f'"{word}"') for n in cluster.addresses) for word in words}
        seen.installs = told["starting_anew"]
        say(", ".join(f"{word} {count}" for word, count in told.items()))
        well = report(seen, check(seen, elapsed), seed=seed, seconds=elapsed)
    finally:
        cluster.stop()
        if well:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"kept: {directory}\nreplay: python -m chaos.nemesis --seed {seed} --seconds {args.seconds:.0f}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
