"""The views of the controller and of compactors.

The controller: backlog against its curve, shares of classes, latency of readers. Compactors: how
many are wanted, starting, running and draining, and why.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.units import format_bytes
from neve import api
from neve.console.frame import Series, Variables, View, page
from neve.console.pages.figures import WIDTH

CURVE_HEIGHT = 300
MARKS_MAX = 200
"""Points of the last hour that the curve shows."""
POINTS = 360
"""Points of a plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFigure:
    """Shares of system jobs over the backlog: the points of the last hour, and now."""

    backlog_max: float
    shares_max: float
    marks: tuple[tuple[int, int], ...]
    """Positions of the points of the last hour, oldest first."""
    now: tuple[int, int]
    now_text: str
    line: str
    """SVG points of the controller's line; empty: the controller has none that is known."""


def curve_line(options: str, memory_bytes: int) -> list[tuple[float, float]]:
    """Return the line of the controller `control-points` as backlog and shares; empty: unknown.

    Args:
        options: Value of the setting `control.options` as text, such as `points=0:50 30:1000`.
        memory_bytes: Divisor of the backlog.
    """
    points = next(
        (
            part.partition("=")[2]
            for part in options.split(",")
            if part.strip().startswith("points")
        ),
        "0:50 1.5:100 30:1000",
    )
    pairs = [pair.partition(":") for pair in points.split()]
    try:
        return [(float(backlog) * memory_bytes, float(shares)) for backlog, _, shares in pairs]
    except ValueError:
        return []


def clipped(line: Sequence[tuple[float, float]], most: float) -> list[tuple[float, float]]:
    """Return a piecewise line from 0 to `most`; it is constant after its last point."""
    kept = [point for point in line if point[0] <= most]
    if not kept:
        return []
    last, following = kept[-1], next((point for point in line if point[0] > most), None)
    if following is None:
        return [*kept, (most, last[1])]
    part = (most - last[0]) / (following[0] - last[0])
    return [*kept, (most, last[1] + part * (following[1] - last[1]))]


def recorded_lines(line: api.SeriesLine | None, measures: Mapping[str, str]) -> list[Series]:
    """Return the lines of a plot; those of which nothing was recorded are left out.

    Args:
        line: Recorded values; None: there are none.
        measures: Label → measure.
    """
    columns = {} if line is None else line.values
    return [
        Series(label, columns[measure])
        for label, measure in measures.items()
        if any(value is not None for value in columns.get(measure, ()))
    ]


def times_of(series: api.Series) -> list[float]:
    """Return the times of the steps of a series, in seconds since the epoch."""
    return [series.start_s + index * series.step_s for index in range(series.count)]


def curve_figure(
    control: api.Control, series: api.Series | None, line: Sequence[tuple[float, float]] = ()
) -> CurveFigure:
    """Return the shares of system jobs over the backlog.

    Args:
        control: Readings of the controller.
        series: Recorded values of the last hour; None: unknown.
        line: Line of the controller as pairs of backlog in bytes and shares; empty: it has none.
    """
    values = {} if series is None else series.total.values
    pairs = zip(values.get("backlog_bytes", ()), values.get("shares_system", ()), strict=False)
    points = [(x, y) for x, y in pairs if x is not None and y is not None]
    points = points[:: max(1, -(-len(points) // MARKS_MAX))]
    shares = next((entry.shares for entry in control.classes if entry.name == "system"), 0.0)
    now = (control.backlog_bytes, shares)
    # The line goes on far beyond most backlogs; all of it would press the points into a corner.
    backlog_max = max(backlog for backlog, _ in [*points, now]) * 1.5 or 1.0
    shown = clipped(line, backlog_max)
    shares_max = max(share for _, share in [*points, now, *shown]) * 1.1 or 1.0

    def at(point: tuple[float, float]) -> tuple[int, int]:
        return (
            round(WIDTH * point[0] / backlog_max),
            round(CURVE_HEIGHT - CURVE_HEIGHT * point[1] / shares_max),
        )

    return CurveFigure(
        backlog_max=backlog_max,
        shares_max=shares_max,
        marks=tuple(map(at, points)),
        now=at(now),
        now_text=f"{format_bytes(control.backlog_bytes)}, {shares:,.0f} shares",
        line=" ".join(f"{x},{y}" for x, y in map(at, shown)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlot:
    """A plot of the last hour."""

    name: str
    title: str
    unit: str
    lines: tuple[Series, ...]


CLASSES = ("system", "user", "urgent", "statistics")
PLOTS: Sequence[tuple[str, str, str, Mapping[str, str]]] = (
    ("backlog", "Backlog", "bytes", {"backlog": "backlog_bytes"}),
    ("shares", "Shares by class", "", {name: f"shares_{name}" for name in CLASSES}),
    ("used", "Bytes used by class", "share", {name: f"used_{name}" for name in CLASSES}),
    ("slots", "Slots", "", {"busy": "busy_slots", "allowed to system jobs": "system_slots"}),
    ("bytes", "Bytes that rewrites may move", "bytes/s", {"limit": "limit_bytes_s"}),
    ("wait", "Wait of readers", "seconds", {"average": "reader_wait_s"}),
)
"""Plots: name, title, unit, and label of each line → its measure."""
MEASURES = sorted({measure for *_, lines in PLOTS for measure in lines.values()})


def control_plots(control: api.Control, series: api.Series | None) -> list[ControlPlot]:
    """Return the plots of the last hour; lines of which nothing was recorded are left out."""
    plots = []
    for name, title, unit, measures in PLOTS:
        lines = recorded_lines(None if series is None else series.total, measures)
        if name == "wait" and lines and control.latency_limit_s is not None:
            lines.append(Series("target", [control.latency_limit_s] * len(lines[0].values)))
        if lines:
            plots.append(ControlPlot(name=name, title=title, unit=unit, lines=tuple(lines)))
    return plots


async def last_hour(view: View, measures: Sequence[str], **chosen: Any) -> api.Series | None:
    """Return recorded values of the last hour in steps of ten seconds or more; None: unknown."""
    more = {"points": POINTS, "measure": list(measures), "count": 0, "groups": False}
    series: api.Series | None = await view.maybe("GET /v1/series", **{**more, **chosen})
    return series


@page("/console/control", "control.html", of="GET /v1/control", title="Control", nav="Control")
async def control_page(view: View) -> Variables:
    """Read the controller."""
    control: api.Control | None = await view.maybe("GET /v1/control")
    series = await last_hour(view, MEASURES)
    line: list[tuple[float, float]] = []
    if control is not None and control.controller == "control-points":
        config = await view.maybe("GET /v1/config")
        settings: Sequence[api.Setting] = () if config is None else config["settings"]
        options = next((entry.text for entry in settings if entry.name == "control.options"), None)
        line = [] if options is None else curve_line(options, control.memory_bytes)
    return {
        "control": control,
        "curve": None if control is None else curve_figure(control, series, line),
        "plots": [] if control is None else control_plots(control, series),
        "times": [] if series is None else times_of(series),
    }


# -------------------------------------------------------------------------------------- Compactors


DECISIONS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCompactors:
    """A group with its compactors, and how many it is meant to have."""

    group: api.Group
    compactors: tuple[api.Compactor, ...]
    wanted: int | None
    """None: the service does not start compactors of this group."""
    starting: int
    running: int
    draining: int
    decisions: tuple[api.ScalingDecision, ...]
    """The last changes, newest first."""


def group_compactors(
    groups: Iterable[api.Group], compactors: Sequence[api.Compactor]
) -> list[GroupCompactors]:
    """Return the groups with their compactors.

    A compactor whose Spark application starts counts as starting, like one that has not reported.
    """
    lines = []
    for group in groups:
        own = tuple(entry for entry in compactors if entry.group == group.group)
        scaling = group.scaling
        warming = sum(not entry.ready and not entry.draining for entry in own)
        lines.append(
            GroupCompactors(
                group=group,
                compactors=own,
                wanted=None if scaling is None else scaling.desired,
                starting=warming + (0 if scaling is None else scaling.starting),
                running=sum(entry.ready and not entry.draining for entry in own),
                draining=sum(entry.draining for entry in own),
                decisions=()
                if scaling is None
                else tuple(reversed(scaling.decisions))[:DECISIONS_SHOWN],
            )
        )
    return lines


LINES: Mapping[str, str] = {
    "wanted": "compactors_desired",
    "running": "compactors",
    "starting": "compactors_starting",
    "draining": "compactors_draining",
}
"""Label of a line of the plot → its measure."""


def group_plots(series: api.Series | None) -> dict[str, list[Series]]:
    """Return group → the numbers of its compactors in the last hour; unrecorded lines are left out.

    A group of which nothing was recorded is left out.
    """
    groups = () if series is None else series.groups
    plots = {group.name: recorded_lines(group, LINES) for group in groups}
    return {name: lines for name, lines in plots.items() if lines}


def slot_words(compactor: api.Compactor) -> str:
    """Return the state of a compactor in a word or a short phrase."""
    if compactor.start_problem and not compactor.ready:
        return "does not start"
    if compactor.draining:
        return "draining"
    if not compactor.ready:
        return "starting"
    if compactor.backing_off_s:
        return "backing off"
    return "busy" if compactor.busy else "idle"


@page(
    "/console/compactors",
    "compactors.html",
    of="GET /v1/groups",
    title="Compactors and scaling",
    nav="Compactors",
)
async def compactors_page(view: View) -> Variables:
    """Read groups, compactors and limits."""
    groups = await view.maybe("GET /v1/groups")
    compactors = await view.maybe("GET /v1/compactors")
    limits = await view.maybe("GET /v1/limits")
    series = await last_hour(view, list(LINES.values()), groups=True)
    listed: Sequence[api.Group] = () if groups is None else groups["groups"]
    return {
        "answered": groups is not None,
        "groups": group_compactors(listed, () if compactors is None else compactors["compactors"]),
        "limits": () if limits is None else limits["limits"],
        "plots": group_plots(series),
        "times": [] if series is None else times_of(series),
        "slot_words": slot_words,
    }
