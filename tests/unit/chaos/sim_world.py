"""Hosts, lines between them, and protocols that write down what they are told. No cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from chaos.sim.loop import EPOCH_S, Process, SimLoop
from chaos.sim.network import NetworkProfile, SimNetwork, SimTransport
from logboom.cli import main
from logboom.settings import NetSettings, Settings

Errors = list[tuple[Process | None, dict[str, Any]]]
"""What a loop's ``on_error`` was told."""

PATIENCE_S = 600.0
"""Simulated: whoever has not come to an end by then never will."""
CALM = NetworkProfile(delay_min_s=0.001, delay_max_s=0.001, split=0.0)
PORT = 7000


class End(asyncio.Protocol):
    """One end of a connection; ``told`` is what it heard, and when."""

    def __init__(self, loop: SimLoop, *, reads: bool = True) -> None:
        self._loop = loop
        self._reads = reads
        self.transport: Any = None
        self.data = bytearray()
        self.pieces = 0
        self.told: list[str] = []
        self.at: dict[str, float] = {}
        self.error: Exception | None = None
        self.owner: Process | None = None

    def _hear(self, what: str) -> None:
        self.told.append(what)
        self.at[what] = round(self._loop.now - EPOCH_S, 6)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.owner = self._loop.current
        if not self._reads:
            self.transport.pause_reading()
        self._hear("made")

    def data_received(self, data: bytes) -> None:
        self.pieces += 1
        self.data += data

    def eof_received(self) -> bool:
        self._hear("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._hear("lost")

    def pause_writing(self) -> None:
        self._hear("pause")

    def resume_writing(self) -> None:
        self._hear("resume")


class World:
    """A loop and a network; every host has one process, of its name."""

    def __init__(self, profile: NetworkProfile = CALM, *, seed: int = 0) -> None:
        self.loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
        self.network = SimNetwork(self.loop, random.Random(seed), profile)
        self.processes: dict[str, Process] = {}
        self.errors: Errors = []
        self.loop.on_error = lambda process, context: self.errors.append((process, context))
        self.accepted: list[End] = []

    @property
    def now(self) -> float:
        """Since the start."""
        return round(self.loop.now - EPOCH_S, 6)

    def host(self, name: str) -> Process:
        """Its process; a new one if there is none that lives."""
        process = self.processes.get(name)
        if process is None or not process.alive:
            process = self.processes[name] = self.loop.process(name)
        return process

    def play(self, story: Coroutine[Any, Any, Any]) -> Any:
        """Run the simulator's own ``story`` to its end; nothing may have gone wrong on the way."""

        async def patiently() -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await story

        try:
            return self.loop.run_until_complete(patiently())
        finally:
            for process in self.processes.values():
                self.loop.kill(process)
            assert self.errors == []

    async def on(self, name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do ``work`` as a process of this host, and wait for what comes of it."""
        answer: asyncio.Future[Any] = self.loop.create_future()

        async def run() -> None:
            try:
                result = await work()
            except Exception as error:  # noqa: BLE001 - handed over
                self.loop.run_as(None, answer.set_exception, error)  # or the story would go on as this process
            else:
                self.loop.run_as(None, answer.set_result, result)

        self.loop.spawn(self.host(name), run())
        return await answer

    async def listen(self, name: str, *, port: int = PORT, reads: bool = True) -> None:
        """What connects is in ``accepted``."""

        def accept() -> End:
            self.accepted.append(End(self.loop, reads=reads))
            return self.accepted[-1]

        await self.on(name, lambda: asyncio.get_running_loop().create_server(accept, name, port))

    async def dial(self, name: str, to: str, *, port: int = PORT) -> End:
        """From one host to another."""
        end = End(self.loop)
        await self.on(name, lambda: asyncio.get_running_loop().create_connection(lambda: end, to, port))
        return end

    async def pair(self, *, reads: bool = True) -> tuple[End, End]:
        """A connection from host ``a`` to host ``b``."""
        await self.listen("b", reads=reads)
        ours = await self.dial("a", "b")
        await asyncio.sleep(0.1)
        return ours, self.accepted[-1]

    def kill(self, name: str, *, power: bool = False) -> None:
        """As ``Host.kill`` does."""
        process = self.processes[name]
        self.loop.kill(process)
        self.network.process_ended(process, silently=power)


def transport_of(end: End) -> SimTransport:
    """The simulated one."""
    assert isinstance(end.transport, SimTransport)
    return end.transport


def chaos_sim(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """``logboom chaos sim``: exit status, standard output and error."""
    with pytest.raises(SystemExit) as stop:
        main(["chaos", "sim", *args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def real(settings: Settings) -> Settings:
    """Simulated frames are small, and so may buffers be: for less than one of a real node's."""
    usual = NetSettings()
    net = msgspec.structs.replace(
        settings.net,
        peer_send_buffer_bytes=usual.peer_send_buffer_bytes,
        client_send_buffer_bytes=usual.client_send_buffer_bytes,
    )
    return msgspec.structs.replace(settings, net=net)
