"""Pace: how much is admitted a second where those who ask for little would notice those who ask for much. Sans-io.

Small requests of light principals are timed, from their admission to their commit. If more than one in a hundred takes
longer than ``admission.light_commit_ms``, those who ask for much are slowed down: a fifth for each that was late, and a
ninety-ninth of that faster for each that was in time, so that it settles where one in a hundred is late (the steps of a
stochastic approximation of a quantile, Robbins and Monro). It is a rate of the whole node, shared as a partition's
(``rates``), and not for light principals. While nobody light is there to be disturbed it grows. Without a target, and
before anything was late, there is none.
"""

from __future__ import annotations

import math
from typing import Final

from dispatcher.admission.budgets import Parts, Refusal
from dispatcher.admission.rates import Owed
from logboom.settings import AdmissionSettings
from ports.invariant import invariant

GATE: Final = "node_pace"
BATCH_COST: Final = 1024
"""In bytes: what a batch costs beside its own."""
SMALL: Final = 16 * 1024
"""In cost: what takes longer because it is larger says nothing of what stands in its way."""
LIGHT: Final = 0.25
"""A principal is light with at most so much of what the one with the most had of late, or owes."""
HEAVY: Final = 0.5
"""With less of it by others than light ones, slowing them down would not help."""
WINDOW_S: Final = 0.5
"""*Of late* is the present window and the one before."""
STEP_S: Final = 0.1
SAMPLES: Final = 10
"""Commits that count in a step; of more each counts for less, so that many light ones mean the same as a few."""
DOWN: Final = 0.2
UP: Final = DOWN / 99
DOWN_MIN: Final = 0.5
"""A step slows down to so much of the pace at the lowest: a disk that stood still is late for everybody at once."""
ALONE_S: Final = 1.0
"""After so long with nobody light the pace grows."""
ALONE_UP: Final = 1.05
"""It is so many times as fast after each step, then."""
MEASURED: Final = 1.5
"""What is lowered is what was admitted of late, and so much more."""
BURST_S: Final = 0.05
"""So much ahead of the pace at most: what comes at once is in the way at once."""


class Window:
    """What was admitted in half a second: all of it, and by whom."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.whole = 0.0
        self.heavy = 0.0
        """How much of it by those who are not light."""
        self.of: dict[str, float] = {}
        self.began: dict[str, float] = {}
        """When the first of each was admitted."""
        self.most = 0.0
        """What the principal with the most has had."""

    def take(self, principal: str, cost: float, now: float) -> None:
        """It was admitted."""
        self.whole += cost
        if principal:
            self.began.setdefault(principal, now)
            own = self.of[principal] = self.of.get(principal, 0.0) + cost
            self.most = max(self.most, own)


class Pace:
    """How much a second heavy writers of one node may write while light ones would notice."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._target_s = settings.light_commit_ms / 1000
        self._least = settings.pace_bytes_per_s_min
        share = settings.fair_share_percent / 100
        self._factor = share / (1 - share) if share < 1 else 0.0
        self.on = self._target_s > 0
        self.per_s = math.inf
        """In cost: bytes, and ``BATCH_COST`` a batch."""
        self._owed = Owed(0.0)
        self._window = self._before = Window(0.0)
        self._late = self._early = 0
        self._light_at = -math.inf
        self._binds = False
        """Somebody was refused by it in this step."""
        self._stepped_at = 0.0

    @property
    def bytes_per_s(self) -> int | None:
        """In cost; None: there is none."""
        return None if self.per_s == math.inf else round(self.per_s)

    def refusal(self, parts: Parts, now: float, principal: str) -> Refusal | None:
        """Whether this has to wait, and for how long."""
        if self.exempts(parts, principal):
            return None
        cost = _cost(parts)
        owed = self._owed
        owed.pay(now)
        cost /= self.per_s
        waits = owed.wait(principal, cost, BATCH_COST / self.per_s, burst_s=BURST_S, factor=self._factor)
        wait = max(waits)
        if wait <= 0:
            return None
        self._binds = True
        used = round(self.per_s * (owed.whole + cost) / BURST_S)
        share_of = principal if owed.of(principal) else None
        most = round(self.per_s)
        return Refusal(GATE, None, used, most, retry_after=wait, share_of=share_of, opens_at=now + wait)

    def exempts(self, parts: Parts, principal: str) -> bool:
        """It slows this one down by nothing: nobody whom it holds back does either."""
        return self.per_s == math.inf or self._is_light(principal, _cost(parts))

    def take(self, parts: Parts, now: float, principal: str) -> bool:
        """It was admitted. True: it is a small one of somebody light, so say when it is committed."""
        cost = _cost(parts)
        is_light = self._is_light(principal, cost)
        self._window.take(principal, cost, now)
        if not is_light:
            self._window.heavy += cost
            if self.per_s != math.inf:
                self._owed.pay(now)
                self._owed.add(principal, cost / self.per_s)
        return is_light and bool(principal) and cost <= SMALL

    def _is_light(self, principal: str, more: float) -> bool:
        """With so much more. '' is the node's own."""
        if not principal:
            return True
        window, before = self._window, self._before
        own = window.of.get(principal, 0.0) + before.of.get(principal, 0.0) + more
        if own <= LIGHT * (window.most + before.most):
            return True
        # At a low pace a large request is owed for long after the windows that it came in.
        owed = self._owed
        return self.per_s != math.inf and owed.of(principal) + more / self.per_s <= LIGHT * owed.most

    def committed(self, since: float, now: float) -> None:
        """A small request of a light principal is, which was admitted at ``since``."""
        self._light_at = now
        if now - since > self._target_s:
            self._late += 1
        else:
            self._early += 1

    def tick(self, now: float) -> None:
        """Time passes: slower, or faster."""
        if not self.on or now - self._stepped_at < STEP_S:
            return
        late, early, binds = self._late, self._early, self._binds
        self._stepped_at, self._late, self._early, self._binds = now, 0, 0, False
        window, before = self._window, self._before
        whole, heavy = window.whole + before.whole, window.heavy + before.heavy
        counted = late + early
        step = (UP * early - DOWN * late) * min(1.0, SAMPLES / counted) if counted else 0.0
        if step < 0 and heavy > HEAVY * whole:
            admitted = whole / max(STEP_S, now - self._began())
            per_s = admitted if self.per_s == math.inf else min(self.per_s, MEASURED * admitted)
            self.per_s = max(self._least, per_s * max(DOWN_MIN, math.exp(step)))
        elif step > 0 and binds:
            self.per_s *= math.exp(step)
        elif binds and now - self._light_at > ALONE_S:
            self.per_s *= ALONE_UP
        if now - window.since >= WINDOW_S:
            self._before, self._window = window, Window(now)

    def _began(self) -> float:
        """When, within the windows, the one with the most did: what was before says nothing of how fast it goes."""
        window, before = self._window, self._before
        of = {**before.of, **window.of}
        most = max(of, key=lambda each: before.of.get(each, 0.0) + window.of.get(each, 0.0))
        return {**window.began, **before.began}[most]

    def forget(self) -> None:
        """Another node leads; what was measured here says nothing when this one does again."""
        self.per_s = math.inf
        self._owed = Owed(self._owed.at)

    def audit(self) -> None:
        """It is no less than it may be, and what is owed is whole."""
        invariant(self.per_s >= self._least, "a pace of {} bytes/s", self.per_s)
        self._owed.audit()


def _cost(parts: Parts) -> float:
    return sum(part[2] for part in parts) + BATCH_COST * len(parts)
