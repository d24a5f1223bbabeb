"""How many tails a node has open, whoever opens them."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.reading import streams as streams_module
from dispatcher.reading.streams import LOGS_PER_STREAM, Streams
from logboom.errors import LogboomError, QuotaExceeded
from logboom.settings import ReadSettings, Settings
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.connections import Backend
from tests.unit.dispatcher.reading_world import ANY_PACE, World


class Client:
    """Its tails, on a node that has those of others, too."""

    def __init__(self, backend: Any) -> None:
        self.failed: list[LogboomError] = []
        self.streams = Streams(
            backend,
            reply=lambda *_, **__: None,
            fail=lambda _, error: self.failed.append(error),
            congested=lambda: False,
            partitions=lambda header: header.get("partitions") or backend.partition_ids(),
            pace=lambda: ANY_PACE,
        )

    def tail(self, number: int, **fields: Any) -> None:
        self.streams.open(Frame(Kind.TAIL, number, {"partition": 0, "credit": 0, "follow": True, **fields}))

    def scan(self, number: int, **fields: Any) -> None:
        self.streams.open(Frame(Kind.LOG_SCAN, number, {"credit": 0, "follow": True, **fields}))


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


@pytest.mark.parametrize("whose", ["connection", "node"])
def test_of_scans_the_logs_count_too(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four thousand scans over a thousand partitions took four gigabytes, for one connection."""
    backend: Any = World(partitions=20, reads=ReadSettings(streams_max=3 if whose == "node" else 100))
    backend.streams_open = backend.streams_logs = 0
    monkeypatch.setattr(streams_module, "STREAMS_MAX", 3 if whose == "connection" else 100)
    one, other = Client(backend), Client(backend)
    second = other if whose == "node" else one
    one.scan(1, partitions=[*range(20), 0, 0])
    second.scan(2)
    with pytest.raises(QuotaExceeded, match=f"this {whose} read 40 logs") as refused:
        second.scan(3)
    assert (refused.value.fields["limit"], refused.value.fields["used"]) == (3 * LOGS_PER_STREAM, 40)
    second.tail(3)
    assert (backend.streams_open, backend.streams_logs) == (3, 40)
    one.streams.cancel(1)
    second.scan(4, partitions=[0, 1])
    assert (backend.streams_open, backend.streams_logs) == (3, 22)
    for client in (one, other):
        client.streams.close()
    assert (backend.streams_open, backend.streams_logs) == (0, 0)


@pytest.mark.parametrize("most", ["STREAMS_MAX", "streams_max"])
def test_scans_keep_no_tail_out_nor_tails_a_scan_of_more_than_there_may_be(
    most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans that read all that may be read kept every tail out; one tail kept out a scan of more partitions."""
    backend: Any = World(partitions=20, reads=ReadSettings(streams_max=6 if most == "streams_max" else 100))
    backend.streams_open = backend.streams_logs = 0
    monkeypatch.setattr(streams_module, "LOGS_PER_STREAM", 1)
    monkeypatch.setattr(streams_module, "STREAMS_MAX", 6 if most == "STREAMS_MAX" else 100)
    client = Client(backend)
    client.tail(1)
    client.scan(2, partitions=range(3))
    with pytest.raises(QuotaExceeded):
        client.scan(3, partitions=range(4))
    client.scan(3)  # of more than there may be, while there is room for some
    for partitions in ([0], range(20)):
        with pytest.raises(QuotaExceeded, match="scans of this"):
            client.scan(4, partitions=partitions)
    client.tail(4)
    assert (backend.streams_open, backend.streams_logs) == (4, 23)


def test_a_scan_alone_may_have_any_number_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = World(partitions=20, reads=ReadSettings(streams_max=1))
    backend.streams_open = backend.streams_logs = 0
    monkeypatch.setattr(streams_module, "LOGS_PER_STREAM", 1)
    client = Client(backend)
    client.scan(1)
    assert backend.streams_logs == 20
