"""The snippets of docs/clients.md run as they stand, in their order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[3] / "docs" / "clients.md").read_text()
BIN = Path(sys.executable).parent
SHOWN = """\
['OK', 'OK', 'MISMATCH']
2 True
None
{'partition': 8, 'ack': 'committed', 'linearizable': True}
1
1000
True
10000
6
b'plums'
b'apples'
b'apples'
b'apples'
[b'apples', (1004,), None]
[b'boxes']
[b'user/1', b'user/2']
9999 [b'row 9998', b'row 9999']
True True
5 5 [b'row 4'] [b'4']
True
1 1
True
no_such_partition not_applied
True
0 (2,)
2 (2,)
True (3,)
100 (100,)
b'n' (100,)
"""


def test_the_snippets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    with LocalCluster(partitions=8) as cluster:
        monkeypatch.setenv("LOGBOOM_ENDPOINTS", cluster.endpoints)
        for text in (text for kind, text in blocks if kind == "python"):
            exec(text, names)
        assert capsys.readouterr().out == SHOWN
        (lines,) = (text for kind, text in blocks if not kind)
        environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "LOGBOOM_ENDPOINTS": cluster.endpoints}
        said = subprocess.run(
            ["bash", "-e", "-s"], input=lines, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert said.returncode == 0, said.stderr
        assert re.search(r"^n +6$", said.stdout, re.MULTILINE), said.stdout
        users = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{") and "user/" in line]
        assert {each["key"]: each["value"] for each in users} == {"user/1": "ann", "user/2": "bob", "user/3": "cid"}


def test_every_comment_that_says_what_is_printed_is_true() -> None:
    told = re.findall(r"^ *print\(.*\)(?: if .*)?  # (.*)$", PAGE, re.MULTILINE)
    first = [re.split(r": (?=[a-z])|, and then ", each)[0] for each in told]
    assert len(first) == SHOWN.count("\n") - 1  # of one line that is printed twice both are told at once
    lines = iter(SHOWN.splitlines())
    for said in first:
        assert next(lines) == said
        if said == "0 (2,)":
            assert next(lines) == "2 (2,)"
