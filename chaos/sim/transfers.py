"""Commands over several keys, in runs: see ``chaos.transfers``."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos.transfers import Call, Invoke, Moving
from logboom import Client

if TYPE_CHECKING:
    from chaos.sim.seen import Seen


class Transfers(Moving):
    """One client's, in a partition that may go, or lose what nobody has."""

    def __init__(
        self, client: Client, *, seen: Seen, rng: random.Random, partition: int, invoke: Invoke, call: Call, name: str
    ) -> None:
        super().__init__(
            client,
            history=seen.history,
            rng=rng,
            partition=partition,
            invoke=invoke,
            call=call,
            name=name,
            nodes=lambda: list(seen.addresses),
            problem=self._found,
            refused=lambda error: seen.refused("who moves something", error),
        )
        self._seen = seen

    async def step(self) -> None:
        """See Moving."""
        if self._partition not in self._seen.gone:
            await super().step()

    def _found(self, story: str) -> None:
        if self._partition not in self._seen.doomed:
            self._seen.problems.append(("TransfersWhole", story))
