"""docs/monitoring: what alerts and panels ask for is there, and asked for in a way that makes sense."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from server.metrics.catalogue import METRICS, PREFIX

ROOT: Final = Path(__file__).resolve().parents[3] / "docs" / "monitoring"
OF_SCRAPER: Final = {"job", "instance"}
NOT_OURS: Final = {
    "up": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_resident_memory_bytes": "gauge",
}
FAULTS: Final = (
    "access_rules_unused",
    "repair_lost_batches",
    "scrub_open",
    "scrub_stuck",
    "snapshot_dumps_stuck",
    "states_differing",
    "upkeep_still_seconds",
)
"""Gauges that are 0 as long as all is well, whatever is asked of a node."""
SELECTOR: Final = re.compile(rf"\b({PREFIX}\w+|process_\w+|up)\b(?:\{{([^}}]*)\}})?(\[[^\]]+\])?")
OVER_TIME: Final = re.compile(r"\b(rate|increase|deriv)\($")
RULE: Final = re.compile(r"^      - alert: (\w+)\n((?:        .*\n|\n)+)", re.MULTILINE)


def alerts() -> dict[str, dict[str, str]]:
    """Name to the fields of each, as text."""
    text = (ROOT / "alerts.yml").read_text()
    found = {
        name: dict(re.findall(r"^ +(\w+): (.*)$", body, re.MULTILINE)) | {"body": body}
        for name, body in RULE.findall(text)
    }
    assert len(found) == text.count("- alert:")
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> list[tuple[str, str]]:
    shown = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return [*((name, rule["expr"]) for name, rule in alerts().items()), *shown]


def kind(name: str) -> str:
    """What Prometheus makes of it; KeyError if nobody exports it."""
    if name in NOT_OURS:
        return NOT_OURS[name]
    bare = name.removeprefix(PREFIX)
    if bare in METRICS:
        assert METRICS[bare].type != "histogram", f"{name}: say _bucket, _sum or _count"
        return METRICS[bare].type
    assert METRICS[re.sub("_(bucket|sum|count)$", "", bare)].type == "histogram", name
    return "counter"


def labels(name: str) -> set[str]:
    if name in NOT_OURS:
        return OF_SCRAPER
    metric = METRICS.get(name.removeprefix(PREFIX)) or METRICS[re.sub("_(bucket|sum|count)$", "", name)[len(PREFIX) :]]
    return {*metric.labels, *OF_SCRAPER, *(["le"] if name.endswith("_bucket") else [])}


def left(expression: str) -> set[str]:
    """Labels that whoever reads the result can count on."""
    groups = re.findall(r"\bby \(([^)]*)\)", expression)
    if "histogram_quantile" in expression:
        return {label.strip() for label in groups[0].split(",")} - {"le"}
    if groups:
        return {label.strip() for label in groups[0].split(",")}
    if re.match(r"(max|min|sum)\(", expression):
        return set()
    return set.intersection(*(labels(name) for name, _, _ in SELECTOR.findall(expression)))


@pytest.mark.parametrize(("what", "expression"), expressions())
def test_what_is_asked_for_is_exported(what: str, expression: str) -> None:
    assert expression.count("(") == expression.count(")"), what
    found = list(SELECTOR.finditer(re.sub(r"\b(?:by) \([^)]*\)", "", expression)))
    assert found, what
    for match in found:
        name, selected, span = match.groups()
        before = match.string[: match.start()]
        over_time = OVER_TIME.search(before)
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)", selected or ""):
            assert label in labels(name), f"{what}: {name} has no {label}"
        assert bool(over_time) == bool(span), f"{what}: {name}"
        counted = kind(name) == "counter"
        assert counted == bool(over_time and over_time[1] != "deriv"), f"{what}: {name} is a {kind(name)}"
        assert not name.endswith("_bucket") or "histogram_quantile(" in before, f"{what}: {name}"
    known = set.union(*(labels(match[1]) for match in found))
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= known, what
    assert ("histogram_quantile" in expression) == bool(re.search(r"\bby \([^)]*\ble\b", expression)), what


@pytest.mark.parametrize(("name", "rule"), alerts().items())
def test_an_alert_says_for_how_long_how_bad_it_is_and_what_it_is(name: str, rule: dict[str, str]) -> None:
    assert re.fullmatch(r"Logboom[A-Z]\w+", name)
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"] in ("{severity: page}", "{severity: ticket}")
    assert rule["summary"].startswith('"')
    assert rule["description"].startswith('"')
    used = set(re.findall(r"\$labels\.(\w+)", rule["body"]))
    assert used <= left(rule["expr"]), f"{used} of {left(rule['expr'])}"


def test_an_alert_names_a_part_of_the_page_that_is_there() -> None:
    heads = re.findall(r"^#+ (.*)$", (ROOT.parent / "operating.md").read_text(), re.MULTILINE)
    named = re.findall(r"docs/operating\.md, ([A-Z][\w ]+?)(?=,|\.|\)| says| has)", (ROOT / "alerts.yml").read_text())
    assert named
    assert set(named) <= set(heads)


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_names_what_it_draws(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    for target in panel["targets"]:
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert used <= left(target["expr"]), target
        assert 'job=~"$job", instance=~"$instance"' in target["expr"]


def test_panels_do_not_lie_on_each_other() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len({*places}) == len(places) == len({panel["id"] for panel in panels()})
    assert {(panel["gridPos"]["w"], panel["gridPos"]["h"]) for panel in panels()} == {(8, 8)}


def test_what_the_page_says_to_watch_has_alerts() -> None:
    page = (ROOT.parent / "operating.md").read_text().split("### Five to watch")[1].split("###")[0]
    rules = (ROOT / "alerts.yml").read_text()
    named = set(re.findall(rf"{PREFIX}\w+[a-z]", page.partition("Below them")[0]))
    assert named
    assert {name for name in named if name not in rules} == set()


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_whatever_is_asked_of_a_node_has_an_alert(name: str) -> None:
    """Found by reading: nobody was told that the states of nodes differ."""
    assert METRICS[name].type == "gauge"
    assert [rule for rule in alerts().values() if re.search(rf"\b{PREFIX}{name}\b.* > \d+$", rule["expr"])]


@pytest.mark.parametrize(("name", "rule"), alerts().items())
def test_an_alert_that_waits_for_a_second_one_does_not_take_one_for_two(name: str, rule: dict[str, str]) -> None:
    """What ``increase`` makes of one is a little more than that: it is drawn out to the ends of its range."""
    if "increase(" in rule["expr"]:
        least = float(rule["expr"].rpartition("> ")[2])
        assert least == 0 or not least.is_integer(), name
