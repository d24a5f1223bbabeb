"""A user's state machine may do what it likes: what its node gets is an answer, or an Exception."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from logboom.errors import CorruptData, InvalidRequest
from logboom.state_machine import NOWHERE, Position, Space
from partitions.machines.guarded import guard
from ports.telling import TOLD_MAX
from tests.unit.partitions.worker_world import Untold


def machine(**parts: Any) -> Any:
    usual = {"needs_records": False, "unsaved_bytes": 0, "position": lambda: NOWHERE}
    return guard("mine", SimpleNamespace(**usual | parts))


def leaves(*_: Any, **__: Any) -> NoReturn:
    sys.exit("no configuration")


def runs_dry(*_: Any, **__: Any) -> Any:
    return next(iter(()))


def cancelled(*_: Any, **__: Any) -> NoReturn:
    raise asyncio.CancelledError


WAYS = [leaves, runs_dry, cancelled]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["position", "checkpoint", "close", "digest", "dump", "get_at_once", "discard", "get"])
def test_what_is_no_exception_comes_out_as_one(name: str, way: Callable[..., Any]) -> None:
    """Found by review: `sys.exit` in a get ended each node that was asked, with status 0 if nothing was said."""
    calls: dict[str, Any] = {"get": [[b"k"]], "get_at_once": [[b"k"]]}
    parts = {name: way} if name != "position" else {}
    found = machine(**parts)
    if name == "position":
        found._machine.position = way
    with pytest.raises(RuntimeError, match="the state machine 'mine' raised"):
        getattr(found, name)(*calls.get(name, []))


@pytest.mark.parametrize("way", [leaves, cancelled])
def test_so_it_does_in_the_midst_of_what_is_iterated(way: Callable[..., Any]) -> None:
    def rows(**_: Any) -> Iterator[Any]:
        yield [(b"k", b"v")], NOWHERE
        way()

    found = machine(scan=rows, scrub=rows)
    for each in (found.scan(start=b"", end=None, limit=0, chunk=1), found.scrub()):
        next(each)
        with pytest.raises(RuntimeError, match="the state machine 'mine' raised"):
            next(each)


def test_a_scan_that_is_left_ends_in_the_machine_too() -> None:
    ended = []

    def rows(**_: Any) -> Iterator[Any]:
        try:
            yield [], (1, 2)
        finally:
            ended.append(True)

    each = machine(scan=rows).scan(start=b"", end=None, limit=0, chunk=1)
    assert next(each) == ([], Position(1, 2))  # type: ignore[arg-type]
    each.close()
    assert ended == [True]


def test_its_own_exceptions_stay_what_they_are() -> None:
    def fails(_: Any) -> NoReturn:
        raise KeyError("balance")

    with pytest.raises(KeyError, match="balance"):
        machine(get=fails).get([b"k"])


def test_what_is_unsaved_is_a_number_whatever_it_says() -> None:
    """Found by review: the loop asks while ``apply`` changes what is counted, and every node ended of it."""
    said: list[Any] = [5, RuntimeError("dictionary changed size during iteration"), None, "many", float("nan"), 7.9]

    class Counts:
        needs_records = False

        @property
        def unsaved_bytes(self) -> Any:
            each = said.pop(0)
            if isinstance(each, Exception):
                raise each
            return each

    found = guard("mine", Counts())  # type: ignore[arg-type]
    assert [found.unsaved_bytes for _ in range(6)] == [5, 5, 5, 5, 5, 7]


@pytest.mark.parametrize("entry", [("6b6579", b"v"), (b"k", "v"), (5, b"v"), (b"k", None)])
def test_what_it_keeps_for_its_node_comes_back_as_bytes_or_not_at_all(entry: Any) -> None:
    """Found by review: a producer under a name of text was found by nobody, and what it sent again applied again."""
    with pytest.raises(TypeError, match="they are bytes, as seal gave them"):
        dict(machine(meta=lambda: [entry]).meta())
    assert dict(machine(meta=lambda: [(bytearray(b"k"), memoryview(b"v"))]).meta()) == {b"k": b"v"}


@pytest.mark.parametrize("wrong", [None, (1,), (1, 2, 3), ("1", 2), (1.5, 2), (-1, 2)])
def test_a_position_is_two_numbers(wrong: Any) -> None:
    found = machine()
    found._machine.position = lambda: wrong
    with pytest.raises((TypeError, ValueError)):
        found.position()
    found._machine.position = lambda: [3, 4]
    assert found.position() == Position(3, 4)  # type: ignore[arg-type]
    assert found.position().applied_index == 3


def test_it_has_what_the_machine_has() -> None:
    assert not [name for name in ("get_at_once", "scrub", "discard") if hasattr(machine(), name)]
    assert machine(get_at_once=lambda _: None).get_at_once([b"k"]) is None
    assert machine(applies_in_memory=True).applies_in_memory


def test_a_dump_is_closed_and_read_through_it_too() -> None:
    closed = []

    def entries() -> Iterator[Any]:
        yield Space.STATE, b"k", b"v"
        leaves()

    dump = SimpleNamespace(position=(1, 2), entries=entries, close=lambda: closed.append(True))
    with machine(dump=lambda: dump).dump() as found:
        assert found.position == Position(1, 2)  # type: ignore[arg-type]
        each = found.entries()
        assert next(each) == (Space.STATE, b"k", b"v")
        with pytest.raises(RuntimeError, match="no configuration"):
            next(each)
    assert closed == [True]


@pytest.mark.parametrize("name", ["checkpoint", "close", "discard", "load", "position", "meta"])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "no such service"), RuntimeError),
        (FileNotFoundError(errno.ENOENT, "no model"), RuntimeError),
        (TimeoutError("the service"), RuntimeError),
        (OSError(errno.EIO, "the disk"), OSError),
        (OSError(errno.ENOSPC, "the disk"), OSError),
    ],
)
def test_only_what_the_disk_says_ends_a_node(name: str, error: OSError, raised: type[Exception]) -> None:
    """A checkpoint that could not reach some service ended its node, and so all of them: an OSError is a disk's."""

    def fails(*_: Any) -> NoReturn:
        raise error

    found = machine(**{name: fails})
    with pytest.raises(raised) as caught:
        dict(getattr(found, name)(*([iter(()), NOWHERE] if name == "load" else [])))
    assert isinstance(caught.value, OSError) is (raised is OSError)
    assert raised is OSError or repr(error) in str(caught.value)


def no_number() -> Any:
    raise ZeroDivisionError


class Dump:
    """Open until it is closed."""

    def __init__(self, position: Callable[[], Any], *, fails: bool) -> None:
        self._position, self._fails, self.closed = position, fails, 0

    @property
    def position(self) -> Any:
        return self._position()

    def close(self) -> None:
        self.closed += 1
        if self._fails:
            raise KeyError("close")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("position", "error"),
    [(lambda: None, TypeError), (lambda: (1, -1), ValueError), (no_number, ZeroDivisionError), (leaves, RuntimeError)],
)
def test_a_dump_that_says_no_position_is_closed(
    position: Callable[[], Any], error: type[Exception], *, fails: bool
) -> None:
    """Nobody else has it: each further attempt at a snapshot left another one open."""
    dump = Dump(position, fails=fails)
    with pytest.raises(error):
        machine(dump=lambda: dump).dump()
    assert dump.closed == 1


class Unwritten(str):
    """What a ``__str__`` gives that looks like a text."""

    __slots__ = ()

    def __format__(self, _: str) -> str:
        raise AttributeError("entry")


class Odd(Exception):
    def __str__(self) -> str:
        return Unwritten("odd")


UNTOLD: list[tuple[Exception, type[Exception]]] = [
    (ValueError(Untold()), RuntimeError),
    (ValueError("\udcff"), RuntimeError),
    (ValueError("v" * (TOLD_MAX + 1)), RuntimeError),
    (Odd(), RuntimeError),
    (CorruptData(Untold()), CorruptData),  # type: ignore[arg-type]
    (type("Mine", (InvalidRequest,), {})(Untold()), InvalidRequest),
    (OSError(errno.ENOSPC, Untold()), OSError),
]


@pytest.mark.parametrize(("error", "kind"), UNTOLD)
@pytest.mark.parametrize("name", ["get", "checkpoint", "scrub"])
def test_one_whose_text_cannot_be_had_comes_out_as_one_of_its_kind_that_has_one(
    name: str, error: Exception, kind: type[Exception]
) -> None:
    """Whoever asked for its `repr`, on the loop, raised what that did: nobody was told, and nothing went on."""

    def fails(*_: Any) -> Any:
        raise error

    def halts(*_: Any) -> Any:
        yield from ()
        raise error

    found = machine(**{name: halts if name == "scrub" else fails})
    with pytest.raises(kind, match="the state machine 'mine' raised") as caught:
        list(getattr(found, name)(*[[b"k"]] if name == "get" else []))
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error
    assert "mine" in repr(caught.value)
    assert getattr(caught.value, "errno", None) == (errno.ENOSPC if kind is OSError else None)
