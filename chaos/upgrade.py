"""A rolling upgrade of a live cluster: ``python -m chaos.upgrade --from REF``.

Three nodes of an older release (a commit of this repository, unpacked beside it) take writes from eight clients.
One after the other is stopped politely and started again with the code of this checkout, on the same disk and with
the same configuration. Midway, with both releases in the cluster, a snapshot is taken, a node of each leads, and one
is killed. No write may fail, none may be counted twice or lost, and the states must be equal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final, Self

import msgspec

from logboom import Add, Status, SyncClient, Txn
from logboom.errors import IncompatibleVersion, LogboomError
from logboom.testing import LocalCluster
from raftlog.entries.parent_state import ParentState
from snapshots.meta import decode

WRITERS: Final = 8
PARTITIONS: Final = 4
MORE: Final = 200
"""Writes that must be acknowledged between two steps."""
PATIENCE_S: Final = 30.0
ROOT: Final = Path(__file__).resolve().parent.parent


class Broken(Exception):
    """What must not happen."""


def unpack(ref: str, target: Path) -> None:
    """The sources of a commit. Raises Broken if it is not known here."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", ref], capture_output=True, check=False)
    if packed.returncode:
        raise Broken(f"{ref} is no commit of this repository: {packed.stderr.decode().strip()}")
    target.mkdir()
    subprocess.run(["tar", "-x", "-C", str(target)], input=packed.stdout, check=True)


class Load:
    """Writers that never give up, each adding 1 to a counter of its own: what fails here was a failed write."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.acknowledged = [0] * WRITERS
        self.gap_s = 0.0
        """Longest time without an acknowledgement to anybody."""
        self.errors: list[LogboomError] = []
        self._cluster = cluster
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(k,)) for k in range(WRITERS)]

    def _run(self, writer: int) -> None:
        with self._cluster.client(timeout=PATIENCE_S) as client:
            while not self._stop.is_set():
                try:
                    client.submit(writer % PARTITIONS, Add(b"writer-%d" % writer, 1), wait="committed")
                except LogboomError as error:
                    self.errors.append(error)
                    return
                with self._lock:
                    now = time.monotonic()
                    self.gap_s, self._last = max(self.gap_s, now - self._last), now
                    self.acknowledged[writer] += 1

    def more(self) -> float:
        """Wait for so many more; returns the longest gap since the last call, in seconds."""
        end = sum(self.acknowledged) + MORE
        wait_for("writes to go on", lambda: bool(self.errors) or sum(self.acknowledged) >= end)
        if self.errors:
            raise Broken(f"a write failed: {self.errors[0]!r}")
        with self._lock:
            gap_s, self.gap_s = self.gap_s, 0.0
        return gap_s

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Disk:
    """What the disk takes for a sync of its own, twenty times a second: who was slow, the cluster or it?"""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "synced"
        self._longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk")

    def _run(self) -> None:
        with self._file.open("wb") as file:
            while not self._stop.wait(0.05):
                began = time.monotonic()
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
                self._longest_s = max(self._longest_s, time.monotonic() - began)

    def longest(self) -> float:
        """Since the last call, in seconds."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def wait_for(what: str, holds: Any) -> None:
    """Look again and again. Raises Broken when it does not happen."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise Broken(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.02)


def same_states(cluster: LocalCluster, client: SyncClient) -> bool:
    """All nodes answer, and alike."""
    try:
        found = [client.status(node=address, digests=True)["digests"] for address in cluster.addresses.values()]
    except LogboomError:
        return False
    return all(each == found[0] for each in found)


def alike(cluster: LocalCluster, global_index: int) -> bool:
    """Every node has the set at ``global_index``. Raises Broken if they say different things."""
    files = [d / "snapshots" / f"{global_index:020}.set" for d in cluster.data_dirs.values()]
    if not all(file.exists() for file in files):
        return False
    sets = [decode(file.read_bytes(), path=str(file)) for file in files]
    said = {msgspec.structs.replace(each, created_ms=0, parent=b"") for each in sets}
    parents = [ParentState.decode(each.parent) for each in sets]
    if len(said) > 1 or any(parent != parents[0] for parent in parents):
        raise Broken(f"{files[0].name} is not the same on all nodes")
    if len({file.with_suffix(".states").read_bytes() for file in files}) > 1:
        raise Broken(f"the states at {global_index} are not the same on all nodes")
    return True


def snapshot(cluster: LocalCluster, client: SyncClient) -> None:
    """One more, and wait until all nodes have it. Raises Broken."""
    global_index = client.create_snapshot()["global_index"]
    wait_for("the snapshot on all nodes", lambda: alike(cluster, global_index))


def over_several_keys(client: SyncClient, *, mixed: bool) -> None:
    """What only this release knows is refused as long as there is an older one, which would read it as nothing."""
    txn = Txn([], [Add(b"several", 1), Add(b"keys", -1)])
    try:
        receipt = client.submit(0, txn)
    except IncompatibleVersion as error:
        if not mixed:
            raise Broken(f"all nodes are of this release, and a Txn is refused: {error}") from error
        if client.get_many(0, [b"several", b"keys"]) != [None, None]:
            raise Broken("a Txn was refused, and took effect") from error
        return
    if receipt.results != (Status.OK,):
        raise Broken(f"a Txn was taken, and its result is {receipt.results}")


def settings_of_one(client: SyncClient, *, mixed: bool) -> None:
    """So is what of one partition would count only at nodes of this release."""
    try:
        told = client.set_partition(PARTITIONS - 1, ack="durable")
        made = client.create_partition(ack="committed", linearizable=True)
    except IncompatibleVersion as error:
        if not mixed:
            raise Broken(f"all nodes are of this release, and a partition is not set: {error}") from error
        if len(client.partitions()) != PARTITIONS:
            raise Broken("a partition was not to be created, and is there") from error
        return
    own = client.status()["acknowledgement"]["partitions"]
    client.destroy_partition(made)
    if told["ack"] != "durable" or own != [[PARTITIONS - 1, "durable", False], [made, "committed", True]]:
        raise Broken(f"{told} was set, and {made} created, and what counts is {own}")


def roll(cluster: LocalCluster, client: SyncClient, load: Load, disk: Disk, ref: str) -> None:
    """Each node in turn; prints what each step cost."""

    def step(what: str) -> None:
        gap_ms, sync_ms = load.more() * 1000, disk.longest() * 1000
        say(
            f"{what}: {gap_ms:.0f} ms without an acknowledgement at most (the disk's own longest sync {sync_ms:.0f} ms)"
        )

    step("before")
    for done, node in enumerate(cluster.nodes, 1):
        cluster.kill(node, SIGTERM)
        status = cluster.wait_ended(node)
        if status:
            raise Broken(f"{node} ended with {status} when it was stopped")
        del cluster.sources[node]
        cluster.start_node(node)
        cluster.wait_serving()
        step(f"{node} upgraded")
        if done < len(cluster.nodes):
            snapshot(cluster, client)
            for leader in (cluster.nodes[0], cluster.nodes[-1]):  # one of each release leads the others
                client.transfer(leader)
                over_several_keys(client, mixed=True)
                settings_of_one(client, mixed=True)
                load.more()
            cluster.kill(cluster.nodes[0])
            cluster.restart(cluster.nodes[0])
            cluster.wait_serving()
            step(f"{ref} and this release side by side, with a kill -9")
    snapshot(cluster, client)
    load.more()


def run(ref: str, directory: Path) -> None:
    """All of it. Raises Broken."""
    old = directory / "old"
    unpack(ref, old)
    settings = {"snapshot.bytes_per_s": 1 << 30}
    cluster = LocalCluster(partitions=PARTITIONS, directory=directory / "cluster", settings=settings)
    cluster.sources = dict.fromkeys(cluster.nodes, old)
    with cluster, cluster.client(timeout=PATIENCE_S) as client:
        with Load(cluster) as load, Disk(directory) as disk:
            roll(cluster, client, load, disk, ref)
            over_several_keys(client, mixed=False)
            settings_of_one(client, mixed=False)
        for writer, count in enumerate(load.acknowledged):
            found = client.get(writer % PARTITIONS, b"writer-%d" % writer)
            if found != (count,):
                raise Broken(f"writer {writer}: {count} writes were acknowledged, the counter says {found!r}")
        wait_for("equal states", lambda: same_states(cluster, client))
        say(f"{sum(load.acknowledged)} writes, none failed, each counted once; states and snapshots are the same")


def say(line: str) -> None:
    """Progress, for people."""
    print(line, flush=True)


def main() -> int:
    """Exit status 0: it held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="ref", required=True, help="commit or tag of the release that runs before")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="logboom-upgrade-") as directory:
        try:
            run(arguments.ref, Path(directory))
        except (Broken, LogboomError) as error:
            say(f"BROKEN: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
