"""Draws the example of the page of planner `delta`: files over their keys, before and after.

    python -m scripts.delta_picture

What is drawn is what `neve plan --files` answers for the example of the page.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neve.offline import plan_offline

PAGE = Path(__file__).parents[1] / "docs" / "planners" / "delta.md"
PICTURE = PAGE.with_suffix(".svg")
WIDTH, LEFT, ROW = 640, 20, 26
COLOURS = {"before": "#c8743c", "after": "#2f6f8f"}

Bar = tuple[str, float, float]
"""Name of a file, its first and its last key."""


def example() -> dict[str, Any]:
    """Return the tablet of the page's example."""
    (given, *_) = re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found: dict[str, Any] = json.loads(given)
    return found


def after(files: Mapping[str, Bar], jobs: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Return the files when all jobs are done; none of the example's jobs cuts its output."""
    left, made = dict(files), list[Bar]()
    for job in jobs:
        inputs = [left.pop(path) for path in job["files"]]
        kind = job.get("tags", {}).get("delta", "neighbours")
        start, end = min(bar[1] for bar in inputs), max(bar[2] for bar in inputs)
        made.append((f"{kind} of {len(inputs)} files", start, end))
    return sorted([*left.values(), *made], key=lambda bar: bar[1:])


def picture() -> str:
    """Return the picture as SVG."""
    given = example()
    files = {
        each["path"]: (
            f"{each['path'].removesuffix('.parquet')} ({each['size']})",
            float(each["min_key"]),
            float(each["max_key"]),
        )
        for each in given["files"]
    }
    jobs = plan_offline(given, "delta")["jobs"]
    last = max(bar[2] for bar in files.values())
    sides = {"before": [*files.values()], "after": after(files, jobs)}
    height = 20 + sum(ROW * len(bars) + 40 for bars in sides.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * LEFT} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    top = 10
    for side, bars in sides.items():
        parts.append(f'<text x="{LEFT}" y="{top + 14}" font-weight="bold">{side}</text>')
        top += 22
        for at, bar in enumerate(bars):
            parts += _bar(bar, top + ROW * at, last, COLOURS[side])
        top += ROW * len(bars) + 18
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(bar: Bar, top: int, last: float, colour: str) -> Iterator[str]:
    name, start, end = bar
    x, long = LEFT + start / last * WIDTH, max(3.0, (end - start) / last * WIDTH)
    yield (
        f'<rect x="{x:.1f}" y="{top}" width="{long:.1f}" height="18" rx="3" fill="{colour}" '
        'fill-opacity="0.8" stroke="white"/>'
    )
    anchor, at = ("end", x - 5) if x > WIDTH * 0.7 else ("start", x + 6)
    yield f'<text x="{at:.1f}" y="{top + 13}" text-anchor="{anchor}">{name}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
