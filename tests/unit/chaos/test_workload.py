"""The load of fault runs on real nodes: what it asks for, and what it writes down of the answers. No cluster."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chaos.history import History, Operation
from chaos.transfers import MOVED
from chaos.workload import LOG_PARTITIONS, Workload
from logboom import RecordBlock, Status
from logboom.errors import LogboomError, Overloaded
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, Receipt


def receipt(partition: int, first: int, count: int, *, results: tuple[Status, ...] | None = None) -> Receipt:
    first_index, last_index = PartitionLogIndex(first), PartitionLogIndex(first + count - 1)
    return Receipt(PartitionId(partition), first_index, last_index, GlobalLogIndex(first), results=results)


class Logs:
    """A client whose cluster takes whatever comes, as often as it comes."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []

    async def submit_block(self, partition: int, block: RecordBlock, **_: Any) -> Receipt:
        first = len(self.taken) + 1
        self.taken += [(partition, payload) for payload in block.payloads()]
        return receipt(partition, first, len(self.taken) - first + 1)


class Answers:
    """A client who hears this, one after the other."""

    def __init__(self, *said: Status | LogboomError) -> None:
        self._said = list(said)

    async def submit(self, partition: int, *_: Any, **__: Any) -> Receipt:
        said = self._said.pop(0)
        if isinstance(said, LogboomError):
            raise said
        return receipt(partition, 1, 1, results=(said,))


def load(client: Any) -> tuple[Workload, list[Operation]]:
    history = History(lambda: 0)
    return Workload(client, history, 1, random.Random(1)), history.operations


async def test_tasks_append_to_logs_too() -> None:
    client = Logs()
    workload, operations = load(client)
    for _ in range(30):
        await workload._task()
    appended = [op for op in operations if op.f == "append"]
    assert {op.partition for op in appended} == set(LOG_PARTITIONS)
    assert {op.f for op in operations} == {"append", "add"}
    assert all(client.taken[op.index - 1] == (op.partition, op.value.encode()) for op in appended)
    assert len(client.taken) > len(operations)  # several attempts


@pytest.mark.parametrize(
    ("said", "moved", "refused"),
    [
        (Status.OK, "ok", "fail"),
        (Status.OTHERWISE, "ok", "ok"),
        (Status.UNKNOWN_RESULT, "ok", "info"),
        (Overloaded("no room"), "fail", "fail"),
    ],
    ids=str,
)
async def test_what_is_said_of_a_transfer_is_written_down(
    said: Status | LogboomError, moved: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.transfers.SPOILT", 0.0)
    monkeypatch.setattr("chaos.workload.ERROR_PAUSE_S", 0.0)
    workload, operations = load(Answers(Status.OK, said))
    await workload._moving._move()
    assert [op.outcome for op in operations if MOVED in op.key] == [moved]
    assert [op.outcome for op in operations if MOVED not in op.key] == [refused]
