"""The rewrite beside its alternatives, in one run.

    python -m benchmarks.rewrite [--scale F] [--rounds N] [--sets a,b] [--contenders a,b]

Starts a Ray of its own with one RayDP application, as a compactor has it; Spark SQL and
Névé run in it, every other engine in a process of its own, two threads each, one after
another, round by round. Seconds are medians; compare within one run only.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from benchmarks.rewrite.contest import Contest
from benchmarks.rewrite.datasets import MAKERS, Dataset, dataset
from benchmarks.rewrite.engines import ENGINES
from benchmarks.rewrite.goals import reached, summary
from benchmarks.rewrite.report import plot, table
from benchmarks.rewrite.runners import EVERYTHING, NEVE, SPARK, Record
from compactor.spark.driver_protocol import DriverSettings
from compactor.spark.engine import SparkEngine
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm, processes_of_stack
from neve.local.servers import NODE_RESOURCE

CONTENDERS = (*ENGINES, SPARK, EVERYTHING, NEVE)
Results = list[tuple[Dataset, list[Record]]]
ROUNDS, GROUP_ROWS, LEVEL = 3, 131_072, 1
EXECUTOR_MEMORY = "2g"


def main() -> None:
    """Measure and report."""
    exit_on_sigterm()
    wanted = _arguments()
    console = Console(width=110)
    results: Results = []
    root = Path(wanted.data)
    sets = [dataset(name, root, wanted.scale) for name in wanted.sets]
    with tempfile.TemporaryDirectory(prefix="neve-bench-") as scratch:
        asyncio.run(_run(wanted, sets, Path(scratch), results, console))
    console.print(summary(reached(results)))
    if wanted.plot:
        plot(results, Path(wanted.plot))


def _save(results: Results, file: str) -> None:
    """Write the figures so far: a run that is broken off keeps them."""
    if file:
        sets_json = {data.name: [each.as_json() for each in found] for data, found in results}
        all_json = {"sets": sets_json, "goals": [each.as_json() for each in reached(results)]}
        Path(file).write_text(json.dumps(all_json, indent=1))


async def _run(
    wanted: argparse.Namespace,
    sets: list[Dataset],
    scratch: Path,
    results: Results,
    console: Console,
) -> None:
    home = scratch / "home"
    home.mkdir()
    with LocalStack.start(home=home, options=StackOptions(actors=False, compactors=2)) as stack:
        os.environ.update(stack.driver_environ())
        engine = SparkEngine(
            DriverSettings(
                name="bench",
                ray_address=stack.ray_address,
                node_resource=NODE_RESOURCE,
                executor_memory=EXECUTOR_MEMORY,
                log_file=str(stack.folder.logs / "bench.log"),
                work="benchmarks.rewrite.spark_work:work",
            )
        )
        await engine.start()
        try:
            contest = Contest(
                engine=engine,
                spark_processes=lambda: processes_of_stack(stack.state.mark, stack.state.processes),
                contenders=wanted.contenders,
                rounds=wanted.rounds,
                group_rows=GROUP_ROWS,
                level=LEVEL,
                scratch=scratch,
                say=lambda text: console.print(f"[dim]{text}[/dim]"),
            )
            for data in sets:
                records = await contest.run(data)
                results.append((data, records))
                _save(results, wanted.json)
                console.print(table(data, records))
        finally:
            await engine.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the rows")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sets", type=_known(MAKERS), default=",".join(MAKERS))
    parser.add_argument("--contenders", type=_known(CONTENDERS), default=",".join(CONTENDERS))
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "neve-bench-data"))
    parser.add_argument("--json", default="", help="write all figures to this file")
    parser.add_argument("--plot", default="", help="write a picture (SVG or PNG) to this file")
    return parser.parse_args()


def _known(names: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads some of these names, parted by commas."""

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
