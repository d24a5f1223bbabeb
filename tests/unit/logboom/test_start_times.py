"""Where a log is read from, given as a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from logboom.client.streams import Start
from logboom.errors import InvalidRequest


def test_a_time_names_its_zone() -> None:
    """`datetime.utcnow()` is taken as local time otherwise: hours of records are left out, and nobody says so."""
    with pytest.raises(InvalidRequest, match="a datetime with a time zone"):
        Start.of(0, 0, datetime(2024, 6, 1))  # noqa: DTZ001 - that it has none
    with pytest.raises(InvalidRequest, match="milliseconds"):
        Start.of(0, 0, 1717200000.5)  # type: ignore[arg-type]  # as time.time() gives it


@pytest.mark.parametrize(
    "time",
    [1717200000000, datetime(2024, 6, 1, tzinfo=UTC), datetime(2024, 6, 1, 2, tzinfo=timezone(timedelta(hours=2)))],
)
def test_whichever_it_is(time: int | datetime) -> None:
    assert Start.of(0, 0, time) == Start(time_ms=1717200000000)


def test_none_is_none() -> None:
    assert Start.of(7, 0, None) == Start(index=7)
