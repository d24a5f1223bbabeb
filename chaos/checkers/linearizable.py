"""Is a register's history linearizable? A Wing-Gong search with Lowe's memory of visited states, per key.

An operation whose outcome is unknown may take effect at any time after it began, or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from chaos.history import Operation

FOREVER: Final = 1 << 62
STATES_MAX: Final = 400_000


def registers(operations: Iterable[Operation]) -> list[str]:
    """``put`` (value), ``cas`` ([expected, value], result true or false), ``get`` (result): per key."""
    by_key: dict[str, list[Operation]] = {}
    for op in operations:
        if op.outcome == "fail" or (op.f == "get" and op.outcome != "ok"):
            continue  # had no effect, and told nothing
        by_key.setdefault(op.key, []).append(op)
    problems = []
    for key, ops in sorted(by_key.items()):
        problem = check_key(sorted(ops, key=lambda op: op.start_ns))
        if problem:
            problems.append(f"{key}: {problem}")
    return problems


def check_key(ops: Sequence[Operation]) -> str:
    """Empty if there is an order; else why not."""
    ends = [op.end_ns if op.outcome == "ok" and op.end_ns is not None else FOREVER for op in ops]
    must = sum(1 << k for k, op in enumerate(ops) if op.outcome == "ok")
    seen: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [(0, None)]
    furthest = 0
    while stack:
        done, value = stack.pop()
        if done & must == must:
            return ""
        if (done, value) in seen:
            continue
        seen.add((done, value))
        if len(seen) > STATES_MAX:
            return f"undecided after {STATES_MAX} states"
        furthest = max(furthest, done.bit_count())
        for k in _candidates(ops, ends, done):
            allowed, after = _step(ops[k], value)
            if allowed:
                stack.append((done | 1 << k, after))
    return f"no order of its {len(ops)} operations explains what was seen (at most {furthest} fit)"


def _candidates(ops: Sequence[Operation], ends: Sequence[int], done: int) -> list[int]:
    """Operations that may be next: nothing open ended before they began."""
    found = []
    first_end = FOREVER
    for k, op in enumerate(ops):
        if op.start_ns > first_end:
            break
        if not done >> k & 1:
            found.append(k)
            first_end = min(first_end, ends[k])
    return found


def _step(op: Operation, value: Any) -> tuple[bool, Any]:
    if op.f == "get":
        return op.result == value, value
    if op.f == "put":
        return True, op.value
    expected, new = op.value
    if op.outcome == "info":
        return True, new if value == expected else value
    return (value == expected) == bool(op.result), new if op.result else value
