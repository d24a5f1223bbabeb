"""`.ci/run` with a make that does nothing: the seeds are played beside the tests, and nobody's failure is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

PATIENCE_S = 30.0
MAKE = """#!/usr/bin/env bash
echo "$1" >>asked
case "$1" in
  test) for _ in $(seq 3000); do [ -e begun ] && break; sleep 0.01; done; [ -e begun ] && echo tested ;;
  sim) echo "$$" >number; mv number begun; nice; echo played; while [ -e hangs ]; do sleep 0.01; done ;;
esac
[ ! -e "$1-fails" ]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What fails there is said by empty files."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "make").write_text(MAKE)
    (tmp_path / "bin" / "make").chmod(0o755)
    return tmp_path


def ci(checkout: Path, *broken: str) -> subprocess.CompletedProcess[str]:
    for name in broken:
        (checkout / name).touch()
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [checkout / ".ci" / "run"], env=os.environ | {"PATH": path}, capture_output=True, text=True,
        check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def asked(checkout: Path) -> list[str]:
    return sorted((checkout / "asked").read_text().split())


def test_the_seeds_are_played_beside_the_tests_and_give_way_to_them(checkout: Path) -> None:
    done = ci(checkout)
    assert done.returncode == 0, done.stderr
    assert asked(checkout) == ["setup", "sim", "test"]
    told, niceness, played = done.stdout.split()
    assert (told, played) == ("tested", "played")
    assert int(niceness) >= min(os.nice(0) + 10, 19)


@pytest.mark.parametrize("broken", [["sim-fails"], ["test-fails", "retest-fails"], ["setup-fails"]])
def test_whatever_fails_fails_it(checkout: Path, broken: list[str]) -> None:
    assert ci(checkout, *broken).returncode != 0


def test_what_fails_beside_others_is_tried_alone(checkout: Path) -> None:
    done = ci(checkout, "test-fails")
    assert done.returncode == 0, done.stderr
    assert asked(checkout) == ["retest", "setup", "sim", "test"]
    assert (checkout / "asked").read_text().split()[-1] == "retest"
    assert done.stdout.index("played") < done.stdout.index("once more"), "alone, but for the seeds"


def plays(process: Path) -> bool:
    try:
        return "(zombie)" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_seeds_end_with_whoever_began_them(checkout: Path) -> None:
    (checkout / "hangs").touch()
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    with subprocess.Popen([checkout / ".ci" / "run"], env=os.environ | {"PATH": path}, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"tested\n"
        run.terminate()
        end = time.monotonic() + PATIENCE_S
        while not (checkout / "begun").exists() or not (number := (checkout / "begun").read_text().strip()):
            assert time.monotonic() < end, "they have not begun"
            time.sleep(0.01)
        while plays(Path("/proc") / number):
            assert time.monotonic() < end, "they play on, and nobody waits for them"
            time.sleep(0.01)
