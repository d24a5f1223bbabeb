"""What a scan of everything counts as order, and how its memory is taken."""

import subprocess
import sys
from array import array
from dataclasses import replace

import pytest

from bench.scan import Found, Order, Written, judge
from logboom import LogBatch, RecordBlock

BLOCK = RecordBlock.from_columns(payloads=[b"abcd"] * 3)


def batch(partition, first, global_index):
    return LogBatch(partition, first, global_index, 1, 0, bytes(16), 0, 0, BLOCK)


WHOLE = [batch(0, 1, 2), batch(1, 1, 3), batch(0, 4, 5), batch(1, 4, 6)]


def taken(batches):
    order = Order([2, 3, 5, 6])
    for each in batches:
        order.take(each)
    return order


def test_all_batches_once_and_ascending_are_in_order():
    order = taken(WHOLE)
    assert (order.astray, order.batches, order.records, order.payload_bytes) == (0, 4, 12, 48)


@pytest.mark.parametrize(
    "batches",
    [
        [WHOLE[1], WHOLE[0], *WHOLE[2:]],
        [WHOLE[0], WHOLE[0], *WHOLE[1:]],
        [*WHOLE[:2], WHOLE[3]],
        [*WHOLE, batch(0, 7, 7)],
        [*WHOLE[:2], batch(0, 5, 5), WHOLE[3]],
        [batch(0, 2, 2), *WHOLE[1:]],
    ],
    ids=["swapped", "twice", "one is missing", "one too many", "a gap in a partition", "not from the first record on"],
)
def test_whatever_else_comes_is_astray(batches):
    assert taken(batches).astray


def test_receipts_come_in_any_order():
    assert Written(array("Q", [6, 2, 5, 3]).tobytes(), 1.0).sorted() == [2, 3, 5, 6]


FOUND = Found(1.0, 12, 12, 48, 4, 4, 0, 10_000_000, 266_000_000, 20_000_000, 276_000_000, 0.1)


def test_a_scan_that_holds_keeps_every_bound():
    assert all(check.met for check in judge(FOUND))


@pytest.mark.parametrize(
    "change",
    [
        {"node_peak_bytes": 267_000_000},
        {"client_peak_bytes": 277_000_000},
        {"astray": 1},
        {"records": 11},
        {"records": 13},
        {"batches": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_bound_is_missed_for_one_reason(change):
    assert [check.met for check in judge(replace(FOUND, **change))].count(False) == 1


PEAKS = """
from bench.scan import forget_peak, resident

def hold(size):
    bytearray(b"x") * size

hold(512_000_000)
before = forget_peak("self")
print(resident("self", "VmHWM") - before)
hold(384_000_000)
print(resident("self", "VmHWM") - before)
"""
"""In a process of its own: nobody else's memory comes and goes. Large: a kernel with many cores counts coarsely."""


def test_the_peak_is_what_was_held_since_it_was_forgotten():
    said = subprocess.run([sys.executable, "-c", PEAKS], check=True, capture_output=True, text=True, timeout=60)
    forgotten, held = map(int, said.stdout.split())
    assert forgotten < 192_000_000 < held, said.stdout
