"""``python -m bench.picture``: the figures as pictures. See docs/performance.md.

``docs/performance.svg`` from ``bench/results/latest.json``, one panel per work; ``docs/curves.svg`` from
``bench/results/curves.json`` and ``docs/endless.svg`` from ``bench/results/endless.json``, one panel per curve. The
same figures always give the same bytes: there is no date in a picture. matplotlib is imported where it is needed, so
that the rest can do without.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.report import RESULTS, ROOT, say

DOCS: Final = ROOT / "docs"
SYSTEMS: Final = {
    # In this order from the top; those that are not named here come last.
    "logboom": "#c2410c",
    "etcd": "#4b5563",
    "postgres": "#6b7280",
    "redis": "#8b929c",
    "nats": "#a9afb8",
    "disk": "#d5d8dd",
}
OTHERS: Final = "#9aa1ab"
LINES: Final = ("#c2410c", "#374151", "#2563a8", "#8b929c", "#7c5c2e", "#b4b9c1")
"""Colours of a curve's series, in turn."""
FIGURES: Final = {
    "commands_per_s": "commands/s; more is better",
    "until_applied_per_s": "commands/s until applied; more is better",
    "p50_ms": "ms, p50; less is better",
    "p99_ms": "ms, p99; less is better",
    "first_write_ms": "ms to the first write; less is better",
    "cpu_us_per_command": "µs of CPU per command; less is better",
}
BARE_DISK: Final = "disk: no service; three processes that append and sync, for comparison"
AXES: Final = {"nodes": "nodes, all on one machine"}
"""What has to be said of what grows: more nodes share the same cores here."""
COLUMNS: Final = 3
WIDTH_IN: Final = 11.0
PANEL_IN: Final = 2.1
LOG_ABOVE: Final = 20.0
"""Ratio of largest to smallest from which on an axis is logarithmic."""
TICK_APART: Final = 0.16
"""Of an axis's length, between two labels."""
MARKED_MAX: Final = 30
"""Points of a series: more are a line without marks."""
FEW_DECADES: Final = 60.0
"""Below this ratio a logarithmic axis has ticks at 2 and 5 too."""
STYLE: Final = {
    "svg.hashsalt": "logboom",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#6b7280",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": "#1d2733",
    "axes.labelcolor": "#1d2733",
    "xtick.color": "#1d2733",
    "ytick.color": "#1d2733",
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "legend.fontsize": 9,
    "legend.frameon": False,
}


# -- what to show


def short(value: float) -> str:
    """Three digits or four, and a unit: 766800 is "767 k"."""
    size, unit = (1e6, " M") if value >= 1e6 else (1e3, " k") if value >= 1e4 else (1.0, "")
    scaled = value / size
    text = f"{scaled:,.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit


def binary(value: float) -> str:
    """Bytes: 4096 is "4 Ki"."""
    for size, unit in ((1 << 20, " Mi"), (1 << 10, " Ki")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def shown(table: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A row for each work, bulk first: the figure that its goals are about, or its first."""
    works: dict[str, Mapping[str, Any]] = {}
    for row in table:
        known = works.setdefault(row["work"], row)
        if row.get("goals") and not known.get("goals"):
            works[row["work"]] = row
    measured = [row for row in works.values() if row["systems"]]
    return sorted(measured, key=lambda row: not row["work"].startswith("bulk"))


def ordered(systems: Mapping[str, Any]) -> list[str]:
    """Names from the top down."""
    known = list(SYSTEMS)
    return sorted(systems, key=lambda name: (known.index(name) if name in known else len(known), name))


def wide(values: Sequence[float]) -> bool:
    """They are better told apart on a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) > LOG_ABOVE


def ticks(xs: Sequence[float]) -> list[float]:
    """Of these places, in order, those that can be labelled on a logarithmic axis; the last always is."""
    apart = (xs[-1] / xs[0]) ** TICK_APART
    kept: list[float] = []
    for x in reversed(xs):
        if not kept or kept[-1] / x >= apart:
            kept.append(x)
    return kept[::-1]


def series_of(points: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """A curve's points by series, each along x. Beside lines, single points are left to the table."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for point in sorted(points, key=lambda each: float(each["x"])):
        found.setdefault(point["series"], []).append(point)
    order = list(dict.fromkeys(point["series"] for point in points))
    several = any(len(along) > 1 for along in found.values())
    return {name: found[name] for name in order if len(found[name]) > 1 or not several}


# -- drawing


def performance(report: Mapping[str, Any]) -> Any:
    """A figure with a panel of bars for each work."""
    rows = shown(report["table"])
    figure, panels = _panels(len(rows))
    most = max((len(row["systems"]) for row in rows), default=1)
    for axes, row in zip(panels, rows, strict=True):
        _bars(axes, row)
        axes.set_ylim(most - 0.5, -0.5)  # bars of one height in all panels, the first on top
    if any("disk" in row["systems"] for row in rows):
        figure.supxlabel(BARE_DISK, x=0.02, ha="left", fontsize=9, color="#4b5563")
    return figure


def curves(report: Mapping[str, Any]) -> Any:
    """A figure with a panel for each curve."""
    figure, panels = _panels(len(report["curves"]), height_in=2.6)
    for axes, (name, curve) in zip(panels, report["curves"].items(), strict=True):
        _lines(axes, name, curve)
    return figure


def _panels(count: int, *, height_in: float = PANEL_IN) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    rows = max(1, -(-count // COLUMNS))
    figure = Figure(figsize=(WIDTH_IN, rows * height_in), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    panels = [axes for line in grid for axes in line]
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _bars(axes: Any, row: Mapping[str, Any]) -> None:
    systems = ordered(row["systems"])
    found = [row["systems"][name] for name in systems]
    medians = [each["median"] for each in found]
    logarithmic = wide(medians)
    for place, (name, each) in enumerate(zip(systems, found, strict=True)):
        axes.barh(place, each["median"], height=0.72, color=SYSTEMS.get(name, OTHERS))
        axes.plot([each["min"], each["max"]], [place, place], color="#111827", linewidth=1.2, marker="|", markersize=5)
        end = max(each["median"], each["max"])
        axes.annotate(
            short(each["median"]),
            (end, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold" if name == "logboom" else "normal",
        )
    axes.set_yticks(range(len(systems)), systems)
    axes.tick_params(axis="y", length=0)
    most = max(max(each["median"], each["max"]) for each in found)
    if logarithmic:
        axes.set_xscale("log")
        least = min(medians)
        axes.set_xlim(least / 4, most * (most / least) ** 0.45)
    else:
        axes.set_xlim(0, most * 1.3)
    axes.set_title(row["work"])
    unit = FIGURES.get(row["figure"], f"{row['figure'].replace('_', ' ')}, {row['unit']}")
    axes.set_xlabel(f"{unit} (log scale)" if logarithmic else unit)
    _sparse(axes.xaxis)


def _lines(axes: Any, name: str, curve: Mapping[str, Any]) -> None:
    lines = series_of(curve["points"])
    for (series, points), colour in zip(lines.items(), LINES * len(lines), strict=False):
        x, y = [p["x"] for p in points], [p["y"] for p in points]
        marker = "o" if len(points) <= MARKED_MAX else ""
        axes.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.8, label=series)
        axes.fill_between(x, [p["low"] for p in points], [p["high"] for p in points], color=colour, alpha=0.15)
    drawn = [point for points in lines.values() for point in points]
    xs = sorted({p["x"] for p in drawn})
    ys = [p["y"] for p in drawn]
    linear = bool(curve.get("linear"))
    if linear:
        _sparse(axes.xaxis)
    else:
        axes.set_xscale("log")
        say_x = binary if curve["x"] == "bytes" else short
        axes.set_xticks(ticks(xs), [say_x(x) for x in ticks(xs)])
    axes.minorticks_off()
    if wide(ys) and not linear:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max(p["high"] for p in drawn) * (1.15 if len(lines) < 3 else 1.7))
    _sparse(axes.yaxis)
    axes.set_title(name)
    axes.set_xlabel(AXES.get(curve["x"], curve["x"]))
    axes.set_ylabel(curve["unit"])
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    if len(lines) > 1:
        axes.legend(loc="best", handlelength=1.2, labelspacing=0.25, borderaxespad=0.1)


def _sparse(axis: Any) -> None:
    """Few ticks, in short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    logarithmic = axis.get_scale() == "log"
    few_decades = logarithmic and high / low < FEW_DECADES
    axis.set_major_locator(
        LogLocator(subs=(1, 2, 5) if few_decades else (1,), numticks=6) if logarithmic else MaxNLocator(4)
    )
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


PICTURES: Final = {
    "latest.json": ("performance.svg", performance),
    "curves.json": ("curves.svg", curves),
    "endless.json": ("endless.svg", curves),
}


def draw(source: Path, target: Path) -> None:
    """Raises OSError for files, ValueError or KeyError for figures of another form, ImportError without matplotlib."""
    import matplotlib as mpl

    make = PICTURES[source.name][1]
    report = json.loads(source.read_text())
    with mpl.rc_context(STYLE):
        make(report).savefig(target, metadata={"Date": None, "Creator": None} if target.suffix == ".svg" else None)


def main() -> int:
    """Exit status 2: there was nothing to draw, or nothing to draw with."""
    parser = argparse.ArgumentParser(prog="python -m bench.picture", description="the figures as pictures")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON files are")
    parser.add_argument("--directory", type=Path, default=DOCS, help="where the pictures go")
    parser.add_argument("--png", action="store_true", help="PNG in place of SVG, for a quick look")
    asked = parser.parse_args()
    drawn = 0
    for name, (picture, _) in PICTURES.items():
        source, target = asked.results / name, asked.directory / picture
        target = target.with_suffix(".png") if asked.png else target
        if not source.exists():
            say(f"picture: no {source}, so no {target.name}")
            continue
        try:
            draw(source, target)
        except (ImportError, OSError, ValueError, KeyError) as error:
            say(f"picture: {target.name}: {error!r}; matplotlib comes with `make bench-picture`")
            return 2
        say(f"written: {target}")
        drawn += 1
    return 0 if drawn else 2


if __name__ == "__main__":
    sys.exit(main())
