"""Whoever has a write answered hears that its partition applies too slowly."""

from __future__ import annotations

import pytest

from dispatcher.requests.requests import SubmitReply, encode_reply, parse_reply
from logboom.client.parts import receipts_of
from logboom.errors import ProtocolError
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex

P3, P4 = PartitionId(3), PartitionId(4)
PARTS = tuple((p, PartitionLogIndex(1), PartitionLogIndex(2), GlobalLogIndex(7), 0, None) for p in (P3, P4))


def test_what_is_held_goes_through_forwarding_to_the_receipt() -> None:
    reply = SubmitReply(PARTS, GlobalLogIndex(7), ((P4, "frozen"),))
    assert parse_reply(encode_reply(reply)) == reply
    assert [receipt.held for receipt in receipts_of(encode_reply(reply))] == ["", "frozen"]


def test_nothing_is_said_where_nothing_is_held() -> None:
    header = encode_reply(SubmitReply(PARTS, GlobalLogIndex(7)))
    assert "held" not in header
    assert [receipt.held for receipt in receipts_of(header)] == ["", ""]


@pytest.mark.parametrize("held", [1, [1], [[3]], [["3", "frozen"]], [[3, 4]]])
def test_what_another_node_says_is_checked(held: object) -> None:
    header = encode_reply(SubmitReply(PARTS, GlobalLogIndex(7))) | {"held": held}
    with pytest.raises(ProtocolError):
        parse_reply(header)
