"""Open segment files: caches bounded in number, each and together, least recently used first out, never one in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ports.disk import Advice, File


class Shelf:
    """What the logs of a node keep open together; safe to use from several threads.

    Each of them keeps one at least, by itself: of thousands that are read now and then all had one.
    """

    def __init__(self, files_max: int, *, may_keep: Callable[[], bool] = lambda: True) -> None:
        """``may_keep``: asked when one more was opened; False: the process has none to spare, until some are closed."""
        self._files_max = files_max
        self._may_keep = may_keep
        self._counts: OrderedDict[OpenFiles, int] = OrderedDict()
        """Of logs with open files, least recently used first."""
        self._total = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """So many are open. Any thread."""
        return self._total

    def used(self, files: OpenFiles, *, opened: bool) -> None:
        """Somebody has used one of these, or closed some; ``opened``: it was not open before."""
        with self._lock:
            self._count(files)
            self._counts.move_to_end(files)
            self._forget_empty(files)
            too_many = self._total > self._files_max
        while (too_many or (opened and not self._may_keep())) and self._close_one():
            too_many = False  # the others have come to their end as this one does

    def _close_one(self) -> bool:
        """The one that was used least recently; False: all are in use."""
        with self._lock:
            oldest = list(self._counts)
        for files in oldest:  # all of one log may be in use
            if files.close_one():
                with self._lock:
                    self._count(files)
                    self._forget_empty(files)
                return True
        return False

    def _count(self, files: OpenFiles) -> None:
        now = files.count
        self._total += now - self._counts.get(files, 0)
        self._counts[files] = now

    def _forget_empty(self, files: OpenFiles) -> None:
        if not self._counts[files]:
            del self._counts[files]


class OpenFiles:
    """Shared by all readers of a partition log; safe to use from several threads."""

    def __init__(self, open_file: Callable[[int], File], *, files_max: int, shelf: Shelf | None = None) -> None:
        """``shelf``: of all logs of the node."""
        self._open = open_file
        self._files_max = files_max
        self._shelf = shelf
        self._files: OrderedDict[int, File] = OrderedDict()
        self._users: dict[int, int] = {}
        self._forgotten: set[int] = set()
        """In use still."""
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """So many are open."""
        return len(self._files)

    @contextmanager
    def use(self, segment: int) -> Iterator[File]:
        """The file of a segment, which stays open at least until the block ends."""
        with self._lock:
            file = self._files.get(segment)
            opened = file is None
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
            self._tell(opened=opened)

    @staticmethod
    def advise(file: File, advice: Advice, *, offset: int, length: int) -> None:
        """Tell the system, where it listens."""
        say = getattr(file, "advise", None)
        if say is not None:
            say(advice, offset=offset, length=length)

    def _shrink(self) -> None:
        while len(self._files) > self._files_max and self._close_oldest():
            pass

    def close_one(self) -> bool:
        """The one that was used least recently, of those that nobody uses; False: there is none."""
        with self._lock:
            return self._close_oldest()

    def _close_oldest(self) -> bool:
        oldest = next((segment for segment in self._files if segment not in self._users), None)
        if oldest is not None:
            self._close(oldest)
        return oldest is not None

    def forget(self, segment: int) -> None:
        """The file was removed: close it, as soon as nobody uses it any more."""
        with self._lock:
            if segment in self._users:
                self._forgotten.add(segment)
            else:
                self._close(segment)
        self._tell()

    def _close(self, segment: int) -> None:
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all: what somebody uses, or opens from now on, as soon as nobody does."""
        with self._lock:
            self._files_max = 0
            self._shrink()
        self._tell()

    def _tell(self, *, opened: bool = False) -> None:
        if self._shelf is not None:
            self._shelf.used(self, opened=opened)
