"""What an earlier release has written is read, served and gone on with by this one (see the page beside it)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logboom import Add, Put, Record, SyncClient, Txn
from logboom.cli import cli
from logboom.testing import LocalCluster
from partitions.log import places
from raftlog.entries import parent_state
from raftlog.journal import journal_codec
from server.directory import manifest
from server.offline import backup_dir, batches
from snapshots import meta
from tests.golden import writing, writing_backups
from tests.golden.keeping import HERE, Golden, all_kept, data_files, formats

ALL = all_kept()
BACKUPS = [golden for golden in ALL if golden.about().get("backup")]
REFUSED = [golden for golden in ALL if golden.about().get("refused")]
KEPT = [golden for golden in ALL if golden not in BACKUPS + REFUSED]
TOTAL_BYTES_MAX = 500 * 1024
"""Of all that is kept: the repository stays small."""


def name(golden: Golden) -> str:
    return golden.name


def test_every_format_that_can_be_read_is_kept() -> None:
    """Whoever raises a number finds that ``scripts/golden`` has to be run, for that which is written now."""
    kept: dict[str, set[int]] = {}
    for golden in KEPT + BACKUPS:
        for kind, numbers in golden.about()["formats"].items():
            kept.setdefault(kind, set()).update(numbers)
    assert kept["manifest"] == set(range(manifest.BEFORE_VOIDS, manifest.FORMAT_VERSION + 1))
    assert kept["parent state"] == set(range(parent_state.BEFORE_LIFECYCLES, parent_state.VERSION + 1))
    assert kept["places"] == set(range(places.WITHOUT_VOIDS, places.VERSION + 1))
    assert kept["set"] == set(range(meta.FIRST_LINEAGE, meta.VERSION + 1))
    assert kept["journal"] == {journal_codec.VERSION}
    assert kept["backup"] == set(range(backup_dir.FIRST_LINEAGE, backup_dir.FORMAT + 1))
    assert kept["batches"] == kept["nothing"] == kept["void"] == {batches.VERSION}
    assert kept["batch flags"] == {0, 1, 2, 4}, "of one producer, of a dense one, wide, mixed"


def test_the_page_says_who_wrote_each() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ([0-9a-f]{8}) ", (HERE / "DESIGN.md").read_text(), re.MULTILINE)
    assert dict(rows) == {each.name: each.about()["written by"].split()[0] for each in ALL}


def test_they_are_small() -> None:
    assert sum(each.archive.stat().st_size for each in ALL) <= TOTAL_BYTES_MAX


def verified(cluster: LocalCluster) -> None:
    """By the command that operators have."""
    for node, directory in cluster.data_dirs.items():
        done = CliRunner().invoke(cli, ["verify", str(directory), "-o", "json"])
        assert done.exit_code == 0, f"{node}: {done.output}"
        levels = {finding["level"] for finding in json.loads(done.stdout)["findings"]}
        assert levels <= {"note"}, f"{node}: {done.output}"  # of what was lost, and is void


def more(boom: SyncClient) -> None:
    """A key more in both kv partitions, one of them by what not every release knows, and a record more."""
    boom.submit(writing.KV, Txn([], [Put(b"golden", b"1"), Add(b"integers", 1, 1)]))
    boom.submit(writing.BEHIND, Add(b"golden", 1))
    boom.submit(writing.LOG, Record(b"golden"))


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {partition: about["count"] for partition, about in found["partitions"].items()}


@pytest.mark.process
@pytest.mark.parametrize("golden", KEPT, ids=name)
def test_it_is_sound_and_served_and_gone_on_with(golden: Golden, tmp_path: Path) -> None:
    said = golden.about()
    golden.unpack(tmp_path)
    assert formats(tmp_path) == said.pop("formats")
    said.pop("written by")
    settings = said.pop("settings") | {"snapshot.age_ms": 0}  # its sets are older than a new one is due
    cluster = LocalCluster(partitions=writing.PARTITIONS, directory=tmp_path, settings=settings)
    verified(cluster)
    with cluster, cluster.client(timeout=writing.PATIENCE_S) as boom:
        found = writing.told(cluster, boom)
        assert {key: found[key] for key in said} == said
        before = counts(found)
        more(boom)
        found = writing.told(cluster, boom)
        assert counts(found) == before | {str(k): before[str(k)] + 1 for k in range(writing.PARTITIONS)}
        assert found["repeated"] == said["repeated"]
    verified(cluster)
    with cluster, cluster.client(timeout=writing.PATIENCE_S) as boom:
        assert writing.told(cluster, boom) == found
        boom.create_snapshot()  # in what is written now
    verified(cluster)


@pytest.mark.process
@pytest.mark.parametrize("golden", BACKUPS, ids=name)
def test_a_backup_is_sound_and_restored_and_gone_on_with(golden: Golden, tmp_path: Path) -> None:
    said = golden.about()
    golden.unpack(tmp_path)
    backup = tmp_path / "backup"
    assert formats(tmp_path) == said["formats"]
    assert CliRunner().invoke(cli, ["verify", str(backup)]).exit_code == 0
    before = {path: path.read_bytes() for path in data_files(tmp_path)}
    cluster = LocalCluster(
        nodes=1, partitions=writing_backups.PARTITIONS, directory=tmp_path / "cluster", settings=said["settings"]
    )
    writing_backups.begin(cluster, backup)
    assert {path: path.read_bytes() for path in data_files(tmp_path)} == before
    again = tmp_path / "again"
    with cluster, cluster.client(timeout=writing.PATIENCE_S) as boom:
        found = writing_backups.told(boom)
        assert {key: said[key] for key in found} == found
        writing_backups.write(boom, b"more")
        writing.command_line("backup", again, "--endpoints", cluster.endpoints)
    verified(cluster)
    assert CliRunner().invoke(cli, ["verify", str(again)]).exit_code == 0


@pytest.mark.process
@pytest.mark.parametrize("golden", REFUSED, ids=name)
def test_what_is_too_old_is_refused_and_left_as_it_is(golden: Golden, tmp_path: Path) -> None:
    golden.unpack(tmp_path)
    before = {path: path.read_bytes() for path in data_files(tmp_path)}
    cluster = LocalCluster(nodes=1, partitions=1, directory=tmp_path, settings=golden.about()["settings"])
    (node,) = cluster.nodes
    looked = CliRunner().invoke(cli, ["verify", str(cluster.data_dirs[node])])
    assert looked.exit_code != 0
    assert "format 1" in looked.output + str(looked.exception)
    cluster.start_node(node)
    assert cluster.wait_ended(node) != 0
    cluster.stop()
    assert "format 1; this release reads" in cluster.log(node).read_text()
    assert {path: path.read_bytes() for path in data_files(tmp_path)} == before
