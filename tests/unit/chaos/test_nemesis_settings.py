"""The settings that a run with real nodes draws are such as a node takes."""

from __future__ import annotations

from chaos.nemesis import PARTITIONS, settings_of
from logboom.config import load

SEEDS = 40


def test_nodes_take_whatever_is_drawn() -> None:
    """Of half the seeds no node started any more: their send buffers had become too small to be taken."""
    members = {"cluster.members": "n1=127.0.0.1:1@127.0.0.1:2", "node.id": "n1", "cluster.partitions": PARTITIONS}
    found = [load(environment={}, flags={**members, **settings_of(seed)}) for seed in range(SEEDS)]
    assert len({each.net.peer_send_buffer_bytes for each in found}) == 2
