"""Results as tables for `docs/benchmarks.md`."""

from collections.abc import Callable, Iterable, Sequence

from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.goals import GOALS, Reached
from benchmarks.rewrite.machine import Machine
from benchmarks.rewrite.report import MB, usd_per_tb
from benchmarks.rewrite.runners import EVERYTHING, NEVE, SPARK, Record
from benchmarks.rewrite.wanted import THREADS

OTHERS = {
    SPARK: "Spark SQL",
    "polars": "Polars",
    "duckdb": "DuckDB",
    "datafusion": "DataFusion",
    "delta-rs": "delta-rs",
    "cp": "`cp`",
    "limit": "decode + encode",
    EVERYTHING: "Névé, nothing copied",
}
Results = Sequence[tuple[Dataset, Sequence[Record]]]


def page(results: Results, outcomes: Sequence[Reached], machine: Machine) -> str:
    """Return everything, with the machine and without headings."""
    parts = [
        f"{machine.text}.",
        "Columns of others: their time divided by Névé's, all durable.",
        _table(["set", "Névé (least to most)", *OTHERS.values()], _rows(results, _ratio)),
        "The same without `fsync` of the others:",
        _table(["set", "Névé, durable", *OTHERS.values()], _rows(results, _unsynced)),
        "The same in processor time:",
        _table(["set", "Névé, CPU and cores", *OTHERS.values()], _rows(results, _cpu, _own_cpu)),
        "With limited memory:",
        _table(["set", "Névé", *OTHERS.values()], _rows(results, _limited, _own_limited)),
        "Largest memory, MB (Névé: of a task's process):",
        _table(["set", "Névé", *OTHERS.values()], _rows(results, _memory, _own_memory)),
        "The parts of Névé's job, and what disturbed it:",
        _parts(results),
        _table(["goal", "wanted", "reached"], _goals(outcomes)),
    ]
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without the columns that are empty."""
    lines = [list(row) for row in rows]
    used = [at for at in range(len(heads)) if any(line[at] for line in lines)]
    shown = [[heads[at] for at in used], ["---"] * len(used)]
    shown += [[line[at] or "-" for at in used] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


Cell = Callable[[Record, Record], str]


def _own_time(own: Record) -> str:
    seconds = [run.seconds for run in own.counted]
    mark = ", disturbed" if own.disturbed else ""
    return f"{own.median_s:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}){mark}"


def _rows(
    results: Results, cell: Cell, own_cell: Callable[[Record], str] = _own_time
) -> list[list[str]]:
    rows = []
    for data, records in results:
        done = {record.contender: record for record in records if record.rounds}
        own = done.get(NEVE)
        if own is not None:
            cells = [cell(done[name], own) if name in done else "" for name in OTHERS]
            rows.append([f"`{data.name}`, {data.size_bytes / MB:.0f} MB", own_cell(own), *cells])
    return rows


def _ratio(record: Record, own: Record) -> str:
    return f"{record.median_s / own.median_s:.2f}" + ("*" if record.disturbed else "")


def _unsynced(record: Record, own: Record) -> str:
    return "" if record.unsynced_s is None else f"{record.unsynced_s / own.median_s:.2f}"


def _cpu(record: Record, own: Record) -> str:
    return f"{record.cpu_s / own.cpu_s:.2f}" if own.cpu_s else ""


def _own_cpu(own: Record) -> str:
    return f"{own.cpu_s:.2f} s, {own.cpu_s / own.median_s:.2f}"


def _limited(record: Record, own: Record) -> str:
    if record.budget is None or own.budget is None:
        return ""
    if record.budget.seconds is None:
        return record.budget.note
    return f"{record.budget.seconds / own.budget.seconds:.2f}" if own.budget.seconds else ""


def _own_limited(own: Record) -> str:
    if own.budget is None:
        return ""
    if own.budget.seconds is None:
        return own.budget.note
    return f"{own.budget.seconds:.2f} s, {own.budget.process_bytes / MB:.0f} MB"


def _memory(record: Record, _: Record) -> str:
    return f"{record.memory.peak_bytes / MB:,.0f}"


def _own_memory(own: Record) -> str:
    return f"{own.memory.process_bytes / MB:.0f}"


def _parts(results: Results) -> str:
    names = ("plan", "start", "task body", "read back", "rest")
    heads = ["set", "job", *names, "rounds", "foreign", "steal", "MB/s per core", "USD per TB"]
    rows = []
    for data, records in results:
        for record in records:
            if record.contender == NEVE and record.rounds:
                speed = data.size_bytes / MB / record.median_s / THREADS
                foreign_s = sum(run.used.foreign_s for run in record.counted)
                steal_s = sum(run.used.steal_s for run in record.counted)
                parts = [f"{record.split_s.get(name, 0.0):.2f}" for name in names]
                rounds = f"{len(record.counted)} of {len(record.rounds)}"
                lost = [f"{foreign_s:.2f} s", f"{steal_s:.2f} s"]
                price = [f"{speed:.0f}", f"{usd_per_tb(speed):.2f}"]
                rows.append(
                    [f"`{data.name}`", f"{record.median_s:.2f} s", *parts, rounds, *lost, *price]
                )
    return _table(heads, rows)


def _goals(outcomes: Sequence[Reached]) -> list[list[str]]:
    rows = []
    for goal in GOALS:
        mine = [outcome for outcome in outcomes if outcome.goal == goal]
        shown = ", ".join(
            f"`{outcome.data}` {outcome.ratio:.2f}"
            if outcome.state != "below"
            else f"`{outcome.data}` **{outcome.ratio:.2f}**"
            for outcome in mine
        )
        if mine:
            stretch = f" ({goal.stretch:.2f})" if goal.stretch else ""
            rows.append([goal.what, f"{goal.least:.2f}{stretch}", shown])
    return rows
