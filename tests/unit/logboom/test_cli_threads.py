"""The command line's processes, nodes among them, have no threads that nobody asked for."""

from __future__ import annotations

import os
import subprocess
import sys

VARIABLE = "OPENBLAS_NUM_THREADS"
LOOKS = f"""
import contextlib, os
from logboom.cli import main
with contextlib.suppress(SystemExit):
    main(["--version"])
import numpy
print(len(os.listdir("/proc/self/task")), os.environ["{VARIABLE}"])
"""


def _threads_and_setting(**environment: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", LOOKS],
        env=clean | environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=60,
    )
    return done.stdout.splitlines()[-1].split()


def test_numpy_begins_no_threads() -> None:
    assert _threads_and_setting() == ["1", "1"]


def test_whoever_wants_some_has_them() -> None:
    assert _threads_and_setting(**{VARIABLE: "3"})[1] == "3"
