"""Who waits to be admitted is refused when he has waited as long as he said, and not before.

But for those who want it applied, where that would be too late. Clients ask again, and cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from chaos.sim.host import Host
from chaos.sim.receipts import level_of
from dispatcher.pipeline.backend import Backend
from dispatcher.pipeline.pending import Done
from dispatcher.requests.requests import SubmitRequest
from logboom.errors import LogboomError, Overloaded
from logboom.types import Level

Fail = Callable[[str, str], None]


def look_at_waiting(host: Host, backend: Backend, fail: Fail) -> None:
    """``fail(invariant, story)`` ends the run."""
    submitting: Any = backend.submitting
    submit = submitting.submit

    def submitted(request: SubmitRequest, done: Done, owner: Hashable) -> Any:
        waiting = submit(request, done, owner)
        if waiting is not None:
            look_at(waiting, request.wait)
        return waiting

    def look_at(waiting: Any, asked: Level | None) -> None:
        failed, partitions = waiting.failed, [part[0] for part in waiting.parts]

        def told(error: LogboomError) -> None:
            left = waiting.until - backend.clock.monotonic()
            if isinstance(error, Overloaded) and left > 0:
                level = level_of(backend.cluster, backend.parent.chosen, asked, partitions)
                if level is not Level.APPLIED:
                    story = f"a request for {partitions} that waits until it is {level}, and {left:.3f} s more"
                    fail("RefusedInTime", f"{host.name} refuses {story} to be admitted: {error}")
            failed(error)

        waiting.failed = told

    submitting.submit = submitted
