"""Asks the admission signals now and then, off the hot path, and has admission judge by what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import structlog

from dispatcher.admission.admission import Admission
from dispatcher.admission.budgets import Verdict
from logboom.errors import ConfigError, LogboomError
from logboom.settings import AdmissionSettings
from logboom.signals import GROUP, NodeView, Reading, Signal
from logboom.types import PartitionId
from logboom.wire import Kind, encode
from ports.offload import Offload
from ports.seldom import Seldom
from ports.telling import tellable

log = structlog.get_logger(__name__)

PARTITIONS_LOOKED_AT: Final = 1024
"""Partitions that signals are shown at a time, in turn: a look costs the same however many there are."""
MEMORY_FROM: Final = 0.75
MEMORY_IDLE: Final = 0.9
"""With nothing under way memory withholds no more than this: a little has to go on, or nothing ever would again.
Refusing frees nothing then: LMDB keeps its pages for the next time, the C library what was freed."""
MEMORY_TOO_MUCH: Final = 1.25
"""With so many times of what there may be everything is withheld, whatever is under way."""
LAG_FROM: Final = 0.5


def above(value: float, *, begin: float, end: float) -> float:
    """0 up to ``begin``, 1 from ``end`` on."""
    return min(1.0, max(0.0, (value - begin) / (end - begin)))


class DiskFree:
    """Little is left where the data is."""

    scope: Final = "node"
    looks_at_partitions: Final = False

    def __init__(self, free_bytes: Callable[[], int], least: int) -> None:
        self._free_bytes = free_bytes
        self._least = least
        self.seen: int | None = None
        """What was free when it was asked last."""

    def read(self, view: NodeView) -> Reading:
        self.seen = self._free_bytes()
        return above(-self.seen, begin=-2 * self._least, end=-self._least)


class Memory:
    """The process takes much."""

    scope: Final = "node"
    looks_at_partitions: Final = False

    def __init__(self, resident_bytes: Callable[[], int], most: int) -> None:
        self._resident_bytes = resident_bytes
        self._most = most

    def read(self, view: NodeView) -> Reading:
        used = self._resident_bytes()
        said = above(used, begin=MEMORY_FROM * self._most, end=self._most)
        idle = view.batches == 0 and used < MEMORY_TOO_MUCH * self._most
        return min(said, MEMORY_IDLE) if idle else said


class ApplyLag:
    """Much is committed here and not applied, whoever admitted it."""

    scope: Final = "partition"

    def __init__(self, records: int, global_index: int) -> None:
        self._records, self._global = records, global_index

    def read(self, view: NodeView) -> Mapping[int, Reading]:
        return {
            p: max(_lag(each.lag_records, self._records), _lag(each.lag_global, self._global))
            for p, each in view.partitions.items()
        }


def _lag(lag: int, most: int) -> float:
    return above(lag, begin=LAG_FROM * most, end=most) if most else 0.0


def make(
    settings: AdmissionSettings, *, free_bytes: Callable[[], int], resident_bytes: Callable[[], int]
) -> dict[str, Signal]:
    """Those of the settings that are not switched off, by name. Raises ConfigError."""
    lag = ApplyLag(settings.apply_lag_records_max, settings.apply_lag_global_max)
    built_in: dict[str, tuple[Any, Signal]] = {
        "disk_free": (settings.disk_free_bytes_min, DiskFree(free_bytes, settings.disk_free_bytes_min)),
        "apply_lag": (settings.apply_lag_records_max or settings.apply_lag_global_max, lag),
        "memory": (settings.memory_bytes_max, Memory(resident_bytes, settings.memory_bytes_max)),
    }
    found: dict[str, Signal] = {}
    for name in settings.signals:
        wanted, signal = built_in[name] if name in built_in else (True, _registered(name, list(built_in)))
        if wanted:
            found[name] = signal
    return found


def _registered(name: str, built_in: Sequence[str]) -> Signal:
    from importlib.metadata import entry_points  # a node without signals of its own starts sooner

    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in registered:
        known = ", ".join(sorted([*built_in, *registered]))
        raise ConfigError(f"admission signal {name!r} is not known; known are {known}", path="admission.signals")
    signal: Signal = registered[name].load()()
    if getattr(signal, "scope", None) not in ("node", "partition") or not callable(getattr(signal, "read", None)):
        raise ConfigError(
            f"admission signal {name!r} has no scope `node` or `partition`, or no read: see logboom.signals.Signal",
            path="admission.signals",
        )
    return signal


class Said(NamedTuple):
    """By all signals together: the worst of the node, and of each partition that was looked at."""

    node: Verdict | None
    partitions: dict[int, Verdict | None]
    failed: dict[str, str]
    """Signals that raised, and what."""


def ask(signals: Mapping[str, Signal], view: NodeView) -> Said:
    """Off the loop: signals may block."""
    node: Verdict | None = None
    partitions: dict[int, Verdict | None] = dict.fromkeys(view.partitions)
    failed: dict[str, str] = {}
    for name, signal in signals.items():
        of_node, closes = True, False  # what else it says of itself is a user's code, too
        try:
            closes = bool(getattr(signal, "fails_closed", False))
            of_node = bool(signal.scope == "node")
            read: Any = signal.read(view)
            verdicts: dict[int | None, Verdict | None] = (
                {None: _verdict(name, read)}
                if of_node
                else {p: _verdict(name, each) for p, each in read.items() if p in partitions}
            )
        except BaseException as error:  # noqa: BLE001 - a user's code: it is told of, and counted; others are asked
            failed[name] = tellable(error)
            closed = Verdict(name, 1.0) if closes else None
            verdicts = {None: closed} if of_node else dict.fromkeys(partitions, closed)
        for key, verdict in verdicts.items():
            if key is None:
                node = _worse(node, verdict)
            else:
                partitions[key] = _worse(partitions[key], verdict)
    return Said(node, partitions, failed)


def _verdict(name: str, read: Any) -> Verdict | None:
    if isinstance(read, LogboomError):
        header = read.to_wire()
        encode(Kind.ERROR, header)  # what it holds may be anything: clients have to be told
        return Verdict(name, 1.0, header)
    pressure = float(read)
    if not 0 <= pressure <= 1:  # nor NaN
        raise ValueError(f"a reading is a number from 0 to 1, not {pressure}")
    return Verdict(name, pressure) if pressure else None


def _worse(one: Verdict | None, other: Verdict | None) -> Verdict | None:
    if one is None or other is None:
        return one or other
    return other if other.pressure > one.pressure else one


class Signals:
    """Asks every ``admission.signal_ms``; nothing at all when there are no signals."""

    def __init__(
        self,
        signals: Mapping[str, Signal],
        settings: AdmissionSettings,
        *,
        admission: Admission,
        view: Callable[[Sequence[PartitionId]], NodeView],
        partitions: Callable[[], Sequence[PartitionId]],
        offload: Offload,
        eased: Callable[[], None],
        told: Callable[[Verdict | None], None] = lambda _: None,
    ) -> None:
        """``view`` of a node with these partitions; ``eased``: less is withheld than before.

        ``told`` what the node's signals say, each time.
        """
        self._signals = dict(signals)
        # A view of each of a thousand takes a few milliseconds of the loop, four times a second: not for nobody.
        self._looks_at_partitions = any(getattr(each, "looks_at_partitions", True) for each in signals.values())
        self._every_s = settings.signal_ms / 1000
        self._admission = admission
        self._view = view
        self._partitions = partitions
        self._offload = offload
        self._eased = eased
        self._told = told
        self._seldom = Seldom(lambda: asyncio.get_running_loop().time())
        self._next = PartitionId(0)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.failures: dict[str, int] = dict.fromkeys(signals, 0)
        """How often each has raised."""
        self.looks = 0

    @property
    def disk_free_bytes(self) -> int | None:
        """As `disk_free` saw it last; None where nobody looks."""
        signal = self._signals.get("disk_free")
        return signal.seen if isinstance(signal, DiskFree) else None

    def start(self) -> None:
        """Ask, and again when that is answered."""
        self._tick()

    def _tick(self) -> None:
        if self._signals and not self._closed:
            try:
                view = self._view(self._some())
            except BaseException:
                self._again()  # whatever goes wrong: what they said last does not stand for ever
                raise
            self._offload.submit(lambda: ask(self._signals, view), self._answered)

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._tick)

    def _some(self) -> Sequence[PartitionId]:
        """The next partitions, from where the last look ended; none if no signal looks at any."""
        if not self._looks_at_partitions:
            return ()
        everything = self._partitions()
        if len(everything) <= PARTITIONS_LOOKED_AT:
            return everything
        some = list(islice((p for p in everything if p >= self._next), PARTITIONS_LOOKED_AT))
        self._next = PartitionId(some[-1] + 1) if len(some) == PARTITIONS_LOOKED_AT else PartitionId(0)
        return some

    def _answered(self, said: Said | None, error: BaseException | None) -> None:
        if self._closed:
            return
        self._again()
        if said is None:
            self._seldom.say(log.error, "signals_failed", error=repr(error))
            return
        self.looks += 1
        for name, why in said.failed.items():
            self.failures[name] += 1
            self._seldom.say(log.warning, "signal_failed", signal=name, error=why)
        eased = self._admission.judge(None, said.node)
        for partition_id, verdict in said.partitions.items():
            eased |= self._admission.judge(PartitionId(partition_id), verdict)
        if eased:
            self._eased()
        self._told(said.node)

    def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
