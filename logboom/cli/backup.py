"""``backup``, ``restore`` and ``recover``: a cluster's data, out of it and into new nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from logboom import config
from logboom.cli import talk
from logboom.cli.common import Duration, Target, cluster_options, output_option, print_one
from logboom.cli.ends import in_doubt
from logboom.cli.node import server_module
from logboom.cli.offline import progress_bar

DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
KEPT: Final = "what was copied is kept: with --resume it goes on, while the node still has the snapshot"


@click.command(short_help="Copy a running cluster to a directory.", epilog="Example:  logboom backup /backups/shop")
@click.argument("directory", type=DIRECTORY)
@click.option("--node", help="Copy from this node (id or address); else from a follower.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted backup's snapshot, if it is still there.")
@click.option(
    "--bytes-per-s", default=64 << 20, show_default=True, type=click.IntRange(1), help="Not faster than that."
)
@click.option(
    "--snapshot-timeout",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How long the snapshot may take: states are written at `snapshot.bytes_per_s`.",
)
@output_option
@cluster_options
def backup(
    target: Target,
    directory: Path,
    node: str | None,
    resume: bool,
    bytes_per_s: int,
    snapshot_timeout: float,
    output: str,
) -> None:
    """Take a snapshot of a running cluster, copy it to DIRECTORY, and what `log` partitions have since the last backup.

    A directory holds any number of backups of one cluster. What an interrupted one has copied of logs is not copied
    again.
    """
    with in_doubt(KEPT), progress_bar("backup") as progress, target.connect() as client:
        done = server_module("server.offline.backup").backup(
            client,
            directory,
            node=node,
            resume=resume,
            timeout=target.timeout,
            snapshot_timeout=snapshot_timeout,
            bytes_per_s=bytes_per_s,
            progress=progress,
        )
    said = {"directory": str(directory), **done._asdict()}
    lost: dict[int, list[tuple[int, int]]] = {}
    for partition, first, last, nodes in said.pop("not_asked"):
        if nodes:
            said_by = ", ".join(f"{name} ({why})" for name, why in nodes.items())
            talk(
                f"logboom: partition {partition}: {said_by} did not give its records {first} to {last}, and no other "
                "node has them: they are not in the backup. Back up once more when all nodes answer"
            )
        else:
            lost.setdefault(partition, []).append((first, last))
    for partition, batches in lost.items():
        which = ", ".join(f"{first} to {last}" for first, last in batches)
        if node is not None:
            talk(
                f"logboom: partition {partition}: its records {which} are lost on {node}, and with --node no other is "
                "asked: they are not in the backup. Back up once more without, for what others have of them"
            )
        else:
            options = " ".join(f"--index {last}" for _, last in batches)
            talk(
                f"logboom: partition {partition}: its records {which} are lost on all nodes: they are not in "
                "the backup, and what is restored of its log begins behind them, unless they turn up, or are declared "
                f"void, before the next one (`logboom partitions void {partition} {options}`)"
            )
    print_one(said, output)


@click.command(
    short_help="Make a node of a backup, before it is started.",
    epilog="Example:  logboom restore /backups/shop --config n1.toml",
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--config", "file", type=click.Path(), help="Of the node: TOML; LOGBOOM_<SECTION>__<KEY> overrides it.")
@click.option("--id", "node_id", help="The node's id among cluster.members.")
@click.option("--data-dir", help="Where the node keeps its data: empty, or not there yet.")
@click.option("-g", "--global-index", type=click.IntRange(0), help="Which set; else the newest.")
@click.option("--as-cluster", is_flag=True, help="Into a cluster with another id.")
@click.option(
    "--lineage",
    default="",
    help="A word of your own, the same on all nodes: tells this restore from an earlier one of the same set.",
)
@output_option
def restore(
    directory: Path,
    file: str | None,
    node_id: str | None,
    data_dir: str | None,
    global_index: int | None,
    as_cluster: bool,
    lineage: str,
    output: str,
) -> None:
    """Make a node's data directory from a backup, on its machine, before it is started.

    It begins another history of the cluster: nodes, backups and clients' tokens of before are refused by it.
    Every node of the cluster is restored from the same set, then all are started. Their number, ids and addresses may
    be others than before; the partitions may not.
    """
    settings = config.load(file, flags={"node.id": node_id, "node.data_dir": data_dir})
    config.check_node(settings)
    with progress_bar("restore") as progress:
        done = server_module("server.offline.restore").restore(
            directory, settings, global_index=global_index, as_cluster=as_cluster, token=lineage, progress=progress
        )
    said = {"directory": str(directory), **done._asdict()}
    for partition, first, begins in said.pop("left_out"):
        talk(
            f"logboom: partition {partition} begins at {begins}: the backup has records from {first} on, and misses "
            "some before that. Back up once more while the cluster has them, then restore into an empty directory"
        )
    print_one(said, output)


@click.command(
    short_help="Most nodes are lost: begin again with one.", epilog="Example:  logboom recover --config n1.toml --yes"
)
@click.option("--config", "file", type=click.Path(), help="Of the node: TOML; LOGBOOM_<SECTION>__<KEY> overrides it.")
@click.option("--id", "node_id", help="The node's id among cluster.members.")
@click.option("--data-dir", help="Where the stopped node keeps its data.")
@click.option("--yes", is_flag=True, help="Do it: what only other nodes have is gone for good.")
@output_option
def recover(file: str | None, node_id: str | None, data_dir: str | None, yes: bool, output: str) -> None:
    """Begin again with what one stopped node has, when most of the others are lost for good.

    Without --yes: how far the node is, and nothing is changed. Of several that are left take the one with the highest
    last term, then index; never more than one. It leads alone then, in another history of the cluster. Add new nodes,
    with ids that were not used before: `logboom members add`.
    """
    settings = config.load(file, flags={"node.id": node_id, "node.data_dir": data_dir})
    config.check_node(settings)
    found = server_module("server.offline.recover").recover(settings, act=yes)
    print_one(found._asdict(), output)
    if found.sets_ahead:
        which = ", ".join(map(str, found.sets_ahead))
        talk(
            f"logboom: snapshot sets that came from others and are newer than its journal: {which}. They "
            f"{'are gone' if yes else 'would go'}, and with them what was acknowledged and is nowhere else"
        )
    if yes:
        talk(f"logboom: start {found.node}: it leads alone; then add others")
    else:
        talk("logboom: nothing was changed; with --yes this node begins again, without those that are gone")
