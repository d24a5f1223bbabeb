"""Who follows the logs and the watermarks, over every change of leader: all that there is comes, once and in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.loop import Process, SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import Parameters
from chaos.sim.seen import Seen
from logboom import Client, LogBatch
from logboom.errors import IndexCompacted, LogboomError, NoSuchPartition, PartitionDestroyed, Voided
from logboom.types import PartitionId, Watermark, WatermarkUpdate

FOLLOWER: Final = "follower"
TAILS_MAX: Final = 2
AGAIN_S: Final = 0.2
TIMEOUT_S: Final = 4.0
EVERY_S: Final = 0.1
LOOK_S: Final = 0.1
DIVERGED: Final = ("announced", "came after", "expected", "safe to give")
"""Words of a scan that is not what was announced."""
Row = tuple[int, int]
"""Global and last index of a batch."""


class Followers:
    """All of a run, in one process. ``ends``: per partition what was committed, ascending."""

    def __init__(
        self,
        parameters: Parameters,
        hosts: Sequence[Host],
        *,
        loop: SimLoop,
        network: SimNetwork,
        rng: random.Random,
        seen: Seen,
        ends: Callable[[int], Sequence[Row]],
        fail: Callable[[str, str], None],
    ) -> None:
        self._hosts = hosts
        self._loop = loop
        self._network = network
        self._seen = seen
        self._ends = ends
        self._fail = fail
        self._whole = parameters.blackout is None  # else some may be void
        there = parameters.kv_partitions + parameters.log_partitions
        self._tails = sorted(rng.sample(there, min(TAILS_MAX, len(there))))
        self._scanned = sorted(rng.sample(there, rng.randint(1, len(there))))
        self._level = rng.choice(["durable", "applied"])
        self._rng = rng
        self._process: Process | None = None
        self._got: dict[tuple[str, int], int] = {}
        """Who follows, and of which partition: the global index up to which all has come."""
        self._ended: set[str] = set()
        """Those who follow what is gone."""
        self._marks: WatermarkUpdate | None = None
        self._least: tuple[Any, int] | None = None
        """Of all partitions, as a node said last."""
        self._said: dict[tuple[str, int], int] = {}
        """By node and partition: the highest watermark that it has told."""
        self.batches = 0

    def start(self) -> None:
        """From now on."""
        self._process = self._loop.process(FOLLOWER)
        self._loop.spawn(self._process, self._follow())

    def leave(self) -> None:
        """Nobody follows any more."""
        if self._process is not None:
            self._loop.kill(self._process)
            self._network.process_ended(self._process, silently=False)

    async def _follow(self) -> None:
        self._client = Client(list(self._seen.addresses), rng=self._rng, timeout=TIMEOUT_S)
        tails = [self._again(f"tail {p}", self._tail(p)) for p in self._tails]
        await asyncio.gather(*tails, self._again("scan", self._scan()), self._again("watermarks", self._watch()))

    async def _again(self, name: str, step: Callable[[], Any]) -> None:
        """Goes on where it was, as a program would that was told of an error."""
        while name not in self._ended:
            try:
                await step()
            except (PartitionDestroyed, NoSuchPartition) as error:
                self._seen.refused(f"who follows ({name})", error)
                self._ended.add(name)
            except LogboomError as error:
                self._seen.refused(f"who follows ({name})", error)
                if any(word in str(error) for word in DIVERGED):
                    self._fail("FollowsAll", f"{name}: {error}")
                await asyncio.sleep(AGAIN_S)

    # -- logs

    def _tail(self, partition: int) -> Callable[[], Any]:
        name, following = f"tail {partition}", 0

        def stepped_over(gap: Voided) -> None:
            nonlocal following
            following = self._seen.stepped_over(name, gap, following)

        async def step() -> None:
            nonlocal following
            begin = following
            tail = self._client.tail(partition, start=begin, follow=True, level=self._level, on_void=stepped_over)
            try:
                async for batch in tail:
                    if following and batch.first_index != following:
                        self._fail("FollowsAll", f"{name}: {batch.first_index}, not {following}")
                    following = batch.position
                    self._take(name, batch)
            except IndexCompacted as gone:
                self._seen.refused(name, gone, partition)
                following = self._removed(name, gone, following)
            else:
                self._fail("FollowsAll", f"{name} has come to an end at {following}")

        return step

    def _scan(self) -> Callable[[], Any]:
        name, after, nexts = "scan", 0, dict[int, int]()

        async def step() -> None:
            nonlocal after
            partitions = self._scanned
            scan = self._client.scan_log(partitions, start_global=after + 1, follow=True, level=self._level)
            try:
                async for batch in scan:
                    partition = batch.partition_id
                    if batch.global_index <= after or partition not in partitions:
                        self._fail("GlobalOrder", f"{name}: {partition} at {batch.global_index} after {after}")
                    if self._whole and nexts.get(partition, batch.first_index) != batch.first_index:
                        story = f"{name}: of {partition} {batch.first_index}, not {nexts[partition]}"
                        self._fail("FollowsAll", story)
                    after, nexts[partition] = batch.global_index, batch.position
                    self._take(name, batch)
            except IndexCompacted as gone:
                self._seen.refused(name, gone, *partitions, merged=True)
                after = self._removed(name, gone, after + 1) - 1
                nexts.clear()
            else:
                self._fail("FollowsAll", f"{name} has come to an end at {after}")

        return step

    def _removed(self, name: str, gone: IndexCompacted, wanted: int) -> int:
        """Where to go on."""
        first = int(gone.fields["first"])
        if first <= wanted:
            self._fail("FollowsAll", f"{name}: {wanted} is said to be gone, and {first} to be there: {gone}")
        return first

    def _take(self, name: str, batch: LogBatch) -> None:
        self.batches += 1
        partition, last = batch.partition_id, batch.position - 1
        if (batch.global_index, last) not in self._ends(partition)[-self._far(partition, batch.global_index) :]:
            self._fail("PrefixAgreement", f"{name} has {partition}/{last} at {batch.global_index}: not committed there")
        self._got[name, partition] = batch.global_index

    def _far(self, partition: int, global_index: int) -> int:
        """So many of its batches at the end have to be looked through."""
        ends, far = self._ends(partition), 1
        while far < len(ends) and ends[-far][0] > global_index:
            far *= 2
        return far

    # -- watermarks

    def _watch(self) -> Callable[[], Any]:
        async def step() -> None:
            async for update in self._client.watermarks_stream(every=EVERY_S):
                self._marks = update
                self._check(update)

        return step

    def _check(self, update: WatermarkUpdate) -> None:
        """They never go back, over streams and starts, and a node has come as far as it says."""
        node = next((host.node for host in self._hosts if host.name == update.node_id), None)
        for mark in update.watermarks:
            at, story = (update.node_id, mark.partition_id), f"{update.node_id} says {mark}"
            if mark.applied_index < self._said.get(at, 0):
                self._fail("I7", f"{story}; it had said {self._said[at]}")
            self._said[at] = mark.applied_index
            if node is not None and _behind(node.pipeline, mark):
                self._fail("I7", f"{story}; it has not come so far")
        if update.minimum > _least(update.watermarks, update.minimum):
            self._fail("I7", f"the minimum of {update} is another")
        if node is not None:
            self._check_least(node, update)

    def _check_least(self, node: Any, update: WatermarkUpdate) -> None:
        """All have come so far, those that are being opened, too, and it never goes back while the node runs."""
        hidden = node.pipeline.partitioning.opening.nothing_through() if node.pipeline.recovery.over else None
        if hidden and update.minimum > hidden:  # 0: nobody can say yet, and what was told before stays true
            self._fail("I7", f"{update.node_id} says {update.minimum} of all; one that is being opened has {hidden}")
        if self._least is not None and self._least[0] is node and update.minimum < self._least[1]:
            self._fail("I7", f"{update.node_id} says {update.minimum} of all; it had said {self._least[1]}")
        self._least = node, update.minimum

    # -- the end

    async def caught_up(self) -> None:
        """All that was committed has come, and who follows watermarks knows."""
        while self.lacks():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_S)

    def lacks(self) -> str:
        """What has not come yet; empty: nothing."""
        due = {(f"tail {p}", p) for p in self._tails} | {("scan", p) for p in self._scanned}
        for name, partition in sorted(due):
            ends, got = self._ends(partition), self._got.get((name, partition), 0)
            if partition in self._seen.doomed or name in self._ended or not ends:
                continue
            if got < ends[-1][0] and not self._is_void(partition, ends[-1][1]):
                return f"{name} has partition {partition} up to {got} of {ends[-1][0]}"
        return self._marks_lack()

    def _is_void(self, partition: int, last_index: int) -> bool:
        parents = [host.node.pipeline.parent for host in self._hosts if host.node is not None]
        return any(void[2] == last_index for each in parents for void in each.voids.of(PartitionId(partition)))

    def _marks_lack(self) -> str:
        marks = self._marks
        node = None if marks is None else self._node(marks.node_id)
        if marks is None or node is None:
            return f"who follows watermarks has those of {marks and marks.node_id}"
        told: Mapping[int, int] = {mark.partition_id: mark.applied_index for mark in marks.watermarks}
        now = node.pipeline.watermarks.all()
        there = {mark.partition_id: mark.applied_index for mark in now}
        if told != there:
            return f"who follows watermarks has {told} of {marks.node_id}; they are {there}"
        least = _least(now, marks.minimum)
        if not len(node.pipeline.partitioning.opening) and marks.minimum != least:
            return f"who follows watermarks has {marks.minimum} of all of {marks.node_id}; it is {least}"
        return ""

    def _node(self, name: str) -> Any:
        return next((host.node for host in self._hosts if host.name == name and not host.retired), None)


def _behind(backend: Any, mark: Watermark) -> bool:
    """A state that is being made anew shows what it had come to."""
    worker = backend.workers.get(mark.partition_id)
    if worker is None or not backend.recovered([mark.partition_id]) or backend.rebuilding.fenced(mark.partition_id):
        return False
    return bool(worker.applied_index < mark.applied_index)


def _least(marks: Sequence[Watermark], of_none: int) -> int:
    return min((mark.applied_global_index for mark in marks), default=of_none)
