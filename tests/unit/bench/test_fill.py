"""Bulk writes of a given size: how much is sent, and how fast at most."""

import asyncio

import pytest

from bench import fill
from bench.fill import Fill, Pace
from bench.systems import etcd


async def test_everything_is_sent_once_and_no_more_than_so_much_is_under_way():
    sent, open_, most = [], 0, 0

    async def send(number):
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        await asyncio.sleep(0)
        open_ -= 1
        sent.append(number)

    await fill.repeated(send, total=1_001, block=10, under_way=4, bytes_per_s=0)
    assert sorted(sent) == list(range(101))
    assert most == 4


async def test_a_write_that_fails_ends_the_filling():
    async def send(number):
        if number == 3:
            raise ConnectionError("refused")

    with pytest.raises(ExceptionGroup) as failed:
        await fill.repeated(send, total=100, block=1, under_way=2, bytes_per_s=0)
    assert failed.group_contains(ConnectionError)


def test_a_pace_spreads_what_comes_at_once():
    pace = Pace(100.0, now=0.0)
    assert [pace.wait_s(50, now=0.0) for _ in range(3)] == [0.0, 0.5, 1.0]


def test_idle_time_is_not_made_up_for():
    pace = Pace(100.0, now=0.0)
    pace.wait_s(50, now=0.0)
    assert [pace.wait_s(50, now=10.0) for _ in range(2)] == [0.0, 0.5]


def test_no_pace_waits_for_nothing():
    pace = Pace(0.0, now=0.0)
    assert [pace.wait_s(1 << 30, now=0.0) for _ in range(2)] == [0.0, 0.0]


def test_rows_are_the_same_for_the_same_seed_and_their_keys_are_bounded():
    rows = Fill(1, keys=10).rows(7, 500)
    assert rows == Fill(1, keys=10).rows(7, 500)
    assert rows != Fill(1, keys=10, seed=2).rows(7, 500)
    assert len({key for key, _ in rows}) == 10


def test_a_transaction_has_as_many_rows_as_it_may_and_no_key_twice():
    rows = [(b"a", b"1"), (b"a", b"2"), *((b"k%d" % n, b"v") for n in range(300))]
    found = fill._distinct(rows, 0)
    assert len(found) == etcd.TXN_OPS_MAX
    assert len({key for key, _ in found}) == etcd.TXN_OPS_MAX
