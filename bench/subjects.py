"""What ``bench.restart`` starts and stops: a logboom cluster and an etcd cluster, behind one face."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from bench import fill, start_profile
from bench.fill import Fill
from bench.systems import programs
from bench.systems.etcd import RANGE, EtcdCluster, get
from bench.systems.http2 import CallFailed, Method
from logboom.client.connection import NodeConnection
from logboom.errors import LogboomError, NotLeader
from logboom.testing import LocalCluster
from logboom.wire import Kind

PROBE_S: Final = 0.01
"""A new attempt begins so often while no earlier one has been answered."""
IN_FLIGHT_MAX: Final = 64
GIVE_UP_S: Final = 600.0
"""Three etcd servers with 1 GiB each may take minutes on two CPUs."""
QUOTA_BYTES: Final = 8 << 30
"""etcd refuses writes beyond 2 GB by default."""
KEY: Final = b"restart"
PARTITIONS: Final = 8

C = TypeVar("C")


class Subject(Protocol):
    """One system with its data."""

    name: str
    nodes: list[str]

    def version(self) -> str: ...

    def begin(self) -> None:
        """Start all nodes for the first time. Raises Unavailable, TimeoutError."""

    def close(self) -> None:
        """End what runs."""

    def leader(self) -> str:
        """The node that takes writes."""

    def data(self, node: str) -> Path:
        """Where the node's files are."""

    def end(self, nodes: Sequence[str], number: signal.Signals) -> None:
        """Send all of them the signal, then wait until the processes are gone."""

    def start(self, node: str) -> None:
        """Start a node that has ended; does not wait."""

    async def write(self, wanted: Fill) -> None:
        """Write so much, until it is applied."""

    async def served(self, node: str) -> dict[str, float]:
        """Wait for a linearizable read through this node, and whatever else the system can be asked for.

        When each was there, by ``time.perf_counter``, ``read`` first of all. Raises TimeoutError.
        """

    async def whole(self) -> None:
        """Until all nodes take part again."""

    def said(self, node: str, since: float) -> dict[str, float]:
        """What the node said after ``since`` (epoch), and how many seconds after it; empty if it says nothing."""

    def settings(self) -> str:
        """What differs from the system's defaults, for people."""

    def profile(self, node: str) -> dict[str, Any]:
        """Of a node that has ended: where its start spends its time; empty for what cannot be looked into."""


# -- asking until there is an answer


async def answered(
    connect: Callable[[], Awaitable[C]], ask: Callable[[C], Awaitable[bool]], *, refused: tuple[type[Exception], ...]
) -> float:
    """When the first of the questions that begin every ``PROBE_S`` was answered with True, by ``perf_counter``.

    A question that hangs does not keep the next ones from being asked. ``refused``: errors that mean "not yet".
    Raises TimeoutError after ``GIVE_UP_S``.
    """
    async with asyncio.timeout(GIVE_UP_S):
        while True:
            try:
                connection = await connect()
            except refused:
                await asyncio.sleep(PROBE_S)
                continue
            try:
                found = await _first(connection, ask, refused)
            finally:
                close = getattr(connection, "close", None)
                if close is not None:
                    close()
            if found is not None:
                return found


async def _first(
    connection: C, ask: Callable[[C], Awaitable[bool]], refused: tuple[type[Exception], ...]
) -> float | None:
    """None: the connection is of no use any more."""

    async def one() -> float | None:
        try:
            return time.perf_counter() if await ask(connection) else None
        except refused:
            return None

    open_: set[asyncio.Task[float | None]] = set()
    try:
        while not getattr(connection, "closed", False):
            if len(open_) < IN_FLIGHT_MAX:
                open_.add(asyncio.create_task(one()))
            until = time.perf_counter() + PROBE_S
            done, open_ = await asyncio.wait(open_, timeout=PROBE_S, return_when=asyncio.FIRST_COMPLETED)
            times = [at for task in done if (at := task.result()) is not None]
            if times:
                return min(times)
            await asyncio.sleep(max(0.0, until - time.perf_counter()))
        return None
    finally:
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)


# -- logboom


def lines_after(path: Path, since: float) -> dict[str, float]:
    """The first of each kind of log line (JSON) that was written after ``since``: seconds since then, in order."""
    found: dict[str, float] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
            at = datetime.fromisoformat(row["timestamp"]).timestamp() - since
            event = " ".join(str(row[key]) for key in ("event", "peer") if key in row)
        except (ValueError, KeyError, TypeError):
            continue  # not one of the node's own lines
        if at >= 0:
            found.setdefault(event, round(at, 4))
    return found


class Logboom:
    """Eight partitions, the first ``kv`` of them ``kv``, the others ``log``.

    If all are ``log``, there is a ninth, ``kv`` and empty, for the reads.
    """

    def __init__(self, directory: Path, *, kv: int) -> None:
        self.name = "logboom" if kv else "logboom, all log"
        self._kv, self._log = range(kv), range(kv, PARTITIONS)
        others = {str(p): {"state_machine": "log"} for p in self._log}
        self._probe = 0 if kv else PARTITIONS
        self._written = 0
        self.cluster = LocalCluster(
            nodes=3,
            partitions=PARTITIONS if kv else PARTITIONS + 1,
            directory=directory,
            settings={"cluster.overrides": others, "node.log_level": "info"},
        )
        self.nodes = self.cluster.nodes

    def version(self) -> str:
        from importlib.metadata import version

        return version("logboom")

    def begin(self) -> None:
        self.cluster.start()

    def close(self) -> None:
        self.cluster.stop()

    def leader(self) -> str:
        return self.cluster.leader()

    def data(self, node: str) -> Path:
        return self.cluster.data_dirs[node]

    def end(self, nodes: Sequence[str], number: signal.Signals) -> None:
        for node in nodes:
            os.kill(self.cluster.pid(node), number)
        for node in nodes:
            self.cluster.wait_ended(node)

    def start(self, node: str) -> None:
        self.cluster.start_node(node)

    async def write(self, wanted: Fill) -> None:
        endpoints = tuple(self.cluster.addresses.values())
        self._written = await fill.logboom(endpoints, wanted, kv=self._kv, log=self._log)

    async def served(self, node: str) -> dict[str, float]:
        """A follower answers no linearizable reads: it has to know the leader, and to show all that was written."""
        address, refused = self.cluster.addresses[node], (LogboomError, OSError)
        header = {
            "partition": self._probe,
            "keys": [KEY],
            "timeout_ms": int(GIVE_UP_S * 1000),
            "read": "linearizable",
            "at_least": 0,
        }

        async def connect() -> NodeConnection:
            return await NodeConnection.open(address, tls=None, timeout=GIVE_UP_S, token=None)

        async def read(connection: NodeConnection) -> bool:
            try:
                await connection.request(Kind.GET, header)
            except NotLeader as error:
                if error.fields.get("leader") is None:
                    return False
                await connection.request(Kind.GET, {**header, "read": "at_least", "at_least": self._written})
            return True

        async def recovered(connection: NodeConnection) -> bool:
            frame = await connection.request(Kind.STATUS, {"digests": False})
            return bool(frame.header["recovered"])

        found = await asyncio.gather(*(answered(connect, ask, refused=refused) for ask in (read, recovered)))
        return {"read": found[0], "recovered": found[1]}

    def said(self, node: str, since: float) -> dict[str, float]:
        return lines_after(self.cluster.log(node), since)

    def settings(self) -> str:
        return f"{len(self._kv)} kv and {len(self._log)} log partitions; defaults, log level info"

    def profile(self, node: str) -> dict[str, Any]:
        return start_profile.taken(self.cluster.config(node))

    async def whole(self) -> None:
        async with asyncio.timeout(GIVE_UP_S):
            while True:
                links = await asyncio.gather(*map(self._links, self.nodes))
                if all(links):
                    return
                await asyncio.sleep(0.1)

    async def _links(self, node: str) -> bool:
        """The node is recovered and sees all others."""
        try:
            connection = await NodeConnection.open(self.cluster.addresses[node], tls=None, timeout=1.0, token=None)
        except (LogboomError, OSError):
            return False
        try:
            header: dict[str, Any] = (await connection.request(Kind.STATUS, {"digests": False})).header
        except LogboomError:
            return False
        finally:
            connection.close()
        return bool(header["recovered"]) and all(connected for *_, connected in header["members"])


# -- etcd


class RoomyEtcd(EtcdCluster):
    """With room for the payload."""

    settings = f"--quota-backend-bytes {QUOTA_BYTES}, defaults otherwise"

    def command(self, node: str) -> list[str]:
        return [*super().command(node), "--quota-backend-bytes", str(QUOTA_BYTES)]


class Etcd:
    """The same payload in transactions of 128 puts."""

    name = "etcd"

    def __init__(self, directory: Path) -> None:
        """Raises Missing."""
        self.cluster = RoomyEtcd(programs.find("etcd", "etcd"), directory)
        self.nodes = self.cluster.nodes

    def version(self) -> str:
        return self.cluster.version()

    def begin(self) -> None:
        self.cluster.__enter__()

    def close(self) -> None:
        self.cluster.stop()

    def leader(self) -> str:
        return self.cluster.leader()

    def data(self, node: str) -> Path:
        return self.cluster.place(node) / "data"

    def end(self, nodes: Sequence[str], number: signal.Signals) -> None:
        for node in nodes:
            os.kill(self.cluster.pid(node), number)
        for node in nodes:
            self.cluster.wait_ended(node)

    def start(self, node: str) -> None:
        self.cluster.start_node(node)

    async def write(self, wanted: Fill) -> None:
        leader = await asyncio.to_thread(self.cluster.leader)
        await fill.etcd(self.cluster.addresses[leader], wanted)

    async def served(self, node: str) -> dict[str, float]:
        async def connect() -> Method:
            return await Method.open(self.cluster.addresses[node], RANGE)

        async def read(method: Method) -> bool:
            await method.call(get(KEY))
            return True

        return {"read": await answered(connect, read, refused=(CallFailed, OSError))}

    def said(self, node: str, since: float) -> dict[str, float]:
        return {}

    def settings(self) -> str:
        return self.cluster.settings

    def profile(self, node: str) -> dict[str, Any]:
        return {}

    async def whole(self) -> None:
        for node in self.nodes:
            await self.served(node)
