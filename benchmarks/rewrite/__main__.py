"""The rewrite next to its alternatives, in one run.

    python -m benchmarks.rewrite [--scale F] [--rounds N] [--sets a,b] [--contenders a,b]

Starts a Ray of its own with one RayDP application, as a compactor has it; Spark SQL and
Névé run in it, every other engine in a process of its own, two threads each, one after
another, round by round. Seconds are medians; compare within one run only.

A round is disturbed if other programs or the hypervisor took more than a share of the machine
while it ran. It is repeated a few times; a contender without an undisturbed round is marked.
The exit code is 1 if contenders differ in any column of any row.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.rewrite.contest import Contest
from benchmarks.rewrite.datasets import DEFAULT_SETS, LARGE, SETS, Dataset, dataset
from benchmarks.rewrite.engines import ENGINES
from benchmarks.rewrite.goals import reached, summary
from benchmarks.rewrite.machine import Machine
from benchmarks.rewrite.markdown import page
from benchmarks.rewrite.measure import started
from benchmarks.rewrite.report import differing, plot, price, resources, tables
from benchmarks.rewrite.runners import EVERYTHING, NEVE, SPARK, Record, Rules
from compactor.spark.driver_protocol import DriverSettings, driver_settings
from compactor.spark.engine import SparkEngine
from neve.local import LocalStack, StackOptions
from neve.local.machine import machine_bytes
from neve.local.processes import exit_on_sigterm, processes_of_stack
from neve.local.servers import NODE_RESOURCE

CONTENDERS = (SPARK, *ENGINES, EVERYTHING, NEVE)
Results = list[tuple[Dataset, list[Record]]]
ROUNDS, GROUP_ROWS, LEVEL = 3, 131_072, 1
EXECUTOR_MEMORY = "2g"
MEMORY_SHARE_MAX = 0.6
"""Share of the machine's memory at which an engine is ended."""
WIDTH = 170


def main() -> None:
    """Measure and report."""
    exit_on_sigterm()
    wanted = _arguments()
    console = Console(width=WIDTH)
    results: Results = []
    machine = Machine.now()
    console.print(machine.text)
    with tempfile.TemporaryDirectory(prefix="neve-bench-") as scratch:
        asyncio.run(_run(wanted, Path(scratch), results, machine, console))
    console.print(summary(reached(results)))
    console.print(price(results))
    if wanted.plot:
        plot(results, Path(wanted.plot))
    wrong = {data.name: digests for data, done in results if len(digests := differing(done)) > 1}
    if wrong:
        console.print(f"[red]the contenders do not agree on the rows: {wrong}[/red]")
        sys.exit(1)


def _save(results: Results, machine: Machine, wanted: argparse.Namespace) -> None:
    """Write the figures so far: a run that is broken off keeps them."""
    outcomes = reached(results)
    if wanted.json:
        sets_json = {data.name: [record.as_json() for record in done] for data, done in results}
        goals_json = [outcome.as_json() for outcome in outcomes]
        all_json = {"machine": machine.as_json(), "sets": sets_json, "goals": goals_json}
        _replace(wanted.json, json.dumps(all_json, indent=1))
    if wanted.markdown:
        _replace(wanted.markdown, page(results, outcomes, machine))


def _replace(file: str, text: str) -> None:
    """Write a file at once or not at all."""
    unfinished = Path(f"{file}.part")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(file)


async def _run(
    wanted: argparse.Namespace,
    scratch: Path,
    results: Results,
    machine: Machine,
    console: Console,
) -> None:
    home = scratch / "home"
    home.mkdir()
    with LocalStack.start(home=home, options=StackOptions(actors=False, compactors=2)) as stack:
        os.environ.update(stack.driver_environ())
        settings = _driver_settings(stack)
        console.print(f"Névé's tasks have {settings.task_bytes >> 20} MiB each, as in `neve up`")
        contest = Contest(
            engine=SparkEngine(settings),
            spark_processes=lambda: processes_of_stack(stack.state.mark, stack.state.processes),
            contenders=wanted.contenders,
            rounds=wanted.rounds,
            rules=_rules(wanted),
            group_rows=GROUP_ROWS,
            level=LEVEL,
            scratch=scratch,
            say=lambda text: console.print(f"[dim]{text}[/dim]"),
        )
        async with started(contest.engine):
            for name in wanted.sets:
                begun_s = time.monotonic()
                data = dataset(name, Path(wanted.data), wanted.scale)
                made_s = time.monotonic() - begun_s
                records = await contest.run(data)
                results.append((data, records))
                _save(results, machine, wanted)
                for table in tables(data, records, machine):
                    console.print(table)
                took_s = time.monotonic() - begun_s
                console.print(f"[dim]{name}: {took_s:.0f} s, {made_s:.0f} s of it to make it[/dim]")
        if contest.rules.budget_bytes and NEVE in contest.contenders:
            # The memory of tasks belongs to an application, so this takes another one.
            limited = replace(settings, task_bytes=contest.rules.budget_bytes, task_limit_bytes=0)
            contest = replace(contest, engine=SparkEngine(limited))
            async with started(contest.engine):
                for data, records in results:
                    await contest.limit(data, records)
                    _save(results, machine, wanted)
                    console.print(resources(data, records))


def _driver_settings(stack: LocalStack) -> DriverSettings:
    """Return the settings of an application, with the task memory that `neve up` chooses."""
    chosen = StackOptions().with_task_memory(machine_bytes()).settings.compactor
    settings = driver_settings(
        chosen,
        name="bench",
        ray_address=stack.ray_address,
        node_resource=NODE_RESOURCE,
        log_file=str(stack.folder.logs / "bench.log"),
    )
    work = "benchmarks.rewrite.spark_work:work"
    return replace(settings, executor_memory=EXECUTOR_MEMORY, work=work)


def _rules(wanted: argparse.Namespace) -> Rules:
    return Rules(
        disturbance_max=wanted.foreign,
        retries=wanted.retries,
        budget_bytes=int(wanted.budget * 1024**2),
        memory_bytes_max=int(psutil.virtual_memory().total * MEMORY_SHARE_MAX),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--scale", type=float, default=1.0, help="factor on the rows")
    add("--rounds", type=int, default=ROUNDS)
    add("--sets", type=_some_of(SETS), default=",".join(DEFAULT_SETS), help=", ".join(SETS))
    add("--large", action="store_true", help=f"also measure {', '.join(LARGE)}")
    add("--contenders", type=_some_of(CONTENDERS), default=",".join(CONTENDERS))
    add("--foreign", type=float, default=0.1, help="share of the machine that disturbs a round")
    add("--retries", type=int, default=3, help="disturbed rounds to repeat, per contender and set")
    add("--budget", type=float, default=768, help="MiB for runs with limited memory; 0: none")
    add("--data", default=str(Path(tempfile.gettempdir()) / "neve-bench-data"))
    add("--json", default="", help="write all figures to this file, after every data set")
    add("--markdown", default="", help="write tables for a page to this file, likewise")
    add("--plot", default="", help="write a picture (SVG or PNG) to this file")
    arguments = parser.parse_args()
    if arguments.large:
        arguments.sets = (*arguments.sets, *(n for n in LARGE if n not in arguments.sets))
    return arguments


def _some_of(names: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads some of these names, separated by commas."""

    def read(text: str) -> tuple[str, ...]:
        given = tuple(text.split(","))
        if unknown := set(given) - set(names):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))} is none of {', '.join(names)}"
            )
        return given

    return read


if __name__ == "__main__":
    main()
