"""docs/protocol.md names every frame kind with its number, every error code with its outcome, and a true example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logboom.errors import BY_CODE
from logboom.routing import partition_of
from logboom.wire import Kind

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text()


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_there(kind: Kind) -> None:
    name = "→ 25" if kind is Kind.WATERMARKS_REPLY else "→ 27" if kind is Kind.ADMIN_REPLY else f"{kind.name} {kind}"
    assert re.search(rf"{name}\b", TEXT)


@pytest.mark.parametrize("code", sorted(BY_CODE.keys() - {"chain_broken"}))
def test_every_error_code_is_there(code: str) -> None:
    row = next((line for line in TEXT.splitlines() if line.startswith(f"| `{code}` |")), None)
    if row is None:
        assert f"`{code}`" in TEXT.partition("never sent by a node")[2]
        return
    _, _, again, outcome, *_ = (cell.strip() for cell in row.split("|"))
    assert again == ("yes" if BY_CODE[code].retryable else "no")
    assert outcome == BY_CODE[code].outcome


def test_the_routing_example_holds() -> None:
    stated = re.search(r"For 8 partitions: (.*)\.", TEXT)
    assert stated is not None
    for name, partition in re.findall(r"(the empty key|`\w+`) → (\d)", stated[1]):
        key = b"" if name == "the empty key" else name.strip("`").encode()
        assert partition_of(key, 8) == int(partition), name
