"""`make hostile`: damaged Parquet and Arrow, given to a gateway, a coordinator and their readers.

The environment says how: HOSTILE_BLOCKS (200) blocks of 131 inputs, HOSTILE_MINUTES (60) at
most, HOSTILE_FIRST (0) the first block; HOSTILE_SEED=17 replays the input with that seed
alone. Exit code 1 if something ended, was not answered or took too much memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid

from tests.hostile.run import BLOCK, Run

WAYS = ("append", "add", "import", "coordinator's look", "Arrow file")
ENDS = ("read", "refused", "refused, its reader died")
MIB = 1024**2


def main() -> int:
    """Return 1 if something happened that must not."""
    console = Console(highlight=False)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder).resolve())
        with run.open():
            if seed := os.environ.get("HOSTILE_SEED"):
                run.block(int(seed) // BLOCK, only=int(seed))
            else:
                run.check_bases()
                _blocks(run, console, begun_s)
            deaths = run.reader_deaths
    _show(run, console, deaths, time.monotonic() - begun_s)
    return 1 if run.outcome.violations else 0


def _blocks(run: Run, console: Console, begun_s: float) -> None:
    first = int(os.environ.get("HOSTILE_FIRST", "0"))
    count = int(os.environ.get("HOSTILE_BLOCKS", "200"))
    end_s = begun_s + 60 * float(os.environ.get("HOSTILE_MINUTES", "60"))
    columns = (TextColumn("hostile inputs"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        TextColumn("{task.fields[violations]} violations"),
        console=console,
    ) as progress:
        task = progress.add_task("", total=count * BLOCK, violations=0)
        for number in range(first, first + count):
            if time.monotonic() > end_s:
                console.print(f"the time is over before block {number}")
                return
            run.block(number)
            progress.update(task, advance=BLOCK, violations=len(run.outcome.violations))


def _show(run: Run, console: Console, deaths: int, took_s: float) -> None:
    outcome = run.outcome
    grid = Grid("way", *ENDS, title="What became of damaged inputs")
    for way in WAYS:
        counts = [outcome.counts[f"{way} {end}"] for end in ENDS]
        grid.add_row(way, *(f"{each:,}" for each in counts))
    console.print(grid)
    rest = Grid("what", "found", "limit")
    for kind in sorted(outcome.limits):
        limit = f"{outcome.limits[kind] // MIB:,} MiB"
        rest.add_row(f"memory of the {kind}", f"{outcome.peaks[kind] // MIB:,} MiB", limit)
    rest.add_row("deaths of readers, replaced", f"{deaths:,}", "any")
    for role in ("gateway", "coordinator"):
        rest.add_row(f"deaths of the {role}", str(outcome.counts[f"{role} deaths"]), "0")
    rest.add_row("violations", str(len(outcome.violations)), "0")
    rest.add_row("minutes", f"{took_s / 60:.1f}", "")
    console.print(rest)
    for each in outcome.violations:
        console.print(each, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
