"""Blocking clients that nobody closes, and those of forked children."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from logboom import Put, SyncClient
from logboom.wire import Kind
from tests.unit.logboom.command_line import ROOT, until
from tests.unit.logboom.fake_server import FakeNode, entries


def test_one_that_nobody_refers_to_any_more_is_closed(node: FakeNode) -> None:
    """Each kept a thread, an event loop and its connections until the process ended."""
    before = set(threading.enumerate())
    for _ in range(3):
        assert SyncClient(node.address).submit(0, Put(b"a", b"")).count == 1
    threads = [each for each in threading.enumerate() if each not in before and each.name == "logboom"]
    gc.collect()
    for each in threads:
        each.join(20)
        assert not each.is_alive()
    until(lambda: not node.sessions)


def test_an_iterator_refers_to_its_client(node: FakeNode) -> None:
    node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"a", b"b"], more=False)
    rows = SyncClient(node.address).scan(0)
    first = next(rows)
    gc.collect()
    assert [first, *rows] == [(b"a", b"A"), (b"b", b"B")]


def test_a_forked_child_is_another_producer(node: FakeNode) -> None:
    """With a producer id of one's own its writes counted as the parent's, sent again: they had no effect."""
    script = """
import os, random, sys
from logboom import Put, SyncClient
for given in ({"producer_id": bytes(range(16))}, {"rng": random.Random(7)}):
    boom = SyncClient(sys.argv[1], **given)
    boom.submit(0, Put(b"parent", b""))
    for child in range(2):
        if os.fork() == 0:
            receipt = boom.submit(0, Put(b"child", b""))
            boom.close()
            os._exit(receipt.duplicate)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, "a duplicate"
    boom.close()
"""
    subprocess.run([sys.executable, "-c", script, node.address], check=True, timeout=30, cwd=ROOT)
    assert len(node.log[0]) == 6
    assert len({frame.header["producer"] for frame in node.of(Kind.SUBMIT)}) == 6


def test_threads_of_a_forked_child_that_begin_together_share_one(node: FakeNode) -> None:
    """Each made the client the child's, and the one that was late threw away what the other had begun with."""
    script = """
import os, sys, threading, types
from logboom import Put, SyncClient, sync_client
boom = SyncClient(sys.argv[1])
boom.submit(0, Put(b"parent", b""))
if os.fork() == 0:
    callers, two, done = [], threading.Event(), threading.Event()
    def lock():  # the second caller, if there is one, comes out of here once the first has all that it wants
        callers.append(None)
        if len(callers) == 1:
            two.wait(0.5)
        else:
            two.set()
            done.wait(10)
        return threading.Lock()
    sync_client.threading = types.SimpleNamespace(Lock=lock)
    def work():
        boom.submit(0, Put(b"child", b""))
        done.set()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    os._exit(sum(each.name == "logboom" for each in threading.enumerate()))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 1, "threads behind one client"
boom.close()
"""
    subprocess.run([sys.executable, "-c", script, node.address], check=True, timeout=30, cwd=ROOT)
    assert len({frame.header["producer"] for frame in node.of(Kind.SUBMIT)}) == 2
