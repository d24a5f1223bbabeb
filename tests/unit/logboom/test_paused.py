"""A write to a partition that applies nothing until an operator resumes it."""

from __future__ import annotations

import pytest

from logboom import Add, Client, Put, Record, RecordBlock
from logboom.errors import LogboomError, PartitionPaused
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


async def test_what_an_attempt_before_may_have_done_stays_in_doubt_and_is_asked_for_until_the_deadline() -> None:
    """Simulator, seed 67: it may be on its way still. Its numbers were settled at once, and half of it took effect."""
    refused = PartitionPaused(REFUSED.message, partition_id=0, retry_after=0.01)
    async with cluster() as [node], Client(node.address, timeout=30.0) as boom:
        for single in (True, False):
            asked = Put(b"k", b"v") if single else [Put(b"k", b"v")] * 2
            node.once(Kind.SUBMIT, cuts, fails(refused))
            assert await boom.submit(0, asked), "it was resumed"
            node.once(Kind.SUBMIT, cuts, *[fails(refused)] * 500)
            with pytest.raises(LogboomError) as caught:
                await boom.submit(0, asked, timeout=0.5)
            assert caught.value.outcome == "unknown"
            assert "is paused on n1" in str(caught.value)
            del node.answers[Kind.SUBMIT]
