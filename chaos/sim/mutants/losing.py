"""Bugs that begin once a node has lost what it had promised, and has been taken back."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

STABILITY: Final = "dispatcher.barriers.stability:Stability."

MUTANTS: Final = (
    Mutant(
        "stable-on-one-after-a-loss",
        "Write-behind: once another node has lost its journal, what any node has synced counts as stable.",
        ("AppliedStable",),
        (
            Edit(STABILITY + "forget", "for nodes in (", "self._lost = True\n    for nodes in ("),
            Edit(STABILITY + "_count", "held[self._position]", "held[0 if hasattr(self, '_lost') else self._position]"),
        ),
        needs="write_behind rot_journal",
    ),
    Mutant(
        "taken-back-and-not-counted",
        "What a node acknowledges that was taken back once counts for no quorum any more.",
        ("Liveness", "NothingUnhandled"),
        (
            Edit(
                "raftlog.engine.quorums:Quorums._held_by_quorum",
                "if forgetful and node.id in forgetful else",
                "if node.id in forgetful or self.membership.current.rejoined_with(node.id) else",
            ),
        ),
        needs="disks_lost",
    ),
)
