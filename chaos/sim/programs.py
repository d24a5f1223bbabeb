"""Programs that run beside the clients of a simulation: each is a process of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.loop import Process, SimLoop
from chaos.sim.network import SimNetwork
from logboom import Client

ASKED_S: Final = 4.0


class Programs:
    """Of one run, by name."""

    def __init__(self, hosts: Sequence[Host], *, loop: SimLoop, network: SimNetwork, rng: random.Random) -> None:
        self._hosts = hosts
        self._loop = loop
        self._network = network
        self._rng = rng
        self._processes: dict[str, Process] = {}

    def spawn(self, name: str, work: Callable[[], Any]) -> Process:
        process = self._processes[name] = self._loop.process(name)
        self._loop.run_as(process, work)
        return process

    def end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            self._loop.kill(process)
            self._network.process_ended(process, silently=False)

    def end_all(self) -> None:
        for name in list(self._processes):
            self.end(name)

    def new_client(self) -> Client:
        addresses = [host.member.client_address for host in self._hosts]
        return Client(addresses, rng=random.Random(self._rng.getrandbits(64)), timeout=ASKED_S)
