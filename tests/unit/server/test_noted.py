"""What a node notes in small files while it runs: a disk that is full, a thread that is busy, and what came since."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from raftlog.entries.voids import Void, Voids
from server.directory.data_dir import MANIFEST
from server.directory.directories import HEARD
from server.directory.manifest import Manifest, decode
from server.node import Node
from server.world.disk_os import OsDisk
from server.world.world import real_world
from tests.unit.server.lone_node import fails, lone

VOID = Void(PartitionId(1), PartitionLogIndex(5), PartitionLogIndex(6), b"d" * 16, GlobalLogIndex(9), 7, applied=True)


class Later:
    """Threads that are busy: what is submitted lies there until it is looked for."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], Any]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def work() -> None:
            try:
                job()
            except OSError as error:
                done(None, error)
            else:
                done(None, None)

        self.jobs.append(work)

    async def run(self, job: Callable[[], Any]) -> Any:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is under way."""


@pytest.fixture
def slow() -> Later:
    return Later()


@pytest.fixture
async def node(tmp_path: Path, slow: Later) -> Any:
    made = Node(
        lone(tmp_path), fatal=fails, world=replace(real_world(page_cache_bytes=0, fatal=fails), slow_offload=slow)
    )
    yield made
    await made.close()


def held_by(node: Node) -> Manifest:
    return decode((node.data_dir.path / MANIFEST).read_bytes(), path="here")


async def test_a_full_disk_ends_no_node_for_what_it_tells_people(
    node: Node, slow: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by review: where all disks were full each node ended at a void, and at every start after it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(OsDisk, "replace_file", full)
        node._note_voids(Voids(1, (VOID,)))
        slow.jobs.pop()()
    assert held_by(node).voids == ()
    node._note_voids(Voids(1, (VOID,)))
    slow.jobs.pop()()
    assert held_by(node).voids[0].digest == VOID.digest.hex()


async def test_what_was_adopted_meanwhile_stays(node: Node, slow: Later) -> None:
    node._note_voids(Voids(1, (VOID,)))
    node.data_dir.take_lineage("ab" * 16, fatal=fails)
    slow.jobs.pop()()
    assert (held_by(node).lineage, len(held_by(node).voids)) == ("ab" * 16, 1)


async def test_what_was_heard_of_others_is_kept_while_a_snapshot_is_written(node: Node) -> None:
    """Found by review: for as long as that took, or for ever where a machine of a user did not return."""
    marks, kept = node.pipeline.raft.links.directories.marks, asyncio.Event()
    assert marks is not None
    marks._keep({}, kept.set)
    async with asyncio.timeout(10):
        await kept.wait()
    assert (node.data_dir.path / HEARD).exists()
