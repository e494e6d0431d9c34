"""Writes the outputs of a job that cuts at times: several open files, one for each part.

Rows of a table without a key come in any order of times. So every part has an open file, and each
row goes to the file of its part. All files together hold a bounded number of rows. Above the bound,
the file that holds most rows writes them as a row group.

  part 0          before the first time
  part n          from time n - 1 on, before time n
  the last part   rows without a time

If a part has more rows than one file may have, its rows are counted first from the time column,
and divided evenly.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.errors import InputError, RequestError, RewriteError
from common.model.outcome import DroppedRows
from common.rows.conform import conform
from common.rows.partitions import filled
from common.rows.row_facts import times_s
from compactor.rewrite.attempt_folder import ProgressMark
from compactor.rewrite.file_io import delete_file, folder_fill, read_tables, table_location
from compactor.rewrite.output_writer import OpenOutput, WrittenFile, purge_after
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.throttle import allowance_of

Places = npt.NDArray[np.int64]


def time_parts(rows: pa.Table, plan: RewritePlan) -> Places:
    """Return the part of each row.

    Args:
        rows: Rows with at least the time column.
        plan: Plan of the job.
    """
    assert plan.rules.row_rules.time_column is not None
    times = times_s(rows.column(plan.rules.row_rules.time_column))
    parts = np.searchsorted(np.asarray(plan.output.cuts_at_s), times, side="right")
    return np.where(np.isnan(times), len(plan.output.cuts_at_s) + 1, parts)


def rows_of_files(plan: RewritePlan) -> tuple[int, ...]:
    """Return the largest number of rows of a file, for each part.

    Raises:
        InputError: An input cannot be read.
        UnavailableError: The storage does not answer.
    """
    parts, most = len(plan.output.cuts_at_s) + 2, plan.output.file_rows_max
    if not most or plan.inputs.rows <= most:
        return (plan.inputs.rows,) * parts
    counts = sum((_count(plan, path) for path in plan.inputs.paths), np.zeros(parts, np.int64))
    return tuple(-(-int(count) // max(1, math.ceil(count / most))) for count in counts)


def _count(plan: RewritePlan, path: str) -> Places:
    """Return the number of rows of an input in each part."""
    rules, schema = plan.rules.row_rules, plan.rules.schema
    fill = folder_fill(rules, schema, path)
    column = pa.schema([schema.field(rules.time_column)])
    counts = np.zeros(len(plan.output.cuts_at_s) + 2, np.int64)
    mark = ProgressMark(plan.folder, "count")
    for read in read_tables(
        table_location(plan.location),
        path,
        plan.read_rows_max,
        [rules.time_column or ""],
        pay=allowance_of(plan.folder).pay,
    ):
        try:
            named = [name for name in filled(read, fill).column_names if name in column.names]
            times = conform(filled(read, fill).select(named), column, f"file {path}")
        except RequestError as error:
            raise InputError(str(error)) from error
        mark.add(times.nbytes, 0)
        rows = times if times.num_rows == read.num_rows else _without_times(column, read.num_rows)
        counts += np.bincount(time_parts(rows, plan), minlength=len(counts))
    return counts


def _without_times(column: pa.Schema, rows: int) -> pa.Table:
    """Return rows of a file that lacks the time column."""
    return pa.table([pa.nulls(rows, field.type) for field in column], schema=column)


class TimeCutWriter:
    """Accepts rows in any order and writes each to a file of its part.

    Invariant: a part has at most one open file, and the rows held by all open files take at
    most `_held_max_bytes` after each `write`.
    """

    def __init__(self, plan: RewritePlan, rows_max: Sequence[int]) -> None:
        """Create a writer without files.

        Args:
            plan: Plan of the job.
            rows_max: For each part: largest number of rows of one file, see `rows_of_files`.
        """
        self.path = plan.output.paths[0]
        self._plan = plan
        self._rows_max = rows_max
        self._held_max_bytes = max(plan.memory.group_bytes, plan.memory.held_bytes // 2)
        self._location = table_location(plan.location)
        self._open: dict[int, OpenOutput] = {}
        self._written: list[WrittenFile] = []

    def write(self, table: pa.Table) -> None:
        """Write rows in the plan's schema.

        Raises:
            RewriteError: There are more files than reserved outputs.
        """
        for part, rows in self._parts(table):
            while rows.num_rows:
                output = self._output(part)
                chosen = rows.slice(0, max(1, self._rows_max[part]) - output.rows)
                output.write(chosen)
                rows = rows.slice(chosen.num_rows)
        while sum(output.waiting_bytes for output in self._open.values()) > self._held_max_bytes:
            max(self._open.values(), key=lambda output: output.waiting_bytes).write_waiting()

    def finish(self, dropped: DroppedRows | None) -> tuple[WrittenFile, ...]:
        """Close all files and return the written ones; see `OutputWriter.finish`."""
        if not self._open:
            self._begin(0)
        *others, last = sorted(self._open)
        for part in others:
            self._close(part, dropped)
        self._close(last, dropped, last=True)
        return tuple(file for file in self._written if file.rows)

    def abandon(self) -> None:
        """Delete everything written so far."""
        for output in self._open.values():
            output.abandon()
        for file in self._written:
            delete_file(self._location, file.path)

    def _parts(self, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of each part, in arrival order."""
        if not table.num_rows:
            return
        parts = time_parts(table, self._plan)
        present = np.unique(parts)
        if len(present) == 1:
            yield int(present[0]), table
            return
        for part in present:
            yield int(part), table.take(pa.array(np.flatnonzero(parts == part)))

    def _output(self, part: int) -> OpenOutput:
        """Return the open file of a part; a new one if the last is full."""
        if part in self._open and self._open[part].rows >= self._rows_max[part]:
            self._close(part, None)
        if part not in self._open:
            self._begin(part)
        return self._open[part]

    def _begin(self, part: int) -> None:
        number = len(self._open) + len(self._written)
        if number >= len(self._plan.output.paths):
            raise RewriteError(
                f"rows need more than the {number} reserved outputs; "
                "the next plan takes the current state of the table into account"
            )
        self.path = self._plan.output.paths[number]
        self._open[part] = OpenOutput(self._plan, self._location, part, self.path)

    def _close(self, part: int, dropped: DroppedRows | None, *, last: bool = False) -> None:
        output = self._open[part]
        outputs = [*(file.path for file in self._written), output.path] if last else None
        output.close(purge_after(self._plan.output, dropped), outputs)
        self._written.append(WrittenFile(part, output.path, output.rows))
        del self._open[part]
