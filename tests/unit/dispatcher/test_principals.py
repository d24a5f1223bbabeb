"""Who a client is, where its certificate has one name, several or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.sessions.principals import all_names, first_name


@pytest.mark.parametrize(
    ("names", "places", "rates"), [((), "", None), (("spark",), "spark", "spark"), (("b", "a"), "a, b", "a")]
)
def test_places_are_taken_by_all_names_together_and_rates_by_the_first(
    names: tuple[str, ...], places: str, rates: str | None
) -> None:
    connection: Any = SimpleNamespace(peer_identities=frozenset(names))
    assert (all_names(connection), first_name(connection)) == (places, rates)
