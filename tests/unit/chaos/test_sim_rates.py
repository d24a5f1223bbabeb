"""Who is let in faster than the settings say is seen, whatever the node itself has counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.rates import Ledger, look_at_reading, look_at_shares, look_at_writing
from dispatcher.admission.admission import Admission
from dispatcher.admission.budgets import Parts, Refusal
from dispatcher.reading.read_rates import ReadRates
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId

HOST: Any = SimpleNamespace(name="n1")
ONE = PartitionId(1)
LARGE: Parts = [(ONE, 20, 100)]
"""Two seconds at ten a second."""


@pytest.mark.parametrize(
    ("taken", "at", "room", "ahead"),
    [(0.0, 0.0, 9.0, 0.0), (0.4, 0.0, 0.1, 0.0), (1.0, 0.0, 0.1, 0.6), (1.0, 0.6, 0.1, 0.0), (1.0, 2.0, 9.0, -1.0)],
)
def test_somebody_is_ahead_by_what_is_owed_beyond_a_burst(taken: float, at: float, room: float, ahead: float) -> None:
    ledger = Ledger(0.5)
    ledger.take("who", 0.0, taken)
    assert ledger.ahead("who", at, room) == pytest.approx(ahead)
    assert ledger.ahead("somebody else", at, room) == min(0.0, room - 0.5)


class TestWriting:
    @pytest.mark.parametrize("rate", ["principal_ops_per_s", "partition_ops_per_s"])
    @pytest.mark.parametrize(("bounded", "found"), [(True, []), (False, ["RateKept"])])
    def test_only_who_is_admitted_too_early_is_told_of(self, rate: str, bounded: bool, found: list[str]) -> None:
        said = AdmissionSettings(**{rate: 10}, rate_burst_ms=100, fair_share_percent=100)
        admission, told = Admission(said if bounded else AdmissionSettings(), [ONE]), list[str]()
        look_at_writing(HOST, admission, said, lambda invariant, _: told.append(invariant))
        for now in (1.0, 2.9, 3.1):  # the second one comes too early, or is refused
            admission.try_admit(LARGE, now, "alice")
        assert told[:1] == found

    def test_where_nothing_is_said_anybody_may(self) -> None:
        admission, told = Admission(AdmissionSettings(), [ONE]), list[str]()
        look_at_writing(HOST, admission, AdmissionSettings(), lambda invariant, _: told.append(invariant))
        for _ in range(9):
            admission.try_admit(LARGE, 1.0, "alice")
        assert not told


class TestReading:
    def watched(self, told: list[str], per_s: int = 100) -> tuple[ReadRates, SimpleNamespace]:
        clock: Any = SimpleNamespace(now=5.0)
        clock.monotonic = lambda: clock.now
        rates = ReadRates(per_s=per_s, burst_ms=1_000, clock=clock)
        look_at_reading(HOST, rates, lambda invariant, _: told.append(invariant))
        return rates, clock

    async def reads(self, rates: ReadRates, forget: Callable[[Any], None] | None = None) -> bool:
        pace = rates.enter("alice")
        pace.take(250)
        if forget is not None:
            forget(pace)
        try:
            return pace.admits(self, lambda: None)
        finally:
            pace.leave(self)

    def test_who_waits_for_his_rate_is_in_order(self) -> None:
        told = list[str]()
        rates, clock = self.watched(told)
        assert not asyncio.run(self.reads(rates))
        clock.now += 9.0
        assert rates.enter("alice").admits(self, lambda: None)
        assert not told

    def test_who_owes_more_and_reads_on_is_told_of(self) -> None:
        told = list[str]()
        rates, _ = self.watched(told)

        def forget(pace: Any) -> None:
            pace._paid_at = 0.0

        assert asyncio.run(self.reads(rates, forget))
        assert told == ["RateKept"]

    def test_where_nothing_is_said_nobody_is_looked_at(self) -> None:
        rates, _ = self.watched([], per_s=0)
        assert not hasattr(rates.enter("alice"), "ledger")


class TestShares:
    @pytest.mark.parametrize("whose", ["alice", ""])
    @pytest.mark.parametrize(("bounded", "found"), [(True, []), (False, ["ShareKept"])])
    def test_who_has_something_already_gets_no_more_than_his_share(
        self, whose: str, bounded: bool, found: list[str]
    ) -> None:
        """A principal, or a partition of the node's budget."""
        partition, node = (10, 100) if whose else (100, 10)
        said = AdmissionSettings(partition_ops=partition, node_ops=node, fair_share_percent=50)
        free = AdmissionSettings(partition_ops=10, node_ops=10, fair_share_percent=100)
        admission, told = Admission(said if bounded else free, [ONE]), list[str]()
        look_at_shares(HOST, admission, said, lambda invariant, _: told.append(invariant))
        admission.try_admit([(ONE, 9, 1)], 1.0, whose)  # of what nobody has, all may go to one
        assert not told
        if bounded:
            assert isinstance(admission.try_admit([(ONE, 1, 1)], 2.0, whose), Refusal)
        admission.try_admit([(ONE, 1, 1)], 3.0, whose)
        assert told[:1] == found

    def test_of_a_partition_that_is_not_there_nothing_is_said(self) -> None:
        admission, told = Admission(AdmissionSettings(fair_share_percent=50), [ONE]), list[str]()
        look_at_shares(HOST, admission, AdmissionSettings(), lambda invariant, _: told.append(invariant))
        with pytest.raises(KeyError):
            admission.try_admit([(PartitionId(7), 1, 1)], 1.0, "alice")
        assert not told
