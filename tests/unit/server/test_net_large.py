"""Large frames are read into a place of their own, on real connections that share what small ones are read into."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from logboom import certs
from logboom.errors import ProtocolError
from logboom.types import KIB, MIB
from logboom.wire import HEADER_BYTES_MAX, PLACE_BYTES, Frame, Kind, encode
from ports.net import ConnectionLimits
from tests.unit.server.net_world import LIMITS, Session, serving, until

ROOM: dict[str, Any] = {**LIMITS, "frame_bytes": 4 * MIB, "send_buffer_bytes": 64 * MIB}
WIDE: dict[str, Any] = {**ROOM, "header_bytes": 4 * MIB}
SIZES = (3, 2 * MIB, PLACE_BYTES, 0, 700 * KIB, PLACE_BYTES - 50, 17, MIB)


class Asking(Session):
    """Introduces itself, and only listens to what comes back."""

    def opened(self, connection: Any) -> None:
        super().opened(connection)
        connection.send(encode(Kind.HELLO, {}))

    def frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.kind is Kind.HELLO:
            self.open.authenticated()


def headed(size: int) -> list[Any]:
    """A frame with a header of somewhat more than ``size``."""
    return list(encode(Kind.PAYLOAD, {"rows": bytes(size)}, [b"body"], request_id=1))


def contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certs.make_test_authority(directory, ["n1", "n2"])
    return certs.peer_contexts(directory, "n1")[0], certs.peer_contexts(directory, "n2")[1]


@pytest.mark.parametrize("secured", [False, True])
async def test_frames_of_all_sizes_on_several_connections_at_once(secured: bool, tmp_path: Path) -> None:
    server, client = contexts(tmp_path) if secured else (None, None)
    limits = ConnectionLimits(**ROOM)
    askers = [Asking() for _ in range(3)]
    async with serving(tls=server, **{key: ROOM[key] for key in ("frame_bytes", "send_buffer_bytes")}) as it:
        made = [await it.network.dial(it.address, asker, limits=limits, tls=client) for asker in askers]
        await until(lambda: all(asker.frames for asker in askers))
        for number, size in enumerate(SIZES):
            for at, connection in enumerate(made):
                body = bytes([at + 1]) * size
                connection.send(encode(Kind.PAYLOAD, {"n": number}, [body], request_id=at + 1))
        await until(lambda: all(len(asker.frames) == 1 + len(SIZES) for asker in askers))
        for connection in made:
            connection.close()
        await until(lambda: all(asker.ends for asker in askers))
    for at, asker in enumerate(askers):
        got = [(frame.header["n"], frame.request_id, bytes(frame.body)) for frame in asker.frames[1:]]
        assert got == [(number, at + 1, bytes([at + 1]) * size) for number, size in enumerate(SIZES)]


async def test_large_headers_are_taken_from_whom_the_limits_trust_with_them() -> None:
    async with serving(frame_bytes=4 * MIB, header_bytes=4 * MIB) as it:
        asker = Asking()
        connection = await it.network.dial(it.address, asker, limits=ConnectionLimits(**WIDE), tls=None)
        await until(lambda: asker.frames)
        connection.send(headed(HEADER_BYTES_MAX))
        await until(lambda: len(asker.frames) == 2)
        assert (len(asker.frames[1].header["rows"]), bytes(asker.frames[1].body)) == (HEADER_BYTES_MAX, b"body")
        connection.close()
        await until(lambda: asker.ends)


async def test_from_others_they_end_the_connection() -> None:
    async with serving(frame_bytes=4 * MIB) as it:
        client = await it.friend()
        await client.say(*headed(HEADER_BYTES_MAX))
        assert isinstance((await it.session_of(0)).error, ProtocolError)


async def test_so_they_do_before_the_introduction_whatever_the_limits() -> None:
    async with serving(unauthenticated_frame_bytes=4 * MIB, frame_bytes=4 * MIB, header_bytes=4 * MIB) as it:
        client = await it.client()
        await client.say(*headed(HEADER_BYTES_MAX))
        assert isinstance((await it.session_of(0)).error, ProtocolError)
