"""``top``: a cluster at work, look after look."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import click

from logboom.cli import talk
from logboom.cli.common import (
    Duration,
    Target,
    cluster_options,
    on_terminal,
    output_option,
    print_one,
    print_rows,
)
from logboom.cli.ends import while_read
from logboom.cli.looks import Look, busy_rows, fitting, headline, look, node_rows, told
from logboom.cli.operate import Answers, check_answered
from logboom.errors import InvalidRequest, LogboomError
from logboom.sync_client import SyncClient

LOOK_S: Final = 3.0
"""For each look but the first: nodes have 2 s to answer."""
STEP_S: Final = 0.25
"""Longest time until it is seen that nobody reads what is shown."""
OTHER_LINES: Final = 9
"""Lines of a frame beside the rows of its tables and what is told."""
HELP: Final = """\
A live view: what each node and the busiest partitions do, how far they are behind, what waits, what is wrong.

It goes on until Ctrl-C, through changes of the leader and without nodes that are away; they have 2 s to answer
each look. On no terminal, or with `-o json`, it shows one frame and ends; `-o jsonl` goes on, with one in each line.

\b
commands/s   that came into the log since the last look; bytes/s: of what was applied
behind       entries that the leader has committed and this node does not know of yet
unapplied    commands that are in the node's log and not in its state; oldest_ms: how long the oldest waits
backlog      what the node has admitted and not answered, all in all

Exit status 3 if no node answers the first look; later it waits for one.
"""


@click.command(
    help=HELP,
    short_help="The cluster at work, live.",
    epilog="""\b
Examples:
  logboom top
  logboom top --every 5s -o jsonl > load.jsonl
  logboom top --once -o json""",
)
@click.option("--every", type=Duration(), default="1s", show_default=True, help="Between two looks.")
@click.option("--once", is_flag=True, help="Show one frame, of the first two looks.")
@click.option(
    "--partitions",
    "most",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="How many of them to show, the busiest first; fewer where the terminal is low.",
)
@output_option
@cluster_options
def top(target: Target, every: float, once: bool, most: int, output: str) -> None:
    """See HELP."""
    live = output == "table" and on_terminal(sys.stdout) and not once
    with suppress(KeyboardInterrupt), target.connect() as client, while_read(client):
        looks = _looks(client, every, most)
        if live:
            _live(looks, most)
            return
        next(looks)  # without rates
        for seen in looks if output == "jsonl" and not once else islice(looks, 1):
            _show(seen, output)


def _looks(client: SyncClient, every: float, most: int) -> Iterator[Look]:
    """The first has no rates. Raises Unavailable if nobody answers that one."""
    due = time.monotonic()
    before: Answers = {}
    now: Answers = client.status_all()
    check_answered(now)
    while True:
        yield look(before, now, partitions=most)
        due = max(due + every, time.monotonic())  # looks that were late are not made up for
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, STEP_S))
            _ = client.has_met  # raises InvalidRequest once nobody reads any more
        before, now = now, _asked(client, now)


def _asked(client: SyncClient, before: Answers) -> Answers:
    try:
        return client.status_all(timeout=LOOK_S)
    except InvalidRequest:
        raise
    except LogboomError as error:  # nobody is there to say who the members are
        return dict.fromkeys(before, error)


def _show(seen: Look, output: str) -> None:
    if output != "table":
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print_one({"at": at, **seen.row()}, output)
        return
    talk(headline(seen))
    print_rows(node_rows(seen), output)
    if seen.partitions:
        click.echo()
        print_rows(busy_rows(seen), output)
    for line in told(seen):
        talk(f"logboom: {line}")


def _live(looks: Iterator[Look], most: int) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        for seen in looks:
            lines = told(seen)
            room = console.height - OTHER_LINES - len(seen.nodes) - len(lines)
            rows = busy_rows(seen)[: max(1, min(most, room))] if most else []
            nodes = fitting(node_rows(seen), width=console.width)
            parts: list[Any] = [Text(headline(seen)), _table(nodes, texts=("node", "role"))]
            if rows:
                parts.append(_table(rows, texts=("state",)))
            live.update(Group(*parts, *(Text(line, style="bold") for line in lines)), refresh=True)


def _table(rows: list[dict[str, Any]], *, texts: tuple[str, ...]) -> Any:
    """Folded where there is no room: no number is cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table
