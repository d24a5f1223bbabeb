"""What is measured, in which shapes, and how good logboom has to be at it.

A *goal* is what the project is after, a *stretch* what it would like, a *floor* what it must not miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from bench.load import Load
from bench.systems.etcd import TXN_OPS_MAX
from bench.targets import PARTITIONS

BLOCK: Final = 1_000
"""Records in logboom's blocks, SETs in Redis' pipelines."""
LARGE_BLOCK: Final = 4_000
COPY_ROWS: Final = 10_000
PUBLISHES: Final = 100
DISK_BLOCK: Final = 1 << 20
"""Bytes; also of the blocks of larger commands."""
KILLED: Final = "leader killed"
FIRST_WRITE: Final = "first_write_ms"
FIGURES: Final[Mapping[str, str]] = {
    "commands_per_s": "/s",
    "until_applied_per_s": "/s",
    "p50_ms": "ms",
    "p99_ms": "ms",
    "cpu_us_per_command": "us",
}
"""Those of ``Measured`` that are shown, and their units."""


@dataclass(frozen=True)
class Goal:
    """A bound on one of logboom's figures: on its ratio to a peer's in the same run, or on itself."""

    figure: str
    peer: str | None = None
    """None: the figure itself is bounded."""
    at_least: float | None = None
    at_most: float | None = None
    kind: Literal["goal", "stretch", "floor"] = "goal"
    of: Literal["median", "max"] = "median"
    """``max``: the worst, and not the median, of all runs."""

    def value(self, systems: Mapping[str, Mapping[str, float]]) -> float | None:
        """What the bound is about; None if it was not measured."""
        ours = systems.get("logboom")
        theirs = {self.of: 1.0} if self.peer is None else systems.get(self.peer)
        return None if ours is None or theirs is None else ours[self.of] / max(theirs[self.of], 1e-9)

    def met(self, value: float | None) -> bool:
        """The bound holds; what was not measured does not."""
        if value is None:
            return False
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Work:
    """One thing to do, in the shapes among which each system's best is chosen before anything counts."""

    name: str
    shapes: Mapping[str, tuple[Load, ...]]
    """By system, the likely best first; a system that is not here does not do it. Equal ones are measured once."""
    goals: tuple[Goal, ...] = ()
    figure: str = "commands_per_s"
    """What the best shape is best in."""


def _shapes(system: str, rows: list[tuple[int, int, int]], **rest: Any) -> tuple[Load, ...]:
    """From rows of operations under way, client processes and connections of each."""
    rest = {"partitions": 1, **rest}
    return tuple(Load(system, (), concurrency=c, processes=p, connections=n, **rest) for c, p, n in rows)


def _logboom(rows: list[tuple[int, int, int]], *, wait: str = "committed", **rest: Any) -> tuple[Load, ...]:
    return _shapes("logboom", rows, wait=wait, **{"partitions": PARTITIONS, **rest})


def _disk(value_bytes: int) -> tuple[Load, ...]:
    # Some blocks wait at each writer, so that none is ever idle.
    return _shapes("disk", [(4, 1, 1)], records=DISK_BLOCK // value_bytes, value_bytes=value_bytes)


def _apart(shapes: tuple[Load, ...]) -> tuple[Load, ...]:
    """With and without CPUs of their own for the followers: a lone command waits for nobody's turn then."""
    return (*(replace(shape, apart=True) for shape in shapes), *shapes)


def _floor(figure: str, ratio: float) -> Goal:
    """Against etcd: so many times better, as the figure has it."""
    if FIGURES.get(figure) == "/s":
        return Goal(figure, "etcd", at_least=ratio, kind="floor")
    return Goal(figure, "etcd", at_most=1 / ratio, kind="floor")


def _bulk() -> list[Work]:
    etcd = _shapes("etcd", [(128, 1, 2), (64, 1, 1), (16, 1, 1), (64, 2, 1)], records=TXN_OPS_MAX)
    redis = _shapes("redis", [(4, 1, 4), (16, 1, 8), (2, 1, 2), (16, 2, 4)], records=BLOCK)
    postgres = _shapes("postgres", [(4, 1, 4), (2, 1, 2), (8, 2, 4)], records=COPY_ROWS)
    nats = (
        *_shapes("nats", [(40, 1, 1), (100, 1, 1)], records=PUBLISHES, partitions=PARTITIONS),
        *_shapes("nats", [(40, 1, 1)], records=PUBLISHES),
    )
    blocks = [(32, 1, 1), (16, 1, 1), (32, 2, 1)]
    rate = "commands_per_s"
    log = {
        "disk": _disk(256),
        "etcd": etcd,
        "postgres": postgres,
        "redis": redis,
        "nats": nats,
        "logboom": (
            *_logboom(blocks, records=BLOCK, machine="log"),
            *_logboom([(16, 1, 1)], records=LARGE_BLOCK, machine="log"),
        ),
    }
    kv = {"etcd": etcd, "redis": redis}
    found = [
        Work(
            "bulk, log, committed",
            log,
            (
                Goal(rate, "postgres", at_least=2.5),
                Goal(rate, "etcd", at_least=12),
                Goal("cpu_us_per_command", at_most=4),
                _floor(rate, 3),
            ),
        ),
    ]
    for size in (1024, 16 * 1024):
        mine = _logboom(blocks, records=DISK_BLOCK // size, machine="log", value_bytes=size)
        goals = (Goal(rate, "disk", at_least=0.8),)
        found.append(Work(f"bulk, log, {size // 1024} KiB", {"disk": _disk(size), "logboom": mine}, goals))
    deep = _logboom([(32, 1, 1), (16, 1, 1), (64, 1, 1)], records=BLOCK, wait="applied")
    return [
        *found,
        Work("bulk, kv, committed", {**kv, "logboom": _logboom(blocks, records=BLOCK)}, (_floor(rate, 1),)),
        Work(
            "bulk, kv, applied",
            {**kv, "logboom": deep},
            (Goal(rate, "etcd", at_least=3), _floor(rate, 1)),
        ),
    ]


def _singles(at_once: int, goals: tuple[Goal, ...], machine: str = "kv") -> Work:
    c = at_once
    # Every partition that a group touches costs a sync; with few commands under way one partition is best.
    mine = (*_logboom([(c, 1, 1)], partitions=1, machine=machine), *_logboom([(c, 1, 1)], machine=machine))
    shapes = {
        "etcd": _shapes("etcd", [(c, 1, 4), (c, 1, 1), (c, 2, 2)]),
        # A session commits one insert at a time, so its connections are what goes on at once.
        "postgres": _shapes("postgres", [(c, 1, n) for n in (64, 32, 128) if n <= c]),
        "redis": _shapes("redis", [(c, 1, 1), (c, 1, 4), (c, 2, 1)]),
        "nats": (*_shapes("nats", [(c, 1, 1), (c, 2, 1)]), *_shapes("nats", [(c, 1, 1)], partitions=PARTITIONS)),
        "logboom": mine,
    }
    return Work(f"{c:,} at once, {machine}", shapes, goals)


def _apart_from_each_other(clients: int) -> Work:
    """Each with a connection of its own, and one command under way: nobody gathers what leaves at the same time."""
    c = clients
    shapes = {name: _shapes(name, [(c, 1, c)]) for name in ("etcd", "postgres", "redis")}
    for name, more in (("nats", {}), ("logboom", {"machine": "log", "wait": "committed"})):
        shapes[name] = tuple(
            shape
            for partitions in (1, PARTITIONS)
            for shape in _shapes(name, [(c, 1, c)], partitions=partitions, **more)
        )
    return Work(f"{c} clients, log", shapes, (Goal("commands_per_s", "etcd", at_least=1, kind="stretch"),))


def _one() -> Work:
    shapes = {name: _apart(_shapes(name, [(1, 1, 1)])) for name in ("etcd", "postgres", "redis", "nats")}
    p50 = "p50_ms"
    goals = (
        Goal(p50, "etcd", at_most=0.6),
        Goal(p50, "redis", at_most=1, kind="stretch"),
        Goal("p99_ms", "redis", at_most=1, kind="stretch"),
        _floor(p50, 1),
    )
    mine = _apart((*_logboom([(1, 1, 1)], partitions=1), *_logboom([(1, 1, 1)])))
    return Work("one at a time", {**shapes, "logboom": mine}, goals, figure=p50)


def works() -> list[Work]:
    """All that are loads, in their order: light ones first, so that what heavy ones leave behind is not measured."""
    rate = "commands_per_s"
    many = (Goal(rate, "etcd", at_least=7), Goal(rate, "nats", at_least=1.5), _floor(rate, 1))
    few = _singles(64, (_floor(rate, 1),))
    return [_one(), few, _apart_from_each_other(64), _singles(1000, many, "log"), _singles(1000, many), *_bulk()]


KILLED_GOALS: Final = (
    Goal(FIRST_WRITE, at_most=400),
    Goal(FIRST_WRITE, at_most=1000, of="max"),
    _floor(FIRST_WRITE, 1),
)


def goals_of(work: str, figure: str) -> tuple[Goal, ...]:
    """Those that a row of the table is held to."""
    goals = {each.name: each.goals for each in works()} | {KILLED: KILLED_GOALS}
    return tuple(goal for goal in goals.get(work, ()) if goal.figure == figure)
