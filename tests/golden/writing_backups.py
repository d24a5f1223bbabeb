"""Backup directories with something of everything: ``python -P writing_backups.py DIRECTORY``.

As ``writing.py``: it runs under the code of any release that is first on the path. ``<DIRECTORY>/first/backup`` is of a
cluster's first history, ``<DIRECTORY>/restored/backup`` of one that was begun from it; beside each ``golden.json``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

from logboom import Add, Put, Record, SyncClient
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

if __package__:
    from tests.golden import writing
else:  # as a program: this directory is on the path, whose code runs is another's
    import writing

LOG, IDLE = 1, 2
PARTITIONS: Final = 3
SETTINGS: Final[dict[str, Any]] = {
    "cluster.overrides": {
        str(LOG): {"state_machine": "log", "mode": "write_behind"},
        str(IDLE): {"state_machine": "log"},
    },
    "snapshot.retain_bytes": 0,
    "snapshot.retain_log_ms": 1,  # all of a log that nobody writes to any more goes
    "apply.unsaved_ms": 3_600_000,  # what is killed applies everything again
}
LOST: Final = b"lost for good" * 20


def contents(boom: SyncClient) -> dict[str, Any]:
    """Of each partition: a digest over what users read, over which gaps; and of its state."""
    boom.barrier(boom.last_seen, scope="all", timeout=writing.PATIENCE_S)
    digests = {row[0]: row[2].hex() for row in boom.status(digests=True)["digests"]}
    found = {}
    for partition, machine in sorted(boom.state_machines().items()):
        gaps: list[Any] = []
        if machine == "kv":
            rows = list(boom.scan(partition))
        else:
            batches = list(boom.tail(partition, on_void=gaps.append, on_compacted="first"))
            rows = [(batch.first_index, *batch.records.payloads()) for batch in batches]
        said = hashlib.sha256("\n".join(map(repr, rows)).encode()).hexdigest()
        voids = [[int(gap.first_index), int(gap.next)] for gap in gaps]
        found[str(partition)] = {"count": len(rows), "sha256": said, "digest": digests[partition], "voids": voids}
    return found


def write(boom: SyncClient, name: bytes) -> None:
    for turn in range(5):
        boom.submit(writing.KV, [Put(b"%s/%d" % (name, turn), b"value"), Add(b"n", 1)], wait="applied")
        boom.submit(LOG, [Record(b"%s %d" % (name, turn), b"key", (("h", name),))], wait="applied")


def lose(cluster: LocalCluster, boom: SyncClient) -> None:
    """A batch of a log is lost before any state has it, and is declared void."""
    index = boom.submit(LOG, Record(LOST), wait="applied").first_index
    boom.barrier(boom.last_seen, scope="all", level="durable", timeout=writing.PATIENCE_S)
    cluster.kill("n1")
    for file in (cluster.data_dirs["n1"] / "partitions" / str(LOG)).glob("*.log"):
        file.write_bytes(file.read_bytes().replace(LOST, LOST.swapcase()))
    cluster.start_node("n1")
    writing.wait_for("the loss", lambda: state(boom) == "lost")
    boom.void_batch(LOG, index, yes=True)
    writing.wait_for("the void", lambda: state(boom) == "running")


def state(boom: SyncClient) -> str:
    try:
        return next((str(row[6]) for row in boom.status(timeout=2)["partitions"] if row[0] == LOG), "")
    except LogboomError:
        return ""


def begin(cluster: LocalCluster, backup: Path) -> None:
    """Made from it, before its first start."""
    writing.command_line("restore", backup, "--config", cluster.config("n1"))


def told(boom: SyncClient) -> dict[str, Any]:
    """What a cluster has that was just made from a backup."""
    return {
        "writing.repeated": writing.repeated(boom),
        "partitions": contents(boom),
        "voids": boom.status()["voids"][0],
    }


def main() -> None:
    """The first history, another one made from its backup, and one from the backup of that, which says what it has."""
    root = Path(sys.argv[1])
    first, restored, again = (
        LocalCluster(nodes=1, partitions=PARTITIONS, directory=root / name / "cluster", settings=SETTINGS)
        for name in ("first", "restored", "again")
    )
    with first, first.client(timeout=writing.PATIENCE_S) as boom:
        boom.submit(IDLE, [Record(b"gone"), Record(b"too")], wait="applied")
        write(boom, b"first")
        writing.repeated(boom)
        first_set = boom.create_snapshot()["global_index"]
        write(boom, b"second")
        boom.create_snapshot()
        writing.wait_for("compaction", lambda: writing.compacted(first.log("n1")) == first_set)
        write(boom, b"third")
        lose(first, boom)
        write(boom, b"fourth")
        writing.command_line("backup", root / "first" / "backup", "--endpoints", first.endpoints)
    for cluster, name in (restored, "first"), (again, "restored"):
        begin(cluster, root / name / "backup")
        with cluster, cluster.client(timeout=writing.PATIENCE_S) as boom:
            about = {"backup": True, "settings": SETTINGS} | told(boom)
            (root / name / "golden.json").write_text(json.dumps(about))
            if cluster is restored:
                write(boom, b"fifth")
                writing.command_line("backup", root / "restored" / "backup", "--endpoints", cluster.endpoints)


if __name__ == "__main__":
    main()
