"""``barrier`` and ``watermarks``: waiting for partitions, and seeing where they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import click

from logboom.cli import talk
from logboom.cli.common import (
    INDEX,
    PARTITION_MAX,
    Duration,
    PartitionIds,
    Target,
    When,
    cluster_options,
    on_terminal,
    output_option,
    print_one,
    print_rows,
    unread_too,
    watermark_row,
)
from logboom.cli.ends import while_read
from logboom.types import NUMBER_MAX, BarrierProgress, BarrierResult, WatermarkUpdate

_RECEIPT: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")
_COUNT: Final = re.compile(r"0*[1-9][0-9]{0,9}")
EVERY_S: Final = 0.2


class Receipt(click.ParamType[tuple[int, int]]):
    """A partition and a global index in it: ``3:1200``."""

    name = "receipt"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """See the class."""
        found = _RECEIPT.fullmatch(str(value))
        if found is None or int(found[1]) > PARTITION_MAX or int(found[2]) > NUMBER_MAX:
            self.fail(f"{value!r} is not partition:global_index such as 3:1200", param, ctx)
        return int(found[1]), int(found[2])


class Mode(click.ParamType[str | int]):
    """How many partitions have to be there: ``all``, ``any`` or a number."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """See the class."""
        if value in ("all", "any"):
            return str(value)
        if not _COUNT.fullmatch(str(value)):
            self.fail(f"{value!r} is neither all nor any nor a number of partitions", param, ctx)
        return int(value)


@click.command(
    epilog="""\b
Examples:
  logboom barrier -g 1200 -p 0,1,2 --scope all --timeout 5s
  logboom barrier --receipt 0:1180 --receipt 3:1200 --level durable --watch
  logboom barrier --at now --scope quorum"""
)
@click.option("-g", "--global-index", type=INDEX, help="Wait until this is reached.")
@click.option("--receipt", "receipts", type=Receipt(), multiple=True, help="A partition and its own index, 3:1200.")
@click.option(
    "--at",
    type=When(),
    help="All that is committed before the leader's clock shows this (ISO 8601, UTC if it names no zone); or `now`.",
)
@click.option("-p", "--partitions", type=PartitionIds(), help="Such as 0,3,5-9; without it, all.")
@click.option("--scope", type=click.Choice(["node", "leader", "quorum", "all"]), default="node", show_default=True)
@click.option(
    "--level",
    type=click.Choice(["ordered", "durable", "applied", "snapshotted"]),
    default="applied",
    show_default=True,
)
@click.option("--mode", type=Mode(), default="all", show_default=True, help="all, any, or how many partitions.")
@click.option("--wait-blocked", is_flag=True, help="Wait for paused partitions too, instead of failing at once.")
@click.option("--watch", is_flag=True, help="Show where the partitions are meanwhile.")
@click.option("--node", help="Ask this node (id or address).")
@output_option
@cluster_options
def barrier(
    target: Target,
    global_index: int | None,
    receipts: tuple[tuple[int, int], ...],
    at: datetime | None,
    partitions: list[int] | None,
    watch: bool,
    node: str | None,
    output: str,
    **how: Any,
) -> None:
    """Wait until partitions have come as far as a global index. Exit status 1 when time runs out."""
    highest: dict[int, int] = {}
    for partition, index in receipts:
        highest[partition] = max(index, highest.get(partition, 0))
    given: list[Any] = [each for each in (global_index, highest or None, at) if each is not None]
    if len(given) != 1:
        raise click.UsageError("give one of --global-index, --receipt (once or more) and --at")
    if receipts and partitions is not None:
        raise click.UsageError("receipts name their partitions: no --partitions with them")
    with target.connect() as client:
        if watch:
            steps = client.barrier_watch(given[0], partitions=partitions, node=node, every=EVERY_S, **how)
            result = _watched(steps, output)
        else:
            result = client.barrier(given[0], partitions=partitions, node=node, **how)
    rows = [watermark_row(mark) for mark in result.watermarks]
    if output == "table":
        talk(f"{result.node_id} has reached {result.global_index} ({how['level']})")
        print_rows(rows, output)
    else:
        print_one({"global_index": result.global_index, "node": result.node_id, "watermarks": rows}, output)


def _watched(steps: Iterator[BarrierProgress], output: str) -> BarrierResult:
    """The last step's, after all others were shown."""
    if output == "table" and on_terminal(sys.stderr):
        return _bar(steps)
    for step in steps:
        if step.done is not None:
            return step.done
        row = {
            "reached": step.reached,
            "needed": step.needed,
            "node": step.node_id,
            "frontiers": {str(p): index for p, index in step.frontiers.items()},
        }
        if output == "jsonl":
            with unread_too():
                print_one(row, output)
        elif output == "table":
            talk(f"{step.reached} of {step.needed} partitions; {_least(step)}")
    raise click.ClickException("the node ended the barrier without an answer")


def _least(step: BarrierProgress) -> str:
    if not step.frontiers:
        return ""
    partition, index = min(step.frontiers.items(), key=lambda item: item[1])
    return f"partition {partition} is at {index}"


def _bar(steps: Iterator[BarrierProgress]) -> BarrierResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("waiting"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[least]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None, least="")
        for step in steps:
            shown.update(task, completed=step.reached, total=step.needed, least=_least(step))
            if step.done is not None:
                return step.done
    raise click.ClickException("the node ended the barrier without an answer")


@click.command(short_help="How far partitions are on a node.", epilog="Example:  logboom watermarks -p 0,1,2 --follow")
@click.option("-p", "--partitions", type=PartitionIds(), help="Such as 0,3,5-9; without it, all.")
@click.option("-f", "--follow", is_flag=True, help="Go on for ever, whenever something has moved.")
@click.option("--every", type=Duration(), default="500ms", show_default=True, help="With --follow: at most this often.")
@click.option("--node", help="Ask this node (id or address).")
@output_option
@cluster_options
def watermarks(
    target: Target, partitions: list[int] | None, follow: bool, every: float, node: str | None, output: str
) -> None:
    """Where partitions are on a node, and how far all of them have applied."""
    with target.connect() as client, while_read(client):
        updates = client.watermarks_stream(partitions, node=node, every=every)
        if follow and output == "table" and on_terminal(sys.stdout):
            _live(updates)
            return
        for update in updates:
            _show(update, output)
            if not follow:
                return


def _show(update: WatermarkUpdate, output: str) -> None:
    rows = [watermark_row(mark) for mark in update.watermarks]
    if output == "table":
        talk(_headline(update))
        print_rows(rows, output)
    else:
        head = {"node": update.node_id, "commit_index": update.commit_index, "minimum": update.minimum}
        print_one({**head, "watermarks": rows}, output)


def _headline(update: WatermarkUpdate) -> str:
    return f"{update.node_id}: committed {update.commit_index}, all of these applied {update.minimum}"


def _live(updates: Iterator[WatermarkUpdate]) -> None:
    from rich import box
    from rich.live import Live
    from rich.table import Table

    with Live(auto_refresh=False) as live:
        for update in updates:
            rows = [watermark_row(mark) for mark in update.watermarks]
            table = Table(
                *(rows[0] if rows else ()), box=box.SIMPLE_HEAD, title=_headline(update), title_justify="left"
            )
            for row in rows:
                table.add_row(*map(str, row.values()))
            live.update(table, refresh=True)
