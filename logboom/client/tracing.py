"""Who asks, for a node that traces (W3C Trace Context): given, or OpenTelemetry's, where the program has that."""

from __future__ import annotations

import sys
from typing import Any

SAMPLED = 1


def parent(given: str | None) -> str | None:
    """A ``traceparent``: the one given, else the current span's if it is sampled."""
    if given is not None:
        return given
    # Whoever has a current span has imported this.
    module: Any = sys.modules.get("opentelemetry.trace")
    if module is None:
        return None
    context = module.get_current_span().get_span_context()
    if not context.is_valid or not context.trace_flags & SAMPLED:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{SAMPLED:02x}"


def header(said: str | None) -> dict[str, str]:
    """The field of a request, if there is anything to say."""
    return {} if said is None else {"traceparent": said}
