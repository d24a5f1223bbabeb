"""The status page, run: where there is a JavaScript engine, with as much of a browser as it needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from server.watching.page import PAGE

NODE = shutil.which("node")
BROWSER = """
class Element {
  constructor() { this.kids = []; this.textContent = ''; this.className = ''; }
  append(...kids) { this.kids.push(...kids); }
  replaceChildren(...kids) { this.kids = kids; }
  get all() { return this.kids.length ? this.kids.map(kid => kid.all) : [this.className, this.textContent]; }
}
const found = {};
globalThis.document = {hidden: false, title: '', createElement: () => new Element(),
  getElementById: id => found[id] ??= new Element()};
globalThis.fetch = async () => ({ok: STATUS !== null, status: 503, json: async () => STATUS});
globalThis.setTimeout = () => console.log(JSON.stringify(
  Object.fromEntries(Object.entries(found).map(([id, element]) => [id, element.all]))));
"""


def shown(status: dict[str, Any] | None) -> dict[str, Any]:
    """What is in every element that the page has filled in, by its id; leaves are [class, text]."""
    assert NODE is not None
    (script,) = re.findall(r"<script>(.*?)</script>", PAGE.decode(), re.DOTALL)
    code = f"const STATUS = {json.dumps(status)};\n{BROWSER}\n{script}"
    done = subprocess.run([NODE, "-e", code], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def status(partitions: int = 2, **changes: Any) -> dict[str, Any]:
    rows = [[p, 10, 10, 10 - p % 2, 5, 12_345 - p % 2, "paused" if p == 1 else "running"] for p in range(partitions)]
    return {
        "node": "n1", "cluster": "shop", "role": "leader", "term": 3, "leader": "n1", "commit_index": 12_345,
        "recovered": True, "scrub": {"pass": 1, "bytes": 2048, "of": 4096, "damaged": 2, "repaired": 1}, "lost": [],
        "members": [["n1", "a:1", True, "voter"], ["<b>n2</b>", "b:1", False, "voter"]],
        "partitions": rows, "backlog": [[p, 3, 1536] for p in range(partitions)], "node_backlog": [6, 3 * 1024 * 1024],
        "waiters": 4, "sessions": 5, "uptime_s": 7300.0, "version": "1.0", **changes,
    }  # fmt: skip


pytestmark = pytest.mark.skipif(NODE is None, reason="no JavaScript engine here")


def test_it_shows_what_the_node_says() -> None:
    it = shown(status())
    assert it["title"] == ["", "shop / n1"]
    assert it["said"] == ["", "logboom 1.0, up 2 h"]
    facts = {name: value for (_, name), (_, value) in it["facts"]}
    assert facts["commit index"] == "12,345"
    assert facts["apply lag"] == "1"
    assert facts["backlog"] == "6 records, 3.0 MiB"
    assert facts["damage"] == "1 open, 0 lost"
    ill, well = it["partitions"]
    assert [text for _, text in ill] == ["1", "10", "10", "9", "12,344", "1", "3", "1.5 KiB", "5", "paused"]
    assert ill[-1][0] == "text bad"
    assert [text for _, text in well][:5] == ["0", "10", "10", "10", "12,345"]
    assert it["members"][0][0][1] == "n1 (this node) - leads"
    assert it["members"][1][0][1] == "<b>n2</b>"  # text, not markup
    assert it["members"][1][3] == ["text bad", "not connected"]
    assert it["trouble"] == ["", ""]


def test_of_very_many_partitions_it_shows_some_and_says_so() -> None:
    it = shown(status(partitions=1200))
    assert len(it["partitions"]) == 500
    assert it["partitions"][0][-1][1] == "paused"
    assert it["more"] == ["", "700 more"]


def test_a_node_that_does_not_answer_is_told_of() -> None:
    assert shown(None)["trouble"] == ["", "no answer: HTTP 503"]
