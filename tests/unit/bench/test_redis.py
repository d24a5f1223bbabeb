"""What the benchmark sends to Redis, and what it takes for an acknowledgement."""

import asyncio

import pytest

from bench.systems import redis
from bench.systems.redis import WAIT, Pipe, Refused, command
from bench.targets import Job


def test_a_command_is_an_array_of_bulk_strings():
    assert command(b"SET", b"k", b"\r\n") == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n"
    assert command(b"WAIT", b"1", b"10000") == WAIT


class Server(asyncio.Protocol):
    """Answers each pipeline, which ends with WAIT, with the next of ``answers``: a list of pieces."""

    def __init__(self, *answers):
        self.answers, self.pipelines, self.buffer = iter(answers), [], b""
        self.asked = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.buffer += data
        if self.buffer.endswith(WAIT):
            self.pipelines.append(self.buffer)
            self.buffer = b""
            self.asked.set()
            asyncio.get_running_loop().create_task(self.answer(next(self.answers)))

    async def answer(self, pieces):
        for piece in pieces:
            self.transport.write(piece)
            await asyncio.sleep(0)


async def open_pipe(server):
    listener = await asyncio.get_running_loop().create_server(lambda: server, "127.0.0.1", 0)
    return listener, await Pipe.open(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")


SET = command(b"SET", b"k", b"v")


async def test_what_comes_while_a_pipeline_is_under_way_makes_the_next():
    server = Server([b"+OK\r\n:2\r\n"], [b"+OK\r\n+O", b"K\r\n:1", b"\r\n"])
    listener, pipe = await open_pipe(server)
    first = pipe.send(SET, 1)
    await asyncio.sleep(0)
    await asyncio.gather(first, pipe.send(SET, 1), pipe.send(SET, 1))
    assert server.pipelines == [SET + WAIT, SET + SET + WAIT]
    pipe.close()
    listener.close()


@pytest.mark.parametrize("answer", [b"+OK\r\n:0\r\n", b"-LOADING Redis\r\n:2\r\n", b"+OK\r\n+OK\r\n:2\r\n"])
async def test_too_few_replicas_errors_and_what_was_not_asked_are_refusals(answer):
    listener, pipe = await open_pipe(Server([answer]))
    with pytest.raises(Refused):
        await pipe.send(SET, 1)
    await asyncio.sleep(0.01)
    with pytest.raises(Refused, match="closed"):
        await pipe.send(SET, 1)
    listener.close()


async def test_open_calls_fail_when_the_connection_ends():
    server = Server([])
    listener, pipe = await open_pipe(server)
    call = pipe.send(SET, 1)
    await asyncio.wait_for(server.asked.wait(), 5)
    server.transport.close()
    with pytest.raises(Refused):
        await call
    listener.close()


async def test_a_block_is_one_pipeline():
    server = Server([b"+OK\r\n" * 5 + b":1\r\n"])
    listener = await asyncio.get_running_loop().create_server(lambda: server, "127.0.0.1", 0)
    target = redis.Target(Job((f"127.0.0.1:{listener.sockets[0].getsockname()[1]}",), value_bytes=9))
    await target.open(1)
    await target.bulk(0, 5)()
    assert server.pipelines[0].count(b"*3\r\n$3\r\nSET\r\n$16\r\nk0") == 5
    await target.close()
    listener.close()
