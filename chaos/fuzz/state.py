"""Targets: what a node keeps beside its logs (manifest, checkpoint, producers), and its configuration."""

from __future__ import annotations

import contextlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import google_crc32c
import msgspec

from chaos.fuzz.disk import MemoryDisk
from chaos.fuzz.samples import PRODUCER, batch
from chaos.fuzz.target import Broken, Cursor, Target, counted, holds, packed
from logboom import access
from logboom.config import check_node, load, to_toml
from logboom.errors import ConfigError, CorruptData, IncompatibleVersion, WrongNode
from logboom.settings import ApplySettings
from logboom.types import NUMBER_MAX, DurabilityMode, GlobalLogIndex, NodeId
from partitions.apply.dedupe import AppliedReceipt, Decision, Dedupe, Producer
from partitions.machines.log import LogMachine
from raftlog.entries.configuration import REJOIN_TOKEN_BYTES
from raftlog.links.directories import DIRECTORY_BYTES
from raftlog.links.marks import LIFE_BYTES, Mark
from server.directory.data_dir import MANIFEST, DataDir
from server.directory.directories import decode as decode_directories
from server.directory.directories import decode_heard, encode_heard
from server.directory.directories import encode as encode_directories
from server.directory.manifest import (
    BEFORE_LINEAGE,
    BEFORE_VOIDS,
    FORMAT_VERSION,
    Manifest,
    PartitionKinds,
    encode,
    sealed,
)
from server.directory.refill import decode as decode_refill
from server.directory.refill import encode as encode_refill
from server.directory.rejoin import decode as decode_token
from server.directory.rejoin import encode as encode_token

HERE: Final = Path("/data")
CHECKPOINT: Final = HERE / "checkpoint"
APPLY: Final = ApplySettings()
MINE: Final = Manifest(
    node="n1", cluster="fuzz", members=("n1", "n2"), partitions=(PartitionKinds(4, "kv", DurabilityMode.WRITE_AHEAD),)
)
KNOWN: Final = (ValueError, TypeError, AttributeError, OverflowError)
"""From a checkpoint that has the right checksum (four zeros have it) and is none of ours; or it is used as it is.
To be taken away with the mending of it."""


def manifest(data: bytes) -> None:
    """First byte odd: the rest is sealed as a manifest is, should it be JSON. Else it is the file."""
    raw = _sealed(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    disk = MemoryDisk()
    disk.put(HERE / MANIFEST, raw)
    try:
        held = DataDir(HERE, disk=disk, manifest=MINE)
    except (CorruptData, IncompatibleVersion, WrongNode, ConfigError):
        holds(disk.files == {HERE / MANIFEST: raw}, "a directory that was refused was changed")
        return
    held.close()
    found = json.loads(raw)
    holds(found["node"] == "n1" and found["cluster"] == "fuzz", "another's directory was taken")
    holds(found["format"] in (BEFORE_VOIDS, BEFORE_LINEAGE, FORMAT_VERSION), "another format was taken")
    holds(encode(held.manifest) == raw, "what was read is not what is there")
    with contextlib.suppress(ConfigError, CorruptData):
        held.manifest.check_partitions(MINE, {0, 3, 7})


def rejoin(data: bytes) -> None:
    """As ``manifest``: the file that says that a node has forgotten what it promised."""
    raw = _sealed(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        token = decode_token(raw, path="rejoin.json")
    except CorruptData:
        return
    holds(len(token) == REJOIN_TOKEN_BYTES, "a token of another length")
    holds(encode_token(token) == raw, "what was read is not what is there")


def _rejoin_seeds() -> list[bytes]:
    token = encode_token(bytes(range(REJOIN_TOKEN_BYTES)))
    return [b"\0" + token, b"\0" + token[:-2], b"\1" + b'{"token":"00"}', b"\1" + b'{"token":1}', b"\1{}"]


def refill(data: bytes) -> None:
    """As ``manifest``: the file that says what a node waits for that was empty."""
    raw = _sealed(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        term, index, lineage = decode_refill(raw, path="refill.json")
    except CorruptData:
        return
    holds(0 <= term < NUMBER_MAX and 0 < index < NUMBER_MAX, "a number that is none")
    holds(encode_refill(term, index, lineage) == raw, "what was read is not what is there")


def _refill_seeds() -> list[bytes]:
    whole, text = encode_refill(3, 4711, "ab" * 16), b'{"index":4711,"lineage":"","term":-1}'
    return [b"\0" + whole, b"\0" + whole[:-2], b"\1" + text, b"\1" + b'{"term":true}', b"\1{}"]


def directories(data: bytes) -> None:
    """As ``manifest``: the file that says whose disks a node has met."""
    raw = _sealed(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        own, met = decode_directories(raw, path="directories.json")
    except CorruptData:
        return
    holds({len(own), *map(len, met.values())} == {DIRECTORY_BYTES}, "an id of another length")
    holds(encode_directories(own, met) == raw, "what was read is not what is there")


def heard(data: bytes) -> None:
    """First byte odd: the rest is sealed, should it be JSON. Else it is the file."""
    raw = _sealed(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        found = decode_heard(raw, path="heard.json")
    except CorruptData:
        return
    holds(all(0 <= mark.sequence < NUMBER_MAX for mark in found.values()), "a number that is none")
    holds(encode_heard(found) == raw, "what was read is not what is there")


def _heard_seeds() -> list[bytes]:
    mark = Mark(bytes(range(DIRECTORY_BYTES)), bytes(LIFE_BYTES), 4711)
    whole = encode_heard({NodeId("n2"): mark})
    return [b"\0" + whole, b"\0" + whole[:-2], b"\1" + b'{"heard":{"n2":["00","00",-1]}}', b"\1{}"]


def _directories_seeds() -> list[bytes]:
    own = bytes(range(DIRECTORY_BYTES))
    whole = encode_directories(own, {NodeId("n2"): own[::-1]})
    return [b"\0" + whole, b"\0" + whole[:-2], b"\1" + b'{"own":"00","met":{"n2":"00"}}', b"\1{}"]


def _sealed(data: bytes) -> bytes:
    try:
        return sealed(msgspec.json.decode(data, type=dict[str, Any]))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return data


def _manifest_seeds() -> list[bytes]:
    mine = json.loads(encode(MINE))
    kinds = [{"count": 1 << 62, "mode": "write_ahead", "state_machine": ""}, {"count": -1, "mode": "x"}]
    each = [
        mine,
        {**mine, "node": "n2"},
        {**mine, "format": 3},
        {**mine, "format": 4, "lineage": "ab" * 16},
        {**mine, "format": 4, "lineage": None},
        {**mine, "lineage": ""},
        {**mine, "partitions": kinds},
        {**mine, "a": [1.5]},
        {},
    ]
    whole = encode(MINE)
    return [*(b"\1" + json.dumps(one).encode() for one in each), b"\0" + whole, b"\0", b"\0[]", b"\0" + whole[:-1]]


# -- checkpoint of a log partition


def checkpoint(data: bytes) -> None:
    """First byte odd: with the right checksum."""
    body, sealed = data[1:], bool(data[:1] and data[0] & 1)
    if sealed:
        body += google_crc32c.value(body).to_bytes(4, "little")
    with contextlib.suppress(*KNOWN, *((Broken,) if sealed else ())):
        _checkpoint(body)


def _checkpoint(body: bytes) -> None:
    disk = MemoryDisk()
    disk.put(CHECKPOINT, body)
    try:
        machine = LogMachine(disk, CHECKPOINT)
    except CorruptData:
        return
    digest = machine.digest()
    for key, entry in machine.meta():
        holds(type(key) is bytes and type(entry) is bytes, "meta entries are bytes")
    machine._checkpoint()  # noqa: SLF001 - what ``checkpoint`` does once something was applied
    again = LogMachine(disk, CHECKPOINT)
    holds(again.digest() == digest, "a checkpoint does not come back")
    holds(list(again.meta()) == list(machine.meta()), "a checkpoint does not come back")


def _checkpoint_seeds() -> list[bytes]:
    meta = {bytes(PRODUCER): _producer().encode()}
    row = packed([1, 9, 12, 30, 4000, bytes(range(16)), meta])
    whole = row + google_crc32c.value(row).to_bytes(4, "little")
    others: list[list[Any]] = [[2, 9, 12, 30, 4000, bytes(16), {}], [1, 0, 0, 0, 0, bytes(16), {}], [1]]
    return [b"\0" + whole, b"\0" + whole[:-1], b"\1" + row, *(b"\1" + packed(other) for other in others)]


# -- producers


def dedupe(data: bytes) -> None:
    """u16 length of the first entry, it, and a second one; then batches are judged by them."""
    cursor = Cursor(data)
    entries = [(bytes(PRODUCER), cursor.take(cursor.number(2))), (bytes(16), cursor.rest())]
    try:
        known = Dedupe(APPLY, [entry for entry in entries if entry[1]])
    except CorruptData:
        return
    for _, entry in entries:
        if entry:
            again = Producer.decode(entry)
            holds(Producer.decode(again.encode()) == again, "a producer does not come back")
    header = batch().header
    for sequence in (0, 3, 1 << 40):
        asked = header._replace(sequence=sequence)
        decision = known.decide(asked)
        _judged(decision, asked.record_count)
        receipt = known.lookup(PRODUCER, asked.epoch, sequence, asked.record_count)
        holds(receipt is None or receipt.record_count == asked.record_count, "another receipt")
        results = known.results(asked, decision, b"\0")
        holds(len(results) in (1, asked.record_count), "a status per record, or one for all")
    newest = max((each.last_global for each in known._producers.values()), default=0)  # noqa: SLF001
    decision = known.decide(header)
    known.record(header, decision, GlobalLogIndex(newest + 1))
    known.remember(header, GlobalLogIndex(newest + 1), b"\0")
    for changed in known.changes().values():
        holds(changed is None or Producer.decode(changed).encode() == changed, "a producer does not come back")
    known.commit()


def _judged(decision: Decision, count: int) -> None:
    end = 0
    for start, stop in decision.skip:
        holds(end <= start < stop <= count, f"skips {decision.skip} of {count} records")
        end = stop


def _producer() -> Producer:
    receipts = [
        AppliedReceipt(*cast("Any", (3, 9, 1, 9, 4, b"\0"))),
        AppliedReceipt(*cast("Any", (20, 5, 10, 14, 5, None))),
    ]
    return Producer(epoch=1, floor=2, ranges=[(3, 12), (20, 25)], receipts=receipts, last_global=5)


def _dedupe_seeds() -> list[bytes]:
    whole, empty = _producer().encode(), Producer().encode()
    return [counted(whole, b""), counted(whole, empty), counted(empty, whole), counted(packed([1, 0, [], []]), b"")]


# -- configuration


def config(data: bytes) -> None:
    """u16 length of a TOML file, it, then rows of environment variables NAME=VALUE."""
    cursor = Cursor(data)
    file = _scratch()
    file.write_bytes(cursor.take(cursor.number(2)))
    rows = cursor.rest().decode("utf-8", "surrogateescape").split("\n")
    environment = {name: value for name, equals, value in (row.partition("=") for row in rows) if equals}
    try:
        settings = load(file, environment)
    except ConfigError as error:
        holds(type(error.path) is str, "an error that does not say where")
        return
    text = to_toml(settings)
    file.write_text(text)
    holds(load(file, {}) == settings, "settings do not come back")
    try:
        check_node(settings)
    except ConfigError:
        return


@cache
def _scratch() -> Path:
    """A file in memory that has a path, and is gone with the process."""
    return Path(f"/proc/self/fd/{os.memfd_create('config.toml')}")


def _config_seeds() -> list[bytes]:
    members = '[{id = "n1", peer_address = "h:1", client_address = "h:2"}]'
    cluster = f'[cluster]\nid = "fuzz"\nmembers = {members}\npartitions = 4\nmode = "write_behind"\n'
    files = [
        b"",
        cluster.encode(),
        (cluster + '[cluster.overrides]\n"2" = {state_machine = "log"}\n[node]\nid = "n1"\ndata_dir = "/x"\n').encode(),
        b"[raft]\nheartbeat_ms = 20\nredo_bytes_max = 0\n[net]\nclient_frame_bytes = 0x400000\n",
        b"[raft]\nheartbeat_ms = 1e3\n[nett]\nx = 1979-05-27T07:32:00Z\n",
    ]
    environments = [
        b"",
        b"LOGBOOM_NODE__ID=n1\nLOGBOOM_CLUSTER__MEMBERS=n1=h:1@h:2,n2=h:3@h:4\nLOGBOOM_ENDPOINTS=h:1\nPATH=/bin",
        b"LOGBOOM_CLUSTER__PARTITIONS=3\nLOGBOOM_CLUSTER__OVERRIDES__2__MODE=write_behind\nLOGBOOM_RAFT=x",
    ]
    return [counted(file, environment) for file in files for environment in environments]


# -- rules of access


def rules(data: bytes) -> None:
    """A file of them."""
    file = _scratch()
    file.write_bytes(data)
    try:
        found = access.read(file)
    except ConfigError as error:
        holds(error.path == "access.file", "an error that does not say where")
        return
    holds(access.read(file).digest == found.digest, "the same rules, another digest")
    for names in ([], ["a"], ["a", "b"]):
        grants = found.of(names)
        places = [grants.where(right) for right in access.Right]
        holds(
            grants.status == (access.ALL if any(each != access.NOWHERE for each in places) else access.NOWHERE),
            "status",
        )
        for where in places:
            ends = [end for pair in where.ranges for end in pair]
            holds(ends == sorted(ends) and all(map(where.has, ends)), "ranges that are not in order")
            apart = zip(where.ranges, where.ranges[1:], strict=False)
            holds(all(one[1] + 1 < other[0] and not where.has(one[1] + 1) for one, other in apart), "not apart")


def _rules_seeds() -> list[bytes]:
    one = '[[rules]]\nprincipal = "a"\nallow = ["read", "write"]\npartitions = "5-9,0,3-7,2,cursors"\n'
    other = '[[rules]]\nprincipal = "*"\nallow = ["status"]\n[[rules]]\nprincipal = "b"\nallow = ["admin"]\n'
    return [b"", one.encode(), (one + other).encode(), other.replace("status", "everything").encode()]


TARGETS = [
    Target("manifest", manifest, _manifest_seeds, "manifest.json of a data directory"),
    Target("rejoin", rejoin, _rejoin_seeds, "rejoin.json of a data directory"),
    Target("refill", refill, _refill_seeds, "refill.json of a data directory"),
    Target("directories", directories, _directories_seeds, "directories.json of a data directory"),
    Target("heard", heard, _heard_seeds, "heard.json of a data directory"),
    Target("checkpoint", checkpoint, _checkpoint_seeds, "checkpoint of a log partition"),
    Target("dedupe", dedupe, _dedupe_seeds, "producers in a partition's state"),
    Target("config", config, _config_seeds, "configuration: TOML and environment"),
    Target("rules", rules, _rules_seeds, "rules of access: TOML"),
]
