"""``python -m bench.curves``: how cost grows, as points in ``bench/results/curves.json``. See docs/performance.md."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.curves import length, scale, size
from bench.curves.given import Given
from bench.curves.sheet import Sheet
from bench.report import RESULTS, SCRATCH, say, verdict, write
from logboom.errors import LogboomError

GROUPS: Final[dict[str, Callable[[Given, Sheet], None]]] = {
    "partitions": scale.partitions,
    "nodes": scale.nodes,
    "clients": scale.clients,
    "size": size.size,
    "batch": size.batch,
    "length": length.length,
}


def chosen(text: str) -> list[str]:
    """The groups that ``--only`` names. Raises ArgumentTypeError for others."""
    names = text.split(",")
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(GROUPS)}")
    return names


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a floor was missed; 2: something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.curves", description="how cost grows")
    parser.add_argument("--only", type=chosen, default=list(GROUPS), help=f"of {','.join(GROUPS)}")
    parser.add_argument("--quick", action="store_true", help="short loads, few points: a look, not a measurement")
    parser.add_argument("--runs", type=int, default=3, help="loads per point")
    parser.add_argument("--seconds", type=float, default=3.0, help="per load")
    parser.add_argument("--log-gb", type=float, default=8.0, help="longest log, at most 50")
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "curves.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.runs < 1 or asked.seconds <= 0 or asked.log_gb <= 0:
        parser.error("--runs, --seconds and --log-gb are above 0")
    given = Given(asked.directory, asked.seconds, asked.runs, asked.log_gb)
    if asked.quick:
        given = Given(asked.directory, seconds=1.0, runs=1, log_gb=asked.log_gb, quick=True)
    signal.signal(signal.SIGTERM, _on_term)
    sheet, failed = Sheet(), False
    for name in asked.only:
        say(f"{name}:")
        try:
            GROUPS[name](given, sheet)
        except (LogboomError, TimeoutError, OSError, RuntimeError, ValueError) as error:
            sheet.skip(f"the rest of {name}: {error}")
            failed = True
    settings = {
        "only": asked.only,
        "quick": given.quick,
        "seconds": given.seconds,
        "runs": given.runs,
        "log_gb": given.log_gb,
        "nodes": "3 unless they are what grows; 1 for the length of the log",
        "commands": "256 bytes in blocks of 1,000 into log partitions, 32 blocks under way, wait=committed, "
        "unless they are what grows",
        "servers": "defaults; every acknowledged write is synced on a majority",
    }
    write(asked.output, settings=settings, checks=sheet.checks, **sheet.figures())
    missed = verdict(sheet.checks, floors=not asked.no_floors)
    return 2 if failed else missed


if __name__ == "__main__":
    sys.exit(main())
