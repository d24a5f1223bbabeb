"""Bugs of settings of partitions that are in the log."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        "set-for-whoever-comes-later",
        "What is set of a partition does not count for writes that are under way, behind it (ReceiptTrue).",
        ("ReceiptTrue",),
        (
            Edit(
                "dispatcher.pipeline.pending:Pending.acknowledge_anew",
                "if partition_id not in partitions:",
                "if True:",
            ),
        ),
        needs="sets",
    ),
    Mutant(
        "first-word-counts",
        "What is set of a partition counts only where nothing was set before (SetTold).",
        ("SetTold",),
        (
            Edit(
                "raftlog.entries.chosen:Chosen.then",
                "self.ack if later.ack is None else later.ack",
                "self.ack or later.ack",
            ),
        ),
        needs="sets",
    ),
    Mutant(
        "set-where-it-leads",
        "What is set of a partition counts at the node alone that proposed it (PartitionsAgree).",
        ("PartitionsAgree",),
        (
            Edit(
                "dispatcher.pipeline.choosing:Choosing.handed_up",
                "parent.choose(choice)",
                'parent.choose(choice) if choice in self._waiting else "not asked here"',
            ),
        ),
        needs="sets",
    ),
    Mutant(
        "set-until-the-journal-ends",
        "Where the journal begins later, nothing is known of what was set of partitions.",
        ("PartitionsAgree", "SnapshotEquivalence", "ReceiptTrue"),
        (Edit("raftlog.entries.parent_state:ParentState.encode", "VERSION if self.chosen else before", "before"),),
        needs="sets",
    ),
)
