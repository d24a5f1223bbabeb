"""Stories that some seeds tell beside everything else. Each has dice of its own: what the rest of a seed does stays."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

DICE: Final = 0x57041E5
FOLLOWS: Final = 0.25
"""Share of the seeds in which somebody follows the logs, and the watermarks, from the beginning to the end."""
HANDS_ON: Final = 0.35
"""Share of the seeds in which clients hand tokens to others."""
RESTORES: Final = 0.5
"""Share of those that may, in which the cluster is stopped in the middle and begins again from a backup."""
WRITES_TASKS: Final = 0.4
"""Share of the seeds in which tasks write as those of Spark do."""
TRANSFERS: Final = 0.35
"""Share of the seeds in which clients write over several keys."""
ORDERLY: Final = 0.35
"""Share of the seeds in which nodes are stopped in order, too."""
ASKS: Final = 0.4
"""Share of the seeds in which somebody asks for all that operators ask for."""
MOVES: Final = 0.4
"""Share of those in which members change, in which they also move to other addresses."""
SETS: Final = 0.35
"""Share of the seeds in which clients set how writes are answered."""
CROWDS: Final = 0.4
"""Share of the seeds in which crowds of clients write at once, and what clients send arrives together."""
SHRINKS: Final = 0.5
"""Share of those in which members change, in which the first node is left alone at the end, and another one comes."""


@dataclass(frozen=True, slots=True)
class Stories:
    """Which of them."""

    follows: bool = False
    hands_on: bool = False
    restores: bool = False
    writes_tasks: bool = False
    orderly: bool = False
    asks: bool = False
    moves: bool = False
    transfers: bool = False
    crowds: bool = False
    sets: bool = False
    shrinks: bool = False


def told(seed: int) -> Stories:
    """By this seed. Who adds one draws it last."""
    rng = random.Random(seed ^ DICE)
    return Stories(
        follows=rng.random() < FOLLOWS,
        hands_on=rng.random() < HANDS_ON,
        restores=rng.random() < RESTORES,
        writes_tasks=rng.random() < WRITES_TASKS,
        orderly=rng.random() < ORDERLY,
        asks=rng.random() < ASKS,
        moves=rng.random() < MOVES,
        transfers=rng.random() < TRANSFERS,
        crowds=rng.random() < CROWDS,
        sets=rng.random() < SETS,
        shrinks=rng.random() < SHRINKS,
    )
