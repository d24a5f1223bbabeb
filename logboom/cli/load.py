"""What ``bench`` does to a cluster: so many requests under way at any time, each followed by the next."""

from __future__ import annotations

import asyncio
import math
import os
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from logboom.client import Client
from logboom.client.sender import Sender
from logboom.commands import Command, Put, to_record
from logboom.errors import DeadlineExceeded, LogboomError
from logboom.records import RecordBlock
from logboom.types import Receipt, Record

PREFIX: Final = b"logboom-bench/"
KEYS: Final = 10_000
"""Keys in each `kv` partition; they are written again and again."""
DRAIN_S: Final = 5.0
"""Whoever has no answer by then, after the end, gets none."""
AGAIN_S: Final = 0.05
"""After a failure that does not say when to come again."""
TELL_S: Final = 1.0
BLOCKS: Final = 8
"""Different blocks that are sent, however many requests are under way."""
STEP: Final = math.log(1.02)
BUCKETS: Final = 1_200
"""Up to six hours, in microseconds."""


class Latencies:
    """How long requests took: any number of them in a few kilobytes, to two in a hundred."""

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * BUCKETS))
        self.count = 0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[min(BUCKETS - 1, max(0, int(math.log(max(seconds, 1e-6) * 1e6) / STEP)))] += 1
        self.count += 1
        self.max_s = max(self.max_s, seconds)

    def at(self, share: float) -> float | None:
        """Seconds that so large a share of them took at most; None: there are none."""
        left = math.ceil(share * self.count)
        for bucket, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                return min(self.max_s, math.exp((bucket + 1) * STEP) / 1e6)
        return None


@dataclass(frozen=True, slots=True)
class Load:
    """The load that is asked for."""

    partitions: Mapping[int, str]
    """To their state machines, `kv` or `log`."""
    seconds: float
    size: int
    """Bytes of a value, or of a record's payload."""
    clients: int
    in_flight: int
    """Over all clients."""
    block: int
    """Commands of a request; 1: single ones, which travel together."""
    wait: str | None
    timeout: float


@dataclass(slots=True)
class Tally:
    """What has come of the load so far."""

    load: Load
    requests: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    """When it ended. They may take effect yet."""
    last_error: LogboomError | None = None
    began: float = 0.0
    until: float = 0.0
    """No request begins after that."""
    last_at: float = 0.0
    """When the last answer came."""
    seconds: float = 0.0
    """From the first request to the end, or to the last answer behind it."""
    latencies: Latencies = field(default_factory=Latencies)
    recent: Latencies = field(default_factory=Latencies)
    """Since somebody was told."""

    def begins(self, now: float) -> None:
        """The load begins: all that is counted comes behind this."""
        self.began = self.last_at = now
        self.until = now + self.load.seconds

    def ends(self, now: float) -> None:
        """The load has ended, perhaps before its time."""
        self.seconds = max(min(now, self.until), self.last_at) - self.began

    def answered(self, now: float, seconds: float) -> None:
        """A request was answered."""
        self.requests, self.last_at = self.requests + 1, now
        self.latencies.add(seconds)
        self.recent.add(seconds)

    def failed(self, error: LogboomError) -> None:
        """A request has failed."""
        self.errors[error.code] += 1
        self.last_error = error

    def row(self) -> dict[str, Any]:
        """What has come of the load, for output."""
        load, seconds = self.load, max(self.seconds, 1e-9)
        commands = self.requests * load.block
        return {
            "partitions": sorted(load.partitions),
            "size": load.size,
            "clients": load.clients,
            "in_flight": load.in_flight,
            "block": load.block,
            "wait": load.wait,
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
            "commands": commands,
            "commands_per_s": round(commands / seconds, 1),
            "mb_per_s": round(commands * load.size / seconds / 1e6, 3),
            "p50_ms": _ms(self.latencies.at(0.5)),
            "p99_ms": _ms(self.latencies.at(0.99)),
            "max_ms": _ms(self.latencies.max_s if self.requests else None),
            "errors": dict(self.errors),
            "unanswered": self.unanswered,
        }

    def story(self, now: float, since: float) -> str:
        """The last seconds in a line, for people; the next one begins anew."""
        recent, self.recent = self.recent, Latencies()
        commands = recent.count * self.load.block
        p99 = _ms(recent.at(0.99))
        failed = f", {self.errors.total()} failed so far" if self.errors else ""
        megabytes = commands * self.load.size / since / 1e6
        return (
            f"{now - self.began:4.0f} s: {commands / since:,.0f} commands/s, {megabytes:.2f} MB/s"
            f"{'' if p99 is None else f', p99 {p99} ms'}{failed}"
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


async def drive(clients: Sequence[Client], tally: Tally, say: Callable[[str], None] | None) -> None:
    """Load, as ``tally.load`` has it, and what comes of it into ``tally``. Closes the clients.

    ``say`` is told each second how it goes. Raises LogboomError for what no later request would get around.
    """
    load, slots = tally.load, list[asyncio.Task[None]]()
    try:
        for client in clients:  # connected, before it counts
            await client.partitions()
        requests = _Requests(clients, load)
        tally.begins(time.perf_counter())
        slots = [asyncio.create_task(_slot(k, requests, tally)) for k in range(load.in_flight)]
        await _watched(slots, tally, say)
    finally:
        tally.ends(time.perf_counter())
        for slot in slots:
            slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)  # what went wrong is raised, or is in the tally
        for client in clients:
            await client.close()


async def _watched(slots: Sequence[asyncio.Task[None]], tally: Tally, say: Callable[[str], None] | None) -> None:
    """Until all have ended, or one has failed, or the time is over."""
    told, give_up = time.perf_counter(), tally.until + DRAIN_S
    open_ = set(slots)
    while open_ and (now := time.perf_counter()) < give_up:
        patience = give_up - now if say is None else max(0.0, min(give_up, told + TELL_S) - now)
        done, open_ = await asyncio.wait(open_, timeout=patience, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
        now = time.perf_counter()
        if say is not None and now >= told + TELL_S:
            say(tally.story(now, now - told))
            told = now
    tally.unanswered = len(open_)


async def _slot(k: int, requests: _Requests, tally: Tally) -> None:
    """One request after the other, and one at least, to the partitions in turn."""
    number = k
    while number == k or time.perf_counter() < tally.until:
        began = time.perf_counter()
        try:
            await requests.send(number, k)
        except LogboomError as error:
            tally.failed(error)
            if not (error.retryable or isinstance(error, DeadlineExceeded)):
                raise
            left = max(0.0, tally.until - time.perf_counter())
            await asyncio.sleep(min(left, error.fields.get("retry_after") or AGAIN_S))
        else:
            now = time.perf_counter()
            tally.answered(now, now - began)
        number += tally.load.in_flight


class _Requests:
    """The requests of one load, and the clients that send them."""

    def __init__(self, clients: Sequence[Client], load: Load) -> None:
        self._clients, self._load = clients, load
        self._partitions = list(load.partitions)
        self._value = os.urandom(load.size)
        self._senders: dict[tuple[int, int], Sender] = {}
        self._blocks: dict[tuple[str, int], RecordBlock] = {}

    def send(self, number: int, slot: int) -> Awaitable[Receipt]:
        """Slots share the clients; numbers go round the partitions."""
        load, which = self._load, slot % len(self._clients)
        partition = self._partitions[number % len(self._partitions)]
        if load.block > 1:
            block = self._block(load.partitions[partition], slot % BLOCKS)
            return self._clients[which].submit_block(partition, block, wait=load.wait, timeout=load.timeout)
        sender = self._senders.get((which, partition))
        if sender is None:
            sender = self._clients[which].sender(partition, wait=load.wait, timeout=load.timeout)
            self._senders[which, partition] = sender
        return sender.send(self._command(load.partitions[partition], number))

    def _block(self, machine: str, which: int) -> RecordBlock:
        """Sent again and again: to make one takes longer than to send it."""
        found = self._blocks.get((machine, which))
        if found is None:
            numbers = range(which * self._load.block, (which + 1) * self._load.block)
            records = [to_record(self._command(machine, number)) for number in numbers]
            found = self._blocks[machine, which] = RecordBlock.from_records(records)
        return found

    def _command(self, machine: str, number: int) -> Command | Record:
        return Put(b"%b%05d" % (PREFIX, number % KEYS), self._value) if machine == "kv" else Record(self._value)
