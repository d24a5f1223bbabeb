"""What is kept of a request that may have to wait: the fields that its kind has, and nothing else of its header.

Whoever reads them looks at each; what nobody knows is ignored, and takes many times its size as long as it is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from logboom.wire import Frame, Kind

FRESH: Final = frozenset(("read", "at_least", "max_staleness_ms", "timeout_ms"))
RANGE: Final = frozenset(("prefix", "start", "end", "limit"))
FIELDS: Final[Mapping[Kind, frozenset[str]]] = {
    Kind.GET: FRESH | {"partition", "keys", "lengths"},
    Kind.SCAN: FRESH | RANGE | {"partition"},
    Kind.VIEW_SCAN: FRESH | RANGE | {"partitions"},
    Kind.DATA_READ: frozenset(("rows", "timeout_ms")),
    Kind.INDEX_AT: frozenset(("timestamp_ms", "timeout_ms")),
    Kind.STATUS: frozenset(("digests",)),
}
"""Fields of the requests that whoever may read, or see the status, can have wait; as in docs/protocol.md."""


def relevant(frame: Frame) -> Frame:
    """The frame without fields that its kind does not have."""
    known = FIELDS.get(frame.kind)
    if known is None or frame.header.keys() <= known:
        return frame
    return frame._replace(header={name: value for name, value in frame.header.items() if name in known})
