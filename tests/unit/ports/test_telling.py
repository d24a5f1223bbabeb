"""Errors out of a user's code whose texts are his code, too."""

from __future__ import annotations

import pytest

from ports.telling import TOLD_MAX, tellable


class Plain(Exception):
    """Says what it was given, or raises that."""

    def __init__(self, shown: object, said: object) -> None:
        self.shown, self.said = shown, said

    def __repr__(self) -> str:
        return _given(self.shown)

    def __str__(self) -> str:
        return _given(self.said)


def _given(what: object) -> str:
    if isinstance(what, BaseException):
        raise what
    return what  # type: ignore[return-value]  # as users would, who check no types


class Text(str):
    """Whatever is done with one may be code of a user."""

    __slots__ = ()

    def __len__(self) -> int:
        raise SystemExit(1)


def test_others_are_told_as_ever() -> None:
    assert tellable(ValueError("no", 7)) == "ValueError('no', 7)"


@pytest.mark.parametrize("shown", [AttributeError("gone"), SystemExit(1), None, b"bytes"])
def test_one_that_cannot_be_shown_says_something(shown: object) -> None:
    assert tellable(Plain(shown, "said")) == "said"


def test_so_does_one_whose_argument_cannot_be() -> None:
    class Entry:
        def __repr__(self) -> str:
            raise AttributeError("gone")

    assert tellable(ValueError(Entry())) == "ValueError"


def test_one_that_says_nothing_either_has_a_type() -> None:
    assert tellable(Plain(AttributeError("gone"), KeyboardInterrupt())) == "Plain"


def test_megabytes_are_cut() -> None:
    told = tellable(ValueError("x" * 4_000_000))
    assert told == f"{repr(ValueError('x' * TOLD_MAX))[:TOLD_MAX]}..."


def test_it_can_be_written_to_a_log_and_sent_whatever_is_in_it() -> None:
    assert tellable(Plain("ä \udc80", "")).encode() == "ä \\udc80".encode()


def test_it_is_a_plain_text() -> None:
    assert type(tellable(Plain(Text("shown"), ""))) is str
