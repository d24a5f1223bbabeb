"""What operators see of a node over HTTP: metrics, health, status, a page. It only reads.

The data path comes first: numbers are read in slices of the loop, text is made on a thread of its own, and
however many ask for metrics at once, they get the same answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from dispatcher.sessions.turns import OneATurn
from logboom.access import Right
from logboom.errors import PermissionDenied
from ports.http import HttpRequest, HttpResponse
from ports.offload import Offload
from raftlog.entries.configuration import Role
from server.metrics.sample import Sample, Watched, take
from server.watching.loop_lag import LoopLag
from server.watching.page import PAGE, PAGE_HEADERS
from server.watching.stacks import stacks

BEHIND_SHOWN_MAX: Final = 8
WAITING: Final = "waiting"
"""The role of a node until the log has it."""
NO_VOTE_YET: Final = ("rejoining", str(Role.JOINING))
"""Whoever replaces nodes one after the other has to wait for it: without the next one a majority may be away."""
FORMATS_MAX: Final = 8
"""Ways to ask for metrics that are told apart; the rest get plain text."""

ANYBODY: Final = ("/healthz", "/readyz")
"""Paths that are asked for by whatever restarts nodes, or sends clients to them."""
STACKS: Final = "/debug/stacks"
Answer = Callable[[HttpRequest], Awaitable[HttpResponse]]
Pages = Mapping[str, Answer]


class Operators:
    """What one node tells its operators over HTTP. ``respond`` is what an HTTP server calls."""

    def __init__(self, watched: Watched, offload: Offload) -> None:
        self._watched = watched
        self._offload = offload
        self._lag = LoopLag()
        self._asked: Counter[tuple[str, int]] = Counter()
        self._scrape_s = 0.0
        self._scrapes: dict[tuple[str, bool], asyncio.Task[HttpResponse]] = {}
        self._one_status = OneATurn()
        """Clients have their own: however many of those ask, whoever operates the node is told."""
        self.stopping = False
        """Set when the node is about to stop: it is not ready any more."""
        self._probes: Pages = {"/healthz": self._healthz, "/readyz": self._readyz}
        self._pages: Pages = {"/": self._page, "/metrics": self._metrics, **self._probes, "/status": self._status}
        if watched.settings.http.debug:
            self._pages = {**self._pages, STACKS: self._stacks}

    def start(self) -> None:
        """Begin to measure."""
        self._lag.start()

    async def close(self) -> None:
        """Scrapes under way are dropped; threads end."""
        self._lag.stop()
        for task in self._scrapes.values():
            task.cancel()
        await asyncio.gather(*self._scrapes.values(), return_exceptions=True)
        await self._offload.close()

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """See ports.http."""
        return await self._respond(self._pages, request)

    async def probed(self, request: HttpRequest) -> HttpResponse:
        """The same where anybody may ask: whether the node lives and is ready, and no more."""
        return await self._respond(self._probes, request)

    async def _respond(self, pages: Pages, request: HttpRequest) -> HttpResponse:
        page = pages.get(request.path)
        if page is None:
            response = HttpResponse.text(404, f"there are: {' '.join(pages)}")
        else:
            try:
                self._check(request)
                response = await page(request)
            except PermissionDenied as error:
                response = HttpResponse.text(403, error.message)
            except Exception:  # is answered with that
                self._asked[request.path, 500] += 1
                raise
        self._asked[request.path if page is not None else "other", response.status] += 1
        return response

    def _check(self, request: HttpRequest) -> None:
        """Raises PermissionDenied. Without rules whoever has come here may look."""
        if request.path not in ANYBODY:
            right = Right.ADMIN if request.path == STACKS else Right.STATUS
            self._watched.service.check_operator(request.names, right, f"http {request.path}")

    # -- pages

    async def _page(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, PAGE, "text/html; charset=utf-8", PAGE_HEADERS)

    async def _healthz(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse.text(200, "ok")  # whoever reads this knows that the loop turns

    async def _readyz(self, _: HttpRequest) -> HttpResponse:
        why = self.not_ready()
        return HttpResponse.text(200, "ready") if why is None else HttpResponse.text(503, f"not ready: {why}")

    def not_ready(self) -> str | None:
        """Why no client should be sent here; None: one may."""
        backend = self._watched.backend
        if self.stopping:
            return "it is stopping"
        role = backend.role()
        if role == "removed":
            return "it is no member of the cluster any more"
        if role == WAITING:
            return "waiting: no cluster has taken it in yet (`logboom members add`)"
        if role in NO_VOTE_YET:
            return f"{role}: it has no vote yet"
        if not backend.recovery.over:
            backend.look()
            behind = [p for p in backend.partition_ids() if not backend.recovered([p])]
            shown = ", ".join(map(str, behind[:BEHIND_SHOWN_MAX])) + (", …" if len(behind) > BEHIND_SHOWN_MAX else "")
            return f"recovering: {len(behind)} of {len(backend.partition_ids())} partitions are not there yet ({shown})"
        if backend.raft.engine.leader is None:
            return "no leader is known"
        return None

    async def _status(self, _: HttpRequest) -> HttpResponse:
        service = self._watched.service
        async with self._one_status:
            return HttpResponse(200, msgspec.json.encode(await service.status()), "application/json")

    async def _stacks(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stacks().encode())

    # -- metrics

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        accept, gzipped = request.headers.get("accept", ""), "gzip" in request.headers.get("accept-encoding", "")
        if len(self._scrapes) >= FORMATS_MAX:
            accept = ""
        key = (accept, gzipped)
        task = self._scrapes.get(key)
        if task is None:
            task = self._scrapes[key] = asyncio.get_running_loop().create_task(self._scrape(accept, gzipped=gzipped))
            task.add_done_callback(lambda _: self._scrapes.pop(key))
        return await asyncio.shield(task)

    async def _scrape(self, accept: str, *, gzipped: bool) -> HttpResponse:
        sample = await take(self._watched, spent=self._spent)
        self._own(sample)
        body, content_type, compressed = await self._offload.run(lambda: _text(sample, accept=accept, gzipped=gzipped))
        headers = {"Vary": "Accept, Accept-Encoding", **({"Content-Encoding": "gzip"} if compressed else {})}
        return HttpResponse(200, body, content_type, headers)

    def _spent(self, seconds: float) -> None:
        self._scrape_s = seconds

    def _own(self, sample: Sample) -> None:
        sample.put("ready", self.not_ready() is None)
        sample.put("event_loop_lag_seconds", self._lag.seconds.snapshot())
        sample.put("scrape_loop_seconds", self._scrape_s)
        for (path, status), count in self._asked.items():
            sample.put("http_requests_total", count, path, str(status))


def _text(sample: Sample, *, accept: str, gzipped: bool) -> tuple[bytes, str, bool]:
    """See render, which is loaded here, on the thread: a node is sooner at work without it."""
    from server.metrics.exposition import render

    return render(sample, accept=accept, gzipped=gzipped)
