"""`make fuzz`: damaged and hostile inputs by every way in that the service has.

The environment says how: FUZZ_INPUTS (50000) inputs together, FUZZ_MINUTES (60) at most,
FUZZ_TARGET for one target alone or some with commas between them, FUZZ_FIRST (0) the first block;
FUZZ_SEED=17 with one FUZZ_TARGET replays the input with that seed. Exit code 1 if something
ended, was not answered, was answered badly or took too much memory.
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

from neve.local.processes import exit_on_sigterm
from tests.fuzz.files import WAYS, FilesTarget
from tests.fuzz.outcome import READ, READER_DIED, REFUSED
from tests.fuzz.run import SHARES, Run
from tests.fuzz.stage import SEED_VARIABLE, Stage, environ_number

MIB = 1024**2
SHOWN = 40
"""Violations that are shown; of more, their number."""


def main() -> int:
    """Return 1 if something happened that must not."""
    exit_on_sigterm()
    console = Console(highlight=False)
    begun_s = time.monotonic()
    names = [each for each in os.environ.get("FUZZ_TARGET", "").split(",") if each] or [*SHARES]
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder).resolve())
        run = Run(stage)
        with stage.open():
            if (seed := os.environ.get(SEED_VARIABLE)) is not None:
                _replay(run, names, seed)
            else:
                _blocks(run, stage, names, console, begun_s)
            deaths = stage.reader_deaths
    _show(stage, names, console, deaths, time.monotonic() - begun_s)
    return 1 if stage.outcome.violations else 0


def _replay(run: Run, names: list[str], seed: str) -> None:
    if len(names) != 1 or not seed.isdecimal():
        raise SystemExit(f"{SEED_VARIABLE} is {seed!r}: give a number, and one FUZZ_TARGET")
    target = run.target(names[0])
    target.run_block(int(seed) // target.block, only=int(seed))


def _blocks(run: Run, stage: Stage, names: list[str], console: Console, begun_s: float) -> None:
    inputs = environ_number("FUZZ_INPUTS", 50_000)
    first = int(environ_number("FUZZ_FIRST", 0))
    end_s = begun_s + 60 * environ_number("FUZZ_MINUTES", 60)
    whole = sum(SHARES[name] for name in names if name in SHARES) or 1
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn())
    violations = TextColumn("{task.fields[violations]} violations")
    with Progress(*columns, TimeRemainingColumn(), violations, console=console) as progress:
        for name in names:
            target = run.target(name)
            if isinstance(target, FilesTarget):
                target.check_bases()
            run.kept(name)
            count = -(-round(inputs * SHARES[name] / whole) // target.block)
            total = count * target.block
            task = progress.add_task(name, total=total, violations=0)
            for number in range(first, first + count):
                if time.monotonic() > end_s:
                    console.print(f"the time is over before block {number} of {name}")
                    return
                target.run_block(number)
                found = len(stage.outcome.violations)
                progress.update(task, advance=target.block, violations=found)


def _show(stage: Stage, names: list[str], console: Console, deaths: int, took_s: float) -> None:
    outcome = stage.outcome
    grid = Grid("target", "inputs", READ, REFUSED, READER_DIED, title="What became of the inputs")
    for name in names:
        for way in WAYS if name == "files" else [name]:
            ends = (None, READ, REFUSED, READER_DIED)
            grid.add_row(way, *(f"{outcome.of(way, end):,}" for end in ends))
    console.print(grid)
    rest = Grid("what", "found", "limit")
    for kind in sorted(outcome.limits):
        limit = f"{outcome.limits[kind] // MIB:,} MiB"
        rest.add_row(f"memory of the {kind}", f"{outcome.peaks[kind] // MIB:,} MiB", limit)
    rest.add_row("deaths of readers, replaced", f"{deaths:,}", "any")
    for role in ("gateway", "coordinator", "texts"):
        rest.add_row(f"deaths of the {role}", str(outcome.of(f"deaths of the {role}")), "0")
    rest.add_row("violations", str(len(outcome.violations)), "0")
    rest.add_row("minutes", f"{took_s / 60:.1f}", "")
    console.print(rest)
    for violation in outcome.violations[:SHOWN]:
        console.print(violation, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
