"""Server processes of a peer's cluster: started, killed, ended, with a log each."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Self, TypeVar

from bench.systems import programs
from logboom.testing import free_ports

START_S: Final = 30.0
STOP_S: Final = 10.0

T = TypeVar("T")


class Processes:
    """Three nodes on loopback, or one alone: what ``bench.systems.Cluster`` asks for and is the same for every peer.

    A peer says how its nodes are started (``command``), who leads (``find_leader``) and, where it matters,
    what has to exist before (``prepare``).
    """

    settings: str = ""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, program: Path, directory: Path, *, alone: bool = False) -> None:
        self.program = program
        self.directory = directory
        self.nodes = ["n1"] if alone else ["n1", "n2", "n3"]
        ports = free_ports(2 * len(self.nodes))
        self.addresses = {n: f"127.0.0.1:{ports[2 * k]}" for k, n in enumerate(self.nodes)}
        self.peer_addresses = {n: f"127.0.0.1:{ports[2 * k + 1]}" for k, n in enumerate(self.nodes)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # -- what a peer says

    def command(self, node: str) -> list[str]:
        """The node's command line."""
        raise NotImplementedError

    def find_leader(self) -> str | None:
        """The node that takes writes now, or None."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Once, before the first start."""

    def finish(self) -> None:
        """Once, when all nodes run and one leads."""

    def version(self) -> str:
        """As the peer says itself."""
        raise NotImplementedError

    # -- the same for all

    def __enter__(self) -> Self:
        try:
            self.prepare()
            for node in self.nodes:
                self.start_node(node)
            self.wait_serving()
            self.finish()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_node(self, node: str) -> None:
        """One node; does not wait."""
        self.place(node).mkdir(parents=True, exist_ok=True)
        with self.log(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                self.command(node),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=programs.environment(self.program),
                cwd=self.place(node),
                start_new_session=True,
            )

    def place(self, node: str) -> Path:
        """The node's directory."""
        return self.directory / node

    def log(self, node: str) -> Path:
        """What the node has said."""
        return self.directory / node / "server.log"

    def port(self, node: str) -> str:
        """Clients' port."""
        return self.addresses[node].rpartition(":")[2]

    def pid(self, node: str) -> int:
        """Of a started node; its children belong to it."""
        return self._processes[node].pid

    def alive(self, node: str) -> bool:
        """The process runs."""
        process = self._processes.get(node)
        return process is not None and process.poll() is None

    def kill(self, node: str) -> None:
        """SIGKILL, and wait until it is gone."""
        self._processes[node].kill()
        self._processes[node].wait()

    def wait_ended(self, node: str) -> None:
        """Until a node that was told to end has ended. Raises subprocess.TimeoutExpired."""
        self._processes[node].wait(START_S)

    def leader(self) -> str:
        """The node that takes writes. Raises TimeoutError with the end of a log."""
        return self.until(self.find_leader, "no node leads")

    def client_addresses(self) -> tuple[str, ...]:
        """Where clients are sent: straight to the leader."""
        return (self.addresses[self.leader()],)

    def wait_serving(self) -> None:
        """Until there is a leader."""
        self.leader()

    def until(self, ask: Callable[[], T | None], story: str) -> T:
        """What ``ask`` answers once it is not None. Raises TimeoutError with the end of a log."""
        deadline, ended = time.monotonic() + START_S, list[str]()
        while time.monotonic() < deadline:
            found = ask()
            if found is not None:
                return found
            ended = [node for node in self._processes if not self.alive(node)]
            if len(ended) == len(self.nodes):
                break
            time.sleep(0.05)
        log = self.log((ended or self.nodes)[0])
        said = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        raise TimeoutError(f"{self.program.name}: {story}; the end of a log:\n{said}")

    def stop(self) -> None:
        """End what was started, politely first."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(self.stop_signal)
        deadline = time.monotonic() + STOP_S
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
