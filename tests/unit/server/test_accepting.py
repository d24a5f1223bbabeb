"""Whoever only connects has no more of a node than there is room for: places, and descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from logboom import certs
from logboom.errors import ConfigError
from logboom.wire import Kind
from ports.net import ConnectionLimits
from server.world import accepting
from server.world.accepting import SPARE_LEAST, SPARE_MIN, SPARE_SHARE, Port
from server.world.clock_os import OsClock
from server.world.crowd import Crowd, address_of
from server.world.net_os import AsyncioNetwork
from tests.unit.server.net_world import LIMITS, Serving, Session, serving, until

STRANGERS = 12


class Stranger(asyncio.Protocol):
    """Connects, and says nothing; it is over once the other side ends it."""

    def __init__(self) -> None:
        self.is_cut = False

    async def connect(self, address: str, here: str | None = None) -> None:
        host, port = address.rsplit(":", 1)
        local = None if here is None else (here, 0)
        self.transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: self, host, int(port), local_addr=local
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = True


async def strangers(it: Serving) -> list[Stranger]:
    """So many, connected one after the other; the node has taken each, perhaps for another."""
    return [await from_address(it, "127.0.0.1") for _ in range(STRANGERS)]


async def left(it: Serving, found: list[Stranger]) -> int:
    """How many of them are still there, once those that were cut have heard of it: the last ones that came."""
    await until(lambda: sum(each.is_cut for each in found) == it.traffic.refused)
    cut = [each.is_cut for each in found]
    assert cut == sorted(cut, reverse=True)
    return cut.count(False)


def limit_of(used: int) -> int:
    """So many descriptors, of which one in so many is kept for files: they are few once there are ``used``."""
    return next(n for n in itertools.count(used) if n - max(SPARE_MIN, n // SPARE_SHARE) == used)


async def gone(found: list[Stranger]) -> None:
    """All of them, before there are other numbers."""
    for each in found:
        each.transport.close()
    await until(lambda: all(each.is_cut for each in found))


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
            each.transport.close()

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
            limit = limit_of(used + 8)
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


@contextlib.contextmanager
def descriptors(limit: Callable[[int], int], *, least: int = 0) -> Iterator[None]:
    """So many there may be, by how many there are; ``least`` connections of a port may have of what is for files."""
    with no_numbers_between() as used, pytest.MonkeyPatch.context() as patched:
        most = limit(used)
        patched.setattr(resource, "getrlimit", lambda _: (most, most))
        patched.setattr(accepting, "CONNECTIONS_LEAST", least)
        yield


class TestFewDescriptors:
    """One host that only connected had all that may be had, and nobody went: clients and nodes were turned away."""

    async def test_who_introduces_himself_takes_the_place_of_who_does_not(self) -> None:
        async with serving(connections_max=1024) as it:
            with descriptors(lambda used: limit_of(used + 8)):
                found = [await from_address(it, "127.0.0.2") for _ in range(STRANGERS)]
                friend = await it.friend()
                await until(lambda: sum(each.is_cut for each in found) == it.traffic.refused)
                assert await friend.echoes()
                assert it.traffic.refused < STRANGERS
                await gone(found)

    async def test_the_strangers_of_another_port_go_too(self) -> None:
        port = partial(Port, crowds=[])
        async with serving(connections_max=1024, port=port) as loud, serving(port=port) as it:
            with descriptors(lambda used: limit_of(used + 8)):
                found = [await from_address(loud, "127.0.0.2") for _ in range(STRANGERS)]
                before = loud.traffic.refused
                friends = [await it.friend() for _ in range(2)]
                assert loud.traffic.refused > before
                assert it.traffic.refused == 0
                assert [await friend.echoes() for friend in friends] == [True, True]
                await gone(found)

    async def test_who_may_have_what_is_kept_does_not_go_for_who_may_not(self) -> None:
        """With many clients each that called cut a node which was about to introduce itself, and was turned away."""
        port = partial(Port, crowds=[])
        async with serving(port=port) as nodes, serving(connections_max=1024, port=port) as clients:
            friends = [await clients.friend() for _ in range(4)]
            with descriptors(limit_of, least=4):
                node = await nodes.client()
                await until(lambda: nodes.sessions)
                assert await (await clients.client()).ended() == b""
                assert await node.echoes(Kind.HELLO)
                assert [await friend.echoes() for friend in friends] == [True] * 4
            assert (clients.traffic.refused, nodes.traffic.refused) == (1, 0)
            node.close()

    async def test_nobody_goes_for_whom_a_full_port_turns_away(self) -> None:
        port = partial(Port, crowds=[])
        async with serving(port=port) as other, serving(connections_max=3, port=port) as full:
            friends = [await full.friend() for _ in range(3)]
            found = [await from_address(other, "127.0.0.2")]
            with descriptors(limit_of):
                assert await (await full.client()).ended() == b""
                assert [await friend.echoes() for friend in friends] == [True] * 3
            assert (full.traffic.refused, other.traffic.refused) == (1, 0)
            await gone(found)
            friends[0].close()  # a place for whoever comes next
            await full.session_of(0)

    async def test_at_a_full_port_only_the_stranger_goes_that_would_have_to_anyway(self) -> None:
        port = partial(Port, crowds=[])
        async with serving(port=port) as other, serving(connections_max=2, port=port) as full:
            found = [await from_address(full, "127.0.0.2"), *[await from_address(other, "127.0.0.3") for _ in range(2)]]
            friend = await full.friend()
            with descriptors(limit_of):
                newcomer = await full.friend()
                await until(lambda: found[0].is_cut)
                assert [await each.echoes() for each in (friend, newcomer)] == [True, True]
            assert (full.traffic.refused, other.traffic.refused) == (1, 0)
            await gone(found)
            friend.close()
            await full.session_of(1)

    async def test_who_has_introduced_himself_never_goes(self) -> None:
        async with serving(connections_max=1024) as it:
            friends = [await it.friend() for _ in range(4)]
            with descriptors(limit_of):
                assert await (await it.client()).ended() == b""
                assert [await friend.echoes() for friend in friends] == [True] * 4


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
    await stranger.connect(it.address, host)
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


async def test_an_address_of_another_machine_is_told_how_to_be_replaced() -> None:
    network = AsyncioNetwork(clock=OsClock(), on_fatal=lambda _: None)
    with pytest.raises(ConfigError, match="this machine has no such address: `client_address`, `peer_address` and"):
        await network.listen("192.0.2.1:7701", Session, limits=ConnectionLimits(), tls=None)
