"""Checks that stay on in production (``assert`` disappears under ``-O``)."""

from __future__ import annotations


class InvariantViolated(AssertionError):
    """logboom's own promise is broken: the node must stop rather than go on."""


def invariant(holds: bool, story: str, *parts: object) -> None:  # noqa: FBT001 - reads as a sentence at the call
    """Stop with ``story``, its ``{}`` filled with ``parts``, unless ``holds``. Only then is anything formatted."""
    if not holds:
        raise InvariantViolated(story.format(*parts) if parts else story)
