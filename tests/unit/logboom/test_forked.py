"""A client in a child of the process that it was made in, forked in the midst of its loop: it is not the child's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from logboom.wire import Kind
from tests.unit.logboom.command_line import ROOT
from tests.unit.logboom.fake_server import FakeNode

BEGUN = """
import asyncio, contextlib, os, sys, traceback
from logboom import Client, Put
from logboom.errors import InvalidRequest

CALLS = {
    "submit": lambda boom: boom.submit(0, Put(b"child", b"")),
    "submit_many": lambda boom: boom.submit_many({0: [Put(b"a", b"")], 1: [Put(b"b", b"")]}),
    "get": lambda boom: boom.get(0, b"a"),
    "barrier": lambda boom: boom.barrier(1),
    "scan": lambda boom: anext(boom.scan(0)),
    "tail": lambda boom: anext(boom.tail(0)),
    "scan_log": lambda boom: anext(boom.scan_log([0])),
    "watermarks": lambda boom: boom.watermarks(),
    "stream": lambda boom: anext(boom.watermarks_stream()),
    "status": lambda boom: boom.status(),
    "members": lambda boom: boom.members(),
    "cursor": lambda boom: boom.commit_cursor("c", None, 1),
}

async def call(boom, name, out):
    with contextlib.suppress(InvalidRequest):
        if name == "sender":
            out.send(Put(b"child", b""))
        else:
            await CALLS[name](boom)
        return 1
    await boom.close()
    return 0

def child(work, name):
    if not (pid := os.fork()):
        status = 99
        try:
            status = asyncio.run(work)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    work.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, name
"""


def run(node: FakeNode, script: str) -> None:
    subprocess.run([sys.executable, "-c", BEGUN + script, node.address], check=True, timeout=60, cwd=ROOT)


def test_it_is_refused_there_and_the_parent_s_next_command_takes_effect(node: FakeNode) -> None:
    """The child's had the parent's next number, and came first: the parent's counted as the same, sent again."""
    run(
        node,
        """
async def parent():
    async with Client(sys.argv[1], timeout=5) as boom:
        out = boom.sender(0)
        await boom.submit(0, Put(b"parent", b""))
        for name in [*CALLS, "sender"]:
            child(call(boom, name, out), name)
        assert (await boom.submit(0, Put(b"parent", b""))).duplicate == 0
asyncio.run(parent())
""",
    )
    assert len(node.log[0]) == 2
    assert [frame.kind for frame in node.frames] == [Kind.HELLO, Kind.SUBMIT, Kind.SUBMIT]
    assert node.frames[1].header["producer"] == node.frames[2].header["producer"]


@pytest.mark.parametrize("used", [True, False])
def test_so_is_one_that_was_made_before(node: FakeNode, used: bool) -> None:
    """Both would be one producer, and number from the same on; the loop that it was used on has ended by then."""
    run(
        node,
        f"""
boom = Client(sys.argv[1], timeout=5)
if {used}:
    asyncio.run(boom.submit(0, Put(b"parent", b"")))
child(call(boom, "submit", None), "submit")
""",
    )
    assert len(node.of(Kind.SUBMIT)) == used
