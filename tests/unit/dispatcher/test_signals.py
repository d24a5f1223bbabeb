"""Admission signals: what they say is what admission withholds; what goes wrong in one is its own affair."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.admission import signals
from dispatcher.admission.admission import Admission
from dispatcher.admission.budgets import Verdict
from dispatcher.admission.signals import ApplyLag, DiskFree, Memory, Said, Signals, ask, make
from logboom.errors import ConfigError, Overloaded, PartitionFrozen, Unavailable
from logboom.settings import AdmissionSettings
from logboom.signals import NodeView, PartitionView, Reading
from logboom.types import PartitionId
from ports.seldom import LINES

A, B = PARTITIONS = [PartitionId(0), PartitionId(1)]
MIB = 1 << 20


def seen(*partitions: PartitionView) -> NodeView:
    return NodeView("n1", "/data", True, 0, 0, 0, 0.0, 0, {each.partition_id: each for each in partitions})


def lagging(partition_id: int, records: int = 0, global_index: int = 0) -> PartitionView:
    return PartitionView(partition_id, "running", 0, 0, 0, 0.0, records, global_index)


class Says:
    """A signal that says what it is told to."""

    def __init__(self, scope: Any, reading: Any, *, fails_closed: bool = False) -> None:
        self.scope, self.reading, self.fails_closed = scope, reading, fails_closed

    def read(self, view: NodeView) -> Any:
        if isinstance(self.reading, RuntimeError):
            raise self.reading
        return self.reading


class TestBuiltIn:
    @pytest.mark.parametrize(("free", "pressure"), [(500, 0.0), (200, 0.0), (150, 0.5), (100, 1.0), (0, 1.0)])
    def test_disk_free(self, free: int, pressure: float) -> None:
        assert DiskFree(lambda: free, 100).read(seen()) == pytest.approx(pressure)

    @pytest.mark.parametrize(("used", "pressure"), [(0, 0.0), (750, 0.0), (875, 0.5), (1000, 1.0), (5000, 1.0)])
    def test_memory(self, used: int, pressure: float) -> None:
        busy = seen()._replace(batches=1)
        assert Memory(lambda: used, 1000).read(busy) == pytest.approx(pressure)

    @pytest.mark.parametrize(("used", "pressure"), [(875, 0.5), (1000, 0.9), (1249, 0.9), (1250, 1.0)])
    def test_memory_that_nobody_uses_is_no_reason_to_refuse_for_ever(self, used: int, pressure: float) -> None:
        """LMDB and the C library keep what was freed: a node that had been through a storm took nothing any more."""
        assert Memory(lambda: used, 1000).read(seen()) == pytest.approx(pressure)

    def test_apply_lag_speaks_of_each_partition_by_the_worse_of_both(self) -> None:
        view = seen(lagging(0, 75, 0), lagging(1, 0, 900), lagging(2, 10, 100))
        assert ApplyLag(100, 1000).read(view) == pytest.approx({0: 0.5, 1: 0.8, 2: 0.0})

    def test_what_is_off_is_not_asked(self) -> None:
        found = make(AdmissionSettings(), free_bytes=lambda: 1, resident_bytes=lambda: 1)
        assert list(found) == ["disk_free"]
        everything = AdmissionSettings(memory_bytes_max=1, apply_lag_global_max=1)
        assert list(make(everything, free_bytes=lambda: 1, resident_bytes=lambda: 1)) == [
            "disk_free",
            "apply_lag",
            "memory",
        ]


class Quota:
    """As a user would write one."""

    scope = "node"

    def read(self, view: NodeView) -> Reading:
        return 0.25


class Half:
    scope = "cluster"


class TestRegistered:
    @pytest.fixture(autouse=True)
    def _entries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entries = [EntryPoint(n, f"{__name__}:{c}", signals.GROUP) for n, c in (("quota", "Quota"), ("half", "Half"))]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: EntryPoints(entries))

    def made(self, *names: str) -> Any:
        return make(AdmissionSettings(signals=names), free_bytes=lambda: 1, resident_bytes=lambda: 1)

    def test_it_is_found_by_its_name(self) -> None:
        assert self.made("quota")["quota"].read(seen()) == 0.25

    @pytest.mark.parametrize("name", ["nothing", "half"])
    def test_what_is_none_is_named(self, name: str) -> None:
        with pytest.raises(ConfigError, match=name) as refused:
            self.made(name)
        assert refused.value.path == "admission.signals"


class TestAsking:
    def said(self, **given: Any) -> Said:
        return ask(given, seen(lagging(0), lagging(1)))

    def test_the_worst_counts(self) -> None:
        said = self.said(
            a=Says("node", 0.2), b=Says("node", 0.7), c=Says("partition", {0: 0.5}), d=Says("partition", {0: 0.1, 9: 1})
        )
        assert said == Said(Verdict("b", 0.7), {0: Verdict("c", 0.5), 1: None}, {})

    @pytest.mark.parametrize("reading", [RuntimeError("boom"), 1.5, -0.1, float("nan"), "much", None])
    def test_what_goes_wrong_is_told_and_says_nothing(self, reading: Any) -> None:
        said = self.said(bad=Says("node", reading), good=Says("partition", {1: 0.5}))
        assert list(said.failed) == ["bad"]
        assert (said.node, said.partitions) == (None, {0: None, 1: Verdict("good", 0.5)})

    def test_an_error_that_no_client_can_be_told_is_none(self) -> None:
        """It was met where it was to be sent: each client that was refused lost its connection."""
        said = self.said(bad=Says("node", Unavailable("maintenance", until=object())))
        assert list(said.failed) == ["bad"]
        assert said.node is None

    def test_one_that_leaves_keeps_nobody_from_asking_the_others(self) -> None:
        """All were unasked for as long as it did: a disk filled up unseen."""

        class Leaves:
            scope = "node"

            def read(self, _: NodeView) -> float:
                raise SystemExit(1)

        said = self.said(leaves=Leaves(), disk=Says("node", 0.5))
        assert list(said.failed) == ["leaves"]
        assert said.node == Verdict("disk", 0.5)

    def test_nor_does_one_whose_error_has_no_text(self) -> None:
        """`repr` of it raised where it was noted, and all signals stood at what they had said before."""

        class Entry:
            def __repr__(self) -> str:
                raise AttributeError("gone")

        said = self.said(bad=Says("node", RuntimeError(Entry())), disk=Says("node", 0.5))
        assert said.failed == {"bad": "RuntimeError"}
        assert said.node == Verdict("disk", 0.5)

    @pytest.mark.parametrize("name", ["scope", "fails_closed"])
    def test_nor_does_one_that_raises_where_it_is_asked_what_it_is(self, name: str) -> None:
        """All signals stood at what they had said before."""

        def raises(_: object) -> None:
            raise KeyError(name)

        signal = type("Odd", (), {"scope": "node", "read": lambda _, view: None, name: property(raises)})()
        said = self.said(odd=signal, disk=Says("node", 0.5))
        assert said.failed == {"odd": f"KeyError({name!r})"}
        assert said.node == Verdict("disk", 0.5)

    def test_unless_it_fails_closed(self) -> None:
        assert self.said(bad=Says("node", None, fails_closed=True)).node == Verdict("bad", 1.0)
        closed = self.said(bad=Says("partition", None, fails_closed=True)).partitions
        assert closed == dict.fromkeys([0, 1], Verdict("bad", 1.0))


class TestJudging:
    def admission(self) -> Admission:
        return Admission(AdmissionSettings(partition_ops=10, node_ops=20, fair_share_percent=100), PARTITIONS)

    def test_so_much_of_the_budget_is_withheld(self) -> None:
        admission = self.admission()
        admission.judge(A, Verdict("lag", 0.5))
        admission.admit([(A, 5, 0)], 0.0)
        with pytest.raises(Overloaded) as refused:
            admission.admit([(A, 1, 0)], 0.0)
        assert (refused.value.limit, refused.value.partition_id, refused.value.used) == ("lag", A, 0.5)
        admission.admit([(B, 10, 0)], 0.0)

    def test_a_large_request_still_goes_alone(self) -> None:
        admission = self.admission()
        admission.judge(A, Verdict("lag", 0.9))
        admission.admit([(A, 10, 0)], 0.0)

    def test_at_one_nothing_is_admitted(self) -> None:
        admission = self.admission()
        admission.judge(None, Verdict("disk_free", 1.0))
        with pytest.raises(Overloaded) as refused:
            admission.admit([(B, 1, 0)], 0.0)
        assert (refused.value.limit, refused.value.partition_id) == ("disk_free", None)
        assert refused.value.message == "the node: the signal disk_free withholds 100% of its budgets; try again"
        assert admission.refused_by == {"disk_free": 1}

    def test_a_signals_own_error_is_the_answer_each_time_a_new_one(self) -> None:
        admission = self.admission()
        said = ask({"mine": Says("node", Unavailable("maintenance", retry_after=9.0))}, seen())
        admission.judge(None, said.node)
        errors = []
        for _ in range(2):
            with pytest.raises(Unavailable, match="maintenance") as refused:
                admission.admit([(A, 1, 0)], 0.0)
            errors.append(refused.value)
        assert errors[0] is not errors[1]
        assert errors[0].retry_after == 9.0

    def test_each_source_speaks_for_itself(self) -> None:
        admission = self.admission()
        admission.judge(A, Verdict("lag", 0.3), source="ladder")
        admission.judge(A, Verdict("memory", 0.6))
        assert admission.gate(A).verdict == Verdict("memory", 0.6)
        assert admission.judge(A, None)
        assert admission.gate(A).verdict == Verdict("lag", 0.3)
        assert admission.judge(A, None, source="ladder")
        assert admission.gate(A).verdict is None

    def test_who_thaws_undoes_only_his_own(self) -> None:
        admission = self.admission()
        admission.freeze(A, "maintenance")
        admission.freeze(A, "stalled", by="ladder")
        admission.thaw(A, by="ladder")
        assert admission.frozen(A)
        admission.thaw(A)
        assert not admission.frozen(A)

    def test_a_reason_to_freeze_is_told(self) -> None:
        admission = self.admission()
        admission.freeze(A, "applies too slowly")
        with pytest.raises(PartitionFrozen, match="applies too slowly"):
            admission.admit([(A, 1, 0)], 0.0)


class Polled:
    """Signals over many partitions, with an offload that does things when the test says so."""

    def __init__(self, partitions: int, **given: Any) -> None:
        self.ids = [PartitionId(p) for p in range(partitions)]
        self.settings = AdmissionSettings(signal_ms=1)
        self.admission = Admission(self.settings, self.ids)
        self.jobs: list[tuple[Callable[[], Said], Callable[[Said | None, BaseException | None], None]]] = []
        self.asked = asyncio.Event()
        self.eased = 0
        self.shown: list[Sequence[PartitionId]] = []
        offload: Any = self
        self.signals = Signals(
            given,
            self.settings,
            admission=self.admission,
            view=self._view,
            partitions=lambda: self.ids,
            offload=offload,
            eased=self._eased,
        )

    def submit(self, job: Any, done: Any) -> None:
        self.jobs.append((job, done))
        self.asked.set()

    def _view(self, partitions: Sequence[PartitionId]) -> NodeView:
        self.shown.append(partitions)
        return seen(*(lagging(p) for p in partitions))

    def _eased(self) -> None:
        self.eased += 1

    def answer(self) -> None:
        job, done = self.jobs.pop(0)
        self.asked.clear()
        done(job(), None)

    async def again(self) -> None:
        async with asyncio.timeout(5):
            await self.asked.wait()


class TestPolling:
    async def test_without_signals_nobody_is_asked(self) -> None:
        polled = Polled(1)
        polled.signals.start()
        assert polled.jobs == []

    async def test_one_look_at_a_time_and_what_eases_is_told(self) -> None:
        says = Says("node", 1.0)
        polled = Polled(1, says=says)
        polled.signals.start()
        polled.answer()
        assert polled.admission.gate().verdict == Verdict("says", 1.0)
        says.reading = 0.5
        await polled.again()
        assert len(polled.jobs) == 1
        polled.answer()
        assert polled.eased == 1
        polled.signals.close()

    async def test_failures_are_counted(self) -> None:
        polled = Polled(1, bad=Says("node", RuntimeError("boom")))
        polled.signals.start()
        polled.answer()
        polled.signals.close()
        assert polled.signals.failures == {"bad": 1}

    async def test_of_very_many_partitions_each_gets_its_turn(self) -> None:
        polled = Polled(2500, says=Says("partition", {}))
        polled.signals.start()
        for _ in range(2):
            polled.answer()
            await polled.again()
        assert [len(each) for each in polled.shown] == [1024, 1024, 452]
        assert {p for each in polled.shown for p in each} == set(polled.ids)
        polled.signals.close()

    async def test_signals_that_look_at_no_partition_are_shown_none(self) -> None:
        """Views of a thousand, four times a second, were a tenth of what a busy node's loop did."""
        node = {"disk": DiskFree(lambda: 0, 1), "memory": Memory(lambda: 0, 1)}
        polled = Polled(2, **node)
        polled.signals.start()
        polled.answer()
        assert polled.admission.gate().verdict == Verdict("disk", 1.0)
        mixed = Polled(2, **node, says=Says("node", 0.0))  # of a user's nobody knows
        mixed.signals.start()
        assert (list(polled.shown[0]), mixed.shown) == ([], [mixed.ids])
        polled.signals.close()

    async def test_after_closing_nobody_is_asked_nor_heard(self) -> None:
        polled = Polled(1, says=Says("node", 1.0))
        polled.signals.start()
        polled.signals.close()
        polled.answer()
        assert polled.admission.gate().verdict is None

    async def test_one_that_fails_for_days_is_said_now_and_then_and_always_counted(self) -> None:
        class Broken:
            scope = "node"

            def read(self, _: NodeView) -> float:
                raise RuntimeError("no")

        polled = Polled(1, broken=Broken())
        polled.signals.start()
        with capture_logs() as lines:
            for _ in range(2 * LINES):
                await polled.again()
                polled.answer()
        polled.signals.close()
        assert polled.signals.failures == {"broken": 2 * LINES}
        assert [line["event"] for line in lines] == ["signal_failed"] * LINES
