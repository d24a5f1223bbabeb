"""What fuzzing found, kept: each input with what has to come of it."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest

from chaos.fuzz.batches import seal_batch
from chaos.fuzz.disk import MemoryDisk
from chaos.fuzz.requests import KINDS
from chaos.fuzz.samples import batch, raw, records
from chaos.fuzz.target import counted, packed
from chaos.fuzz.targets import TARGETS
from dispatcher.requests.requests import parse_reply
from logboom.config import load, to_toml
from logboom.errors import ConfigError, CorruptData, InvalidRequest, LogboomError, Overloaded, ProtocolError, from_wire
from logboom.records import RecordBlock
from logboom.wire import Kind
from partitions.apply.dedupe import Producer
from partitions.log.batch import parse_header
from raftlog.engine import messages
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal import Journal, cluster_hash
from raftlog.journal.journal_codec import RecordKind

DEEP = b"\x91" * 1000 + b"\xc0"


def with_headers(packed_headers: bytes, count: int = 1) -> RecordBlock:
    """Records of one byte each; the first one's headers are as given."""
    ends = struct.pack(f"<{count}I", *range(1, count + 1))
    header_ends = struct.pack("<I", len(packed_headers)) * count
    return RecordBlock.parse(count, b"\x02\0\0\0" + ends + header_ends + packed_headers, b"x" * count)


class TestRecordHeaders:
    @pytest.mark.parametrize("size", [1 << 31, 1 << 40, (1 << 64) - 1])
    def test_a_number_where_bytes_belong_is_not_so_many_zeros(self, size: int) -> None:
        block = with_headers(msgpack.packb([["name", size]]))
        tracemalloc.start()
        try:
            assert block.records()[0].headers == (("", msgpack.packb([["name", size]])),)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize(
        "headers", [b"\xc1", b"\x91\x92\xa1a\xa1b", b"\x91\x92\xc4\x01a\xc4\x01b", b"\x81\xa1a\xc0"]
    )
    def test_whatever_is_not_text_and_bytes_is_one_header_without_a_name(self, headers: bytes) -> None:
        assert with_headers(headers).records()[0].headers == (("", headers),)

    def test_part_of_a_block_is_taken_whatever_the_headers_of_another_record_are(self) -> None:
        """A tail that began within such a batch ended in an error that nobody had made a reply of."""
        rest = with_headers(b"\xc1", count=3).take(1, 3)
        assert [(row.payload, row.headers) for row in rest.records()] == [(b"x", ())] * 2

    def test_part_of_a_block_has_the_same_records(self) -> None:
        rows = records(7, headers=True)
        for start in range(7):
            for stop in range(start + 1, 8):
                assert RecordBlock.from_records(rows).take(start, stop).records() == rows[start:stop]

    def test_no_records_are_no_block(self) -> None:
        with pytest.raises(InvalidRequest):
            RecordBlock.from_records(records(3)).take(2, 2)


class TestErrors:
    @pytest.mark.parametrize(
        "header",
        [
            {"code": ["overloaded"]},
            {"fields": [1]},
            {"fields": {"self": 1, "kind": 2, "message": 3, "outcome": 4}},
            {"message": [1]},
            {"outcome": ["applied"]},
            {"outcome": "maybe"},
        ],
    )
    def test_an_error_frame_gives_a_typed_error_whatever_it_says(self, header: dict[str, Any]) -> None:
        error = from_wire({"code": "overloaded", "message": "m", "outcome": "not_applied", "fields": {}, **header})
        assert isinstance(error, LogboomError)
        assert error.outcome == ("unknown" if "outcome" in header else "not_applied")
        TARGETS["errors"].one_input(packed(error.to_wire()))

    def test_its_fields_are_kept(self) -> None:
        error = from_wire(Overloaded("full", partition_id=3, retry_after=0.5).to_wire())
        assert isinstance(error, Overloaded)
        assert (error.partition_id, error.retry_after) == (3, 0.5)


class TestRaftMessages:
    append = {"type": "append_entries", "term": 4, "commit_index": 2, "seq": 17}  # noqa: RUF012

    @pytest.mark.parametrize(
        "more",
        [
            {"prevLogIdx": 2, "prevLogTerm": 1},
            {"prevLogIdx": 2, "prevLogTerm": 1, "entries": [[b"\x01", 3.0, 4]]},
            {"prevLogIdx": 0, "prevLogTerm": 1, "entries": [[b"\x01", True, 4]]},
            {"prevLogIdx": 2, "prevLogTerm": 1, "entries": [[b"\x01", 3, -1]]},
            {"prevLogIdx": -3, "prevLogTerm": 1, "entries": []},
            {"prevLogIdx": 2, "prevLogTerm": 1 << 63, "entries": []},
        ],
    )
    def test_entries_are_whole_numbers_in_range(self, more: dict[str, Any]) -> None:
        with pytest.raises(ProtocolError):
            messages.decode(memoryview(packed({**self.append, **more})))


class TestBetweenNodes:
    @pytest.mark.parametrize("part", [[], [0, 1, 2, 3, 0], [0, 1, 2, 3, 0, 7], [0, 1, None, 3, 0, None], 5])
    def test_a_reply_is_checked(self, part: object) -> None:
        with pytest.raises(ProtocolError):
            parse_reply({"parts": [part], "commit_index": 3})

    @pytest.mark.parametrize("header", [{}, {"error": "text"}, {"parts": 5, "commit_index": 3}, {"parts": []}])
    def test_a_broken_reply_cuts_the_link_and_leaves_nobody_without_an_answer(self, header: dict[str, Any]) -> None:
        packed_header = packed(header)
        forwarded = (
            b"\x01"
            + bytes([KINDS.index(Kind.FORWARDED), 1])
            + struct.pack("<H", len(packed_header))
            + packed_header
            + bytes(2)
        )
        TARGETS["peer"].one_input(forwarded)


class TestWhatIsSaidBack:
    @pytest.mark.parametrize("name", [b"version", b"cluster"])
    def test_a_list_in_a_list_a_thousand_times(self, name: bytes) -> None:
        """It could not be printed: RecursionError, before the sender had introduced itself."""
        header = b"\x82" + packed("version") + packed(1) + packed(name.decode()) + DEEP
        TARGETS["session"].one_input(b"\0\0\x01" + struct.pack("<H", len(header)) + header + bytes(2))

    def test_a_long_text_is_not_sent_back(self) -> None:
        header = packed({"version": "v" * 5000})
        TARGETS["session"].one_input(b"\0\0\x01" + struct.pack("<H", len(header)) + header + bytes(2))


class TestBatches:
    @pytest.mark.parametrize(
        ("offset", "field"),
        [
            (16, struct.pack("<Q", 0)),  # first index
            (16, struct.pack("<Q", (1 << 64) - 1)),
            (12, struct.pack("<I", 0xFFFFFFFF)),  # record count
            (64, struct.pack("<Q", 1 << 63)),  # sequence
            (72, struct.pack("<Q", 1 << 63)),  # floor
        ],
    )
    def test_numbers_that_no_log_reaches_are_damage(self, offset: int, field: bytes) -> None:
        """They passed, and could not be written into an index or a producer's entry later on."""
        whole = raw(batch())
        sealed = seal_batch(whole[:offset] + field + whole[offset + len(field) :])
        with pytest.raises(CorruptData):
            parse_header(sealed)


class TestJournal:
    here = Path("/journal")

    def opened(self, *rows: tuple[RecordKind, bytes]) -> Journal:
        disk = MemoryDisk()
        salt = codec.Salt.of(b"the salt")
        sealed = [
            codec.encode_record(kind, body, sequence=n, synced=0, floor=1, salt=salt)
            for n, (kind, body) in enumerate(rows, 1)
        ]
        header = codec.segment_header(first_sequence=1, cluster=cluster_hash("fuzz"), salt=b"the salt")
        disk.put(self.here / f"{1:020d}.journal", header + b"".join(sealed))
        return Journal.open(
            disk=disk,
            directory=self.here,
            cluster_id="fuzz",
            segment_bytes=4096,
            random_bytes=random.Random(0).randbytes,
        )

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            (RecordKind.ENTRY, bytes(15)),
            (RecordKind.TRUNCATE, b""),
            (RecordKind.TRUNCATE, bytes(9)),
            (RecordKind.HARDSTATE, bytes(7)),
            (RecordKind.HARDSTATE, bytes(8) + b"\xff"),
            (RecordKind.REDO, bytes(15)),
            (RecordKind.SETTLED, bytes(7)),
            (RecordKind.STRIPPED, b""),
            (RecordKind.STRIPPED, bytes(8)),
            (RecordKind.STRIPPED, b"\xff" * 8),
            (RecordKind.TRUNCATE, codec.INDEX.pack(0)),
            (RecordKind.TRUNCATE, codec.INDEX.pack(1)),
        ],
    )
    def test_a_record_that_is_none_of_ours_is_damage(self, kind: RecordKind, body: bytes) -> None:
        """Right by its checksum, and struct.error, IndexError or a journal without its first entry before."""
        with pytest.raises(CorruptData, match=str(self.here)):
            self.opened((kind, body))

    def test_those_that_are_ours_are_read(self) -> None:
        journal = self.opened(
            (RecordKind.HARDSTATE, codec.INDEX.pack(3) + b"n2"), (RecordKind.STRIPPED, codec.INDEX.pack(5))
        )
        assert (journal.term, journal.vote, journal.taken_sequence) == (3, "n2", 6)


class TestProducers:
    @pytest.mark.parametrize(
        "row",
        [
            b"\xc1",
            packed([1, 0, [], []]),
            packed([1, 0, 5, [], 1]),
            packed([1, 0, [[3, 4, 5]], [], 1]),
            packed([1, 0, [[4, 3]], [], 1]),
            packed([1, 9, [[3, 4]], [], 1]),
            packed(["1", 0, [], [], 1]),
            packed([1, 0, [], [[1, 2, 3, 4, 5, b"too many"]], 1]),
            packed([1, 0, [], [[1, 2, 3, 4, 5, b""]], 1]),
            packed([1, 0, [], [[1, 2]], 1]),
        ],
    )
    def test_an_entry_that_is_none_of_ours_is_damage(self, row: bytes) -> None:
        with pytest.raises(CorruptData):
            Producer.decode(row)


class TestConfiguration:
    @pytest.mark.parametrize(
        "toml",
        [
            "x = " + "[" * 2000,
            "x = 1" + "0" * 5000,
            '[cluster.overrides]\n"²" = {}',
            '[cluster.overrides]\n"03" = {}',
            '[cluster.overrides]\n"1' + "0" * 5000 + '" = {}',
        ],
    )
    def test_files_that_ended_in_a_stack(self, tmp_path: Path, toml: str) -> None:
        file = tmp_path / "c.toml"
        file.write_text(toml)
        with pytest.raises(ConfigError):
            load(file, {})

    @pytest.mark.parametrize(
        "variable", [("LOGBOOM_NODE__ID", "\udcff"), ("LOGBOOM_NODE__\udcff", "x"), ("LOGBOOM___NID", "x")]
    )
    def test_a_variable_that_is_no_setting_is_named(self, variable: tuple[str, str]) -> None:
        with pytest.raises(ConfigError, match="environment variable") as error:
            load(None, dict([variable]))
        assert error.value.path == variable[0]

    def test_a_control_character_comes_back(self, tmp_path: Path) -> None:
        settings = load(None, {"LOGBOOM_NODE__ID": "a\x7f\x01\n\"'"})
        file = tmp_path / "c.toml"
        file.write_text(to_toml(settings))
        assert load(file, {}) == settings

    def test_the_input(self) -> None:
        TARGETS["config"].one_input(counted(b"", b"LOGBOOM_NODE__ID=\x7f\nLOGBOOM_TLS__DIRECTORY=\xff"))
