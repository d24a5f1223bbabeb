"""Where a client lives: in its process, and on the event loop that it is first used on."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import cached_property
from typing import NoReturn

from logboom.errors import InvalidRequest

_forks = 0
"""Forks between the first process and this one: a child has all that its parent has, and a higher number."""


def _forked() -> None:
    global _forks  # noqa: PLW0603 - one for each process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Unportable:
    """A client: its connections are of this process."""

    def __reduce__(self) -> NoReturn:
        """For pickle and copy, and what takes a client along that a function of the user's refers to."""
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied, it holds connections: make one where it is used, in "
            "each process (with Spark, in what foreachPartition calls)"
        )


class Home:
    """See the module."""

    _thread = 0

    def __init__(self) -> None:
        self._made_after = _forks

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Asking for it each time would cost a system call."""
        self._thread = threading.get_ident()
        return asyncio.get_running_loop()

    @property
    def now(self) -> float:
        """The loop's clock, which deadlines are on."""
        return self.loop.time()

    def begin(self) -> float:
        """The same, for a call that begins. Raises InvalidRequest on another loop, and in a forked child.

        There the parent's loop seems to run, on this thread; what is sent is sent over the parent's connections, in
        the midst of what that sends, and with the numbers that it gives to other commands.
        """
        if self._made_after != _forks:
            raise InvalidRequest(
                "this client belongs to the process that it was made in, and this is another, forked from that: make "
                "one in each"
            )
        loop = self.loop
        if threading.get_ident() != self._thread or not loop.is_running():
            raise InvalidRequest(
                "this client belongs to the event loop that it was first used on, and this is another: make one on each"
            )
        return loop.time()

    @property
    def is_left(self) -> bool:
        """The loop is closed, and with it all that was under way; or all of it is the parent's of this process."""
        return self._made_after != _forks or ("loop" in self.__dict__ and self.loop.is_closed())
