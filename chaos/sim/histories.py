"""What clients were told, when another history begins with a set: which of it holds, and which was given up."""

from __future__ import annotations

from typing import Final

from chaos.checkers import linearizable
from chaos.history import Operation, of_kind
from chaos.sim.clients import Seen

REGISTERS: Final = ("get", "put", "cas")


def give_up(seen: Seen, global_index: int) -> list[str]:
    """What was acknowledged behind that index must not be there any more; what nobody was told of may be.

    Registers are of one history alone: theirs is looked at now. What is wrong with it.
    """
    operations = seen.history.operations
    problems = linearizable.registers(of_kind(operations, *REGISTERS))
    operations[:] = [op for op in operations if op.f not in REGISTERS]
    for op in operations:
        if op.outcome == "ok" and op.global_index > global_index:
            op.outcome = "info" if produced(op) else "fail"
    return problems


def produced(op: Operation) -> bool:
    """By the one who goes through all of it again, and is told in the end that each is there."""
    return op.process == 0 and op.key.startswith("p")
