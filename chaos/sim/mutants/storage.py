"""Bugs of what is on disk: syncs, names, checksums, recovery."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

JOURNAL: Final = "raftlog.journal.journal:Journal."
FILES: Final = "raftlog.journal.journal_files:JournalFiles."
LOG: Final = "partitions.log.log:PartitionLog."
SEGMENT: Final = "partitions.log.open_segment:OpenSegment."
KV: Final = "partitions.machines.kv:KvMachine."

MUTANTS: Final = (
    Mutant(
        "unchecked-digest",
        "Batches are taken and read back without a look at checksum and digest (I4).",
        ("NoServeCorrupt", "InvariantViolated", "NoSelfStop", "I5", "I6", "I8", "NoPhantom"),
        (
            Edit("partitions.log.batch:parse_header", "if google_crc32c.value(checked) != crc:", "if False:"),
            Edit(
                "partitions.log.batch:parse_batch",
                "if _digest(header.previous_digest, bytes(view[: HEAD.size]), metadata, data) != header.digest:",
                "if False:",
            ),
            Edit("partitions.log.reading:LogReader._parsed", "if header.digest != ref.digest:", "if False:"),
            Edit("partitions.log.reading:LogReader._read", "if found.digest != ref.digest:", "if False:"),
        ),
    ),
    Mutant(
        "unchecked-index",
        "The index of a sealed segment is believed without a look at its digest (I4).",
        ("InvariantViolated", "NoServeCorrupt", "I6"),
        (
            Edit(
                "partitions.log.segment:parse_index",
                "if _index_digest(rows, ordinal, end, part) != digest:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "unchecked-journal",
        "Journal records are read without a look at their checksum: a torn one counts.",
        ("NoSelfStop", "InvariantViolated", "PrefixAgreement", "CommitTrue", "AcknowledgedKept", "Liveness"),
        (
            Edit(
                "raftlog.journal.journal_codec:record_at",
                "if google_crc32c.extend(checked, bytes(body)) != crc:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "journal-name-not-synced",
        "A new journal file's name is not synced: with the power goes the file (I8).",
        ("VoteDurable", "AckDurable", "AcknowledgedKept", "AppliedDurable"),
        (
            Edit(FILES + "new_segment", "self.disk.sync_directory(self.directory)", "pass"),
            Edit(FILES + "new_segment", "self.write_newest(sequence)", "pass"),  # which syncs the directory, too
        ),
    ),
    Mutant(
        "log-name-not-synced",
        "A new segment's name is not synced: with the power goes the file (I8).",
        ("AckDurable", "AcknowledgedKept", "AppliedDurable"),
        (Edit(SEGMENT + "_roll", "self._disk.sync_directory(self._directory)", "pass"),),
    ),
    Mutant(
        "found-log-not-synced",
        "What a killed process had written to a partition's log counts as held after the start, and is not synced.",
        ("AckDurable", "AcknowledgedKept", "AppliedDurable"),
        (
            Edit(SEGMENT + "reopen", "file.sync()", "pass"),
            Edit("raftlog.repair.recovery:recover", "_write_again(journal, payloads)", "pass"),
        ),
    ),
    Mutant(
        "sync-error-ignored",
        "A failed group sync counts as one that succeeded (I8).",
        ("AckDurable", "VoteDurable", "AcknowledgedKept"),
        (Edit("raftlog.journal.outbox:GroupSync._share_done", "if error is not None:", "if False:"),),
    ),
    Mutant(
        "truncation-not-recorded",
        "The journal forgets to say that entries were cut off.",
        ("NoSelfStop", "WouldStart"),
        (
            Edit(
                JOURNAL + "deleteEntriesFrom",
                "self._pending.append((RecordKind.TRUNCATE, codec.INDEX.pack(index)))",
                "pass",
            ),
        ),
    ),
    Mutant(
        "tail-cut",
        "At a start the journal is cut before the first batch that is missing, acknowledged or not (I8).",
        ("AcknowledgedKept",),
        (
            Edit(
                "raftlog.repair.recovery:recover",
                "return Recovered(put_back, missing)",
                "if missing:\n        journal.truncate_from(missing[0].raft_index)\n    group.flush()\n"
                "    return Recovered(put_back, [])",
            ),
        ),
    ),
    Mutant(
        "put-back-skipped",
        "Batches that only the journal had synced are not put back at a start.",
        ("AcknowledgedKept", "Liveness"),
        (Edit("raftlog.repair.recovery:_put_back", "journal.find_redo(route.digest)", "None"),),
    ),
    Mutant(
        "settled-too-early",
        "The journal forgets the batches that it carries before their logs are synced.",
        ("AckDurable", "AcknowledgedKept", "AppliedDurable"),
        (
            Edit(
                "raftlog.journal.outbox:GroupSync._settle_next",
                "list(self._behind.values())",
                "[]",
            ),
        ),
    ),
    Mutant(
        "stripped-too-early",
        "A journal file that is full loses the batches that it carries, needed or not.",
        ("AckDurable", "AcknowledgedKept", "AppliedDurable"),
        (
            Edit(
                FILES + "roll",
                "self.sealed.append(tail.sealed(self.hard))",
                "self.sealed.append(tail.sealed(self.hard)); self.strip(tail.sequence)",
            ),
        ),
    ),
    Mutant(
        "not-carried",
        "Batches count as carried by the journal, and are not written to it (I3).",
        ("AckDurable", "AcknowledgedKept", "AppliedDurable"),
        (Edit("raftlog.journal.outbox:GroupSync._take", "self._journal.redo(batch)", "pass"),),
    ),
    Mutant(
        "tentative-overwritten",
        "A batch that takes an index anew replaces the tentative one of the older term.",
        ("I2",),
        (
            Edit(
                "partitions.log.tentative:Tentative.hold",
                "self._held.setdefault(ref.last_index, []).insert(0, ref)",
                "self._held[ref.last_index] = [ref]",
            ),
        ),
        needs="half_back",
    ),
    Mutant(
        "first-batch-wins",
        "An index that holds a tentative batch takes no other.",
        ("Liveness", "InvariantViolated"),
        (
            Edit(
                LOG + "append",
                "if self.holds(last_index, header.digest) or (",
                "if last_index in self._tentative._held or (",
            ),
        ),
    ),
    Mutant(
        "applied-before-synced",
        "A partition applies and shows what is not synced here (I1, I7).",
        ("AppliedDurable", "AppliedStable"),
        (
            Edit(
                LOG + "_advance_durable",
                "while self._undurable and self._undurable[0][1] <= self._synced_order:",
                "while self._undurable:",
            ),
        ),
        needs="write_behind",  # else what is committed is synced here before it is handed up
    ),
    Mutant(
        "position-before-state",
        "A checkpoint saves its position, and the state up to there only with the next one (I6, I8).",
        ("I6", "I8", "ReadYourWrites", "LinearizableRead", "SnapshotEquivalence"),
        (
            Edit(
                KV + "checkpoint",
                "self._saving, self._saving_at, self._changes = self._changes,",
                "self._late, self._saving, self._saving_at, self._changes = self._saving, self._changes,",
            ),
            Edit(KV + "_save", "write(self._saving.state,", "write(self._late.state,"),
            Edit(
                KV + "_save",
                "self._saving, self._saving_at = Unsaved(), None",
                "self._saving.nbytes, self._saving_at = 0, None",
            ),
        ),
    ),
    Mutant(
        "saved-once",
        "One checkpoint counts as saved to stay, though a power loss may undo it.",
        ("SavedStays", "AcknowledgedKept"),
        (Edit("partitions.apply.checkpoints:Checkpoints._saved", "save.begun == SAVES", "save.begun >= 1"),),
    ),
    Mutant(
        "dedupe-not-saved",
        "What producers have done is not part of a checkpoint: after a crash it is forgotten (I5, I6).",
        ("I5", "I6", "I8", "SnapshotEquivalence"),
        (Edit(KV + "_save", "self._saving.meta, at)", "{}, at)"),),
    ),
)
