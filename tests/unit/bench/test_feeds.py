"""What is taken out of the answers of the peers whose logs are read, and what becomes of those that cannot be had."""

import asyncio
import random
import re
from functools import partial

import pytest

from bench import feeds, feeds_peers, systems
from bench.feed_rows import VALUE_BYTES, Row, best
from bench.feeds_peers import Nats, NatsPaged, Paged, Postgres, Redis
from bench.systems import Missing
from bench.systems.nats import NatsCluster
from bench.systems.postgres import COPY_END, COPY_HEAD, copy_data
from bench.systems.redis import RedisCluster

RNG = random.Random(20)
# Whatever delimits records on the wire is also within values.
TRAPS = [
    b"\r\nMSG a 1 256\r\n",
    b"\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nv\r\n$256\r\n",
    b"\0\1\0\0\1\0",
    bytes(8),
    b"\r\nPING\r\n",
]
VALUES = [(RNG.choice(TRAPS) * 40 + RNG.randbytes(VALUE_BYTES))[:VALUE_BYTES] for _ in range(2_500)]


def in_redis(values, first=1):
    rows = (
        b"*2\r\n$%d\r\n1-%d\r\n*2\r\n$1\r\nv\r\n$256\r\n%b\r\n" % (len(b"1-%d" % n), n, v)
        for n, v in enumerate(values, first)
    )
    return b"*%d\r\n" % len(values) + b"".join(rows)


def in_nats(values):
    return b"".join(b"MSG _R.x 1 $JS.ACK.B0.c.1.%d.%d.0.0 256\r\n%b\r\n" % (n, n, v) for n, v in enumerate(values))


class Server(asyncio.Protocol):
    """Answers what ``answer`` says, in pieces of any size."""

    def __init__(self, answer):
        self.answer = answer

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        asyncio.ensure_future(self.reply(self.answer(data)))  # noqa: RUF006 - ends with the loop

    async def reply(self, raw):
        rng = random.Random(len(raw))
        while raw:
            size = rng.choice((1, 7, 300, 5_000, 100_000))
            self.transport.write(raw[:size])
            raw = raw[size:]
            await asyncio.sleep(0)


async def served(answer):
    listener = await asyncio.get_running_loop().create_server(lambda: Server(answer), "127.0.0.1", 0)
    return listener, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("size", [17, 255, 4_096, 1 << 20])
@pytest.mark.parametrize(("rows", "raw"), [(Redis._rows, in_redis(VALUES)), (feeds_peers.NATS_ROWS, in_nats(VALUES))])
def test_values_are_found_wherever_the_stream_is_cut(rows, raw, size):
    found, left = [], b""
    for start in range(0, len(raw), size):
        left += raw[start : start + size]
        values, end = rows.take(left, 0)
        found += values
        left = left[end:]
    assert left == b""
    assert found == VALUES


def test_rows_of_a_copy_are_found_behind_its_head():
    values, end = Postgres._rows.take(copy_data(VALUES), len(COPY_HEAD))
    assert values == VALUES
    assert copy_data(VALUES)[end:] == COPY_END


async def test_redis_is_asked_page_by_page_a_few_ahead():
    asked = []

    def answer(data):
        ranges = [(int(a), int(b)) for a, b in re.findall(rb"XRANGE.*?1-(\d+).*?1-(\d+)", data, re.DOTALL)]
        asked.append(ranges)
        return b"".join(in_redis(VALUES[a - 1 : b], a) for a, b in ranges)

    listener, address = await served(answer)
    assert await Redis(address).read(2_500) == 2_500
    assert [r for ranges in asked for r in ranges] == [(1, 1_000), (1_001, 2_000), (2_001, 2_500)]
    listener.close()


async def test_no_more_is_asked_of_redis_than_is_to_be_under_way():
    asked = asyncio.get_running_loop().create_future()

    def answer(data):
        asked.set_result(len(re.findall(rb"XRANGE", data)))
        return b""

    listener, address = await served(answer)
    reading = asyncio.ensure_future(Redis(address).read(100_000))
    assert await asked == feeds_peers.AHEAD
    reading.cancel()
    listener.close()


async def test_an_error_of_redis_ends_the_reading():
    listener, address = await served(lambda _: b"-ERR no such thing\r\n")
    with pytest.raises(ConnectionError, match="no such thing"):
        await Redis(address).read(10)
    listener.close()


async def read_nats(answer):
    listener, address = await served(answer)

    def ask(first, end):
        return b"PUB next inbox 1\r\n%d\r\n" % (end - first)

    try:
        return await feeds_peers.paged(address, partial(NatsPaged, b"_R.x", 2_500, ask))
    finally:
        listener.close()


async def test_nats_says_other_things_between_messages():
    said = []

    def answer(data):
        said.append(data)
        if len(said) > 1:
            return b""
        return b'INFO {"x":1}\r\n' + in_nats(VALUES[:3]) + b"PING\r\n" + in_nats(VALUES[3:])

    assert await read_nats(answer) == 2_500
    assert said[0].startswith(b"CONNECT {")


async def test_what_nats_refuses_ends_the_reading():
    with pytest.raises(ConnectionError, match="404"):
        await read_nats(lambda _: b"HMSG _R.x 1 16 16\r\nNATS/1.0 404\r\n\r\n")


def test_what_is_asked_for_and_has_not_come_does_not_count_as_read():
    async def read():
        listener, address = await served(lambda _: in_redis(VALUES[:7]))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await feeds_peers.paged(address, partial(Paged, Redis._rows, 8, 1_000, lambda *_: b"x"))
        listener.close()

    asyncio.run(read())


async def test_a_run_that_reads_other_than_what_was_written_is_no_figure():
    async def one_less():
        return 9

    with pytest.raises(RuntimeError, match="9 records were read, not 10"):
        await best("tail", 10, one_less, pid=1, runs=1)


def test_a_peer_that_is_missing_is_said_and_one_that_fails_too(monkeypatch, tmp_path):
    def measure(name, *_, **__):
        if name == "redis":
            raise Missing("redis: not found; on Debian: apt-get install redis-server")
        if name == "nats":
            raise TimeoutError("nats: no node leads")
        return Row("COPY", 1.0, 10 * VALUE_BYTES, 10, 0.1, name)

    monkeypatch.setattr(feeds_peers, "measure", measure)
    rows, without = feeds_peers.measure_all(("nats", "redis", "postgres"), tmp_path, records=10, runs=1)
    assert [row.system for row in rows] == ["postgres"]
    assert [(each.system, each.missing) for each in without] == [("nats", False), ("redis", True)]
    assert "apt-get install redis-server" in str(without[1])


def test_checks_compare_values_with_each_peer_that_was_measured():
    ours = [Row(what, 1.0, 256_000, 1_000, 0.1) for what in ("tail, server alone", "tail, client", feeds.VALUES)]
    theirs = [Row("COPY", 2.0, 256_000, 1_000, 0.1, "postgres"), Row("XRANGE", 0.5, 256_000, 1_000, 0.1, "redis")]
    found = {check.name: (check.value, check.met) for check in feeds.judge([*ours, *theirs])}
    assert found["tail, client, values: records/s, logboom / postgres"] == (2.0, True)
    assert found["tail, client, values: records/s, logboom / redis"] == (0.5, False)
    assert not any("nats" in name for name in found)


def test_one_server_alone_has_nobody_beside_it(tmp_path):
    redis = RedisCluster(tmp_path / "redis-server", tmp_path, alone=True)
    assert redis.nodes == ["n1"]
    assert "--replicaof" not in redis.command("n1")
    (tmp_path / "n1").mkdir()
    NatsCluster(tmp_path / "nats-server", tmp_path, alone=True).command("n1")
    assert "routes" not in (tmp_path / "n1" / "nats.conf").read_text()
    with pytest.raises(Missing, match="one server"), systems.started("disk", tmp_path, "/bin/true", alone=True):
        pass


def test_every_peer_is_a_system_that_can_be_started_alone():
    for name in feeds_peers.PEERS:
        assert systems.SYSTEMS[name].alone is not None
    assert Nats.name in feeds_peers.PEERS
