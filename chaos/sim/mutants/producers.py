"""Bugs of what is remembered of producers: epochs, gaps, and what was applied in part."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

DEDUPE: Final = "partitions.apply.dedupe:Dedupe."
PRODUCER: Final = "partitions.apply.dedupe:Producer."

MUTANTS: Final = (
    Mutant(
        "epoch-ignored",
        "What comes of an older epoch is taken (Fenced).",
        ("Fenced",),
        (Edit(DEDUPE + "decide", "if header.epoch < known.epoch:", "if False:"),),
        needs="writes_tasks",
    ),
    Mutant(
        "epoch-not-begun",
        "A new epoch goes on with the sequences of the one before (I5).",
        ("DenseInOrder", "Fenced", "I8"),
        (
            Edit(DEDUPE + "decide", "if known is None or header.epoch > known.epoch:", "if known is None:"),
            Edit(DEDUPE + "record", "if header.epoch > known.epoch:", "if False:"),
        ),
        needs="writes_tasks",
    ),
    Mutant(
        "gap-taken",
        "A dense producer's rows are applied before those in front of them (DenseInOrder).",
        ("DenseInOrder",),
        (
            Edit(
                DEDUPE + "decide",
                "if header.dense and header.sequence > max(known.expected, header.floor):",
                "if False:",
            ),
        ),
        needs="writes_tasks",
    ),
    Mutant(
        "overlap-is-all",
        "A batch of which a part was applied before has no effect at all (I8).",
        ("DenseInOrder", "I8"),
        (Edit(PRODUCER + "covered", "found.append((first, min(last, floor)))", "found.append((first, last))"),),
        needs="writes_tasks",
    ),
    Mutant(
        "evicted-though-it-writes",
        "Who wrote longest ago is forgotten, even if he is just writing again: who is known depends on groups.",
        ("ProducersBounded", "SnapshotEquivalence"),
        (Edit(DEDUPE + "_evict", "if p not in self._evicted and p not in self._staged", "if p not in self._evicted"),),
        needs="forgets_producers groups",
    ),
    Mutant(
        "txn-in-part",
        "Of commands over several keys those in front of one that cannot be done stay done.",
        ("TransfersWhole", "I8"),
        (Edit("partitions.machines.kv_apply:_txn", "branch = view.branch()", "branch = view"),),
        needs="transfers",
    ),
)
