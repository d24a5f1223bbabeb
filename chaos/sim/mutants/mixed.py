"""Bugs of batches that several producers share."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

PENDING: Final = "dispatcher.pipeline.pending:Pending."
PROPOSING: Final = "dispatcher.pipeline.proposing:Proposing."

MUTANTS: Final = (
    Mutant(
        "skips-the-first",
        "Of a mixed batch the first records are skipped in place of those that were applied before (I8).",
        ("I8", "ReceiptTrue"),
        (Edit("partitions.apply.apply_core:_skipped", "at = origin.first_index - first_index", "at = 0"),),
        needs="crowds",
    ),
    Mutant(
        "told-to-the-last",
        "Of those who share a batch only the last hears that it is committed.",
        ("Liveness", "I10", "ReceiptTrue", "NothingUnhandled"),
        (
            Edit(
                PENDING + "committed",
                "self._shares.get((partition_id, last_index), (last_index,))",
                "(last_index,)",
            ),
        ),
        needs="crowds",
    ),
    Mutant(
        "origins-in-a-row",
        "A mixed batch names its producers in another order than their records are in (I8).",
        ("OffsetsDenseUnique", "LinearizableRead", "I8"),
        (Edit(PROPOSING + "_together", "blocks.append(records)", "blocks.insert(0, records)"),),
        needs="crowds",
    ),
    Mutant(
        "last-first",
        "Of producers that wrote last in one batch another is the oldest after a restart: who is forgotten differs.",
        ("ProducersBounded", "SnapshotEquivalence", "I6"),
        (
            Edit(
                "partitions.apply.dedupe:Dedupe.__init__",
                "loaded.sort(key=lambda item: item[1].age)",
                "loaded.sort(key=lambda item: (item[1].last_global, -item[1].last_in_mixed))",
            ),
        ),
        needs="crowds forgets_producers",
    ),
)
