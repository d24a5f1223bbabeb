"""Whether a receipt is true when it is given: ordered where it says, and as far as whoever asked wanted to wait for.

Clients cannot see that: what is committed is durable, and applied, a moment later on nearly every day.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from chaos.sim.host import Host
from dispatcher.backend import Backend
from dispatcher.pending import Done
from dispatcher.requests import SubmitReply, SubmitRequest
from logboom.errors import LogboomError
from logboom.types import Level

Fail = Callable[[str, str], None]


class ReceiptWatch:
    """``fail(invariant, story)`` ends the run."""

    def __init__(self, batches: Mapping[tuple[int, int], tuple[int, bytes]], fail: Fail) -> None:
        """``batches``: what was committed anywhere: by partition and last index, the global index (and digest)."""
        self._batches = batches
        self._fail = fail

    def started(self, host: Host, backend: Backend) -> None:
        """From now on what it answers is looked at."""
        submitting: Any = backend.submitting
        submit = submitting.submit

        def submitted(request: SubmitRequest, done: Done, owner: Hashable) -> Any:
            if not backend.raft.admits:
                return submit(request, done, owner)  # another node's answer is passed on, if any

            def answered(reply: SubmitReply | LogboomError) -> None:
                if isinstance(reply, SubmitReply):
                    self._check(host, backend, request.wait, reply)
                done(reply)

            return submit(request, answered, owner)

        submitting.submit = submitted

    def _check(self, host: Host, backend: Backend, wait: Level, reply: SubmitReply) -> None:
        for partition, _, last, global_index, *_ in reply.parts:
            story = f"{host.name} answers that {partition}/{last} is {wait} at {global_index}"
            known = self._batches.get((partition, last))
            if known is None or known[0] != global_index or backend.parent.global_index < global_index:
                self._fail("ReceiptTrue", f"{story}; it is {known}, and {backend.parent.global_index} committed here")
            worker, log = backend.workers.get(partition), backend.logs.get(partition)
            if worker is None or log is None:
                continue  # destroyed since
            if wait is Level.DURABLE and log.durable_index < last:
                self._fail("ReceiptTrue", f"{story}; durable is {log.durable_index}")
            if wait is Level.APPLIED and worker.applied_index < last:
                self._fail("ReceiptTrue", f"{story}; applied is {worker.applied_index}")
