"""Line charts over time as SVG, for a page or for separate files.

Colours come from the page (`--line-0`, `--ink`, …), which can be light or dark. Lines also differ
by their dashes, for readers who cannot distinguish the colours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10

WIDTH, HEIGHT = 560, 236
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 14, 34
TICKS_MAX = 5
POINTS_MAX = 400
"""Maximum number of points of a line; longer lines keep the largest point of each part."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 4")
COLOURS = {
    "light": ("#1f6f9f", "#c2571a", "#3d7f3a", "#8a4fa3", "#a8324a", "#6b6b22"),
    "dark": ("#6cb8e6", "#f0a26b", "#8ccf84", "#cda0e6", "#f08ba0", "#d3d36b"),
}

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: hours and values."""

    name: str
    points: Sequence[Point]


def chart(
    title: str, lines: Sequence[Line], form: Callable[[float], str], base: float = 10.0
) -> str:
    """Return a chart as an SVG element.

    Args:
        title: Text alternative of the chart.
        lines: The lines, in the order of their colours.
        form: Formats a value.
        base: Base of the units of values: 1024 for bytes.
    """
    right = max((line.points[-1][0] for line in lines if line.points), default=1.0) or 1.0
    step, top = _axis(max((y for line in lines for _, y in line.points), default=0.0), base)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="11">',
        *_value_marks(step, top, form),
        *_time_marks(right),
    ]
    for at, line in enumerate(lines):
        path = " ".join(f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in _thinned(line.points))
        dash = DASHES[at % len(DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="var(--line-{at % len(DASHES)})" '
            f'stroke-width="1.8" stroke-linejoin="round"{dashed}>'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return "\n".join([*parts, "</svg>"])


def picture(
    title: str, lines: Sequence[Line], form: Callable[[float], str], base: float = 10.0
) -> str:
    """Return a chart as a complete SVG file, with its title and the names of its lines."""
    inner = chart(title, lines, form, base).partition("\n")[2].removesuffix("</svg>")
    rows = 1 + (len(lines) + 2) // 3
    head = 20 + 16 * rows
    colours = "".join(f"--line-{at}:{each};" for at, each in enumerate(COLOURS["light"]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + head}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        f"<style>:root{{{colours}--ink:#222;--faint:#777;--rule:#ddd}}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="600" fill="#222">{escape(title)}</text>',
    ]
    for at, line in enumerate(lines):
        x, y = 12 + at % 3 * 182, 40 + at // 3 * 16
        parts.append(_key(at, x, y))
        parts.append(f'<text x="{x + 34}" y="{y}" fill="#222">{escape(line.name[:24])}</text>')
    return "\n".join([*parts, f'<g transform="translate(0 {head - 16})">', inner, "</g></svg>\n"])


def key_mark(at: int) -> str:
    """Return a sample of a line, for the legend."""
    return (
        f'<svg viewBox="0 0 28 10" width="28" height="10" aria-hidden="true">{_key(at, 0, 9)}</svg>'
    )


def _key(at: int, x: float, y: float) -> str:
    dash = DASHES[at % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="M{x} {y - 4}h28" stroke="var(--line-{at % len(DASHES)})" '
        f'stroke-width="2.4"{dashed}/>'
    )


def _value_marks(step: float, top: float, form: Callable[[float], str]) -> list[str]:
    """Return horizontal grid lines with their values."""
    parts: list[str] = []
    for at in range(round(top / step) + 1):
        y = _y(at * step, top)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="var(--rule)"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="var(--faint)">'
            f"{escape(form(at * step))}</text>"
        )
    return parts


def _time_marks(right: float) -> list[str]:
    """Return the marks of the time axis and the name of its unit."""
    step, unit, name = _time_step(right)
    parts = [
        f'<text x="{_x(at * step, right):.1f}" y="{HEIGHT - 14}" text-anchor="middle" '
        f'fill="var(--faint)">{at * step / unit:g}</text>'
        for at in range(int(right / step + 1e-9) + 1)
    ]
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end" fill="var(--faint)">'
        f"{name}</text>"
    )
    return parts


def _time_step(right: float) -> tuple[float, float, str]:
    """Return the hours between two marks, the hours per unit, and the unit's name."""
    for unit, name in ((24.0, "days"), (1.0, "hours"), (1 / 60, "minutes")):
        if right / unit >= 2.5:
            return unit * max(1.0, _round_step(right / unit / 8)), unit, name
    return max(right / 4, 1e-6), 1 / 3600, "seconds"


def _axis(value: float, base: float) -> tuple[float, float]:
    """Return the step between two marks and the top of an axis for values up to `value`."""
    if value <= 0:
        return 1.0, 1.0
    unit = base ** floor(log2(value) / log2(base) + 1e-9)
    step = unit * _round_step(value / unit / TICKS_MAX)
    return step, step * max(1, ceil(value / step - 1e-9))


def _round_step(value: float) -> float:
    """Return the smallest number of …, 0.5, 1, 2, 5, 10, … that is not below a value."""
    power = 10.0 ** floor(log10(value) + 1e-9)
    return next(each * power for each in (1, 2, 5, 10) if each * power >= value * 0.999)


def _x(value: float, right: float) -> float:
    return LEFT + value / right * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Reduce the points to the highest one of each part, so that no peak is lost."""
    if len(points) <= POINTS_MAX:
        return list(points)
    size = ceil(len(points) / POINTS_MAX)
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [max(part, key=lambda point: point[1]) for part in parts]
