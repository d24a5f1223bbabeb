"""``python -m bench.start_profile node.toml``: where a node's start spends its time, on data that nobody else uses.

What is measured is the time to import everything and to make ``server.node.Node``, which opens and recovers all files;
it takes part in nothing and listens nowhere. ``--profile`` makes it under cProfile, which doubles the time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import json
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.report import ROOT

LINES: Final = 25
PATIENCE_S: Final = 600.0


def taken(config: Path) -> dict[str, Any]:
    """Two plain starts and one under cProfile, each in a process of its own. Raises RuntimeError if one fails."""
    plain = [_run(config) for _ in range(2)]
    return {"plain": plain, "profile": _run(config, "--profile")["lines"]}


def _run(config: Path, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.start_profile", str(config), *flags]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    if ran.returncode != 0:
        raise RuntimeError(f"a start failed: {ran.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def lines_of(profile: cProfile.Profile) -> dict[str, list[str]]:
    """The profile's top lines, by the time in a function alone and with all that it calls."""
    found = {}
    for order in ("tottime", "cumulative"):
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats(order).print_stats(LINES)
        lines = [line.rstrip().replace(f"{ROOT}/", "") for line in text.getvalue().splitlines()]
        begin = next((k for k, line in enumerate(lines) if "tottime" in line), 0)
        found[order] = [line for line in lines[begin:] if line]
    return found


async def _made(config: Path, *, profiled: bool) -> dict[str, Any]:
    began = time.perf_counter()
    from logboom.config import load
    from server.node import Node
    from server.world.logs import configure

    imported = time.perf_counter()
    settings = load(config, environment={})
    configure(level="warning", form="json")
    profile = cProfile.Profile()
    begin = time.perf_counter()
    if profiled:
        profile.enable()
    Node(settings, fatal=_fatal)
    profile.disable()
    ended = time.perf_counter()
    return {
        "import_s": round(imported - began, 4),
        "node_s": round(ended - begin, 4),
        "lines": lines_of(profile) if profiled else {},
    }


def _fatal(error: BaseException) -> None:
    raise error


def main() -> None:
    """One start; JSON on stdout."""
    parser = argparse.ArgumentParser(prog="python -m bench.start_profile", description="where a start spends its time")
    parser.add_argument("config", type=Path)
    parser.add_argument("--profile", action="store_true", help="under cProfile")
    asked = parser.parse_args()
    found = asyncio.run(_made(asked.config, profiled=asked.profile))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # as a crash would leave it: nothing has been started that could be closed


if __name__ == "__main__":
    main()
