"""State machines of users that are no good: whoever asks for one is told so, and no node ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from logboom import Put
from logboom.errors import InvalidRequest
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

MODULE = """
class Broken:
    needs_records = False

    def dump(self):
        raise NotImplementedError

    load = dump

    @classmethod
    def open(cls, directory, partition_id, settings):
        (directory / "begun").write_text("and not ended")
        raise RuntimeError("no configuration")
"""


def test_what_cannot_be_opened_is_refused_before_it_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node ended at its entry, and at every start after that."""
    about = tmp_path / "site" / "machines_of_users-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "machines_of_users.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: machines_of_users\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[logboom.state_machines]\nbroken = machines_of_users:Broken\naway = no_such_module:Away\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(about.parent))
    with LocalCluster(partitions=1, directory=tmp_path / "c") as cluster, cluster.client(timeout=10) as client:
        with pytest.raises(InvalidRequest, match="cannot be opened here: RuntimeError"):
            client.create_partition(state_machine="broken")
        with pytest.raises(InvalidRequest, match="cannot be loaded: ModuleNotFoundError"):
            client.create_partition(state_machine="away")
        created = client.create_partition()
        client.submit(created, Put(b"k", b"v"), wait="applied")
        assert all(cluster.alive(node) for node in cluster.nodes)
        assert not [*(tmp_path / "c").glob("*/data/trial-*")]
