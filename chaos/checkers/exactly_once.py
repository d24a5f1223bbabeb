"""Every acknowledged command once, every refused one never, the doubtful ones at most once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from chaos.history import Operation


def counters(operations: Iterable[Operation], state: Mapping[tuple[int, str], int]) -> list[str]:
    """Each ``add`` has a key of its own and adds 1: the state must hold 1, 0, or one of both, in its partition alone.

    ``state``: by partition and key.
    """
    allowed = {"ok": (1,), "fail": (0,), "info": (0, 1)}
    problems, known = [], set()
    for op in operations:
        known.add((op.partition, op.key))
        count = state.get((op.partition, op.key), 0)
        if count not in allowed[op.outcome]:
            what = "lost" if count == 0 else "applied though refused" if op.outcome == "fail" else "applied twice"
            problems.append(f"{what}: {op.key} (partition {op.partition}) was {op.outcome}, its counter is {count}")
    problems += [
        f"phantom: {key} = {value} was never asked for in partition {partition}"
        for (partition, key), value in state.items()
        if (partition, key) not in known
    ]
    return problems


def appends(
    operations: Iterable[Operation], log: Sequence[tuple[int, str]], applied: int, *, first: int = 1
) -> list[str]:
    """Records of one ``log`` partition as (index, payload): dense, nothing lost, refused or invented.

    What was acknowledged below ``first`` has been compacted.

    A retry may leave a second copy in the log that took no effect; ``applied`` (records that did take effect, from the
    state machine; -1: not known) must equal the number of distinct payloads, or be what was asked for if some are gone.
    """
    operations = list(operations)
    problems = []
    indices = [index for index, _ in log]
    if indices != list(range(first, first + len(indices))):
        problems.append(f"indices are not dense: {len(indices)} records, last index {indices[-1] if indices else 0}")
    present = Counter(payload for _, payload in log)
    known = set()
    for op in operations:
        known.add(op.value)
        if op.outcome == "ok" and not present[op.value] and not 0 < op.index < first:
            problems.append(f"lost: {op.value} was acknowledged at {op.index} and is not in the log")
        if op.outcome == "fail" and present[op.value]:
            problems.append(f"applied though refused: {op.value}")
    problems += [f"phantom: {payload} was never asked for" for payload in present if payload not in known]
    return problems + (took_effect(operations, log, applied, first=first) if applied >= 0 else [])


def took_effect(
    operations: Iterable[Operation], log: Sequence[tuple[int, str]], applied: int, *, first: int = 1
) -> list[str]:
    """As many records as a ``log`` partition's state machine has counted: see ``appends``."""
    present = len({payload for _, payload in log})
    if first == 1:
        least = most = present
    else:
        outcomes = Counter(op.outcome for op in operations)
        least, most = outcomes["ok"], outcomes["ok"] + outcomes["info"]
    if least <= applied <= most:
        return []
    return [f"{applied} records took effect, {present} distinct ones are in the log of {least} to {most}"]


def receipts(operations: Iterable[Operation], log: Sequence[tuple[int, str]], *, first: int = 1) -> list[str]:
    """Acknowledged appends of one ``log`` partition: each receipt its own index, and the record stands there."""
    problems = []
    content, owner = dict(log), dict[int, str]()
    for op in operations:
        if op.outcome != "ok":
            continue
        if op.index in owner:
            problems.append(f"index {op.index} was given to {owner[op.index]} and to {op.value}")
        owner[op.index] = op.value
        if not 0 < op.index < first and content.get(op.index) != op.value:
            problems.append(f"receipt of {op.value} says index {op.index}, where {content.get(op.index)} is")
    return problems


def agreement(logs: Mapping[str, Sequence[tuple[int, int, bytes]]]) -> list[str]:
    """Every node has the same (index, global index, content) sequence."""
    problems = []
    names = sorted(logs)
    for other in names[1:]:
        if list(logs[names[0]]) != list(logs[other]):
            at = next(
                (k for k, (a, b) in enumerate(zip(logs[names[0]], logs[other], strict=False)) if a != b),
                min(len(logs[names[0]]), len(logs[other])),
            )
            problems.append(f"{names[0]} and {other} differ from entry {at} on")
    return problems
