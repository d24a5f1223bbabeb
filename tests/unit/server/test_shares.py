"""With thousands of partitions each gets its share of the node's memory and addresses."""

from __future__ import annotations

import pytest

from logboom.settings import ApplySettings
from server.node import ADDRESS_BYTES, UNSAVED_BYTES_MIN, shares


@pytest.mark.parametrize("partitions", [1, 8, 1000])
def test_what_there_is_enough_of_is_not_cut(partitions: int) -> None:
    assert shares(ApplySettings(), partitions).kv_map_bytes == ApplySettings().kv_map_bytes
    assert shares(ApplySettings(unsaved_bytes=1), partitions).unsaved_bytes == 1


@pytest.mark.parametrize("partitions", [2048, 10_000, 100_000])
def test_the_maps_of_all_fit_into_one_process(partitions: int) -> None:
    """2,048 of 64 GiB each do not: the node did not start, and spoke of corrupt data."""
    mapped = shares(ApplySettings(), partitions).kv_map_bytes
    assert mapped * partitions <= ADDRESS_BYTES
    assert mapped % 4096 == 0
    assert mapped > 1 << 28


def test_nobody_saves_at_every_command() -> None:
    assert shares(ApplySettings(), 1_000_000).unsaved_bytes == UNSAVED_BYTES_MIN
