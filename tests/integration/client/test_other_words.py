"""The snippets of docs/from-kafka-and-etcd.md run as they stand, in their order."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[3] / "docs" / "from-kafka-and-etcd.md").read_text()
SHOWN = """\
1 2
[3, 4]
b'ann' b'3 apples'
b'bob' b'1 pear'
b'cid' b'2 plums'
b'cid' b'9 figs'
(1,)
True True
MISMATCH
0 b'config/rate' b'10'
1 b'config/rate' b'20'
['OK', 'OTHERWISE']
[(40,), (60,), b'refused']
OTHERWISE b'ann'
OK
"""


def test_the_snippets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    with LocalCluster(partitions=8) as cluster:
        monkeypatch.setenv("LOGBOOM_ENDPOINTS", cluster.endpoints)
        for text in (text for kind, text in blocks if kind == "python"):
            exec(text, names)
        assert capsys.readouterr().out == SHOWN
        (line,) = (text for kind, text in blocks if not kind)
        subprocess.run(line, shell=True, check=True, timeout=60)
        with cluster.client() as boom:
            assert boom.get_many(0, [b"lock", b"by"]) == [b"ann", b"ann"]
