"""What the pages name is there: links, files in tables, modules in the page of their folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, tracked

PAGES = [path for path in tracked() if path.suffix == ".md"]
DESIGNS = [path for path in PAGES if path.name == "DESIGN.md"]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for place, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        if re.match(r"https?:", place):
            continue
        there = (page.parent / place).resolve() if place else page
        assert there.exists(), place
        assert not anchor or anchor in anchors(there), f"{place}#{anchor}"


@pytest.mark.parametrize("page", DESIGNS, ids=name)
def test_the_page_of_a_folder_has_its_modules_and_no_others(page: Path) -> None:
    text = page.read_text()
    below = [path for path in tracked() if path.suffix == ".py" and path.is_relative_to(page.parent)]
    words = set(re.findall(r"\w+", text))
    for path in below:
        inside = path.relative_to(page.parent)
        if path.stem in ("__init__", "__main__", "conftest"):
            continue
        folders = {f"{each.as_posix()}/" for each in inside.parents}
        assert path.stem in words or any(folder in text for folder in folders), f"{inside} is not described"
    own = {path.name for path in tracked() if path.is_relative_to(page.parent)}
    for module in re.findall(r"`(\w+\.py)`", text):
        assert module in own, f"there is no {module}"


@pytest.mark.parametrize("row", re.findall(r"`(tests/[^`]+)`", (ROOT / "chaos" / "FOUND.md").read_text()))
def test_what_was_found_has_the_test_that_is_named(row: str) -> None:
    file, *path = row.split("[", maxsplit=1)[0].split("::")
    assert (ROOT / file).exists()
    text = (ROOT / file).read_text() if path else ""
    for part in path:
        assert re.search(rf"\b(def|class) {part}\b", text), part
