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

STATES = 60
OPENING = f"""
import sys
from pathlib import Path
from logboom.settings import ApplySettings
from partitions.machines.kv_file import KvFile
from server.world.arenas import share_arenas
from server.world.world import real_world

if not share_arenas():
    sys.exit(3)
def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024
def directory(k):
    made = Path(sys.argv[1]) / str(k)
    made.mkdir()
    return made
open_file = KvFile if sys.argv[2] == "heap" else real_world(page_cache_bytes=0, fatal=print).open_state_file
kept = [open_file(directory(-1), ApplySettings())]
before = anonymous()
kept += [open_file(directory(k), ApplySettings()) for k in range({STATES})]
print(anonymous() - before)
"""


def grown(tmp_path: Path, how: str) -> int:
    """By how many bytes a process has grown whose threads have read a file in turn."""
    file = tmp_path / "16 MiB"
    file.write_bytes(bytes(16 * MIB))
    return run(SCRIPT, str(file), how)


def test_what_one_thread_has_freed_another_uses(tmp_path: Path) -> None:
    assert grown(tmp_path, "shared") < 16 * MIB, "not even one of them is kept"


def run(script: str, *arguments: str) -> int:
    """What it prints."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("no glibc: nothing to share")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_what_a_state_reserves_and_never_touches_costs_nothing(tmp_path: Path) -> None:
    """A thousand idle partitions took 220 KB each: LMDB's lists came to lie on pages that had been used before."""
    assert run(OPENING, str(tmp_path), "apart") < STATES * 100 * 1024
