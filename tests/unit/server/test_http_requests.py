"""HTTP requests out of bytes: what is taken, what is refused, and that nothing else can happen."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ports.http import HttpLimits, HttpRequest
from server.world.http_requests import HttpRefused, RequestDecoder

LIMITS = HttpLimits(request_bytes=512, headers_max=4)
GET = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept:  text/plain \r\n\r\n"


def one(raw: bytes) -> HttpRequest | None:
    decoder = RequestDecoder(LIMITS)
    decoder.feed(raw)
    return decoder.next_request()


def refused(raw: bytes) -> int:
    with pytest.raises(HttpRefused) as caught:
        one(raw)
    return caught.value.status


def test_a_request_without_its_query() -> None:
    assert one(GET) == HttpRequest("GET", "/metrics", {"host": "a", "accept": "text/plain"}, keep_alive=True)


@pytest.mark.parametrize(
    ("lines", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: a", True),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, Close", False),
        (b"GET / HTTP/1.0", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive", True),
    ],
)
def test_who_would_like_to_ask_more(lines: bytes, keep_alive: bool) -> None:
    request = one(lines + b"\r\n\r\n")
    assert request is not None
    assert request.keep_alive is keep_alive


@pytest.mark.parametrize("cut", range(1, len(GET)))
def test_it_may_come_in_pieces(cut: int) -> None:
    decoder = RequestDecoder(LIMITS)
    decoder.feed(GET[:cut])
    assert decoder.next_request() is None
    assert decoder.mid_request
    decoder.feed(GET[cut:] + GET)
    assert decoder.next_request() == decoder.next_request() == one(GET)
    assert decoder.next_request() is None
    assert not decoder.mid_request


@pytest.mark.parametrize("raw", [b"\nGET / HTTP/1.0\r", b"\n\r", b"\n"])
def test_a_line_of_nothing_but_lf_is_refused_whatever_has_come_behind_it(raw: bytes) -> None:
    assert refused(raw) == 400


def test_empty_lines_in_front_are_no_request() -> None:
    decoder = RequestDecoder(LIMITS)
    decoder.feed(b"\r\n\r\n")
    assert decoder.next_request() is None
    assert not decoder.mid_request
    decoder.feed(GET)
    assert decoder.next_request() == one(GET)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n", 400),
        (b"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"G\xc3T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/x\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /" + b"x" * 512, 414),
        (b"x" * 512, 414),
        (b"GET / HTTP/1.1\r\nHost: " + b"a" * 512, 431),
        (b"GET / HTTP/1.1\r\nHost: " + b"a" * 512 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 4 + b"\r\n", 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(raw: bytes, status: int) -> None:
    assert refused(raw) == status


def test_a_length_of_nothing_is_no_body() -> None:
    assert one(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 00\r\n\r\n") is not None


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([b"GET ", b"/ ", b"HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: a\r\n", b": ", b"\n", GET]),
    ),
    max_size=30,
)


@given(PIECES)
@example([GET, GET, b"x" * 600])
@example([b"\r\n" * 400])
def test_whatever_comes_is_read_or_refused_and_little_is_kept(pieces: list[bytes]) -> None:
    """However it is cut, the same requests come of it, then the same refusal."""

    def run(parts: list[bytes]) -> tuple[list[HttpRequest], int | None]:
        decoder, found = RequestDecoder(LIMITS), list[HttpRequest]()
        for part in parts:
            decoder.feed(part)
            try:
                while (request := decoder.next_request()) is not None:
                    found.append(request)
            except HttpRefused as error:
                return found, error.status
            assert len(decoder._buffer) < LIMITS.request_bytes
        return found, None

    whole = b"".join(pieces)
    by_byte = run([bytes([byte]) for byte in whole])
    assert run(pieces)[0] == by_byte[0]
    assert run([whole])[0] == by_byte[0]
    assert (run(pieces)[1] is None) == (by_byte[1] is None) == (run([whole])[1] is None)
