"""Impostors: wrong nodes on the peer port, and whom TLS keeps out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from logboom import certs
from logboom.errors import WrongNode
from logboom.types import NodeId
from logboom.wire import Frame, Kind, encode
from ports.net import Connection, ConnectionLimits
from raftlog.links import dialling
from raftlog.links.directories import Directories
from server.world.addresses import names_in
from server.world.clock_os import OsClock
from server.world.net_os import AsyncioNetwork
from tests.unit.server.net_world import (
    LIMITS,
    LONG_S,
    SHORT_S,
    Raw,
    Serving,
    Session,
    black_hole,
    serving,
    sockets,
    until,
)
from tests.unit.server.peers_world import HELLO, Dials, Events, linked, links_of


class TestPeers:
    @pytest.mark.parametrize(
        "change",
        [
            {"version": 2},
            {"cluster": "c2"},
            {"node": "n7"},
            {"node": "n9"},
            {"node": None},
            {"node": ["n1"]},
            {"settings": b"other"},
            {"settings": None},
            {"lineage": "ab" * 16},
            {"lineage": "ab"},
            {"lineage": 7},
            {"to": "n2"},
            {"to": None},
            {"to": ["n9"]},
        ],
    )
    async def test_a_wrong_one_is_turned_away_and_the_right_one_let_in(self, change: dict[str, Any]) -> None:
        async with linked() as (address, events):
            wrong, right = await Raw().connect(address), await Raw().connect(address)
            await wrong.say(*encode(Kind.PEER_HELLO, HELLO | change))
            await wrong.ended()
            assert events.ups == []
            await right.say(*encode(Kind.PEER_HELLO, HELLO))
            await until(lambda: events.ups == ["n1"])
            wrong.close()
            right.close()

    @pytest.mark.parametrize("name", [["n1"], {"n1": 1}, None, 1, "n7"])
    async def test_a_name_that_is_none_is_refused_as_such(self, name: Any) -> None:
        link: Any = SimpleNamespace(connection=SimpleNamespace(remote="there"), expected=None)
        with pytest.raises(WrongNode, match="not another member"):
            links_of("n9", Events()).check_hello(HELLO | {"node": name}, link)

    @pytest.mark.parametrize(("node", "peer", "stays"), [("n9", "n1", True), ("n2", "n9", False)])
    async def test_who_has_called_while_the_larger_id_called_it_keeps_its_link(
        self, node: str, peer: str, stays: bool
    ) -> None:
        """It hangs up on that call: let in for a moment, it ended the link that was good."""
        links = links_of(node, Events())
        there: Any = SimpleNamespace(connection=SimpleNamespace(remote="there"), expected=peer)
        said = HELLO | {"node": peer}
        assert links.check_hello(said, there) == peer
        links.links[NodeId(peer)] = there
        if stays:
            with pytest.raises(WrongNode, match="meanwhile") as refused:
                links.check_hello(said, there)
            assert refused.value.fields["twice"], "nobody has to hear of it"
        else:
            assert links.check_hello(said, there) == peer

    @pytest.mark.parametrize("address", ["host:\N{SUPERSCRIPT TWO}", "h" * 64 + ":1", "127.0.0.1\0:1"])
    async def test_an_address_that_is_none_does_not_end_the_dialling(self, address: str) -> None:
        network = Dials(clock=OsClock(), on_fatal=lambda _: None)
        links = links_of("n2", Events(), network=network, peer_address=address)
        await links.start("127.0.0.1:0")
        await until(lambda: network.count > 2)
        await links.close()

    async def test_who_hangs_up_before_the_introduction_is_dialled_again_soon(self) -> None:
        """A node that is being killed still accepts connections for a moment."""
        hung_up = 0

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal hung_up
            hung_up += 1
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        assert LIMITS["handshake_s"] > 10
        async with server:
            links = links_of("n2", Events(), peer_address=f"{host}:{port}")
            await links.start("127.0.0.1:0")
            try:
                async with asyncio.timeout(LIMITS["handshake_s"] / 3):
                    await until(lambda: hung_up > 2)
            finally:
                await links.close()

    async def test_who_hangs_up_after_the_introduction_is_not_dialled_again_at_once(self) -> None:
        """It does so as long as it takes us for nobody: it has not heard of us yet, or we are removed."""

        async def turn_away(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.writelines(encode(Kind.PEER_HELLO, HELLO | {"node": "n9"}))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(turn_away, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        clock, events = OsClock(), Events()
        async with server:
            links = links_of("n2", events, peer_address=f"{host}:{port}")
            began = clock.monotonic()
            await links.start("127.0.0.1:0")
            try:
                await until(lambda: events.ups.count("-n9") >= 6)
            finally:
                await links.close()
        # Pauses between half of what they are meant to be and one and a half: 50, 100, 200, 200, 200 ms.
        assert clock.monotonic() - began > 0.35

    async def test_who_answers_at_the_address_of_another_keeps_its_own_link(self) -> None:
        """It took the call that was meant for the other, ended the good link for it, and was hung up on: for ever."""
        there, here = Events(), Events()
        network = Dials(clock=OsClock(), on_fatal=lambda _: None)
        async with contextlib.AsyncExitStack() as ends:
            lines = ends.enter_context(capture_logs())
            n9 = links_of("n9", there)
            ends.push_async_callback(n9.close)
            n1 = links_of("n1", here, network=network, peer_address=await n9.start("127.0.0.1:0"))
            ends.push_async_callback(n1.close)
            await n1.start("127.0.0.1:0")  # n2 is there, too, it thinks
            await until(lambda: network.count > 6)
            assert (here.ups, there.ups) == (["n9"], ["n1"])
        told = [each["error"] for each in lines if each["event"] == "peer_refused"]
        assert len(told) == 1, "the one side says it, and not each time"
        assert "is 'n9', expected 'n2'" in told[0]

    async def test_who_has_the_smaller_id_is_called_at_once_where_there_was_a_link(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without its disk it may know of nobody to call, and would begin another cluster (docs/decisions/0031)."""
        monkeypatch.setattr(dialling, "CALL_BACK_S", 0.0)
        events, network = Events(), Dials(clock=OsClock(), on_fatal=lambda _: None)
        async with contextlib.AsyncExitStack() as ends:
            n1 = links_of("n1", Events())
            ends.push_async_callback(n1.close)
            n9 = links_of("n9", events, network=network)
            n9.addresses = {NodeId("n1"): await n1.start("127.0.0.1:0")}
            ends.push_async_callback(n9.close)
            await n9.start("127.0.0.1:0")
            await until(lambda: "n1" in events.ups)
            monkeypatch.setattr(dialling, "CALL_BACK_S", 3600.0)
            await n1.close()
            await until(lambda: "-n1" in events.ups)
            count = network.count
            await until(lambda: network.count > count + 1)

    @pytest.mark.parametrize("who", ["somebody who says nothing", "n9"])
    async def test_who_has_moved_calls_though_somebody_answers_at_its_old_address(
        self, who: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was turned away, since it was to be dialled: two nodes had no link while anything listened there."""
        monkeypatch.setattr(dialling, "CALL_BACK_S", 0.05)
        events, network = Events(), Dials(clock=OsClock(), on_fatal=lambda _: None)
        async with contextlib.AsyncExitStack() as ends:
            mute = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
            n9 = links_of("n9", Events())
            ends.push_async_callback(n9.close)
            old = await n9.start("127.0.0.1:0") if who == "n9" else "{}:{}".format(*mute.getsockname())
            n1 = links_of("n1", events, network=network, peer_address=old, handshake_s=SHORT_S)
            ends.push_async_callback(n1.close)
            n2 = links_of("n2", Events(), peer_address=await n1.start("127.0.0.1:0"))
            ends.push_async_callback(n2.close)
            await n2.start("127.0.0.1:0")
            await until(lambda: "n2" in events.ups)
            count = network.count
            if who != "n9":  # n1 goes on to look for that one
                await until(lambda: network.count > count + 1)
            assert [each for each in events.ups if "n2" in each] == ["n2"]

    async def test_a_machine_that_says_nothing_is_called_again_and_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each call was waited for as long as an introduction: who came there meanwhile began another cluster."""
        monkeypatch.setattr("raftlog.links.links.CONNECT_S", 0.02)
        network = Dials(clock=OsClock(), on_fatal=lambda _: None)
        with black_hole() as (host, port):
            links = links_of("n2", Events(), network=network, peer_address=f"{host}:{port}", handshake_s=3600.0)
            await links.start("127.0.0.1:0")
            await until(lambda: network.count > 4)
            await links.close()

    async def test_one_that_does_not_begin_with_its_name_is_turned_away(self) -> None:
        async with linked() as (address, events):
            client = await Raw().connect(address)
            await client.say(*encode(Kind.RAFT, HELLO))
            await client.ended()
            assert events.ups == []
            client.close()

    async def test_a_certificate_must_name_who_it_says_it_is(self, tmp_path: Path) -> None:
        certs.make_test_authority(tmp_path, ["n1", "n2", "n9"])
        async with linked(certs.peer_contexts(tmp_path, "n9")) as (address, events):
            for holder in ("n2", "n1"):
                session = await introduced(address, certs.peer_contexts(tmp_path, holder)[1])
                await until(lambda session=session: session.ends or events.ups)  # type: ignore[misc]
                assert (bool(session.ends), events.ups) == ((True, []) if holder == "n2" else (False, ["n1"]))


async def introduced(address: str, tls: ssl.SSLContext) -> Session:
    """A connection over TLS that says it is n1."""

    class Peer(Session):
        def opened(self, connection: Connection) -> None:
            super().opened(connection)
            connection.send(encode(Kind.PEER_HELLO, HELLO))

        def frame(self, frame: Frame) -> None:
            self.frames.append(frame)

    session = Peer()
    network = AsyncioNetwork(clock=OsClock(), on_fatal=lambda _: None)
    await network.dial(address, session, limits=ConnectionLimits(**LIMITS), tls=tls)
    return session


class Secure:
    """Contexts of two authorities."""

    def __init__(self, root: Path) -> None:
        for name in ("ours", "theirs"):
            certs.make_test_authority(root / name, ["n1", "n2"])
        self.server = certs.peer_contexts(root / "ours", "n1")[0]
        self.friend = certs.peer_contexts(root / "ours", "n2")[1]
        self.client = certs.client_context(root / "ours")  # signed by the authority for clients, not for peers
        self.stranger = certs.peer_contexts(root / "theirs", "n2")[1]
        self.stranger.verify_mode = ssl.CERT_NONE  # it would talk to anyone
        self.nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.nobody.check_hostname = False
        self.nobody.load_verify_locations(root / "ours" / "ca.pem")
        self.old = certs.peer_contexts(root / "ours", "n2")[1]
        self.old.minimum_version = self.old.maximum_version = ssl.TLSVersion.TLSv1_2


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Secure:
    return Secure(tmp_path_factory.mktemp("tls"))


async def served_over_tls(it: Serving, secure: Secure) -> None:
    """A connection as it should be: identities on both sides, frames both ways."""
    number, near = len(it.sessions), Session()
    near.frame = near.frames.append  # type: ignore[method-assign]
    connection = await it.network.dial(it.address, near, limits=ConnectionLimits(**LIMITS), tls=secure.friend)
    connection.send(encode(Kind.HELLO, {}))
    await until(lambda: near.frames)
    assert "n1" in connection.peer_identities
    assert "n2" in it.sessions[number].open.peer_identities
    connection.close()
    await it.session_of(number)
    await until(lambda: near.ends)


class TestTls:
    @pytest.mark.parametrize("who", ["client", "stranger", "nobody", "old"])
    async def test_without_the_right_certificate_nobody_gets_in(self, who: str, secure: Secure) -> None:
        async with serving(tls=secure.server) as it:
            near = Session()
            near.connection = None
            with contextlib.suppress(OSError):
                await it.network.dial(it.address, near, limits=ConnectionLimits(**LIMITS), tls=getattr(secure, who))
                near.open.send(encode(Kind.HELLO, {}))  # TLS 1.3: refused after the client thinks that it is in
                await until(lambda: near.ends)
            assert [session.connection for session in it.sessions] == [None]
            await served_over_tls(it, secure)

    async def test_plain_bytes_are_refused(self, secure: Secure) -> None:
        async with serving(tls=secure.server) as it:
            client = await it.client()
            await client.say(*encode(Kind.HELLO, {}))
            await client.ended()
            assert [session.connection for session in it.sessions] == [None]
            await served_over_tls(it, secure)

    @pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00"])
    async def test_a_handshake_that_never_ends_is_cut(self, secure: Secure, said: bytes) -> None:
        async with serving(tls=secure.server, handshake_s=SHORT_S * 3) as it:
            client = await it.client()
            await client.say(said)
            await client.ended()
            assert [session.connection for session in it.sessions] == [None]
            await served_over_tls(it, secure)

    async def test_a_verified_certificate_is_no_introduction(self, secure: Secure) -> None:
        async with serving(tls=secure.server, handshake_s=SHORT_S * 3) as it:
            near = Session()
            await it.network.dial(it.address, near, limits=ConnectionLimits(**LIMITS), tls=secure.friend)
            assert isinstance((await it.session_of(0)).error, TimeoutError)
            await until(lambda: near.ends)

    async def test_a_server_that_never_answers_fails_the_dial_in_time(self, secure: Secure) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            before = sockets()
            network = AsyncioNetwork(clock=OsClock(), on_fatal=lambda _: None)
            limits = ConnectionLimits(**{**LIMITS, "handshake_s": SHORT_S})
            address = "{}:{}".format(*mute.getsockname())
            with pytest.raises((OSError, TimeoutError)):
                await network.dial(address, Session(), limits=limits, tls=secure.friend)
            await until(lambda: sockets() == before)

    async def test_what_bounds_the_connection_bounds_no_handshake(self, secure: Secure) -> None:
        """Between processors that are busy that takes its time."""
        clock = OsClock()
        network = AsyncioNetwork(clock=clock, on_fatal=lambda _: None)
        with socket.create_server(("127.0.0.1", 0)) as mute, black_hole() as hole:
            for (host, port), handshake_s in ((mute.getsockname(), 2 * SHORT_S), (hole, LONG_S)):
                limits = ConnectionLimits(**{**LIMITS, "connect_s": SHORT_S, "handshake_s": handshake_s})
                since, before = clock.monotonic(), sockets()
                with pytest.raises((OSError, TimeoutError)):
                    await network.dial(f"{host}:{port}", Session(), limits=limits, tls=secure.friend)
                took = clock.monotonic() - since
                assert took < handshake_s if port == hole[1] else took > 1.5 * SHORT_S
                await until(lambda before=before: sockets() == before)  # type: ignore[misc]
        async with serving(tls=secure.server) as it:
            limits = ConnectionLimits(**{**LIMITS, "connect_s": LONG_S})
            made = await it.network.dial(it.address, Session(), limits=limits, tls=secure.friend)
            assert made.peer_identities
            made.close()

    async def test_a_server_of_another_authority_is_not_talked_to(self, secure: Secure, tmp_path: Path) -> None:
        certs.make_test_authority(tmp_path, ["n2"])
        async with serving(tls=secure.server) as it:
            with pytest.raises(ssl.SSLError):
                await it.network.dial(
                    it.address, Session(), limits=ConnectionLimits(**LIMITS), tls=certs.peer_contexts(tmp_path, "n2")[1]
                )
            await served_over_tls(it, secure)


@pytest.mark.parametrize("node", ["n1", "node.example", "10.0.0.1"])
def test_a_certificate_names_the_node_whatever_its_id_looks_like(node: str, tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, [node])
    decoded = ssl._ssl._test_decode_cert(str(tmp_path / f"{node}.pem"))  # type: ignore[attr-defined]
    assert node in names_in(decoded)


@pytest.mark.parametrize(
    ("index", "ids", "told"), [(7, ("n2", "n4"), True), (7, ("n4",), False), (0, ("n2", "n4"), False)]
)
def test_a_lost_disk_is_noticed_though_all_members_of_the_settings_are_gone(
    index: int, ids: tuple[str, ...], told: bool
) -> None:
    """Whoever has both in a newer configuration may say so; a stranger may not."""
    links, asked = links_of("n2", Events()), list[str]()
    links.directories = Directories(NodeId("n2"), bytes(16), {}, lambda *_: None)
    links.directories.forget = lambda lineage: bool(asked.append(lineage) or True)
    there: Any = SimpleNamespace(connection=SimpleNamespace(remote="there"), expected=None)
    header = HELLO | {"node": "n4", "members": [0, index, list(ids)], "met": [["n2", b"x" * 16]]}
    with pytest.raises(WrongNode):
        links.check_hello(header, there)
    assert bool(asked) is told
