"""``cursors``: the named positions that consumers keep in the cluster."""

from __future__ import annotations

from typing import Any

import click

from logboom.cli.common import PARTITION, TEXT, Target, Whole, cluster_options, output_option, print_one, print_rows
from logboom.client.cursors import CursorRow
from logboom.errors import LogboomError, Unavailable
from logboom.sync_client import SyncClient


@click.group(short_help="Positions that named consumers keep.", epilog="Example:  logboom cursors list")
def cursors() -> None:
    """List, move and delete the positions that named consumers have committed."""


_partition = click.option(
    "-p", "--partition", type=PARTITION, help="In this partition's log; without it, in the global order."
)


@cursors.command("list", epilog="Example:  logboom cursors list -o json")
@output_option
@cluster_options
def list_(target: Target, output: str) -> None:
    """Every cursor, the index that it reads next, and how far it lags."""
    with target.connect() as client:
        found = client.cursors()
    print_rows(map(cursor_row, found), output)


@cursors.command(
    "set", short_help="Move a cursor, or make it.", epilog="Example:  logboom cursors set billing 1200 -p 3 --force"
)
@click.argument("name", type=TEXT)
@click.argument("position", type=Whole(1))
@_partition
@click.option("--force", is_flag=True, help="Also back: what follows is read again. Or beyond the end.")
@output_option
@cluster_options
def set_(target: Target, name: str, position: int, partition: int | None, force: bool, output: str) -> None:
    """Move a cursor, or make it: its consumer goes on from POSITION, which is in the log, or the next one there."""
    with target.connect() as client:
        following = _end(client, partition) + 1
        if position > following and not force:
            raise click.ClickException(
                f"{'the log' if partition is None else f'partition {partition}'} goes on at {following}: "
                f"of what comes, {name} would miss all before {position}. --force sets it all the same"
            )
        now = client.commit_cursor(name, partition, position, force=force)
    if now != position:
        raise click.ClickException(f"{name} is at {now} already: --force moves it back")
    print_one({"cursor": name, "partition": partition, "position": now}, output)


def _end(client: SyncClient, partition: int | None) -> int:
    """Last index there is: of a partition, or in the global order. Raises NoSuchPartition."""
    if partition is not None:
        (mark,) = client.watermarks([partition], linearizable=True)
        return int(mark.log_index)
    answers = list(client.status_all().values())
    known = [int(each["commit_index"]) for each in answers if not isinstance(each, LogboomError)]
    if not known:
        raise Unavailable(f"no node answers: {'; '.join(map(str, answers))}")
    return max(known)


@cursors.command(epilog="Example:  logboom cursors delete billing -p 3 --yes")
@click.argument("name", type=TEXT)
@_partition
@click.option("--yes", is_flag=True, help="Do it: its consumer begins anew.")
@output_option
@cluster_options
def delete(target: Target, name: str, partition: int | None, yes: bool, output: str) -> None:
    """Forget a cursor."""
    if not yes:
        raise click.UsageError(f"this forgets how far {name} has read: say --yes")
    with target.connect() as client:
        client.delete_cursor(name, partition)
    print_one({"cursor": name, "partition": partition, "position": None}, output)


def cursor_row(row: CursorRow) -> dict[str, Any]:
    """A cursor for output."""
    return {"cursor": row.name, "partition": row.partition_id, "position": row.position, "lag": row.lag}
