"""The command line, in this process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from logboom.cli import main


def run(capsys, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


ROOT = Path(__file__).resolve().parents[3]


PATIENCE_S = 20.0


def until(condition) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
