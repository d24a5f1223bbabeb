"""A partition behind a fake node."""

from __future__ import annotations

from typing import Any

from logboom.commands import OP_CAS, OP_DELETE, OP_PUT
from logboom.errors import NoSuchPartition
from logboom.records import RecordBlock
from logboom.types import CURSORS_TOKEN, Status
from logboom.wire import Kind
from tests.unit.logboom.fake_server import FakeNode, Session

WHERE = 4


class Kv:
    """A node with one `kv` partition for cursors, once somebody has asked for it."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.state: dict[bytes, bytes] = {}
        self.there = False
        self.writes = 0
        node.answers |= {Kind.ADMIN: self.admin, Kind.SUBMIT: self.submit, Kind.GET: self.get, Kind.SCAN: self.scan}
        node.answers[Kind.WATERMARKS] = lambda session, frame: session.send(
            frame,
            Kind.WATERMARKS_REPLY,
            {"commit_index": 90, "node": "n1", "watermarks": [[1, 50, 50, 50, 0, 90, "running"]]},
        )

    def admin(self, session: Session, frame: Any) -> None:
        if frame.header["action"] == "create_partition":
            assert frame.header["token"] == CURSORS_TOKEN
            self.there = True
            session.send(frame, Kind.ADMIN_REPLY, {"partition": WHERE})
            return
        rows: list[list[Any]] = [[p, "log", "write_ahead"] for p in range(4)]
        if self.there and frame.header.get("linearizable"):  # else it may not have heard of it
            rows.append([WHERE, "kv", "write_ahead", "cursors"])
        session.send(frame, Kind.ADMIN_REPLY, {"partitions": rows, "key_partitions": 4})

    def submit(self, session: Session, frame: Any) -> None:
        (row,) = frame.header["parts"]
        if not self.there:
            session.fail(frame, NoSuchPartition("gone", partition_id=WHERE, partitions=4))
            return
        assert row[0] == WHERE
        block = RecordBlock.parse(row[3], frame.body[: row[4]], frame.body[row[4] :])
        self.writes += 1
        status = self.apply(block.keys()[0], block.payloads()[0])
        part = [WHERE, 1, 1, self.writes, 0, bytes((status,))]
        session.send(frame, Kind.SUBMITTED, {"parts": [part], "commit_index": self.writes})

    def apply(self, key: bytes, payload: bytes) -> Status:
        if payload[0] == OP_PUT:
            self.state[key] = payload[1:]
        elif payload[0] == OP_DELETE:
            self.state.pop(key, None)
        else:
            assert payload[0] == OP_CAS
            size = int.from_bytes(payload[2:6], "little")
            expected = payload[6 : 6 + size] if payload[1] & 1 else None
            if self.state.get(key) != expected:
                return Status.MISMATCH
            self.state[key] = payload[6 + size :]
        return Status.OK

    def get(self, session: Session, frame: Any) -> None:
        assert frame.header.get("read") == "linearizable"
        found = [self.state.get(key) for key in frame.header["keys"]]
        block = RecordBlock.from_columns(payloads=[b"" if v is None else b"b" + v for v in found])
        header = {
            "found": [v is not None for v in found],
            "metadata": len(block.metadata),
            "data": len(block.data),
            "global_index": 1,
        }
        session.send(frame, Kind.VALUES, header, [bytes(block.metadata), bytes(block.data)])

    def scan(self, session: Session, frame: Any) -> None:
        keys = sorted(self.state)
        block = RecordBlock.from_columns(payloads=[b"b" + self.state[k] for k in keys], keys=keys)
        header = {"count": len(keys), "global_index": 1, "metadata": len(block.metadata), "data": len(block.data)}
        session.send(frame, Kind.ENTRIES, header, [bytes(block.metadata), bytes(block.data)])
