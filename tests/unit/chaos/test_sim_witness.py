"""Every node has its turn at being asked what it would know after a power loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.witness import Witness


@pytest.mark.parametrize("count", range(7))
def test_everybody_is_looked_at(count: int) -> None:
    node = SimpleNamespace(pipeline=SimpleNamespace(workers={}))
    hosts: Any = [SimpleNamespace(name=f"n{k}", node=node) for k in range(count)]
    electorate: Any = None
    witness, asked = Witness(hosts, electorate, lambda *_: None), list[str]()
    witness._check_power_loss = lambda host: asked.append(host.name)  # type: ignore[method-assign]
    for _ in range(2 * count):
        witness.checkpoint()
    assert asked == [host.name for host in hosts]
