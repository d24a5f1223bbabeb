"""Bugs of backups, restores, and of histories that are mixed."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

RESTORE: Final = "server.offline.restore:"
RECOVER: Final = "server.offline.recover:_Node."
DIRECTORY: Final = "server.offline.backup_dir:BackupDir."

MUTANTS: Final = (
    Mutant(
        "histories-not-compared",
        "Nodes of two histories of a cluster let each other in.",
        ("OtherHistory",),
        (
            Edit(
                "raftlog.links.hello:check_lineage",
                "if None not in (theirs, ours) and theirs != ours:",
                "if False:",
            ),
        ),
        needs="restores",
    ),
    Mutant(
        "restored-without-lineage",
        "A restored node is of the history that the backup is of.",
        ("OneHistory", "RestoreWhole", "OtherHistory", "NoSelfStop"),
        (
            Edit(
                RESTORE + "lineage_of",
                'return hashlib.blake2b(raw, digest_size=LINEAGE_BYTES, person=b"logboom lineage").hexdigest()',
                "return meta.lineage",
            ),
        ),
        needs="restores",
    ),
    Mutant(
        "lineage-of-each-node",
        "Who restores a set finds another lineage than the others.",
        ("OneHistory",),
        (
            Edit(
                RESTORE + "restore",
                "lineage_of(meta, settings.cluster.id, token)",
                "lineage_of(meta, settings.cluster.id, token + settings.node.id)",
            ),
        ),
        needs="restores",
    ),
    Mutant(
        "token-of-another-history",
        "An index of another history is waited for, and read at.",
        ("OtherHistory",),
        (
            Edit(
                "logboom.client.cluster:Cluster.check_token",
                "if self.lineage not in (None, token.lineage):",
                "if False:",
            ),
            Edit(
                "dispatcher.sessions.waits:Waits._want",
                "lineage is not None and ours is not None and lineage != ours",
                "False",
            ),
        ),
        needs="restores",
    ),
    Mutant(
        "backup-of-two-histories",
        "What is of another history is copied into the same directory.",
        ("BackupsMix",),
        (Edit(DIRECTORY + "check", "if self.contents.lineage != lineage:", "if False:"),),
        needs="restores",
    ),
    Mutant(
        "recovered-in-the-same-history",
        "A node that begins again alone is of the history that it was of.",
        ("OneHistory",),
        (Edit(RECOVER + "recover", "lineage = self._lineage()", 'lineage = self._manifest.lineage or ""'),),
        needs="restores",
    ),
    Mutant(
        "recovered-before-its-lineage",
        "It is its cluster's only voter before it is of another history; a crash in between leaves it so.",
        ("OneHistory",),
        (
            Edit(
                RECOVER + "recover",
                "self._disk.replace_file(self._path / MANIFEST, encode_manifest(self._manifest))",
                "manifest = encode_manifest(self._manifest)",
            ),
            Edit(
                RECOVER + "recover",
                "self._known = alone\n",
                "self._known = alone\n    self._disk.replace_file(self._path / MANIFEST, manifest)\n",
            ),
        ),
        needs="restores",
    ),
    Mutant(
        "recovered-not-synced",
        "The entry that makes it the only voter is written and not synced when the command ends.",
        ("RecoverWhole",),
        (Edit(RECOVER + "recover", "self.journal.flush()", "pass"),),
        needs="restores",
    ),
    Mutant(
        "only-the-last-is-listed",
        "A backup's list has the set that came last, and no other.",
        ("BackupKept",),
        (Edit(DIRECTORY + "complete", "(*listed, Kept.of(meta))", "(Kept.of(meta),)"),),
        needs="restores",
    ),
    Mutant(
        "backup-of-files-half-full",
        "Of the logs whatever has filled a file of a backup is left out of it.",
        ("BackupsMix", "RecordsKept", "BackupKept"),
        (
            Edit(
                "server.offline.backup:_Copy._log",
                "if nbytes >= FILE_BYTES:\n            self._keep(archive, rows)",
                "if nbytes >= FILE_BYTES:\n            pass",
            ),
        ),
        needs="restores log_partitions",
    ),
    Mutant(
        "backup-without-the-beginning",
        "Of each log the first batch is left out of a backup (RecordsKept).",
        ("RecordsKept",),
        (
            Edit(
                "server.offline.backup:_Copy._log",
                "rows.append((global_index, batch))",
                "rows.extend([(global_index, batch)] if header.first_index > 1 else [])",
            ),
        ),
        needs="restores log_partitions",
    ),
)
