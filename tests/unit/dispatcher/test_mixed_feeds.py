"""Batches that several producers share, as readers get them: whole, record by record, without data, or not at all."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest

from dispatcher.reading.feeds import FeedRequest, Filter
from dispatcher.reading.tail import Piece, Tail, pack
from logboom.batch_layout import CRC, HEAD, HEADER_BYTES
from logboom.client.log_batches import LogBatch, LogMetadata, batches_of, metadata_of
from logboom.errors import IncompatibleVersion, ProtocolError
from logboom.origins import Origin, pack_origins
from logboom.records import RecordBlock
from logboom.types import NO_PRODUCER, NUMBER_MAX, PartitionId, PartitionLogIndex, ProducerId, Record, Term
from logboom.wire import Frame, Kind
from partitions.log.batch import CRC_AT, Batch, build_batch
from partitions.log.chunks import Chunk
from tests.unit.dispatcher.log_scan_world import batches, begin, globals_of, settle
from tests.unit.dispatcher.reading_world import Client, World

ROOM = 1 << 30
P3 = PartitionId(3)
EPOCH = 9
"""Which field of a header it is: that of a shared batch has in its place how many origins there are."""
ANNE, BERT = ProducerId(b"a" * 16), ProducerId(b"b" * 16)


def record(index: int) -> Record:
    """What the log has there: odd ones of one prefix, even ones of the other."""
    return Record(b"payload %d" % index, b"%s/%d" % (b"eo"[index % 2 : index % 2 + 1], index), (("n", b"%d" % index),))


def origins_from(index: int) -> tuple[Origin, ...]:
    """Of five records."""
    rows = [(ANNE, 2, 2, 70, 60), (NO_PRODUCER, 0, 1, 0, 0), (BERT, 0, 2, 5, 5)]
    found = list[Origin]()
    for producer, epoch, count, sequence, floor in rows:
        found.append(Origin(producer, epoch, PartitionLogIndex(index), count, sequence, floor))
        index += count
    return tuple(found)


def built(first: int, count: int, before: Batch | None, partition: PartitionId = P3, **whose: Any) -> Batch:
    return build_batch(
        partition_id=partition,
        first_index=first,
        term=Term(1),
        timestamp_ms=1000 + first,
        records=RecordBlock.from_records([record(first + n) for n in range(count)]),
        previous_digest=before.digest if before is not None else bytes(16),
        **whose,
    )


def chain() -> list[Batch]:
    """Indexes 1 and 2, one producer's; 3 to 7, shared; 8 and 9."""
    front = built(1, 2, None, producer=ANNE, epoch=2, sequence=68, floor=60)
    shared = built(3, 5, front, origins=origins_from(3))
    return [front, shared, built(8, 2, shared, producer=BERT, sequence=7)]


def chunk_of(made: list[Batch], *, first_global: int = 11) -> Chunk:
    raw = memoryview(b"".join(bytes(part) for batch in made for part in batch.buffers))
    globals_ = array("Q", range(first_global, first_global + len(made)))
    return Chunk(0, [batch.nbytes for batch in made], made[-1].last_index, globals_, raw)


def wanted(**how: Any) -> FeedRequest:
    return FeedRequest(credit=ROOM, **how)


def frames_of(piece: Piece) -> list[Frame]:
    """As the client has them."""
    return [Frame(f.kind, 1, f.header, memoryview(b"".join(bytes(part) for part in f.body))) for f in piece.frames]


def read(piece: Piece) -> list[LogBatch]:
    return [batch for frame in frames_of(piece) if frame.kind is not Kind.SKIPPED for batch in batches_of(frame)]


def check_shared(batch: LogBatch | LogMetadata, indexes: list[int]) -> None:
    """It is the batch of indexes 3 to 7, or what was asked for of it."""
    assert batch.origins == origins_from(3)
    assert (batch.producer_id, batch.epoch, batch.sequence) == (NO_PRODUCER, 0, 0)
    assert (batch.partition_id, batch.global_index, batch.timestamp_ms) == (3, 12, 1003)
    assert batch.indexes().tolist() == indexes
    assert batch.position == 8


def check_rows(batch: LogBatch, indexes: list[int]) -> None:
    check_shared(batch, indexes)
    assert batch.records.records() == [record(index) for index in indexes]


def test_who_knows_them_gets_whole_batches_as_they_lie() -> None:
    chunk = chunk_of(chain())
    piece = pack(chunk, 1, wanted(whole=True, mixed=True), P3)
    (frame,) = frames_of(piece)
    assert frame.kind is Kind.BATCHES
    assert frame.body == chunk.raw
    assert (piece.next_index, piece.cost, piece.nbytes) == (10, len(chunk.raw), len(chunk.raw))
    front, shared, last = read(piece)
    assert [(b.producer_id, b.epoch, b.sequence, b.origins) for b in (front, last)] == [
        (ANNE, 2, 68, ()),
        (BERT, 0, 7, ()),
    ]
    check_rows(shared, [3, 4, 5, 6, 7])


@pytest.mark.parametrize(("whole", "mixed"), [(True, False), (False, True), (False, False)])
def test_others_get_them_record_by_record_with_their_origins(whole: bool, mixed: bool) -> None:
    piece = pack(chunk_of(chain()), 1, wanted(whole=whole, mixed=mixed), P3)
    frames = frames_of(piece)
    assert [frame.kind for frame in frames] == [Kind.RECORDS] * 3
    said = frames[1].header
    assert (said["origins"], said["origins_index"]) == (pack_origins(origins_from(3)), 3)
    assert (said["producer"], said["epoch"], said["sequence"]) == (bytes(16), 0, 0)
    assert not any({"origins", "origins_index"} & frame.header.keys() for frame in (frames[0], frames[2]))
    front, shared, last = read(piece)
    assert [(b.producer_id, b.epoch, b.sequence, b.origins) for b in (front, last)] == [
        (ANNE, 2, 68, ()),
        (BERT, 0, 7, ()),
    ]
    check_rows(shared, [3, 4, 5, 6, 7])
    assert piece.next_index == 10


def test_whole_batches_of_one_producer_each_go_as_they_lie_to_whoever_knows_no_others() -> None:
    front, shared, last = chain()
    for made, kind in ([front], Kind.BATCHES), ([last], Kind.BATCHES), ([front, shared], Kind.RECORDS):
        chunk = chunk_of(made)
        assert chunk.has_mixed is (kind is Kind.RECORDS)
        assert {f.kind for f in pack(chunk, 1, wanted(whole=True), P3).frames} == {kind}


@pytest.mark.parametrize("how", [{"whole": True, "mixed": True}, {"whole": True}, {}])
@pytest.mark.parametrize("first", [3, 4, 5, 6, 7])
def test_from_within_one_the_origins_are_those_of_the_whole(how: dict[str, bool], first: int) -> None:
    shared, last = read(pack(chunk_of(chain()[1:], first_global=12), first, wanted(**how), P3))
    check_rows(shared, list(range(first, 8)))
    assert last.indexes().tolist() == [8, 9]
    assert last.sequence == 7


@pytest.mark.parametrize(
    ("prefix", "first", "indexes"), [(b"o/", 3, [3, 5, 7]), (b"e/", 3, [4, 6]), (b"o/", 4, [5, 7]), (b"o/7", 3, [7])]
)
def test_what_a_filter_leaves_has_all_of_the_origins(prefix: bytes, first: int, indexes: list[int]) -> None:
    asked = wanted(whole=True, mixed=True, filter=Filter(prefix))
    made = chain()[1:2]
    piece = pack(chunk_of(made, first_global=12), first, asked, P3)
    assert [frame.kind for frame in piece.frames] == [Kind.RECORDS]
    (shared,) = read(piece)
    check_rows(shared, indexes)
    bare = pack(chunk_of(made, first_global=12), first, wanted(metadata_only=True, filter=Filter(prefix)), P3)
    (frame,) = frames_of(bare)
    check_shared(metadata_of(frame), indexes)


def test_of_one_without_anything_wanted_there_is_nothing() -> None:
    piece = pack(chunk_of(chain()), 1, wanted(whole=True, mixed=True, filter=Filter(b"o/9")), P3)
    (last,) = read(piece)
    assert (last.origins, last.indexes().tolist()) == ((), [9])
    assert pack(chunk_of(chain()[:2]), 1, wanted(filter=Filter(b"o/9")), P3).frames == [
        (Kind.SKIPPED, {"next_index": 8}, [])
    ]


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("first", [3, 6])
def test_without_data_the_origins_are_there_too(first: int, mixed: bool) -> None:
    asked = wanted(whole=True, mixed=mixed, metadata_only=True)
    shared, last = frames_of(pack(chunk_of(chain()[1:], first_global=12), first, asked, P3))
    assert (shared.kind, last.kind) == (Kind.METADATA, Kind.METADATA)
    found, indexes = metadata_of(shared), list(range(first, 8))
    check_shared(found, indexes)
    rows = [record(index) for index in indexes]
    assert found.keys() == [row.key for row in rows]
    assert found.headers() == [row.headers for row in rows]
    assert [(each.index, each.size) for each in found.descriptors()] == [(i, len(b"payload %d" % i)) for i in indexes]
    assert metadata_of(last).origins == ()


# -- what a client makes of what cannot be

GARBLED = [
    {"origins": None},
    {"origins": "text"},
    {"origins": b""},
    {"origins": pack_origins(origins_from(3))[:-1]},
    {"origins": pack_origins(origins_from(3)[:2])},
    {"origins": pack_origins([*origins_from(3)[:2], origins_from(3)[2]._replace(record_count=0)])},
    {"origins": pack_origins([origins_from(3)[0]._replace(sequence=NUMBER_MAX + 1), *origins_from(3)[1:]])},
    {"origins": pack_origins([origins_from(3)[0]._replace(floor=NUMBER_MAX + 1), *origins_from(3)[1:]])},
    {"origins_index": None},
    {"origins_index": b"3"},
    {"origins_index": 4},
    {"next_index": 9},
    {"next_index": 0},
]


@pytest.mark.parametrize("garbled", GARBLED)
@pytest.mark.parametrize(("kind", "of"), [(Kind.RECORDS, batches_of), (Kind.METADATA, metadata_of)])
def test_origins_that_cannot_be_are_the_node_s_mistake(
    garbled: dict[str, Any], kind: Kind, of: Callable[[Frame], Any]
) -> None:
    piece = pack(chunk_of(chain()[1:2]), 3, wanted(metadata_only=kind is Kind.METADATA), P3)
    (frame,) = frames_of(piece)
    with pytest.raises(ProtocolError, match=kind.name):
        next(iter(of(Frame(kind, 1, frame.header | garbled, frame.body))), None)  # nothing that came out of it


def raw_with(origins: tuple[Origin, ...], *, said: int | None = None) -> memoryview:
    """A batch of five records. ``said``: how many origins its header has."""
    raw = bytearray(b"".join(map(bytes, built(3, 5, None, origins=origins).buffers)))
    if said is not None:
        fields = list(HEAD.unpack_from(raw))
        fields[EPOCH] = said
        HEAD.pack_into(raw, 0, *fields)
        raw[CRC_AT:HEADER_BYTES] = CRC.pack(google_crc32c.value(bytes(raw[:CRC_AT])))
    return memoryview(raw)


def read_raw(raw: memoryview) -> list[LogBatch]:
    header = {"partition": 3, "first_index": 3, "global_indexes": array("Q", [12]).tobytes()}
    return list(batches_of(Frame(Kind.BATCHES, 1, header, raw)))


@pytest.mark.parametrize(
    "origins",
    [
        origins_from(3)[:2],
        (*origins_from(3), origins_from(3)[0]),
        (origins_from(3)[0]._replace(record_count=0), *origins_from(3)[1:]),
        (origins_from(3)[0]._replace(sequence=NUMBER_MAX + 1), *origins_from(3)[1:]),
        (origins_from(3)[0]._replace(floor=NUMBER_MAX + 1), *origins_from(3)[1:]),
    ],
)
def test_a_whole_batch_with_origins_that_cannot_be(origins: tuple[Origin, ...]) -> None:
    with pytest.raises(ProtocolError, match="BATCHES: the batch at 3: "):
        read_raw(raw_with(origins))


@pytest.mark.parametrize("said", [0, 1, 2, 4, 5, 1000, (1 << 32) - 1])
def test_a_whole_batch_that_says_it_has_more_origins_or_fewer(said: int) -> None:
    (sound,) = read_raw(raw_with(origins_from(3), said=3))
    check_rows(sound, [3, 4, 5, 6, 7])
    with pytest.raises(ProtocolError, match="BATCHES: the batch at 3: "):
        read_raw(raw_with(origins_from(3), said=said))


# -- pieces of them


@pytest.mark.parametrize("filtered", [None, Filter(b"o/")])
@pytest.mark.parametrize(("records_max", "bytes_max"), [(1, 0), (2, 0), (0, 1), (0, 20), (0, 0)])
def test_pieces_have_the_origins_of_the_whole(filtered: Filter | None, records_max: int, bytes_max: int) -> None:
    asked = wanted(whole=True, mixed=True, filter=filtered)
    (whole,) = read(pack(chunk_of(chain()[1:2], first_global=12), 3, asked, P3))
    cut = list(whole.pieces(records_max, bytes_max))
    assert {piece.sequence for piece in cut} == {0}
    assert (len(cut) > 1) is bool(records_max or bytes_max)
    assert {piece.origins for piece in cut} == {origins_from(3)}
    assert {(piece.producer_id, piece.epoch) for piece in cut} == {(NO_PRODUCER, 0)}
    assert [index for piece in cut for index in piece.indexes().tolist()] == whole.indexes().tolist()
    assert [row for piece in cut for row in piece.records.records()] == whole.records.records()
    assert cut[-1].position == whole.position == 8


# -- out of a log


def share(world: World, partition: int) -> Batch:
    """One more batch there: shared."""
    each, done = world.logs[partition], world.batches.setdefault(partition, [])
    before = done[-1] if done else None
    first = before.last_index + 1 if before is not None else 1
    batch = built(first, 5, before, PartitionId(partition), origins=origins_from(first))
    assert each.append(batch)
    done.append(batch)
    world.sync(partition)
    world.parent.global_index += 1
    each.commit(last_index=batch.last_index, digest=batch.digest, global_index=world.parent.global_index, term=1)
    world.lately.ordered(world.parent.global_index, PartitionId(partition))
    return batch


def logs() -> World:
    """Global index 3 is shared, in partition 1, and stands behind another one there."""
    world = World(3)
    world.append(1, [b"1", b"2"])
    world.append(0, [b"front"])
    share(world, 1)
    world.append(1, [b"behind"])
    world.append(0, [b"last"])
    return world


async def test_a_scan_gives_them_to_who_knows_them() -> None:
    world, client = logs(), Client()
    begin(world, client, mixed=True)
    await settle(world)
    found = batches(client)
    assert [batch.global_index for batch in found] == [1, 2, 3, 4, 5]
    assert [batch.origins for batch in found] == [(), (), origins_from(3), (), ()]
    assert found[2].records.records() == [record(index) for index in range(3, 8)]
    assert client.ends == [None]


@pytest.mark.parametrize("start_global", [1, 2, 3])
async def test_a_scan_ends_at_one_for_who_does_not(start_global: int) -> None:
    world, client = logs(), Client()
    begin(world, client, start_global=start_global)
    await settle(world)
    (error,) = client.ends
    assert isinstance(error, IncompatibleVersion)
    assert error.found == "mixed"
    assert "partition 1 " in str(error)
    assert globals_of(client) == list(range(start_global, 3))  # what is in front of it, in any partition
    assert client.of(Kind.END) == []
    assert (world.read_budget.nbytes, world.read_budget.segments) == (0, 0)
    assert not any(world.wakers.values())


@pytest.mark.parametrize(("partitions", "start_global"), [([0, 2], 0), ([0, 1, 2], 4)])
async def test_a_scan_that_does_not_come_across_one_ends_as_ever(partitions: list[int], start_global: int) -> None:
    world, client = logs(), Client()
    begin(world, client, partitions=partitions, start_global=start_global)
    await settle(world)
    assert client.ends == [None]
    assert globals_of(client) == ([4, 5] if start_global else [2, 5])


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        ({"whole": True, "mixed": True}, {Kind.BATCHES}),
        ({"whole": True}, {Kind.RECORDS}),
        ({}, {Kind.RECORDS}),
    ],
)
def test_a_tail_has_a_form_for_everybody(asked: dict[str, bool], kinds: set[Kind]) -> None:
    world, client = logs(), Client()
    tail = Tail(world, PartitionId(1), FeedRequest.parse({"credit": ROOM, "start": 4, **asked}), **client.how())
    tail.move()
    world.work()
    assert client.ends == [None]
    sent = [Frame(kind, 1, header, memoryview(body)) for kind, header, body in client.frames[:-1]]
    assert {frame.kind for frame in sent} == kinds
    shared, behind = (batch for frame in sent for batch in batches_of(frame))
    assert shared.origins == origins_from(3)
    assert shared.records.records() == [record(index) for index in range(4, 8)]
    assert (behind.origins, behind.indexes().tolist()) == ((), [8])
