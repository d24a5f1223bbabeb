"""Bugs of what is done about partitions and nodes that apply too slowly."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

LAGGING: Final = "dispatcher.pipeline.lagging:Lagging."

MUTANTS: Final = (
    Mutant(
        "frozen-admits",
        "A partition that stands still is said to be frozen, and takes writes.",
        ("FrozenRefuses", "LagHeld"),
        (
            Edit(
                LAGGING + "_carry_out",
                'admission.freeze(partition_id, f"it applies nothing here: {step.reason}", by=SOURCE)',
                "pass",
            ),
        ),
        needs="lags",
    ),
    Mutant(
        "not-thawed",
        "A partition that goes on stays frozen.",
        ("LagHeld", "Liveness"),
        (Edit(LAGGING + "_carry_out", "admission.thaw(partition_id, by=SOURCE)", "pass"),),
        needs="lags",
    ),
    Mutant(
        "held-untold",
        "Receipts do not say that their partition is held.",
        ("HeldTold",),
        (Edit("dispatcher.pipeline.pending:Pending._reached", "if self._held:", "if False:"),),
        needs="lags",
    ),
    Mutant(
        "others-hand-over",
        "A node that is behind hands leadership over, whether it leads or not.",
        ("LagMoves",),
        (Edit("dispatcher.admission.ladder:Ladder._nodes", "if leads and able and", "if able and"),),
        needs="lags",
    ),
)
