"""A journal that is synced when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftlog.journal.journal import Journal
from raftlog.journal.outbox import GroupLimits, GroupSync


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0


class Offload:
    """Jobs wait until the test lets them run."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, done))

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

    def finish_one(self) -> None:
        job, done = self.jobs.pop(0)
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - as the port says
            done(None, error)
        else:
            done(result, None)


class Target:
    @property
    def dirty(self) -> bool:
        return self.taken != self.queued

    pending_bytes = 1
    records = 1
    redo_bytes = 0

    def __init__(self, *, broken: bool = False, raises: BaseException | None = None) -> None:
        self.queued = self.synced = 0
        self.taken = 0
        self.broken = broken
        self.raises = raises

    def take(self) -> Target | None:
        if self.taken == self.queued:
            return None
        self.taken = self.queued
        return self

    def begin(self) -> None:
        pass

    def run(self) -> None:
        if self.broken:
            raise OSError("no space")
        if self.raises is not None:
            raise self.raises

    def done(self) -> None:
        self.synced = self.taken


def group_of(
    offload: Offload,
    journal: Target | Journal,
    failures: list[BaseException],
    *,
    synced: Callable[[], None] = lambda: None,
    parallel: int = 4,
    inline: int = 0,
    **limits: int,
) -> GroupSync:
    """Nothing of it runs on the loop itself, but groups of up to ``inline`` bytes."""
    return GroupSync(
        journal=journal,  # type: ignore[arg-type]
        offload=offload,
        clock=Clock(),
        synced=synced,
        failed=failures.append,
        limits=GroupLimits(inline=inline, **limits),
        parallel=parallel,
    )
