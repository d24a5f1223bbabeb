"""``status`` and ``partitions``: looking at a cluster, and holding parts of it still."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from logboom.cli.common import Target, cluster_options, output_option, print_one, print_rows, talk
from logboom.client.reads import watermark_of
from logboom.errors import LogboomError, Unavailable

EXIT_UNHEALTHY = 5
Answers = Mapping[str, dict[str, Any] | LogboomError]


@click.command(epilog="Example:  logboom status -o json")
@click.option("--node", help="Only this node (id or address).")
@click.option("--digests", is_flag=True, help="State digests too; reads all state.")
@output_option
@cluster_options
def status(target: Target, node: str | None, digests: bool, output: str) -> None:
    """Every node and partition.

    Exit status 5 when something needs a hand: no majority, no leader, a partition that is held or damaged;
    3 if no node answers. A minority that is away is told on stderr and is no failure.
    """
    with target.connect() as client:
        answers: Answers = (
            {node: client.status(node=node, digests=digests)} if node else client.status_all(digests=digests)
        )
    if all(isinstance(answer, LogboomError) for answer in answers.values()):
        raise Unavailable(f"no node answers: {'; '.join(map(str, answers.values()))}")
    nodes = [_node_row(name, answer) for name, answer in answers.items()]
    marks = partition_rows(answers)
    sick = problems(answers)
    if output == "table":
        print_rows(nodes, output, title="nodes")
        click.echo()
        print_rows(marks, output, title="partitions")
    else:
        print_one({"healthy": not sick, "problems": sick, "nodes": nodes, "partitions": marks}, output)
    away = [name for name, answer in answers.items() if isinstance(answer, LogboomError)]
    if away and not sick:
        talk(f"logboom: {', '.join(away)} cannot be reached; the others are a majority and go on without")
    if sick:
        talk(f"logboom: unhealthy: {'; '.join(sick)}")
        sys.exit(EXIT_UNHEALTHY)


def _node_row(name: str, answer: dict[str, Any] | LogboomError) -> dict[str, Any]:
    if isinstance(answer, LogboomError):
        return {"node": name, "role": "unreachable", "error": answer.message}
    return {
        "node": answer["node"],
        "role": answer["role"],
        "term": answer["term"],
        "leader": answer["leader"],
        "commit_index": answer["commit_index"],
        "recovered": answer["recovered"],
        "connected": f"{sum(bool(m[2]) for m in answer['members'])}/{len(answer['members'])}",
        "waiters": answer["waiters"],
        "scrub": _scrub(answer.get("scrub")),
        "uptime_s": round(answer["uptime_s"], 1),
        "version": answer["version"],
    }


def _scrub(row: Mapping[str, Any] | None) -> str:
    """Which pass, how far, and what was found."""
    if not row or not row["pass"]:
        return "-"
    share = min(100, 100 * row["bytes"] // max(1, row["of"]))
    found = f", {row['repaired']}/{row['damaged']} repaired" if row["damaged"] else ""
    return f"{row['pass']}: {share}%{found}"


def partition_rows(answers: Answers) -> list[dict[str, Any]]:
    """Every partition on every node that answers, for output."""
    rows = []
    for answer in answers.values():
        if isinstance(answer, LogboomError):
            continue
        backlog = {row[0]: row[1:] for row in answer["backlog"]}
        digests = {row[0]: row[2].hex() for row in answer["digests"] or ()}
        for mark in map(watermark_of, answer["partitions"]):
            row = {
                "partition": mark.partition_id,
                "node": answer["node"],
                "state": mark.state,
                "log": mark.log_index,
                "durable": mark.durable_index,
                "applied": mark.applied_index,
                "applied_global": mark.applied_global_index,
                "lag": answer["commit_index"] - mark.applied_global_index,
                "backlog_ops": backlog.get(mark.partition_id, (0, 0))[0],
                "backlog_bytes": backlog.get(mark.partition_id, (0, 0))[1],
            }
            rows.append(row | ({"digest": digests[mark.partition_id]} if mark.partition_id in digests else {}))
    return sorted(rows, key=lambda row: (row["partition"], row["node"]))


def problems(answers: Answers) -> list[str]:
    """What an operator should look at, one line each; empty: healthy."""
    found = []
    reached = [answer for answer in answers.values() if not isinstance(answer, LogboomError)]
    away = sorted(name for name, answer in answers.items() if isinstance(answer, LogboomError))
    if 2 * len(reached) <= len(answers):
        found.append(f"no majority: {', '.join(away)} cannot be reached")
    for answer in reached:
        if not answer["recovered"]:
            found.append(f"{answer['node']} is still recovering")
        found += [
            f"partition {row[0]} on {answer['node']} is {row[6]}" for row in answer["partitions"] if row[6] != "running"
        ]
        found += [
            f"partition {row[0]} on {answer['node']}: the batch that ends at {row[1]} is lost ({row[2]} elsewhere)"
            for row in answer.get("lost", ())
        ]
        found += [f"damaged on {answer['node']}: {story}" for story in (answer.get("scrub") or {}).get("open", ())]
    if not any(answer["leader"] for answer in reached):
        found.append("no node leads")
    return found


@click.group()
def partitions() -> None:
    """List, create and destroy partitions; hold one still at one node, and let it go again."""


@partitions.command(epilog="Example:  logboom partitions create --state-machine log --count 4")
@click.option("--state-machine", help="kv, log, or one that the nodes have registered; else the cluster's usual one.")
@click.option("--mode", type=click.Choice(["write_ahead", "write_behind"]), help="Else the cluster's usual one.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@output_option
@cluster_options
def create(target: Target, state_machine: str | None, mode: str | None, count: int, output: str) -> None:
    """Create partitions while the cluster runs; prints their ids.

    Keys are not routed to them (`--by-key`): those stay where they are.
    """
    with target.connect() as client:
        made = [client.create_partition(state_machine=state_machine, mode=mode) for _ in range(count)]
    print_rows([{"partition": partition} for partition in made], output)


@partitions.command(epilog="Example:  logboom partitions destroy 9 --yes")
@click.argument("partition", type=click.IntRange(0))
@click.option("--yes", is_flag=True, help="Do it: everything in there is gone, on all nodes.")
@output_option
@cluster_options
def destroy(target: Target, partition: int, yes: bool, output: str) -> None:
    """Destroy a partition and its data, on all nodes, for good. Its id is not given again."""
    if not yes:
        raise click.UsageError(f"this removes everything in partition {partition}, for good: say --yes")
    with target.connect() as client:
        client.destroy_partition(partition)
    print_one({"partition": partition, "state": "destroyed"}, output)


@partitions.command("list", epilog="Example:  logboom partitions list")
@output_option
@cluster_options
def list_(target: Target, output: str) -> None:
    """Every partition on every node: state machine, state, how far it is."""
    with target.connect() as client:
        machines = client.state_machines()
        answers = client.status_all()
    rows = [
        {"partition": row["partition"], "state_machine": machines.get(row["partition"]), **row}
        for row in partition_rows(answers)
    ]
    print_rows(rows, output)


def _action(name: str, explained: str) -> None:
    @partitions.command(name, help=explained, epilog=f"Example:  logboom partitions {name} 3 --node n2")
    @click.argument("partition", type=click.IntRange(0))
    @click.option("--node", required=True, help="At which node (id or address).")
    @output_option
    @cluster_options
    def run(target: Target, partition: int, node: str, output: str) -> None:
        with target.connect() as client:
            state = client.admin(name, partition, node=node)
        print_one({"partition": partition, "node": node, "state": state}, output)


_action("pause", "Stop applying a partition at a node; barriers over it answer `blocked`.")
_action("resume", "Apply again; also after failures have paused it.")
_action("freeze", "Take no writes for a partition at a node.")
_action("thaw", "Take writes again.")
