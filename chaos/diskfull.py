"""A disk that is full: ``python -m chaos.diskfull`` (root).

One node's data lies on a file system of 160 MB of its own. Under load it fills up: that node
must stop itself with status 5 and say why, the other two go on acknowledging. Then the disk
grows, the node is started again, and must end equal to the others with nothing lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from logboom import Add, Client, Put, RecordBlock
from logboom.commands import Command
from logboom.testing import LocalCluster

PARTITIONS = 4
BLOCKS = 240
RECORDS = 1000
VALUE = bytes(1000)
APPLIED = b"blocks"
FULL_AT, GROWN = "160m", "2g"
PATIENCE_S = 30.0


def say(text: str) -> None:
    """Progress."""
    print(text, flush=True)


def block(number: int) -> RecordBlock:
    """A thousand records: one more block is there, and puts of a kilobyte, no two alike."""
    rows: list[Command] = [Add(APPLIED, 1), *(Put(b"%d-%d" % (number, k), VALUE) for k in range(RECORDS - 1))]
    return RecordBlock.from_records(row.record() for row in rows)


async def write(client: Client) -> None:
    """All blocks, each acknowledged."""
    for number in range(BLOCKS):
        await client.submit_block(number % PARTITIONS, block(number), wait="committed", timeout=PATIENCE_S)


async def compare(client: Client, cluster: LocalCluster) -> list[str]:
    """What is wrong: records that are not there, nodes that differ."""
    await client.barrier(client.last_seen, scope="all", timeout=2 * PATIENCE_S)
    states = [await client.status(node=address, digests=True) for address in cluster.addresses.values()]
    digests = [[row[2] for row in state["digests"]] for state in states]
    wrong = [] if all(each == digests[0] for each in digests) else ["the nodes' states differ"]
    # Of effects, not of records: what was under way when its leader ended was sent again, and lies in the log twice.
    applied = 0
    for partition in range(PARTITIONS):
        found = await client.get(partition, APPLIED)
        applied += int(found[0]) if isinstance(found, tuple) else 0
    return wrong if applied == BLOCKS else [*wrong, f"{applied} blocks applied, {BLOCKS} acknowledged"]


async def fill(cluster: LocalCluster, node: str, volume: Path) -> list[str]:
    """The story; returns what was not as it should be."""
    wrong = []
    async with Client(cluster.endpoints, timeout=PATIENCE_S) as client:
        await write(client)
        say(f"{BLOCKS * RECORDS:,} records acknowledged")
        status = await asyncio.to_thread(cluster.wait_ended, node, PATIENCE_S)
        story = cluster.log(node).read_text(errors="replace")
        say(f"{node} ended with status {status}")
        if status != 5 or "No space left on device" not in story:
            wrong.append(f"{node} was to stop with status 5 and say that its disk is full")
        await asyncio.to_thread(_run, "mount", "-o", f"remount,size={GROWN}", str(volume))
        begun = time.monotonic()
        cluster.start_node(node)
        wrong += await compare(client, cluster)
        say(f"with a larger disk it was level with the others after {time.monotonic() - begun:.1f} s")
    return wrong


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def main() -> int:
    """Exit status 1: not as it should be; 2: cannot be tried here."""
    parser = argparse.ArgumentParser(prog="python -m chaos.diskfull", description="one node's disk runs full")
    parser.parse_args()
    if os.geteuid() != 0:
        print("diskfull: mounting a file system needs root", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="logboom-full-") as root:
        volume = Path(root) / "n2-disk"
        volume.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={FULL_AT}", "tmpfs", str(volume))
        try:
            # What is asked here is what happens to a node that was not careful.
            careless = {"admission.disk_free_bytes_min": 0}
            data_dirs = {"n2": volume / "data"}
            with LocalCluster(directory=root, partitions=PARTITIONS, data_dirs=data_dirs, settings=careless) as cluster:
                say(f"n2 on {FULL_AT}B; {cluster.leader()} leads")
                wrong = asyncio.run(fill(cluster, "n2", volume))
        finally:
            subprocess.run(["umount", str(volume)], check=False)
    for each in wrong:
        print(f"diskfull: {each}", file=sys.stderr)
    if not wrong:
        say("nothing lost, all equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
