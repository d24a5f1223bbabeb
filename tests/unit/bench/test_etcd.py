"""What the benchmark sends to etcd, and how it reads answers."""

import asyncio
import struct

import pytest

from bench.systems import etcd, http2
from bench.systems.http2 import DATA, END_STREAM, HEADERS, PING, SETTINGS, WINDOW_UPDATE, CallFailed, Method, frame


def test_a_put_has_its_key_and_value():
    assert dict(etcd.fields(etcd.put(b"k", b"v" * 300))) == {1: b"k", 2: b"v" * 300}


def test_a_transaction_puts_every_row():
    rows = [(b"a", b"1"), (b"b", b"2")]
    operations = list(etcd.fields(etcd.txn(rows)))
    assert [number for number, _ in operations] == [2, 2]  # TxnRequest.success
    puts = [dict(etcd.fields(raw))[2] for _, raw in operations]  # RequestOp.request_put
    assert [tuple(dict(etcd.fields(raw)).values()) for raw in puts] == rows


@pytest.mark.parametrize(("leader", "expected"), [(300, True), (7, False), (0, False)])
def test_the_leader_is_the_member_whose_status_names_itself(leader, expected):
    header = b"\x10" + b"\xac\x02"  # member_id 300
    status = b"\x0a" + bytes((len(header),)) + header + b"\x20" + etcd._varint(leader)
    assert etcd.leads(status) is expected


def test_a_field_of_unknown_wire_type_is_refused():
    with pytest.raises(ValueError, match="wire type 5"):
        list(etcd.fields(b"\x0d\0\0\0\0"))


class Server(asyncio.Protocol):
    """Speaks frames: answers every finished request by ``answers``, in turn."""

    def __init__(self, answers, hello=b""):
        self.answers, self.hello, self.seen, self.buffer = iter(answers), hello, [], b""
        self.asked, self.ponged = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(frame(SETTINGS, 0, 0) + self.hello)

    def data_received(self, data):
        self.buffer += data
        self.buffer = self.buffer.removeprefix(http2.PREFACE)
        while len(self.buffer) >= 9:
            size = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + size:
                return
            kind, flags = self.buffer[3], self.buffer[4]
            stream = int.from_bytes(self.buffer[5:9], "big")
            self.seen.append((kind, flags, stream, self.buffer[9 : 9 + size]))
            self.buffer = self.buffer[9 + size :]
            if kind == PING:
                self.ponged.set()
            if kind == DATA and flags & END_STREAM:
                self.asked.set()
                self.transport.write(next(self.answers)(stream))


def good(body):
    def answer(stream):
        return (
            frame(HEADERS, 4, stream, b"\x88")
            + frame(DATA, 0, stream, http2.message(body))
            + frame(HEADERS, 5, stream, b"\x88")
        )

    return answer


def refused(stream):
    return frame(HEADERS, 5, stream, b"\x88")


async def serve(server):
    listener = await asyncio.get_running_loop().create_server(lambda: server, "127.0.0.1", 0)
    return listener, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def test_calls_are_answered_with_their_own_messages():
    server = Server([good(b"one"), good(b"two")])
    listener, address = await serve(server)
    method = await Method.open(address, etcd.PUT)
    assert await asyncio.gather(method.call(b"a"), method.call(b"b")) == [b"one", b"two"]
    blocks = [raw for kind, _, _, raw in server.seen if kind == HEADERS]
    assert blocks == [http2.first_headers(etcd.PUT.encode()), http2.REPEATED]
    method.close()
    listener.close()


async def test_a_call_that_ends_without_a_message_failed():
    listener, address = await serve(Server([refused]))
    method = await Method.open(address, etcd.PUT)
    with pytest.raises(CallFailed):
        await method.call(b"a")
    method.close()
    listener.close()


async def test_a_ping_is_answered_with_its_own_bytes():
    server = Server([good(b"x")], hello=frame(PING, 0, 0, b"12345678"))
    listener, address = await serve(server)
    method = await Method.open(address, etcd.PUT)
    await method.call(b"a")
    await asyncio.wait_for(server.ponged.wait(), 5)
    assert (PING, 1, 0, b"12345678") in server.seen
    method.close()
    listener.close()


async def test_what_the_window_has_no_room_for_waits():
    server = Server([good(b"1"), good(b"2")])
    listener, address = await serve(server)
    method = await Method.open(address, etcd.TXN)
    first, second = method.call(b"x" * 40_000), method.call(b"y" * 40_000)
    assert await first == b"1"
    assert not second.done()
    assert sum(len(raw) for kind, _, _, raw in server.seen if kind == DATA) == 40_005
    server.transport.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 60_000)))
    assert await second == b"2"
    method.close()
    listener.close()


async def test_open_calls_fail_when_the_connection_ends():
    server = Server([lambda stream: b""])
    listener, address = await serve(server)
    method = await Method.open(address, etcd.PUT)
    call = method.call(b"a")
    await asyncio.wait_for(server.asked.wait(), 5)
    server.transport.close()
    with pytest.raises(CallFailed):
        await call
    with pytest.raises(CallFailed):
        await method.call(b"b")
    listener.close()
