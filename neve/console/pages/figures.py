"""Geometry of the console's figures: heat map, histogram, bars over a range, timeline.

Pure functions from values to coordinates; templates draw them as SVG. Coordinates are whole units
of the figure's own view box, so that the same answer always gives the same page. A figure has a
bounded number of marks, whatever the size of the table.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.units import format_bytes, format_count

WIDTH = 1000
"""Width of the view box of every figure."""

# ----------------------------------------------------------------------------------------- Heat map

COLUMNS, COLUMNS_OF_LARGE = 50, 100
"""Cells of a row of the heat map."""
GAP_SHARE = 10
"""The gap between two cells is this part of their distance: a tenth."""
LINKED_CELLS_MAX = 300
"""Cells that get a link of their own; a larger map has a link for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatScale:
    """How a measure of a tablet becomes a colour: a step for each edge, and 0 below the first."""

    name: str
    title: str
    edges: tuple[float, ...]
    """Smallest value of each step from 1 on, ascending."""
    text: Callable[[float], str]

    def step(self, value: float) -> int:
        """Return the step of a value, from 0 to the number of edges."""
        return bisect_right(self.edges, value)

    @property
    def legend(self) -> tuple[tuple[int, str], ...]:
        """Steps with the values that they stand for, as text."""
        low, *others = [self.text(edge) for edge in self.edges]
        lowest = "none" if self.edges[0] == 1 else f"below {low}"
        return ((0, lowest), *enumerate((f"{text} or more" for text in (low, *others)), start=1))


def _share(value: float) -> str:
    return f"{value:.0%}"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:g}/s"


SCALES: Mapping[str, HeatScale] = {
    scale.name: scale
    for scale in (
        HeatScale(name="files", title="files", edges=(1, 2, 5, 10, 20, 50), text=_number),
        HeatScale(
            name="overlap", title="overlapping files", edges=(1, 2, 4, 8, 16, 32), text=_number
        ),
        HeatScale(
            name="backlog",
            title="backlog",
            edges=tuple(float(1 << power) for power in (0, 20, 24, 28, 32, 36)),
            text=format_bytes,
        ),
        HeatScale(
            name="garbage", title="garbage", edges=(0.01, 0.05, 0.1, 0.2, 0.4, 0.6), text=_share
        ),
        HeatScale(name="reads", title="reads", edges=(0.001, 0.01, 0.1, 1, 10, 100), text=_rate),
    )
}
"""Measures that colour the heat map, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatLink:
    """A part of the heat map that leads to its tablets."""

    x: int
    y: int
    width: int
    title: str
    first: int
    """Index of its first cell."""
    single: bool
    """Whether the part is a single cell of a single tablet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatFigure:
    """The heat map of a table: one path per colour, drawn by its stroke, and links on top."""

    scale: HeatScale
    height: int
    cell_size: int
    """Width and height of a cell, and of the strokes of the paths."""
    paths: tuple[tuple[int, str], ...]
    """Step and SVG path of its cells; steps without cells are left out."""
    links: tuple[HeatLink, ...]
    summary: str
    """The map in words."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where the cells of a heat map lie. A cell is smaller than its part of the grid."""

    columns: int

    @property
    def step(self) -> int:
        """Distance of two cells."""
        return WIDTH // self.columns

    @property
    def size(self) -> int:
        """Width and height of a cell."""
        return self.step - self.step // GAP_SHARE

    def at(self, cell: int) -> tuple[int, int]:
        """Return left and top of a cell."""
        row, column = divmod(cell, self.columns)
        return column * self.step, row * self.step


def heat_figure(
    scale: HeatScale, values: Sequence[float], counts: Sequence[int], names: Sequence[str]
) -> HeatFigure:
    """Return the heat map of cells in the order of their keys.

    Args:
        scale: The measure.
        values: Value of each cell.
        counts: Number of tablets of each cell.
        names: Name of the last tablet of each cell.
    """
    is_large = len(values) > LINKED_CELLS_MAX
    grid = _Grid(COLUMNS_OF_LARGE if is_large else COLUMNS)
    steps = [scale.step(value) for value in values]
    of_step: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        of_step.setdefault(step, []).append(index)
    width = grid.columns if is_large else 1
    cells = list(zip(values, counts, names, strict=True))
    links = [
        _heat_link(scale, grid, cells[first : first + width], first)
        for first in range(0, len(cells), width)
    ]
    return HeatFigure(
        scale=scale,
        height=max(1, -(-len(values) // grid.columns)) * grid.step,
        cell_size=grid.size,
        paths=tuple((step, _cells_path(grid, of_step[step])) for step in sorted(of_step)),
        links=tuple(links),
        summary=_heat_summary(scale, steps, counts),
    )


def _cells_path(grid: _Grid, cells: Sequence[int]) -> str:
    """Return a path through the middle of cells, whose stroke is as wide as a cell.

    A step to the next cell of a row is written in few bytes: a map has thousands of cells.
    """
    steps = []
    last_x, last_y = 0, -1
    for cell in cells:
        x, y = grid.at(cell)
        move = f"m{x - last_x} 0" if y == last_y else f"M{x} {y + grid.size / 2:g}"
        steps.append(f"{move}h{grid.size}")
        last_x, last_y = x + grid.size, y
    return "".join(steps)


def _heat_link(
    scale: HeatScale, grid: _Grid, cells: Sequence[tuple[float, int, str]], first: int
) -> HeatLink:
    x, y = grid.at(first)
    highest = max(value for value, _, _ in cells)
    tablets = sum(count for _, count, _ in cells)
    worst = f"{scale.title} {scale.text(highest)}"
    single = tablets == 1
    if not single:
        worst = f"{format_count(tablets, 'tablet')}, {scale.title} up to {scale.text(highest)}"
    return HeatLink(
        x=x,
        y=y,
        width=len(cells) * grid.step - (grid.step - grid.size),
        title=f"{worst} (to {cells[-1][2]})",
        first=first,
        single=single,
    )


def _heat_summary(scale: HeatScale, steps: Sequence[int], counts: Sequence[int]) -> str:
    tablets: dict[int, int] = {}
    for step, count in zip(steps, counts, strict=True):
        tablets[step] = tablets.get(step, 0) + count
    parts = [f"{tablets[step]:,} with {text}" for step, text in scale.legend if step in tablets]
    return f"tablets by {scale.title}: {', '.join(parts)}" if parts else "no tablet"


# ---------------------------------------------------------------------------------------- Histogram

HISTOGRAM_HEIGHT = 200
BAR_WIDTH_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBar:
    """A bar of a histogram."""

    x: int
    y: int
    width: int
    height: int
    label: str
    """Lower end of its class."""
    count: int


def size_histogram(counts: Mapping[int, int]) -> tuple[HistogramBar, ...]:
    """Return the bars of a histogram of sizes; classes between the ends may be empty.

    Args:
        counts: Exponent of two of the lower end of each class → number of files.
    """
    if not counts:
        return ()
    powers = range(min(counts), max(counts) + 1)
    most, width = max(counts.values()), min(BAR_WIDTH_MAX, WIDTH // len(powers))
    bars = []
    for index, power in enumerate(powers):
        count = counts.get(power, 0)
        # A small class is not empty, so its bar can be seen.
        height = max(2, HISTOGRAM_HEIGHT * count // most) if count else 0
        bars.append(
            HistogramBar(
                x=index * width,
                y=HISTOGRAM_HEIGHT - height,
                width=max(1, width - 4),
                height=height,
                label=format_bytes(1 << power),
                count=count,
            )
        )
    return tuple(bars)


# ----------------------------------------------------------------------------- Bars over a range

LANE = 16
"""Height of a lane."""
BAR_WIDTH_MIN = 3


def ranked(bounds: Iterable[bytes]) -> Mapping[bytes, int]:
    """Return positions that space distinct keys evenly, in their order.

    Keys have no distance in general, and overlaps are all that a planner sees.
    """
    ordered = sorted(set(bounds))
    gaps = max(1, len(ordered) - 1)
    return {key: WIDTH * index // gaps for index, key in enumerate(ordered)}


def bar_between(start: float, end: float) -> tuple[int, int]:
    """Return position and width of a bar within the view box, wide enough to be seen."""
    left = min(max(0, round(start)), WIDTH - BAR_WIDTH_MIN)
    right = min(max(round(end), left + BAR_WIDTH_MIN), WIDTH)
    return left, right - left


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """A span to show in a timeline. Seconds since the epoch."""

    lane: str
    start_s: float
    end_s: float
    kind: str
    """Class of its colour."""
    title: str
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """A span with its coordinates in its lane."""

    x: int
    y: int
    width: int
    kind: str
    title: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineLane:
    """A lane with its bars; spans that overlap are drawn below each other."""

    name: str
    height: int
    bars: tuple[TimelineBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Spans in named lanes, over a range of time."""

    lanes: tuple[TimelineLane, ...]
    ticks: tuple[tuple[int, float], ...]
    """Position and time of each line."""


TICK_S = 600.0
LANES_MAX = 100


def timeline(spans: Iterable[TimelineSpan], start_s: float, end_s: float) -> Timeline:
    """Return the timeline of the spans that meet a range of time.

    Args:
        spans: The spans, in any order.
        start_s: Start of the range.
        end_s: End of the range, after its start.
    """
    scale = WIDTH / (end_s - start_s)
    by_lane: dict[str, list[TimelineSpan]] = {}
    for span in spans:
        if span.end_s > start_s and span.start_s < end_s:
            by_lane.setdefault(span.lane, []).append(span)
    first = -(-start_s // TICK_S) * TICK_S
    times = [first + index * TICK_S for index in range(int((end_s - first) // TICK_S) + 1)]
    return Timeline(
        lanes=tuple(_lane(name, by_lane[name], start_s, scale) for name in sorted(by_lane))[
            :LANES_MAX
        ],
        ticks=tuple((round((at_s - start_s) * scale), at_s) for at_s in times),
    )


def _lane(name: str, spans: Iterable[TimelineSpan], start_s: float, scale: float) -> TimelineLane:
    free_s: list[float] = []  # End of the last span of each row.
    bars = []
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        row = next((row for row, at_s in enumerate(free_s) if at_s <= span.start_s), len(free_s))
        free_s[row:] = [span.end_s, *free_s[row + 1 :]]
        x, width = bar_between((span.start_s - start_s) * scale, (span.end_s - start_s) * scale)
        bars.append(
            TimelineBar(
                x=x, y=row * LANE, width=width, kind=span.kind, title=span.title, href=span.href
            )
        )
    return TimelineLane(name=name, height=len(free_s) * LANE, bars=tuple(bars))
