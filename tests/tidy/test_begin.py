"""What one meets first: `. scripts/env.sh`, `make demo`, and the version of what is built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

CLEAN = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With a `logboom` that says how it was called."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "env.sh", tmp_path / "scripts" / "env.sh")
    shutil.copy(ROOT / "Makefile", tmp_path / "Makefile")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    program = tmp_path / ".venv" / "bin" / "logboom"
    program.write_text('#!/bin/sh\necho "$* [${LOGBOOM_ENDPOINTS-}${LOGBOOM_TLS_DIR-}]"\n')
    program.chmod(0o755)
    return tmp_path


def shell(name: str, script: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([name, "-c", script], cwd=where, env=CLEAN, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [name for name in ("bash", "zsh") if shutil.which(name)])
def test_the_environment_is_this_checkouts(checkout: Path, name: str) -> None:
    """Found by reading: zsh knows no BASH_SOURCE, and took the folder above the one that it was in."""
    for where, file in ((checkout, "scripts/env.sh"), (checkout / "scripts", "./env.sh")):
        done = shell(name, f". {file}; command -v logboom", where)
        assert (done.stdout.strip(), done.stderr) == (str(checkout / ".venv" / "bin" / "logboom"), "")


def test_a_checkout_without_environment_says_what_to_do(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "logboom").unlink()
    assert "run `make setup`" in shell("bash", ". scripts/env.sh", checkout).stderr


def test_another_shell_is_told_which_ones_can(checkout: Path) -> None:
    """`sh` has no word for where a sourced file is. "Bad substitution" was all that it said."""
    done = shell("sh", ". scripts/env.sh; command -v logboom || echo none", checkout)
    found = str(checkout / ".venv" / "bin" / "logboom")
    assert done.returncode == 0
    assert done.stdout.strip() == found or "from bash or zsh" in done.stderr


def test_the_demo_starts_nodes_of_its_own(checkout: Path) -> None:
    """Whatever cluster the shell works with: 4,000 keys would stay there."""
    env = CLEAN | {"LOGBOOM_ENDPOINTS": "10.0.0.1:7701", "LOGBOOM_TLS_DIR": "tls"}
    command = ["make", "-s", "demo", "-o", "setup", "ARGS=--rows 7"]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "demo --rows 7 []\n"


def test_what_is_built_after_a_release_is_not_called_like_it() -> None:
    """pip installs nothing where the version is there already: an upgrade left each node as it was."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    first, *others = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if first == "Unreleased":
        assert version.endswith(".dev0")
        assert [int(n) for n in version.split(".")[:3]] > [int(n) for n in others[0].split(".")[:3]]
    else:
        assert version == first.split()[0]
