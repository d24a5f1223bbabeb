"""Group sync and the outbox: persist before send (I3).

Everything that changed since the last group is written and synced together, off the loop;
messages that depend on it wait in the outbox until the group is done. While one group is
on its way to the disk, the next one collects: load makes groups larger, not slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ports.clock import Clock
from ports.invariant import invariant
from ports.offload import Offload
from ports.sync import SyncJob, SyncTarget

Send = Callable[[], None]
INLINE_FILES_MAX = 2


class GroupSync:
    """One per node. ``synced`` is called after every group, ``failed`` once: the disk must not be trusted again."""

    def __init__(
        self,
        *,
        offload: Offload,
        clock: Clock,
        synced: Callable[[], None],
        failed: Callable[[BaseException], None],
        parallel: int = 4,
        inline_bytes: int = 0,
    ) -> None:
        """``inline_bytes``: groups of at most two files and so many bytes are synced on the loop itself.

        That is for a lone command: two hops between threads cost it more than the sync does. Under
        load groups are larger and go to threads.
        """
        self._offload = offload
        self._clock = clock
        self._synced = synced
        self._failed = failed
        self._parallel = parallel
        self._inline_bytes = inline_bytes
        self._watched: list[SyncTarget] = []
        self._dirty: dict[int, SyncTarget] = {}
        self._held: list[Send] = []
        self._releasing: list[Send] = []
        self._jobs: list[SyncJob] = []
        self._running = 0
        self._started: float | None = None
        self._broken = False
        self.groups = 0
        self.bytes = 0

    def watch(self, target: SyncTarget) -> None:
        """Look at ``target`` for every group: what is held may depend on it before anyone calls ``dirty``."""
        self._watched.append(target)

    def dirty(self, target: SyncTarget) -> None:
        """``target`` has queued writes: part of the next group."""
        self._dirty[id(target)] = target

    def hold(self, send: Send) -> None:
        """Call ``send`` once everything queued so far is on stable storage. Bounded by what peers and clients ask."""
        self._held.append(send)

    def stalled(self, limit_s: float) -> bool:
        """The group under way has taken longer than ``limit_s``: the disk hangs."""
        return self._started is not None and self._clock.monotonic() - self._started > limit_s

    @property
    def idle(self) -> bool:
        """Nothing queued, nothing under way."""
        return not self._dirty and not self._running

    def kick(self) -> None:
        """Start a group if something is dirty and none is under way; with nothing dirty, release the outbox."""
        if self._running or self._broken:
            return
        targets = [*self._watched, *self._dirty.values()]
        jobs = [job for target in targets if (job := target.take()) is not None]
        self._dirty.clear()
        held, self._held = self._held, []
        if not jobs:
            _release(held)
            return
        self._jobs, self._releasing = jobs, held
        self._started = self._clock.monotonic()
        self.groups += 1
        self.bytes += sum(job.pending_bytes for job in jobs)
        if len(jobs) <= INLINE_FILES_MAX and sum(job.pending_bytes for job in jobs) <= self._inline_bytes:
            self._running = 1
            self._run_inline(jobs)
            return
        shares = [jobs[k :: self._parallel] for k in range(min(self._parallel, len(jobs)))]
        self._running = len(shares)
        for share in shares:
            self._offload.submit(lambda share=share: _run(share), self._share_done)  # type: ignore[misc]

    def _run_inline(self, jobs: Sequence[SyncJob]) -> None:
        try:
            _run(jobs)
        except OSError as error:
            self._share_done(None, error)
        else:
            self._share_done(None, None)

    def _share_done(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            # The kernel may have dropped what we wrote: nothing that depends on it may ever leave.
            self._broken = True
            self._held.clear()
            self._releasing.clear()
            self._failed(error)
            return
        invariant(self._running > 0, "a group sync ended twice")
        self._running -= 1
        if self._running or self._broken:
            return
        for job in self._jobs:
            job.done()
        released, self._jobs, self._releasing, self._started = self._releasing, [], [], None
        _release(released)
        self._synced()
        self.kick()


def _run(jobs: Sequence[SyncJob]) -> None:
    for job in jobs:
        job.run()


def _release(sends: Sequence[Send]) -> None:
    for send in sends:
        send()
