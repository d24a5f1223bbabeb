"""Barriers: who waits until which partitions have come how far. Sans-io.

Equal wants are one *goal*. A goal sits in one heap per partition that is not there yet, sorted by target, so a
moving frontier touches only the goals that it wakes, and a moving commit index only heaps whose first target it
has come to. Answers go out through ``done``, each exactly once; whoever cancels or disconnects leaves nothing behind.
Whoever is *met* waits no longer, and is answered in his turn (``answers``).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
from typing import Final

from dispatcher.barriers.answers import SLICE, Answers
from dispatcher.barriers.frontiers import BLOCKED_STATES, Frontiers, holds_up
from dispatcher.barriers.goals import Done, Goal, Quotas, Reached, Together, Waiter, Want, blocked, timed_out
from dispatcher.barriers.limits import check, check_limits
from dispatcher.barriers.watermarks import Watermarks
from logboom.errors import LogboomError
from logboom.settings import BarrierSettings
from logboom.types import GlobalLogIndex, Level, PartitionId, Scope, Watermark

NOTICED_STATES: Final = BLOCKED_STATES | {"frozen"}
CLUSTER: Final = frozenset((Scope.QUORUM, Scope.ALL))
DEAD_KEPT: Final = 64

Key = tuple[Level, Scope]
Heap = list[tuple[int, int, Goal]]
Seen = dict[tuple[PartitionId, ...], Reached]
"""Where partitions are while nothing moves, whichever index they were waited for at, and which of them are gone."""


class Barriers:
    """All waiters of one node. ``frontier`` tells how far a partition is at a level."""

    def __init__(self, settings: BarrierSettings, watermarks: Watermarks) -> None:
        self._settings = settings
        self._watermarks = watermarks
        self.others = Frontiers()
        self.others.moved = self._others_moved
        self._goals: dict[Want, Goal] = {}
        self._heaps: dict[PartitionId, dict[Key, Heap]] = {}
        self._ahead: list[tuple[int, int, PartitionId, Key]] = []
        """First targets of heaps that the commit index has not come to."""
        self._due: dict[tuple[PartitionId, Key], None] = {}
        """Heaps whose first target it has."""
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._leading: dict[Waiter, None] = {}
        self.answers = Answers()
        self._quotas = Quotas(settings)
        self._tie = itertools.count()
        self._entries = 0
        """In all heaps of goals."""
        self._dead = 0
        """Of those entries, and of the deadlines, how many nobody waits for any more; never less than there are."""
        self._commit = GlobalLogIndex(0)
        self._durable: dict[PartitionId, GlobalLogIndex] = {}
        self._snapshotted: dict[PartitionId, GlobalLogIndex] = {}
        self._whole: set[PartitionId] = set()
        """Partitions of which everything committed is durable."""
        self._noticed: dict[PartitionId, str] = {}
        """Partitions in a state that may block, as those who wait were told."""
        self.leads = False
        """This node does: who waits for leaders may ask it, and what it takes no writes for gets none."""
        watermarks.listen(self._on_watermark)

    def __len__(self) -> int:
        return len(self._quotas)

    # -- asking

    def add(
        self,
        want: Want,
        *,
        client: Hashable,
        deadline: float,
        now: float,
        done: Done,
        principal: Hashable = None,
        wait_blocked: bool = False,
        leading: bool = False,
        own: bool = False,
        together: Together | None = None,
        number: int = 0,
        told: bool = False,
        reading: bool = False,
    ) -> Waiter | None:
        """Answers at once (None) or waits. ``own``: the node itself asks; its places are kept, its time is its own.

        ``together``: told in place of ``done`` of all who are reached at once, by ``number``. Others: see Waiter.

        Raises InvalidRequest, BarrierFuture, NoSuchPartition or QuotaExceeded.
        """
        principal = client if principal is None else principal
        if want.level is Level.COMMITTED:
            want = want._replace(level=Level.ORDERED)
        check(want, self._watermarks)
        if not own:
            check_limits(want, self._settings, self._commit, seconds=deadline - now)
        goal = self._goals.get(want) or self._goal(want)
        if goal.met:
            done(self._where(want))
            return None
        stuck = {} if wait_blocked else self._stuck(goal)
        if stuck:
            done(blocked(want, stuck, self._where(want)))
            return None
        self._quotas.check(client, principal, goal, own=own, told=told, reading=reading)
        if goal.over and want.reach in CLUSTER:
            self.others.want(want)
        waiter = Waiter(
            client,
            principal,
            goal,
            deadline,
            wait_blocked=wait_blocked,
            leading=leading,
            done=done,
            together=together,
            number=number,
            told=told,
            reading=reading,
        )
        if goal.over:
            self._begin(goal)
        goal.waiters[waiter] = None
        self._quotas.add(waiter)
        if leading:
            self._leading[waiter] = None
        heapq.heappush(self._deadlines, (deadline, next(self._tie), waiter))
        return waiter

    def _goal(self, want: Want) -> Goal:
        goal = Goal(want, dict(want.targets))
        goal.behind = {p for p, target in want.targets if self.frontier(p, want.level, want.reach) < target}
        return goal

    def _begin(self, goal: Goal) -> None:
        want, key = goal.want, (goal.want.level, goal.want.reach)
        self._goals[want] = goal
        for partition_id in goal.behind:
            self._push(partition_id, key, goal)

    def _push(self, partition_id: PartitionId, key: Key, goal: Goal) -> None:
        target, heap = goal.targets[partition_id], self._heaps.setdefault(partition_id, {}).setdefault(key, [])
        heapq.heappush(heap, (target, next(self._tie), goal))
        self._entries += 1
        if heap[0][2] is goal:
            self._expect(partition_id, key, target)

    def _expect(self, partition_id: PartitionId, key: Key, target: int) -> None:
        """Have the heap looked at as soon as the commit index is at its first target."""
        if target > self._commit:
            heapq.heappush(self._ahead, (target, next(self._tie), partition_id, key))
        else:
            self._due[partition_id, key] = None

    def frontier(self, partition_id: PartitionId, level: Level, reach: Scope = Scope.NODE) -> int:
        """Every routing entry of the partition up to here has reached the level: here, or (``reach``) on others."""
        if reach in CLUSTER:
            return self.others.frontier(partition_id, level, reach, own=self.frontier(partition_id, level))
        if level in (Level.ORDERED, Level.COMMITTED):
            return self._commit
        if level is Level.SNAPSHOTTED:
            return self._snapshotted.get(partition_id, 0)
        applied = self._watermarks.of(partition_id).applied_global_index
        if level is Level.DURABLE:
            whole = self._commit if partition_id in self._whole else 0
            return max(self._durable.get(partition_id, 0), applied, whole)
        return applied

    def awaits_applied(self, partition_id: PartitionId) -> bool:
        """Somebody waits here until this partition is applied further."""
        for key, heap in self._heaps.get(partition_id, {}).items():
            if key[0] is Level.APPLIED:
                while heap and heap[0][2].over:
                    heapq.heappop(heap)
                    self._entries -= 1
                if heap:
                    return True
        return False

    def progress(self, waiter: Waiter, now: float | None = None) -> Reached:
        """Where a waiter's partitions stand, as far as is known; ``now``: what others know is here the next time."""
        if now is not None and waiter.goal.want.reach in CLUSTER:
            self.others.look(waiter.goal.want, now)
        return self._where(waiter.goal.want, gone=waiter.goal.gone)

    # -- moving

    def committed(self, global_commit_index: int) -> None:
        """The commit index moved, and the watermarks know."""
        if global_commit_index <= self._commit:
            return
        self._commit = GlobalLogIndex(global_commit_index)
        while self._ahead and self._ahead[0][0] <= self._commit:
            _, _, partition_id, key = heapq.heappop(self._ahead)
            self._due[partition_id, key] = None
        for partition_id, key in list(self._due):
            self._wake(partition_id, key)

    def durable(self, partition_id: PartitionId, global_index: int, *, whole: bool = False) -> None:
        """Routing entries of the partition up to ``global_index`` are durable here; ``whole``: all there are."""
        # What was whole until now was so up to the commit index of then: a frontier never goes back.
        until_now = self._commit if partition_id in self._whole else 0
        (self._whole.add if whole else self._whole.discard)(partition_id)
        self._durable[partition_id] = GlobalLogIndex(max(global_index, self._durable.get(partition_id, 0), until_now))
        self._wake_level(partition_id, (Level.DURABLE,))

    def snapshotted(self, partition_id: PartitionId, global_index: int) -> None:
        """A snapshot set that has the partition is complete here, as of this index."""
        self._snapshotted[partition_id] = GlobalLogIndex(max(global_index, self._snapshotted.get(partition_id, 0)))
        self._wake_level(partition_id, (Level.SNAPSHOTTED,))

    def _on_watermark(self, mark: Watermark) -> None:
        partition_id = mark.partition_id
        self._wake_level(partition_id, (Level.APPLIED, Level.DURABLE))
        state = self._watermarks.holding(partition_id, Level.DURABLE)  # what is lost may hold that up later
        if state in NOTICED_STATES:
            if self._noticed.get(partition_id) != state:
                self._noticed[partition_id] = state
                self._tell_blocked(partition_id)
        else:
            self._noticed.pop(partition_id, None)

    def _others_moved(self, partition_id: PartitionId, level: Level, stuck: str) -> None:
        """Another node has said something of a partition that somebody here waits for."""
        self._wake_level(partition_id, (level,))
        if stuck:
            self._tell_blocked(partition_id)

    def members_changed(self) -> None:
        """Other nodes count from now on, or one has lost its disk: who waits for several is measured anew."""
        for goal in [goal for goal in self._goals.values() if goal.want.reach in CLUSTER]:
            want = goal.want
            there = goal.targets.keys() - goal.gone
            behind = {p for p in there if self.frontier(p, want.level, want.reach) < goal.targets[p]}
            for partition_id in sorted(behind - goal.behind):
                self._push(partition_id, (want.level, want.reach), goal)
            goal.behind = behind
            if goal.met:
                self._meet(goal)
        self.answers.go()

    def _wake_level(self, partition_id: PartitionId, levels: Iterable[Level]) -> None:
        heaps = self._heaps.get(partition_id)
        if heaps:
            for key in [key for key in heaps if key[0] in levels]:
                self._wake(partition_id, key)

    def _wake(self, partition_id: PartitionId, key: Key) -> None:
        heaps = self._heaps.get(partition_id, {})
        heap = heaps.get(key)
        if heap:
            reached = self.frontier(partition_id, *key)
            seen, left = Seen(), SLICE
            while heap and (heap[0][0] <= reached or heap[0][2].over):
                if not left:
                    self.answers.soon(partial(self._wake, partition_id, key))
                    break
                left -= 1
                goal = heapq.heappop(heap)[2]
                self._entries -= 1
                goal.behind.discard(partition_id)
                if not goal.over and goal.met:
                    self._meet(goal, seen)
            if heap and heap[0][0] > self._commit and (partition_id, key) in self._due:
                del self._due[partition_id, key]
                self._expect(partition_id, key, heap[0][0])
        if not heap and heaps.get(key) is heap:  # a sweep may have taken it
            heaps.pop(key, None)
            self._due.pop((partition_id, key), None)
            if not heaps and self._heaps.get(partition_id) is heaps:
                del self._heaps[partition_id]
        self.answers.go()

    # -- leaving

    def expire(self, now: float) -> None:
        """Answer those whose time is up."""
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].done is None):
            waiter = heapq.heappop(self._deadlines)[2]
            if waiter.waits:
                goal, want = waiter.goal, waiter.goal.want
                behind = sorted(p for p in goal.behind if self._short(goal, p))
                if goal.possible_without(len(behind)):  # it is there, and its turn has not come yet
                    self._meet(goal)
                else:
                    self._finish(waiter, timed_out(want, behind, self._where(want, gone=goal.gone)))
        self.answers.go()

    def _short(self, goal: Goal, partition_id: PartitionId) -> bool:
        return self.frontier(partition_id, goal.want.level, goal.want.reach) < goal.targets[partition_id]

    def cancel(self, waiter: Waiter) -> None:
        """Nobody waits for it any more."""
        waiter.done = None
        self._forget(waiter)

    def client_gone(self, client: Hashable) -> None:
        """Cancel all of a client's."""
        for waiter in self._quotas.of(client):
            self.cancel(waiter)

    def lead(self) -> None:
        """This node does from now on: who waits for what a frozen partition does not take is told."""
        self.leads = True
        for partition_id in [p for p, state in self._noticed.items() if state == "frozen"]:
            self._tell_blocked(partition_id)

    def lost_leadership(self, error: Callable[[], LogboomError]) -> None:
        """Whoever waits for the leader has to ask another."""
        self.leads = False
        for waiter in list(self._leading):
            self._finish(waiter, error())

    def ended(self, partition_id: PartitionId, error: Callable[[], LogboomError]) -> None:
        """The partition is gone: whoever cannot be satisfied without it is told so."""
        for goal in [goal for goal in self._goals.values() if partition_id in goal.targets]:
            if not goal.over and goal.there(partial(self._short, goal)):  # as in ``expire``
                self._meet(goal)
                continue
            goal.behind.discard(partition_id)
            goal.gone.add(partition_id)
            if not goal.possible_without(0):
                for waiter in list(goal.waiters):
                    self._finish(waiter, error())
            else:
                self._give_up(goal)
        for key, heap in self._heaps.pop(partition_id, {}).items():
            self._due.pop((partition_id, key), None)
            self._entries -= len(heap)
        for known in (self._durable, self._snapshotted, self._noticed):
            known.pop(partition_id, None)
        self._whole.discard(partition_id)
        self.others.ended(partition_id)
        self.answers.go()

    # -- answering

    def _meet(self, goal: Goal, seen: Seen | None = None) -> None:
        """All who wait for it are to be answered. ``seen``: what others are told, of the same level, meanwhile."""
        partitions = tuple(goal.targets)
        where = seen.get(partitions) if seen is not None else None
        if where is None:
            where = self._where(goal.want, gone=goal.gone)
            if seen is not None:
                seen[partitions] = where
        waiters = list(goal.waiters)
        goal.waiters.clear()
        for waiter in waiters:
            self._quotas.remove(waiter)
            if waiter.leading:
                self._leading.pop(waiter, None)
        self._left(goal, len(waiters))
        self.answers.add(waiters, where)

    def _finish(self, waiter: Waiter, answer: Reached | LogboomError) -> None:
        done, waiter.done = waiter.done, None
        self._forget(waiter)
        if done is not None:
            done(answer)

    def _forget(self, waiter: Waiter) -> None:
        goal = waiter.goal
        if not waiter.waits:
            return
        del goal.waiters[waiter]
        self._quotas.remove(waiter)
        self._leading.pop(waiter, None)
        self._left(goal, 1)

    def _left(self, goal: Goal, count: int) -> None:
        """So many of those who waited for it do no longer."""
        self._dead += count
        if goal.over:
            del self._goals[goal.want]
            if goal.want.reach in CLUSTER:
                self.others.unwant(goal.want)
            self._dead += len(goal.behind)
        if self._dead > DEAD_KEPT and 2 * self._dead > self._entries + len(self._deadlines):
            self._sweep()

    def _sweep(self) -> None:
        """What is over stays in the heaps until popped; never more of it than of what is not."""
        self._dead = self._entries = 0
        self._deadlines = [entry for entry in self._deadlines if entry[2].waits]
        heapq.heapify(self._deadlines)
        self._ahead = []
        for partition_id, heaps in list(self._heaps.items()):
            for key, heap in list(heaps.items()):
                # In place: a wake-up may be walking this very heap.
                heap[:] = [entry for entry in heap if not entry[2].over]
                heapq.heapify(heap)
                self._entries += len(heap)
                if heap:
                    self._expect(partition_id, key, heap[0][0])
                else:
                    del heaps[key]
                    self._due.pop((partition_id, key), None)
            if not heaps:
                del self._heaps[partition_id]

    def _where(self, want: Want, *, gone: Collection[PartitionId] = ()) -> Reached:
        there = [p for p in want.partitions if p not in gone and self._watermarks.has(p)]
        rows = [(p, self.frontier(p, want.level, want.reach)) for p in there]
        return Reached(self._watermarks.all(there), rows)

    # -- blocked

    def _tell_blocked(self, partition_id: PartitionId) -> None:
        """It may hold somebody up from now on."""
        for heap in list(self._heaps.get(partition_id, {}).values()):
            for goal in [goal for _, _, goal in heap]:
                if partition_id in goal.behind:
                    self._give_up(goal)

    def _give_up(self, goal: Goal) -> None:
        """Tell whoever does not want to wait for an operator, if one is needed."""
        impatient = [waiter for waiter in goal.waiters if not waiter.wait_blocked]
        stuck = self._stuck(goal) if impatient else {}
        if stuck:
            error = blocked(goal.want, stuck, self._where(goal.want, gone=goal.gone))
            for waiter in impatient:
                if waiter.done is not None:
                    self._finish(waiter, error)

    def _stuck(self, goal: Goal) -> dict[PartitionId, str]:
        """Partitions because of which it cannot be met for now, and how they are; none: it can."""
        if goal.want.level is Level.ORDERED:
            return {}
        states = {p: self._stuck_state(p, goal) for p in sorted(goal.behind)}
        stuck = {p: state for p, state in states.items() if state}
        return {} if goal.possible_without(len(stuck)) else stuck

    def _stuck_state(self, partition_id: PartitionId, goal: Goal) -> str:
        """The state that keeps a partition from its target; empty: none does."""
        state = self._watermarks.holding(partition_id, goal.want.level)
        if goal.want.reach in CLUSTER:
            level, own = goal.want.level, (self.frontier(partition_id, goal.want.level), state)
            return self.others.stuck(partition_id, level, goal.want.reach, goal.targets[partition_id], own=own)
        if state == "frozen" and self.leads and goal.targets[partition_id] > self._commit:
            return state  # what is committed is applied all the same, and only a leader knows that this is not
        holds = holds_up(state, goal.want.level)
        # It may be there, and whoever waits for that has yet to have his turn.
        return state if holds and self.frontier(partition_id, goal.want.level) < goal.targets[partition_id] else ""
