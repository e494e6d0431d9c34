"""What does a transform cost, compared with the rewrite of the same files without one?

    python -m benchmarks.bench_transforms [--rows N] [--rounds N] [--sets keyed,bag,rest]
        [--cases NAME …] [--json FILE] [--first]

A real Spark driver with two cores does whole jobs in a warm session, in turns, and round by round:
without a transform, and with each transform. Figures are processor seconds of all processes of
the driver (Python, JVM, tasks), the least of all rounds; other work on the machine does not change
them much. With `--first` each job is the first one of an application of its own, as after a start
or the death of a driver; it comes after the pause in which an application warms up. Sets:

    keyed   16 sorted files over one key range, with tombstones; plain: the merge
    bag     the same rows without a key; plain: the copy row by row, because codecs differ
    rest    one sorted file after the other, disjoint row groups; plain: the same delete with
            copying off, that is with files of which nothing is known
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.rewrite.measure import started, tree
from common.model.file import DataFile
from common.model.request import Request, TransformKind, TransformSpec
from common.model.table import Table, TableSettings
from common.parquet.file_inspection import inspect_file
from common.parquet.location import open_location
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.runtime import RandomIds
from common.spi.planner import TransformContext
from common.wire import Assignment
from compactor.spark.driver_protocol import DriverSettings, EngineKind
from compactor.spark.engine import SparkEngine
from neve.local.machine import find_java
from tests.support.assignments import an_assignment

ROWS, FILES, ROUNDS = 2_400_000, 16, 3
WARM_UP_S = 10.0
GROUP_ROWS = 65_536
NOW_S = 1_800_000_000.0
PLUGIN = "bench-halve"
DELETE, SET, CALL = TransformKind.DELETE_WHERE, TransformKind.SET, TransformKind.PLUGIN


class Halve:
    """A transform of a user's: halves one column."""

    def apply(self, rows: pa.Table, context: TransformContext) -> pa.Table:
        at = rows.schema.get_field_index("x")
        halves = pa.array(rows.column("x").to_numpy() / 2)
        return rows.set_column(at, rows.schema.field(at), halves)


@dataclass(frozen=True, slots=True)
class Case:
    """One transform, and how many times the plain job it may cost."""

    name: str
    spec: TransformSpec
    bar: float | None
    """None: only shown."""
    sets: tuple[str, ...] = ("keyed", "bag")


def _case(
    kind: TransformKind, text: str, bar: float | None, sets: tuple[str, ...] = ("keyed", "bag")
) -> Case:
    verb = "delete where" if kind is DELETE else "set"
    return Case(f"{verb} {text}", TransformSpec(kind=kind, text=text), bar, sets)


CASES = (
    _case(DELETE, "x > 0.9", 1.5),
    _case(DELETE, "at < now() - interval 500000 seconds", 1.5),
    _case(DELETE, "name in ('n1', 'n2', 'n500')", 1.5),
    _case(DELETE, "name like 'n1%'", 1.5),
    _case(DELETE, "name rlike '^n1'", 2.5),
    _case(SET, "x = x * 2", 2.0),
    _case(SET, "x = case when name = 'n7' then 0 else x end", 2.0),
    _case(SET, "name = upper(name)", 2.0),
    _case(SET, "name = replace(name, 'n1', 'm')", 2.5),
    _case(SET, "y = y % 1000", 2.5),
    Case("plug-in (halves x)", TransformSpec(kind=CALL, name=PLUGIN), 2.5),
    _case(DELETE, "k >= 0 and k < {hundredth}", 0.5, ("rest",)),
)
"""Those with a bar of 2.5 are left to Spark, or are a plug-in: `y` is different in nearly all rows,
`name` in a thousand. The last one may be true in a hundredth of the row groups."""


# --------------------------------------------------------------------------------------------- Sets


@dataclass(frozen=True, slots=True)
class Files:
    """A table and its files."""

    table: Table
    inputs: tuple[DataFile, ...]

    def assignment(self, spec: TransformSpec | None) -> Assignment:
        """Return a job over all files."""
        versions = [file.version_max for file in self.inputs if file.version_max is not None]
        request = None
        if spec is not None:
            request = Request(id="request-1", table=self.table.id, transform=spec)
        return an_assignment(
            self.inputs,
            attempt=RandomIds().next("att"),
            table=self.table,
            now_s=NOW_S,
            request=request,
            settled=max(versions, default=None),
        )

    def remove_outputs(self) -> None:
        """Delete what rewrites have left."""
        for path in (Path(open_location(self.table.location).root) / "_neve").rglob("*.parquet"):
            path.unlink()


def make_files(name: str, folder: Path, rows: int) -> Files:
    """Write the files of a set, unless they are there."""
    keyed = name != "bag"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [f"{number:02}.parquet" for number in range(FILES)]
    codec = "zstd" if keyed else "snappy"  # Other codec: an append-only table is read.
    tables = _runs(name, rows) if not (folder / paths[-1]).exists() else iter(())
    for path, table in zip(paths, tables, strict=False):
        pq.write_table(table, folder / path, compression=codec, row_group_size=_group_rows(rows))
    schema = pq.read_schema(folder / paths[0])
    table = Table(
        id="bench",
        name="bench",
        location=folder.as_uri(),
        schema=columns_of(schema),
        key=("k",) if keyed else (),
        version_column="v" if keyed else None,
        tombstone_column="dead" if keyed else None,
        settings=TableSettings(codec="zstd", codec_level=1, row_group_bytes=4 << 20),
    )
    location, rules = open_location(table.location), RowRules.of(table)
    facts = (inspect_file(location, path, rules) for path in paths)
    return Files(table, tuple(fact.data_file(added_at_s=0.0) for fact in facts))


def _group_rows(rows: int) -> int:
    return max(1, min(GROUP_ROWS, rows // FILES // 8))


def _runs(name: str, rows: int) -> Iterator[pa.Table]:
    chance, count = np.random.default_rng(5), rows // FILES
    names = np.array([f"n{number}" for number in range(1000)])
    for run in range(FILES):
        keys = run * count + np.arange(count)
        if name != "rest":
            keys = np.sort(chance.choice(rows, count, replace=False))
        dead = chance.random(count) < (0.0 if name == "rest" else 0.05)
        columns = {
            "k": pa.array(keys),
            "v": pa.array(run * 1000 + chance.integers(0, 1000, count)),
            "dead": pa.array(dead),
            "at": pa.array(
                ((NOW_S - chance.integers(0, 1_000_000, count)) * 1e6).astype("i8")
            ).cast(pa.timestamp("us", "UTC")),
            "name": pa.array(names[chance.integers(0, 1000, count)]),
            "x": pa.array(chance.random(count)),
            "y": pa.array(chance.integers(0, 1 << 40, count)),
        }
        yield pa.table(columns)


# -------------------------------------------------------------------------------------------- Turns


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A job that is done once in every round."""

    set_name: str
    name: str
    files: Files
    spec: TransformSpec | None
    bar: float | None = None


def turns_of(name: str, files: Files, cases: Sequence[Case]) -> list[Turn]:
    """Return the plain job of a set and those that are compared with it."""
    chosen = [case for case in cases if name in case.sets]
    if name != "rest":
        plain = Turn(name, "without a transform", files, None)
        return [plain, *(Turn(name, case.name, files, case.spec, case.bar) for case in chosen)]
    turns = []
    for case in chosen:
        rows = sum(file.rows for file in files.inputs)
        text = case.spec.text.format(hundredth=rows // 100)
        spec = replace(case.spec, text=text)
        unknown = Files(files.table, tuple(replace(f, clean=False) for f in files.inputs))
        turns += [
            Turn(name, f"{text}, copying off", unknown, spec),
            Turn(name, f"delete where {text}", files, spec, case.bar),
        ]
    return turns


def used_s() -> float:
    """Return the processor seconds of this process and all that descend from it."""
    seconds = 0.0
    for process in tree(os.getpid())():
        times = process.cpu_times()
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


Figures = dict[Turn, list[tuple[float, float, str]]]
"""Processor seconds, elapsed seconds and kernel of each turn in each round."""


async def measure(
    engine: SparkEngine, turns: Sequence[Turn], rounds: int, save: Callable[[Figures], None]
) -> None:
    """Measure round by round; a run that is broken off keeps the rounds before."""
    figures: Figures = {turn: [] for turn in turns}
    for number in range(rounds + 1):
        for turn in turns:
            figure = await measured(engine, turn)
            if number:  # The first round warms the session up.
                figures[turn].append(figure)
        if number:
            save(figures)


async def measure_first(
    settings: DriverSettings, turns: Sequence[Turn], rounds: int, save: Callable[[Figures], None]
) -> None:
    """Measure each turn as the first job of an application."""
    figures: Figures = {turn: [] for turn in turns}
    for _ in range(rounds):
        for turn in turns:
            engine = SparkEngine(settings)
            async with started(engine):
                await asyncio.sleep(WARM_UP_S)
                figures[turn].append(await measured(engine, turn))
        save(figures)


async def measured(engine: SparkEngine, turn: Turn) -> tuple[float, float, str]:
    """Return processor seconds, elapsed seconds and kernel of a job."""
    assignment = turn.files.assignment(turn.spec)
    before_s, begun_s = used_s(), time.perf_counter()
    result = await engine.run(assignment, lambda _: None)
    figure = (used_s() - before_s, time.perf_counter() - begun_s, result.kernel)
    turn.files.remove_outputs()
    return figure


def lines_of(figures: Figures) -> Iterator[str]:
    """Yield the table."""
    yield "| set | job | kernel | CPU s (all rounds) | times plain | bar | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    plain_s = 0.0
    for turn, rounds in figures.items():
        best_s = min(cpu_s for cpu_s, _, _ in rounds)
        listed = ", ".join(f"{cpu_s:.2f}" for cpu_s, _, _ in rounds)
        cells = [turn.set_name, turn.name, rounds[-1][2], f"{best_s:.2f} ({listed})"]
        if turn.bar is None:
            plain_s = best_s
            cells += ["", "", ""]
        else:
            ratio = best_s / plain_s
            cells += [f"{ratio:.2f}", f"{turn.bar}", "" if ratio <= turn.bar else "**missed**"]
        yield f"| {' | '.join(cells)} |"


def _as_json(figures: Figures) -> str:
    rows = [
        {"set": turn.set_name, "job": turn.name, "bar": turn.bar, "rounds": list(rounds)}
        for turn, rounds in figures.items()
    ]
    return json.dumps(rows, indent=1)


async def _run(wanted: argparse.Namespace) -> None:
    root = Path(wanted.data)
    chosen = [case for case in CASES if not wanted.cases or case.name in wanted.cases]
    turns: list[Turn] = []
    for name in wanted.sets.split(","):
        files = make_files(name, root / f"{name}-{wanted.rows}", wanted.rows)
        turns += turns_of(name, files, chosen)
    settings = DriverSettings(
        name="bench",
        engine=EngineKind.LOCAL,
        start_timeout_s=600.0,
        configs={"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]},
    )
    save = partial(_save, wanted.json)
    if wanted.first:
        await measure_first(settings, turns, wanted.rounds, save)
        return
    engine = SparkEngine(settings)
    async with started(engine):
        await measure(engine, turns, wanted.rounds, save)


def _save(file: str, figures: Figures) -> None:
    """Print the table of all rounds so far, and write the figures."""
    print("\n".join(lines_of(figures)), flush=True)
    if file:
        Path(file).write_text(_as_json(figures))


def _install_plugin(folder: Path) -> None:
    """Make the plug-in of this file one that is installed, for all processes that follow."""
    about = folder / "neve_bench-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: neve-bench\nVersion: 1\n")
    entry = f"{PLUGIN} = benchmarks.bench_transforms:Halve"
    (about / "entry_points.txt").write_text(f"[neve.transforms]\n{entry}\n")
    paths: Iterable[str] = (str(folder), os.getcwd(), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def main() -> None:
    """Measure, and print the table after each round."""
    parser = argparse.ArgumentParser(prog="benchmarks.bench_transforms")
    parser.add_argument("--rows", type=int, default=ROWS, help="of each set")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sets", default="keyed,bag,rest")
    parser.add_argument("--cases", nargs="*", help="names of transforms; all of them otherwise")
    parser.add_argument("--json", default="", help="write all figures to this file")
    parser.add_argument("--first", action="store_true", help="each job in a new application")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "neve-transforms"))
    wanted = parser.parse_args()
    os.environ.setdefault("JAVA_HOME", str(find_java(os.environ).home))
    with tempfile.TemporaryDirectory(prefix="neve-bench-plugin-") as folder:
        _install_plugin(Path(folder))
        asyncio.run(_run(wanted))


if __name__ == "__main__":
    main()
