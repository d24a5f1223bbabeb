"""``snapshot``: take one now, see what there is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from logboom.cli import talk
from logboom.cli.common import Target, cluster_options, output_option, print_one, print_rows
from logboom.cli.ends import in_doubt


@click.group(short_help="Take a snapshot of the cluster; list the sets.", epilog="Example:  logboom snapshot create")
def snapshot() -> None:
    """Take a coordinated snapshot of the cluster; list the sets that nodes have.

    Snapshots are taken by themselves (see the settings `snapshot.*`); logs are compacted below them.
    """


@snapshot.command(short_help="Every node takes one now.", epilog="Example:  logboom snapshot create --timeout 60s")
@output_option
@cluster_options
def create(target: Target, output: str) -> None:
    """Every node takes one now, of everything committed so far; ends when the leader's is complete.

    Where nothing was written since the last one there is none to take: that one is shown.
    """
    with target.connect() as client, in_doubt("one may have been begun, and goes on: `logboom snapshot list` says"):
        found = client.create_snapshot()
    print_one(_row(found), output)
    if not found.get("new", True):
        talk(
            "logboom: nothing was written since this one, so no other was taken: it knows nothing of partitions that "
            "were created, destroyed or set since, and makes no room; write to any partition, then take one again"
        )


@snapshot.command("list", epilog="Example:  logboom snapshot list --node n2")
@click.option("--node", help="At which node (id or address); else at any.")
@output_option
@cluster_options
def list_(target: Target, node: str | None, output: str) -> None:
    """The complete sets that a node has, oldest first."""
    with target.connect() as client:
        found = client.snapshots(node=node)
    print_rows([{"node": found["node"], **_row(each)} for each in found["sets"]], output)
    under_way = found["under_way"]
    if under_way is not None:
        missing = ", ".join(map(str, under_way["missing"]))
        talk(
            f"logboom: {found['node']} takes one at {under_way['global_index']}: {under_way['captured']} of "
            f"{under_way['partitions']} partitions captured" + (f", waits for {missing}" if missing else "")
        )
    fetching = found["fetching"]
    if fetching is not None:
        what = "states" if fetching["partition"] is None else f"log of partition {fetching['partition']}"
        talk(
            f"logboom: {found['node']} is being given the one at {fetching['global_index']}: {what}, "
            f"{fetching['bytes']} of {fetching['total']}"
        )


def _row(meta: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(meta["created_ms"] / 1000, tz=UTC)
    return {
        "global_index": meta["global_index"],
        "raft_index": meta["raft_index"],
        "bytes": meta["bytes"],
        "partitions": meta["partitions"],
        "created": created.isoformat(timespec="seconds"),
    }
