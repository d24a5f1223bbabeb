"""A client's chance comes from one place."""

from __future__ import annotations

import random

from logboom import Client
from tests.unit.logboom.fake_server import cluster, until


async def test_with_the_same_rng_a_client_does_the_same() -> None:
    async def run(seed: int) -> tuple[bytes, list[int]]:
        """Its name as a producer, and whom it asked."""
        async with cluster(3) as nodes:
            ports = {node.address: number for number, node in enumerate(nodes)}
            async with Client([node.address for node in nodes], rng=random.Random(seed)) as boom:
                asked = []
                for _ in range(12):
                    asked.append(ports[(await boom._cluster.any()).address])
                    await until(lambda: not boom._cluster._opening)
                return boom.producer_id, asked

    runs = [await run(seed) for seed in (1, 1, 2, 3)]
    assert runs[0] == runs[1]
    assert len({producer for producer, _ in runs}) == 3
    assert len({asked[0] for _, asked in runs}) > 1


async def test_without_an_rng_every_client_is_another() -> None:
    first, second = Client("h:1"), Client("h:1")
    assert len(first.producer_id) == 16
    assert first.producer_id != second.producer_id
