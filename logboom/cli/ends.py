"""How a command ends before its time: nobody reads what it writes, Ctrl-C, no answer."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from logboom.cli import talk
from logboom.errors import LogboomError
from logboom.sync_client import SyncClient


@contextmanager
def while_read(client: SyncClient) -> Iterator[None]:
    """What follows by ``client`` ends once nobody reads stdout any more, as `| head` does when it has enough.

    A write would say so; but whoever follows may have nothing to write for hours. Raises BrokenPipeError, as that does.
    """
    stdout = _pipe()
    if stdout is None:
        yield
        return
    with closing(_Reader(stdout, client)) as reader:
        try:
            yield
        except LogboomError:
            if not reader.has_left:
                raise
        if reader.has_left:
            raise BrokenPipeError


def _pipe() -> int | None:
    """Stdout, if its other end is another process's; None: a file, a terminal, or nothing."""
    with suppress(AttributeError, OSError, ValueError):  # it is closed, or none of the process's own
        stdout = sys.stdout.fileno()
        mode = os.fstat(stdout).st_mode
        if hasattr(select, "poll") and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return stdout
    return None


class _Reader:
    """Whoever reads a pipe that this process writes to: watched on a thread, which closes the client when he leaves."""

    def __init__(self, pipe: int, client: SyncClient) -> None:
        self.has_left = False
        self._pipe, self._client = pipe, client
        self._done, self._end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="logboom-stdout", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._end)
        self._thread.join()
        os.close(self._done)

    def _watch(self) -> None:
        poll = select.poll()
        for each in (self._pipe, self._done):
            poll.register(each, 0)  # for nothing but that the other end is closed
        if any(each == self._pipe for each, _ in poll.poll()):
            self.has_left = True
            self._client.close()


@contextmanager
def in_doubt(story: str, *, done: bool = False) -> Iterator[None]:
    """Tells on stderr what may stand half-done, where nobody has waited for the answer, or none came.

    ``done``: it is, whatever the error says of the rest.
    """
    try:
        yield
    except KeyboardInterrupt:
        talk(f"logboom: {story}")
        raise
    except LogboomError as error:
        if done or error.outcome == "unknown":
            talk(f"logboom: {story}")
        raise
