"""Whether a task was given all of its rows, or Spark broke off.

Where a task is given up, or what feeds it fails, Spark closes the socket of its Python worker between two Arrow
messages. pyarrow takes that for the end of the rows, and so does the worker, which misses the word behind them only
once the sink has returned (apache/spark#24677 tells of the same). Who numbers rows in an order of all of them must know
before: a part of them would take the numbers of others.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import PurePath
from typing import Final

import pyarrow as pa

from logboom.errors import IncompatibleVersion, Unavailable

WORKER: Final = ("pyspark", "worker.py")
"""Whose ``main`` has the socket as ``infile``; Spark hands it to nobody further in."""


def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, in a task of Spark. Takes them in the worker's own thread.

    Raises Unavailable behind the last one if there was to be more, and IncompatibleVersion in front of the first one if
    that cannot be told.
    """
    socket, rows = _socket(), 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if not _is_something_left(socket):
        raise Unavailable(
            f"Spark broke off behind {rows} rows of this task, which it has given up, or whose rows failed on their "
            "way: none of them was written, and the next attempt writes all"
        )


def _is_something_left(socket: BufferedReader) -> bool:
    """Behind the rows; waits for it. What is there is the worker's to read."""
    try:
        return bool(socket.peek(1))
    except OSError:  # reset in place of closed
        return False


def _socket() -> BufferedReader:
    """From which the worker of this task reads what Spark sends."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "main" and PurePath(code.co_filename).parts[-2:] == WORKER and "infile" in code.co_varnames:
            return frame.f_locals["infile"]  # type: ignore[no-any-return]
        frame = frame.f_back
    raise IncompatibleVersion(
        "this PySpark's worker is other than those of 4.2 and 4.3, and whether a task has all of its rows cannot be "
        "told: rowOrder=sorted needs that; use such a PySpark, or rowOrder=input",
        found=None,
        supported="pyspark 4.2, 4.3",
    )
