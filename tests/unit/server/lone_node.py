"""A node that is alone, for what its world may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from logboom.config import load
from logboom.settings import Settings


def lone(directory: Path) -> Settings:
    """One node, its own majority, on ports that are free."""
    flags = {
        "cluster.members": "n1=127.0.0.1:1@127.0.0.1:2",
        "cluster.partitions": 2,
        "node.id": "n1",
        "node.data_dir": str(directory / "data"),
        "node.client_address": "127.0.0.1:0",
        "node.peer_address": "127.0.0.1:0",
    }
    return load(environment={}, flags=flags)


def fails(error: BaseException) -> None:
    pytest.fail(repr(error))
