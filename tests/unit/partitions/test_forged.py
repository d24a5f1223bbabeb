"""Records that look like batches, where a batch around them is torn."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pytest

from logboom.batch_layout import CRC, HEAD
from logboom.errors import IncompatibleVersion
from partitions.log.batch import Batch
from tests.unit.partitions.batches import commit, flush, make, open_log

CRC_AT = HEAD.size + 32


def of_a_later_release(batch: Batch) -> bytes:
    """Its header, with another version and a checksum that is right."""
    raw = bytearray(b"".join(batch.buffers))
    raw[4:6] = (2).to_bytes(2, "little")
    raw[CRC_AT : CRC_AT + 4] = CRC.pack(google_crc32c.value(bytes(raw[:CRC_AT])))[:4]
    return bytes(raw)


def test_what_a_client_sent_is_no_batch_of_a_later_release(tmp_path: Path) -> None:
    """After a power loss that tore the batch around it the node refused to start, for good."""
    first = make(1, bytes(16), [b"whole"])
    forged = make(2, first.digest, [b"a" * 5000 + of_a_later_release(first) * 3 + b"z" * 5000])
    log = open_log(tmp_path, segment_bytes=1 << 20)
    for batch in (first, forged):
        log.append(batch)
    flush(log)
    commit(log, [first, forged])
    log.close()
    (file,) = tmp_path.glob("*.log")
    raw = bytearray(file.read_bytes())
    at = raw.index(b"a" * 5000)
    raw[at : at + 4096] = bytes(4096)
    file.write_bytes(raw)
    again = open_log(tmp_path, segment_bytes=1 << 20)
    assert again.holds(first.last_index, first.digest)
    assert not again.holds(forged.last_index, forged.digest)
    again.close()


def test_where_a_batch_is_to_be_it_is_one(tmp_path: Path) -> None:
    first = make(1, bytes(16), [b"whole"])
    log = open_log(tmp_path, segment_bytes=1 << 20)
    log.append(first)
    flush(log)
    log.close()
    (file,) = tmp_path.glob("*.log")
    raw = file.read_bytes()
    end = raw.index(b"whole") + 5
    later = of_a_later_release(make(2, first.digest, [b"x"]))
    file.write_bytes(raw[:end] + later + raw[end + len(later) :])
    with pytest.raises(IncompatibleVersion, match="batch of format 2"):
        open_log(tmp_path, segment_bytes=1 << 20)


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param([True], id="whole"),
        pytest.param([False, True], id="damaged, then whole"),
        pytest.param([False, False, True], id="two damaged, then whole"),
        pytest.param([False], id="damaged, and the last"),
        pytest.param([], id="nothing"),
    ],
)
def test_a_record_that_is_a_batch_is_none_where_the_damaged_one_says_how_long_it_is(
    behind: list[bool], tmp_path: Path
) -> None:
    """It was held as one of the log's, and nothing in front of it was ever removed."""
    first = make(1, bytes(16), [b"whole"])
    inner = make(9, first.digest, [b"forged"])
    around = make(2, first.digest, [b"a" * 5000 + b"".join(inner.buffers) + b"z" * 5000])
    batches = [first, around]
    for number in range(len(behind)):
        batches.append(make(3 + number, batches[-1].digest, [b"behind %d" % number]))
    log = open_log(tmp_path, segment_bytes=1 << 20)
    for batch in batches:
        log.append(batch)
    flush(log)
    commit(log, batches)
    log.close()
    (file,) = tmp_path.glob("*.log")
    raw = bytearray(file.read_bytes())
    at = raw.index(b"a" * 5000)
    raw[at : at + 4096] = bytes(4096)
    for number, whole in enumerate(behind):
        raw[raw.index(b"behind %d" % number)] ^= not whole
    file.write_bytes(raw)
    again = open_log(tmp_path, segment_bytes=1 << 20)
    held = [again.holds(batch.last_index, batch.digest) for batch in batches]
    assert held == [True, False, *behind]
    assert not again.holds(inner.last_index, inner.digest)
    again.close()
