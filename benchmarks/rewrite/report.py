"""Results as tables in the terminal and as a picture."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.machine import Machine
from benchmarks.rewrite.runners import NEVE, Budget, Record
from benchmarks.rewrite.wanted import THREADS

MB = 1e6
USD_PER_CORE_HOUR = 0.048
"""Price of a core of an m5.4xlarge on demand in us-east-1: 0.768 USD per hour for 16."""


def tables(data: Dataset, records: Sequence[Record], machine: Machine) -> Iterator[Table]:
    """Yield the figures of one data set; ratios are how many times as fast Névé is."""
    size_mb = data.size_bytes / MB
    title = f"{data.name}: {len(data.files)} files, {data.rows:,} rows, {size_mb:.0f} MB"
    if data.change is not None:
        change = data.change
        title += f", {change.delete_where or f'{change.column} = {change.value}'}"
    yield _times(title, data, records, machine)
    yield resources(data, records)


def _times(title: str, data: Dataset, records: Sequence[Record], machine: Machine) -> Table:
    shown = Table(title=title, caption=f"{machine.text}\n{_split(records)}")
    shown.add_column("contender")
    for name in (
        "s, durable (least to most)",
        "Névé is",
        "s, no fsync",
        "MB/s",
        "per core",
        "CPU s",
        "cores",
        "CPU ratio",
        "rounds",
        "foreign",
        "steal",
    ):
        shown.add_column(name, justify="right")
    own = next((record for record in records if record.contender == NEVE and record.rounds), None)
    for record in records:
        if record.failed or not record.rounds:
            shown.add_row(record.contender, f"[red]failed: {record.failed[:160]}[/red]")
            continue
        seconds, counted = [run.seconds for run in record.counted], record.counted
        size_mb = data.size_bytes / MB
        unsynced_s = record.unsynced_s
        shown.add_row(
            f"{record.contender} [dim]{record.form}[/dim]",
            f"{record.median_s:.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
            "" if own is None else f"{record.median_s / own.median_s:.2f} x",
            "always" if unsynced_s is None else f"{unsynced_s:.2f}",
            f"{size_mb / record.median_s:.0f}",
            f"{size_mb / record.median_s / THREADS:.1f}",
            f"{record.cpu_s:.2f}",
            f"{record.cpu_s / record.median_s:.2f}",
            "" if own is None or not own.cpu_s else f"{record.cpu_s / own.cpu_s:.2f}",
            _rounds(record),
            _share(sum(run.used.foreign_s for run in counted), record),
            _share(sum(run.used.steal_s for run in counted), record),
        )
    return shown


def _rounds(record: Record) -> str:
    """Return how many rounds count, and how many were disturbed."""
    disturbed = sum(run.disturbed for run in record.rounds)
    if record.disturbed:
        return f"[red]{len(record.rounds)} disturbed[/red]"
    return f"{len(record.counted)}" + (f" (and {disturbed} disturbed)" if disturbed else "")


def _share(lost_s: float, record: Record) -> str:
    """Return a share of the machine's time during the rounds that count."""
    wall_s = sum(run.used.wall_s for run in record.counted) * (os.cpu_count() or 1)
    return f"{100 * lost_s / wall_s:.0f} %"


def _split(records: Sequence[Record]) -> str:
    """Return the parts of Névé's job."""
    for record in records:
        if record.contender == NEVE and record.rounds:
            parts = " + ".join(f"{name} {part_s:.2f}" for name, part_s in record.split_s.items())
            return f"job of Névé {record.median_s:.2f} s = {parts} (medians)"
    return ""


def resources(data: Dataset, records: Sequence[Record]) -> Table:
    """Return memory and outputs of one data set."""
    shown = Table(title=f"{data.name}: memory and outputs")
    shown.add_column("contender")
    for name in (
        "peak MB",
        "one process",
        "sampler",
        "with limited memory",
        "Névé is",
        "MB out",
        "files",
        "rows",
        "row group",
        "codec",
    ):
        shown.add_column(name, justify="right")
    own = next((record.budget for record in records if record.contender == NEVE), None)
    for record in records:
        if record.failed or not record.rounds:
            continue
        memory, output = record.memory, record.output
        written = ["", "", "", "", ""]
        if output is not None:
            written = [
                f"{output.size_bytes / MB:.0f}",
                f"{output.files}",
                f"{output.rows:,}",
                f"{output.group_rows:,}",
                ", ".join(output.codecs),
            ]
        sampled = record.sampled_cpu_s
        shown.add_row(
            record.contender,
            f"{memory.peak_bytes / MB:.0f}",
            f"{memory.process_bytes / MB:.0f}",
            f"{100 * memory.cost_s / sampled:.2f} %" if sampled else "",
            _limited(record.budget),
            _limited_ratio(record.budget, own),
            *written,
        )
    if len(differing(records)) > 1:
        shown.caption = "[red]the contenders do not agree on the rows[/red]"
    return shown


def differing(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return the contenders by the digest of their rows: one entry if all agree."""
    digests: dict[str, list[str]] = {}
    for record in records:
        if record.output is not None and record.contender != "limit":
            digests.setdefault(record.output.digest, []).append(record.contender)
    return digests


def _limited(budget: Budget | None) -> str:
    if budget is None:
        return ""
    if budget.seconds is None:
        return f"[red]{budget.note[:90]}[/red]"
    note = f", {budget.note}" if budget.note else ""
    return f"{budget.seconds:.2f} s, {budget.process_bytes / MB:.0f} MB{note}"


def _limited_ratio(budget: Budget | None, own: Budget | None) -> str:
    if budget is None or own is None or budget.seconds is None or own.seconds is None:
        return ""
    return f"{budget.seconds / own.seconds:.2f} x"


def price(results: Sequence[tuple[Dataset, Sequence[Record]]]) -> Table:
    """Return what the rewrites of Névé and Spark SQL would cost, for comparison with others."""
    shown = Table(title=f"Per core and TB of input, at {USD_PER_CORE_HOUR} USD per core and hour")
    shown.add_column("data set")
    for name in ("contender", "MB/s per core", "USD per TB"):
        shown.add_column(name, justify="right")
    for data, records in results:
        for record in records:
            if record.contender in (NEVE, "spark-sql") and record.rounds:
                speed = data.size_bytes / MB / record.median_s / THREADS
                shown.add_row(
                    data.name, record.contender, f"{speed:.1f}", f"{usd_per_tb(speed):.2f}"
                )
    return shown


def usd_per_tb(megabytes_per_core_s: float) -> float:
    """Return the price of a terabyte of input.

    Args:
        megabytes_per_core_s: Megabytes of input per second and core.
    """
    return 1e6 / megabytes_per_core_s / 3600 * USD_PER_CORE_HOUR


def plot(results: Sequence[tuple[Dataset, Sequence[Record]]], path: Path) -> None:
    """Draw bytes in per second of every contender, one panel per data set."""
    from matplotlib.figure import Figure

    columns = 3
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(results) :]:
        panel.axis("off")
    for panel, (data, records) in zip(panels, results, strict=False):
        done = [record for record in records if record.rounds]
        speeds = [data.size_bytes / MB / record.median_s for record in done]
        colours = ["#1f6f8b" if record.contender == NEVE else "#b9c4c9" for record in done]
        bars = panel.barh([record.contender for record in done], speeds, color=colours)
        panel.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        panel.invert_yaxis()
        panel.margins(x=0.15)
        panel.set_title(f"{data.name} (MB in per second)", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
