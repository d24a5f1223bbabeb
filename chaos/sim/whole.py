"""Who asks for all gets all: partitions, whoever made them, and what is in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

Add = tuple[float, int, str, int]
"""What was acknowledged: when, partition, key, global index."""


def missed(due: Sequence[Add], came: Collection[int], last: int, doomed: Collection[int]) -> list[Add]:
    """Of what was acknowledged, what a scan that went up to ``last`` should have given; ``came``: global indices."""
    return [add for add in due if add[3] <= last and add[3] not in came and add[1] not in doomed]


def left_out(
    target: int,
    given: Iterable[int],
    *,
    begun: Iterable[int],
    created_at: Mapping[int, int],
    doomed: Collection[int],
) -> list[int]:
    """Partitions that were there when a global index was ordered; ``created_at``: the newest in front of each."""
    there = {*begun, *(partition for partition, at in created_at.items() if at < target)}
    return sorted(there - {*doomed} - {*given})
