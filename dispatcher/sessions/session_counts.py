"""What the client sessions of a node have in common to count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from logboom.access import Right
from logboom.errors import LogboomError, Overloaded
from logboom.wire import Kind

GATES_MAX: Final = 64
OTHERS: Final = "others"
"""Gates beyond those: a signal of a user may name one for each customer, say."""


@dataclass(slots=True)
class SessionCounts:
    """Since the start. Bounded: kinds and codes are fixed sets, and of gates the first ``GATES_MAX`` are told apart."""

    requests: Counter[Kind] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Answers that were errors, by code."""
    refused: Counter[str] = field(default_factory=Counter)
    """Those of them that were not admitted, by the gate."""
    denied: Counter[Right] = field(default_factory=Counter)
    """Requests of those who may not, also over HTTP, by the right that they lack."""
    barriers_reached: int = 0

    def failed(self, error: LogboomError) -> None:
        """A request was answered with it."""
        self.errors[error.code] += 1
        if isinstance(error, Overloaded):
            gate = str(error.fields.get("limit", ""))
            if gate not in self.refused and len(self.refused) >= GATES_MAX:
                gate = OTHERS
            self.refused[gate] += 1
