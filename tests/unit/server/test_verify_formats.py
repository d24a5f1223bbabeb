"""What another release wrote is not called damaged: `logboom verify` says that it cannot tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logboom.errors import CorruptData, IncompatibleVersion
from server.directory.manifest import sealed
from server.offline.findings import REBUILD, Level, Report
from tests.unit.logboom.command_line import run

LATER = {"cluster": "c", "format": 9, "node": "n1", "of_then": [1]}


def test_a_later_manifest(tmp_path: Path, capsys: Any) -> None:
    """Found by review: it was damaged, and to be put back from a copy."""
    (tmp_path / "manifest.json").write_bytes(sealed(LATER))
    status, out, err = run(capsys, "verify", str(tmp_path), "-o", "json")
    found = json.loads(out)
    assert (status, found["damaged"], found["unread"]) == (2, False, True)
    row, journal = found["findings"]
    assert (row["level"], row["path"]) == ("unread", str(tmp_path / "manifest.json"))
    assert (journal["level"], journal["advice"]) == ("note", "see what is said of the manifest")
    assert "has format 9; this release reads" in row["problem"]
    assert row["advice"] == "verify it with the release that wrote it"
    assert "[incompatible_version]" in err


def test_a_later_list_of_a_backup(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "backup.json").write_bytes(sealed(LATER | {"sets": []}))
    status, out, _ = run(capsys, "verify", str(tmp_path))
    assert status == 2
    assert out.startswith(f"unread: {tmp_path / 'backup.json'}: ")


def test_with_damage_beside_it_it_is_the_other_release_that_can_tell(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "manifest.json").write_bytes(sealed(LATER))
    (tmp_path / "directories.json").write_text("rot")
    status, out, _ = run(capsys, "verify", str(tmp_path), "-o", "jsonl")
    assert status == 2
    assert [json.loads(line)["level"] for line in out.splitlines()] == ["unread", "damage", "note"]


def test_so_it_is_with_every_file() -> None:
    report = Report(Path("/n"), "data")
    report.error("/n/x", IncompatibleVersion("/n/x: places of format 9", found=9, supported=2, path="/n/x"), REBUILD)
    assert (report.damaged, report.unread) == (False, True)
    assert report.findings[0][:4] == (Level.UNREAD, "/n/x", None, "places of format 9")
    report.error("/n/y", CorruptData("/n/y: rot", path="/n/y", offset=3), REBUILD)
    assert report.damaged
    assert report.findings[1] == (Level.DAMAGE, "/n/y", 3, "rot", REBUILD)
