"""A worker over ``kv`` for whose effects there is memory in part only."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path

import pytest

from logboom.commands import Add
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.types import Term
from partitions.log.batch import build_batch
from partitions.machines import kv_unsaved
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import KvFile
from partitions.machines.kv_layers import Layer
from tests.unit.partitions.batches import PRODUCER, P, flush
from tests.unit.partitions.worker_world import World, world

KEYS = [b"n%02d" % number for number in range(20)]


def commit(w: World) -> None:
    batch = build_batch(
        partition_id=P,
        first_index=w.log.committed_index + 1,
        term=Term(1),
        timestamp_ms=1,
        producer=PRODUCER,
        epoch=0,
        sequence=w.log.committed_index,
        floor=0,
        dense=False,
        records=RecordBlock.from_records(Add(key, 1).record() for key in KEYS),
        previous_digest=w.head,
    )
    w.log.append(batch)
    flush(w.log)
    w.log.commit(last_index=batch.last_index, digest=batch.digest, global_index=batch.last_index, term=1)
    w.head = batch.digest


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["on a thread", "on the loop"])
def test_it_tries_them_again_until_there_is_and_has_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    """Its state was damaged, and made anew: that takes more memory than there was, and is done three times a day."""
    lacking, merge = 10, kv_unsaved._merge

    def some(layer: Layer, changed: Layer, known: list[bytes | None]) -> int:
        nonlocal lacking
        if lacking:
            lacking -= 1
            layer.update(islice(changed.items(), lacking))
            raise MemoryError
        return merge(layer, changed, known)

    with world(retry_attempts_max=3, inline_bytes=inline_bytes) as w:
        machine = KvMachine(KvFile(tmp_path, ApplySettings()))
        w.worker.machine = machine

        async def story() -> None:
            commit(w)
            w.notify()
            await asyncio.sleep(1)
            assert machine.position().applied_index == 20
            monkeypatch.setattr(kv_unsaved, "_merge", some)
            for _ in range(3):
                commit(w)
            w.notify()
            await asyncio.sleep(1000)

        w.run(story)
        assert lacking == 0
        assert set(w.states) == {"running", "retrying"}
        assert w.states[-1] == "running"
        assert machine.get(KEYS)[0] == [(4,)] * 20
        assert machine.position().applied_index == 80
        machine.close()
