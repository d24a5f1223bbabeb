"""Whoever only connects has no more of a node than there is room for: places, and descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from logboom import certs
from logboom.errors import ConfigError
from ports.net import ConnectionLimits
from server.world import accepting
from server.world.accepting import SPARE_LEAST, SPARE_MIN, SPARE_SHARE
from server.world.crowd import Crowd, address_of
from tests.unit.server.net_world import LIMITS, Serving, Session, serving, until

STRANGERS = 12


class Stranger:
    """Connects, and says nothing."""

    async def connect(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port))

    @property
    def is_cut(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None


async def strangers(it: Serving) -> list[Stranger]:
    """So many, connected; the node has taken them, or turned them away."""
    found = [Stranger() for _ in range(STRANGERS)]
    for stranger in found:
        await stranger.connect(it.address)
    await until(lambda: len(it.sessions) + it.traffic.refused == STRANGERS)
    return found


async def left(it: Serving, found: list[Stranger]) -> int:
    """How many of them are still there, once those that were turned away have heard of it."""
    await until(lambda: sum(each.is_cut for each in found) == it.traffic.refused)
    return len(it.sessions)


async def gone(found: list[Stranger]) -> None:
    """All of them, before there are other numbers."""
    for each in found:
        each.writer.close()
        with contextlib.suppress(ConnectionError):
            await each.writer.wait_closed()


@contextlib.contextmanager
def no_numbers_between() -> Iterator[int]:
    """All descriptors below the yielded one are taken, none from it on: what other tests have open leaves holes."""
    gc.collect()  # what is thrown away does not become a number in the middle of it
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names of descriptors
    filled = list[int]()
    try:
        while not filled or filled[-1] <= highest:
            filled.append(os.open(os.devnull, os.O_RDONLY))
        yield filled[-1] + 1
    finally:
        for each in filled:
            os.close(each)


async def test_who_has_not_agreed_upon_tls_counts_as_a_connection(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, ["n1", "n2"])
    server, client = certs.peer_contexts(tmp_path, "n1")[0], certs.peer_contexts(tmp_path, "n2")[1]
    async with serving(tls=server, connections_max=3) as it:
        found = [Stranger() for _ in range(STRANGERS)]
        for stranger in found:
            await stranger.connect(it.address)
        await until(lambda: sum(each.is_cut for each in found) == it.traffic.refused == STRANGERS - 3)
        assert not any(each.is_cut for each in found[-3:])
        for each in found:
            each.writer.close()

        async def comes_in() -> bool:
            try:
                made = await it.network.dial(it.address, Session(), limits=ConnectionLimits(**LIMITS), tls=client)
            except OSError:
                return False
            made.abort()
            return True

        async with asyncio.timeout(10):
            while not await comes_in():
                pass


async def test_an_address_of_a_name_that_is_not_here_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: a node that is to listen on `localhost` did not start in a container, which has no IPv6."""
    loop, tcp = asyncio.get_running_loop(), (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    here = (socket.AF_INET, *tcp, ("127.0.0.1", 0))
    absent = (socket.AF_INET, *tcp, ("192.0.2.1", 0))
    known = [absent, here]

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        return list(known)

    monkeypatch.setattr(type(loop), "getaddrinfo", getaddrinfo)
    async with serving() as it:
        assert it.address.startswith("127.0.0.1:")
        monkeypatch.undo()
    monkeypatch.setattr(type(loop), "getaddrinfo", getaddrinfo)
    known.remove(here)
    with pytest.raises(ConfigError, match="assign"):
        async with serving():
            pass


@pytest.mark.parametrize("tls", [False, True])
async def test_descriptors_are_left_for_files(tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certs.make_test_authority(tmp_path, ["n1"])
    tls_of = certs.peer_contexts(tmp_path, "n1")[0] if tls else None
    async with serving(tls=tls_of) as it:
        with no_numbers_between() as used:
            limit = next(n for n in itertools.count(used) if n - max(SPARE_MIN, n // SPARE_SHARE) == used + 8)
            # A connection takes two here, where both its ends are.
            monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
            monkeypatch.setattr(accepting, "CONNECTIONS_LEAST", 0)
            found = await strangers(it)
            assert 3 <= await left(it, found) <= 5
            await gone(found)
            monkeypatch.undo()


async def test_where_files_have_taken_what_there_is_a_few_connections_are_taken_in_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by review: with as many partitions as descriptors allow a node let in nobody, other nodes neither."""
    async with serving() as it:
        with no_numbers_between() as used:
            limit = used + SPARE_LEAST + 8
            monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
            found = await strangers(it)
            assert 3 <= await left(it, found) <= 5
            await gone(found)
            monkeypatch.undo()


class TestNoRoom:
    """One host that only connected shut all others out, and came again whenever its connections were cut."""

    async def test_who_introduces_himself_takes_the_place_of_who_does_not(self) -> None:
        async with serving(connections_max=3) as it:
            first = await it.friend()
            found = [Stranger() for _ in range(STRANGERS)]
            for stranger in found:
                await stranger.connect(it.address)
            await until(lambda: len(it.sessions) == 1 + STRANGERS)
            await until(lambda: sum(each.is_cut for each in found) == it.traffic.refused == STRANGERS - 2)
            assert not any(each.is_cut for each in found[-2:])
            second = await it.friend()
            await until(lambda: found[-2].is_cut)
            third = await it.friend()
            await until(lambda: found[-1].is_cut)
            assert await (await it.client()).ended() == b""  # all three have a place, and keep it
            for friend in (first, second, third):
                assert await friend.echoes()
            first.close()
            await it.session_of(0)
            await gone(found)

    async def test_of_several_addresses_the_one_with_most_strangers_gives_up_its_oldest(self) -> None:
        async with serving(connections_max=4) as it:
            quiet = await from_address(it, "127.0.0.2")
            loud = [await from_address(it, "127.0.0.3") for _ in range(6)]
            await until(lambda: sum(each.is_cut for each in loud) == 3)
            assert [each.is_cut for each in loud] == [True] * 3 + [False] * 3
            assert not quiet.is_cut
            await gone([quiet, *loud])
            await until(lambda: all(session.ends for session in it.sessions))

    async def test_so_many_from_one_address_and_no_more(self) -> None:
        async with serving(connections_max=20, connections_per_address=3) as it:
            friends = [await it.friend() for _ in range(3)]
            assert await (await it.client()).ended() == b""
            assert it.traffic.refused == 1
            other = await from_address(it, "127.0.0.2")
            assert [await friend.echoes() for friend in friends] == [True] * 3
            assert not other.is_cut
            friends[0].close()
            await it.session_of(0)
            newcomer = await it.client()
            latest = await it.friend()  # in the place of whoever has not said who he is
            assert await newcomer.ended() == b""
            assert await latest.echoes()
            await gone([other])
            latest.close()
            await until(lambda: sum(bool(session.ends) for session in it.sessions) == len(it.sessions) - 2)

    async def test_who_is_agreeing_upon_tls_goes_for_others(self, tmp_path: Path) -> None:
        certs.make_test_authority(tmp_path, ["n1", "n2"])
        server, client = certs.peer_contexts(tmp_path, "n1")[0], certs.peer_contexts(tmp_path, "n2")[1]
        async with serving(tls=server, connections_max=2) as it:
            found = [Stranger() for _ in range(2)]
            for stranger in found:
                await stranger.connect(it.address)
            await until(lambda: len(it.sessions) == 2)
            made = await it.network.dial(it.address, Session(), limits=ConnectionLimits(**LIMITS), tls=client)
            await until(lambda: found[0].is_cut)
            assert not found[1].is_cut
            made.abort()
            await gone(found)


async def from_address(it: Serving, host: str) -> Stranger:
    """Who says nothing, from there; the node has heard of him."""
    stranger, before = Stranger(), len(it.sessions)
    there, port = it.address.rsplit(":", 1)
    stranger.reader, stranger.writer = await asyncio.open_connection(there, int(port), local_addr=(host, 0))
    await until(lambda: len(it.sessions) > before)
    return stranger


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        (("10.1.2.3", 99), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 99, 0, 0), "2001:db8:1:2::"),
        (("2001:db8:1:2::1", 7, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 7, 0, 2), "fe80::"),
    ],
)
def test_whom_one_connection_counts_for(peer: object, counted: str) -> None:
    assert address_of(peer) == counted


def test_a_crowd_that_has_gone_leaves_nothing_behind() -> None:
    crowd, cut = Crowd(per_address=2), list[int]()
    for one in range(6):
        crowd.comes(one, f"10.0.0.{one % 3}", lambda one=one: cut.append(one))
    assert crowd.make_room()
    assert cut == [0]
    assert crowd.admits("10.0.0.1")
    assert cut == [0, 1]
    crowd.introduced(2)
    crowd.introduced(2)
    for one in range(6):
        crowd.ended(one)
        crowd.ended(one)
        crowd.introduced(one)
    assert (len(crowd), crowd._from, crowd._counts, crowd._strangers, crowd.open) == (0, {}, {}, {}, {})
    assert not crowd.make_room()
