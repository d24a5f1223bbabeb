"""Reports in the form that the pictures are drawn from. The figures are made up."""

from __future__ import annotations

from typing import Any

SYSTEMS = ("logboom", "etcd", "postgres", "redis", "nats", "disk")


def _row(work: str, figure: str, unit: str, medians: dict[str, float], goals: list[Any]) -> dict[str, Any]:
    systems = {name: {"median": m, "min": m * 0.9, "max": m * 1.2} for name, m in medians.items()}
    return {"work": work, "figure": figure, "unit": unit, "systems": systems, "goals": goals}


def latest() -> dict[str, Any]:
    bulk = dict(zip(SYSTEMS, (766_800.0, 76_774.0, 210_000.0, 380_000.0, 155_000.0, 1_100_000.0), strict=True))
    lone = dict(zip(SYSTEMS, (0.68, 0.72, 0.61, 0.35, 0.9, 0.12), strict=True))
    few = {"logboom": 26_675.0, "etcd": 10_335.0, "redis": 900.0}
    dead = {"logboom": 191.9, "etcd": 1229.0, "nats": 4100.0}
    goal = [{"against": "etcd", "at_least": 3}]
    return {
        "taken": "2026-11-21T00:00:00Z",
        "machine": {"cpus": 2},
        "versions": dict.fromkeys(SYSTEMS, "1"),
        "settings": {},
        "table": [
            _row("bulk, log, committed", "commands_per_s", "/s", bulk, goal),
            _row("bulk, log, committed", "p50_ms", "ms", lone, []),
            _row("bulk, kv, applied", "commands_per_s", "/s", {k: v / 3 for k, v in bulk.items() if k != "disk"}, goal),
            _row("64 at once, kv", "commands_per_s", "/s", few, goal),
            _row("1,000 at once, kv", "commands_per_s", "/s", {"logboom": 84_147.0, "etcd": 20_729.0}, goal),
            _row("one at a time", "commands_per_s", "/s", {k: 1000 / v for k, v in lone.items()}, []),
            _row("one at a time", "p50_ms", "ms", lone, goal),
            _row("leader killed", "to the first write", "ms", dead, goal),
        ],
    }


def _curve(x: str, unit: str, *points: tuple[float, float, str]) -> dict[str, Any]:
    rows = [{"x": a, "y": y, "low": y * 0.9, "high": y * 1.1, "series": series} for a, y, series in points]
    return {"x": x, "unit": unit, "points": rows}


def curves() -> dict[str, Any]:
    return {
        "curves": {
            "bulk over partitions": _curve("partitions", "commands/s", (1, 5e5, ""), (8, 7e5, ""), (1000, 5e5, "")),
            "bulk over nodes": _curve("nodes", "commands/s", (1, 2e6, ""), (3, 1e6, ""), (5, 5e5, "")),
            "bytes over size": _curve("bytes", "MB/s", (16, 100, ""), (4096, 180, ""), (1 << 20, 210, "")),
            "read over length": _curve("GB", "ms", (1, 6, "cold"), (8, 6, "cold"), (1, 2, "warm"), (8, 2, "warm")),
            "disk over time": {**_curve("s", "MB", *((k, 40 + k % 3, "n1") for k in range(1, 60))), "linear": True},
        }
    }
