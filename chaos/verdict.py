"""What a fault run has recorded, what was wrong with it, and how that is told."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.checkers import availability, exactly_once, freshness, linearizable, log_lines, streams, together, watermarks
from chaos.checkers.streams import Followed, Row
from chaos.checkers.together import View
from chaos.effects import Effect
from chaos.history import History, Operation, of_kind
from chaos.transfers import MOVED, unbalanced
from chaos.turnover import Changed
from chaos.waits import Waited
from chaos.workload import KV_PARTITIONS, LOG_PARTITIONS
from logboom.cli.common import unread_too

GAP_MAX_S = 10.0
RESUME_GOAL_S = 2.0
TURNS_MIN = 4
"""With so many each kind was there."""
Results = list[tuple[str, list[str]]]
"""Every check by name, with what it found."""


@dataclass
class Observed:
    """What a run leaves for the checkers."""

    history: History
    seed: int = 0
    seconds: float = 1.0
    removes: bool = False
    """Records of ``log`` partitions go in time."""
    requests: list[list[Operation]] = field(default_factory=list)
    """Of several commands each."""
    views: list[View] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)
    waited: Waited = field(default_factory=Waited)
    faults: Counter[str] = field(default_factory=Counter)
    leader_deaths_ns: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    """Members at the end: each is looked at."""
    states: dict[str, dict[tuple[int, str], int]] = field(default_factory=dict)
    """By node, and by partition and key: a command that took effect in another partition is found there."""
    accounts: dict[str, dict[int, dict[bytes, Any]]] = field(default_factory=dict)
    """By node and partition."""
    moving: list[str] = field(default_factory=list)
    """What those who moved something between accounts saw to be wrong."""
    logs: dict[int, dict[str, list[tuple[int, int, bytes]]]] = field(default_factory=dict)
    """By partition and node: what it still has, from the oldest batch on."""
    rows: dict[int, list[Row]] = field(default_factory=dict)
    """By partition: as much as any node still has, as those who follow have it."""
    records: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    effects: dict[int, dict[str, Effect]] = field(default_factory=dict)
    """By ``log`` partition and node: what it has applied, as it saved that when it was stopped."""
    digests: dict[str, dict[int, bytes]] = field(default_factory=dict)
    changed: Changed = field(default_factory=Changed)
    failed: list[str] = field(default_factory=list)
    """What ended a part of the load, which nothing should."""
    logged: dict[str, list[str]] = field(default_factory=dict)
    """By node."""
    installs: int = 0
    turns: int = 0
    """Of what takes long; each kind once before any comes again."""

    def partitions(self, machine: str) -> list[int]:
        """Of this state machine, that live at the end."""
        begun = range(KV_PARTITIONS) if machine == "kv" else LOG_PARTITIONS
        return [*begun, *(p for p, each in self.changed.living() if each == machine)]


def check(seen: Observed) -> Results:
    """Everything."""
    operations = seen.history.operations
    gap = availability.longest_gap_s(operations)
    resumed = availability.resumed_s(operations, seen.leader_deaths_ns)
    return [
        ("conclusive", [*availability.conclusive(operations, seen.seconds), *seen.failed]),
        ("writes resume", [f"no write for {gap:.1f} s"] if gap > GAP_MAX_S else []),
        ("leader deaths survived", [f"writes resumed after {s:.1f} s" for s in resumed if s > GAP_MAX_S]),
        *_of_states(seen),
        *_of_logs(seen),
        (
            "same state",
            watermarks.digests_equal(
                seen.digests, nodes=seen.nodes, partitions=[*seen.partitions("kv"), *seen.partitions("log")]
            ),
        ),
        ("watermarks never go back", watermarks.monotonic(seen.waited.samples)),
        ("watermarks that are followed", [*watermarks.monotonic(seen.waited.followed), *seen.waited.problems]),
        ("barriers keep their word", watermarks.barriers(seen.waited.kept, seen.waited.samples)),
        ("nodes and partitions come and go", [*seen.changed.problems, *_nothing_came(seen)]),
        ("registers linearizable", linearizable.registers(of_kind(operations, "get", "put", "cas"))),
        ("reads as new as promised", freshness.reads(of_kind(operations, "tally", "look"))),
        ("views hold whole requests", together.views(seen.requests, seen.views)),
        ("transfers are seen as a whole", seen.moving),
        ("nodes log no errors", [each for logged in seen.logged.items() for each in log_lines.unexpected(*logged)]),
    ]


def _of_states(seen: Observed) -> Results:
    """What is in the states of each node."""
    operations = seen.history.operations
    adds = [op for op in of_kind(operations, "add") if op.partition not in seen.changed.doomed]
    tallies = of_kind(operations, "tally")
    opened = {op.partition for op in adds if MOVED in op.key and op.outcome == "ok"}
    counted = {(op.partition, op.key) for op in tallies}
    results: Results = []
    for node, state in seen.states.items():
        single = {at: value for at, value in state.items() if at not in counted}
        results += [
            (f"exactly once on {node}", [*exactly_once.counters(adds, single), *freshness.tallies(tallies, state)]),
            (f"whole requests on {node}", together.whole(seen.requests, state)),
        ]
    for node, accounts in seen.accounts.items():
        wrong = [
            f"partition {partition}: {problem}"
            for partition, values in accounts.items()
            for problem in unbalanced(values, opened=partition in opened)
        ]
        results.append((f"accounts on {node}", wrong))
    return results


def _of_logs(seen: Observed) -> Results:
    """What is in the logs, and what those had who followed them."""
    operations, results = seen.history.operations, list[tuple[str, list[str]]]()
    for partition in seen.partitions("log"):
        mine = [op for op in of_kind(operations, "append") if op.partition == partition]
        records = seen.records.get(partition, [])
        first = records[0][0] if records and seen.removes else 1
        results.append((f"log {partition}", exactly_once.appends(mine, records, -1, first=first)))
        results.append((f"log {partition}: once", _once(mine, records, seen.effects.get(partition, {}), first)))
        results.append((f"log {partition}: receipts", exactly_once.receipts(mine, records, first=first)))
    results += [(f"same log {partition}", _agree(logs)) for partition, logs in seen.logs.items()]
    begins = {p: begin for p, logs in seen.logs.items() if (begin := _begin(logs)) is not None}
    for each in seen.followed:
        removed = seen.removes or not set(each.partitions) <= set(LOG_PARTITIONS)  # those with state are compacted
        results.append(
            (f"{each.name}: all, once, in order", streams.check(each, seen.rows, removed=removed, begins=begins))
        )
    return [*results, ("streams agree", streams.agree(seen.followed))]


def _once(
    appends: Sequence[Operation], records: Sequence[tuple[int, str]], effects: Mapping[str, Effect], first: int
) -> list[str]:
    """By those that have saved all: whoever was slow to stop was killed, and says less."""
    least = max([records[-1][0] if records else 0, *(op.index for op in appends if op.outcome == "ok")])
    whole = {node: each.records for node, each in effects.items() if each.position.applied_index >= least}
    if not whole:
        return [f"nobody has saved what took effect up to {least}: {dict(effects)}"]
    return [
        f"{node}: {problem}"
        for node, applied in whole.items()
        for problem in exactly_once.took_effect(appends, records, applied, first=first)
    ]


def _nothing_came(seen: Observed) -> list[str]:
    """A run that is long enough and did too little proves nothing."""
    counts = {**seen.changed.counts, "installs": seen.installs}
    wanted = ("installs", "disks lost", "members added", "partitions destroyed") if seen.turns >= TURNS_MIN else ()
    return [f"no {each}" for each in wanted if not counts.get(each)]


def _begin(logs: Mapping[str, Sequence[tuple[int, int, bytes]]]) -> int | None:
    """From there on all nodes have everything. None: one has nothing any more."""
    return max(rows[0][0] for rows in logs.values()) if logs and all(logs.values()) else None


def _agree(logs: Mapping[str, Sequence[tuple[int, int, bytes]]]) -> list[str]:
    """From where all of them still have something."""
    begin = max((rows[0][0] for rows in logs.values() if rows), default=0)
    return exactly_once.agreement({node: [row for row in rows if row[0] >= begin] for node, rows in logs.items()})


def report(seen: Observed, results: Results) -> bool:
    """Print the outcome; True if all is well."""
    operations, seconds = seen.history.operations, seen.seconds
    outcomes = Counter(op.outcome for op in operations)
    lines: list[str] = []
    emit = lines.append
    emit(f"seed {seen.seed}: {sum(seen.faults.values())} faults in {seconds:.0f} s: {dict(seen.faults)}")
    emit(
        f"{len(operations)} operations ({len(operations) / seconds:.0f}/s): {outcomes['ok']} ok, "
        f"{outcomes['fail']} refused, {outcomes['info']} unknown; "
        f"longest write gap {availability.longest_gap_s(operations):.2f} s, "
        f"{availability.longest_gap_began_s(operations):.1f} s after the first operation; "
        f"{len(seen.waited.samples)} watermark samples, {len(seen.waited.kept)} barriers, {len(seen.views)} views"
    )
    followed = ", ".join(f"{each.name} {len(each.rows)}" for each in seen.followed)
    emit(f"followed: {followed}; told of records that are gone {sum(len(each.gone) for each in seen.followed)} times")
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
    with unread_too():
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()  # what nobody reads is noticed now, not when the process ends
    return not any(problems for _, problems in results)
