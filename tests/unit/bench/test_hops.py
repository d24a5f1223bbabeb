"""The least that a lone command can cost: whether every one of them was passed on, and synced by both."""

from __future__ import annotations

from pathlib import Path

from bench.hops import COMMAND_BYTES, WARM_UP, measure

TIMES = 20


def test_each_goes_all_the_way(tmp_path: Path) -> None:
    taken = measure(tmp_path, TIMES)
    assert len(taken) == TIMES
    assert min(taken) > 0
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == dict.fromkeys(("leader", "follower"), COMMAND_BYTES * (WARM_UP + TIMES))
