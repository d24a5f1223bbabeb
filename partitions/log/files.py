"""Open segment files: a cache bounded in number, least recently used first out, never one in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ports.disk import Advice, File


class OpenFiles:
    """Shared by all readers of a partition log; safe to use from several threads."""

    def __init__(self, open_file: Callable[[int], File], *, files_max: int) -> None:
        self._open = open_file
        self._files_max = files_max
        self._files: OrderedDict[int, File] = OrderedDict()
        self._users: dict[int, int] = {}
        self._forgotten: set[int] = set()
        """In use still."""
        self._lock = threading.Lock()

    @contextmanager
    def use(self, segment: int) -> Iterator[File]:
        """The file of a segment, which stays open at least until the block ends."""
        with self._lock:
            file = self._files.get(segment)
            if file is None:
                file = self._files[segment] = self._open(segment)
            self._files.move_to_end(segment)
            self._users[segment] = self._users.get(segment, 0) + 1
        try:
            yield file
        finally:
            with self._lock:
                self._users[segment] -= 1
                if not self._users[segment]:
                    del self._users[segment]
                    if segment in self._forgotten:
                        self._forgotten.discard(segment)
                        self._close(segment)
                self._shrink()

    @staticmethod
    def advise(file: File, advice: Advice, *, offset: int, length: int) -> None:
        """Tell the system, where it listens."""
        say = getattr(file, "advise", None)
        if say is not None:
            say(advice, offset=offset, length=length)

    def _shrink(self) -> None:
        for segment in list(self._files):
            if len(self._files) <= self._files_max:
                return
            if segment not in self._users:
                self._files.pop(segment).close()

    def forget(self, segment: int) -> None:
        """The file was removed: close it, as soon as nobody uses it any more."""
        with self._lock:
            if segment in self._users:
                self._forgotten.add(segment)
            else:
                self._close(segment)

    def _close(self, segment: int) -> None:
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all: what somebody uses, or opens from now on, as soon as nobody does."""
        with self._lock:
            self._files_max = 0
            self._shrink()
