"""Verification and display: table against raw feed, live progress, before and after."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid

from common.clock import SystemClock
from common.units import format_bytes, format_count
from neve.api import Status
from neve.client import Client
from neve.demo.feed import KEY, TOMBSTONE, VERSION

Wishes = Callable[[pa.Table], tuple[pa.Table, pa.Table]]
"""Visible rows without users' compactions → visible rows with them, and deleted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of comparing the table's rows with the raw feed."""

    fed_rows: int
    expected_rows: int
    found_rows: int
    lost: int
    """Keys that are missing from the table."""
    doubled: int
    """Extra rows of keys that occur more than once."""
    resurrected: int
    """Keys that are visible although their last version is a tombstone."""
    different: int
    """Rows whose values differ from those of their last version."""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled, resurrected or changed."""
        faults = self.lost + self.doubled + self.resurrected + self.different
        return faults == 0 and self.found_rows == self.expected_rows


def expected_rows(files: Sequence[Path]) -> tuple[pa.Table, pa.Table]:
    """Compute from raw files the rows that must be visible, and the keys that must not be.

    Args:
        files: All files of the feed so far, in any order.
    """
    fed = pa.concat_tables([pq.read_table(path) for path in files])
    newest = fed.group_by(list(KEY)).aggregate([(VERSION, "max")])
    newest = newest.rename_columns([*KEY, VERSION])
    last = fed.join(newest, keys=[*KEY, VERSION], join_type="left semi")
    dead = last.filter(last[TOMBSTONE])
    return last.filter(pc.invert(last[TOMBSTONE])), dead.select(list(KEY))


def prove(files: Sequence[Path], found: pa.Table, wishes: Wishes | None = None) -> Proof:
    """Compare a scan of the table with the raw feed.

    Args:
        files: All files of the feed so far.
        found: The result of a scan of the whole table.
        wishes: Applies users' compactions to the visible rows.
    """
    expected, dead = expected_rows(files)
    if wishes is not None:
        expected, deleted = wishes(expected)
        dead = pa.concat_tables([dead, deleted.select(list(KEY))])
    found = found.select(expected.column_names).cast(expected.schema)
    keys = found.select(list(KEY))
    distinct = keys.group_by(list(KEY)).aggregate([])
    lost = expected.select(list(KEY)).join(distinct, keys=list(KEY), join_type="left anti")
    risen = dead.join(distinct, keys=list(KEY), join_type="left semi")
    order = [(name, "ascending") for name in (*KEY, VERSION)]
    same = found.num_rows == expected.num_rows and found.sort_by(order).equals(
        expected.sort_by(order)
    )
    return Proof(
        fed_rows=sum(pq.read_metadata(path).num_rows for path in files),
        expected_rows=expected.num_rows,
        found_rows=found.num_rows,
        lost=lost.num_rows,
        doubled=found.num_rows - distinct.num_rows,
        resurrected=risen.num_rows,
        different=0 if same else _count_differences(expected, found),
    )


def _count_differences(expected: pa.Table, found: pa.Table) -> int:
    """Estimate the number of keys whose rows differ; return at least 1."""
    names = expected.column_names
    left, right = _row_texts(expected, names), _row_texts(found, names)
    return max(1, len(left ^ right) // 2)


def _row_texts(table: pa.Table, names: list[str]) -> set[str]:
    return {repr(row) for row in zip(*(table[name].to_pylist() for name in names), strict=True)}


# ------------------------------------------------------------------------------------------ Display


CLOCK = SystemClock()
PLAIN_EVERY_S = 5.0
"""Interval between printed lines if the output is not a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCost:
    """Costs of reading a table at one moment."""

    files: int
    size_bytes: int
    stored_rows: int
    visible_rows: int
    scan_s: float
    added_bytes: int
    rewritten_bytes: int


class ProgressDisplay:
    """Live progress of the compaction; prints lines if the output is not a terminal."""

    def __init__(self, client: Client, table: str, console: Console, *, total_files: int) -> None:
        """Create a display for one table."""
        self._client = client
        self._table = table
        self._console = console
        self._total_files = total_files
        self._began_s = CLOCK.now_s()
        self._printed_s = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Start drawing."""
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
        """Stop drawing; keep the last picture."""
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def look(self) -> None:
        """Read the progress of the compaction and draw it."""
        status = self._client.status()
        files = self._client.describe(self._table).files or 0
        elapsed_s = CLOCK.now_s() - self._began_s
        if self._live is not None:
            self._live.update(self._picture(status, files, elapsed_s))
        elif elapsed_s - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = elapsed_s
            self._console.print(
                f"  {elapsed_s:4.0f} s  files {files}, queued {_queued(status)}, "
                f"running {_running(status)}, committed {status.committed}"
            )

    def at_rest(self) -> bool:
        """Return whether no job is running or would be planned."""
        plan = self._client.plan(self._table)
        return not plan.jobs and not plan.running

    def _picture(self, status: Status, files: int, elapsed_s: float) -> Grid:
        grid = Grid(box=None, padding=(0, 2), show_header=False)
        width = 40
        share = min(1.0, files / max(1, self._total_files))
        bar = "█" * round(width * share) + "░" * (width - round(width * share))
        grid.add_row("files", f"[cyan]{bar}[/] {files}")
        grid.add_row("queue", f"{_queued(status)} jobs wait, {_running(status)} run")
        grid.add_row("done", f"{status.committed} committed, {status.failed} failed")
        grid.add_row("time", f"{elapsed_s:.0f} s")
        for job in self._client.jobs()[:6]:
            done = round(20 * job.fraction)
            grid.add_row(
                job.compactor[-8:],
                f"{'━' * done}{'┈' * (20 - done)} {format_count(job.inputs, 'file')}, "
                f"{format_bytes(job.input_bytes)}, {job.state}",
            )
        return grid


def _queued(status: Status) -> int:
    return sum(group.queued for group in status.groups)


def _running(status: Status) -> int:
    return sum(group.running for group in status.groups)


def show_before_after(console: Console, before: ReadCost, after: ReadCost) -> None:
    """Print the table before and after compaction."""
    grid = Grid(title="\nThe table, as its readers see it")
    for title in ("", "most of it in, untended", "more in, at rest"):
        grid.add_column(title, justify="right" if title else "left")
    grid.add_row("files", f"{before.files:,}", f"{after.files:,}")
    grid.add_row("bytes", format_bytes(before.size_bytes), format_bytes(after.size_bytes))
    grid.add_row("rows stored", f"{before.stored_rows:,}", f"{after.stored_rows:,}")
    grid.add_row("rows visible", f"{before.visible_rows:,}", f"{after.visible_rows:,}")
    grid.add_row("full scan", f"{before.scan_s:.2f} s", f"{after.scan_s:.2f} s")
    amplification = after.rewritten_bytes / max(1, after.added_bytes)
    grid.add_row("bytes added", format_bytes(before.added_bytes), format_bytes(after.added_bytes))
    grid.add_row("bytes rewritten", "0 B", format_bytes(after.rewritten_bytes))
    grid.add_row("write amplification", "", f"{amplification:.2f}")
    console.print(grid)


def show_proof(console: Console, proof: Proof) -> None:
    """Print the result of the verification."""
    mark, word = ("[green]✓[/]", "proven") if proof.holds else ("[red]✗[/]", "NOT proven")
    console.print(
        f"\n{mark} [bold]{word}[/] against the {format_count(proof.fed_rows, 'raw row')} "
        "of the feed: "
        f"{format_count(proof.found_rows, 'visible row')}, {proof.expected_rows:,} expected; "
        f"{proof.lost} lost, {proof.doubled} doubled, {proof.resurrected} resurrected, "
        f"{proof.different} different"
    )
