"""Tracing sampled requests: one span per stage of a write, and per barrier. Sans-io but for the clock it is given.

A request that is not sampled carries None, and costs one ``is None`` wherever something might be noted. The
stages end where the next begins: *admit* (checks, budget), *append* (batches built, in the log and on the links,
proposed), *replicate* (until a quorum has it synced), *commit* (bound to its global index on this node), *apply*
(one span per partition). A node that passes a request on to the leader passes on whose part it is: *forwarded* is what
the leader does for it. Of what followers do there is one span each and batch, *replica*: from when it has come until it
is synced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from logboom.errors import LogboomError
from logboom.wire import Frame
from ports.clock import Clock
from ports.rng import Rng

TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
TRACEPARENT_CHARS_MAX: Final = 128
SAMPLED: Final = 1
NANOSECONDS: Final = 1_000_000_000

Value = str | int | float | bool


class Span(NamedTuple):
    """A span that has ended. Ids are lower-case hex, times nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: none."""
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    error: str | None
    """A code of ``logboom.errors``."""
    linked: bool
    """It links to its parent, which may have ended long before it began."""


class Parent(NamedTuple):
    """Who has asked, as W3C Trace Context says it."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(said: object) -> Parent | None:
    """None for whatever is not one: a request is not refused for it."""
    if not isinstance(said, str) or len(said) > TRACEPARENT_CHARS_MAX:
        return None
    match = TRACEPARENT.fullmatch(said)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    if not match[2].strip("0") or not match[3].strip("0"):
        return None
    return Parent(match[2], match[3], bool(int(match[4], 16) & SAMPLED))


class Tracer:
    """Decides which requests are traced. ``emit`` takes every span that has ended, and never waits."""

    def __init__(self, *, sample: float, clock: Clock, rng: Rng, emit: Callable[[Span], None]) -> None:
        self._sample = sample
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self.started = 0

    def begin(self, name: str, said: object, attributes: Mapping[str, Value]) -> Trace | None:
        """A request has come; ``said``: its ``traceparent``, if it has one. None: it is not sampled."""
        parent = parse_traceparent(said)
        sampled = self._rng.random() < self._sample if parent is None else parent.sampled
        if not sampled:
            return None
        self.started += 1
        trace_id = parent.trace_id if parent is not None else self._rng.randbytes(16).hex()
        return Trace(self, name, trace_id, parent.span_id if parent is not None else "", dict(attributes))

    def now(self) -> float:
        """Seconds; see Clock."""
        return self._clock.monotonic()

    def wall_ns(self) -> int:
        """Where a trace's times begin."""
        return self._clock.wall_ms() * (NANOSECONDS // 1000)

    def span_id(self) -> str:
        """A new one."""
        return self._rng.randbytes(8).hex()

    def emit(self, span: Span) -> None:
        """It has ended."""
        self._emit(span)


def begin(tracer: Tracer, name: str, frame: Frame, remote: str) -> Trace | None:
    """A client's request has come."""
    return tracer.begin(name, frame.header.get("traceparent"), {"request_id": frame.request_id, "remote": remote})


class Trace:
    """One sampled request, from its beginning until all of it is applied."""

    __slots__ = (
        "_attributes",
        "_began",
        "_began_ns",
        "_committed",
        "_mark",
        "_name",
        "_parent_id",
        "_span_id",
        "_trace_id",
        "_tracer",
    )

    def __init__(self, tracer: Tracer, name: str, trace_id: str, parent_id: str, attributes: dict[str, Value]) -> None:
        self._tracer = tracer
        self._name = name
        self._trace_id = trace_id
        self._parent_id = parent_id
        self._span_id = tracer.span_id()
        self._attributes = attributes
        self._began = self._mark = self._committed = tracer.now()
        self._began_ns = tracer.wall_ns()

    @property
    def trace_id(self) -> str:
        """For logs."""
        return self._trace_id

    @property
    def traceparent(self) -> str:
        """For another node: what it does for this request is a part of it."""
        return f"00-{self._trace_id}-{self._span_id}-01"

    def stage(self, name: str, **attributes: Value) -> None:
        """What began where the last stage ended is over."""
        now = self._tracer.now()
        self._send(name, self._mark, now, attributes)
        self._mark = now

    def committed(self, **attributes: Value) -> None:
        """A quorum has it: from here on it is applied."""
        self.stage("replicate")
        self._committed = self._mark
        self.stage("commit", **attributes)

    def applied(self, **attributes: Value) -> None:
        """One partition's share of it is; the request may have been answered long before."""
        self._send("apply", self._committed, self._tracer.now(), attributes, linked=True)

    def end(self, answer: object) -> None:
        """The request is answered."""
        error = answer.code if isinstance(answer, LogboomError) else None
        began, now, who = self._began, self._tracer.now(), self._span_id
        self._emit(self._name, began, now, self._attributes, span_id=who, parent_id=self._parent_id, error=error)

    def _send(
        self, name: str, start: float, end: float, attributes: Mapping[str, Value], *, linked: bool = False
    ) -> None:
        span_id, parent_id = self._tracer.span_id(), self._span_id
        self._emit(name, start, end, attributes, span_id=span_id, parent_id=parent_id, linked=linked)

    def _emit(
        self,
        name: str,
        start: float,
        end: float,
        attributes: Mapping[str, Any],
        *,
        span_id: str,
        parent_id: str,
        error: str | None = None,
        linked: bool = False,
    ) -> None:
        def wall(moment: float) -> int:
            return self._began_ns + int((moment - self._began) * NANOSECONDS)

        span = Span(
            name=name,
            trace_id=self._trace_id,
            span_id=span_id,
            parent_id=parent_id,
            start_ns=wall(start),
            end_ns=wall(end),
            attributes=attributes,
            error=error,
            linked=linked,
        )
        self._tracer.emit(span)
