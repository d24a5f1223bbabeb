"""How many tails a node has open, whoever opens them."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.reading.streams import Streams
from logboom.errors import LogboomError, QuotaExceeded
from logboom.settings import ReadSettings, Settings
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.connections import Backend
from tests.unit.dispatcher.reading_world import ANY_PACE


class Client:
    """Its tails, on a node that has those of others, too."""

    def __init__(self, backend: Any) -> None:
        self.failed: list[LogboomError] = []
        self.streams = Streams(
            backend,
            reply=lambda *_, **__: None,
            fail=lambda _, error: self.failed.append(error),
            congested=lambda: False,
            partitions=lambda _: [0],  # type: ignore[list-item,return-value]
            pace=lambda: ANY_PACE,
        )

    def tail(self, number: int, **fields: Any) -> None:
        self.streams.open(Frame(Kind.TAIL, number, {"partition": 0, "credit": 0, "follow": True, **fields}))


def test_no_more_than_the_node_has_room_for_whoever_has_them() -> None:
    """Found by review: so many for each connection were all that was looked at."""
    backend: Any = Backend()
    backend.settings = Settings(reads=ReadSettings(streams_max=5))
    one, other = Client(backend), Client(backend)
    for number in range(1, 4):
        one.tail(number)
    for number in range(1, 3):
        other.tail(number)
    with pytest.raises(QuotaExceeded) as refused:
        other.tail(3)
    assert (refused.value.fields["limit"], refused.value.fields["used"]) == (5, 5)
    one.streams.cancel(2)
    one.streams.cancel(2)
    other.tail(3)
    one.streams.close()
    one.streams.close()
    assert backend.streams_open == 3
    for number in (4, 5):
        other.tail(number)
    with pytest.raises(QuotaExceeded):
        one.tail(9)
    other.streams.close()
    assert backend.streams_open == 0
