"""All of them."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants import (
    answers,
    flow,
    histories,
    lag,
    losing,
    members,
    mixed,
    operating,
    producers,
    raft,
    reading,
    setting,
    snapshots,
    state,
    storage,
)
from chaos.sim.mutants.edit import Mutant

MUTANTS: Final[dict[str, Mutant]] = {
    m.name: m
    for m in (
        *raft.MUTANTS,
        *storage.MUTANTS,
        *flow.MUTANTS,
        *producers.MUTANTS,
        *mixed.MUTANTS,
        *snapshots.MUTANTS,
        *members.MUTANTS,
        *lag.MUTANTS,
        *losing.MUTANTS,
        *histories.MUTANTS,
        *state.MUTANTS,
        *reading.MUTANTS,
        *operating.MUTANTS,
        *setting.MUTANTS,
        *answers.MUTANTS,
    )
}
