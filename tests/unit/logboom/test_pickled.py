"""What programs keep of a client's answers, in pickles of this release and of those before."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - as Spark and multiprocessing do it
from typing import Any

import pytest

from logboom import Client, SyncClient
from logboom.types import BarrierResult, Receipt, Receipts, Status, Token

ANSWERS: list[Any] = [
    Token("c", 5, "ab" * 16),  # type: ignore[arg-type]
    BarrierResult(4, "n1", (), {3: 4}),  # type: ignore[arg-type, dict-item]
    Receipts((Receipt(1, 2, 3, 4, 1, (Status.OK, Status(77)), "frozen"),)),  # type: ignore[arg-type]
]
TOKEN = """
    80049529 00000000 0000008c 0d6c6f67 626f6f6d 2e747970 6573948c 05546f6b 656e9493 94298194 5d94288c 0163944b
    0565622e
"""
BARRIER = """
    80049533 00000000 0000008c 0d6c6f67 626f6f6d 2e747970 6573948c 0d426172 72696572 52657375 6c749493 94298194
    5d94284b 048c026e 31942965 622e
"""
RECEIPT = """
    8004952d 00000000 0000008c 0d6c6f67 626f6f6d 2e747970 6573948c 07526563 65697074 94939428 4b014b02 4b034b04
    4b004e74 9452942e
"""
BEFORE: list[tuple[str, Any]] = [
    (TOKEN, Token("c", 5)),  # type: ignore[arg-type]
    (BARRIER, BarrierResult(4, "n1", ())),  # type: ignore[arg-type]
    (RECEIPT, Receipt(1, 2, 3, 4)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda each: type(each).__name__)
def test_an_answer_comes_back(answer: Any) -> None:
    assert pickle.loads(pickle.dumps(answer)) == answer


@pytest.mark.parametrize(("raw", "meant"), BEFORE, ids=["token", "barrier", "receipt"])
def test_an_answer_that_an_earlier_release_has_kept_is_whole(raw: str, meant: Any) -> None:
    found = pickle.loads(bytes.fromhex(raw))
    assert found == meant
    assert pickle.loads(pickle.dumps(found)) == meant


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("made", [Client, SyncClient])
def test_a_client_says_why_it_does_not_and_what_to_do(made: Any, copied: Any) -> None:
    """As Spark told it of a function that refers to one: cannot pickle '_thread.lock' object."""
    client = made("127.0.0.1:1")
    with pytest.raises(TypeError, match=f"a {made.__name__} cannot be pickled or copied, .* make one where it is used"):
        copied(client)
