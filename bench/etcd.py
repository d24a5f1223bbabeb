"""Three etcd processes on loopback, and the few messages of its API that the benchmark needs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Self

from bench.http2 import CallFailed, Method
from logboom.testing import free_ports

PUT: Final = "/etcdserverpb.KV/Put"
TXN: Final = "/etcdserverpb.KV/Txn"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
TXN_OPS_MAX: Final = 128
"""etcd's default of ``--max-txn-ops``."""
START_S: Final = 30.0


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, raw: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(raw)) + raw


def put(key: bytes, value: bytes) -> bytes:
    """A PutRequest."""
    return _field(1, key) + _field(2, value)


def txn(rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A TxnRequest that puts every row."""
    return b"".join(_field(2, _field(2, put(key, value))) for key, value in rows)


def fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields: varints and length-delimited ones."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = raw[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(raw):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            yield tag >> 3, raw[at : at + size]
            at += size
        else:
            raise ValueError(f"a field of wire type {tag & 7}")


def leads(status: bytes) -> bool:
    """A StatusResponse says that its sender leads."""
    top = dict(fields(status))
    header, leader = top.get(1), top.get(4, 0)
    return bool(leader) and isinstance(header, bytes) and dict(fields(header)).get(2) == leader


def find() -> str:
    """Path of the etcd binary. Raises FileNotFoundError that says how to get it."""
    root = Path(__file__).resolve().parent.parent
    found = shutil.which("etcd") or shutil.which("etcd", path=str(root / ".venv/etcd/usr/bin"))
    if found is None and (root / "scripts/etcd").exists():
        ran = subprocess.run([root / "scripts/etcd"], check=False, stdout=subprocess.PIPE, text=True)
        found = shutil.which("etcd", path=ran.stdout.strip()) if ran.returncode == 0 else None
    if found is None:
        raise FileNotFoundError("etcd: not found; on Debian: apt-get install etcd-server")
    return found


def version(binary: str) -> str:
    """As it says itself."""
    ran = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
    return ran.stdout.splitlines()[0].removeprefix("etcd Version: ")


class EtcdCluster:
    """The same shape as ``logboom.testing.LocalCluster``; etcd's own defaults throughout."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary = binary
        self.directory = directory
        self.nodes = ["n1", "n2", "n3"]
        ports = free_ports(6)
        self.addresses = {n: f"127.0.0.1:{ports[2 * k]}" for k, n in enumerate(self.nodes)}
        self._peers = {n: f"http://127.0.0.1:{ports[2 * k + 1]}" for k, n in enumerate(self.nodes)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self.start_node(node)
            self.leader()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_node(self, node: str) -> None:
        """One node; does not wait."""
        directory = self.directory / node
        directory.mkdir(parents=True, exist_ok=True)
        client = f"http://{self.addresses[node]}"
        command = [self._binary, "--name", node, "--data-dir", str(directory / "data")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", self._peers[node], "--initial-advertise-peer-urls", self._peers[node]]
        command += ["--initial-cluster", ",".join(f"{n}={url}" for n, url in self._peers.items())]
        command += ["--initial-cluster-state", "new", "--logger", "zap", "--log-level", "error"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD")}
        with (directory / "etcd.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def pid(self, node: str) -> int:
        """Of a started node."""
        return self._processes[node].pid

    def kill(self, node: str) -> None:
        """SIGKILL, and wait until it is gone."""
        self._processes[node].kill()
        self._processes[node].wait()

    def leader(self) -> str:
        """The node that leads. Raises TimeoutError with the end of a log."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = asyncio.run(self._ask_leader())
            if found is not None:
                return found
            time.sleep(0.05)
        log = (self.directory / self.nodes[0] / "etcd.log").read_text(errors="replace")
        raise TimeoutError(f"etcd has no leader; the end of a log:\n{log[-1500:]}")

    async def _ask_leader(self) -> str | None:
        for node, process in self._processes.items():
            if process.poll() is not None:
                continue
            try:
                method = await Method.open(self.addresses[node], STATUS)
            except OSError:
                continue  # still starting
            try:
                if leads(await asyncio.wait_for(method.call(b""), 1.0)):
                    return node
            except (CallFailed, TimeoutError):
                continue
            finally:
                method.close()
        return None

    def wait_serving(self) -> None:
        """Until there is a leader."""
        self.leader()

    def stop(self) -> None:
        """End what was started."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
