"""Histories: what clients asked, when, and what they were told. One JSON line per event.

``{"index", "process", "type": "invoke|ok|fail|info", "f", "key", "value", "time_ns", ...}``:
``ok`` did happen, ``fail`` did not and never will, ``info`` nobody knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Operation:
    """One call: its invocation and its end (None while unknown or still open)."""

    process: int
    f: str
    key: str
    value: Any
    start_ns: int
    end_ns: int | None = None
    outcome: str = "info"
    result: Any = None
    partition: int = 0
    index: int = 0
    global_index: int = 0
    error: str = ""


@dataclass
class History:
    """Grows during a run; ``now_ns`` is a monotonic clock."""

    now_ns: Callable[[], int]
    operations: list[Operation] = field(default_factory=list)

    def invoke(self, process: int, f: str, key: str, value: Any, partition: int) -> Operation:
        """A call begins."""
        operation = Operation(process, f, key, value, self.now_ns(), partition=partition)
        self.operations.append(operation)
        return operation

    def end(self, operation: Operation, outcome: str, **more: Any) -> None:
        """It ended as ``ok``, ``fail`` or ``info``."""
        operation.outcome = outcome
        operation.end_ns = self.now_ns()
        for name, value in more.items():
            setattr(operation, name, value)

    def write(self, path: Path) -> None:
        """As JSON lines, in the order of time."""
        rows = [(op.start_ns, "invoke", op) for op in self.operations]
        rows += [(op.end_ns, op.outcome, op) for op in self.operations if op.end_ns is not None]
        rows.sort(key=lambda row: row[0])
        with path.open("w") as file:
            for index, (time_ns, kind, op) in enumerate(rows):
                event = {"index": index, "process": op.process, "type": kind, "f": op.f, "key": op.key}
                event |= {"value": op.value if kind == "invoke" else op.result, "time_ns": time_ns}
                event |= {"partition": op.partition, "global_log_index": op.global_index, "error": op.error}
                file.write(json.dumps(event, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def of_kind(operations: Iterable[Operation], *kinds: str) -> list[Operation]:
    """Those operations."""
    return [op for op in operations if op.f in kinds]
