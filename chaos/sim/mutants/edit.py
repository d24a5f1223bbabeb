"""How a bug is put into production code, in this process only: by editing the source of a function.

An edit reads as a line of a diff. The function is compiled anew from its edited source and gets
the new code, so everybody who holds it runs the bug. A text that is not there exactly once is an
error: a mutant of code that has changed must be looked at, not skipped.
"""

from __future__ import annotations

import inspect
import pkgutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from chaos.sim.parameters import Parameters

OFTEN: Final = 3
"""A fault strikes, where it is needed."""


class Stale(Exception):
    """The code that a mutant wants to change is not what it was."""


class Edit(NamedTuple):
    """In ``target`` (``module:Class.method``) the text ``old`` becomes ``new``."""

    target: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One bug: what does not hold any more, and which invariants may be the first to notice; others do not count."""

    name: str
    broken: str
    noticed_by: tuple[str, ...]
    edits: tuple[Edit, ...]
    needs: str = ""
    """Fields of ``Parameters``, or kinds of faults, without which nothing of it is seen: other seeds are not played."""

    def may_be_seen(self, parameters: Parameters) -> bool:
        """A seed tells all that it needs, and a fault that is needed strikes more than once or twice."""
        strikes = Counter(fault.kind for fault in parameters.faults)
        return all(strikes[need] >= OFTEN or getattr(parameters, need, False) for need in self.needs.split())

    @cached_property
    def patches(self) -> list[tuple[FunctionType, CodeType]]:
        """Functions and their code with the bug. Raises Stale."""
        targets = dict.fromkeys(edit.target for edit in self.edits)
        return [_patched(target, [edit for edit in self.edits if edit.target == target]) for target in targets]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts, this process runs the bug."""
        with ExitStack() as stack:
            for function, code in self.patches:
                stack.enter_context(_code_of(function, code))
            yield


@contextmanager
def _code_of(function: FunctionType, code: CodeType) -> Iterator[None]:
    # Not mock.patch.object: it wants to delete what it has set, and a function cannot be without code.
    original, function.__code__ = function.__code__, code
    try:
        yield
    finally:
        function.__code__ = original


def _patched(target: str, edits: Sequence[Edit]) -> tuple[FunctionType, CodeType]:
    function = _function(target)
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise Stale(f"{target}: {edit.old!r} is there {source.count(edit.old)} times")
        source = source.replace(edit.old, edit.new)
    # A method that calls super() finds __class__ around it, here as there; its own name stays that of a global.
    around = f"def around(__class__):\n    global {function.__name__}\n{textwrap.indent(source, '    ')}"
    code: Any = compile(around, f"<{target}, mutated>", "exec", dont_inherit=True)
    for name in ("around", function.__name__):
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)
    if code.co_freevars != function.__code__.co_freevars:
        raise Stale(f"{target}: its closure is {function.__code__.co_freevars}, would be {code.co_freevars}")
    return function, code


def _function(target: str) -> FunctionType:
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise Stale(f"{target}: {error}") from error
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType):
        raise Stale(f"{target} is not a function")
    return found
