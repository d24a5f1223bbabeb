"""The operators' HTTP port on loopback sockets: answers, and every way to be a bad guest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from logboom.errors import ConfigError
from ports.http import HttpLimits, HttpRequest, HttpResponse
from ports.invariant import InvariantViolated
from server.world.http_os import OsHttp, OsHttpListener

SHORT_S = 0.2
GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSE = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
LIMITS = HttpLimits(connections_max=2, request_s=5.0, request_bytes=1024, headers_max=8)


@dataclass
class Served:
    """A server, and what it was asked."""

    listener: OsHttpListener
    asked: list[HttpRequest] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.listener.address.rsplit(":", 1)
        return await asyncio.open_connection(host, int(port))

    async def say(self, raw: bytes) -> bytes:
        """All that comes back until the server closes."""
        reader, writer = await self.open()
        try:
            writer.write(raw)
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


async def answer(request: HttpRequest) -> HttpResponse:
    if request.path == "/broken":
        raise RuntimeError("on purpose")
    return HttpResponse.text(200, f"this is {request.path}")


@asynccontextmanager
async def serving(
    limits: HttpLimits = LIMITS, respond: Callable[[HttpRequest], Awaitable[HttpResponse]] = answer
) -> AsyncIterator[Served]:
    it: Served
    fatal = list[BaseException]()

    async def noted(request: HttpRequest) -> HttpResponse:
        it.asked.append(request)
        return await respond(request)

    it = Served(await OsHttp(on_fatal=fatal.append).listen("127.0.0.1:0", noted, limits=limits, tls=None))
    try:
        yield it
    finally:
        await it.listener.close()
    it.fatal += fatal


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


def status(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


async def test_an_answer_is_whole_and_says_how_long_it_is() -> None:
    async with serving() as it:
        raw = await it.say(CLOSE)
    head, body = raw.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert b"Connection: close" in head
    assert b"Cache-Control: no-store" in head
    assert body == b"this is /x\n"


async def test_several_requests_on_one_connection_even_at_once() -> None:
    async with serving() as it:
        raw = await it.say(GET + GET.replace(b"/x", b"/y") + CLOSE.replace(b"/x", b"/z"))
    assert [request.path for request in it.asked] == ["/x", "/y", "/z"]
    assert raw.count(b"HTTP/1.1 200 OK") == 3
    assert raw.index(b"this is /x") < raw.index(b"this is /y") < raw.index(b"this is /z")


async def test_head_is_the_same_without_the_body() -> None:
    async with serving() as it:
        raw = await it.say(CLOSE.replace(b"GET", b"HEAD"))
    assert raw.endswith(b"\r\n\r\n")
    assert b"Content-Length: 11" in raw


async def test_an_answer_that_fails_is_one_answer() -> None:
    async with serving() as it:
        raw = await it.say(GET.replace(b"/x", b"/broken") + CLOSE)
    assert status(raw) == 500
    assert b"on purpose" not in raw  # nobody outside needs to know
    assert b"this is /x" in raw


async def test_a_broken_invariant_is_not_answered_but_ends_the_node() -> None:
    async def broken(_: HttpRequest) -> HttpResponse:
        raise InvariantViolated("I7")

    async with serving(respond=broken) as it:
        assert await it.say(GET) == b""
    assert [str(error) for error in it.fatal] == ["I7"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", 413),
        (b"G" * 1024, 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 9 + b"\r\n", 431),
        (b"GET / HTTP/3.0\r\n\r\n", 505),
    ],
)
async def test_a_refusal_is_told_and_ends_the_connection(raw: bytes, expected: int) -> None:
    async with serving() as it:
        said = await it.say(raw + GET)
    assert status(said) == expected
    assert said.count(b"Content-Length: ") == 1
    assert it.asked == []
    assert (b"Allow: GET, HEAD" in said) == (expected == 405)


async def test_who_sends_byte_by_byte_is_told_the_time() -> None:
    async with serving(HttpLimits(request_s=SHORT_S)) as it:
        reader, writer = await it.open()
        answered = asyncio.ensure_future(reader.read())
        for byte in GET * 10:
            if answered.done():
                break
            writer.write(b"\r\n" if it.asked else bytes([byte]))
            await asyncio.sleep(SHORT_S / 8)
        assert status(await asyncio.wait_for(answered, 5)) == 408
        writer.close()
    assert it.asked == []


async def test_empty_lines_do_not_keep_a_connection() -> None:
    """Found by reading: each of them began the time anew."""
    async with serving(HttpLimits(request_s=SHORT_S)) as it:
        reader, writer = await it.open()
        ended = asyncio.ensure_future(reader.read())
        began = asyncio.get_running_loop().time()
        while not ended.done() and asyncio.get_running_loop().time() - began < 20 * SHORT_S:
            writer.write(b"\r\n")
            await asyncio.sleep(SHORT_S / 8)
        assert ended.done()
        writer.close()


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with serving(HttpLimits(request_s=SHORT_S)) as it:
        assert await it.say(b"") == b""
        said = await it.say(GET)
        assert said.count(b"HTTP/1.1") == 1


async def test_one_connection_too_many_is_told_so_and_the_others_go_on() -> None:
    go_on = asyncio.Event()

    async def long(_: HttpRequest) -> HttpResponse:
        await go_on.wait()
        return HttpResponse.text(200, "late")

    async with serving(respond=long) as it:
        pairs = [await it.open() for _ in range(2)]
        for _, writer in pairs:
            writer.write(CLOSE)
        await until(lambda: len(it.asked) == 2)
        assert status(await it.say(GET)) == 503
        go_on.set()
        for reader, writer in pairs:
            assert b"late" in await reader.read()
            writer.close()
        await until(lambda: not it.listener.connections)
        assert status(await it.say(CLOSE)) == 200


async def test_who_asks_is_answered_however_many_say_nothing() -> None:
    """Found by reading: with as many open connections as there may be, each that came was told so. None had to ask."""
    async with serving() as it:
        silent = [await it.open() for _ in range(2)]
        await until(lambda: len(it.listener.connections) == 2)
        assert status(await it.say(CLOSE)) == 200
        assert await silent[0][0].read() == b""  # the oldest
        silent[1][1].write(CLOSE)
        assert status(await silent[1][0].read()) == 200
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("first", [GET, b"GET /x HTT", b"garbage\r\n\r\n"])
async def test_nor_who_has_asked_or_is_about_to(first: bytes) -> None:
    async with serving() as it:
        idle = [await it.open() for _ in range(2)]
        for reader, writer in idle:
            writer.write(first)
            if first.endswith(b"\n"):
                await reader.readuntil(b"\r\n\r\n")
        for _ in range(4):
            assert status(await it.say(CLOSE)) == 200
        for _, writer in idle:
            writer.close()


async def test_who_takes_no_answer_makes_room_after_who_asks_for_nothing() -> None:
    go_on = asyncio.Event()

    async def some(request: HttpRequest) -> HttpResponse:
        if request.path == "/long":
            await go_on.wait()
        return HttpResponse(200, bytes(64 * 1024 * 1024 if request.path == "/much" else 1))

    async with serving(respond=some) as it:
        taking, idle = await it.open(), await it.open()
        taking[1].write(CLOSE.replace(b"/x", b"/much"))
        await until(lambda: len(it.asked) == 1 and not any(each.making for each in it.listener.connections))
        long = await it.open()
        assert await idle[0].read() == b""
        assert len(it.listener.connections) == 2
        long[1].write(CLOSE.replace(b"/x", b"/long"))
        await until(lambda: len(it.asked) == 2)
        assert status(await it.say(CLOSE)) == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await taking[0].readexactly(64 * 1024 * 1024)
        go_on.set()
        assert status(await long[0].read()) == 200
        for _, writer in (taking, idle, long):
            writer.close()


async def test_who_does_not_take_the_answer_is_cut() -> None:
    async def much(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, bytes(64 * 1024 * 1024))

    async with serving(HttpLimits(request_s=SHORT_S), much) as it:
        reader, writer = await it.open()
        writer.write(GET)
        await until(lambda: bool(it.asked) and not it.listener.connections)
        writer.close()
        del reader


async def test_what_is_sent_while_an_answer_is_made_waits_outside() -> None:
    answer_now = asyncio.Event()

    async def long(_: HttpRequest) -> HttpResponse:
        await answer_now.wait()
        return HttpResponse.text(200, "late")

    async with serving(respond=long) as it:
        _, writer = await it.open()
        writer.write(GET)
        await until(lambda: bool(it.asked))

        async def flood() -> None:
            while True:
                writer.write(GET * 10_000)
                await writer.drain()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flood(), 0.5)
        (connection,) = it.listener.connections
        assert len(connection._decoder._buffer) < 1024 * 1024
        answer_now.set()
        writer.transport.abort()
        await until(lambda: not it.listener.connections)


async def test_a_client_that_goes_takes_its_work_with_it() -> None:
    cancelled = asyncio.Event()

    async def long(_: HttpRequest) -> HttpResponse:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return HttpResponse.text(200, "late")

    async with serving(respond=long) as it:
        _, writer = await it.open()
        writer.write(GET)
        await until(lambda: bool(it.asked))
        await it.listener.close()
        async with asyncio.timeout(5):
            await cancelled.wait()
        writer.close()


async def test_an_address_that_cannot_be_bound_is_named() -> None:
    async with serving() as it:
        with pytest.raises(ConfigError, match=it.listener.address) as caught:
            await OsHttp(on_fatal=it.fatal.append).listen(it.listener.address, answer, limits=LIMITS, tls=None)
    assert caught.value.fields["path"] == "node.http_address"
