"""Sessions of one process: how many there are, and what they come to after a restore."""

import asyncio
import os
import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from logboom.errors import LineageMismatch
from logboom.spark import batch, connection
from logboom.spark.batch import LogboomReader, plan_write, task_message, task_reports, view_schema
from logboom.spark.connection import SESSIONS_MAX, session
from logboom.spark.options import read_options, write_options
from logboom.spark.report import combine, finish
from logboom.spark.shares import Share, history
from logboom.wire import Kind
from tests.unit.logboom.conftest import node
from tests.unit.logboom.fake_server import FakeNode

__all__ = ["node"]

pytestmark = pytest.mark.filterwarnings("ignore:the token goes")  # by which sessions are told apart here


@pytest.fixture
def target(node: FakeNode):
    """By the token; its sessions end with the test."""
    before = dict(connection._sessions)
    yield lambda token: write_options({"endpoints": node.address, "token": token}).target
    for key in [k for k in connection._sessions if k not in before]:
        connection._sessions.pop(key).rest()


def partitions(found):
    return found.run(lambda client: client.partitions())


def threads():
    return sum(thread.name == "logboom-spark" for thread in threading.enumerate())


def test_those_that_nobody_uses_any_more_are_closed(node, target):
    """Tokens that are made anew every hour are a target each, in a process that lives for months."""
    before = threads()
    first = session(target("first"))
    for number in range(3 * SESSIONS_MAX):
        assert partitions(session(target(f"t{number}"))) == [0, 1, 2, 3]
    assert threads() - before <= SESSIONS_MAX
    assert len(node.sessions) <= SESSIONS_MAX + 1
    assert sum(pid == os.getpid() for pid, _ in connection._sessions) <= SESSIONS_MAX
    known, thread = first.run(told_by)
    assert known == [0, 1, 2, 3], "who still has one may use it"
    assert first.resting, "nobody finds it any more, and would close it"
    thread.join(10)
    assert threads() - before <= SESSIONS_MAX


async def told_by(client):
    return await client.partitions(), threading.current_thread()


def test_one_with_something_under_way_is_left_alone(node, target):
    asked, answer = threading.Event(), []

    def later(session, frame):
        answer.append((session, frame))
        asked.set()

    node.answers[Kind.STATUS] = later
    busy = session(target("busy"))
    waiting = busy.start(lambda client: client.status())
    assert asked.wait(10)
    for number in range(3 * SESSIONS_MAX):
        partitions(session(target(f"t{number}")))
    assert session(target("busy")) is busy
    loop = node._server.get_loop()
    loop.call_soon_threadsafe(answer[0][0].send, answer[0][1], Kind.STATUS_REPLY, {"leader": "n1"})
    assert waiting.result(10)["leader"] == "n1"


def restored(node):
    loop = node._server.get_loop()
    asyncio.run_coroutine_threadsafe(node.stop(), loop).result(10)
    node.lineage = "f" * 32
    asyncio.run_coroutine_threadsafe(node.start(), loop).result(10)


def test_a_process_that_outlives_a_restore_makes_a_new_one(node, target):
    """Spark's workers are used again, and nobody can have them make another client."""
    node.lineage = ""
    old = session(target("t"))
    assert partitions(old) == [0, 1, 2, 3]
    restored(node)
    with pytest.raises(LineageMismatch, match="it was restored"):
        session(target("t")).run(lambda client: client.barrier(1, partitions=[0], timeout=5))
    again = session(target("t"))
    assert again.run(lambda client: client.token()).lineage == "f" * 32
    assert session(target("t")) is again
    assert old.resting


class Task:
    """As Spark tells a task of itself."""

    def __init__(self, number):
        self.partitionId, self.attemptNumber = (lambda: number), (lambda: 0)


def test_a_write_on_both_sides_of_a_restore_is_not_done(node, target):
    """What the first task wrote is given up, with the history that it was written in."""
    node.lineage = ""
    options = write_options({"endpoints": node.address, "token": "t", "partitions": "0"})
    plan = plan_write(StructType().add("key", "string").add("value", "string"), options)
    rows = pa.RecordBatch.from_pydict({"key": ["k"], "value": ["v"]})
    first = task_message(plan, [rows], Task(0))
    restored(node)
    connection._sessions.pop((os.getpid(), options.target)).rest()  # another process
    second = task_message(plan, [rows], Task(1))
    nothing = task_message(plan, [], Task(2))
    with pytest.raises(LineageMismatch, match="tasks wrote on both sides of a restore") as caught:
        combine(plan, task_reports([first, second, nothing]))
    assert caught.value.outcome == "unknown"
    assert combine(plan, task_reports([second, nothing])).lineage == "f" * 32
    with pytest.raises(LineageMismatch, match="another history") as caught:
        finish(plan, task_reports([first, nothing]), began=0.0)
    assert caught.value.outcome == "unknown"


@pytest.fixture(params=["state", "log", "merged"])
def reader(node, target, monkeypatch, request):
    """Of one partition; a task that reads it gives the history that it reads in."""
    node.lineage, view = "", "state" if request.param == "state" else "log"
    monkeypatch.setattr(batch, f"{request.param}_shares", lambda *_: [Share(0)])
    monkeypatch.setattr(batch, f"read_{request.param}", lambda *given: iter([history(given[-1])[1]]))
    options = {"endpoints": node.address, "token": "t", "view": view}
    options |= {"ordered": "global"} if request.param == "merged" else {}
    return LogboomReader(view_schema(view), read_options(options))


def test_what_was_planned_before_a_restore_is_not_read_after_it(node, target, reader):
    """Half of the rows would be of what was given up: the same offsets, and indices, are other records."""
    (share,) = reader.partitions()
    assert list(reader.read(share)) == [""]
    restored(node)
    connection._sessions.pop((os.getpid(), target("t"))).rest()  # an executor that comes later
    with pytest.raises(LineageMismatch, match=r"planned: that was in 'test' \(first history\), and this is"):
        list(reader.read(share))


def test_a_query_of_many_tasks_asks_once_which_history_it_is_planned_in(reader, monkeypatch):
    """Each time is a call to another thread, and a query may have 100,000 tasks."""
    for kind in ("state", "log", "merged"):
        monkeypatch.setattr(batch, f"{kind}_shares", lambda *_: [Share(0)] * 1000)
    asked = []
    monkeypatch.setattr(batch, "history", lambda found: asked.append(found) or ("test", ""))
    assert {each.history for each in reader.partitions()} == {("test", "")}
    assert len(asked) == 1


def test_a_task_in_a_process_that_outlives_a_restore_reads_what_is_there_now(node, target, reader):
    """Spark's workers are used again: else the first query after a restore fails in each of them."""
    partitions(old := session(target("t")))
    restored(node)
    connection._sessions.pop((os.getpid(), target("t")))
    (share,) = reader.partitions()  # the driver is another process, and has another client
    connection._sessions.pop((os.getpid(), target("t"))).rest()
    connection._sessions[os.getpid(), target("t")] = old
    assert list(reader.read(share)) == ["f" * 32]
    assert old.resting


def test_one_that_is_superseded_with_something_under_way_is_closed_behind_it(node, target):
    """Nobody is given it any more: without that its thread would stay for ever, one for each restore."""
    node.lineage, before = "", threads()
    old, asked = session(target("t")), threading.Event()
    partitions(old)
    restored(node)
    with pytest.raises(LineageMismatch):
        old.run(lambda client: client.barrier(1, partitions=[0], timeout=5))
    ended = threading.Event()

    async def until_told(_):
        asked.set()
        await asyncio.to_thread(ended.wait, 10)

    waiting = old.start(until_told)
    assert asked.wait(10)
    assert session(target("t")) is not old
    thread = old._background.thread
    ended.set()
    waiting.result(10)
    thread.join(10)
    assert old.resting
    assert not thread.is_alive()
    assert threads() == before + 1
