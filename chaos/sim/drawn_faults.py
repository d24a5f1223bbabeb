"""The faults that a seed decides: which kinds there are, how often each comes, and when each of them strikes what."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

LEADER: Final = -1
FOLLOWER: Final = -2

KINDS: Final[dict[str, float]] = {
    "kill": 3,
    "kill_all": 0.5,
    "power": 3,
    "power_all": 0.7,
    "die_at_call": 2,
    "stop": 2,
    "cut_pair": 1.5,
    "isolate": 2,
    "one_way": 1.5,
    "ring": 1,
    "slow_link": 1,
    "lossy_link": 1,
    "reset": 2,
    "slow_disk": 1,
    "stall_disk": 1,
    "eio": 1,
    "disk_full": 0.7,
    "rot": 1,
    "misdirect": 0.5,
    "clock_jump": 1,
    "client_dies": 0.7,
    "pause_partition": 0.7,
    "left_behind": 1.5,
    "rot_journal": 0.2,
    "half_back": 1.5,
}
"""Faults and how often each comes where it is switched on."""
DAMAGE: Final = frozenset(("rot", "rot_journal", "misdirect", "lose_disk", "put_back"))
"""Kinds of faults that need a victim, and leave a node that cannot say what it has: not beside a blackout."""
LAG_KINDS: Final = ("slow_apply", "stall_apply")
"""Kinds that take the place of others where the ladder of lag has short rungs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the schedule. ``node``: an index into those who are there, LEADER or FOLLOWER as of then.

    ``dice`` decides the rest.
    """

    at: float
    kind: str
    node: int
    duration: float
    dice: int


def schedule(rng: random.Random, kinds: tuple[str, ...], nodes: int, seconds: float) -> tuple[Fault, ...]:
    """Of these kinds alone."""
    pause = rng.choice([1.0, 2.0, 3.0])
    weights = [KINDS[kind] for kind in kinds]
    at, faults = rng.uniform(1.0, 3.0), list[Fault]()
    while at < seconds - 1.0:
        target = rng.choices([LEADER, FOLLOWER, rng.randrange(nodes)], [4, 2, 4])[0]
        duration = rng.choice([0.05, 0.3, 1.0, 3.0]) * rng.uniform(0.5, 1.5)
        faults.append(Fault(at, rng.choices(kinds, weights)[0], target, duration, rng.getrandbits(32)))
        at += rng.expovariate(1 / pause)
    return tuple(faults)
