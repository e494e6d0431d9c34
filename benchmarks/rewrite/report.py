"""Results as a table in the terminal and as a picture."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.runners import NEVE, Record

MB = 1e6


def table(data: Dataset, records: Sequence[Record]) -> Table:
    """Return the figures of one data set; ratios are how many times as fast Névé is."""
    size_mb = data.size_bytes / MB
    shown = Table(
        title=f"{data.name}: {len(data.files)} files, {data.rows:,} rows, {size_mb:.0f} MB"
    )
    for name in (
        "contender",
        "s (min to max)",
        "MB in/s",
        "Névé is",
        "CPU s",
        "peak MB",
        "one process",
        "MB out",
    ):
        shown.add_column(name, justify="left" if name == "contender" else "right")
    own_s = next((r.median_s for r in records if r.contender == NEVE), float("nan"))
    digests = {
        record.digest
        for record in records
        if record.digest and not record.contender.startswith("cp")
    }
    for record in records:
        if record.failed:
            shown.add_row(record.contender, f"[red]failed: {record.failed[:60]}[/red]")
            continue
        shown.add_row(
            f"{record.contender} [dim]{record.form}[/dim]",
            f"{record.median_s:.2f} ({min(record.seconds):.2f} to {max(record.seconds):.2f})",
            f"{size_mb / record.median_s:.0f}",
            f"{record.median_s / own_s:.2f} x",
            f"{statistics.median(record.cpu_s):.1f}",
            f"{record.peak_bytes / MB:.0f}",
            f"{record.task_peak_bytes / MB:.0f}",
            f"{record.bytes_out / MB:.0f}",
        )
    if data.key and len(digests) > 1:
        shown.caption = "[red]the contenders do not agree on keys and versions[/red]"
    return shown


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
        done = [record for record in records if record.seconds]
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
