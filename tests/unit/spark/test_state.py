"""A state on its way into a task that takes its time."""

import asyncio
import threading
from dataclasses import replace

import pytest

from logboom.errors import DeadlineExceeded, Unavailable
from logboom.records import RecordBlock
from logboom.spark import spool
from logboom.spark.columns import STATE
from logboom.spark.options import read_options
from logboom.spark.read import read_state
from logboom.spark.shares import Share
from tests.unit.spark.read_world import E, session

PAIRS = RecordBlock.from_columns(keys=[b"a", b"b"], payloads=[b"bv", b"bw"])

__all__ = ["session"]


def state_of_0(client):
    return client.scan_blocks(0)


def test_a_state_is_read_anew_only_while_nothing_of_it_was_handed_on(session):
    options = read_options({**E, "view": "state"})
    found = session([Unavailable("gone")], [(7, PAIRS)])
    rows = [r for c in read_state(options, Share(0), STATE.names, found) for r in c.to_pylist()]
    assert [(r["key"], r["value"], r["global_offset"]) for r in rows] == [(b"a", b"v", 7), (b"b", b"w", 7)]
    with pytest.raises(Unavailable):
        list(read_state(options, Share(0), STATE.names, session([(7, PAIRS), Unavailable("gone")])))


@pytest.mark.parametrize("silent", [[DeadlineExceeded("behind")], [None]], ids=["says so", "says nothing"])
def test_a_replica_that_is_behind_or_whose_disk_hangs_is_left_for_another(session, silent):
    """The task failed when its time was over, with none of its retries."""
    options = read_options({**E, "view": "state", "atGlobalOffset": "7"})
    found = session(silent, silent, [(7, PAIRS)])
    assert keys_of(options, found) == [b"a", b"b"]
    assert [how["at_least"] for how in found.client.asked] == [7, 7, 7]
    with pytest.raises(DeadlineExceeded):
        keys_of(replace(options, retries=0), session([DeadlineExceeded("behind")]))
    with pytest.raises(DeadlineExceeded):
        keys_of(options, session([(7, PAIRS), DeadlineExceeded("the rest")]))


@pytest.mark.parametrize("how", [{}, {"node": "n1"}, {"node": "n1", "atGlobalOffset": "7"}])
def test_where_only_one_may_be_asked_it_is_waited_for_once(session, how):
    with pytest.raises(DeadlineExceeded):
        keys_of(read_options({**E, "view": "state", **how}), session([DeadlineExceeded("the time is over")]))


def keys_of(options, found):
    return [k for c in read_state(options, Share(0), STATE.names, found) for k in c["key"].to_pylist()]


def test_of_a_state_no_more_is_fetched_than_there_is_room_for_in_memory_and_on_the_disk(session, caplog):
    found = session([(k, PAIRS) for k in range(1, 1000)])
    blocks = found.spooled(state_of_0, memory_bytes=10 * PAIRS.nbytes, file_bytes_max=1_000, patience=0.0)
    assert next(blocks)[0] == 1
    while "maxSpillBytes is 1000" not in caplog.text:
        found.run(lambda _: asyncio.sleep(0))
    for _ in range(50):
        found.run(lambda _: asyncio.sleep(0))
    assert found.client.given < 60
    assert [at for at, _ in blocks] == list(range(2, 1000))


def test_a_state_is_whole_and_in_order_wherever_it_lay(session, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'none'},{tmp_path}")
    found = session([(k, PAIRS) for k in range(1, 301)])
    blocks = found.spooled(state_of_0, memory_bytes=1, file_bytes_max=1 << 20, patience=0.0)
    begun = next(blocks)
    while not found.client.closed:  # the node is rid of it
        found.run(lambda _: asyncio.sleep(0))
    rest = list(blocks)
    assert [at for at, _ in (begun, *rest)] == list(range(1, 301))
    assert all((block.keys(), block.payloads()) == (PAIRS.keys(), PAIRS.payloads()) for _, block in rest)
    assert not list(tmp_path.iterdir()), "nobody has to clean up"


def test_quick_tasks_write_no_file(session, monkeypatch):
    monkeypatch.setattr(spool, "_nameless", lambda: pytest.fail("a file"))
    found = session([(k, PAIRS) for k in range(1, 1001)])
    blocks = found.spooled(state_of_0, memory_bytes=1, file_bytes_max=1 << 20, patience=60.0)
    assert [at for at, _ in blocks] == list(range(1, 1001))


@pytest.mark.parametrize("error", [OSError("no space left"), RuntimeError("no space left for a thread")])
def test_a_disk_that_takes_nothing_costs_a_state_nothing_but_time(session, monkeypatch, caplog, error):
    def full():
        raise error

    monkeypatch.setattr(spool, "_nameless", full)
    found = session([(k, PAIRS) for k in range(1, 101)])
    blocks = found.spooled(state_of_0, memory_bytes=1, file_bytes_max=1 << 20, patience=0.0)
    assert [at for at, _ in blocks] == list(range(1, 101))
    assert caplog.text.count("no space left") == 1


def test_what_fails_behind_what_was_fetched_is_told_behind_it(session):
    found = session([*((k, PAIRS) for k in range(1, 101)), Unavailable("gone")])
    blocks = found.spooled(state_of_0, memory_bytes=1, file_bytes_max=1 << 20, patience=0.0)
    assert [next(blocks)[0] for _ in range(100)] == list(range(1, 101))
    with pytest.raises(Unavailable, match="gone"):
        next(blocks)


def test_a_state_that_is_left_half_way_ends_its_scan_and_its_file(session, monkeypatch):
    made, nameless = [], spool._nameless
    monkeypatch.setattr(spool, "_nameless", lambda: made.append(nameless()) or made[0])
    found = session([*((k, PAIRS) for k in range(1, 101)), None])
    blocks = found.spooled(state_of_0, memory_bytes=1, file_bytes_max=1 << 20, patience=0.0)
    next(blocks)
    while found.client.given < 100:
        found.run(lambda _: asyncio.sleep(0))
    blocks.close()
    while not found.client.closed:
        found.run(lambda _: asyncio.sleep(0))
    assert made[0].closed


@pytest.mark.parametrize("moment", ["made", "written"])
def test_a_state_that_the_collector_finds_where_its_file_is_written_ends_there(session, monkeypatch, caplog, moment):
    """It closes that file on the thread that is writing to it, which waited for itself."""
    held, files, nameless = [], [], spool._nameless
    begun, ended = threading.Event(), threading.Event()

    def collected():
        assert begun.wait(10)
        held.clear()  # as the collector may, with whatever is in a cycle
        ended.set()

    class File:
        def __init__(self):
            self.file = nameless()
            self.seek, self.close = self.file.seek, self.file.close

        def write(self, raw):
            if moment == "written":
                collected()
            return self.file.write(raw)

    def made():
        if moment == "made":
            collected()
        files.append(File())
        return files[-1]

    monkeypatch.setattr(spool, "_nameless", made)
    found = session([*((k, PAIRS) for k in range(1, 101)), None])
    held.append(found.spooled(state_of_0, memory_bytes=1, file_bytes_max=1 << 20, patience=0.0))
    next(held[0])
    begun.set()
    assert ended.wait(10)
    while not (found.client.closed and files and files[0].file.closed):
        found.run(lambda _: asyncio.sleep(0))
    assert not caplog.text
