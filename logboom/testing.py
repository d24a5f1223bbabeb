"""A cluster of real node processes on this machine's loopback: for trying things out, and for tests.

::

    with LocalCluster(nodes=3, partitions=8) as cluster:
        SyncClient(cluster.endpoints).submit(0, Put(b"k", b"v"))
        cluster.kill(cluster.leader())
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from logboom import certs
from logboom.config import load, to_toml
from logboom.errors import ConfigError, InvalidRequest, LogboomError, Unavailable
from logboom.local_ports import Places
from logboom.local_ports import free_ports as free_ports  # noqa: PLC0414 - it was here before
from logboom.sync_client import SyncClient

START_S = 30.0
GROWN = "grown.json"


def _leash(pid: int, stdin: int) -> None:
    """Have the kernel kill a process when the other end of its stdin, a pipe, is closed: as this process ends.

    It need not know of that: it may run the code of another release, or be frozen. Only Linux can do so.
    """
    if sys.platform == "linux":
        fcntl.fcntl(stdin, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(stdin, fcntl.F_SETOWN, pid)
        fcntl.fcntl(stdin, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC)


class _Grown(msgspec.Struct):
    """What has become of a cluster since it began. Kept in its directory, for whoever starts it again."""

    added: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Every node that ever was, and its ports, for clients and for other nodes."""
    forgotten: list[str] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, directory: Path) -> Self:
        """What is kept there. Raises ConfigError."""
        path = directory / GROWN
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: {error}", path="directory") from error

    def keep(self, directory: Path) -> None:
        """In its place, or not at all."""
        whole = directory / f"{GROWN}.part"
        whole.write_bytes(msgspec.json.encode(self))
        whole.replace(directory / GROWN)


class LocalCluster:
    """Starts on entering (or ``start``), ends every process it started on leaving (or ``stop``).

    However this process ends, its nodes are killed with it; a temporary directory is then left behind.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        partitions: int = 8,
        state_machine: str = "kv",
        directory: str | Path | None = None,
        tls: bool = False,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        data_dirs: Mapping[str, str | Path] | None = None,
        http: bool = False,
    ) -> None:
        """``settings``: dotted paths over the defaults; ``directory``: a temporary one if not given.

        Raises ConfigError for a directory that holds a cluster of another size.
        ``http``: with a port for operators on every node, ``http_addresses``; others each time.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="logboom-") if directory is None else None
        self.directory = Path(self._temporary.name if self._temporary else str(directory)).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.nodes = [f"n{k + 1}" for k in range(nodes)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        """Nodes that a signal may have ended: nobody has to wonder why they did."""
        self._removed = False
        self._leashes: dict[str, int] = {}
        """Our ends of their stdins."""
        self._environment = dict(environment or {})
        self.sources: dict[str, Path] = {}
        """Nodes that run the code of another checkout, and where that is."""
        self._places = Places()
        ports = self._ports(nodes)
        self.addresses = {n: f"127.0.0.1:{ports[2 * k]}" for k, n in enumerate(self.nodes)}
        self.peer_addresses = {n: f"127.0.0.1:{ports[2 * k + 1]}" for k, n in enumerate(self.nodes)}
        self.http_addresses = dict(zip(self.nodes, self._http_addresses(nodes), strict=True)) if http else {}
        self.tls_directory = self.directory / "tls" if tls else None
        if self.tls_directory is not None and not (self.tls_directory / "ca.pem").exists():
            certs.make_test_authority(self.tls_directory, self.nodes, keep_key=True)
        self.data_dirs = {n: Path((data_dirs or {}).get(n, self.directory / n / "data")) for n in self.nodes}
        self._flags = {"cluster.partitions": partitions, "cluster.state_machine": state_machine, **(settings or {})}
        for node in self.nodes:
            self._write_config(node, self._flags)
        if not self._ports_file.exists():  # last: it says that a cluster has begun here
            begun = self._ports_file.with_suffix(".new")
            begun.write_text(" ".join(map(str, ports)))
            begun.replace(self._ports_file)
        self._began, self._http = tuple(self.nodes), http
        self._grown = _Grown.of(self.directory)
        for node, (client, peer) in self._grown.added.items():
            if node not in self._grown.forgotten:
                self._added(node, client, peer)
        for node in set(self._grown.forgotten) & set(self._began):
            self.nodes.remove(node)

    def add_node(self) -> str:
        """One more, started; it waits until the cluster takes it in (``add_member``). Returns its id.

        With TLS, raises ConfigError in a directory of a release that kept no key for that.
        """
        self._check_there()
        node, (client, peer) = f"n{len(self._began) + len(self._grown.added) + 1}", self._places.take(2)
        if self.tls_directory is not None:
            certs.issue_to_node(self.tls_directory, node)
        self._grown.added[node] = (client, peer)
        self._grown.keep(self.directory)
        self._added(node, client, peer)
        self.start_node(node)
        return node

    def _added(self, node: str, client: int, peer: int) -> None:
        self.nodes.append(node)
        self.addresses[node], self.peer_addresses[node] = f"127.0.0.1:{client}", f"127.0.0.1:{peer}"
        self.data_dirs[node] = self.directory / node / "data"
        if self._http:
            self.http_addresses[node] = self._http_addresses(1)[0]
        self._write_config(node, {**self._flags, "node.join": True})

    def take_in(self, node: str, client: SyncClient, *, learner: bool = False) -> dict[str, Any]:
        """Have the cluster take in an added node; what ``add_member`` returns."""
        peer_address, client_address = self.peer_addresses[node], self.addresses[node]
        return client.add_member(node, peer_address=peer_address, client_address=client_address, learner=learner)

    def forget(self, node: str) -> None:
        """It is no member any more: its process is killed, and it is not waited for."""
        if self.alive(node):
            self.kill(node)
        self.nodes.remove(node)
        self._processes.pop(node, None)
        self._unleash(node)
        self._grown.forgotten.append(node)
        self._grown.keep(self.directory)

    def _ports(self, nodes: int) -> list[int]:
        # A directory that is used again keeps its addresses: they are part of what the nodes agree on.
        if self._ports_file.exists():
            kept = [int(p) for p in self._ports_file.read_text().split()]
            if len(kept) != 2 * nodes:
                raise ConfigError(
                    f"{self.directory} holds a cluster that began with {len(kept) // 2} nodes, not {nodes}: "
                    "start it with as many, or choose another directory",
                    path="directory",
                )
            self._places.keep(kept)
            return kept
        return self._places.take(2 * nodes)

    @property
    def _ports_file(self) -> Path:
        return self.directory / "ports"

    def _http_addresses(self, nodes: int) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._places.take(nodes)]

    def _write_config(self, node: str, flags: Mapping[str, Any]) -> None:
        members = ",".join(f"{n}={self.peer_addresses[n]}@{self.addresses[n]}" for n in self.nodes)
        settings = load(
            environment={},
            flags={
                "cluster.members": members,
                "node.id": node,
                "node.data_dir": str(self.data_dirs[node]),
                "node.log_format": "json",
                "node.http_address": self.http_addresses.get(node),
                "tls.directory": str(self.tls_directory) if self.tls_directory else None,
                **flags,
            },
        )
        (self.directory / node).mkdir(parents=True, exist_ok=True)
        self.config(node).write_text(to_toml(settings))

    def config(self, node: str) -> Path:
        """The node's configuration file."""
        return self.directory / node / "node.toml"

    def log(self, node: str) -> Path:
        """What the node has logged."""
        return self.directory / node / "node.log"

    def url(self, node: str, path: str = "/") -> str:
        """Of a node's port for operators."""
        scheme = "http" if self.tls_directory is None else "https"
        return f"{scheme}://{self.http_addresses[node]}{path}"

    @property
    def endpoints(self) -> str:
        """For clients."""
        return ",".join(self.addresses.values())

    def client(self, **kwargs: Any) -> SyncClient:
        """A blocking client of this cluster."""
        return SyncClient(self.endpoints, tls=self.client_tls(), **kwargs)

    def client_tls(self) -> Any:
        """The client's TLS context, or None."""
        return certs.client_context(self.tls_directory) if self.tls_directory is not None else None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- processes

    def start(self) -> None:
        """All nodes; returns once a leader serves. Raises Unavailable with the end of a log otherwise."""
        for node in self.nodes:
            if not self.alive(node):
                self.start_node(node)
        self.wait_serving()

    def start_node(self, node: str) -> None:
        """One node; does not wait. Raises InvalidRequest if its data are gone with a temporary directory."""
        self._check_there()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOGBOOM_")}
        root = str(self.sources.get(node, Path(__file__).resolve().parent.parent))
        paths = [root, *filter(None, [environment.get("PYTHONPATH")]), str(Path.cwd())]
        environment.update(self._environment, PYTHONPATH=os.pathsep.join(paths))
        self._told.discard(node)
        self._unleash(node)
        stdin, self._leashes[node] = os.pipe()
        try:
            with self.log(node).open("ab") as output:
                process = self._processes[node] = subprocess.Popen(  # noqa: S603 - our own command, no shell
                    # -P: else what lies in the working directory, a checkout perhaps, comes before all paths.
                    [sys.executable, "-P", "-m", "logboom", "node", "--config", str(self.config(node))],
                    stdin=stdin,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            _leash(process.pid, stdin)
        finally:
            os.close(stdin)

    def _check_there(self) -> None:
        if self._removed:
            raise InvalidRequest(
                "stop() has removed the temporary directory of this cluster: make another one, or give `directory`"
            )

    def _unleash(self, node: str) -> None:
        leash = self._leashes.pop(node, None)
        if leash is not None:
            os.close(leash)

    def wait_serving(self, timeout: float = START_S) -> None:
        """Until every running node has recovered, but for those that wait to be taken in, and one of them admits."""
        deadline = time.monotonic() + timeout
        with self.client(timeout=2.0) as client:
            while True:
                running = [n for n in self.nodes if self.alive(n)]
                try:
                    states = [client.status(node=self.addresses[n]) for n in running]
                    ready = all(s["recovered"] or s["role"] == "waiting" for s in states)
                    if ready and any(s["admits"] for s in states):
                        return
                except LogboomError:
                    states = []
                ended = {n for n, p in self._processes.items() if p.poll() not in (None, -signal.SIGKILL)}
                dead = sorted(ended - self._told)
                if dead or time.monotonic() > deadline:
                    node = dead[0] if dead else (running or self.nodes)[0]
                    raise Unavailable(f"{node} did not start; the end of its log:\n{self._log_end(node)}")
                time.sleep(0.05)

    def _log_end(self, node: str) -> str:
        return self.log(node).read_text(errors="replace")[-1500:] if self.log(node).exists() else ""

    def alive(self, node: str) -> bool:
        """The process runs."""
        process = self._processes.get(node)
        return process is not None and process.poll() is None

    def wait_ended(self, node: str, timeout: float = START_S) -> int:
        """Exit status of a node that ends by itself. Raises Unavailable if it does not in time."""
        try:
            return self._processes[node].wait(timeout)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{node} still runs") from None

    def pid(self, node: str) -> int:
        """Of a started node."""
        return self._processes[node].pid

    def kill(self, node: str, number: int = signal.SIGKILL) -> None:
        """Send a signal; with SIGKILL, wait until the process is gone."""
        process = self._processes[node]
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            self._told.add(node)
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def restart(self, node: str) -> None:
        """Start a node that has ended."""
        if self.alive(node):
            self.kill(node)
        self.start_node(node)

    def leader(self, timeout: float = START_S) -> str:
        """Id of the node that admits now. Raises Unavailable if none does in time."""
        deadline = time.monotonic() + timeout
        with self.client(timeout=1.0) as client:
            while time.monotonic() < deadline:
                for node in self.nodes:
                    if self.alive(node):
                        try:
                            if client.status(node=self.addresses[node], timeout=0.5)["admits"]:
                                return node
                        except LogboomError:
                            continue
                time.sleep(0.02)
        raise Unavailable("no node leads")

    def stop(self) -> None:
        """End all processes, politely first; remove the temporary directory."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + 10
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for node in list(self._leashes):
            self._unleash(node)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._removed = True
