"""The command line while nobody leads."""

from __future__ import annotations

import json

from logboom.client import cluster as clusters
from logboom.errors import NotLeader
from logboom.records import RecordBlock
from logboom.routing import partition_of
from logboom.wire import Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, fails


def test_where_nobody_leads_what_may_be_old_is_found_by_its_key(node: FakeNode, capsys, monkeypatch) -> None:
    monkeypatch.setattr(clusters, "CONNECT_S", 0.05)
    node.leader = None
    node.answers[Kind.ADMIN] = fails(NotLeader("nobody leads", leader=None))
    block = RecordBlock.from_columns(payloads=[b"bv"])
    body = [bytes(block.metadata), bytes(block.data)]
    header = {"found": [True], "metadata": len(body[0]), "data": len(body[1]), "global_index": 4}
    node.answers[Kind.GET] = lambda s, f: s.send(f, Kind.VALUES, header, body)
    assert run(capsys, "get", "user/1", "--timeout", "100ms")[0] == 3
    for option in (["--stale"], ["--at-least", "4"], ["--max-staleness", "1s"]):
        status, out, _ = run(capsys, "get", "user/1", "-o", "jsonl", *option)
        assert (status, json.loads(out)) == (0, {"key": "user/1", "value": "v"})
    assert {frame.header["partition"] for frame in node.of(Kind.GET)} == {partition_of(b"user/1", 4)}
    assert len(node.of(Kind.GET)) == 3
