"""How many descriptors the process has open: counted, whatever their numbers are."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from server.world.open_files import AGE_S, OpenFilesCount, count_open

SPARE = 200


@pytest.fixture
def limit() -> Iterator[int]:
    """Above all that the process has open already, whatever that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + SPARE  # noqa: PTH208 - numbers, not paths
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def opened(count: int, stack: ExitStack) -> list[int]:
    numbers = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count)]
    for number in numbers:
        stack.callback(os.close, number)
    return numbers


def test_a_hole_between_them_is_one_and_not_all_behind_it(limit: int) -> None:
    """Found by reading: the lowest number that was free was taken for how many were not."""
    with ExitStack() as stack:
        numbers = opened(limit - 70 - count_open(), stack)
        hole = numbers[3]
        os.close(hole)
        try:
            count = OpenFilesCount()
            left = count.left()
            assert left is not None
            assert 50 < left <= 71  # other threads may have some
            assert count.none_left(40) is None
            why = count.none_left(72)
            assert why is not None
            assert why.endswith(f" of {limit} file descriptors are taken: see `ulimit -n`")
        finally:
            os.dup2(numbers[0], hole)


def test_where_not_one_is_left_to_look_with_there_is_none(limit: int) -> None:
    with ExitStack() as stack:
        opened(limit - count_open() - 10, stack)
        with suppress(OSError):  # other threads may have some
            for _ in range(limit):
                opened(1, stack)
        count = OpenFilesCount()
        left, why = count.left(), count.none_left(1)
    assert left == 0
    assert why is not None
    assert "Too many open files" in why


def test_where_there_are_plenty_they_are_counted_now_and_then(limit: int) -> None:
    """Else each creation of ten thousand would look at all that those before it have opened."""
    counts, now = 0, 5.0

    def counting() -> int:
        nonlocal counts
        counts += 1
        return 100

    count = OpenFilesCount(count=counting, monotonic=lambda: now)
    for _ in range(10):
        assert count.none_left(4) is None
    assert counts == 1
    now += AGE_S
    assert count.left() == limit - 100
    assert counts == 2
    for more in range(limit - 100, limit - 98):
        assert (count.none_left(more) is None) == (more == limit - 100)
    assert counts == 4, "where few are left each look counts"


def test_without_a_limit_nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    count = OpenFilesCount(count=lambda: 1 // 0)
    assert (count.left(), count.none_left(1 << 40)) == (None, None)
