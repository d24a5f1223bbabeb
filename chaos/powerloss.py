"""Power loss on all nodes at once: ``python -m chaos.powerloss`` (root).

Every node has an ext4 file system of its own on a loop device. Right after 10,000
acknowledgements all three are shut down without a flush (as if the power went), the
processes killed, the file systems mounted again, the nodes started: all 10,000 must be there.
Write-behind mode promises less: there the same is done with kill -9 alone.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from logboom import Client, Put
from logboom.testing import LocalCluster

EXT4_SHUTDOWN = 0x8004587D
WITHOUT_FLUSH = 2
COMMANDS = 10_000
WAVE = 16
CANARY = b"written, never synced" * 1000
IMAGE_BYTES = 1536 * 1024 * 1024


class Volume:
    """An ext4 file system in a file."""

    def __init__(self, root: Path, name: str) -> None:
        self.image, self.path = root / f"{name}.img", root / name
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", str(self.image))
        self.mount()

    def mount(self) -> None:
        """Attach it."""
        _run("mount", "-o", "loop", str(self.image), str(self.path))

    def cut_power(self) -> None:
        """Nothing that is not on the device yet will ever be: the canary is not, and must be gone afterwards."""
        (self.path / "canary").write_bytes(CANARY)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
        finally:
            os.close(descriptor)

    def canary_lives(self) -> bool:
        """What nobody synced is there all the same: this was no power loss."""
        canary = self.path / "canary"
        return canary.exists() and canary.read_bytes() == CANARY

    def unmount(self) -> None:
        """Detach it, if attached."""
        subprocess.run(["umount", str(self.path)], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


async def write(cluster: LocalCluster, count: int) -> int:
    """Submit ``count`` commands, each acknowledged as committed; returns how many were.

    The first half at once, in large batches that their own files sync; the rest a few at a time, in
    small ones that only the journal has synced when the power goes.
    """
    acknowledged = 0
    waves = [range(count // 2), *(range(k, min(k + WAVE, count)) for k in range(count // 2, count, WAVE))]
    async with Client(cluster.endpoints, timeout=60.0) as client:
        for wave in waves:
            answers = [client.submit(k % 8, Put(b"k%d" % k, b"v%d" % k), wait="committed") for k in wave]
            acknowledged += len(await asyncio.gather(*answers))
    return acknowledged


async def missing(cluster: LocalCluster, count: int) -> list[str]:
    """Node by node, which of the acknowledged commands are not there."""
    lost = []
    async with Client(cluster.endpoints, timeout=60.0) as client:
        commit = max([(await client.status(node=a))["commit_index"] for a in cluster.addresses.values()])
        await client.barrier(commit, scope="all", timeout=60.0)
        for node, address in cluster.addresses.items():
            found = {
                key: value
                for partition in range(8)
                async for key, value in client.scan(partition, at_least=commit, node=address)
            }
            lost += [f"{node}: k{k}" for k in range(count) if found.get(b"k%d" % k) != b"v%d" % k]
    return lost


def put_back(cluster: LocalCluster) -> int:
    """Batches that were in no partition log after the power loss, on all nodes."""
    lines = [line for node in cluster.nodes for line in cluster.log(node).read_text().splitlines()]
    stories = [json.loads(line) for line in lines if '"batches_put_back"' in line]
    return sum(int(story["batches"]) for story in stories)


def run(mode: str, volumes: list[Volume] | None, directory: Path) -> list[str]:
    """One trial; returns what was lost."""
    data = {f"n{k + 1}": v.path / "data" for k, v in enumerate(volumes)} if volumes else None
    cluster = LocalCluster(directory=directory, data_dirs=data, settings={"cluster.mode": mode})
    try:
        cluster.start()
        acknowledged = asyncio.run(write(cluster, COMMANDS))
        for volume in volumes or []:
            volume.cut_power()
        for node in cluster.nodes:
            cluster.kill(node)
        for volume in volumes or []:
            volume.unmount()
            volume.mount()
        survived = [
            f"{v.path}: unsynced bytes survived, so the power was not cut" for v in volumes or [] if v.canary_lives()
        ]
        cluster.start()
        lost = survived + asyncio.run(missing(cluster, acknowledged))
        what = "power loss" if volumes else "kill -9"
        sys.stdout.write(f"{mode}, {what} on all nodes: {acknowledged} acknowledged, {len(lost)} lost\n")
        if volumes:
            sys.stdout.write(f"put back from the journals: {put_back(cluster)} batches\n")
        return lost
    finally:
        cluster.stop()


def main() -> int:
    """0: nothing was lost."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    root = Path(tempfile.mkdtemp(prefix="logboom-power-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        volumes = []
        for k in range(3):
            volume = Volume(root, f"disk{k}")
            stack.callback(volume.unmount)
            volumes.append(volume)
        lost = run("write_ahead", volumes, root / "ahead")
        lost += run("write_behind", None, root / "behind")
    for line in lost[:20]:
        sys.stdout.write(line + "\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
