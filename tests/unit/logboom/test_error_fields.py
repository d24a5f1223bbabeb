"""What an error's docstring names is there, wherever it is raised."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logboom
from logboom import errors
from logboom.client.attempts import _doubtful
from logboom.errors import BarrierBlocked, BarrierTimeout, LogboomError, Overloaded, ProtocolError, from_wire
from logboom.types import Watermark

ROOT = Path(logboom.__file__).parents[1]
FOLDERS = ("logboom", "raftlog", "partitions", "dispatcher", "snapshots", "server")
KINDS = {kind.__name__: kind for kind in errors.BY_CODE.values()}
WORDS = {*errors.BY_CODE, "not_applied", "unknown", "applied", "log", "fields"}
"""In docstrings, and no names of fields."""
EITHER = {"BarrierFuture": ({"target", "commit_index", "limit"}, {"timestamp_ms", "now_ms"})}
ROW = [3, 9, 8, 7, 6, 5, "paused"]
MARK = Watermark(3, 9, 8, 7, 6, 5, "paused")  # type: ignore[arg-type]


def promised(kind: type[LogboomError]) -> set[str]:
    """Names that its docstring says, but for those that it works out itself."""
    names = set(re.findall(r"``(\w+)``", kind.__doc__ or "")) - WORDS
    return {name for name in names if not isinstance(getattr(kind, name, None), property) or name in ALWAYS}


ALWAYS = {"watermarks", "frontiers"}


def sites() -> Iterator[Any]:
    """Where an error is made: the file and line, which, and the names of what it is given."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                name = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
                if isinstance(node, ast.Call) and name in KINDS:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name, {each.arg for each in node.keywords}


def test_whoever_raises_an_error_gives_all_that_its_docstring_names() -> None:
    found = 0
    for where, name, given in sites():
        if None in given:
            continue  # whatever another one had
        found += 1
        ways = EITHER.get(name, (promised(KINDS[name]),))
        assert any(way <= given for way in ways), f"{where}: {name} without {ways[0] - given}"
    assert found > 500
    assert promised(errors.NoSuchPartition) == {"partition_id", "partitions"}
    assert promised(BarrierTimeout) == {"target", "watermarks", "frontiers"}


@pytest.mark.parametrize("kind", [BarrierTimeout, BarrierBlocked])
def test_where_partitions_stand_is_told_as_by_a_barrier_that_was_reached(kind: type[BarrierTimeout]) -> None:
    """They were rows of numbers."""
    made = kind("m", target=9, behind=[3], blocked=[[3, "paused"]], watermarks=[ROW], frontiers=[[3, 5]])
    for error in (made, from_wire(made.to_wire()), copy.copy(made)):
        assert type(error) is kind
        assert (error.watermarks, error.frontiers, error.behind) == ((MARK,), {3: 5}, [3])
        assert error.fields["watermarks"] == [ROW], "as it travels"
    bare = kind("m")
    assert (bare.watermarks, bare.frontiers, bare.behind) == ((), {}, [])


@pytest.mark.parametrize(
    "fields",
    [
        {"watermarks": 7},
        {"watermarks": [7]},
        {"watermarks": [ROW[:6]]},
        {"watermarks": [[*ROW[:6], 7]]},
        {"frontiers": [[3]]},
        {"frontiers": [[3, "5"]]},
        {"blocked": {"3": "paused"}},
        {"behind": 3},
        {"behind": [[3]]},
    ],
)
def test_rows_that_are_none_are_a_broken_protocol(fields: dict[str, Any]) -> None:
    assert type(from_wire(BarrierBlocked("m", **fields).to_wire())) is ProtocolError


def test_an_error_is_told_again_whatever_a_node_calls_its_fields() -> None:
    """As one of a later release may: with a field named as an argument of ours nobody was told but of a TypeError."""
    odd = Overloaded("full", scope="node")
    odd.fields |= {"outcome": "none", "message": "of a later release"}
    for told in (odd.again(), odd.again("fuller", outcome="unknown"), _doubtful(odd, final=True)):
        assert (type(told), told.fields) == (Overloaded, odd.fields)
    assert (odd.again("fuller").message, _doubtful(odd, final=True).outcome) == ("fuller", "unknown")
