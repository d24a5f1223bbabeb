"""Commands of an install without the extras that they need: one line that says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from logboom.cli import main
main(sys.argv[2:])
"""


def run(missing: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, missing, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("missing", "args", "extra"),
    [
        ("blake3", ("verify", "/"), "server"),
        ("blake3", ("node", "--id", "n1", "--data-dir", "DIR"), "server"),
        ("pysyncobj", ("chaos", "sim", "--seed", "1"), "server"),
        ("lmdb", ("node", "--id", "n1", "--data-dir", "DIR"), "server"),
        ("cryptography", ("certs", "--dir", "DIR", "--nodes", "n1"), "server"),
    ],
)
def test_what_is_not_installed_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, args: tuple[str, ...], extra: str
) -> None:
    monkeypatch.setenv("LOGBOOM_CLUSTER__MEMBERS", "n1=127.0.0.1:1@127.0.0.1:2")
    done = run(missing, *(str(tmp_path / "data") if arg == "DIR" else arg for arg in args))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert missing in done.stderr
    assert f"pip install 'logboom[{extra}]'" in done.stderr


def test_what_no_extra_brings_is_a_fault_and_told_as_one() -> None:
    done = run("ports.disk", "verify", "/")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
