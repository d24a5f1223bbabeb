"""Handshake, cancellation, streams, signs of life."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from logboom import Client, Put
from logboom.certs import client_context, make_test_authority, server_context
from logboom.client import connection as connection_module
from logboom.errors import (
    BY_CODE,
    DeadlineExceeded,
    IncompatibleVersion,
    InvalidRequest,
    LogboomError,
    NotLeader,
    Overloaded,
    ProtocolError,
    Unauthenticated,
    Unavailable,
    WrongNode,
    from_wire,
)
from logboom.records import RecordBlock
from logboom.wire import Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, cuts, entries, fails, records, silent, until

# -- handshake


async def test_hello_introduces_the_client_and_welcome_the_cluster() -> None:
    async with cluster(2) as [node, other]:
        with pytest.warns(UserWarning, match="clear text.*no node looks at it"):
            boom = Client(node.address, token="secret")
        async with boom:
            assert await boom.partitions() == [0, 1, 2, 3]
            assert await boom.members() == {"n1": node.address, "n2": other.address}
            assert (await boom.state_machines())[3] == "kv"
            hello = node.of(Kind.HELLO)[0].header
            assert (hello["version"], hello["token"], hello["cluster"]) == (1, "secret", None)
            await boom.status_all(timeout=1.0)
            assert other.of(Kind.HELLO)[0].header["cluster"] == "test"


@pytest.mark.parametrize("error", [Unauthenticated("who are you?"), IncompatibleVersion("too old", found=1)])
async def test_a_refused_handshake_says_why_and_is_not_retried(error) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.HELLO] = fails(error)
        with pytest.raises(type(error), match=error.message):
            await boom.submit(0, Put(b"a", b""), timeout=5.0)
        assert len(node.of(Kind.HELLO)) == 1


async def test_a_node_that_does_not_answer_hello_is_given_up_for_another(monkeypatch) -> None:
    async with cluster(2) as [node, mute]:
        mute.answers[Kind.HELLO] = silent
        async with Client([mute.address, node.address]) as boom:
            await boom.submit(0, Put(b"a", b""), timeout=1.5)  # sooner than the dead one's time-out


async def test_a_break_during_the_handshake_is_retried() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.HELLO, cuts, cuts)
        await boom.submit(0, Put(b"a", b""), timeout=5.0)
        assert len(node.of(Kind.HELLO)) == 3


async def test_what_is_not_logboom_is_unavailable() -> None:
    async def http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Client(address) as boom:
        with pytest.raises(Unavailable, match=address):
            await boom.status(timeout=2.0)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("endpoints", ["", "host", "host:0", "host:99999", "a:1,,b:2", []])
def test_bad_endpoints_are_refused_at_once(endpoints) -> None:
    with pytest.raises(InvalidRequest, match="endpoint"):
        Client(endpoints)


@pytest.mark.parametrize("code", sorted(BY_CODE))
async def test_every_error_arrives_as_what_it_was(code: str) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        error = BY_CODE[code]("because", outcome="not_applied", limit=7, partition_id=3, first=5)
        node.answers[Kind.SUBMIT] = fails(error)
        connection = await boom._cluster.any()
        with pytest.raises(BY_CODE[code], match="because") as caught:
            await connection.request(Kind.SUBMIT, {"parts": []})
        assert type(caught.value) is BY_CODE[code]
        assert (caught.value.limit, caught.value.partition_id, caught.value.outcome) == (7, 3, "not_applied")
        assert caught.value.to_wire() == error.to_wire()


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        ("unavailable", {"retry_after": "soon"}),
        ("overloaded", {"retry_after": float("inf")}),
        ("overloaded", {"retry_after": -1}),
        ("index_compacted", {}),
        ("index_compacted", {"first": "1"}),
    ],
)
def test_fields_that_cannot_be_are_an_error_of_the_node(error: str, fields: dict[str, Any]) -> None:
    """Whoever handled it raised something else over them."""
    found = from_wire({"code": error, "message": "because", "outcome": "not_applied", "fields": fields})
    assert type(found) is ProtocolError
    assert error in found.message


@pytest.mark.parametrize("leader", ["nowhere", "host:0", 7, b"host:1"])
async def test_a_leader_that_has_no_address_is_none(leader: Any) -> None:
    async with cluster() as [node], Client(node.address, timeout=5.0) as boom:
        node.once(Kind.SUBMIT, fails(NotLeader("not me", leader=leader)))
        assert (await boom.submit(0, Put(b"k", b"v"))).first_index == 1
        node.leader = leader
        async with Client(node.address, timeout=5.0) as other:
            assert (await other.submit(0, Put(b"k", b"v"))).first_index == 2


def test_an_error_of_a_later_release_is_still_an_error() -> None:
    error = from_wire({"code": "invented", "message": "m", "outcome": "unknown", "fields": {"x": 1}})
    assert (type(error), error.outcome, error.x) == (LogboomError, "unknown", 1)


# -- cancellation, silence, broken frames


async def test_cancelling_tells_the_node() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = silent
        task = asyncio.create_task(boom.barrier(5))
        await until(lambda: node.of(Kind.BARRIER))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await boom.submit(0, Put(b"a", b""))  # behind it on the same connection
        assert [f.request_id for f in node.of(Kind.CANCEL)] == [node.of(Kind.BARRIER)[0].request_id]


async def test_a_late_reply_to_what_was_cancelled_is_ignored() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = []
        node.answers[Kind.BARRIER] = lambda session, frame: held.append((session, frame))
        with pytest.raises(DeadlineExceeded) as caught:
            await boom._reader.ask_node(Kind.BARRIER, {"global_index": 1}, node=None, deadline=boom._deadline(0.05))
        assert caught.value.outcome == "not_applied"
        held[0][0].usual(held[0][1])
        await boom.submit(0, Put(b"a", b""))


async def test_a_frozen_node_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(connection_module, "BEAT_S", 0.02)
    monkeypatch.setattr(connection_module, "PING_AFTER_S", 0.05)
    monkeypatch.setattr(connection_module, "DEAD_AFTER_S", 0.2)
    async with cluster(2) as [frozen, other], Client(frozen.address) as boom:
        await boom.submit(0, Put(b"a", b""))
        frozen.answers[Kind.SUBMIT] = frozen.answers[Kind.PING] = frozen.answers[Kind.HELLO] = silent
        other.leader = other.address
        await boom.submit(0, Put(b"b", b""), timeout=5.0)
        assert frozen.of(Kind.PING)
        assert len(other.log[0]) == 1


async def test_a_slow_answer_is_waited_for_while_the_node_lives(monkeypatch) -> None:
    monkeypatch.setattr(connection_module, "BEAT_S", 0.01)
    monkeypatch.setattr(connection_module, "PING_AFTER_S", 0.02)
    monkeypatch.setattr(connection_module, "DEAD_AFTER_S", 0.1)
    async with cluster() as [node], Client(node.address) as boom:
        loop = asyncio.get_running_loop()
        node.answers[Kind.SUBMIT] = lambda session, frame: loop.call_later(0.4, session.usual, frame) and None
        await boom.submit(0, Put(b"a", b""))
        assert len(node.of(Kind.SUBMIT)) == 1
        assert node.of(Kind.PING)


async def test_garbage_ends_the_connection_and_the_request_is_sent_again() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.SUBMIT, lambda session, frame: session.transport.write(struct.pack("<I", 1) + b"garbage"))
        await boom.submit(0, Put(b"a", b""), timeout=5.0)
        assert len(node.of(Kind.SUBMIT)) == 2


# -- streams


async def test_a_scan_is_a_stream_and_a_break_in_it_is_told() -> None:
    async with cluster() as [node], Client(node.address) as boom:

        def all_of_it(session: Session, frame: Any) -> None:
            entries(session, frame, [b"a", b"b"], more=True)
            entries(session, frame, [b"c"], more=False)

        def half_of_it(session: Session, frame: Any) -> None:
            entries(session, frame, [b"a"], more=True)
            session.fail(frame, Overloaded("later"))

        node.once(Kind.SCAN, all_of_it, all_of_it, half_of_it)
        assert [pair async for pair in boom.scan(0)] == [(b"a", b"A"), (b"b", b"B"), (b"c", b"C")]
        assert len([pair async for pair in boom.scan(0, limit=10)]) == 3
        with pytest.raises(Overloaded):
            _ = [pair async for pair in boom.scan(0)]
        assert boom.last_seen == 5


async def test_leaving_a_scan_early_frees_its_connection() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a", b"b"], more=True)
        scan = boom.scan(0)
        assert await anext(scan) == (b"a", b"A")
        assert len(node.sessions) == 2
        await scan.aclose()  # type: ignore[attr-defined]
        await until(lambda: len(node.sessions) == 1)


async def test_a_scan_that_stalls_ends_by_its_timeout() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a"], more=True)
        with pytest.raises(DeadlineExceeded, match="no more came"):
            _ = [pair async for pair in boom.scan(0, timeout=0.1)]


async def test_a_consumer_that_does_not_read_stops_the_stream(monkeypatch) -> None:
    monkeypatch.setattr(connection_module, "STREAM_BYTES_MAX", 1000)
    async with cluster() as [node], Client(node.address) as boom:
        count = 3000
        keys = [b"%064d" % k for k in range(100)]

        def flood(session: Session, frame: Any) -> None:
            for k in range(count):
                entries(session, frame, keys, more=k < count - 1)

        node.answers[Kind.SCAN] = flood
        scan = boom.scan_blocks(0)
        await anext(scan)
        [bulk] = [session for session in node.sessions if session.transport.get_write_buffer_size()]
        assert bulk.transport.get_write_buffer_size() > 1024 * 1024  # it is the node that holds it
        await boom.submit(0, Put(b"a", b""))  # others are not held up
        assert 1 + len([block async for block in scan]) == count


async def test_a_consumer_that_asks_for_more_while_it_reads_is_answered(monkeypatch) -> None:
    monkeypatch.setattr(connection_module, "STREAM_BYTES_MAX", 1000)
    async with cluster() as [node], Client(node.address, timeout=20) as boom:
        count = 300
        many = [b"x" * 64] * 100

        def flood(session: Session, frame: Any) -> None:
            for k in range(count):
                records(session, frame, 1 + 100 * k, 1 + k, many)
            session.send(frame, Kind.END, {"next_index": 1})

        node.answers[Kind.TAIL] = flood
        got = 0
        async for _ in boom.tail(0, credit=64 * 1024 * 1024):  # over the connection that all use
            got += 1
            if got % 50 == 1:
                await boom.submit(0, Put(b"a", b""))
                assert [b async for b in boom.tail(0, credit=1, node="n1")]
        assert got == count


async def test_a_tail_goes_on_where_it_was_when_the_connection_breaks() -> None:
    async with cluster() as [node], Client(node.address) as boom:

        def first(session: Session, frame: Any) -> None:
            records(session, frame, 1, 1, [b"1", b"2"])
            asyncio.get_running_loop().call_later(0.05, session.transport.abort)

        def second(session: Session, frame: Any) -> None:
            records(session, frame, 3, 2, [b"3"])
            session.send(frame, Kind.END, {"next_index": 4})

        node.once(Kind.TAIL, first, second)
        batches = [batch async for batch in boom.tail(0)]
        assert [(b.first_index, b.last_index) for b in batches] == [(1, 2), (3, 3)]
        assert [frame.header["start"] for frame in node.of(Kind.TAIL)] == [0, 3]
        assert node.of(Kind.CREDIT)[0].header["bytes"] == 14


async def test_leaving_a_tail_cancels_it() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.TAIL] = lambda session, frame: records(session, frame, 1, 1, [b"1"])
        tail = boom.tail(0, follow=True, node="n1")
        assert (await anext(tail)).first_index == 1
        await tail.aclose()  # type: ignore[attr-defined]
        await boom.submit(0, Put(b"a", b""))
        assert len(node.of(Kind.CANCEL)) == 1


# -- status


async def test_status_of_all_keeps_the_error_of_who_is_away() -> None:
    async with cluster(2) as [node, gone], Client(node.address, timeout=5.0) as boom:
        for each in (node, gone):
            each.answers[Kind.STATUS] = lambda session, frame: session.send(
                frame, Kind.STATUS_REPLY, {"node": session.node.name}
            )
        await gone.stop()
        host, port = gone.address.rsplit(":", 1)
        with socket.socket() as taken:  # and does not listen: nobody else gets its port meanwhile
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host, int(port)))
            answers = await boom.status_all()
        assert answers["n1"] == {"node": "n1"}
        # The last that was tried, or that there was no time for another.
        assert isinstance(answers["n2"], Unavailable | DeadlineExceeded)
        assert gone.address in str(answers["n2"])


# -- reads


async def test_reads_say_how_fresh_they_must_be() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        block = RecordBlock.from_columns(payloads=[b"bvalue"])
        body = [bytes(block.metadata), bytes(block.data)]
        header = {"found": [True], "metadata": len(body[0]), "data": len(body[1]), "global_index": 42}
        node.answers[Kind.GET] = lambda session, frame: session.send(frame, Kind.VALUES, header, body)
        assert await boom.get(0, b"k") == b"value"
        assert boom.last_seen == 42
        for how in ({"at_least": 7}, {"at_least": "session"}, {"stale": True}):
            await boom.get(0, b"k", **how)
        asked = [(frame.header["read"], frame.header["at_least"]) for frame in node.of(Kind.GET)]
        assert asked == [("linearizable", 0), ("at_least", 7), ("at_least", 42), ("stale", 0)]
        with pytest.raises(InvalidRequest, match="stale"):
            await boom.get(0, b"k", at_least=1, stale=True)
        assert await boom.get_many(0, []) == []


# -- TLS


async def test_the_certificate_must_name_the_node(tmp_path: Path) -> None:
    make_test_authority(tmp_path, ["n1", "n2"])
    node = FakeNode("n1")
    contexts = {name: server_context(tmp_path, name) for name in ("n1", "n2")}
    loop = asyncio.get_running_loop()
    for name, context in contexts.items():
        server = await loop.create_server(lambda: Session(node), "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        node.members, node.leader = {"n1": address}, address
        async with Client(address, tls=tmp_path) as boom:
            if name == "n1":
                await boom.submit(0, Put(b"a", b""))
            else:
                with pytest.raises(WrongNode, match="n2"):
                    await boom.submit(0, Put(b"a", b""), timeout=1.0)
        server.close()
        await until(lambda: not node.sessions)
        await server.wait_closed()


async def test_a_client_of_another_authority_is_turned_away(tmp_path: Path) -> None:
    make_test_authority(tmp_path / "ours", ["n1"])
    make_test_authority(tmp_path / "theirs", ["n1"])
    context = client_context(tmp_path / "theirs")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    node = FakeNode("n1")
    server = await asyncio.get_running_loop().create_server(
        lambda: Session(node), "127.0.0.1", 0, ssl=server_context(tmp_path / "ours", "n1")
    )
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Client(address, tls=context) as boom:
        with pytest.raises(Unauthenticated, match="CERTIFICATE_VERIFY_FAILED"):
            await boom.status(timeout=5.0)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("when", ["connection_made", "request"])
async def test_who_gives_up_as_tls_is_agreed_on_or_before_he_is_welcome_leaves_nothing_open(
    tmp_path: Path, when: str
) -> None:
    """asyncio waited half a minute for the other side's goodbye, longer than a client lives that is closed."""
    make_test_authority(tmp_path, ["n1"])
    over, sockets = threading.Event(), list[Any]()
    real = connection_module.NodeConnection

    class GivenUp(real):  # type: ignore[valid-type, misc]
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            sockets.append(transport.get_extra_info("socket"))
            if when == "connection_made":
                opening.cancel()

        async def request(self, *what: Any) -> Any:
            opening.cancel()
            return await super().request(*what)

    def serve() -> None:
        with listening.accept()[0] as met, server_context(tmp_path, "n1").wrap_socket(met, server_side=True):
            over.wait(20)  # and reads nothing

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        opening = asyncio.ensure_future(GivenUp.open(address, tls=client_context(tmp_path), timeout=5.0, token=None))
        await asyncio.gather(opening, return_exceptions=True)
        assert opening.cancelled()
        await asyncio.sleep(0)  # transports report their end in the next turn
        try:
            assert [sock.fileno() for sock in sockets] == [-1]
        finally:
            over.set()
            serving.join()


async def test_a_client_without_a_certificate_gets_nowhere(tmp_path: Path) -> None:
    make_test_authority(tmp_path, ["n1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tmp_path / "ca.pem")
    node = FakeNode("n1")
    server = await asyncio.get_running_loop().create_server(
        lambda: Session(node), "127.0.0.1", 0, ssl=server_context(tmp_path, "n1")
    )
    async with Client(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", tls=context) as boom:
        with pytest.raises(Unavailable, match="before it said anything; it may refuse our certificate, or miss one"):
            await boom._cluster.any()
    async with Client(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as boom:
        with pytest.raises(Unavailable, match="before it said anything; it may want TLS"):
            await boom._cluster.any()
    assert not node.frames
    server.close()
    await server.wait_closed()
