import pytest

from ports.zeros import only_zeros

KIB = 1024


@pytest.mark.parametrize("size", [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 200_000])
@pytest.mark.parametrize("start", [0, 1, 70_000, 300_000])
def test_one_bit_anywhere_behind_the_start_counts(size, start):
    raw = bytearray(size)
    assert only_zeros(bytes(raw), start)
    for at in {0, start - 1, start, size // 2, size - 1}:
        if 0 <= at < size:
            raw[at] = 1
            assert only_zeros(bytes(raw), start) == (at < start)
            raw[at] = 0
