"""What curves are drawn on: points as they come, checks on them, and what could not be measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.report import Check, say


@dataclass(frozen=True)
class Point:
    """One measurement: a median, the least and the most of its runs."""

    x: float
    y: float
    low: float
    high: float
    series: str = ""


@dataclass
class Curve:
    """``x`` names what grows, ``unit`` is that of ``y``."""

    x: str
    unit: str
    points: list[Point] = field(default_factory=list)

    def line(self, series: str = "") -> list[Point]:
        """The points of one series, as measured."""
        return [point for point in self.points if point.series == series]


class Sheet:
    """All curves of a run."""

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.checks: list[Check] = []
        self.skipped: list[str] = []

    def curve(self, name: str, *, x: str, unit: str) -> Curve:
        """A new curve, or the one of that name."""
        return self.curves.setdefault(name, Curve(x, unit))

    def point(self, name: str, x: float, values: float | Sequence[float], *, series: str = "") -> None:
        """Add a point to a known curve: one value, or one for each run."""
        runs = [values] if isinstance(values, (int, float)) else list(values)
        point = Point(x, statistics.median(runs), min(runs), max(runs), series)
        self.curves[name].points.append(point)
        label = f" ({series})" if series else ""
        say(f"  {name}, {self.curves[name].x} {x:,.10g}{label}: {point.y:,.4g} {self.curves[name].unit}")

    def skip(self, what: str) -> None:
        """Something that could not be measured here, and why."""
        self.skipped.append(what)
        say(f"  skipped: {what}")

    def ratio(
        self, name: str, *, series: str = "", at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Check the last point of a series against its first. One point alone says nothing, and is not checked."""
        line = self.curves[name].line(series)
        if len(line) < 2:
            return
        label = f"{name} ({series})" if series else name
        what = f"{label}, {line[-1].x:,.10g} / {line[0].x:,.10g} {self.curves[name].x}"
        self.check(what, line[-1].y / line[0].y, at_least=at_least, at_most=at_most)

    def check(self, name: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Hold a figure against its bound."""
        self.checks.append(Check(name, value, at_most=at_most, at_least=at_least))

    def figures(self) -> dict[str, Any]:
        """For the report."""
        return {"curves": {name: asdict(curve) for name, curve in self.curves.items()}, "skipped": self.skipped}
