"""One request's attempts: what became of them, when the next one is due, and how long all of it may take."""

from __future__ import annotations

from typing import Any, Final, Protocol

from logboom.client.connection import NodeConnection
from logboom.errors import (
    BarrierBlocked,
    BarrierTimeout,
    DeadlineExceeded,
    InvalidRequest,
    LogboomError,
    NotLeader,
    PartitionPaused,
    UnknownOutcome,
)

TIMEOUT_S_MAX: Final = 366 * 86_400
EARLY_S: Final = 1.0
"""What a node ends so long before the deadline is over by its own limit (``net.request_ms_max``), not by that."""
BACKOFF_MIN_S: Final = 0.01
BACKOFF_MAX_S: Final = 0.5
AWAY_MAX_S: Final = 2.0
"""Between attempts of whoever is sent from node to node: where nobody leads all who wait are, as long as that lasts."""
REDIRECTS_MAX: Final = 3
ANSWER_MIN_S: Final = 0.25
"""Whoever is told when to ask again does so with that much time left for an answer, or half of what he was told."""


class Asked(Protocol):
    """What attempts need of the cluster."""

    closed: bool

    @property
    def now(self) -> float:
        """The loop's clock."""

    def chance(self) -> float:
        """From 0 to 1, for jitter."""

    def heard(self, error: LogboomError, at: NodeConnection | None = None) -> None:
        """Learn from an answer who leads."""


def seconds(given: Any, name: str = "timeout") -> float:
    """How long something may take, or may lie back. Raises InvalidRequest."""
    try:
        if 0 <= given <= TIMEOUT_S_MAX:
            return float(given)
    except TypeError:
        pass
    raise InvalidRequest(f"{name} is 0 to {TIMEOUT_S_MAX} seconds, not {given!r}")


def is_final(error: LogboomError, left_s: float) -> bool:
    """An operator has to do something; or a barrier's end.

    Not that of one whom the node has let wait no longer, with time left: it is asked again.
    """
    if isinstance(error, (BarrierBlocked, PartitionPaused)):
        return True
    return isinstance(error, BarrierTimeout) and left_s <= EARLY_S


def is_sent_away(error: LogboomError) -> bool:
    """It is from a node that hears of no leader: others are to be asked for what is waited for."""
    return isinstance(error, BarrierTimeout) and bool(error.fields.get("retry_after"))


class Attempts:
    """What became of one request's attempts, and when the next one is due."""

    def __init__(self, cluster: Asked, *, deadline: float, writes: bool, same: bool = False) -> None:
        """``same``: each attempt says that it is the same request, so that it takes effect once however often made."""
        self._cluster, self._deadline, self._writes, self._same = cluster, deadline, writes, same
        self._pause = BACKOFF_MIN_S
        self._redirects = 0
        self._doubt = False
        """An attempt may have taken effect."""
        self._last: LogboomError | None = None

    def failed(self, error: LogboomError, at: NodeConnection | None = None) -> float:
        """Seconds until the next attempt. Raises ``error``, or what must be said in its place, if there is none.

        ``at``: who was asked, if somebody was.
        """
        cluster, self._last = self._cluster, error
        cluster.heard(error, at)
        doubted = self._doubt
        self._doubt |= self._writes and error.outcome != "not_applied"
        wait, left, answer = 0.0, self._deadline - cluster.now, 0.0
        if isinstance(error, NotLeader) and error.fields.get("leader") and self._redirects < REDIRECTS_MAX:
            self._redirects += 1
        else:
            self._redirects = 0
            away = is_sent_away(error)
            pause = min(self._pause, AWAY_MAX_S if away else BACKOFF_MAX_S)
            self._pause = pause * 2
            later = float(error.fields.get("retry_after") or 0.0)
            wait = max(later, pause) * (0.5 + cluster.chance())
            answer = min(later / 2, ANSWER_MIN_S)  # else a refusal would become a doubt, at the deadline
            if away:
                wait = min(wait, max(0.0, left - EARLY_S))  # then whoever is asked keeps it to its end
        # An earlier attempt may be on its way still. Given up now, its numbers would be settled while it comes, and of
        # a request over several partitions only those parts would be taken for done that others have followed.
        on_its_way = doubted and isinstance(error, PartitionPaused)
        again = error.retryable or (self._same and isinstance(error, DeadlineExceeded) and left > EARLY_S)
        final = cluster.closed or not again or (is_final(error, left) and not on_its_way)
        if final or cluster.now + wait + answer >= self._deadline:
            if self._doubt and error.outcome == "not_applied":
                raise _doubtful(error, final=final) from error
            raise error
        return wait

    def too_late(self, *, sent: bool) -> DeadlineExceeded:
        """The deadline has passed while an attempt was under way."""
        return DeadlineExceeded(
            "the deadline passed before an answer came" + (f"; the one before: {self._last}" if self._last else ""),
            outcome="unknown" if self._writes and (sent or self._doubt) else "not_applied",
        )


def _doubtful(error: LogboomError, *, final: bool) -> LogboomError:
    """The last attempt had no effect, an earlier one may have had."""
    if final:
        return error.again(outcome="unknown")
    return UnknownOutcome(f"the deadline passed; an earlier attempt was sent, the last one failed: {error}")
