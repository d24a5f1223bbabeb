"""A cluster writes something of everything, and stops: ``python -P writing.py DIRECTORY``.

It runs under the code of any release that is first on the path, and so imports ``logboom`` alone and asks what that
release has before using it. What the cluster holds at the end is asked of that same release, and left in
``<DIRECTORY>/<cluster>/golden.json``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import logboom
from logboom import Add, Cas, Client, Delete, Put, Record, SyncClient
from logboom.errors import LogboomError
from logboom.records import RecordBlock
from logboom.testing import LocalCluster

KIB: Final = 1024
KV, LOG, BEHIND = range(3)
PARTITIONS: Final = 3
SETTINGS: Final[dict[str, Any]] = {
    "cluster.overrides": {str(LOG): {"state_machine": "log"}, str(BEHIND): {"mode": "write_behind"}},
    "raft.journal_segment_bytes": 16 * KIB,
    "log.segment_records": 24,
    "snapshot.retain_bytes": 0,
    "snapshot.retain_log_bytes": 4 * KIB,
    "apply.unsaved_ms": 3_600_000,  # until it stops politely only snapshots save states
}
"""All of them were there in the first release."""
CURSORS: Final[dict[str, int | None]] = {"reader": LOG, "everything": None}
PRODUCER: Final = b"golden producer!"
LOST: Final = b"lost on all nodes for good"
CROWD, TURNS = 12, 3
ROUNDS: Final = (b"first", b"second", b"third", b"fourth", b"fifth", b"sixth")
PATIENCE_S: Final = 60.0


def wait_for(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.02)


# -- what there is


def contents(boom: SyncClient) -> dict[str, dict[str, Any]]:
    """Of each partition: its machine, how many keys or records, and a digest over them as users read them."""
    boom.barrier(boom.last_seen, scope="all", timeout=PATIENCE_S)
    found = {}
    for partition, machine in sorted(boom.state_machines().items()):
        rows = list(boom.scan(partition)) if machine == "kv" else list(records(boom, partition))
        said = "\n".join(map(repr, rows)).encode()
        found[str(partition)] = {
            "machine": machine,
            "count": len(rows),
            "sha256": hashlib.sha256(said).hexdigest(),
        }
    return found


def records(boom: SyncClient, partition: int) -> Any:
    """Index, key, headers and payload of each record that the log still has."""
    for batch in boom.tail(partition):
        for number, record in enumerate(batch.records.records()):
            yield batch.first_index + number, record.key, record.headers, record.payload


def digests(cluster: LocalCluster, boom: SyncClient) -> dict[str, str]:
    """Of the states, as all nodes say them. Waits until they say the same."""
    last: list[dict[str, str]] = []

    def alike() -> bool:
        try:
            said = [boom.status(node=node, digests=True)["digests"] for node in cluster.addresses.values()]
        except LogboomError:
            return False
        last[:] = [{str(row[0]): row[2].hex() for row in rows} for rows in said]
        return all(each == last[0] for each in last)

    wait_for("equal states", alike)
    return last[0]


def repeated(boom: SyncClient) -> dict[str, Any]:
    """The first answer to a command that was sent once is that of all later ones, of which none takes effect."""
    receipt = boom.submit(KV, Add(b"once", 1), producer_id=PRODUCER, epoch=3, sequence=5)
    indices = (receipt.first_index, receipt.last_index, receipt.global_index)
    return {"indices": [*map(int, indices)], "results": [*map(int, receipt.results or ())]}


def told(cluster: LocalCluster, boom: SyncClient) -> dict[str, Any]:
    """All of it; what a release does not know is left out."""
    status = boom.status()
    about = {
        "repeated": repeated(boom),
        "partitions": contents(boom),
        "digests": digests(cluster, boom),
        "lineage": status.get("lineage", ""),
        "agreed": status.get("agreed", []),
        "voids": status.get("voids", [0])[0],
        "sets": sets(boom),
    }
    if "acknowledgement" in status:
        about["acknowledgement"] = status["acknowledgement"]
    if hasattr(boom, "cursor"):
        about["cursors"] = {name: boom.cursor(name, partition).position() for name, partition in CURSORS.items()}
    return about


# -- what is written


def write(boom: SyncClient, name: bytes) -> None:
    """All commands that every release knows; some of them fail, which is state, too."""
    for turn in range(6):
        block = [Put(b"%s/%d/%d" % (name, turn, k), b"value %d " % k * 4) for k in range(10)]
        boom.submit(KV, [*block, Add(b"integers", 1, turn), Add(b"doubles", 0.5, -turn / 8)])
        boom.submit(LOG, [Record(b"%s %d " % (name, turn) * 8, b"key %d" % k, (("h", name),)) for k in range(8)])
        boom.submit(BEHIND, [Put(b"%s/%d" % (name, turn), b"behind " * 20), Add(b"n", 1)])
    for command in (
        Delete(b"%s/0/0" % name),
        Delete(b"is not there"),
        Cas(b"%s/1/1" % name, b"not this", b"mismatch"),
        Cas(b"set by cas", None, b"first"),
    ):
        boom.submit(KV, command)
    boom.submit(KV, Add(b"dense", 1), producer_id=b"dense producer!!", epoch=1, sequence=ROUNDS.index(name), dense=True)


def change_partitions(boom: SyncClient) -> None:
    """One of each machine is created, and one more that is destroyed again."""
    boom.submit(boom.create_partition(), [Put(b"created", b"while it ran")])
    boom.submit(boom.create_partition(state_machine="log"), [Record(b"created"), Record(b"too")])
    gone = boom.create_partition()
    boom.submit(gone, Put(b"gone", b"with it"))
    boom.destroy_partition(gone)


def over_several_keys(boom: SyncClient) -> None:
    """One that takes effect, one whose condition does not hold, and a range."""
    from logboom import Compare, DeletePrefix, Txn

    boom.submit(KV, Txn([Compare(b"set by cas", "==", b"first")], [Put(b"by txn", b"1"), Delete(b"set by cas")]))
    boom.submit(KV, Txn([Compare(b"by txn", "==", b"2")], [Put(b"by txn", b"never")]))
    boom.submit(KV, DeletePrefix(b"second/1"))


async def crowd(endpoints: str) -> None:
    """Small commands of many producers at once: they share batches where that is agreed on."""
    clients = [Client(endpoints, timeout=PATIENCE_S) for _ in range(CROWD)]
    try:
        await asyncio.gather(*(each.partitions() for each in clients))
        for turn in range(TURNS):
            await asyncio.gather(
                *(each.submit(KV, Add(b"crowd/%d" % k, 1)) for k, each in enumerate(clients)),
                *(each.submit(LOG, Record(b"crowd %d %d" % (k, turn))) for k, each in enumerate(clients)),
            )
    finally:
        for each in clients:
            await each.close()


def lose(cluster: LocalCluster, boom: SyncClient) -> None:
    """A committed batch is lost on all nodes, before any has saved a state with it, and is declared void."""
    index = boom.submit(BEHIND, Put(b"lost", LOST)).first_index
    boom.submit(BEHIND, Add(b"n", 1))
    boom.barrier(boom.last_seen, scope="all", level="durable", timeout=PATIENCE_S)
    for node in cluster.nodes:
        cluster.kill(node)
    for node in cluster.nodes:
        for file in (cluster.data_dirs[node] / "partitions" / str(BEHIND)).glob("*.log"):
            file.write_bytes(file.read_bytes().replace(LOST, LOST.swapcase()))
    for node in cluster.nodes:
        cluster.start_node(node)
    wait_for("the loss", lambda: states(cluster, boom) == {"lost"})
    boom.void_batch(BEHIND, index, yes=True)
    wait_for("the void", lambda: states(cluster, boom) == {"running"})


def states(cluster: LocalCluster, boom: SyncClient) -> set[str]:
    try:
        said = [boom.status(node=node, timeout=2)["partitions"] for node in cluster.addresses.values()]
    except LogboomError:
        return set()
    return {next((str(row[6]) for row in rows if row[0] == BEHIND), "recovering") for rows in said}


def write_all(cluster: LocalCluster, boom: SyncClient) -> None:
    """For the first time; what can be had once only is in here."""
    write(boom, ROUNDS[0])
    repeated(boom)
    first = boom.create_snapshot()["global_index"]
    write(boom, ROUNDS[1])
    if hasattr(boom, "create_partition"):
        change_partitions(boom)
    write_lately(cluster, boom)
    settle(cluster, boom, [first, boom.create_snapshot()["global_index"]])
    if hasattr(boom, "void_batch"):
        lose(cluster, boom)


def write_on(cluster: LocalCluster, boom: SyncClient, rounds: Sequence[bytes], backup: Path | None = None) -> None:
    """Two more sets, so that what was declared void is in them; the newer one is the backup's, if there is one."""
    write(boom, rounds[0])
    first = boom.create_snapshot()["global_index"]
    write(boom, rounds[1])
    if backup is None:
        second = boom.create_snapshot()["global_index"]
    else:
        second = command_line("backup", backup, "--endpoints", cluster.endpoints)["global_index"]
    settle(cluster, boom, [first, second])


def settle(cluster: LocalCluster, boom: SyncClient, made: list[int]) -> None:
    """All nodes have these sets, and have compacted their logs at the older one: their states are saved there."""
    for node, address in cluster.addresses.items():
        wait_for(f"both sets on {node}", lambda address=address: sets(boom, address) == made)
        wait_for(f"compaction on {node}", lambda node=node: compacted(cluster.log(node)) == made[0])


def sets(boom: SyncClient, node: str | None = None) -> list[int]:
    return [row["global_index"] for row in boom.snapshots(node=node)["sets"]]


def compacted(log: Path) -> int:
    """Where a node has last done so, by its own word."""
    rows = [json.loads(line) for line in log.read_text().splitlines() if '"compacted"' in line]
    return rows[-1]["global_index"] if rows else 0


def write_lately(cluster: LocalCluster, boom: SyncClient) -> None:
    """What not every release knows."""
    if hasattr(logboom, "Txn"):
        over_several_keys(boom)
    if hasattr(boom, "set_partition"):
        boom.set_partition(LOG, ack="committed")
        boom.set_partition(BEHIND, ack="durable", linearizable=True)
    asyncio.run(crowd(cluster.endpoints))
    boom.submit_block(LOG, RecordBlock.from_records([Record(b"block %d" % k) for k in range(40)]))
    for name, partition in CURSORS.items() if hasattr(boom, "cursor") else ():
        boom.cursor(name, partition).commit(boom.cursor(name, partition).position() + 7)


# -- and left


def leave(cluster: LocalCluster, boom: SyncClient) -> None:
    """Something of everything behind the last set; say what there is, and stop."""
    write_lately(cluster, boom)
    boom.barrier(boom.last_seen, scope="all", timeout=PATIENCE_S)
    with cluster.client(timeout=PATIENCE_S) as fresh:  # one of an early release does not hear of partitions for a while
        about = {"settings": SETTINGS} | told(cluster, fresh)
    cluster.stop()
    (cluster.directory / "golden.json").write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")


def command_line(*words: object) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "logboom", *map(str, words), "-o", "json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def write_what_is_refused(directory: Path) -> None:
    """Before there were snapshots, and so before the first release, the manifest and the journal had other formats."""
    settings = {"raft.journal_segment_bytes": 16 * KIB}
    with (
        LocalCluster(nodes=1, partitions=1, directory=directory, settings=settings) as cluster,
        cluster.client(timeout=PATIENCE_S) as boom,
    ):
        boom.submit(KV, Put(b"key", b"value"))
    (directory / "golden.json").write_text(json.dumps({"refused": True, "settings": settings}))


def main() -> None:
    """``cluster``, and ``restored`` from a backup of it if that begins another history."""
    directory = Path(sys.argv[1])
    backup = directory / "backup"
    if not hasattr(SyncClient, "create_snapshot"):
        write_what_is_refused(directory / "cluster")
        return
    with (
        LocalCluster(partitions=PARTITIONS, directory=directory / "cluster", settings=SETTINGS) as cluster,
        cluster.client(timeout=PATIENCE_S) as boom,
    ):
        write_all(cluster, boom)
        write_on(cluster, boom, ROUNDS[2:4], backup if "lineage" in boom.status() else None)
        leave(cluster, boom)
    if backup.exists():
        cluster = LocalCluster(partitions=PARTITIONS, directory=directory / "restored", settings=SETTINGS)
        for node in cluster.nodes:
            command_line("restore", backup, "--config", cluster.config(node))
        with cluster, cluster.client(timeout=PATIENCE_S) as boom:
            write_on(cluster, boom, ROUNDS[4:])
            leave(cluster, boom)


if __name__ == "__main__":
    main()
