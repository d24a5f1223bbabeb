"""What files that are allocated ahead end in."""

from __future__ import annotations

from typing import Final

_ZEROS: Final = bytes(64 * 1024)


def only_zeros(raw: bytes, start: int = 0) -> bool:
    """From ``start`` on. Compares in place: a start looks at megabytes of them."""
    end = len(raw)
    if start >= end:
        return True
    while end - start >= len(_ZEROS):
        if not raw.startswith(_ZEROS, start):
            return False
        start += len(_ZEROS)
    return raw.endswith(_ZEROS[: end - start], start)
