"""What the client sessions of a node have in common to count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from logboom.errors import LogboomError, Overloaded
from logboom.wire import Kind


@dataclass(slots=True)
class SessionCounts:
    """Since the start. Bounded: kinds, codes and gates are fixed sets."""

    requests: Counter[Kind] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Answers that were errors, by code."""
    refused: Counter[str] = field(default_factory=Counter)
    """Of them, requests that were not admitted, by the gate."""
    barriers_reached: int = 0

    def failed(self, error: LogboomError) -> None:
        """A request was answered with it."""
        self.errors[error.code] += 1
        if isinstance(error, Overloaded):
            self.refused[str(error.fields.get("limit", ""))] += 1
