"""What tests of ``kv`` share: places in the log, and threads that read and save while something is applied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines.kv import KvMachine


def position(index: int) -> Position:
    return Position(PartitionLogIndex(index), GlobalLogIndex(index))


@contextmanager
def read_and_saved_meanwhile(machine: KvMachine, read: Callable[[], None]) -> Iterator[None]:
    """Two threads ``read`` again and again, and one saves; all have ended when the block has."""
    stop = threading.Event()

    def on_and_on(step: Callable[[], object]) -> None:
        while not stop.is_set():
            step()

    threads = [threading.Thread(target=on_and_on, args=(step,)) for step in (read, read, machine.checkpoint)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
