"""The runs as one SVG: for each controller backlog, shares and scans, real and simulated."""

from collections.abc import Iterator, Sequence

from benchmarks.closed_loop.figures import Pair
from benchmarks.closed_loop.schedule import BURST_LENGTH_S, Phase
from benchmarks.closed_loop.stack import Sample

MIB = 1024**2
WIDTH, HEIGHT, LEFT, GAP = 680, 84, 112, 22
REAL, FORETOLD = "#1f6fb2", "#d0702a"
SCANS_OVER_S = 10

Curve = Sequence[tuple[float, float]]
"""Times in seconds and values."""


def picture(plan: list[Phase], pairs: Sequence[Pair]) -> str:
    """Return all runs, one below the other, at one scale of time and of backlog."""
    backlogs = [each.backlog_bytes for pair in pairs for each in (*pair.real, *pair.foretold)]
    most = max([*backlogs, 1.0]) / MIB
    slowest = max(value for pair in pairs for _, value in _scans(pair.real))
    bands = [band for pair in pairs for band in _bands(pair, most, slowest)]
    height = len(bands) * (HEIGHT + GAP) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 16} {height}" '
        'font-family="sans-serif" font-size="11" role="img">',
        "<title>Closed loop: real and simulated</title>",
        f'<rect width="{LEFT + WIDTH + 16}" height="{height}" fill="#fff"/>',
        *_phases(plan, height),
    ]
    for number, (title, curves, top_value) in enumerate(bands):
        parts += _band(plan, title, curves, top_value, 24 + number * (HEIGHT + GAP))
    legend = f'<text x="{LEFT}" y="{height - 6}" fill="{{}}">{{}}</text>'
    parts.append(legend.format(REAL, "real stack"))
    parts.append(legend.replace(f'"{LEFT}"', f'"{LEFT + 90}"').format(FORETOLD, "simulated"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bands(
    pair: Pair, most: float, slowest: float
) -> Iterator[tuple[str, list[tuple[str, Curve]], float]]:
    """Yield the title, the curves with their colours, and the greatest value of each band."""
    real = [(each.at_s, each.backlog_bytes / MIB) for each in pair.real]
    foretold = [(each.at_s, each.backlog_bytes / MIB) for each in pair.foretold]
    yield f"{pair.controller}|backlog, MiB", [(FORETOLD, foretold), (REAL, real)], most
    shares = [(each.at_s, each.system_shares) for each in pair.real]
    expected = [(each.at_s, each.system_shares) for each in pair.foretold]
    yield "|shares of system", [(FORETOLD, expected), (REAL, shares)], 1000.0
    yield "|a scan, ms", [(REAL, list(_scans(pair.real)))], slowest


def _scans(found: Sequence[Sample]) -> Iterator[tuple[float, float]]:
    """Yield the mean milliseconds of a scan, over a few seconds each."""
    for before, after in zip(found, found[SCANS_OVER_S:], strict=False):
        if after.scans > before.scans:
            mean_s = (after.scan_s - before.scan_s) / (after.scans - before.scans)
            yield (before.at_s + after.at_s) / 2, 1000 * mean_s


def _x(plan: list[Phase], at_s: float) -> float:
    return LEFT + WIDTH * min(1.0, at_s / plan[-1].end_s)


def _phases(plan: list[Phase], height: int) -> Iterator[str]:
    for phase in plan:
        x = _x(plan, phase.begin_s)
        yield f'<path d="M{x:.1f} 16V{height - 20}" stroke="#ccc"/>'
        yield f'<text x="{x + 3:.1f}" y="14" fill="#555">{phase.name}</text>'
        if phase.part:
            begin, end = _x(plan, phase.burst_s), _x(plan, phase.burst_s + BURST_LENGTH_S)
            yield (
                f'<rect x="{begin:.1f}" y="16" width="{end - begin:.1f}" height="{height - 36}"'
                ' fill="#f3e9d8"/>'
            )


def _band(
    plan: list[Phase], title: str, curves: list[tuple[str, Curve]], most: float, top: int
) -> Iterator[str]:
    name, what = title.split("|")
    yield f'<text x="4" y="{top - 5}" font-weight="bold">{name}</text>'
    yield f'<text x="4" y="{top + HEIGHT / 2:.0f}" fill="#222">{what}</text>'
    yield f'<text x="{LEFT - 4}" y="{top + 10}" text-anchor="end" fill="#555">{most:,.4g}</text>'
    yield f'<path d="M{LEFT} {top + HEIGHT}h{WIDTH}" stroke="#999"/>'
    for colour, values in curves:
        points = " ".join(
            f"{_x(plan, at_s):.1f},{top + HEIGHT * (1 - min(1.0, value / most)):.1f}"
            for at_s, value in values
        )
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
