"""What people see of chaos: a table that moves, or lines where it cannot, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table as Grid

from tests.chaos.draw import How, Part
from tests.chaos.harm import Harmer
from tests.chaos.run import Result
from tests.chaos.story import Story

PLAIN_EVERY_S = 10.0
"""How often a line is printed where the terminal cannot be redrawn."""
SHOWN = (
    ("given", ("adds", "appends", "buffered calls", "rows")),
    ("read", ("scans", "scans broken off", "rows scanned")),
    (
        "asked",
        (
            "requests",
            "requests done",
            "requests done_in_part",
            "requests cancelled",
            "requests failed",
        ),
    ),
    ("besides", ("pauses", "gc", "cancel of a job")),
)


class Show:
    """Live numbers of the run under way, and what was said last."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live: Live | None = None
        self._printed_s = 0.0

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing; the last picture stays."""
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def hear(self, what: str) -> None:
        """Print what happened."""
        self._console.print(f"  {escape(what)}")

    def watch(self, story: Story, harmer: Harmer) -> None:
        """Show how far a run is."""
        numbers, age_s = story.numbers, story.age_s()
        if self._live is not None:
            grid = Grid(title=f"{self._title}: {age_s:.0f} s", box=None, show_header=False)
            grid.add_row("faults", str(harmer.faults))
            for name, counted in SHOWN:
                grid.add_row(name, ", ".join(f"{numbers[each]:,} {each}" for each in counted))
            self._live.update(grid)
        elif age_s - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = age_s
            names = ("adds", "appends", "buffered calls", "rows", "scans", "requests")
            words = ", ".join(f"{numbers[name]:,} {name}" for name in names)
            self._console.print(f"  {age_s:4.0f} s  {harmer.faults} faults, {words}")


def summary(results: Iterable[Result]) -> list[str]:
    """Return what runs came to, all added up, as lines of Markdown."""
    runs = list(results)
    numbers: Counter[str] = Counter()
    for run in runs:
        numbers.update(run.numbers)
    kinds = [(f"{how} {part}", numbers[f"fault: {how} {part}"]) for part in Part for how in How]
    rows = [
        ("runs", f"{len(runs)}, seeds {', '.join(f'{run.seed} ({run.sync})' for run in runs)}"),
        ("faults", f"{sum(run.faults for run in runs)}"),
        *((f"… {kind}", str(count)) for kind, count in kinds if count),
        ("recoveries checked, broken off before", _recoveries(numbers)),
        ("two at once, of these", str(numbers["faults: two at once"])),
        ("adds and appends acknowledged", f"{numbers['adds'] + numbers['appends']:,}"),
        ("buffered calls acknowledged (rows, in segments)", _buffered(numbers)),
        ("rows acknowledged", f"{numbers['rows']:,}"),
        ("calls repeated after no answer", f"{_again(numbers):,}"),
        ("scans checked (rows)", f"{numbers['scans']:,} ({numbers['rows scanned']:,})"),
        ("scans broken off", f"{numbers['scans broken off']:,}"),
        ("requests", f"{numbers['requests']} ({_ends(numbers, 'requests ')})"),
        ("attempts", _ends(numbers, "attempts ")),
        ("pauses, sweeps, jobs cancelled", _besides(numbers)),
        ("longest time until rest", f"{max((run.rest_s for run in runs), default=0):.0f} s"),
        ("failures", str(sum(len(run.failures) for run in runs))),
    ]
    return ["| what | count |", "|---|---|", *(f"| {what} | {count} |" for what, count in rows)]


def _again(numbers: Counter[str]) -> int:
    return sum(count for name, count in numbers.items() if name.endswith(": asked again"))


def _buffered(numbers: Counter[str]) -> str:
    calls, rows = numbers["buffered calls"], numbers["rows buffered"]
    return f"{calls:,} ({rows:,}, in {numbers['segments flushed']:,})"


def _ends(numbers: Counter[str], prefix: str) -> str:
    ends = [
        (name.removeprefix(prefix), n) for name, n in numbers.items() if name.startswith(prefix)
    ]
    return ", ".join(f"{count} {end}" for end, count in sorted(ends))


def _recoveries(numbers: Counter[str]) -> str:
    return f"{_ends(numbers, 'recovered by ')}; {numbers['recoveries broken off']}"


def _besides(numbers: Counter[str]) -> str:
    return ", ".join(str(numbers[name]) for name in ("pauses", "gc", "cancel of a job"))
