"""Spans on their way out: as OTLP, in a file or to a collector, bounded, and never waited for."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import server.watching.spans
from dispatcher.requests.tracing import Span
from server.watching.spans import BATCH, Export, SpanFile, SpanPost, SpanQueue, encode
from server.world.offload_os import ThreadOffload

ROOT = Span(
    "submit",
    "a" * 32,
    "b" * 16,
    "",
    1_700_000_000_000_000_001,
    1_700_000_000_000_000_002,
    {"request_id": 1 << 62, "remote": "here", "share": 0.5, "whole": True},
    "overloaded",
    linked=False,
)
APPLY = Span("apply", "a" * 32, "c" * 16, "b" * 16, 1, 2, {"partition": 3}, None, linked=True)


def spans_in(raw: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(raw)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return found


@asynccontextmanager
async def queue(
    *exports: Export, spans_max: int = 10_000, monkeypatch: pytest.MonkeyPatch | None = None
) -> AsyncIterator[SpanQueue]:
    made = SpanQueue(
        resource={"service.name": "logboom"},
        exports=exports,
        spans_max=spans_max,
        offload=ThreadOffload(workers=1, name="spans"),
    )
    try:
        yield made
    finally:
        await made.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


def test_it_is_otlp() -> None:
    request = json.loads(encode([ROOT, APPLY], {"service.name": "logboom"}))
    (resource,) = request["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "logboom"}}]
    root, apply = resource["scopeSpans"][0]["spans"]
    assert root == {
        "traceId": "a" * 32,
        "spanId": "b" * 16,
        "name": "logboom.submit",
        "kind": 2,
        "startTimeUnixNano": "1700000000000000001",
        "endTimeUnixNano": "1700000000000000002",
        "attributes": [
            {"key": "logboom.request_id", "value": {"intValue": str(1 << 62)}},
            {"key": "logboom.remote", "value": {"stringValue": "here"}},
            {"key": "logboom.share", "value": {"doubleValue": 0.5}},
            {"key": "logboom.whole", "value": {"boolValue": True}},
        ],
        "status": {"code": 2, "message": "overloaded"},
    }
    assert apply["parentSpanId"] == "b" * 16
    assert apply["links"] == [{"traceId": "a" * 32, "spanId": "b" * 16}]
    assert (apply["kind"], "status" in apply) == (1, False)


async def test_a_file_gets_a_line_per_batch_and_makes_way(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    write = SpanFile(path, bytes_max=1000)
    lines = [b"x" * 400 + b"%d" % number for number in range(7)]
    for line in lines:
        write(line)
    kept = (tmp_path / "spans.jsonl.1").read_bytes().splitlines() + path.read_bytes().splitlines()
    assert kept == lines[3:]
    assert path.stat().st_size <= 1000


async def test_what_is_emitted_arrives_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.watching.spans.FLUSH_S", 0.01)
    batches: list[bytes] = []
    async with queue(batches.append) as spans:
        for number in range(2 * BATCH + 3):
            spans.emit(APPLY._replace(span_id=f"{number:016x}"))
        await until(lambda: spans.exported == 2 * BATCH + 3)
        spans.emit(ROOT)
    assert [len(spans_in(raw)) for raw in batches] == [BATCH, BATCH, 3, 1]  # the last one with the end
    ids = [span["spanId"] for raw in batches[:-1] for span in spans_in(raw)]
    assert ids == [f"{number:016x}" for number in range(2 * BATCH + 3)]
    assert (spans.exported, spans.dropped) == (2 * BATCH + 4, 0)


async def test_more_than_may_wait_are_dropped_and_counted() -> None:
    async with queue(lambda _: None, spans_max=3) as spans:
        for _ in range(5):
            spans.emit(ROOT)
        assert (len(spans._waiting), spans.dropped) == (3, 2)


async def test_who_takes_them_may_fail_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.watching.spans.FLUSH_S", 0.01)
    broken = True

    def export(_: bytes) -> None:
        if broken:
            raise OSError("gone")

    async with queue(export) as spans:
        spans.emit(ROOT)
        await until(lambda: spans.dropped == 1)
        broken = False
        spans.emit(ROOT)
        await until(lambda: spans.exported == 1)
    assert spans.dropped == 1


async def test_an_export_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.watching.spans.FLUSH_S", 0.01)
    hangs = threading.Event()

    def export(_: bytes) -> None:
        hangs.wait(20)

    async with queue(export, spans_max=10) as spans:
        spans.emit(ROOT)
        await until(lambda: spans._under_way)
        for _ in range(100):
            spans.emit(ROOT)
        assert (len(spans._waiting), spans.dropped) == (10, 90)
        hangs.set()


async def test_a_collector_that_speaks_something_else_is_a_failure_like_any_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            taken, _ = listener.accept()
            with taken:
                taken.recv(1 << 16)
                taken.sendall(b"+PONG\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        async with queue(SpanPost(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces")) as spans:
            spans.emit(ROOT)
        thread.join(10)
    assert (spans.exported, spans.dropped) == (0, 1)


async def test_a_collector_that_answers_byte_by_byte_does_not_keep_a_node_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.watching.spans.POST_S", 0.3)
    hung_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            taken, _ = listener.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 ")
                try:
                    for _ in range(150):
                        taken.sendall(b"x")
                        hung_up.wait(0.1)
                except OSError:
                    hung_up.set()

        thread = threading.Thread(target=drip)
        thread.start()
        async with queue(SpanPost(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces")) as spans:
            spans.emit(ROOT)
        thread.join(30)
    assert hung_up.is_set()
    assert (spans.exported, spans.dropped) == (0, 1)


async def test_one_export_that_fails_takes_nothing_from_the_other_and_lets_a_node_stop() -> None:
    got: list[bytes] = []

    def nowhere(_: bytes) -> None:
        raise OSError("the disk is full")

    async with queue(nowhere, SpanPost("http://a..b/v1/traces"), got.append) as spans:
        spans.emit(ROOT)
    assert len(spans_in(got[0])) == 1
    assert (spans.exported, spans.dropped) == (0, 1)


async def test_a_collector_gets_them_by_http() -> None:
    got: list[tuple[str, str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200 if len(got) == 1 else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in range(2)])
        thread.start()
        post = SpanPost(f"http://127.0.0.1:{server.server_port}/v1/traces")
        await asyncio.to_thread(post, encode([ROOT], {}))
        with pytest.raises(OSError, match="503"):
            await asyncio.to_thread(post, b"{}")
        thread.join(10)
    assert [(path, kind) for path, kind, _ in got] == [("/v1/traces", "application/json")] * 2
    assert spans_in(got[0][2])[0]["traceId"] == "a" * 32


async def test_a_collector_that_takes_for_ever_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.watching.spans, "CLOSE_S", 0.05)
    answered = threading.Event()
    made = SpanQueue(
        resource={}, exports=[lambda _: answered.wait(60)], spans_max=10, offload=ThreadOffload(workers=1, name="spans")
    )
    made.emit(ROOT)
    try:
        async with asyncio.timeout(20):
            await made.close()
        assert (made.exported, made.dropped) == (0, 1)
    finally:
        answered.set()
