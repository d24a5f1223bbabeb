"""What the benchmark sends to NATS, and which answer belongs to what."""

import asyncio
import json

import pytest

from bench.systems import nats
from bench.systems.nats import Connection, Refused
from bench.targets import Job


class Server(asyncio.Protocol):
    """A server that acknowledges every PUB with ``answer``."""

    def __init__(self, answer=b'{"stream":"B0","seq":1}', *, silent=0):
        self.answer, self.silent, self.seen, self.published, self.buffer = answer, silent, [], [], b""

    def connection_made(self, transport):
        self.transport = transport
        transport.write(b'INFO {"server_id":"x"}\r\nPING\r\n')

    def data_received(self, data):
        self.buffer += data
        while b"\r\n" in self.buffer:
            line, _, rest = self.buffer.partition(b"\r\n")
            if line.startswith(b"PUB "):
                words = line.split(b" ")
                size = int(words[-1])
                if len(rest) < size + 2:
                    return
                self.published.append((words[1], rest[:size]))
                rest = rest[size + 2 :]
                if len(self.published) > self.silent:
                    self.transport.write(b"MSG %b 1 %d\r\n%b\r\n" % (words[2], len(self.answer), self.answer))
            else:
                self.seen.append(line)
                if line == b"PING":
                    self.transport.write(b"PONG\r\n")
            self.buffer = rest


async def serve(server):
    listener = await asyncio.get_running_loop().create_server(lambda: server, "127.0.0.1", 0)
    return listener, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def test_a_connection_subscribes_to_its_inbox_and_answers_pings():
    server = Server()
    listener, address = await serve(server)
    connection = await Connection.open(address)
    await connection.send([(b"b0", b"x")])
    connect, subscribed, *rest = server.seen
    assert connect.startswith(b"CONNECT {")
    assert json.loads(connect.removeprefix(b"CONNECT "))["verbose"] is False
    assert subscribed.startswith(b"SUB _I.")
    assert subscribed.endswith(b".* 1")
    assert set(rest) == {b"PING", b"PONG"}
    connection.close()
    listener.close()


async def test_every_connection_has_an_inbox_of_its_own():
    servers = [Server(), Server()]
    for server in servers:
        listener, address = await serve(server)
        (await Connection.open(address)).close()
        listener.close()
    inboxes = {server.seen[1] for server in servers}
    assert len(inboxes) == 2


async def test_publishes_are_acknowledged_together():
    server = Server()
    listener, address = await serve(server)
    connection = await Connection.open(address)
    answer = await connection.send([(b"b0", b"one"), (b"b1", b"\r\nPING\r\n")])
    assert json.loads(answer)["seq"] == 1
    assert server.published == [(b"b0", b"one"), (b"b1", b"\r\nPING\r\n")]
    connection.close()
    listener.close()


async def test_one_missing_acknowledgement_keeps_all_waiting():
    listener, address = await serve(Server(silent=1))
    connection = await Connection.open(address)
    both = connection.send([(b"b0", b"1"), (b"b0", b"2")])
    await connection.send([(b"b0", b"3")])  # answered after them
    assert not both.done()
    connection.close()
    with pytest.raises(Refused):
        await both
    with pytest.raises(Refused):
        await connection.send([(b"b0", b"4")])
    listener.close()


async def test_an_error_is_a_refusal():
    listener, address = await serve(Server(b'{"error":{"code":503}}'))
    connection = await Connection.open(address)
    with pytest.raises(Refused, match="503"):
        await connection.request("$JS.API.STREAM.INFO.B0", {})
    connection.close()
    listener.close()


async def test_slots_are_spread_over_the_streams():
    server = Server()
    listener, address = await serve(server)
    target = nats.Target(Job((address,), value_bytes=5, partitions=2))
    await target.open(1)
    for slot in range(3):
        await target.single(slot)()
    await target.bulk(1, 10)()
    assert [where for where, _ in server.published] == [b"b0", b"b1", b"b0", *[b"b1"] * 10]
    assert {len(value) for _, value in server.published} == {5}
    await target.close()
    listener.close()
