"""What nodes log: nothing that happens in a fault run is an error to them, and nothing fails unforeseen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Final

WRONG: Final = frozenset(("error", "critical"))
SHOWN: Final = 200


def unexpected(node: str, lines: Iterable[str]) -> list[str]:
    """Lines of these levels, and those that are none (a stack, or what a library writes), each kind once."""
    counts, first = Counter[str](), dict[str, str]()
    for line in lines:
        try:
            said = json.loads(line)
            kind = str(said["event"]) if said["level"] in WRONG else ""
        except (ValueError, TypeError, KeyError):
            kind = "no line of its own" if line.strip() else ""
        if kind:
            counts[kind] += 1
            first.setdefault(kind, line.strip())
    return [f"{node}: {count} times {kind}: {first[kind][:SHOWN]}" for kind, count in counts.items()]
