"""docs/disk-format.md draws every file that a node's directory may have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partitions.log.places import PLACES
from raftlog.journal import journal_files
from server.directory import data_dir, directories, install, refill, rejoin, states

PAGE = (Path(__file__).parents[3] / "docs" / "disk-format.md").read_text()
DRAWN = PAGE.split("```")[1]
NAMES = (
    data_dir.MANIFEST, data_dir.LOCK, directories.DIRECTORIES, install.INTENT, rejoin.REJOIN, rejoin.ASIDE,
    refill.REFILL, journal_files.BASE, journal_files.NEWEST, journal_files.SUFFIX,
    PLACES, states.STATE, states.ASIDE, states.LOADING,
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_it_is_drawn(name: str) -> None:
    assert re.search(rf"^ +\S*{re.escape(name)}", DRAWN, re.MULTILINE)
