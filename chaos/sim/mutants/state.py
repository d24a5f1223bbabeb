"""Bugs of what commands do to a ``kv`` state."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

APPLY: Final = "partitions.machines.kv_apply:"

MUTANTS: Final = (
    Mutant(
        "cas-blind",
        "A value is swapped for another, whatever it was (LinearizableRead).",
        ("LinearizableRead", "CursorMonotonic"),
        (Edit(APPLY + "_cas", 'if view.get(key, len(expected or b"")) != expected:', "if False:"),),
        needs="kv_partitions",
    ),
    Mutant(
        "whole-block-again",
        "Of a block that is applied as a whole, what was applied before is applied again (I5).",
        ("I8",),
        (Edit(APPLY + "_apply", "and not batch.skip and block.has_keys", "and block.has_keys"),),
        needs="writes_tasks",
    ),
    Mutant(
        "range-beyond-its-end",
        "A range that is removed goes to the end of all keys.",
        ("I8", "TransfersWhole"),
        (Edit(APPLY + "_Wide._delete_range", "view.within(start, end)", "view.within(start, None)"),),
        needs="transfers",
    ),
    Mutant(
        "range-without-its-group",
        "Of a range that is removed those keys stay that were written in the same group: which, differs (I6).",
        ("I6", "SnapshotEquivalence", "TransfersWhole"),
        (
            Edit(
                APPLY + "_View.within",
                "merged(below, self.dirty, start=start, end=end, keys=keys)",
                "below",
            ),
        ),
        needs="transfers",
    ),
    Mutant(
        "compares-always-hold",
        "Commands over several keys are done whatever was compared: who has too little gives all the same.",
        ("TransfersWhole", "I8"),
        (Edit(APPLY + "_txn", "holds = all(", "holds = True or all("),),
        needs="transfers",
    ),
    Mutant(
        "compares-never-hold",
        "Whatever was compared, what was to be done otherwise is.",
        ("TransfersWhole", "I8"),
        (Edit(APPLY + "_txn", "holds = all(", "holds = False and all("),),
        needs="transfers",
    ),
    Mutant(
        "otherwise-not-told",
        "An answer says that commands over several keys were done where those for the other case were.",
        ("I8",),
        (Edit(APPLY + "_txn", "return Status.OK if holds else Status.OTHERWISE", "return Status.OK"),),
        needs="transfers",
    ),
)
