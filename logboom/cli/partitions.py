"""``partitions``: create, set and destroy them, hold one still at one node, declare void what nobody has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import click

from logboom.cli import talk
from logboom.cli.common import (
    PARTITION,
    TEXT,
    Target,
    Whole,
    cluster_options,
    output_option,
    print_one,
    print_rows,
    refuse_cursors,
    unread_too,
)
from logboom.cli.ends import in_doubt
from logboom.cli.operate import Answers, partition_rows
from logboom.errors import InvalidRequest, LogboomError
from logboom.types import CURSORS

VOID_DOUBT = "the batch with record {} may have been declared void, or may be yet: `logboom status` says"
DOUBT = "this may have been done, or may be yet: `logboom partitions list` says"
ACK = click.Choice(["committed", "durable", "applied"])


@click.group(short_help="Create, set and destroy partitions; hold one still.")
def partitions() -> None:
    """List, create, set and destroy partitions; hold one still at one node, and let it go again."""


@partitions.command(epilog="Example:  logboom partitions create --state-machine log --count 4")
@click.option(
    "--state-machine", type=TEXT, help="kv, log, or one that the nodes have registered; else the cluster's usual one."
)
@click.option("--mode", type=click.Choice(["write_ahead", "write_behind"]), help="Else the cluster's usual one.")
@click.option("--ack", type=ACK, help="What an answer waits for if the request does not say; else the cluster's usual.")
@click.option("--linearizable/--no-linearizable", default=None, help="Answer writes only after they are applied.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@output_option
@cluster_options
def create(
    target: Target,
    state_machine: str | None,
    mode: str | None,
    ack: str | None,
    linearizable: bool | None,
    count: int,
    output: str,
) -> None:
    """Create partitions while the cluster runs; prints their ids.

    Keys are not routed to them (`--by-key`): those stay where they are.
    """
    made = []
    try:
        with target.connect() as client, in_doubt(DOUBT):
            for _ in range(count):
                partition = client.create_partition(
                    state_machine=state_machine, mode=mode, ack=ack, linearizable=linearizable
                )
                made.append({"partition": partition})
    finally:  # those that were made are there, whatever has become of the others
        if made:
            with unread_too():
                print_rows(made, output)


@partitions.command(
    "set",
    short_help="How writes to it are answered.",
    epilog="Example:  logboom partitions set 3 --ack committed --no-linearizable",
)
@click.argument("partition", type=PARTITION)
@click.option("--ack", type=ACK, help="What an answer waits for if the request does not say.")
@click.option("--linearizable/--no-linearizable", default=None, help="Answer writes only after they are applied.")
@output_option
@cluster_options
def set_(target: Target, partition: int, ack: str | None, linearizable: bool | None, output: str) -> None:
    """Set how writes to a partition are answered, on all nodes; prints what counts then.

    From then on that counts, whatever the configuration says. What is not named stays as it was.
    """
    if ack is None and linearizable is None:
        raise click.UsageError("say what to set: --ack, --linearizable or --no-linearizable")
    with target.connect() as client, in_doubt(DOUBT):
        now = client.set_partition(partition, ack=ack, linearizable=linearizable)
    print_one(now, output)


@partitions.command(epilog="Example:  logboom partitions destroy 9 --yes")
@click.argument("partition", type=PARTITION)
@click.option("--yes", is_flag=True, help="Do it: everything in there is gone, on all nodes.")
@output_option
@cluster_options
def destroy(target: Target, partition: int, yes: bool, output: str) -> None:
    """Destroy a partition and its data, on all nodes, for good. Its id is not given again."""
    if not yes:
        raise click.UsageError(f"this removes everything in partition {partition}, for good: say --yes")
    with target.connect() as client, in_doubt(DOUBT):
        refuse_cursors(client, partition)
        client.destroy_partition(partition)
    print_one({"partition": partition, "state": "destroyed"}, output)


@partitions.command(
    short_help="Declare a batch void that nobody has.", epilog="Example:  logboom partitions void 3 --index 4711 --yes"
)
@click.argument("partition", type=PARTITION)
@click.option("--index", type=Whole(1), multiple=True, help="A record of the lost batch; may be repeated.")
@click.option("--all", "all_", is_flag=True, help="Every lost batch of the partition that is shown in `status`.")
@click.option("--yes", is_flag=True, help="Do it: what was in there is gone for good.")
@output_option
@cluster_options
def void(target: Target, partition: int, index: tuple[int, ...], all_: bool, yes: bool, output: str) -> None:
    """Declare a lost batch void, so that its partition goes on without it.

    That is a committed batch that no member has any more. Without --yes: what would be lost, and what every member
    says of it. Nothing is void before all members have said, at this moment, that they do not have it.
    """
    if bool(index) == all_:
        raise click.UsageError("say which batch, with --index, or --all")
    rows = []
    try:
        with target.connect() as client:
            chosen = list(index) if index else lost_in(client.status_all(), partition)
            if not chosen:
                raise InvalidRequest(f"partition {partition} has no lost batch")
            for each in chosen:
                with in_doubt(VOID_DOUBT.format(each)) if yes else nullcontext():
                    row = client.void_batch(partition, each, yes=yes)
                rows.append({**row, "digest": row["digest"].hex(), "said": _said(row["said"], output)})
    finally:  # those that are void are so for good, whatever has become of the others
        if rows:
            with unread_too():
                print_rows(rows, output)
    if not yes:
        talk("logboom: nothing was changed; with --yes these batches are void, for good")


def _said(said: Mapping[str, str], output: str) -> Mapping[str, str] | str:
    return ", ".join(f"{node}: {word}" for node, word in said.items()) if output == "table" else said


def lost_in(answers: Answers, partition: int) -> list[int]:
    """Last indices of a partition's lost batches, as the nodes show them."""
    found = (answer for answer in answers.values() if not isinstance(answer, LogboomError))
    return sorted({row[1] for answer in found for row in answer.get("lost", ()) if row[0] == partition})


@partitions.command("list", short_help="Every partition on every node.", epilog="Example:  logboom partitions list")
@output_option
@cluster_options
def list_(target: Target, output: str) -> None:
    """Every partition on every node: state machine, how writes are answered, state, how far it is."""
    with target.connect() as client:
        machines = client.state_machines()
        if (cursors := client.cursors_partition(known=True)) is not None:
            machines[cursors] = CURSORS
        answers = client.status_all()
    rows = [
        {
            "partition": row["partition"],
            "state_machine": machines.get(row["partition"]),
            **row,
            "lost": lost_in(answers, row["partition"]),
        }
        for row in partition_rows(answers)
    ]
    print_rows(rows, output)


def _action(name: str, short: str, explained: str) -> None:
    @partitions.command(
        name, short_help=short, help=explained, epilog=f"Example:  logboom partitions {name} 3 --node n2"
    )
    @click.argument("partition", type=PARTITION)
    @click.option("--node", required=True, help="At which node (id or address).")
    @output_option
    @cluster_options
    def run(target: Target, partition: int, node: str, output: str) -> None:
        with target.connect() as client:
            state = client.admin(name, partition, node=node)
        print_one({"partition": partition, "node": node, "state": state}, output)


_action(
    "pause",
    "Stop applying it at a node.",
    "Stop applying a partition at a node until resumed, or restarted; barriers over it answer `blocked`.",
)
_action("resume", "Apply again.", "Apply again; also after failures have paused it.")
_action(
    "freeze",
    "Take no writes for it at a node.",
    "Take no writes for a partition at a node, should it lead, until thawed, or restarted.",
)
_action("thaw", "Take writes again.", "Take writes again.")
