"""Planning and writing with a real client, against a node that does what a test tells it to."""

import os
import signal
import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructType, YearMonthIntervalType

from logboom.client.submits import PART_OVERHEAD
from logboom.errors import InvalidRequest, NoSuchPartition, NotLeader, PartitionDestroyed, RecordTooLarge, Unavailable
from logboom.settings import Settings
from logboom.spark import connection
from logboom.spark.batch import plan_write
from logboom.spark.encode import columns_of
from logboom.spark.ends import marks
from logboom.spark.options import read_options, write_options
from logboom.spark.shares import state_shares
from logboom.spark.sink import BLOCK_BYTES_MAX, _Run, write_task
from logboom.types import CURSORS, KIB, MIB
from logboom.wire import Kind
from tests.unit.logboom.conftest import node
from tests.unit.logboom.fake_server import fails, until

__all__ = ["node"]

PAIRS = StructType().add("key", "string").add("value", "string")
NAMED = StructType().add("partition", IntegerType()).add("key", "string").add("value", "string")


@pytest.fixture
def options(node):
    """Of a session that ends with the test."""
    made = []

    def make(**more):
        made.append(write_options({"endpoints": node.address, **more}))
        return made[-1]

    yield make
    for target in {each.target for each in made}:
        found = connection._sessions.pop((os.getpid(), target), None)
        if found is not None:
            found.rest()


def test_the_largest_block_fits_a_cluster_with_its_defaults():
    settings = Settings()
    assert min(settings.net.client_frame_bytes, settings.log.batch_bytes_max) >= BLOCK_BYTES_MAX + PART_OVERHEAD


def partitions(node, *machines):
    """What the node answers when it is asked again."""
    rows = [[p, machine, "write_ahead"] for p, machine in enumerate(machines)]
    header = {"partitions": rows, "key_partitions": 4}
    node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, header)


def test_a_partition_that_came_since_is_found(node, options):
    assert plan_write(PAIRS, options(partitions="0-3")).layout.partitions == (0, 1, 2, 3)
    assert not node.of(Kind.ADMIN), "who knows all that are named asks nobody"
    partitions(node, "kv", "kv", "kv", "kv", "log", "kv")
    assert plan_write(PAIRS, options(partitions="5")).layout.partitions == (5,)
    assert plan_write(PAIRS, options()).layout.partitions == (0, 1, 2, 3), "keys stay where they are"
    assert plan_write(NAMED, options()).layout.partitions == (0, 1, 2, 3, 5), "rows may name any of the same kind"
    with pytest.raises(NoSuchPartition, match="names 6, which does not exist; this cluster has 0-5"):
        plan_write(PAIRS, options(partitions="6"))


def test_a_partition_of_keys_that_was_destroyed_is_told_before_anything_is_written(node, options):
    rows = [[p, "kv", "write_ahead"] for p in (0, 1, 3)]
    header = {"partitions": rows, "key_partitions": 4}
    connection.session(options().target).run(lambda client: client.partitions())
    node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, header)
    with pytest.raises(PartitionDestroyed, match="partition 2 was destroyed, and keys are routed"):
        plan_write(PAIRS, options())
    assert plan_write(PAIRS, options(partitions="0,1,3")).layout.partitions == (0, 1, 3)
    assert plan_write(NAMED, options()).layout.partitions == (0, 1, 3)


def test_rows_may_name_those_that_are_left_when_all_that_the_cluster_began_with_are_gone(node, options):
    """The error was about an option that nobody had given."""

    def left(*machines):
        rows = [[4 + p, machine, "write_ahead"] for p, machine in enumerate(machines)]
        header = {"partitions": rows, "key_partitions": 4}
        node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, header)

    left("kv", "kv")
    assert plan_write(NAMED, options()).layout.partitions == (4, 5)
    left("kv", "log")
    with pytest.raises(InvalidRequest, match=r"different state machines \(kv, log\); name partitions of one kind"):
        plan_write(NAMED, options())
    assert plan_write(NAMED, options(partitions="4")).layout.partitions == (4,)
    left()
    with pytest.raises(NoSuchPartition, match="there is no partition to write to"):
        plan_write(NAMED, options())


def test_a_column_of_a_type_that_arrow_lacks_is_named(node, options):
    with pytest.raises(InvalidRequest, match="column since is interval month, which"):
        plan_write(StructType().add("key", "string").add("since", YearMonthIntervalType(1, 1)), options(partitions="0"))


def test_a_process_that_was_forked_while_another_thread_made_a_session_makes_its_own(node, options):
    target = options().target
    connection.session(target)
    with connection._lock:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            os._exit(connection.session(target).run(lambda client: client.key_partitions()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_a_state_is_read_of_all_partitions_there_are(node, options):
    target = options().target
    assert connection.session(target).run(lambda client: client.partitions()) == [0, 1, 2, 3]
    partitions(node, "kv", "kv", "kv", "kv", "kv")
    asked = read_options({"endpoints": node.address, "view": "state"})
    shares = state_shares(asked, connection.session(target))
    assert [share.partition_id for share in shares] == [0, 1, 2, 3, 4]
    assert node.of(Kind.ADMIN)[-1].header["linearizable"]


def test_a_state_is_read_of_all_that_have_keys_unless_others_are_named(node, options):
    """The logs beside them, of which a stream makes it, have none."""
    partitions(node, "kv", "log", "kv", "log")
    every = read_options({"endpoints": node.address, "view": "state"})
    found = connection.session(options().target)
    assert [share.partition_id for share in state_shares(every, found)] == [0, 2]
    named = read_options({"endpoints": node.address, "view": "state", "partitions": "0-1"})
    with pytest.raises(InvalidRequest, match="partition 1 runs log, which has no keys to read: view=log"):
        state_shares(named, found)
    partitions(node, "log")
    with pytest.raises(InvalidRequest, match="partition 0 runs log"):
        state_shares(every, found)


def test_the_ends_of_logs_are_those_of_whoever_leads_now_and_of_logs_that_users_see(node, options):
    """The node was deposed and does not know it: it has not heard of what was committed and created since."""
    kinds = [[0, "log", "write_ahead"], [4, "log", "write_ahead"], [5, "kv", "write_ahead", CURSORS]]
    held = {0: 7}

    def now(session, frame):
        held.update({0: 9, 4: 3, 5: 2})
        session.send(frame, Kind.ADMIN_REPLY, {"partitions": kinds, "key_partitions": 4})

    def watermarks(session, frame):
        rows = [[p, n, n, n, 0, n, "running"] for p, n in held.items()]
        session.send(frame, Kind.WATERMARKS_REPLY, {"commit_index": 9, "node": "n1", "watermarks": rows})

    node.answers[Kind.STATUS] = lambda session, frame: session.send(frame, Kind.STATUS_REPLY, {"leader": "n1"})
    node.answers[Kind.WATERMARKS] = watermarks
    node.answers[Kind.ADMIN] = now
    node.once(Kind.ADMIN, fails(NotLeader("deposed")))
    asked = read_options({"endpoints": node.address})
    found = marks(asked, connection.session(options().target))
    assert [(mark.partition_id, mark.log_index) for mark in found] == [(0, 9), (4, 3)]


def test_a_second_attempt_of_a_task_does_not_wait_for_what_the_first_is_to_send_again(node, options):
    plan = plan_write(PAIRS, options(partitions="0"))
    rows = pa.RecordBatch.from_pydict({"key": ["k"], "value": ["v"]})
    refused = threading.Event()

    def refuse(session, frame):
        session.fail(frame, Unavailable("later", retry_after=20.0))
        refused.set()

    node.once(Kind.SUBMIT, refuse)
    first = _Run(plan, 0, connection.session(plan.target))
    first.send(columns_of(rows, plan.layout))
    assert refused.wait(10)
    session = connection.session(plan.target)
    ((turn,),) = session._background.client._submitter._lines._lines.values()
    session.run(lambda _: until(lambda: not turn._sent))
    first._window[0].answer.add_done_callback(lambda _: refused.clear())
    assert write_task(plan, [rows], task=0, attempt=1, sender=connection.session(plan.target)).rows == 1
    assert refused.is_set(), "the first attempt still waits"
    first.give_up()


@pytest.mark.parametrize("limit", [64 * KIB - PART_OVERHEAD, 50_000])
def test_a_row_that_is_too_large_is_named(node, options, limit):
    """By the client, which knows what a frame may be, or by a node, which knows its logs."""

    def refuse(session, frame):
        if len(frame.body) > limit:
            session.fail(frame, RecordTooLarge("too much for a batch", size=len(frame.body), limit=limit))
        else:
            session.usual(frame)

    node.frame_bytes = 64 * KIB
    node.answers[Kind.SUBMIT] = refuse
    plan = plan_write(PAIRS, options(partitions="0", maxInFlightBytes=str(limit)))
    sizes = [10, 20, limit + 1, 10]
    rows = pa.RecordBatch.from_pydict({"key": [f"k{k}" for k in range(4)], "value": ["v" * n for n in sizes]})
    with pytest.raises(RecordTooLarge, match=r"row 3 of those that task 7 has for partition 0, key 'k2'") as caught:
        write_task(plan, [rows], task=7, attempt=0, sender=connection.session(plan.target))
    assert caught.value.fields["limit"] == limit


@pytest.mark.parametrize("takes", [100, 20_000])
def test_blocks_have_no_more_rows_than_the_cluster_takes(node, options, takes):
    """Small rows were refused as too large, in each attempt, where `admission.partition_ops` is set low."""
    node.takes = {"part_bytes": 4 * MIB, "part_records": takes}
    plan = plan_write(PAIRS, options(partitions="0"))
    rows = pa.RecordBatch.from_pydict({"key": [f"k{k}" for k in range(30_000)], "value": ["v"] * 30_000})
    assert write_task(plan, [rows], task=0, attempt=0, sender=connection.session(plan.target)).rows == 30_000
    assert max(frame.header["parts"][0][3] for frame in node.of(Kind.SUBMIT)) == takes
    assert len(node.log[0]) == 30_000


@pytest.mark.parametrize("frame_bytes", [64 * KIB, 1 * MIB, 8 * MIB])
def test_blocks_are_no_larger_than_the_cluster_takes(node, options, frame_bytes):
    node.frame_bytes = frame_bytes
    plan = plan_write(PAIRS, options(partitions="0"))
    rows = pa.RecordBatch.from_pydict({"key": [f"k{k}" for k in range(3_000)], "value": ["v" * 1_000] * 3_000})
    assert write_task(plan, [rows], task=0, attempt=0, sender=connection.session(plan.target)).rows == 3_000
    largest = max(len(frame.body) for frame in node.of(Kind.SUBMIT))
    limit = min(BLOCK_BYTES_MAX, frame_bytes - PART_OVERHEAD)
    assert limit // 2 < largest <= limit
    assert len(node.log[0]) == 3_000
