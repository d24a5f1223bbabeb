"""``status``: looking at a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from logboom.cli import talk
from logboom.cli.common import (
    Target,
    cluster_options,
    output_option,
    print_one,
    print_rows,
    unread_too,
)
from logboom.cli.cursors import cursor_row
from logboom.client.reads import watermark_of
from logboom.errors import LogboomError, PermissionDenied, Unavailable
from logboom.sync_client import SyncClient
from logboom.types import lineage_shown

EXIT_UNHEALTHY = 5
CURSORS_S = 2.0
PROBLEMS_SHOWN = 10
OPENS_S = 30
"""Thousands that are created at once take a while."""
NOT_OPEN = "`open` of a state machine has not returned there"
Answers = Mapping[str, dict[str, Any] | LogboomError]
HELP = """How each node and each partition stands.

Exit status 5 when something needs a hand: no majority, no leader, a partition that is held or damaged, a full disk,
states that differ; what to do is in docs/operating.md, "By what you see". 3 if no node answers. A minority that is
away is told on stderr and is no failure.

\b
recovered    the node has come as far as before its start, and answers
connected    members that it has a link with, itself among them, of all
waiters      barriers and reads that wait there
scrub        how far the pass over all bytes is, and what damage it found
lineage      which history of the cluster; each restore begins another one
lag          how many batches of the whole cluster a partition's state is behind
"""


@click.command(help=HELP, epilog="Example:  logboom status -o json")
@click.option("--node", help="Only this node (id or address).")
@click.option("--digests", is_flag=True, help="State digests too; reads all state.")
@output_option
@cluster_options
def status(target: Target, node: str | None, digests: bool, output: str) -> None:
    """See HELP."""
    with target.connect() as client:
        answers: Answers = (
            client.status_all(digests=digests) if node is None else {node: client.status(node=node, digests=digests)}
        )
        cursors = _cursors(client) if node is None else []
    check_answered(answers)
    nodes = [_node_row(name, answer) for name, answer in answers.items()]
    marks = partition_rows(answers)
    sick = problems(answers)
    with unread_too():
        if output == "table":
            tables = {
                "nodes": nodes,
                "partitions": marks,
                "cursors": cursors or [],
                "declared void": void_rows(answers),
            }
            for number, (title, rows) in enumerate(each for each in tables.items() if each[1]):
                if number:
                    click.echo()
                print_rows(rows, output, title=title)
        else:
            nodes = [row | _values(answer) for row, answer in zip(nodes, answers.values(), strict=True)]
            about = {"healthy": not sick, "problems": sick, "nodes": nodes, "partitions": marks, "cursors": cursors}
            print_one({**about, "voids": void_rows(answers)}, output)
    if story := minority(answers, sick):
        talk(f"logboom: {story}")
    if sick:
        talk(f"logboom: unhealthy: {summed_up(sick)}")
        sys.exit(EXIT_UNHEALTHY)


def check_answered(answers: Answers) -> None:
    """Raises PermissionDenied or Unavailable if nobody does."""
    if all(isinstance(answer, LogboomError) for answer in answers.values()):
        for answer in answers.values():
            if isinstance(answer, PermissionDenied):
                raise answer
        raise Unavailable(f"no node answers: {'; '.join(map(str, answers.values()))}")


def minority(answers: Answers, sick: Sequence[str]) -> str:
    """Who is away where that is no problem; empty: nobody, or it is one."""
    away = _away(answers)
    if sick or not away:
        return ""
    return f"{', '.join(away)} cannot be reached; the others are a majority and go on without"


def _cursors(client: SyncClient) -> list[dict[str, Any]] | None:
    """Named consumers and their lag; nothing where nobody can say. None: we may not see them."""
    try:
        return [cursor_row(row) for row in client.cursors(known=True, timeout=CURSORS_S)]
    except PermissionDenied:
        return None
    except LogboomError as error:
        talk(f"logboom: cursors are not known: {error}")
        return []


def _node_row(name: str, answer: dict[str, Any] | LogboomError) -> dict[str, Any]:
    if isinstance(answer, LogboomError):
        return {"node": name, "role": absent(answer), "error": answer.message}
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
        "lineage": lineage_shown(answer.get("lineage", "")),
    }


def absent(error: LogboomError) -> str:
    """What stands in place of the role of a node that does not answer."""
    return "refuses us" if isinstance(error, PermissionDenied) else "unreachable"


def _values(answer: dict[str, Any] | LogboomError) -> dict[str, Any]:
    """For programs: values where a table has texts, and what is too much for one."""
    if isinstance(answer, LogboomError):
        return {"code": answer.code}
    return {
        "connected": sum(bool(row[2]) for row in answer["members"]),
        "members": len(answer["members"]),
        "scrub": answer.get("scrub"),
        "lineage": answer.get("lineage", ""),
        "agreed": answer.get("agreed", []),
        "waits_for": answer.get("waits_for"),
        "admission": answer.get("admission"),
        "lag": answer.get("lag"),
        "rules": answer.get("rules"),
        "rules_trouble": answer.get("rules_trouble", ""),
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
        own = {row[0]: row[1:] for row in (answer.get("acknowledgement") or {}).get("partitions", ())}
        for mark in map(watermark_of, answer["partitions"]):
            row = {
                "partition": mark.partition_id,
                "node": answer["node"],
                "state": mark.state,
                **_acknowledged(answer, own.get(mark.partition_id)),
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


def _acknowledged(answer: Mapping[str, Any], own: Sequence[Any] | None) -> dict[str, Any]:
    """How that node has writes answered, of a partition with its ``own``; a node of a release before says nothing."""
    usual = answer.get("acknowledgement")
    if usual is None:
        return {}
    ack, linearizable = own or (usual["ack"], usual["linearizable"])
    return {"ack": ack, "linearizable": linearizable}


def void_rows(answers: Answers) -> list[dict[str, Any]]:
    """The last batches that were declared void, as the node that knows most has them."""
    reached = (answer for answer in answers.values() if not isinstance(answer, LogboomError))
    known: list[tuple[int, list[Any]]] = [tuple(answer.get("voids") or (0, [])) for answer in reached]
    _, rows = max(known, key=lambda each: each[0], default=(0, []))
    return [
        {
            "partition": row[0],
            "first": row[1],
            "last": row[2],
            "digest": row[3].hex(),
            "global_index": row[4],
            "raft_index": row[5],
            "applied": row[6],
        }
        for row in rows
    ]


def problems(answers: Answers) -> list[str]:
    """What an operator should look at, one line each, the worst first; empty: healthy."""
    found: list[str] = []
    still: list[str] = []
    reached = [answer for answer in answers.values() if not isinstance(answer, LogboomError)]
    away = _away(answers)
    rejoining = sorted(answer["node"] for answer in reached if answer.get("role") == "rejoining")
    voters = _voters(reached) or set(answers)
    if 2 * len(voters - {*away, *rejoining}) <= len(voters):
        why = [f"{', '.join(away)} cannot be reached"] if away else []
        why += [f"{', '.join(rejoining)} gives no vote"] if rejoining else []
        found.append(f"no majority: {'; '.join(why)}")
    if not any(answer["leader"] for answer in reached):
        found.append("no node leads")
    for answer in reached:
        if answer["node"] in rejoining:
            found.append(f"{answer['node']} has lost its journal, and waits to be taken back by the leader")
        elif not answer["recovered"]:
            found.append(f"{answer['node']} is still recovering")
        if answer.get("waits_for"):
            found.append(
                f"{answer['node']} was empty, and leads nobody before it has been given what another one had by then "
                f"(Raft index {answer['waits_for'][1]}); docs/operating.md, A lost disk"
            )
        others = [row for row in answer["members"] if row[0] != answer["node"]]
        if len(reached) > 1 and others and not any(row[2] for row in others):
            found.append(
                f"{answer['node']} has no link with any other: its log says why (`peer_refused`, `peer_not_trusted`)"
            )
        found += [
            f"{answer['node']} can take no writes: {row[1]} withholds everything (docs/operating.md, {_about(row[1])})"
            for row in (answer.get("admission") or {}).get("withheld", ())
            if row[0] is None and row[2] >= 1
        ]
        still += [
            f"partition {row[0]} on {answer['node']} is {row[6]}" for row in answer["partitions"] if row[6] != "running"
        ]
        found += [
            f"partition {row[0]} on {answer['node']}: the batch that ends at {row[1]} is lost ({row[2]} elsewhere); "
            f"see `logboom partitions void {row[0]} --index {row[1]}`"
            for row in answer.get("lost", ())
        ]
        found += [
            f"a dump of partition {partition} on {answer['node']} does not return: until it does, or that node is "
            "started again, it takes no snapshots of its own"
            for partition in answer.get("stuck", ())
        ]
        found += [
            f"partition {row[0]} on {answer['node']} has not been open for {row[2]} s: {row[1] or NOT_OPEN}"
            for row in answer.get("opening", ())
            if row[2] >= OPENS_S
        ]
        found += [
            f"{name} on {answer['node']} is not scrubbed any more: a call has not returned"
            for name in (answer.get("scrub") or {}).get("stuck", ())
        ]
        found += [f"damaged on {answer['node']}: {story}" for story in (answer.get("scrub") or {}).get("open", ())]
    found += _differing(reached)
    found += [f"{name} refuses us: {error}" for name, error in answers.items() if isinstance(error, PermissionDenied)]
    found += _rules(reached)
    return found + still


def _about(signal: str) -> str:
    """Where the page for operators says what to do about it."""
    return "A disk that fills up" if signal.startswith("disk_free") else "Overload"


def _away(answers: Answers) -> list[str]:
    """Nodes of which nothing is known. Who refuses us is there."""
    errors = {name: answer for name, answer in answers.items() if isinstance(answer, LogboomError)}
    return sorted(name for name, error in errors.items() if not isinstance(error, PermissionDenied))


def _rules(reached: Sequence[Mapping[str, Any]]) -> list[str]:
    """A file that is wrong shows at the next start. Where rules differ, who is refused by one node goes to another."""
    by = {answer["node"]: answer.get("rules") or "none" for answer in reached}
    found = [
        f"{answer['node']} goes by rules of before, and would not start with its file: {answer['rules_trouble']}"
        for answer in reached
        if answer.get("rules_trouble")
    ]
    if len(set(by.values())) <= 1:
        return found
    each = ", ".join(f"{node} {rules}" for node, rules in sorted(by.items()))
    return [*found, f"nodes go by different rules (access.file): {each}"]


def _differing(reached: Sequence[Mapping[str, Any]]) -> list[str]:
    """States that are not the same at the same index: of each two nodes once, whoever of them says so."""
    rows = {
        (row[0], *sorted((answer["node"], row[1])), row[2]) for answer in reached for row in answer.get("differ", ())
    }
    found = []
    for partition, one, other, index in sorted(rows, key=str):
        which = "" if partition is None else f"of partition {partition} "
        found.append(
            f"the states {which}on {one} and {other} differ at {index}: see `States that differ` in docs/operating.md"
        )
    return found


def summed_up(found: Sequence[str]) -> str:
    """Several problems in one line. All of them are in the JSON."""
    more = [f"and {len(found) - PROBLEMS_SHOWN} more"] if len(found) > PROBLEMS_SHOWN else []
    return "; ".join([*found[:PROBLEMS_SHOWN], *more])


def _voters(reached: Sequence[Mapping[str, Any]]) -> set[str]:
    """Who votes, as the leader says, or else anybody who answers."""
    said = sorted(reached, key=lambda answer: answer["node"] == answer["leader"])
    return {row[0] for row in said[-1]["members"] if row[3] == "voter"} if said else set()
