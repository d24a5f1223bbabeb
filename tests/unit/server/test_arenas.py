"""What threads free is there for the next one, whichever it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

THREADS = 6
MIB = 1 << 20
SCRIPT = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from server.world.arenas import share_arenas

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if sys.argv[2] == "shared" and not share_arenas():
    sys.exit(3)
all_there = Barrier({THREADS})
def read():
    open(sys.argv[1], "rb").read()
with ThreadPoolExecutor({THREADS}) as pool:
    list(pool.map(lambda _: all_there.wait(), range({THREADS})))  # each thread runs, and has its heap
    before = resident()
    for _ in range(5 * {THREADS}):
        pool.submit(read).result()
    print(resident() - before)
"""


def grown(tmp_path: Path, how: str) -> int:
    """By how many bytes a process has grown whose threads have read a file in turn."""
    file = tmp_path / "16 MiB"
    file.write_bytes(bytes(16 * MIB))
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(file), how], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("no glibc: nothing to share")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_what_one_thread_has_freed_another_uses(tmp_path: Path) -> None:
    assert grown(tmp_path, "shared") < 16 * MIB, "not even one of them is kept"
