"""Checks that stay on in production (``assert`` disappears under ``-O``)."""

from __future__ import annotations


class InvariantViolated(AssertionError):
    """logboom's own promise is broken: the node must stop rather than go on."""


def invariant(holds: bool, story: str) -> None:  # noqa: FBT001 - reads as a sentence at the call
    """Stop with ``story`` unless ``holds``."""
    if not holds:
        raise InvariantViolated(story)
