from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.plan import small_and_quiet


@pytest.fixture(autouse=True)
def _small_and_quiet() -> Iterator[None]:
    with small_and_quiet():
        yield
