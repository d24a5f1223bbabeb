"""What only looks at a node, and tells of it: the operators' HTTP port, metrics, spans. Off the data path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from dispatcher.pipeline.backend import Backend
from dispatcher.requests.tracing import Tracer
from dispatcher.sessions.service import ClientService
from logboom import certs
from logboom.settings import Settings
from logboom.types import NodeId
from partitions.apply.apply_counts import ApplyCounts
from ports.http import HttpLimits
from ports.net import Listener, Traffic
from server.metrics.sample import Watched
from server.watching.certificates import Certificates
from server.watching.operators import Operators
from server.watching.spans import Export, SpanFile, SpanPost, SpanQueue
from server.watching.upkeep import Upkeep
from server.world.world import World

log = structlog.get_logger(__name__)

PROBE_S: Final = 2.0
"""Who probes asks at once: a connection there has no more time than that to do so."""


class Watching:
    """Metrics, traces and the operators' port of one node.

    Made before its parts, which count into it; ``start`` is told of them.
    """

    def __init__(self, settings: Settings, node_id: NodeId, world: World, tls: certs.Tls | None) -> None:
        self._settings = settings
        self._node_id = node_id
        self._world = world
        self._tls = tls
        self.clients, self.peers = Traffic(), Traffic()
        self.installs = 0
        """Times that this process has made the node anew."""
        self.operators: Operators | None = None
        self._listeners: list[Listener] = []
        self._certificates = Certificates(
            settings.tls.directory, node_id, warn_days=settings.tls.warn_days, clock=world.clock
        )
        self._upkeep = Upkeep(world.places, world.clock)
        self._spans = self._span_queue()

    def _span_queue(self) -> SpanQueue | None:
        trace, make = self._settings.trace, self._world.background
        if not trace.sample or make is None:
            return None
        exports: list[Export] = []
        if trace.file:
            exports.append(SpanFile(Path(trace.file), trace.file_bytes))
        if trace.endpoint:
            exports.append(SpanPost(trace.endpoint))
        resource = {
            "service.name": "logboom",
            "service.instance.id": str(self._node_id),
            "logboom.cluster": self._settings.cluster.id,
        }
        return SpanQueue(resource=resource, exports=exports, spans_max=trace.spans_max, offload=make("spans"))

    def tracer(self) -> Tracer | None:
        """None: nothing is traced, and nothing costs anything."""
        if self._spans is None:
            return None
        return Tracer(
            sample=self._settings.trace.sample, clock=self._world.clock, rng=self._world.rng, emit=self._spans.emit
        )

    def _exported(self) -> tuple[int, int]:
        return (0, 0) if self._spans is None else (self._spans.exported, self._spans.dropped)

    async def start(self, backend: Backend, service: ClientService, applied: ApplyCounts) -> None:
        """Listen, where there is an address. Raises ConfigError."""
        settings, world = self._settings, self._world
        self._certificates.start()
        self._upkeep.start()
        http_address, probe_address = settings.node.http_address, settings.node.probe_address
        if not (http_address or probe_address) or world.http is None or world.background is None:
            return
        watched = Watched(
            settings=settings,
            node_id=self._node_id,
            clock=world.clock,
            backend=backend,
            service=service,
            applied=applied,
            client_traffic=self.clients,
            peer_traffic=self.peers,
            fsyncs=world.fsyncs,
            certificates=lambda: self._certificates.ends,
            log_lines_lost=world.log_lines_lost,
            upkeep_still_s=lambda: self._upkeep.still_s,
            spans=self._exported,
            installs=self.installs,
        )
        http = settings.http
        limits = HttpLimits(
            connections_max=http.connections_max,
            request_s=http.request_ms / 1000,
            request_bytes=http.request_bytes,
            headers_max=http.headers_max,
        )
        self.operators = Operators(watched, world.background("http"))
        if http_address:
            found = await world.http.listen(http_address, self.operators.respond, limits=limits, tls=self._tls)
            self._listeners.append(found)
            log.info("http", address=found.address)
        if probe_address:
            limits = replace(limits, request_s=min(limits.request_s, PROBE_S))
            found = await world.http.listen(probe_address, self.operators.probed, limits=limits, tls=None)
            self._listeners.append(found)
            log.info("probes", address=found.address)
        self.operators.start()

    def stopping(self) -> None:
        """Nobody should begin anything here any more."""
        if self.operators is not None:
            self.operators.stopping = True

    async def close(self) -> None:
        """Last of all: what is asked meanwhile is answered."""
        self._certificates.stop()
        self._upkeep.stop()
        for listener in self._listeners:
            await listener.close()
        if self.operators is not None:
            await self.operators.close()
        if self._spans is not None:
            await self._spans.close()


def not_renewed(error: str) -> None:
    """Certificate files that do not fit together; those before them are used."""
    log.warning("certificates_not_renewed", error=error)


def rules_not_renewed(error: str) -> None:
    """A file of rules that is wrong, or gone; those before it are gone by."""
    log.warning("access_not_renewed", error=error)
