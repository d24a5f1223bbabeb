"""What README.md has for a shell, typed into one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

README = (Path(__file__).resolve().parents[3] / "README.md").read_text()
BIN = Path(sys.executable).parent


def test_the_block_for_a_shell(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n(logboom local .*?)```", README, re.DOTALL)
    begin, export, *rest = (re.sub(r" +#.*", "", line) for line in block.splitlines())
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOGBOOM_")}
    environment = clean | {"PATH": f"{BIN}:{clean['PATH']}"}
    local = subprocess.Popen(
        begin.split(), executable=str(BIN / "logboom"), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert local.stdout is not None
        told = next(line for line in local.stdout if line.startswith("export "))
        assert re.fullmatch(export.replace("...", r"[\d.:,]+"), told.strip())
        said = [
            subprocess.run(
                ["bash", "-e", "-s"], input=f"{told}{line}\n", cwd=tmp_path, env=environment, capture_output=True,
                text=True, timeout=60, check=True,
            ).stdout
            for line in rest
        ]  # fmt: skip
        submitted, got, status = said
        assert re.search(r"\bok=1\b", submitted), submitted
        assert re.search(r"^k +v$", got, re.MULTILINE), got
        assert status.count("running") == 8 * 3
    finally:
        local.terminate()
        assert local.wait(60) == 0
        local.stdout.close()
