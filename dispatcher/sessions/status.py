"""What a node says of itself: STATUS for clients, ``/status`` for operators."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from dispatcher.barriers.watermarks import to_row
from dispatcher.pipeline.backend import Backend
from dispatcher.reading import reads

WITHHELD_SHOWN_MAX: Final = 16


async def status(backend: Backend, *, digests: bool) -> dict[str, Any]:
    """Header of a STATUS_REPLY, but for what the sessions know."""
    backend.look()
    rows = await _digests(backend) if digests else None
    admission = backend.admission
    # What has not recovered may have shown more before; what stands still must be seen all the same.
    marks = [m for m in backend.watermarks.all() if m.state != "running" or backend.recovered([m.partition_id])]
    return {
        **backend.status(),
        "partitions": [to_row(mark) for mark in marks],
        "backlog": [[p, *admission.used(p)] for p in backend.partition_ids()],
        "node_backlog": list(admission.used()),
        "admission": _admission(backend),
        "waiters": len(backend.barriers),
        "digests": rows,
    }


def _admission(backend: Backend) -> dict[str, Any]:
    admission, waiting = backend.admission, backend.submitting.waiting
    judged = islice(admission.judged(), WITHHELD_SHOWN_MAX)
    return {
        "admitted": admission.admitted,
        "refused": dict(admission.refused_by),
        "waiting": [len(waiting), waiting.nbytes],
        "waited": waiting.entered,
        "withheld": [[p, verdict.signal, verdict.pressure] for p, verdict in judged],
        "signal_failures": dict(backend.signals.failures),
    }


async def _digests(backend: Backend) -> list[list[object]]:
    rows: list[list[object]] = []
    for partition in backend.partition_ids():
        found = await reads.digest(backend, partition)
        if found is None:
            continue  # its row says that it is damaged
        digest, position = found
        reached = max(position.applied_global_index, backend.watermarks.of(partition).applied_global_index)
        rows.append([partition, reached, digest])
    return rows
