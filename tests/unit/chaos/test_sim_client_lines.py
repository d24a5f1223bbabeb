"""Lines between nodes and clients suffer as those between nodes do, and are as before in the end."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from chaos.sim.drawing import draw
from chaos.sim.loop import SimLoop
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import NetworkProfile, SimNetwork

Lines = set[tuple[str, str]]


def struck(loop: SimLoop, dice: int) -> tuple[Lines, Lines, Lines]:
    """What one such fault on n1 cuts, slows down, and makes lossy, in its middle; afterwards nothing is."""
    network = SimNetwork(loop, random.Random(1), NetworkProfile())
    network.nodes = frozenset(("n1", "n2"))
    met = [("n1", "c1"), ("n1", "c2"), ("c1", "n1"), ("n1", "n2"), ("n2", "c1"), ("n2", "n1")]
    ends: list[Any] = [SimpleNamespace(out=SimpleNamespace(src=a, dst=b)) for a, b in met]
    network.ends = ends  # type: ignore[assignment]
    hosts: Any = [SimpleNamespace(name=name, retired=False) for name in ("n1", "n2")]
    nothing: Any = lambda *_: None  # noqa: E731
    nemesis = Nemesis(
        SimpleNamespace(victims=()),  # type: ignore[arg-type]
        hosts,
        network,
        loop,
        note=nothing,
        replace_client=nothing,
    )
    middle: list[tuple[Lines, Lines, Lines]] = []
    loop.run_as(None, lambda: middle.append((set(network.cuts), set(network.slow), set(network.lossy))), delay=0.5)
    loop.run_until_complete(nemesis._client_lines(hosts[0], 1.0, random.Random(dice)))
    assert not network.cuts
    assert not network.slow
    assert not network.lossy
    return middle[0]


def test_whom_it_strikes_and_how(loop: SimLoop) -> None:
    found = [struck(loop, dice) for dice in range(100)]
    for lines in (line for each in found for kind in each for line in kind):
        assert sum(name.startswith("c") for name in lines) == 1
    for kind in range(3):
        sets = [each[kind] for each in found if each[kind]]
        assert any(all(a.startswith("n") for a, _ in lines) for lines in sets)  # they are not heard
        assert any(all(a.startswith("c") for a, _ in lines) for lines in sets)  # they do not hear
        assert any(("c1", "n1") in lines and ("n1", "c1") in lines for lines in sets)
        assert any("n2" in {*a} for lines in sets for a in lines)  # all nodes, not n1 alone


def test_some_seeds_have_such_lines() -> None:
    drawn = [draw(seed) for seed in range(200)]
    some = [each for each in drawn if any(fault.kind == "client_lines" for fault in each.faults)]
    assert 20 < len(some) < 60
    assert all("client_lines" in each.kinds for each in some)
