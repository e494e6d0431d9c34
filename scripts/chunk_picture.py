"""Draws the example of the page of planner `time-chunk`: files on a time line, before and after.

    python -m scripts.chunk_picture

What is drawn is what `neve plan --files` answers for the example of the page.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.units import parse_size_bytes
from coordinator.plugins.planners.size_tiered import moment
from neve.offline import plan_offline

PAGE = Path(__file__).parents[1] / "docs" / "planners" / "time-chunk.md"
PICTURE = PAGE.with_suffix(".svg")
OPTIONS = {"skip_offset": "1h"}
DAY_S = 86_400.0
WIDTH, LEFT, ROW = 640, 20, 26
COLOURS = {"before": "#c8743c", "after": "#2f6f8f"}

Bar = tuple[str, float, float]
"""Name of a file, and the times of its first and last row."""


def example() -> dict[str, Any]:
    """Return the tablet of the page's example."""
    (given, *_) = re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found: dict[str, Any] = json.loads(given)
    return found


def after(files: Mapping[str, Bar], jobs: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Return the files when all jobs are done, if rows are spread evenly."""
    left = dict(files)
    made: list[Bar] = []
    for job in jobs:
        inputs = [left.pop(path) for path in job["files"]]
        start, end = min(bar[1] for bar in inputs), max(bar[2] for bar in inputs)
        ends = [start, *job.get("cuts_at", ()), end]
        name = " + ".join(bar[0] for bar in inputs)
        made += [(name, ends[at], ends[at + 1]) for at in range(len(ends) - 1)]
    return sorted([*left.values(), *made], key=lambda bar: bar[1:])


def picture() -> str:
    """Return the picture as SVG."""
    given = example()
    files = {
        each["path"]: (_label(each), float(each["time_min"]), float(each["time_max"]))
        for each in given["files"]
    }
    jobs = plan_offline(given, "time-chunk", OPTIONS)["jobs"]
    first = min(bar[1] for bar in files.values()) // DAY_S * DAY_S
    last = -(-max(bar[2] for bar in files.values()) // DAY_S) * DAY_S
    sides = {"before": [*files.values()], "after": after(files, jobs)}
    height = 40 + sum(ROW * len(bars) + 40 for bars in sides.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * LEFT} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_days(first, last, height),
    ]
    top = 30
    for side, bars in sides.items():
        parts.append(f'<text x="{LEFT}" y="{top + 14}" font-weight="bold">{side}</text>')
        top += 22
        for at, bar in enumerate(bars):
            parts += _bar(bar, top + ROW * at, first, last, COLOURS[side])
        top += ROW * len(bars) + 18
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(file: Mapping[str, Any]) -> str:
    mib = parse_size_bytes(file["size"], "size") // 1024**2
    return f"{file['path'].removesuffix('.parquet')} ({mib} MiB)"


def _x(at_s: float, first: float, last: float) -> float:
    return LEFT + (at_s - first) / (last - first) * WIDTH


def _days(first: float, last: float, height: int) -> Iterator[str]:
    """Yield a line at each end of a chunk, with its date."""
    for at in range(int((last - first) // DAY_S) + 1):
        x = _x(first + at * DAY_S, first, last)
        yield f'<path d="M{x:.1f} 24V{height - 8}" stroke="#bbb" stroke-dasharray="3 3"/>'
        if first + at * DAY_S < last:
            yield f'<text x="{x + 4:.1f}" y="20">{moment(first + at * DAY_S)[:10]}</text>'


def _bar(bar: Bar, top: int, first: float, last: float, colour: str) -> Iterator[str]:
    name, start, end = bar
    x, long = _x(start, first, last), max(3.0, (end - start) / (last - first) * WIDTH)
    yield (
        f'<rect x="{x:.1f}" y="{top}" width="{long:.1f}" height="18" rx="3" fill="{colour}" '
        'fill-opacity="0.8" stroke="white"/>'
    )
    anchor, at = ("end", x - 5) if x > WIDTH * 0.8 else ("start", x + 6)
    yield f'<text x="{at:.1f}" y="{top + 13}" text-anchor="{anchor}">{name}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
