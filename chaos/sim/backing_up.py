"""``logboom backup``, again and again, killed now and then; and what has to be on its shelf."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from chaos.sim.blocking import BlockingClient, offline_world
from chaos.sim.disk import SimDisk
from chaos.sim.loop import SimLoop
from chaos.sim.programs import ASKED_S, Programs
from logboom.errors import LogboomError, WrongNode
from logboom.types import KIB, GlobalLogIndex
from server.offline import backup as backing_up
from server.offline.backup import backup
from server.offline.backup_dir import INDEX, BackupDir
from snapshots.meta import SetMeta

FILES: Final = "FILE_BYTES"
SHELF: Final = Path("/backup")
OPERATOR: Final = "operator"
PAUSE_S: Final = 4.0
"""Between two backups, about."""
CUT_OFF: Final = 0.4
"""Share of the backups that are killed, within this many seconds."""
CUT_OFF_S: Final = 0.4
AGAIN_S: Final = 0.2
FILE_BYTES: Final = KIB
"""A file of an archive ends once it has so much: else none of a run would ever be full."""


@contextmanager
def small_files() -> Iterator[None]:
    """While this lasts, whoever backs up in this process has them."""
    before = getattr(backing_up, FILES)
    setattr(backing_up, FILES, FILE_BYTES)
    try:
        yield
    finally:
        setattr(backing_up, FILES, before)


class BackingUp:
    """Of one run. ``fail(invariant, story)`` ends it."""

    def __init__(
        self,
        programs: Programs,
        *,
        loop: SimLoop,
        rng: random.Random,
        lineage: Callable[[], str],
        note: Callable[[str], None],
        fail: Callable[[str, str], None],
    ) -> None:
        """``lineage`` is that of the history that is the cluster's now. Nothing of any but the first is to be here."""
        self._programs = programs
        self._loop = loop
        self._rng = rng
        self._note = note
        self._fail = fail
        self._lineage = lineage
        self.sets: list[int] = []
        """What backups have said is complete."""
        self.over = self._refused = False
        self._shelf = SimDisk(random.Random(rng.getrandbits(64)))

    async def go_on(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            await self._once(cut_off=self._rng.random() < CUT_OFF)

    async def at_least_one(self) -> None:
        """Set that is complete."""
        while not self.sets:
            await self._once(cut_off=False)
            await asyncio.sleep(0.1)

    async def _once(self, *, cut_off: bool) -> None:
        ended: asyncio.Future[None] = self._loop.create_future()
        resume = self._rng.random() < 0.5

        def work() -> None:
            try:
                self._back_up(resume=resume)
            except LogboomError as error:
                self._note(f"backup: {error!r}")
                self._refused = isinstance(error, WrongNode)
                if self._refused and not self._lineage():
                    self._fail("BackupsMix", f"a backup of the history that the directory is of: {error}")
            if not ended.done():
                self._loop.run_as(None, lambda: None if ended.done() else ended.set_result(None))

        process = self._programs.spawn(OPERATOR, work)
        try:
            await asyncio.wait([ended], timeout=self._rng.uniform(0.0, CUT_OFF_S) if cut_off else None)
        finally:
            if process.alive:
                self._programs.end(OPERATOR)
                if not ended.done() and self._rng.random() < 0.5:
                    self._shelf.power_loss()
                else:
                    self._shelf.kill()

    async def another(self) -> None:
        """What is of another history does not belong there."""
        sets, before = list(self.sets), self._shelf.image().files
        while not self.over and not self._refused:
            await self._once(cut_off=False)
            await asyncio.sleep(AGAIN_S)
        if self.sets != sets or self._shelf.image().files != before:
            self._fail("BackupsMix", f"{self.sets[len(sets) :]} of {self._lineage()!r} beside {sets}")

    def _back_up(self, *, resume: bool) -> None:
        client: Any = BlockingClient(self._programs.new_client(), self._loop)
        world = offline_world(self._shelf, self._loop, self._rng)
        done = backup(client, SHELF, resume=resume, timeout=ASKED_S, world=world)
        client.close()
        self._note(f"backup: {done}")
        self.sets.append(done.global_index)
        if self._lineage():
            self._fail("BackupsMix", f"{done} of {self._lineage()!r} beside sets of another history")
        self.check()

    def check(self) -> None:
        """Sets and list are of one history, and what a backup has said is there is."""
        contents, store = (shelf := BackupDir(self._shelf, SHELF)).contents, shelf.store
        listed = [] if contents is None else [each.global_index for each in contents.sets]
        if contents is None or not set(self.sets) <= set(listed) or contents.lineage != self._lineage():
            self._fail("BackupKept", f"{INDEX} has {listed} of {contents and contents.lineage!r}, not {self.sets}")
        for meta in store.sets():
            if meta.lineage != self._lineage():
                self._fail("BackupsMix", f"set {meta.global_index} is of {meta.lineage!r}, not {self._lineage()!r}")

    def choose(self) -> SetMeta:
        """Any set that is listed."""
        self.check()
        shelf = BackupDir(self._shelf, SHELF)
        listed = shelf.contents.sets if shelf.contents is not None else ()
        return shelf.store.get(GlobalLogIndex(self._rng.choice([each.global_index for each in listed])))

    def carry_to(self, disk: SimDisk) -> None:
        """All of it, to the machine where it is needed."""
        image = self._shelf.image()
        disk.make_directories(Path(name) for name in image.directories)
        for name, (content, size) in image.files.items():
            file = disk.open(Path(name), create=True)
            file.write([content], offset=0)
            file.truncate(size)
            file.sync()
            file.close()
        for name in image.directories:
            disk.sync_directory(Path(name))
