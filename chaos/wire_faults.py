"""What happens to the wires of a cluster: slow ones, one-way cuts, connections that are lost with what is on them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import permutations
from typing import Final

from chaos.wires import CLIENTS, Pair, WiredCluster

HOLDS_S: Final = (0.3, 1.0, 2.0, 3.0, 5.5)
"""The longest: longer than a link may be silent."""
RATES: Final = (30_000, 300_000, 2_000_000)
RESETS: Final = 6
BETWEEN_RESETS_S: Final = 0.2
HELD_SHARE: Final = 0.35
"""Of all ways, where each has its own luck."""
Ways = dict[Pair, int]
"""Those that are not as they should be: bytes per second, 0: nothing passes."""


class WireFaults:
    """One after the other, each mended before the next."""

    def __init__(self, cluster: WiredCluster, rng: random.Random, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._rng = rng
        self._say = say

    async def strike(self) -> str:
        """One, from beginning to end; returns what it was."""
        leader = await asyncio.to_thread(self._cluster.leader)
        if self._rng.random() < 0.3:
            return await self._resets(leader)
        name, ways = self.draw(leader, list(self._cluster.nodes))
        hold = self._rng.choice(HOLDS_S)
        self._say(f"  {name} for {hold:.1f} s: {', '.join(f'{a} to {b}' for a, b in ways)}")
        for (one, other), rate in ways.items():
            self._cluster.wires.way(one, other, passes=rate > 0, bytes_per_s=rate)
        await asyncio.sleep(hold)
        for one, other in ways:
            self._cluster.wires.way(one, other)
        return name

    def draw(self, leader: str, nodes: list[str]) -> tuple[str, Ways]:
        """What it is, and what is to be done to which ways."""
        rng = self._rng
        others = [node for node in nodes if node != leader]
        one = rng.choice(others)
        rest = [node for node in nodes if node != one]
        rate = rng.choice(RATES)
        faults: dict[str, Ways] = {
            "leader unheard": {(leader, node): 0 for node in others},
            "leader deaf": {(node, leader): 0 for node in others},
            "follower unheard": {(one, node): 0 for node in rest},
            "follower deaf": {(node, one): 0 for node in rest},
            "half apart": {(leader, one): 0, (one, leader): 0},
            "apart": {pair: 0 for node in rest for pair in ((one, node), (node, one))},
            "leader apart": {pair: 0 for node in others for pair in ((leader, node), (node, leader))},
            "some hear some": {pair: 0 for pair in permutations(nodes, 2) if rng.random() < HELD_SHARE},
            "slow follower": {(leader, one): rate},
            "slow leader": {(leader, node): rate for node in others},
            "slow all": dict.fromkeys(permutations(nodes, 2), rate),
            "answers held": {(leader, CLIENTS): 0},
            "answers slow": {(leader, CLIENTS): rate},
            "requests held": {(CLIENTS, leader): 0},
        }
        name = rng.choice(list(faults))
        return name, faults[name]

    async def _resets(self, leader: str) -> str:
        """Connections of the one that leads, or of anybody, again and again."""
        name = self._rng.choice(["links reset", "clients reset", "links cut"])
        nodes = self._cluster.nodes
        pairs = [(leader, node) for node in nodes if node != leader]
        if name == "clients reset":
            pairs = [(CLIENTS, leader), (CLIENTS, leader), (CLIENTS, self._rng.choice(nodes))]
        self._say(f"  {name}: {leader}")
        if name == "links cut":
            pair = self._rng.choice(pairs)
            self._cluster.wires.cut(*pair)
            await asyncio.sleep(self._rng.choice(HOLDS_S))
            self._cluster.wires.cut(*pair, cut=False)
            return name
        for _ in range(self._rng.randint(1, RESETS)):
            self._cluster.wires.reset(*self._rng.choice(pairs))
            await asyncio.sleep(self._rng.random() * BETWEEN_RESETS_S)
        return name
