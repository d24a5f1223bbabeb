"""Where the peers' programs are, and what one needs in its environment to run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
UNPACKED: Final = ROOT / ".venv" / "peers"


class Missing(RuntimeError):
    """A peer cannot be had on this machine; says what to do about it."""


def find(name: str, program: str) -> Path:
    """The peer's program: this machine's, or Debian's unpacked by ``scripts/peers``. Raises Missing."""
    ran = subprocess.run([ROOT / "scripts/peers", name], check=False, capture_output=True, text=True)
    found = Path(ran.stdout.strip()) / program
    if ran.returncode != 0 or not found.is_file():
        said = ran.stderr.strip().splitlines()
        raise Missing(said[-1] if said else f"{name}: not found")
    return found


def environment(program: Path) -> dict[str, str]:
    """Ours without settings of the peers' own; with the libraries beside an unpacked program, for it alone."""
    found = {k: v for k, v in os.environ.items() if not k.startswith(("ETCD", "PG", "NATS", "REDIS"))}
    if program.is_relative_to(UNPACKED):
        libraries = UNPACKED / program.relative_to(UNPACKED).parts[0] / "usr/lib"
        found["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, sorted(libraries.glob("*-linux-gnu"))))
    return found


def output(program: Path, *arguments: str) -> str:
    """First line of what the program prints, as for ``--version``."""
    ran = subprocess.run([program, *arguments], check=True, capture_output=True, text=True, env=environment(program))
    return ran.stdout.splitlines()[0].strip()
