"""Segments of several sizes beside each other: files on disk, and how soon space comes back.

    python -m benchmarks.bench_segments [--days N] [--svg FOLDER]

A store of 160 GB holds 120 GB. Records are deleted, the younger the more likely, as those of
people who change their mind. Once a week the policy `stats-based` is asked, and its range is
compacted at once. Everything is counted, nothing measured, so figures are the same everywhere.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from coordinator.plugins.planners.segments import best_range, segments_needed

GB = 1024**3
CAPACITY = 160 * GB
FILLED = 120 * GB
SIZES_GB = (1, 2, 4, 8, 16, 32)
HALF_LIFE = 40 * GB
"""Distance from the end of the log over which deletions become half as likely."""
DELETED_PER_DAY = 0.02
"""Of what is live at the end of the log."""
CHECK_DAYS = 7
EXAMPLE = (0.9, 0.8, 0.5, 0.3, 0.2, 0.1, 0.1, 0.2, 0.4, 0.7)
"""Live shares of the page's example."""


def simulate(segment_bytes: int, days: int) -> tuple[int, int | None, int, float]:
    """Return files at the start, day of the first reclaim, files at the end, and GB copied."""
    count = FILLED // segment_bytes
    # Each entry: live bytes, and where in the log they came from.
    log = [(float(segment_bytes), number * segment_bytes) for number in range(count)]
    first, copied = None, 0.0
    for day in range(1, days + 1):
        log = [(live * (1 - _deleted(place)), place) for live, place in log]
        if day % CHECK_DAYS:
            continue
        found = best_range([int(live) for live, _ in log[:-1]], segment_bytes)
        if found is None:
            continue
        first = day if first is None else first
        copied += found.cost
        inside = log[found.first : found.last + 1]
        outputs = segments_needed(found.cost, segment_bytes)
        log[found.first : found.last + 1] = [
            (min(segment_bytes, found.cost - at * segment_bytes), inside[at][1])
            for at in range(outputs)
        ]
    return count, first, len(log), copied / GB


def _deleted(place: int) -> float:
    return DELETED_PER_DAY * math.pow(0.5, (FILLED - place) / HALF_LIFE)


def picture(shares: Sequence[float], chosen: tuple[int, int], middle: tuple[int, int]) -> str:
    """Return a log of segments, how much of each is live, and what two policies choose."""
    wide, high, left, top = 46, 120, 20, 50
    box = f"0 0 {left * 2 + wide * len(shares)} 250"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="14">Live bytes of ten segments, oldest first</text>',
    ]
    for at, share in enumerate(shares):
        x, live = left + at * wide, share * high
        inside = chosen[0] <= at <= chosen[1]
        colour = "#c8743c" if inside else "#2f6f8f"
        parts += [
            f'<rect x="{x}" y="{top}" width="{wide - 6}" height="{high}" fill="#eeeeee" '
            'stroke="#999999"/>',
            f'<rect x="{x}" y="{top + high - live:.1f}" width="{wide - 6}" height="{live:.1f}" '
            f'fill="{colour}"/>',
            f'<text x="{x + 8}" y="{top - 8}">{share:.0%}</text>',
        ]
    for row, (label, (first, last)) in enumerate(
        (("stats-based: least cost per segment freed", chosen), ("middle range", middle))
    ):
        y, x = top + high + 18 + row * 30, left + first * wide
        long = (last - first + 1) * wide - 6
        parts += [
            f'<rect x="{x}" y="{y}" width="{long}" height="4" fill="#c8743c"/>',
            f'<text x="{left}" y="{y + 18}">{label}: segments {first + 1} to {last + 1}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Print the table; write the picture if a folder is named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--days", type=int, default=182)
    parser.add_argument("--svg", type=Path, help="folder for the picture")
    given = parser.parse_args()
    print("| segment | files | first reclaim | files later | GB copied |\n|---|---|---|---|---|")
    for size in SIZES_GB:
        files, first, later, copied = simulate(size * GB, given.days)
        day = "none" if first is None else f"day {first}"
        print(f"| {size} GB | {files} | {day} | {later} | {copied:.1f} |")
    if given.svg:
        path = given.svg / "log-segment.svg"
        path.write_text(picture(EXAMPLE, (5, 6), (3, 7)), "utf-8")


if __name__ == "__main__":
    main()
