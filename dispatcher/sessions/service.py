"""The client protocol's server side, as far as all sessions of a node share it: rules, counts, whose turn it is."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import Any, Final

import structlog

from dispatcher.pipeline.backend import Backend
from dispatcher.reading.read_rates import ReadRates
from dispatcher.requests.tracing import Tracer
from dispatcher.sessions.looks import Looks
from dispatcher.sessions.sending_away import SendingAway
from dispatcher.sessions.session import Session
from dispatcher.sessions.session_counts import SessionCounts
from dispatcher.sessions.status import status
from dispatcher.sessions.turns import OneATurn, Turns
from logboom.access import Right, Rules
from logboom.certs import Renewed
from logboom.errors import PermissionDenied
from logboom.settings import Settings
from ports.seldom import Seldom

log = structlog.get_logger(__name__)

TICK_S: Final = 0.02
LOOK_S: Final = 0.5
"""Between two looks at the rules."""
CUT_S: Final = 1.0
"""Whoever has other rights now has so long to take what it was answered by those before."""
TROUBLE_SHOWN_MAX: Final = 500


class ClientService:
    """All client sessions of one node."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        tracer: Tracer | None = None,
        rules: Renewed[Rules] | None = None,
        usage: Callable[[], dict[str, int | None]] = dict,
    ) -> None:
        """``rules`` None: everybody may do everything. ``usage``: what the process takes and has done, for STATUS."""
        self.backend = backend
        self.settings = settings
        self.tracer = tracer
        self._usage = usage
        self._rules_now = rules
        self.rules = None if rules is None else rules()
        self._sending_away = SendingAway()
        self._look_at = 0.0
        """When at the rules; while somebody looks, never."""
        self.counts = SessionCounts()
        self.seldom = Seldom(backend.clock.monotonic)
        self.sessions: dict[Session, None] = {}
        """In the order in which they came: what is done to each is done in an order that can be repeated."""
        self.started = backend.clock.monotonic()
        self.turns = Turns(backend.clock)
        self.looks = Looks(backend.clock)
        self.one_status: AbstractAsyncContextManager[None] = OneATurn()
        """Held while one is put together and encoded."""
        self.strangers = itertools.count(1)
        """Numbers for those without a name."""
        burst_ms = settings.admission.rate_burst_ms
        self.read_rates = ReadRates(per_s=settings.reads.principal_bytes_per_s, burst_ms=burst_ms, clock=backend.clock)
        self._timer: asyncio.TimerHandle | None = None

    @cached_property
    def version(self) -> str:
        """The installed package's; "0" if it is not installed. Looked up when asked for: a node starts sooner."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("logboom")
        except PackageNotFoundError:
            return "0"

    def accept(self) -> Session:
        """A handler for a new connection."""
        return Session(self)

    def start(self) -> None:
        """Begin to expire barriers, and to look at the rules."""
        self._tick()

    def _tick(self) -> None:
        try:
            now = self.backend.clock.monotonic()
            self.backend.barriers.expire(now)
            self._sending_away.look(now, self.backend.leaderless, self.sessions)
            self._renew()
        finally:  # whatever goes wrong: the next deadline comes
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _renew(self) -> None:
        """Look at the rules, now and then, off the loop: there may be many."""
        now = self.backend.clock.monotonic()
        if self._rules_now is not None and now >= self._look_at:
            self._look_at = math.inf
            self.backend.offload.submit(self._rules_now, self._renewed)

    def _renewed(self, rules: Rules | None, error: BaseException | None) -> None:
        """Whose rights are others now is cut: all that is under way was judged by those before."""
        self._look_at = self.backend.clock.monotonic() + LOOK_S
        if error is not None:
            self.seldom.say(log.error, "access_not_renewed", error=repr(error), exc_info=error)
        if rules is None or rules is self.rules:
            return
        self.rules = rules
        ended = [session for session in self.sessions if session.may_have_changed(rules)]
        log.info("access_renewed", rules=rules.count, digest=rules.digest, ended=len(ended))
        for session in ended:
            session.connection.close()
            asyncio.get_running_loop().call_later(CUT_S, session.connection.abort)  # whoever does not read

    def check_operator(self, names: frozenset[str], right: Right, remote: str) -> None:
        """Somebody asks over HTTP. Raises PermissionDenied."""
        if self.rules is not None:
            grants = self.rules.of(names)
            if not grants.where(right).everywhere:
                error = grants.denied(right)
                self.denied(error, remote)
                raise error

    def denied(self, error: PermissionDenied, remote: str) -> None:
        """Counted, and told; not each time, where somebody tries again and again."""
        self.counts.denied[Right(error.right)] += 1
        self.seldom.say(log.warning, "access_denied", remote=remote, **error.fields)

    async def status(self, *, digests: bool = False) -> dict[str, Any]:
        """See dispatcher.sessions.status; with what is known here."""
        return {
            **await status(self.backend, digests=digests),
            "sessions": len(self.sessions),
            "usage": self._usage(),
            "uptime_s": self.backend.clock.monotonic() - self.started,
            "version": self.version,
            "rules": None if self.rules is None else self.rules.digest,
            "rules_trouble": self.rules_trouble[:TROUBLE_SHOWN_MAX],
        }

    @property
    def rules_trouble(self) -> str:
        """Why the file of rules is not gone by as it is now, and this node would not start with it; empty: it would."""
        return "" if self._rules_now is None else self._rules_now.trouble

    async def close(self) -> None:
        """End all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        for session in list(self.sessions):
            session.connection.close()
