"""Of which history a backup is, whoever is asked first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from logboom.errors import Unavailable, WrongNode
from server.offline.backup_dir import BackupDir
from server.world.disk_os import OsDisk
from snapshots.meta import SetMeta
from tests.unit.dispatcher.installing_world import Source, Wire
from tests.unit.server.backup_nodes import Nodes, taken

LINEAGE = "ab" * 16


class Restored(Source):
    """Of a cluster that was made of a backup."""

    def meta_of(self, written: Any) -> SetMeta:
        return msgspec.structs.replace(super().meta_of(written), lineage=LINEAGE)


@pytest.fixture
def nodes() -> Nodes:
    """Whoever is reached first waits to be taken in."""
    source = Restored("n1", Wire(), big=10)
    made = Nodes(n1=source, n2=source, n3=source)
    made.lineages = {None: None, "n3": LINEAGE}
    return made


def test_a_node_that_does_not_know_it_yet_is_not_the_last_that_is_asked(nodes: Nodes, tmp_path: Path) -> None:
    """Found by review: the directory was made one of the first history, and was refused from then on."""
    kept = tmp_path / "kept"
    for number in range(2):
        done, _ = taken(nodes, kept)
        assert (done.sets, bool(done.bytes)) == (1, number == 0)
        contents = BackupDir(OsDisk(), kept).contents
        assert contents is not None
        assert contents.lineage == LINEAGE
    nodes.lineages["n3"] = "cd" * 16
    with pytest.raises(WrongNode):
        taken(nodes, kept)


def test_where_nobody_knows_it_nothing_is_written(nodes: Nodes, tmp_path: Path) -> None:
    nodes.lineages = dict.fromkeys([None, "n1", "n2", "n3"])
    with pytest.raises(Unavailable, match="history"):
        taken(nodes, tmp_path / "kept")
    assert not list((tmp_path / "kept").glob("*.*"))
    nodes.lineages["n2"] = LINEAGE
    assert taken(nodes, tmp_path / "kept")[0].sets == 1
