"""What a program's own type checker, and its editor, see of the clients."""

from __future__ import annotations

import collections.abc
import inspect
from typing import get_origin, get_type_hints

import pytest

from logboom import Client, SyncClient

STREAMS = [
    "scan",
    "scan_view",
    "scan_blocks",
    "tail",
    "tail_metadata",
    "scan_log",
    "barrier_watch",
    "watermarks_stream",
]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_can_be_closed_as_its_type_says(name: str) -> None:
    """``aclose`` and ``contextlib.aclosing`` want a generator; an iterator has nothing to close it with."""
    assert get_origin(get_type_hints(getattr(Client, name))["return"]) is collections.abc.AsyncGenerator


def test_all_streams_of_a_client_are_looked_at() -> None:
    found = {
        name
        for name, each in inspect.getmembers(Client, inspect.isfunction)
        if "Async" in str(inspect.signature(each).return_annotation) and not name.startswith("_")
    }
    assert found == set(STREAMS)


def test_a_client_for_code_that_blocks_is_made_with_what_the_other_is_made_with() -> None:
    assert list(inspect.signature(SyncClient).parameters) == list(inspect.signature(Client).parameters)
    assert all(each.kind is not each.VAR_KEYWORD for each in inspect.signature(SyncClient).parameters.values())
