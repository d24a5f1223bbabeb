"""Every fuzz target over its corpus and over mutations by seed; and every target notices a decoder that is broken."""

from __future__ import annotations

import os
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import structlog

from chaos.fuzz.__main__ import main
from chaos.fuzz.mutate import mutated
from chaos.fuzz.target import quiet
from chaos.fuzz.targets import TARGETS
from dispatcher.requests.requests import SubmitReply
from logboom import wire
from logboom.client.operations import LogPiece
from logboom.errors import BY_CODE, LogboomError
from logboom.state_machine import Entry, Space
from logboom.wire import Frame
from partitions.log.batch import Batch, parse_header
from raftlog.entries.entry import ROUTE, Route
from raftlog.journal.journal_base import BEGINNING
from raftlog.links.marks import Mark
from server.offline.batches import BatchFile, decode
from snapshots.states import ENTRY

MUTATIONS = 3000
SEED = int(os.environ.get("FUZZ_SEED", "20261121"))
"""FUZZ_SEED=n looks elsewhere."""
INPUT_SECONDS_MAX = 5.0
INPUT_BYTES_MAX = 16 << 20


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    before = structlog.get_config()
    quiet()
    yield
    structlog.configure(**before)


def inputs(name: str, *, seed: int, mutations: int) -> Iterator[bytes]:
    corpus = TARGETS[name].seeds()
    rng = random.Random(f"{name} {seed}")
    yield from corpus
    for _ in range(mutations):
        yield mutated(rng, corpus)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_whatever_comes(name: str) -> None:
    for number, data in enumerate(inputs(name, seed=SEED, mutations=MUTATIONS)):
        begun = time.thread_time()
        try:
            TARGETS[name].one_input(data)
        except BaseException:
            print(f"target {name}, FUZZ_SEED={SEED}, input {number}: {data!r}")
            raise
        took = time.thread_time() - begun
        assert took < INPUT_SECONDS_MAX, f"{name}, FUZZ_SEED={SEED}, input {number} took {took:.1f} s: {data!r}"


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_takes_the_memory_that_a_length_field_claims(name: str) -> None:
    """The bound leaves room for msgpack, which sets aside up to 10,000 places for an array that claims more."""
    tracemalloc.start()
    try:
        for number, data in enumerate(inputs(name, seed=SEED + 1, mutations=200)):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            TARGETS[name].one_input(data)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken < INPUT_BYTES_MAX, f"{name}, FUZZ_SEED={SEED}, input {number}: {taken} bytes for {data!r}"
    finally:
        tracemalloc.stop()


# -- a target that cannot fail proves nothing


def _errors_as_given(header: Any) -> LogboomError:
    kind = BY_CODE.get(header.get("code", ""), LogboomError)
    return kind(str(header.get("message")), outcome=header.get("outcome"), **(header.get("fields") or {}))


def _routes_unchecked(command: bytes) -> list[Route]:
    return [Route(*row) for row in ROUTE.iter_unpack(memoryview(command)[1:])]


def _batch_by_its_header(raw: Any) -> Batch:
    return Batch(parse_header(raw), [raw])


def _numbers_unchecked(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 8}q", raw[1:])


def _txn_unchecked(payload: bytes) -> tuple[int, ...]:
    return struct.unpack_from("<4BBHI8s8s", payload)


def _reply_unchecked(header: Any) -> SubmitReply:
    return SubmitReply(tuple(header["parts"]), header["commit_index"])


def _frame_less_a_byte(raw: memoryview, whole: Callable[[memoryview], Frame] = wire._parse) -> Frame:
    frame = whole(raw)
    return frame._replace(body=frame.body[:-1])


def _piece_unchecked(frame: Frame) -> LogPiece:
    return LogPiece([(row[0], frame.body[: row[1]]) for row in frame.header["rows"]], frame.header["first"], b"")


def _file_less_a_batch(raw: bytes, *, path: Path) -> BatchFile:
    whole = decode(raw, path=path)
    return whole._replace(batches=whole.batches[:-1])


def _entries_cut_short(body: bytes, path: str, offset: int) -> Iterator[Entry]:
    at = 0
    while at + ENTRY.size <= len(body):
        space, key_bytes, value_bytes = ENTRY.unpack_from(body, at)
        start, middle = at + ENTRY.size, at + ENTRY.size + key_bytes
        at = middle + value_bytes
        yield Space(space & 1), body[start:middle], body[middle:at]


BREAKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "stream": ("logboom.wire._parse", _frame_less_a_byte),
    "submit": (
        "dispatcher.requests.requests.field_of",
        lambda header, name, kind, default=None: header.get(name, default),
    ),
    "blocks": ("logboom.records._check_ends", lambda *_: None),
    "errors": ("chaos.fuzz.frames.from_wire", _errors_as_given),
    "raft_message": ("raftlog.engine.messages._check_entries", lambda _: None),
    "routes": ("chaos.fuzz.frames.unpack_routes", _routes_unchecked),
    "session": ("dispatcher.requests.requests.field_of", lambda header, name, *_: header.get(name)),
    "peer": ("dispatcher.pipeline.forwarding.parse_reply", _reply_unchecked),
    "http": ("server.world.http_requests._header", lambda line: (line.decode("latin-1"), "")),
    "batch": ("partitions.log.batch._digest", lambda *_: ANY),
    "kv": ("partitions.machines.kv_apply._apply_vector", lambda *_: b"\0"),
    "numbers": ("chaos.fuzz.batches.unpack_numbers", _numbers_unchecked),
    "txn": ("chaos.fuzz.batches.parse_txn", _txn_unchecked),
    "segment": ("partitions.log.segment.parse_batch", _batch_by_its_header),
    "index": ("partitions.log.segment.blake3", lambda _: SimpleNamespace(digest=lambda _: ANY)),
    "places": ("partitions.log.places._is_sound", lambda _: True),
    "journal_scan": ("raftlog.journal.journal_codec._check_body", lambda _: None),
    "journal_open": ("raftlog.journal.journal_codec._check_body", lambda _: None),
    "base": ("raftlog.journal.journal_base.HardState", lambda *_: BEGINNING.hard),
    "newest": ("raftlog.journal.journal_newest._is_sequence", lambda _: True),
    "parent_state": ("raftlog.entries.parent_state.Tail", lambda index, digest: (index, bytes(16))),
    "manifest": ("server.directory.data_dir.DataDir._check", lambda *_, **__: None),
    "rejoin": ("chaos.fuzz.state.decode_token", lambda raw, **_: bytes(len(raw))),
    "refill": ("chaos.fuzz.state.decode_refill", lambda raw, **_: (-1, len(raw), "")),
    "directories": ("chaos.fuzz.state.decode_directories", lambda raw, **_: (bytes(len(raw)), {})),
    "heard": ("chaos.fuzz.state.decode_heard", lambda raw, **_: {"n1": Mark(b"", b"", len(raw))}),
    "checkpoint": ("partitions.machines.log.LogMachine.digest", lambda _: object()),
    "dedupe": ("partitions.apply.dedupe._is_sound", lambda _: True),
    "config": ("logboom.config._toml", repr),
    "rules": ("logboom.access._merged", tuple),
    "batch_file": ("chaos.fuzz.backups.decode", _file_less_a_batch),
    "backup_list": ("server.offline.backup_dir.msgspec.convert", lambda raw, _: raw),
    "feed": ("logboom.client.log_batches._field", lambda frame, name, _: frame.header[name]),
    "log_piece": ("chaos.fuzz.backups.log_piece_of", _piece_unchecked),
    "snapshot_set": ("snapshots.meta._wrong", lambda _: None),
    "snapshot_states": ("snapshots.states._entries", _entries_cut_short),
    "state_load": ("partitions.machines.kv._check_entry", lambda *_: None),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_notices_a_broken_decoder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list(inputs(name, seed=1, mutations=1000))  # made while everything is whole
    for data in given[:5]:
        TARGETS[name].one_input(data)
    what, broken = BREAKS[name]
    monkeypatch.setattr(what, broken)
    with pytest.raises(Exception):  # noqa: B017, PT012 - whatever it is, a fuzzer stops at it
        for data in given:
            TARGETS[name].one_input(data)


def test_a_message_that_msgpack_cannot_read_ends_only_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoders name what msgpack may raise; anything else is noticed."""

    def unpack(*_: object, **__: object) -> None:
        raise RuntimeError("new in this release")

    for decoder in ("msgpack.unpackb", "logboom.wire._unpack", "raftlog.engine.messages._unpack"):
        monkeypatch.setattr(decoder, unpack)
    for name in ("stream", "errors", "raft_message", "dedupe"):
        with pytest.raises(RuntimeError):  # noqa: PT012
            for data in TARGETS[name].seeds():
                TARGETS[name].one_input(data)


def test_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "input"
    file.write_bytes(TARGETS["batch"].seeds()[0])
    monkeypatch.setattr(sys, "argv", ["fuzz", "replay", "batch", str(file)])
    assert main() == 0
    file.write_bytes(TARGETS["batch"].seeds()[0][:-1] + b"?")
    monkeypatch.setattr("partitions.log.batch._digest", lambda *_: ANY)
    with pytest.raises(AssertionError, match="a digest was accepted"):
        main()
    monkeypatch.setattr(sys, "argv", ["fuzz", "replay", "no such", str(file)])
    assert main() == 2
    assert "there are stream, " in capsys.readouterr().err
