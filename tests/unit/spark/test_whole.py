"""What a task is given, as Spark's worker gives it: an Arrow stream on a socket, and a word behind it."""

import socket

import pyarrow as pa
import pytest

from logboom.errors import IncompatibleVersion, Unavailable
from logboom.spark.whole import whole
from tests.unit.spark.sink_world import rows

END = b"\xff\xff\xff\xfc"
"""Behind the rows, once they are all there; the worker looks for it."""
WORKER = "def main(infile, outfile, task):\n    return task(infile)\n"


def worker(task, sent, name="/opt/spark/python/pyspark/worker.py"):
    """What a task returns that a worker runs; everything has been sent, and the socket is closed."""
    spark, ours = socket.socketpair()
    spark.sendall(sent)
    spark.close()
    names = {}
    exec(compile(WORKER, name, "exec"), names)
    with ours, ours.makefile("rb") as infile:
        return names["main"](infile, None, task)


def stream(batches, *, ended):
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, rows(1).schema)
    for batch in batches:
        writer.write_batch(batch)
    if not ended:
        return sink.getvalue().to_pybytes()  # the writer has not been closed: no mark of an end
    writer.close()
    return sink.getvalue().to_pybytes()


def taken(infile):
    return [batch.num_rows for batch in whole(pa.ipc.open_stream(infile))]


def test_rows_that_come_to_their_end_are_given_and_the_word_behind_them_is_left():
    def task(infile):
        return taken(infile), infile.read()

    assert worker(task, stream([rows(3), rows(2)], ended=True) + END) == ([3, 2], END)


def test_a_task_without_rows_comes_to_its_end():
    assert worker(taken, stream([], ended=True) + END) == []


@pytest.mark.parametrize("ended", [False, True])
def test_where_spark_breaks_off_it_is_said_in_place_of_an_end(ended):
    sent = stream([rows(3), rows(2)], ended=ended)
    assert worker(lambda infile: [b.num_rows for b in pa.ipc.open_stream(infile)], sent) == [3, 2], "pyarrow tells"
    with pytest.raises(Unavailable, match="broke off behind 5 rows"):
        worker(taken, sent)


def test_a_worker_that_is_not_known_is_refused_in_front_of_all_rows():
    def first(infile):
        return next(whole(pa.ipc.open_stream(infile)))

    with pytest.raises(IncompatibleVersion, match="rowOrder=input"):
        worker(first, stream([rows(3)], ended=True) + END, name="/opt/other/worker.py")
