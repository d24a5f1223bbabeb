"""What strangers and slow members may not do: ``python -m chaos.abuse``.

Garbage, huge, slow and silent connections on client and peer ports: cut, memory flat, the node
serving. Then 2 GB through one client while a follower stands still: the leader's memory bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from logboom import Client, Put, RecordBlock
from logboom.testing import LocalCluster

MIB = 1 << 20
RSS_MAX = 500 * MIB
GROWTH_MAX = 48 * MIB


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def attack(address: str) -> list[socket.socket]:
    """Open connections that break the protocol, each in its own way; they are left open."""
    host, port = address.rsplit(":", 1)
    rubbish = [
        os.urandom(4096),
        struct.pack("<I", 0xFFFFFFFF) + bytes(64),
        struct.pack("<i", -1),
        struct.pack("<I", 1 << 31) + b"x" * 4096,
        struct.pack("<IBBHIQ", 4000, 1, 0, 1, 3900, 1),  # begins, never ends
        struct.pack("<IBBHIQ", 16, 255, 0, 1, 0, 1),
        struct.pack("<IBBHIQ", 20, 1, 0, 1, 4, 1) + b"\xc1\xc1\xc1\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        b"",  # says nothing at all
    ]
    opened = []
    for raw in rubbish * 20:
        connection = socket.create_connection((host, int(port)), timeout=5)
        opened.append(connection)
        try:
            connection.sendall(raw)
        except OSError:
            continue  # cut already, as it should be
    return opened


def all_cut(connections: list[socket.socket], within_s: float) -> int:
    """How many are still open after that time."""
    deadline = time.monotonic() + within_s
    left = list(connections)
    while left and time.monotonic() < deadline:
        left = [c for c in left if not _ended(c)]
        time.sleep(0.1)
    return len(left)


def _ended(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True


async def fill(cluster: LocalCluster, total: int) -> None:
    """``total`` bytes through one client, in blocks of half a MiB, eight under way."""
    payload = os.urandom(8192)
    block = RecordBlock.from_columns(payloads=[payload] * 64)
    async with Client(cluster.endpoints, timeout=120.0) as client:
        left = iter(range(total // block.nbytes))

        async def work(partition: int) -> None:
            for _ in left:
                await client.submit_block(partition, block, wait="committed", timeout=120.0)

        await asyncio.gather(*[work(p) for p in range(8)])


def garbage() -> list[str]:
    """The first part; returns what went wrong."""
    problems = []
    limits = {"net.handshake_ms": 2000, "net.frame_ms": 2000}
    with LocalCluster(settings=limits) as cluster, cluster.client() as client:
        for kind, addresses in (("client", cluster.addresses), ("peer", cluster.peer_addresses)):
            before = {node: rss(cluster.pid(node)) for node in cluster.nodes}
            opened = [c for address in addresses.values() for c in attack(address)]
            client.submit(0, Put(b"during", kind.encode()), timeout=5)
            left = all_cut(opened, 6.0)
            growth = max(rss(cluster.pid(node)) - before[node] for node in cluster.nodes)
            client.submit(0, Put(b"after", kind.encode()), timeout=5)
            sys.stdout.write(
                f"{kind} ports: {len(opened)} bad connections, {left} not cut, memory grew {growth / MIB:.1f} MiB\n"
            )
            if left or growth > GROWTH_MAX:
                problems.append(f"{kind} ports: {left} connections left, memory grew {growth / MIB:.0f} MiB")
    return problems


def slow_follower(total: int) -> list[str]:
    """The second part."""
    with LocalCluster(state_machine="log") as cluster:
        leader = cluster.leader()
        follower = next(n for n in cluster.nodes if n != leader)
        cluster.kill(follower, signal.SIGSTOP)
        highest = 0
        try:
            highest = asyncio.run(_watched(fill(cluster, total), cluster.pid(leader)))
        finally:
            cluster.kill(follower, signal.SIGCONT)
        cluster.wait_serving()
        with cluster.client(timeout=120.0) as client:
            commit = max(client.status(node=a)["commit_index"] for a in cluster.addresses.values())
            started = time.monotonic()
            client.barrier(commit, scope="all", timeout=120.0)
            caught_up = time.monotonic() - started
    sys.stdout.write(
        f"{total / 1e9:.1f} GB with {follower} stopped: leader at most {highest / MIB:.0f} MiB; "
        f"the follower caught up in {caught_up:.1f} s\n"
    )
    return [f"leader used {highest / MIB:.0f} MiB"] if highest > RSS_MAX else []


async def _watched(work: Coroutine[Any, Any, None], pid: int) -> int:
    task = asyncio.ensure_future(work)
    highest = 0
    while not task.done():
        highest = max(highest, rss(pid))
        await asyncio.wait([task], timeout=0.1)
    task.result()
    return highest


def main() -> int:
    """0: everything held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="for the second part; 0 leaves it out")
    args = parser.parse_args()
    problems = garbage()
    if args.gigabytes:
        problems += slow_follower(int(args.gigabytes * 1e9))
    for problem in problems:
        sys.stdout.write(f"FAIL {problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
