"""Lines over time as SVG, by own small code: they stand in a page or in files of their own.

Colours come from the page (`--line-0`, `--ink`, …), so that it can be light or dark. Lines differ
by their dashes, too, for those who cannot tell the colours apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 560, 236
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 14, 34
TICKS = 4
POINTS_MAX = 400
"""Points of a line; of more, each of these stands for the largest one of its part."""
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


def chart(title: str, lines: Sequence[Line], form: Callable[[float], str]) -> str:
    """Return a chart as an SVG element.

    Args:
        title: What is drawn, for those who cannot see it.
        lines: In the order of their colours.
        form: Makes the text of a value.
    """
    right = max((line.points[-1][0] for line in lines if line.points), default=1.0) or 1.0
    top = _round_up(max((y for line in lines for _, y in line.points), default=0.0))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="11">',
        *_grid(right, top, form),
    ]
    for at, line in enumerate(lines):
        path = " ".join(
            f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in _thinned(line.points)
        )
        dash = DASHES[at % len(DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="var(--line-{at % len(DASHES)})" '
            f'stroke-width="1.8" stroke-linejoin="round"{dashed}>'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return "\n".join([*parts, "</svg>"])


def picture(title: str, lines: Sequence[Line], form: Callable[[float], str]) -> str:
    """Return a chart as a file of its own, with its title and the names of its lines."""
    inner = chart(title, lines, form).partition("\n")[2].removesuffix("</svg>")
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
    """Return the sample of a line, to stand beside its name."""
    return f'<svg viewBox="0 0 28 10" width="28" height="10" aria-hidden="true">{_key(at, 0, 9)}</svg>'


def _key(at: int, x: float, y: float) -> str:
    dash = DASHES[at % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="M{x} {y - 4}h28" stroke="var(--line-{at % len(DASHES)})" '
        f'stroke-width="2.4"{dashed}/>'
    )


def _grid(right: float, top: float, form: Callable[[float], str]) -> list[str]:
    parts: list[str] = []
    for at in range(TICKS + 1):
        value = top * at / TICKS
        y = _y(value, top)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="var(--rule)"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="var(--faint)">'
            f"{escape(form(value))}</text>"
        )
    step, unit, name = _time_step(right)
    for at in range(int(right / step + 1e-9) + 1):
        x = _x(at * step, right)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle" fill="var(--faint)">'
            f"{at * step / unit:g}</text>"
        )
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end" fill="var(--faint)">'
        f"{name}</text>"
    )
    return parts


def _time_step(right: float) -> tuple[float, float, str]:
    """Return the hours between two marks, the hours of their unit, and its name."""
    for unit, name in ((24.0, "days"), (1.0, "hours"), (1 / 60, "minutes")):
        if right / unit >= 2.5:
            return unit * _step(right / unit / 8), unit, name
    return max(right / 4, 1e-6), 1 / 3600, "seconds"


def _step(value: float) -> float:
    """Return the next number of the row 1, 2, 5, 10, … that is not below a value."""
    power = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    found = next(each * power for each in (1, 2, 5, 10) if each * power >= value * 0.999)
    return max(1.0, found)


def _round_up(value: float) -> float:
    """Return a round number at or above a value, for the top of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return float(ceil(value / power * 2 - 1e-9) / 2 * power)


def _x(value: float, right: float) -> float:
    return LEFT + value / right * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return few enough points: of each part the highest one, so that no peak is lost."""
    if len(points) <= POINTS_MAX:
        return list(points)
    size = ceil(len(points) / POINTS_MAX)
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [max(part, key=lambda point: point[1]) for part in parts]
