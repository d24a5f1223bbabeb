"""What barriers are made of: what somebody wants, who waits for it, how many may. Sans-io."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

from dispatcher.barriers.watermarks import to_row
from logboom.errors import BarrierBlocked, BarrierTimeout, LogboomError, NoSuchPartition, QuotaExceeded
from logboom.settings import BarrierSettings
from logboom.types import GlobalLogIndex, Level, PartitionId, Scope, Watermark
from logboom.wire import Alike

RETRY_AFTER_S: Final = 0.1
AWAY_AFTER_S: Final = 0.05
TARGETS_PER_PLACE: Final = 16
"""So many targets may be waited for in all where one barrier may wait: each takes up to 400 bytes, a barrier 1,500."""


class Want(NamedTuple):
    """A condition: ``need`` of the partitions are at their target. Equal ones are waited for together."""

    targets: tuple[tuple[PartitionId, GlobalLogIndex], ...]
    level: Level = Level.APPLIED
    reach: Scope = Scope.NODE
    """Whose frontier counts: this node's, that of a majority of voters, or that of all members."""
    need: int = -1
    """How many partitions have to be there; -1: all."""

    @property
    def partitions(self) -> tuple[PartitionId, ...]:
        """As asked for."""
        return tuple(partition_id for partition_id, _ in self.targets)

    @property
    def target(self) -> int:
        """The highest."""
        return max((target for _, target in self.targets), default=0)

    @property
    def needed(self) -> int:
        """How many partitions have to be there."""
        return len(self.targets) if self.need < 0 else self.need


@dataclass(slots=True, eq=False)
class Reached:
    """Where this node's partitions stood when it was reached, and how far each was in the scope asked for.

    Whoever is woken by the same move shares one, and what is made of it.
    """

    marks: list[Watermark]
    frontiers: list[tuple[PartitionId, int]]
    packed: Alike | None = None
    """As a frame, once somebody has encoded it."""


Done = Callable[[Reached | LogboomError], None]
Together = Callable[[list[int], Reached], None]
"""Told that many of its waiters are reached, by their numbers."""


@dataclass(slots=True, eq=False)
class Goal:
    """A want that is not reached yet, and all who wait for it. Over as soon as nobody does."""

    want: Want
    targets: dict[PartitionId, GlobalLogIndex]
    behind: set[PartitionId] = field(default_factory=set)
    gone: set[PartitionId] = field(default_factory=set)
    """Partitions that were destroyed meanwhile."""
    waiters: dict[Waiter, None] = field(default_factory=dict)
    bearer: Waiter | None = None
    """The waiter for whom its targets count, in ``Quotas``."""

    @property
    def over(self) -> bool:
        """Nobody waits for it any more."""
        return not self.waiters

    @property
    def met(self) -> bool:
        """As many partitions as are needed are there."""
        return len(self.targets) - len(self.behind) - len(self.gone) >= self.want.needed

    def possible_without(self, lost: int) -> bool:
        """It can be met although ``lost`` of those behind never get there."""
        return len(self.targets) - len(self.gone) - lost >= self.want.needed

    def there(self, short: Callable[[PartitionId], bool]) -> bool:
        """As many are as are needed, whatever is known of it: of no more is it asked than that takes."""
        lost = 0
        for partition_id in self.behind:
            lost += short(partition_id)
            if not self.possible_without(lost):
                return False
        return self.possible_without(lost)


@dataclass(slots=True, eq=False)
class Waiter:
    """One barrier that is not reached yet."""

    client: Hashable
    principal: Hashable
    goal: Goal
    deadline: float
    _: KW_ONLY
    wait_blocked: bool
    leading: bool
    """To be told as soon as this node no longer leads."""
    done: Done | None
    together: Together | None = None
    """Called in place of ``done`` when it is reached; the same for all waiters of a client."""
    number: int = 0
    """By which ``together`` knows it."""
    told: bool = False
    """How far each partition is, too, which is kept for it alone."""
    reading: bool = False
    """A read of what is committed, which has places of its own."""
    targets: int = 0
    """So many targets count for it, in ``Quotas``."""

    @property
    def waits(self) -> bool:
        """It is not reached, and nobody has cancelled it. Who is reached may still have to be told."""
        return self in self.goal.waiters

    @property
    def behind(self) -> set[PartitionId]:
        """Partitions that are not there yet."""
        return self.goal.behind


class Quotas:
    """Who waits how often: per connection, per principal, over all; some places are kept for the node itself.

    And for how many targets, of which each takes memory: those of equal wants once, for one of who wait. Reads have as
    many places of their own, a target each: barriers keep none of them out, nor they barriers.
    """

    def __init__(self, settings: BarrierSettings) -> None:
        self._settings = settings
        self._clients: dict[Hashable, dict[Waiter, None]] = {}
        self._principals: dict[tuple[Hashable, bool], int] = {}
        self._count = self._reads = 0
        self._targets_of: dict[Hashable, int] = {}
        self._targets_as: dict[Hashable, int] = {}
        self._targets = 0

    def __len__(self) -> int:
        return self._count

    def of(self, client: Hashable) -> list[Waiter]:
        """All waiters of a client."""
        return list(self._clients.get(client, ()))

    def check(
        self, client: Hashable, principal: Hashable, goal: Goal, *, own: bool, told: bool = False, reading: bool = False
    ) -> None:
        """One more may wait for it. Raises QuotaExceeded."""
        limits, more = self._settings, len(goal.targets) * (goal.over + told)
        who = "this connection" if principal is client else f"{principal}"
        for_all = limits.waiters_max - (0 if own else limits.waiters_reserved)
        if not own:
            _check("this connection", len(self._clients.get(client, ())), limits.waiters_per_client, reading=reading)
            of_his = self._principals.get((principal, reading), 0)
            _check(who, of_his, limits.waiters_per_principal, reading=reading)
        _check("this node", self._reads if reading else self._count - self._reads, for_all, reading=reading)
        if reading or not more:
            return
        if not own:
            _check_targets("this connection", self._targets_of.get(client, 0), more, limits.waiters_per_client)
            _check_targets(who, self._targets_as.get(principal, 0), more, limits.waiters_per_principal)
        _check_targets("this node", self._targets, more, for_all)

    def add(self, waiter: Waiter) -> None:
        """It waits."""
        who = waiter.principal, waiter.reading
        self._count += 1
        self._reads += waiter.reading
        self._clients.setdefault(waiter.client, {})[waiter] = None
        self._principals[who] = self._principals.get(who, 0) + 1
        if waiter.goal.bearer is None:
            self._bear(waiter)
        if waiter.told:
            self._take(waiter, len(waiter.goal.targets))

    def remove(self, waiter: Waiter) -> None:
        """It does no longer, and is not among those who wait for its goal."""
        mine, who = self._clients[waiter.client], (waiter.principal, waiter.reading)
        self._count -= 1
        self._reads -= waiter.reading
        del mine[waiter]
        if not mine:
            del self._clients[waiter.client]
        self._principals[who] -= 1
        if not self._principals[who]:
            del self._principals[who]
        if waiter.targets:
            self._take(waiter, -waiter.targets)
        if waiter.goal.bearer is waiter:
            waiter.goal.bearer = None
            for other in waiter.goal.waiters:  # they are there still, whoever asked first
                self._bear(other)
                break

    def _bear(self, waiter: Waiter) -> None:
        waiter.goal.bearer = waiter
        if not waiter.reading:  # its place has its target
            self._take(waiter, len(waiter.goal.targets))

    def _take(self, waiter: Waiter, more: int) -> None:
        waiter.targets += more
        self._targets += more
        for taken, who in ((self._targets_of, waiter.client), (self._targets_as, waiter.principal)):
            taken[who] = taken.get(who, 0) + more
            if not taken[who]:
                del taken[who]


def _check(who: str, used: int, limit: int, *, reading: bool) -> None:
    if used >= limit:
        why = f"{used} {'reads' if reading else 'barriers'} of {who} are waiting, and no more may"
        raise QuotaExceeded(why, limit=limit, used=used, retry_after=RETRY_AFTER_S)


def _check_targets(who: str, used: int, more: int, places: int) -> None:
    limit = TARGETS_PER_PLACE * places
    if used and used + more > limit:  # one alone may have as many as there are partitions
        raise QuotaExceeded(
            f"barriers of {who} wait for {used} targets, a partition at an index each, and {more} more are too many: "
            "name the partitions that matter",
            limit=limit,
            used=used,
            retry_after=RETRY_AFTER_S,
        )


def unknown(partition_id: PartitionId, count: int) -> NoSuchPartition:
    """There are ``count`` others."""
    return NoSuchPartition(f"partition {partition_id} does not exist", partition_id=partition_id, partitions=count)


def timed_out(want: Want, behind: Sequence[PartitionId], reached: Reached) -> BarrierTimeout:
    """Time ran out."""
    return BarrierTimeout(
        f"the barrier at {want.target} was not reached in time; partitions behind: {list(behind)}",
        target=want.target,
        behind=list(behind),
        **_fields(reached),
    )


def sent_away(want: Want, behind: Sequence[PartitionId], reached: Reached) -> BarrierTimeout:
    """There is time left, and no more to be waited for here: whoever asks again does so elsewhere."""
    return BarrierTimeout(
        f"the barrier at {want.target} is not reached here while this node hears of nothing new; ask another; "
        f"partitions behind: {list(behind)}",
        target=want.target,
        behind=list(behind),
        retry_after=AWAY_AFTER_S,
        **_fields(reached),
    )


def blocked(want: Want, stuck: dict[PartitionId, str], reached: Reached) -> BarrierBlocked:
    """It cannot be reached while these are as they are."""
    states = ", ".join(f"partition {p} is {state}" for p, state in stuck.items())
    return BarrierBlocked(
        f"{states}: the barrier at {want.target} cannot be reached",
        blocked=[[p, state] for p, state in stuck.items()],
        target=want.target,
        **_fields(reached),
    )


def _fields(reached: Reached) -> dict[str, Any]:
    return {
        "watermarks": [to_row(mark) for mark in reached.marks],
        "frontiers": [list(row) for row in reached.frontiers],
    }
