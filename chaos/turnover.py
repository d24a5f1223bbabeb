"""What nodes and partitions of a real cluster live through that takes longer than a signal.

A node that is away for so long that it is made anew from a snapshot; one whose disk is lost; a fourth node that is
taken in, and one that goes; partitions that are created, written to and destroyed.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from logboom import Client, LogboomError, Record
from logboom.testing import LocalCluster

PATIENCE_S: Final = 20.0
AWAY_S: Final = 10.0
POLL_S: Final = 0.1
UNDER_LOAD_S: Final = 1.5
REJOINED: Final = '"rejoined"'
"""In a node's log, each time that it was taken back."""


@dataclass
class Changed:
    """What has come and gone."""

    counts: Counter[str] = field(default_factory=Counter)
    created: dict[int, str] = field(default_factory=dict)
    """Partitions, and their state machines."""
    doomed: set[int] = field(default_factory=set)
    """Those that somebody has asked to be destroyed: what is in there may be gone."""
    problems: list[str] = field(default_factory=list)
    steps: int = 0
    """Of changes of members; odd while one is under way."""

    def living(self) -> list[tuple[int, str]]:
        """Partitions to write to, and their state machines."""
        return [(p, machine) for p, machine in self.created.items() if p not in self.doomed]


class Turnover:
    """``client`` is the operator's."""

    def __init__(
        self, cluster: LocalCluster, client: Client, rng: random.Random, changed: Changed, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._rng = rng
        self._changed = changed
        self._say = say

    async def away(self) -> None:
        """A follower is down until the others' journals begin behind what it has."""
        cluster, client = self._cluster, self._client
        leader = await asyncio.to_thread(cluster.leader)
        node = self._rng.choice([n for n in cluster.nodes if n != leader])
        held = (await client.member_list(node=cluster.addresses[node], timeout=PATIENCE_S))["raft_index"]
        self._say(f"  away: {node}, until the others' journals begin behind {held}")
        await asyncio.to_thread(cluster.kill, node)
        end = time.monotonic() + AWAY_S
        while time.monotonic() < end:
            base = (await client.snapshots(node=cluster.addresses[leader], timeout=PATIENCE_S))["base"]
            if base > held:
                self._changed.counts["away behind the journal"] += 1
                break
            await asyncio.sleep(POLL_S)
        cluster.restart(node)

    async def lost_disk(self) -> None:
        """One comes back with an empty directory, perhaps the one that led, and is taken back by itself."""
        cluster = self._cluster
        node = self._rng.choice(cluster.nodes)
        times = cluster.log(node).read_text().count(REJOINED)
        self._say(f"  lost disk: {node}")
        await asyncio.to_thread(cluster.kill, node)
        await asyncio.to_thread(shutil.rmtree, cluster.data_dirs[node])
        cluster.restart(node)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if cluster.log(node).read_text().count(REJOINED) > times:
                await self._until_it_votes(node)
                self._changed.counts["disks lost"] += 1
                return
            await asyncio.sleep(POLL_S)
        self._changed.problems.append(f"{node} was not taken back after {PATIENCE_S:.0f} s")

    async def member(self) -> None:
        """One more; and then it goes again, or another does, perhaps the one that leads."""
        cluster, client, counts = self._cluster, self._client, self._changed.counts
        self._changed.steps += 1
        node = await asyncio.to_thread(cluster.add_node)
        await client.add_member(
            node, peer_address=cluster.peer_addresses[node], client_address=cluster.addresses[node], timeout=PATIENCE_S
        )
        await self._until_it_votes(node)
        counts["members added"] += 1
        goes = self._rng.choice(cluster.nodes)
        self._say(f"  members: {node} votes, {goes} goes")
        await client.remove_member(goes, timeout=PATIENCE_S)
        counts["members removed"] += 1
        await asyncio.sleep(self._rng.random())  # what is removed does no harm
        await asyncio.to_thread(cluster.forget, goes)
        self._changed.steps += 1

    async def _until_it_votes(self, node: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            said = await self._client.member_list(timeout=PATIENCE_S)
            if any(row["id"] == node and row["role"] == "voter" for row in said["members"]):
                return
            await asyncio.sleep(POLL_S)
        self._changed.problems.append(f"{node} does not vote after {PATIENCE_S:.0f} s")

    async def partitions(self) -> None:
        """Two are created; with load on them one of all that live goes."""
        changed = self._changed
        try:
            for machine in ("kv", "log"):
                partition = await self._client.create_partition(state_machine=machine, timeout=PATIENCE_S)
                if partition in changed.created:
                    changed.problems.append(f"partition {partition} was created twice")
                changed.created[partition] = machine
                changed.counts["partitions created"] += 1
            await asyncio.sleep(UNDER_LOAD_S)
            goes = self._rng.choice([p for p, _ in changed.living()])
            self._say(f"  partitions: {', '.join(map(str, changed.created))} were created, {goes} goes")
            changed.doomed.add(goes)
            await self._client.destroy_partition(goes, timeout=PATIENCE_S)
            changed.counts["partitions destroyed"] += 1
        except LogboomError as error:
            self._say(f"  partitions: {error}")  # nobody knows; whoever looks later does
            return
        try:
            await self._client.submit(goes, Record(b"too late"), timeout=1.0)
        except LogboomError:
            return
        changed.problems.append(f"partition {goes} was destroyed and takes writes")
