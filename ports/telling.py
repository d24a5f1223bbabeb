"""What is said of an error out of a user's code: its ``repr`` is code of a user, too, and may raise."""

from __future__ import annotations

from typing import Final

TOLD_MAX: Final = 2048
"""Characters. What a user raises may have a batch as its argument: megabytes, in each line of the log."""


def tellable(error: BaseException) -> str:
    """``repr`` of it, else ``str``, else the name of its type; never raises, and what it gives can be sent."""
    for tell in (repr, str):
        try:
            told = str.__str__(tell(error))  # of a class derived from str: as a plain one
        except BaseException:  # noqa: BLE001, S112 - a user's code: that there is no telling is all that comes of it
            continue
        told = told if len(told) <= TOLD_MAX else f"{told[:TOLD_MAX]}..."
        return told.encode(errors="backslashreplace").decode()
    return type(error).__name__
