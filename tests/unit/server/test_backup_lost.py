"""Backups of logs of which batches are lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from logboom.cli import cli
from server.offline import backup as backup_module
from server.offline import backup_source
from tests.unit.dispatcher.installing_world import LOG, Source, Wire
from tests.unit.server.backup_nodes import Nodes, taken

DOWN = {"n3": "unavailable: it is down"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_source, "PAUSE_S", 0.0)


def test_of_a_node_that_was_named_nothing_is_said_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else was asked, who may have it: it was called lost on all nodes, and to be declared void."""
    done = backup_module.Done(7, "n1", 0, 0, 0, 1, [backup_module.NotAsked(4, 7, 8, {})])
    monkeypatch.setattr(backup_module, "backup", lambda *_, **__: done)
    result = CliRunner().invoke(cli, ["backup", str(tmp_path), "--endpoints", "127.0.0.1:1", "--node", "n1"])
    assert "partition 4: its records 7 to 8 are lost on n1, and with --node no other is asked" in result.stderr
    assert "all nodes" not in result.stderr
    assert "void" not in result.stderr


def test_whoever_does_not_answer_is_not_waited_for_at_each_batch(tmp_path: Path) -> None:
    """With a thousand of them, and ten seconds for each, no backup came to an end; each was a line of its own."""
    gone = [*range(0, 20, 2), *range(20, 30)]
    lost = [Source(n, Wire(), big=10, lost=gone) for n in ("n1", "n2")]
    nodes, batches = Nodes(n1=lost[0], n2=lost[1], n3=lost[1]), lost[0].batches
    nodes.down.add("n3")
    done, _ = taken(nodes, tmp_path / "kept")
    assert nodes.asked.count("n3") == backup_source.FAILURES_MAX
    single = [(LOG, batches[n].header.first_index, batches[n].last_index, DOWN) for n in range(0, 20, 2)]
    rest = batches[20].header.first_index, batches[29].last_index
    assert done.not_asked == [*single, (LOG, *rest, DOWN)]


def test_he_is_asked_again_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_source, "SILENT_AGAIN_S", 0.0)
    lost = [Source(n, Wire(), big=10, lost=(4, 8, 12)) for n in ("n1", "n2")]
    whole = Source("n3", Wire(), big=10)
    nodes, gone = Nodes(n1=lost[0], n2=lost[1], n3=whole), lost[0].batches[4]
    nodes.down_for["n3"] = backup_source.FAILURES_MAX
    done, _ = taken(nodes, tmp_path / "kept")
    assert done.not_asked == [(LOG, gone.header.first_index, gone.last_index, DOWN)]


@pytest.mark.parametrize("behind", [False, True])
def test_what_is_void_is_asked_of_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, behind: bool) -> None:
    """Ten seconds went by for each, where a node was gone. It is enough that one knows, though the first is behind."""
    monkeypatch.setattr(backup_module, "forgets_voids", lambda _: True)
    lost = [Source(n, Wire(), big=10, lost=(4, 8, 12)) for n in ("n1", "n3")]
    for gone in [lost[0].batches[n] for n in (4, 8, 12)]:
        lost[behind].log.void(gone.last_index, gone.digest)
    nodes = Nodes(n1=lost[0], n2=lost[0], n3=lost[1])
    nodes.down.add("n2")
    done, batches = taken(nodes, tmp_path / "kept")
    assert nodes.asked.count("n2") == behind
    assert (len(batches), done.not_asked) == (len(lost[0].batches) - 3, [])
