"""What is in the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


FETCHED = {
    ".venv",
    ".git",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "dist",
    "build",
    "__pycache__",
}


@cache
def tracked() -> tuple[Path, ...]:
    """What is, or is about to be, in the repository; without git, what lies here."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=False,
        )  # fmt: skip
        if listed.returncode == 0:
            names = sorted({name for name in listed.stdout.decode().split("\0") if name})
            return tuple(path for name in names if (path := ROOT / name).is_file())
    found: list[Path] = []
    for top, folders, files in os.walk(ROOT):
        folders[:] = [folder for folder in folders if folder not in FETCHED]
        found += [Path(top) / name for name in files]
    return tuple(sorted(found))
