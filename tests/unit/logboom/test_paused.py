"""A write to a partition that applies nothing until an operator resumes it."""

from __future__ import annotations

import pytest

from logboom import Add, Client, Put, Record, RecordBlock
from logboom.errors import PartitionPaused
from logboom.wire import Kind
from tests.unit.logboom.fake_server import cluster, cuts, fails

REFUSED = PartitionPaused("partition 0 is paused on n1", partition_id=0, retry_after=1.0)
BLOCK = RecordBlock.from_records([Record(b"a")])


@pytest.mark.parametrize("outcome", ["not_applied", "unknown"])
async def test_it_is_not_tried_again(outcome: str) -> None:
    """An operator has to do something: whoever waits for his deadline hears of it that much later."""
    refused = PartitionPaused(REFUSED.message, outcome=outcome, **REFUSED.fields)  # type: ignore[arg-type]
    async with cluster() as [node], Client(node.address, timeout=30.0) as boom:
        node.answers[Kind.SUBMIT] = fails(refused)
        asked = (
            lambda: boom.submit(0, Put(b"k", b"v")),
            lambda: boom.submit(0, [Put(b"k", b"v"), Add(b"n", 1)]),
            lambda: boom.submit_block(0, BLOCK, producer_id=bytes(range(16)), epoch=1, sequence=7, dense=True),
        )
        for count, ask in enumerate(asked, 1):
            with pytest.raises(PartitionPaused) as caught:
                await ask()
            assert len(node.of(Kind.SUBMIT)) == count
            assert (caught.value.partition_id, caught.value.retry_after) == (0, 1.0)
            assert (caught.value.outcome, caught.value.retryable) == (outcome, True)


async def test_what_an_attempt_before_may_have_done_stays_in_doubt() -> None:
    async with cluster() as [node], Client(node.address, timeout=30.0) as boom:
        for single in (True, False):
            node.once(Kind.SUBMIT, cuts, fails(REFUSED))
            with pytest.raises(PartitionPaused) as caught:
                await boom.submit(0, Put(b"k", b"v") if single else [Put(b"k", b"v")] * 2)
            assert (caught.value.outcome, caught.value.partition_id) == ("unknown", 0)
