"""``bench``: load on a cluster of one's own, and what it makes of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import click

from logboom.cli import talk
from logboom.cli.common import (
    Duration,
    PartitionIds,
    Target,
    cluster_options,
    on_terminal,
    output_option,
    print_one,
    refuse_cursors,
    unread_too,
)
from logboom.cli.ends import in_doubt
from logboom.cli.load import PREFIX, Load, Tally, drive
from logboom.client import Client
from logboom.errors import LogboomError, NoSuchPartition
from logboom.sync_client import SyncClient
from logboom.types import MIB

MACHINES: Final = ("kv", "log")
REQUEST_BYTES_MAX: Final = 64 * MIB
DOUBT: Final = "a partition may have been created, or may be yet: `logboom partitions list` says"
HELP: Final = f"""\
Load a cluster, and say how much it takes and how quickly it answers. THIS WRITES TO THE CLUSTER.

It writes where it is told to: into partitions that are named, into all of a kind, or into new ones that it creates and
destroys again, also after Ctrl-C. In `kv` partitions it puts 10,000 keys that begin with `{PREFIX.decode()}`, in `log`
partitions it appends records. In partitions that it did not create these stay: `logboom submit -p 3 delete-prefix
{PREFIX.decode()}` removes such keys. Whoever else uses the cluster has less of it meanwhile.

Without --block each command is a request of its own, of which those of a moment travel together; with it, a request
has so many, and is all or nothing. Latency is from handing a request to the client until it is as far as --wait says.
What a node refuses for now the client sends again, until --timeout, and only then it is an error here: give it less to
see them. This is one process of Python: where it takes all of a processor, it is what was measured; start several.

Exit status 1 if nothing was acknowledged.
"""


@click.command(
    help=HELP,
    short_help="A load generator. It writes to the cluster.",
    epilog="""\b
Examples:
  logboom bench --create kv
  logboom bench --create log --count 4 --block 1000 --in-flight 8 --seconds 30
  logboom bench -p 0,1 --size 1000 --clients 4 --wait committed -o json""",
)
@click.option("-p", "--partitions", type=PartitionIds(), help="Write into these, such as 0,3,5-9.")
@click.option("--all", "kind", type=click.Choice(MACHINES), help="Write into all partitions of this state machine.")
@click.option(
    "--create", "made_of", type=click.Choice(MACHINES), help="Create partitions of its own, and destroy them."
)
@click.option("--count", type=click.IntRange(1, 1_000), help="With --create: how many.  [default: 1]")
@click.option("--seconds", type=Duration(), default="10s", show_default=True, help="For so long.")
@click.option(
    "--size", type=click.IntRange(0, REQUEST_BYTES_MAX), default=100, show_default=True, help="Bytes of each value."
)
@click.option(
    "--clients", type=click.IntRange(1, 1_000), default=1, show_default=True, help="With connections of their own."
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 100_000),
    default=64,
    show_default=True,
    help="Requests under way at any time, over all clients.",
)
@click.option(
    "--block", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="Commands of each request."
)
@click.option(
    "--wait", type=click.Choice(["committed", "durable", "applied"]), help="Default: the partition's own, or applied."
)
@output_option
@cluster_options
def bench(
    target: Target,
    partitions: list[int] | None,
    kind: str | None,
    made_of: str | None,
    count: int | None,
    seconds: float,
    clients: int,
    in_flight: int,
    block: int,
    size: int,
    wait: str | None,
    output: str,
) -> None:
    """See HELP."""
    if sum(each is not None for each in (partitions, kind, made_of)) != 1:
        raise click.UsageError("this writes: say where to, with one of --partitions, --all and --create")
    if count is not None and made_of is None:
        raise click.UsageError("--count goes with --create")
    if in_flight < clients:
        raise click.UsageError(f"{clients} clients need as many requests under way: --in-flight {clients}, or more")
    if block * size > REQUEST_BYTES_MAX:
        raise click.UsageError(f"--block {block} of --size {size} is more than any cluster takes in a request")
    with _as_ctrl_c(), target.connect() as client, ExitStack() as created:
        where = (
            _create(client, made_of, count or 1, created)
            if made_of is not None
            else _existing(client, partitions, kind)
        )
        load = Load(
            where, seconds=seconds, size=size, clients=clients, in_flight=in_flight, block=block, wait=wait,
            timeout=target.timeout,
        )  # fmt: skip
        tally, ended = Tally(load), False
        try:
            _run(target, tally)
            ended = True
        finally:  # also Ctrl-C: what was seen until then
            if ended or tally.requests:
                with unread_too():
                    print_one(tally.row(), output)
    if not tally.requests:
        if tally.last_error is not None:
            raise tally.last_error
        raise click.ClickException("nothing was acknowledged in this time")


def _run(target: Target, tally: Tally) -> None:
    async def work() -> None:
        clients = [
            Client(target.endpoints, tls=target.tls_dir, token=target.token, timeout=target.timeout)
            for _ in range(tally.load.clients)
        ]
        say: Callable[[str], None] | None = talk if on_terminal(sys.stderr) else None
        await drive(clients, tally, say)

    asyncio.run(work())


def _existing(client: SyncClient, wanted: list[int] | None, kind: str | None) -> dict[int, str]:
    """To their state machines. Raises NoSuchPartition, UsageError for what is not to be written to like that."""
    machines = client.state_machines()
    if wanted is None:
        found = {partition: machine for partition, machine in machines.items() if machine == kind}
        if not found:
            raise click.UsageError(f"there is no {kind} partition: --create {kind} makes one of its own")
        return found
    for partition in wanted:
        if partition not in machines:
            refuse_cursors(client, partition)
            raise NoSuchPartition(
                f"partition {partition} does not exist", partition_id=partition, partitions=len(machines)
            )
        if machines[partition] not in MACHINES:
            raise click.UsageError(
                f"partition {partition} is of {machines[partition]!r}, whose commands are not known here"
            )
    return {partition: machines[partition] for partition in wanted}


def _create(client: SyncClient, machine: str, count: int, created: ExitStack) -> dict[int, str]:
    """New ones, to their state machine; ``created`` destroys them, whatever happens."""
    made: dict[int, str] = {}
    with in_doubt(DOUBT):
        for _ in range(count):
            partition = client.create_partition(state_machine=machine)
            created.callback(partial(_destroy, client, partition))
            made[partition] = machine
    return made


def _destroy(client: SyncClient, partition: int) -> None:
    try:
        client.destroy_partition(partition)
    except (KeyboardInterrupt, LogboomError):
        talk(f"logboom: partition {partition} may still be there: `logboom partitions destroy {partition} --yes`")
        raise


@contextmanager
def _as_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP, too: what was created is destroyed."""
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]

    def end(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell begins what it does not wait for like that
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    try:
        for number in numbers:
            signal.signal(number, end)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
