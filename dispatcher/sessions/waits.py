"""What one connection waits for: barriers, with their progress, and streams of watermarks. Frames in, frames out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from dispatcher.barriers.barriers import CLUSTER
from dispatcher.barriers.frontiers import holds_up
from dispatcher.barriers.goals import Goal, Reached, Waiter, Want, sent_away
from dispatcher.barriers.watermarks import to_row
from dispatcher.pipeline.backend import Backend
from dispatcher.requests.requests import field_of
from dispatcher.requests.tracing import Trace
from dispatcher.sessions.looks import Due, Later, on_the_loop
from dispatcher.sessions.named import Named
from dispatcher.sessions.over_all import OverAll
from dispatcher.sessions.watching import Watch
from logboom.errors import InvalidRequest, LineageMismatch, LogboomError, NotLeader, QuotaExceeded
from logboom.types import GlobalLogIndex, Level, PartitionId, Scope, lineage_shown
from logboom.wire import FLAG_MORE, Alike, Frame, Kind, shown
from ports.net import Connection

TARGETS_MAX: Final = 4_096
"""Rows of a vector target, and partitions of a barrier that tells its progress."""
PROGRESS_MS_MIN: Final = 10
SHARED_ROWS_MAX: Final = 1_024
"""Partitions of an answer that is encoded once for all whom it is for: larger ones may be above what a client takes."""
WATCHES_MAX: Final = 64
WATCHED_MAX: Final = 1 << 20
"""Partitions that are followed on a node, those of each stream counted: what it was told last takes 100 bytes each.
Half of them for one principal."""
ELSEWHERE_S: Final = 1.5
"""With so much time left a client that is told that a barrier is not reached asks again; with a second, no more."""
ROWS_OF_ONE: Final = 32
"""So many partitions in an answer are as much work as one more answer."""
RETRY_AFTER_S: Final = 0.1


class Replies(Protocol):
    """The session."""

    def reply(self, request_id: int, kind: Kind, header: dict[str, Any], *, flags: int = 0) -> None:
        """One frame."""
        ...

    def fail(self, request_id: int, error: LogboomError) -> None:
        """An ERROR frame."""
        ...

    def has_room(self) -> bool:
        """The client reads what it is sent."""
        ...

    def reached(self) -> None:
        """A barrier has been."""
        ...

    @property
    def is_open(self) -> bool:
        """The connection is not over."""
        ...

    @property
    def connection(self) -> Connection:
        """While it is open."""
        ...


class Waits:
    """What one connection waits for and watches."""

    def __init__(self, backend: Backend, replies: Replies, named: Named, *, later: Later = on_the_loop) -> None:
        self._backend = backend
        self._replies = replies
        self._named = named
        self.later = later
        self._waiters: dict[int, Waiter] = {}
        self._traces: dict[int, Trace] = {}
        self._over_all = OverAll(backend, goes_on=self._goes_on, done=self._done)
        self._together = self._all_reached
        """One object for all of its waiters: they are told apart by it from those of other connections."""
        self._progress: dict[int, _Progress] = {}
        self._watches: dict[int, Watch] = {}
        self._watched_as: Hashable = None
        """Whose they are: the same principal's as long as the connection lasts."""

    # -- barriers

    def barrier(self, frame: Frame, deadline: float, principal: Hashable, trace: Trace | None = None) -> None:
        """A BARRIER. Raises what the client is to be told."""
        header, backend, request_id = frame.header, self._backend, frame.request_id
        want, scope = self._want(header)
        every_ms = field_of(header, "progress_ms", int, 0)
        if every_ms and len(want.targets) > TARGETS_MAX:
            raise InvalidRequest(f"progress is told of at most {TARGETS_MAX} partitions, not of {len(want.targets)}")
        if request_id in self._waiters:
            raise InvalidRequest(f"request {request_id} is under way")
        patient = bool(header.get("wait_blocked", False))
        want = self._enough(want if patient else backend.voiding.check_blocked(want), patient=patient)
        self._named.check_shown(want.partitions)
        if scope is Scope.LEADER and not backend.raft.admits:
            raise NotLeader("this node does not lead", leader=backend.leader_address())

        if trace is not None:
            self._traces[request_id] = trace

        ask = partial(
            backend.barriers.add,
            client=self,
            principal=principal,
            deadline=deadline,
            wait_blocked=patient,
            leading=scope is Scope.LEADER,
            now=backend.clock.monotonic(),
        )
        if want.need < 0 and header.get("targets") is None and header.get("partitions") is None:
            self._over_all.begin(request_id, want, ask)
        done = partial(self._done, request_id)
        try:
            waiter = ask(want, done=done, together=self._together, number=request_id, told=bool(every_ms))
        except LogboomError:
            self._traces.pop(request_id, None)
            self._over_all.ended(request_id)
            raise
        if waiter is not None:
            self._waiters[request_id] = waiter
            backend.hurry(waiter.behind)
            if every_ms:
                self._progress[request_id] = _Progress(self, request_id, waiter, max(every_ms, PROGRESS_MS_MIN) / 1000)
            if backend.leaderless.for_long and self._has_time(waiter) and self._is_beyond(waiter.goal):
                self._send_one_away(waiter)

    def send_away(self, most: int) -> int:
        """Nobody has led for long, as far as is known here: who waits for what others would say is sent to others.

        ``most``: answers. How many were given.
        """
        given, known = 0, dict[Goal, bool]()
        for waiter in list(self._waiters.values()):
            if given >= most:
                break
            goal = waiter.goal
            if goal not in known:
                known[goal] = goal.want.reach in CLUSTER or self._is_beyond(goal)
            if known[goal] and waiter.waits and self._has_time(waiter):
                self._send_one_away(waiter)
                given += 1 + len(goal.targets) // ROWS_OF_ONE
        return given

    def _is_beyond(self, goal: Goal) -> bool:
        """It cannot be reached by what is committed here."""
        commit = self._backend.global_commit_index()
        return not goal.possible_without(sum(goal.targets[p] > commit for p in goal.behind))

    def _has_time(self, waiter: Waiter) -> bool:
        return waiter.deadline - self._backend.clock.monotonic() > ELSEWHERE_S

    def _send_one_away(self, waiter: Waiter) -> None:
        barriers, done, goal = self._backend.barriers, waiter.done, waiter.goal
        error = sent_away(goal.want, sorted(goal.behind), barriers.progress(waiter))
        barriers.cancel(waiter)
        if done is not None:
            done(error)

    def _done(self, request_id: int, answer: Reached | LogboomError) -> None:
        if isinstance(answer, LogboomError):
            self._ends(request_id, answer)
            self._replies.fail(request_id, answer)
        else:
            self._all_reached([request_id], answer)

    def _goes_on(self, request_id: int, waiter: Waiter) -> None:
        self._waiters[request_id] = waiter
        self._stop(request_id)  # all are there that it told of

    def _all_reached(self, request_ids: list[int], where: Reached) -> None:
        """These are, by the same move. What they are told is encoded once, and leaves as a whole."""
        sent, replies = [], self._replies
        if self._over_all:
            request_ids = self._over_all.answered(request_ids, where)
        for request_id in request_ids:
            self._ends(request_id, where)
            replies.reached()
            if request_id:
                sent.append(request_id)
        if len(where.marks) > SHARED_ROWS_MAX:
            for request_id in sent:
                replies.reply(request_id, Kind.REACHED, self._where(where))
            return
        if where.packed is None:
            where.packed = Alike(Kind.REACHED, self._where(where))
        if sent and replies.is_open:
            replies.connection.send([where.packed.to(sent)], frames=len(sent))

    def _where(self, where: Reached) -> dict[str, Any]:
        return {
            "global_index": self._backend.global_commit_index(),
            "node": self._backend.node_id,
            "cluster": self._backend.cluster.id,
            "watermarks": [to_row(mark) for mark in where.marks],
            "frontiers": [list(row) for row in where.frontiers],
        }

    def _ends(self, request_id: int, answer: Reached | LogboomError) -> None:
        """It is answered: nobody waits for it any more."""
        self._waiters.pop(request_id, None)
        self._over_all.ended(request_id)
        if self._progress:
            self._stop(request_id)
        if self._traces:
            trace = self._traces.pop(request_id, None)
            if trace is not None:
                trace.end(answer)

    def _enough(self, want: Want, *, patient: bool) -> Want:
        """Without the partitions that may not be shown yet, where the others are enough.

        They are if they are there, or if what is hidden stands still; ``patient``: it may go on.
        """
        backend = self._backend
        backend.look()
        if want.need < 0 or backend.recovered(want.partitions):
            return want
        hidden = {p for p in want.partitions if not backend.recovered([p])}
        left = [row for row in want.targets if row[0] not in hidden]
        there = sum(backend.barriers.frontier(p, want.level, want.reach) >= target for p, target in left)
        if there < want.needed:
            level, holding = want.level, backend.watermarks.holding
            still = [p for p in hidden if not patient and holds_up(holding(p, level), level)]
            left = [row for row in want.targets if row[0] not in still]
        return want._replace(targets=tuple(left)) if len(left) >= want.needed else want

    def _want(self, header: Mapping[str, Any]) -> tuple[Want, Scope]:
        cluster = header.get("cluster")
        if cluster is not None and cluster != self._backend.cluster.id:
            raise LineageMismatch(
                f"an index of cluster {shown(cluster)} says nothing about {self._backend.cluster.id!r}",
                cluster=shown(cluster),
                expected=self._backend.cluster.id,
            )
        lineage, ours = header.get("lineage"), self._backend.lineage
        if lineage is not None and ours is not None and lineage != ours:
            raise LineageMismatch(
                f"an index of another history of this cluster ({shown(lineage)}) says nothing about this one "
                f"({lineage_shown(ours)}): it was restored",
                cluster=shown(lineage),
                expected=ours,
            )
        scope = _choice(header, "scope", Scope, Scope.NODE)
        level = _choice(header, "level", Level, Level.APPLIED)
        rows = header.get("targets")
        if rows is None:
            target = GlobalLogIndex(field_of(header, "global_index", int))
            targets = tuple((p, target) for p in self._named.all_or_named(header))
        else:
            targets = self._vector(rows)
        reach = scope if scope in (Scope.QUORUM, Scope.ALL) else Scope.NODE
        return Want(targets, level, reach, _need(header)), scope

    def _vector(self, rows: Any) -> tuple[tuple[PartitionId, GlobalLogIndex], ...]:
        if not isinstance(rows, list) or not 1 <= len(rows) <= TARGETS_MAX:
            raise InvalidRequest(f"targets must be a list of 1 to {TARGETS_MAX} pairs")
        for row in rows:
            if not isinstance(row, list) or len(row) != 2 or any(type(v) is not int or v < 0 for v in row):
                raise InvalidRequest(f"a target is a partition and a global index, not {shown(row)}")
        self._named.check_known([row[0] for row in rows])
        return tuple((PartitionId(p), GlobalLogIndex(target)) for p, target in rows)

    def tell(self, request_id: int, waiter: Waiter, known: dict[PartitionId, int]) -> None:
        """Where a waiter's partitions are, as far as the client does not know it. It may find the link full."""
        if not self._replies.has_room():
            return
        where = self._backend.barriers.progress(waiter, self._backend.clock.monotonic())
        rows = [[p, frontier] for p, frontier in where.frontiers if known.get(p) != frontier]
        if rows:
            known.update(where.frontiers)
            goal = waiter.goal
            reply = {
                "node": self._backend.node_id,
                "frontiers": rows,
                "reached": len(goal.targets) - len(goal.behind) - len(goal.gone),
                "needed": goal.want.needed,
            }
            self._replies.reply(request_id, Kind.BARRIER_PROGRESS, reply, flags=FLAG_MORE)

    # -- watching

    def watermarks(self, frame: Frame) -> None:
        """A WATERMARKS: once, and now. Raises what the client is to be told."""
        partitions = list(dict.fromkeys(self._named.partitions(frame.header)))
        self._named.check_shown(partitions)
        reply = {
            "commit_index": self._backend.global_commit_index(),
            "node": self._backend.node_id,
            "watermarks": [to_row(mark) for mark in self._backend.watermarks.all(partitions)],
        }
        self._replies.reply(frame.request_id, Kind.WATERMARKS_REPLY, reply)

    def watch(self, frame: Frame, principal: Hashable) -> None:
        """A WATCH: again and again. Raises what the client is to be told."""
        request_id = frame.request_id  # the frame, and whatever is in it, is not kept for as long as this lasts
        if request_id in self._watches or len(self._watches) >= WATCHES_MAX:
            raise QuotaExceeded(
                "too many streams of watermarks",
                limit=WATCHES_MAX,
                used=len(self._watches),
                retry_after=RETRY_AFTER_S,
            )
        partitions = list(dict.fromkeys(self._named.partitions(frame.header)))
        self._named.check_shown(partitions)
        watched = self._backend.watched
        watched.check(principal, len(partitions), most=WATCHED_MAX)
        every = frame.header.get("partitions") is None

        def send(header: dict[str, Any]) -> None:
            self._replies.reply(request_id, Kind.WATCHED, header, flags=FLAG_MORE)

        def ended(error: LogboomError) -> None:
            self._unwatch(request_id)
            self._replies.fail(request_id, error)

        self._watches[request_id] = watch = Watch(
            self._backend,
            None if every else partitions,
            every_ms=field_of(frame.header, "every_ms", int, 100),
            send=send,
            has_room=self._replies.has_room,
            ended=ended,
            later=self.later,
            width=len(partitions),
        )
        self._watched_as = principal
        watched.take(principal, watch.width)
        watch.move()

    def _unwatch(self, request_id: int) -> None:
        watch = self._watches.pop(request_id, None)
        if watch is not None:
            watch.close()
            self._backend.watched.take(self._watched_as, -watch.width)

    # -- leaving

    def cancel(self, request_id: int) -> None:
        """The client waits for it no longer."""
        waiter = self._waiters.pop(request_id, None)
        if waiter is not None:
            self._backend.barriers.cancel(waiter)
            self._traces.pop(request_id, None)
            self._over_all.ended(request_id)
        self._stop(request_id)
        self._unwatch(request_id)

    def close(self) -> None:
        """The client is gone."""
        self._backend.barriers.client_gone(self)
        for progress in self._progress.values():
            progress.close()
        for request_id in list(self._watches):
            self._unwatch(request_id)
        for left in (self._waiters, self._progress, self._traces):
            left.clear()
        self._over_all.close()

    def _stop(self, request_id: int) -> None:
        progress = self._progress.pop(request_id, None)
        if progress is not None:
            progress.close()


class _Progress:
    """Tells of one waiter, again and again. What has not moved is not told."""

    def __init__(self, waits: Waits, request_id: int, waiter: Waiter, every: float) -> None:
        self._tell: Callable[[], None] = lambda: waits.tell(request_id, waiter, self._known)
        self._known: dict[PartitionId, int] = {}
        self._later: Callable[[], Due] = lambda: waits.later(every, self._move)
        self._move()

    def _move(self) -> None:
        self._tell()
        self._timer = self._later()

    def close(self) -> None:
        self._timer.cancel()


def _choice(header: Mapping[str, Any], name: str, kind: Any, default: Any) -> Any:
    value = header.get(name, default)
    if not isinstance(value, str) or value not in {str(each) for each in kind}:
        raise InvalidRequest(f"{name} must be {', '.join(map(str, kind))}, not {shown(value)}")
    return kind(value)


def _need(header: Mapping[str, Any]) -> int:
    """``mode``: `all`, `any`, or how many partitions."""
    mode = header.get("mode", "all")
    if mode == "all":
        return -1
    if mode == "any":
        return 1
    if type(mode) is not int or mode < 1:
        raise InvalidRequest(f"mode must be all, any or a number of partitions, not {shown(mode)}")
    return mode
