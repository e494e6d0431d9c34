"""The view of the controller: backlog against its curve, shares of classes, latency of readers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.units import format_bytes
from neve import api
from neve.console.frame import Variables, View, page
from neve.console.pages.figures import WIDTH
from neve.console.render import Series

CURVE_HEIGHT = 300
MARKS_MAX = 200
"""Points of the history that the curve shows."""


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


def curve_figure(
    control: api.Control, line: Sequence[tuple[float, float]] = (), class_: str = "system"
) -> CurveFigure:
    """Return the shares of a class over the backlog.

    Args:
        control: Readings and history of the controller.
        line: Its line as pairs of backlog in bytes and shares; empty: it has none.
        class_: Class of work.
    """
    step = max(1, -(-len(control.history) // MARKS_MAX))
    points = [
        (point.backlog_bytes, point.shares.get(class_, 0.0)) for point in control.history[::step]
    ]
    shares = next((entry.shares for entry in control.classes if entry.name == class_), 0.0)
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


def control_series(control: api.Control) -> Mapping[str, tuple[list[float], list[Series]]]:
    """Return the plots of the last hour: name → times and lines."""
    history = control.history
    times = [point.at_s for point in history]
    names = [entry.name for entry in control.classes]
    plots: dict[str, tuple[list[float], list[Series]]] = {
        "backlog": (times, [Series("backlog", [point.backlog_bytes for point in history])]),
        "used": (
            times,
            [Series(name, [point.used.get(name) for point in history]) for name in names],
        ),
        "shares": (
            times,
            [Series(name, [point.shares.get(name) for point in history]) for name in names],
        ),
    }
    if any(point.bytes_s is not None for point in history):
        plots["bytes_s"] = times, [Series("limit", [point.bytes_s for point in history])]
    if any(point.latency_s is not None for point in history):
        lines = [Series("readers wait", [point.latency_s for point in history])]
        if control.latency_limit_s is not None:
            lines.append(Series("target", [control.latency_limit_s] * len(history)))
        plots["latency"] = times, lines
    return plots


@page("/console/control", "control.html", of="GET /v1/control", title="Control", nav="Control")
async def control_page(view: View) -> Variables:
    """Read the controller."""
    control: api.Control | None = await view.maybe("GET /v1/control")
    line: list[tuple[float, float]] = []
    if control is not None and control.controller == "control-points":
        config = await view.maybe("GET /v1/config")
        settings: Sequence[api.Setting] = () if config is None else config["settings"]
        options = next((entry.text for entry in settings if entry.name == "control.options"), None)
        line = [] if options is None else curve_line(options, control.memory_bytes)
    return {
        "control": control,
        "curve": None if control is None else curve_figure(control, line),
        "plots": {} if control is None else control_series(control),
    }
