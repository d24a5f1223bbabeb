"""PostgreSQL: a primary with two standbys, commits synced on a majority of the three; asyncpg as its client."""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import shutil
import signal
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.systems import programs
from bench.systems.api import Missing, System
from bench.systems.processes import Processes
from bench.targets import SINGLES, Job, Operation, prepared, rows

CONNECTIONS_MAX: Final = 300
TABLES: Final = (
    "CREATE TABLE bulk (value bytea NOT NULL)",
    "CREATE TABLE single (key bytea NOT NULL, value bytea NOT NULL)",
)
COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
COPY_END: Final = struct.pack(">h", -1)


def copy_data(values: Sequence[bytes]) -> bytes:
    """COPY's binary format: a row with one ``bytea`` for each value."""
    return COPY_HEAD + b"".join(struct.pack(">hi", 1, len(value)) + value for value in values) + COPY_END


def user() -> str | None:
    """Whom the servers run as; None: whoever runs this. PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


def find() -> Path:
    """The ``postgres`` program. Raises Missing, also for want of the client or of somebody to run it."""
    if find_spec("asyncpg") is None:
        raise Missing("postgres: its client is not installed; on it: pip install -r requirements/bench.txt")
    if os.geteuid() == 0 and (user() is None or shutil.which("setpriv") is None):
        raise Missing("postgres: it refuses to run as root, and there is no user nobody or no setpriv")
    return programs.find("postgres", "postgres")


class PostgresCluster(Processes):
    """``n1`` is the primary for good: nothing of PostgreSQL's own chooses another."""

    settings: str = (
        "synchronous_standby_names 'ANY 1 (n2, n3)', synchronous_commit on, fsync on; shared_buffers 512 MB, "
        "max_wal_size 16 GB, checkpoint_timeout 30 min; tables without an index; "
        "bulk: binary COPY of 10,000 rows in one transaction"
    )
    # Fast shutdown: not waiting for clients.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(self, program: Path, directory: Path, *, alone: bool = False) -> None:
        super().__init__(program, directory, alone=alone)
        self._as: list[str] = []
        name = user()
        if name is not None:
            entry = pwd.getpwnam(name)
            shutil.chown(directory, entry.pw_uid, entry.pw_gid)
            self._as = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
            if subprocess.run([*self._as, "test", "-w", directory], check=False).returncode != 0:
                raise Missing(f"postgres: the user {name} cannot get at {directory}; choose another --directory")

    def prepare(self) -> None:
        """A primary, and copies of it for the standbys."""
        data = self._data("n1")
        # What initdb writes need not be safe; every commit that counts is synced.
        self._run("initdb", "-D", str(data), "-U", "bench", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        super().start_node("n1")
        self.until(lambda: asyncio.run(self._serves()), "the primary does not start")
        for node in self.nodes[1:]:
            source = f"host=127.0.0.1 port={self.port('n1')} user=bench application_name={node}"
            self._run(
                "pg_basebackup", "-D", str(self._data(node)), "-R", "-X", "stream", "-c", "fast", "-N", "-d", source
            )

    def start_node(self, node: str) -> None:
        """One node; does not wait."""
        if not self.alive(node):
            super().start_node(node)

    def command(self, node: str) -> list[str]:
        settings = {
            "port": self.port(node),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": str(CONNECTIONS_MAX),
            "shared_buffers": "512MB",
            "max_wal_size": "16GB",
            "checkpoint_timeout": "30min",
            "synchronous_commit": "on",
            "synchronous_standby_names": "ANY 1 (n2, n3)" if node == "n1" and len(self.nodes) > 1 else "",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*self._as, str(self.program), "-D", str(self._data(node)), *flags]

    def find_leader(self) -> str | None:
        """The primary, once both standbys stream."""
        return asyncio.run(self._streaming())

    def finish(self) -> None:
        """The tables."""
        asyncio.run(self._make_tables())

    def version(self) -> str:
        return programs.output(self.program, "--version").removeprefix("postgres (PostgreSQL) ")

    async def _serves(self) -> bool | None:
        connection = await self._try()
        if connection is None:
            return None
        await connection.close()
        return True

    async def _streaming(self) -> str | None:
        connection = await self._try()
        if connection is None:
            return None
        try:
            states = await connection.fetch("SELECT state FROM pg_stat_replication WHERE state = 'streaming'")
            return "n1" if len(states) == len(self.nodes) - 1 else None
        finally:
            await connection.close()

    async def _try(self) -> Any:
        """A connection to the primary, or None while it still starts."""
        try:
            return await connect(self.addresses["n1"])
        except (OSError, TimeoutError, _postgres_error()):
            return None

    async def _make_tables(self) -> None:
        connection = await connect(self.addresses["n1"])
        for table in TABLES:
            await connection.execute(table)
        await connection.close()

    def _data(self, node: str) -> Path:
        return self.place(node) / "data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self.program.parent / program), *arguments]
        environment = programs.environment(self.program)
        ran = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=self.directory)
        if ran.returncode != 0:
            raise Missing(f"postgres: {program} failed: {ran.stderr.strip()[-1000:]}")


def _postgres_error() -> type[Exception]:
    import asyncpg

    error: type[Exception] = asyncpg.PostgresError
    return error


async def connect(address: str) -> Any:
    """An asyncpg connection."""
    import asyncpg

    host, _, port = address.rpartition(":")
    return await asyncpg.connect(host=host, port=int(port), user="bench", database="postgres", ssl=False)


class _Line:
    """A connection that does one thing at a time; who comes while it is busy waits in line."""

    def __init__(self, connection: Any, insert: Any) -> None:
        self.connection = connection
        self.insert = insert
        self.free = asyncio.Lock()


class Target:
    """Prepared inserts of one row, each a transaction; binary COPY."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = random.Random(job.seed)
        self._lines: list[_Line] = []
        self._rows = rows(self._rng, SINGLES, job.value_bytes)
        self._blocks: list[bytes] = []

    async def open(self, connections: int) -> None:
        for _ in range(connections):
            connection = await connect(self._job.endpoints[0])
            insert = await connection.prepare("INSERT INTO single VALUES ($1, $2)")
            self._lines.append(_Line(connection, insert))

    def single(self, slot: int) -> Operation:
        line, choose = self._lines[slot % len(self._lines)], self._rng.random

        async def one() -> None:
            key, value = self._rows[int(choose() * len(self._rows))]
            async with line.free:
                await line.insert.fetch(key, value)

        return one

    def bulk(self, slot: int, records: int) -> Operation:
        if not self._blocks:
            size = self._job.value_bytes
            made = (rows(self._rng, records, size) for _ in range(prepared(records * size)))
            self._blocks = [copy_data([value for _, value in block]) for block in made]
        line, blocks, turn = self._lines[slot % len(self._lines)], self._blocks, slot

        async def source() -> AsyncIterator[bytes]:
            yield blocks[turn % len(blocks)]

        async def block() -> None:
            nonlocal turn
            turn += 1
            async with line.free:
                await line.connection.copy_to_table("bulk", source=source(), format="binary")

        return block

    async def drain(self) -> None:
        """The primary acknowledges what it has applied."""

    async def close(self) -> None:
        for line in self._lines:
            await line.connection.close()


SYSTEM: Final = System("postgres", find, PostgresCluster, Target, alone=partial(PostgresCluster, alone=True))
