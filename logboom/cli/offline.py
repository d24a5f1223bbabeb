"""``verify`` and ``inspect``: looking at files, without a running node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from logboom.cli import EXIT_USAGE, talk
from logboom.cli.common import on_terminal, output_option, print_one, print_rows, unread_too
from logboom.cli.node import server_module

EXIT_UNHEALTHY: Final = 5
Progress = Callable[[str, int, int], None]
PATH: Final = click.Path(exists=True, path_type=Path)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A bar on a terminal's stderr; nothing elsewhere. Told what is under way, bytes done, bytes in all."""
    if not on_terminal(sys.stderr):
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title}: {what}", completed=done, total=total or None)

        yield show


@click.command(
    short_help="Check every byte of a stopped node, or a backup.", epilog="Example:  logboom verify /var/lib/logboom"
)
@click.argument("path", type=PATH)
@output_option
def verify(path: Path, output: str) -> None:
    """Check every byte of a stopped node's data directory, or of a backup. Changes nothing.

    Every checksum, the chains of all logs up to what the journal names, the journal against the logs, snapshots and
    states. One line per finding; exit status 5 if anything is damaged, 2 if another release wrote any of it.
    """
    with progress_bar("verifying") as progress:
        report = server_module("server.offline.verify").verify(path, progress)
    rows = [each._asdict() for each in report.findings]
    with unread_too():
        if output == "json":
            about = {
                "path": str(report.path),
                "kind": report.kind,
                "damaged": report.damaged,
                "unread": report.unread,
                "checked": report.checked,
            }
            print_one({**about, "findings": rows}, output)
        elif output == "jsonl":
            print_rows(rows, output)
        else:
            for row in rows:
                place = row["path"] if row["offset"] is None else f"{row['path']} at {row['offset']}"
                click.echo(f"{row['level']}: {place}: {row['problem']}. {row['advice']}")
    if output not in ("json", "jsonl"):
        looked = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.checked.items())
        sound = "" if report.damaged or report.unread else "; nothing is damaged"
        talk(f"logboom: looked at {looked}{sound}")
    if report.unread:  # what else is found may come of that
        count = sum(row["level"] == "unread" for row in rows)
        talk(f"logboom: {path}: another release wrote {count} of its files: verify it with that [incompatible_version]")
        sys.exit(EXIT_USAGE)
    if report.damaged:
        count = sum(row["level"] == "damage" for row in rows)
        talk(f"logboom: {path} is damaged: {count} findings [corrupt_data]")
        sys.exit(EXIT_UNHEALTHY)


@click.group(epilog="Example:  logboom inspect manifest /var/lib/logboom/manifest.json")
def inspect() -> None:
    """What is in a file of a data directory or a backup. Changes nothing."""


def _inspector(kind: str, text: str, example: str) -> None:
    @inspect.command(kind, help=text, epilog=f"\b\nExample:\n  logboom inspect {kind} {example}")
    @click.argument("path", type=PATH)
    @output_option
    def command(path: Path, output: str) -> None:
        about, rows = server_module("server.offline.inspect").inspect(kind, path.absolute())
        _print(about, rows, output)


def _print(about: dict[str, Any], rows: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        print_one({**about, "rows": rows}, output)
    elif output == "jsonl":
        print_rows(rows or [about], output)
    else:
        print_one(about, output)
        if rows:
            click.echo()
        print_rows(rows, output)


_inspector("aof", "The batches of a partition log's segment.", "DATA/partitions/0/00000000000000000001-00000001.log")
_inspector("journal", "The records of a journal file, or the journal's base.", "DATA/journal/base")
_inspector("manifest", "Whose data directory it is.", "DATA/manifest.json")
_inspector("snapshot", "What a snapshot set is of.", "DATA/snapshots/00000000000000000042.set")
_inspector("places", "Where a partition's committed batches are.", "DATA/partitions/0/places")
_inspector("backup", "The complete sets of a backup.", "DIR/backup.json")
_inspector("batches", "The batches in a file of a backup.", "DIR/logs/0/00000000000000000001.batches")
