"""Inside a simulation the real world is out of reach; outside nothing is changed."""

from __future__ import annotations

import _thread
import concurrent.futures
import contextlib
import logging
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.sim.forbidden import CLOCKS, DICE, THREADS, Forbidden, real_world_forbidden

NEVER: Final = Path(__file__).parent / "never"
NAMES: Final[dict[str, Any]] = {
    module.__name__: module
    for module in (_thread, os, random, secrets, shutil, socket, subprocess, tempfile, threading, time, uuid)
} | {"Path": Path, "pool": concurrent.futures.ThreadPoolExecutor, "HERE": __file__, "NEVER": str(NEVER)}
REPLACED: Final = [(module, name) for module, names in ((time, CLOCKS), *THREADS, *DICE) for name in names]

REACHES: Final = (
    "time.time()", "time.time_ns()", "time.monotonic()", "time.monotonic_ns()", "time.perf_counter()",
    "time.perf_counter_ns()", "time.process_time()", "time.process_time_ns()", "time.clock_gettime(0)",
    "time.clock_gettime_ns(0)", "time.sleep(0)",
    "threading.Thread(target=int).start()", "threading.Timer(0, int).start()", "threading._start_new_thread(int, ())",
    "_thread.start_new_thread(int, ())", "pool(1).submit(int)",
    "socket.socket()", "socket.create_connection(('127.0.0.1', 9))", "socket.getaddrinfo('localhost', 80)",
    "open('/etc/hostname')", "open(NEVER, 'w')", "Path('/etc/hostname').read_text()", "Path(NEVER).touch()",
    "os.open('/etc/hostname', os.O_RDONLY)", "os.mkdir(NEVER)", "os.remove(NEVER)", "os.rename(NEVER, NEVER)",
    "os.rmdir(NEVER)", "os.truncate(NEVER, 0)", "os.link(NEVER, NEVER)", "os.symlink(NEVER, NEVER)",
    "os.chmod(NEVER, 0)", "os.scandir('/')", "list(os.walk('/'))", "os.system('true')", "os.fork()",
    "os.kill(os.getpid(), 0)", "os.urandom(1)", "os.getrandom(1)",
    "shutil.copyfile(HERE, NEVER)", "shutil.rmtree(NEVER)", "subprocess.run(['true'])", "tempfile.mkdtemp()",
    "tempfile.TemporaryFile()",
    "random.random()", "random.randrange(2)", "random.randint(0, 1)", "random.choice([1])", "random.choices([1])",
    "random.shuffle([1])", "random.uniform(0, 1)", "random.sample([1], 1)", "random.randbytes(1)",
    "random.getrandbits(1)", "random.expovariate(1.0)", "random.gauss(0.0, 1.0)", "random.normalvariate(0.0, 1.0)",
    "random.triangular()", "random.seed(1)", "random._urandom(1)", "random.SystemRandom().random()",
    "uuid.uuid1()", "uuid.uuid4()",
    "secrets.token_bytes()", "secrets.token_hex()", "secrets.token_urlsafe()", "secrets.randbits(1)",
    "secrets.randbelow(2)", "secrets.choice([1])",
)  # fmt: skip
ALLOWED: Final = (
    "random.Random(7).random()",
    "__import__('colorsys')",
    "Path(HERE).read_bytes()",
    "os.getpid()",
    "threading.Lock().acquire()",
)


def do(what: str) -> Any:
    """As production code would: by name, out of the module, at this moment."""
    return eval(what, dict(NAMES))


@pytest.mark.parametrize("reach", REACHES)
def test_inside_it_raises(reach: str) -> None:
    with real_world_forbidden(), pytest.raises(Forbidden, match="in the simulation"):
        do(reach)
    assert not NEVER.exists()


@pytest.mark.parametrize("harmless", ALLOWED)
def test_what_is_no_part_of_the_real_world_works_inside(harmless: str) -> None:
    sys.modules.pop("colorsys", None)
    with real_world_forbidden():
        assert do(harmless) is not None


@pytest.mark.parametrize(("module", "name"), REPLACED, ids=lambda part: getattr(part, "__name__", part))
def test_whatever_is_replaced_is_tried_above(module: Any, name: str) -> None:
    assert any(reach.startswith(f"{module.__name__}.{name}(") for reach in REACHES)


@pytest.mark.parametrize("broken", [False, True], ids=["after the end", "after an exception"])
def test_outside_everything_works_again(tmp_path: Path, broken: bool) -> None:
    before = [getattr(module, name) for module, name in REPLACED]
    with contextlib.suppress(LookupError), real_world_forbidden():
        if broken:
            raise LookupError
    assert [getattr(module, name) for module, name in REPLACED] == before
    assert time.monotonic() <= time.monotonic()
    (tmp_path / "file").write_bytes(os.urandom(3) + uuid.uuid4().bytes + secrets.token_bytes(1))
    assert (tmp_path / "file").rename(tmp_path / "other").stat().st_size == 20
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))


def test_a_refused_thread_is_not_counted() -> None:
    threads = threading.enumerate()
    with real_world_forbidden(), pytest.raises(Forbidden):
        do("threading.Thread(target=int).start()")
    assert threading.enumerate() == threads


def test_random_numbers_go_on_where_they_were() -> None:
    random.seed(5)
    expected = [random.random() for _ in range(2)]
    random.seed(5)
    first = random.random()
    with real_world_forbidden():
        random.Random(1).random()
    assert [first, random.random()] == expected


def test_can_be_entered_many_times() -> None:
    for _ in range(3):
        with real_world_forbidden(), pytest.raises(Forbidden):
            time.time()
        assert time.time() > 0


@pytest.mark.parametrize("reach", ["time.time()", "os.mkdir(NEVER)", "_thread.start_new_thread(int, ())"])
def test_the_end_of_an_inner_one_does_not_open_the_outer(reach: str) -> None:
    with real_world_forbidden():
        with real_world_forbidden():
            pass
        with pytest.raises(Forbidden):
            do(reach)
    assert time.time() > 0


def test_what_is_told_of_tasks_that_others_have_left_behind_is_nothing_of_the_simulation() -> None:
    """They are collected in the middle of it, now and then, and asyncio logs that."""
    with real_world_forbidden() as refused:
        logging.getLogger("asyncio").error("Task was destroyed but it is pending!")
    assert refused == []
