"""Which span asks: said to the node only if there is one, and it is sampled."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from logboom import Client, Put
from logboom.client import tracing
from logboom.wire import Kind
from tests.unit.logboom.fake_server import cluster

SAID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def current(monkeypatch: pytest.MonkeyPatch, *, valid: bool = True, flags: int = 1) -> None:
    """As ``opentelemetry.trace`` looks to whoever asks for the current span."""
    trace_id, span_id = int(SAID[3:35], 16), int(SAID[36:52], 16)
    context = SimpleNamespace(is_valid=valid, trace_flags=flags, trace_id=trace_id, span_id=span_id)
    span = SimpleNamespace(get_span_context=lambda: context)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", SimpleNamespace(get_current_span=lambda: span))


def test_without_opentelemetry_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert tracing.parent(None) is None
    assert tracing.header(None) == {}


def test_the_current_span_asks_if_it_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    current(monkeypatch)
    assert tracing.parent(None) == SAID
    assert tracing.parent("given") == "given"
    current(monkeypatch, flags=0)
    assert tracing.parent(None) is None
    current(monkeypatch, valid=False)
    assert tracing.parent(None) is None


async def test_every_way_to_submit_says_it() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        one, many = Put(b"k", b"v"), [Put(b"k", b"v"), Put(b"l", b"v")]
        await boom.submit(0, one, traceparent=SAID)
        await boom.submit(0, many, traceparent=SAID)
        await boom.submit(0, many, traceparent=SAID, producer_id=bytes(range(16)), sequence=0)
        await boom.submit_many({0: many, 1: [one]}, traceparent=SAID)
        await boom.submit_by_key(many, traceparent=SAID)
        await boom.submit(0, one)
        await boom.submit(0, many)
        said = [frame.header.get("traceparent") for frame in node.of(Kind.SUBMIT)]
    assert said == [SAID] * 5 + [None] * 2
    assert all("traceparent" not in frame.header for frame in node.of(Kind.SUBMIT)[5:])
