"""Bugs of snapshots, compaction and installs."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

WORKER: Final = "partitions.apply.worker:ApplyWorker."
KV: Final = "partitions.machines.kv:KvMachine."
COMPACTION: Final = "dispatcher.upkeep.compaction:Compaction."

MUTANTS: Final = (
    Mutant(
        "captured-late",
        "A worker does not stop at the cut: its state is captured wherever it is by then.",
        ("CapturedAtCut", "SnapshotEquivalence", "InvariantViolated", "I5", "I6", "I8"),
        (
            Edit(
                WORKER + "_start",
                "limit = cursor.limit if nearest is None else",
                "limit = cursor.limit if nearest is None or nearest.is_cut else",
            ),
            Edit(
                WORKER + "_start",
                "nearest.through_index == self.applied_index",
                "nearest.through_index <= self.applied_index",
            ),
        ),
        needs="lags groups cuts_often",
    ),
    Mutant(
        "dumped-without-changes",
        "What is applied and not saved yet is not in the snapshot.",
        ("SnapshotEquivalence", "I6", "I8"),
        (Edit(KV + "dump", "state = {**self._saving.state, **self._changes.state}", "state = {}"),),
    ),
    Mutant(
        "dumped-without-producers",
        "Who has written what is not in the snapshot: whoever is made from it forgets.",
        ("SnapshotEquivalence", "I5", "I6", "I8"),
        (Edit(KV + "dump", "meta = {**self._saving.meta, **self._changes.meta}", "meta = {}"),),
    ),
    Mutant(
        "places-not-saved",
        "The journal begins behind batches of which nobody has written down where they are.",
        ("NoSelfStop", "WouldStart"),
        (Edit(COMPACTION + "_secure", "await self._step(store.save_places(through_index))", "pass"),),
    ),
    Mutant(
        "base-without-parent",
        "The journal's base does not say what the entries before it did.",
        ("PrefixAgreement", "InvariantViolated", "NoSelfStop", "I7", "Liveness"),
        (
            Edit(
                COMPACTION + "_compact_to",
                "Base(target.raft_index, target.raft_term, target.parent)",
                'Base(target.raft_index, target.raft_term, b"")',
            ),
        ),
    ),
    Mutant(
        "records-not-kept",
        "Records of a ``log`` partition are removed as if a snapshot had them (RecordsKept).",
        ("RecordsKept",),
        (
            Edit(
                "dispatcher.upkeep.compaction:removes",
                'state_machine != "log" or bool(settings.retain_log_bytes or settings.retain_log_ms)',
                "True",
            ),
            Edit("dispatcher.upkeep.compaction:Compaction._remove", "self._settings.retain_log_bytes or None", "0"),
        ),
        needs="log_partitions cuts_often",
    ),
    Mutant(
        "age-ignored",
        "Records of ``log`` partitions stay, however old they are (OutdatedRemoved).",
        ("OutdatedRemoved",),
        (Edit(COMPACTION + "_outdated", "if not self._settings.retain_log_ms:", "if True:"),),
        needs="outdates",
    ),
    Mutant(
        "old-behind-young",
        "Records in front of older ones count as old, too: a clock was set back meanwhile (RecordsKept).",
        ("RecordsKept",),
        (
            Edit(
                "partitions.log.chunks:ChunkReader.behind_older",
                "if timestamp_ms <= found_ms <= now_ms:",
                "if False:",
            ),
        ),
        needs="outdates clock_jump",
    ),
    Mutant(
        "newest-kept",
        "The newest segment of a log that nobody writes to stays, however old it is (OutdatedRemoved).",
        ("OutdatedRemoved",),
        (Edit(COMPACTION + "_remove", 'if state_machine == "log" else None', "if False else None"),),
        needs="outdates",
    ),
    Mutant(
        "removed-too-much",
        "Segments go that hold what was committed behind the cut.",
        (
            "InvariantViolated",
            "NoSelfStop",
            "Liveness",
            "I2",
            "AcknowledgedKept",
            "AckDurable",
            "NothingUnhandled",
            "NothingEvicted",
            "LeaseKept",
        ),
        (
            Edit(
                "partitions.log.log:PartitionLog._ended_before",
                "self._committed.newest_in(s) < index",
                "True",
            ),
        ),
        needs="cuts_often",
    ),
    Mutant(
        "installed-without-state",
        "A node that is made from a snapshot takes its logs and leaves its state as it was.",
        (
            "I6",
            "I5",
            "I8",
            "NoSelfStop",
            "InvariantViolated",
            "BarrierSound",
            "Liveness",
            "NothingUnhandled",
            "SnapshotEquivalence",
        ),
        (
            Edit(
                "server.directory.install:restore_state",
                "machine.load(_told(read_section(file, section, patient=True), moved), position)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "fetched-unchecked",
        "A log that was filled from another node begins anywhere: what it lacks in front is not asked for.",
        ("NoSelfStop", "PrefixAgreement", "InvariantViolated", "NoPhantom", "Liveness", "AppliedDurable"),
        (
            Edit(
                "partitions.log.log:PartitionLog.save_fetched",
                "rows,\n        through_index=",
                "Rows(list(rows)[1:]),\n        through_index=",
            ),
        ),
    ),
    Mutant(
        "unapplied-removed",
        "Of a partition that is behind all that is durable may go, applied or not.",
        ("NothingEvicted", "I2"),
        (
            Edit(
                COMPACTION + "_remove",
                "compaction_point(through_index, retain",
                "compaction_point(through_index if self._workers[partition_id].idle else store.durable_index, retain",
            ),
        ),
        needs="lags cuts_often",
    ),
    Mutant(
        "snapshotted-before-applied",
        "After a start a partition counts as snapshotted further than it is applied.",
        ("I1",),
        (
            Edit(
                "dispatcher.barriers.watermarks:Watermarks.update",
                "PartitionLogIndex(min(self._snapshot.get(partition_id, 0), applied_index))",
                "PartitionLogIndex(self._snapshot.get(partition_id, 0))",
            ),
            Edit(
                "dispatcher.barriers.watermarks:Watermarks.update",
                "after.snapshot_index <= after.applied_index <= after.durable_index <= after.log_index",
                "True",
            ),
        ),
    ),
    Mutant(
        "cut-waits-for-what-is-gone",
        "A set goes on waiting for the state of a partition that was destroyed meanwhile: none is ever taken there.",
        ("Liveness",),
        (
            Edit(
                "dispatcher.pipeline.presence:Presence.forgotten",
                "self.snapshots.taking.ended(partition_id, worker)",
                "pass",
            ),
        ),
        needs="partitions_change lags cuts_often",
    ),
    Mutant(
        "no-set-anew",
        "Where the only set is gone, of which the journal goes on, none is taken unless something is written.",
        ("Liveness",),
        (
            Edit(
                "dispatcher.upkeep.due:Due.is_lacking",
                "return gone and self._clock.monotonic() >= self._not_before",
                "return False",
            ),
        ),
        needs="lose_sets",
    ),
)
