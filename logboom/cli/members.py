"""``members``: who is in the cluster, and changing that while it runs."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from logboom.cli import talk
from logboom.cli.common import TEXT, Target, cluster_options, on_terminal, output_option, print_rows, unread_too
from logboom.cli.ends import in_doubt
from logboom.errors import InvalidRequest
from logboom.sync_client import SyncClient

POLL_S: Final = 0.2
EXIT_NO_VOTE: Final = 1
EXIT_NOT_DONE: Final = 1
DOUBT: Final = "this may have been done, or may be yet: `logboom members list` says"


@click.group(short_help="Who is in the cluster; add, remove, hand over.", epilog="Example:  logboom members list")
def members() -> None:
    """List the members of the cluster, add and remove them, choose who leads; while it runs.

    A lost disk: start the node with an empty directory; with three voters or more the cluster takes it back by itself.
    """


@members.command("list", epilog="Example:  logboom members list -o json")
@click.option("--node", help="As this node (id or address) knows it; else as the leader does.")
@output_option
@cluster_options
def list_(target: Target, node: str | None, output: str) -> None:
    """Every member, its role, and how many Raft entries it lacks."""
    with target.connect() as client:
        _print(client.member_list(node=node), output)


@members.command(
    short_help="Take in a node; ends when it votes.",
    epilog="Example:  logboom members add n4=10.0.0.4:7801@10.0.0.4:7701",
)
@click.argument("member", type=TEXT, metavar="ID=PEER_HOST:PORT@CLIENT_HOST:PORT")
@click.option("--learner", is_flag=True, help="Keep it one that does not vote until `promote`.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it votes.")
@output_option
@cluster_options
def add(target: Target, member: str, learner: bool, no_wait: bool, output: str) -> None:
    """Take in a node that was started with `node.join`; ends when it votes (or, as a learner, is known to all).

    It is given what it lacks first, and votes when it has caught up. Exit status 1 if it has not within --timeout:
    it does later, by itself, if it runs.
    """
    name, _, rest = member.partition("=")
    peer, _, client_address = rest.partition("@")
    if not (name and peer and client_address):
        raise InvalidRequest(f"{member!r} is not id=peer_host:port@client_host:port")
    with target.connect() as client:
        with in_doubt(f"{name} may have been taken in, or may be yet: `logboom members list` says; {_undone(name)}"):
            found = client.add_member(name, peer_address=peer, client_address=client_address, learner=learner)
        other = _other_role(found, name, learner=learner)
        if other or learner or no_wait:
            _print(found, output)
            if other:
                talk(f"logboom: {other}")
                sys.exit(EXIT_NOT_DONE)
        else:
            story = f"{name} is taken in, and votes as soon as it has caught up, if it runs; {_undone(name)}"
            with in_doubt(story, done=True):
                _wait_for(client, name, target.timeout, output)


@members.command(
    short_help="Tell the cluster where a member is now.",
    epilog="Example:  logboom members update n2 --peer-address 10.0.0.9:7801",
)
@click.argument("node", type=TEXT)
@click.option("--peer-address", type=TEXT, metavar="HOST:PORT", help="Where other nodes reach it from now on.")
@click.option("--client-address", type=TEXT, metavar="HOST:PORT", help="Where clients do.")
@output_option
@cluster_options
def update(target: Target, node: str, peer_address: str | None, client_address: str | None, output: str) -> None:
    """Tell the cluster that a member is elsewhere, or was added with a wrong address.

    Its id, its vote and its data stay. Where it listens its own configuration says: change that too, and restart it.
    """
    if not (peer_address or client_address):
        raise InvalidRequest("say what changes: --peer-address, --client-address, or both")
    with target.connect() as client, in_doubt(DOUBT):
        _print(client.update_member(node, peer_address=peer_address, client_address=client_address), output)


@members.command(epilog="Example:  logboom members promote n4")
@click.argument("node", type=TEXT)
@click.option("--no-wait", is_flag=True, help="Do not wait until it votes.")
@output_option
@cluster_options
def promote(target: Target, node: str, no_wait: bool, output: str) -> None:
    """Make a learner a voter, as soon as it has caught up."""
    with target.connect() as client:
        with in_doubt(DOUBT):
            found = client.promote_member(node)
        if no_wait:
            _print(found, output)
        else:
            with in_doubt(f"{node} is to vote, and does as soon as it has caught up, if it runs", done=True):
                _wait_for(client, node, target.timeout, output)


@members.command(epilog="Example:  logboom members remove n2")
@click.argument("node", type=TEXT)
@click.option("--yes", is_flag=True, help="Do not ask. Where nobody can be asked, as in a script, nobody is.")
@output_option
@cluster_options
def remove(target: Target, node: str, yes: bool, output: str) -> None:
    """Remove a member for good: its id is never used again. If it leads, another takes over first.

    On a terminal it asks before. Not done while those that would be left and can be reached are no majority.
    """
    with target.connect() as client:
        left, thin = _left_without(node, client.member_list())
        if left and not yes and on_terminal(sys.stdin) and on_terminal(sys.stderr):
            if not click.confirm(f"{node} is removed for good; its id is not used again. {left}. Go on?", err=True):
                talk("logboom: nothing was changed")
                sys.exit(EXIT_NOT_DONE)
        elif thin:
            talk(f"logboom: {left}; `logboom members add` takes another in")
        with in_doubt(DOUBT):
            _print(client.remove_member(node), output)


@members.command(epilog="Example:  logboom members transfer n3")
@click.argument("to", type=TEXT, required=False)
@output_option
@cluster_options
def transfer(target: Target, to: str | None, output: str) -> None:
    """Have another node lead: TO, or whichever is nearest."""
    with target.connect() as client, in_doubt(DOUBT):
        _print(client.transfer(to), output)


def _undone(node: str) -> str:
    return f"`logboom members remove {node}` takes it out again, for good: its id is not used after that"


def _other_role(found: dict[str, Any], node: str, *, learner: bool) -> str:
    """Why it stays what it was already, and is not what was asked for. Empty: it is that, or will be."""
    role = next((each["role"] for each in found["members"] if each["id"] == node), None)
    if role == "learner" and not learner:
        return f"{node} is a learner already, and stays one: `logboom members promote {node}` makes it a voter"
    if role in ("voter", "joining") and learner:
        votes = "votes already" if role == "voter" else "was taken in already, and votes once it has caught up"
        return f"{node} {votes}: nothing makes it a learner but to remove it, and to add it with another id"
    return ""


def _left_without(node: str, found: dict[str, Any]) -> tuple[str, bool]:
    """In words, who is left without it; and whether the cluster bears less then, and nothing any more.

    No words for what the nodes refuse: it is none of them, or the only one that votes.
    """
    voters = [each for each in found["members"] if each["role"] == "voter"]
    others = [each for each in voters if each["id"] != node]
    if not others or all(each["id"] != node for each in found["members"]):
        return "", False
    before, after = _spare(voters), _spare(others)
    away = [each["id"] for each in others if not each["connected"]]
    who = f"Voters left: {len(others)}" + (f", without a link: {', '.join(away)}" if away else "")
    if after < 0:
        return f"{who}. Those with one are no majority: it waits for them", False
    return f"{who}. {f'{after} of them may fail' if after else 'None of them may fail'}", after == 0 < before


def _spare(voters: list[dict[str, Any]]) -> int:
    """So many of those that can be reached may go, and a majority of all is left."""
    return sum(bool(each["connected"]) for each in voters) - len(voters) // 2 - 1


def _wait_for(client: SyncClient, node: str, seconds: float, output: str) -> None:
    """Until it votes, and prints the members. Exit status 1 if it does not: who removes another next has less."""
    deadline = time.monotonic() + seconds
    while True:
        found = client.member_list()
        votes = any(each["id"] == node and each["role"] == "voter" for each in found["members"])
        gone = node in found["removed"]
        if votes or gone or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    _print(found, output)
    if votes:
        return
    if gone:
        talk(f"logboom: {node} was removed meanwhile")
    else:
        talk(f"logboom: {node} is taken in and has not caught up yet; it votes as soon as it has, if it runs")
        if any(each["id"] == node and not each["connected"] for each in found["members"]):
            talk(
                f"logboom: nobody has a link with it: is its address right? `logboom members update {node}` corrects it"
            )
    sys.exit(EXIT_NO_VOTE)


def _print(found: dict[str, Any], output: str) -> None:
    last = found["raft_index"]
    rows = [
        {
            "node": each["id"],
            "role": each["role"],
            "leads": each["id"] == found["leader"],
            "connected": each["connected"],
            "lacks": None if each["raft_index"] is None else max(0, last - each["raft_index"]),
            "peer_address": each["peer_address"],
            "client_address": each["client_address"],
        }
        for each in found["members"]
    ]
    with unread_too():
        print_rows(rows, output)
    if found["removed"] and output == "table":
        talk(f"logboom: removed, their ids are not used again: {', '.join(found['removed'])}")
