"""A transform applied to decoded row groups, before they are merged.

Rows are changed as they are decoded, in whatever order and by whatever task. So a row group at the
end of a range is changed by both of its tasks, from the same stored rows; each task counts the rows
of its own range. The values of expressions are computed from the decoded columns, or were computed
by Spark before and are stored in the attempt's folder, by row number.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from common.errors import RewriteError
from common.rows.conform import Flags, Int64s
from compactor.rewrite.kernel.normalized_keys import RowGroup, as_column
from compactor.rewrite.kernel.reader import RowGroupChange
from compactor.rewrite.kernel.winners import column_of
from compactor.rewrite.plan.rewrite_plan import RewritePlan, Rules, TransformPlan
from compactor.rewrite.transform import computed_values, fitting_values, values_path

# ------------------------------------------------------------------------------- Values of rows


class _Values(Protocol):
    """Where the values of a transform's expressions come from."""

    def of(
        self, frame: pl.DataFrame, places: Int64s, groups: Sequence[RowGroup]
    ) -> list[pa.ChunkedArray | pl.Series]:
        """Return the values of each expression for some rows.

        Args:
            frame: Columns that Polars supports.
            places: Numbers of the rows in the frame.
            groups: The row groups that the frame consists of.

        Raises:
            UnsupportedRowsError: Spark has to evaluate the expressions.
            RewriteError: Values are missing, or do not fit.
        """
        ...


class _NativeValues:
    """Values that Polars computes."""

    def __init__(self, rules: Rules, transform: TransformPlan) -> None:
        evaluations = transform.evaluations(rules.schema)
        assert evaluations is not None, "the kernel evaluates the expressions"
        self._transform, self._evaluations = transform, evaluations

    def of(
        self, frame: pl.DataFrame, places: Int64s, groups: Sequence[RowGroup]
    ) -> list[pa.ChunkedArray | pl.Series]:
        # At least one column, because a frame without columns has no rows.
        rows = frame.select(sorted(self._transform.transform.columns) or frame.columns[:1])
        # Other rows are not evaluated, so that they cannot fail.
        rows = rows if len(places) == frame.height else rows[places]
        computed = computed_values(self._transform, self._evaluations, rows)
        return list[pa.ChunkedArray | pl.Series](computed)


class _StoredValues:
    """Values that Spark has computed: in files of the attempt's folder, mapped into memory."""

    def __init__(self, plan: RewritePlan, transform: TransformPlan) -> None:
        self._folder, self._schema, self._transform = plan.folder, plan.rules.schema, transform
        self._files: dict[int, _ValuesFile] = {}

    def of(
        self, frame: pl.DataFrame, places: Int64s, groups: Sequence[RowGroup]
    ) -> list[pa.ChunkedArray | pl.Series]:
        parts, numbers, begin = [], [np.zeros(0, np.int64)], 0
        for group in groups:
            if group.input in self._transform.inputs:
                part = self._file(group.input).rows(group.start, group.start + group.rows)
                parts.append(part)
                numbers.append(part.column("row").to_numpy() - group.start + begin)
            begin += group.rows
        stored = np.concatenate(numbers)
        if not np.array_equal(stored, places):
            inputs = sorted({group.input for group in groups})
            raise RewriteError(f"inputs {inputs}: {len(stored)} values for {len(places)} rows")
        fitting = fitting_values(self._transform, self._schema, pa.concat_tables(parts))
        return list[pa.ChunkedArray | pl.Series](fitting)

    def _file(self, at: int) -> "_ValuesFile":
        if at not in self._files:  # Two threads may open a file, which does no harm.
            self._files[at] = _ValuesFile(values_path(self._folder, at))
        return self._files[at]


class _ValuesFile:
    """The values of one input, by row number."""

    def __init__(self, path: Path) -> None:
        self._values = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        self._chunks = [chunk.to_numpy() for chunk in self._values.column("row").chunks]
        self._firsts = [int(chunk[0]) for chunk in self._chunks]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in self._chunks)]).tolist()

    def rows(self, start: int, stop: int) -> pa.Table:
        """Return the values of the rows from `start` to `stop`."""
        begin = self._before(start)
        return self._values.slice(begin, self._before(stop) - begin)

    def _before(self, row: int) -> int:
        """Return the number of values of rows before a row."""
        at = bisect_right(self._firsts, row) - 1
        if at < 0:
            return 0
        return int(self._starts[at] + np.searchsorted(self._chunks[at], row))


# --------------------------------------------------------------------------------------- The change


def change_of(plan: RewritePlan) -> RowGroupChange | None:
    """Return the change of the table's files by the job's transform; None: there is none."""
    transform = plan.rules.transform
    if transform is None:
        return None
    if transform.native:
        return ExpressionChange(plan.rules, transform, _NativeValues(plan.rules, transform))
    return ExpressionChange(plan.rules, transform, _StoredValues(plan, transform))


class ExpressionChange:
    """Deletions or new values by expressions; threads may share it."""

    def __init__(self, rules: Rules, transform: TransformPlan, values: _Values) -> None:
        """Prepare the change.

        Args:
            rules: Rules of the job.
            transform: Its transform.
            values: Values of the transform's expressions.
        """
        self._rules, self._transform, self._values = rules, transform, values
        needed = transform.matched_by(rules.row_rules)
        self._matched_by = [field for field in rules.schema if field.name in needed]

    def apply(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> tuple[pl.DataFrame, pa.Table | None, Flags]:
        """Return rows after the change; see `RowGroupChange`."""
        matched = self._matched(frame, rest, groups)
        if not matched.any():
            return frame, rest, matched
        places = np.flatnonzero(matched)
        values = self._values.of(frame, places, groups)
        if not self._transform.deletes:
            return *self._with_values(frame, rest, places, values), matched
        gone = np.zeros(len(matched), np.bool_)
        gone[places] = _series(values[0]).fill_null(value=False).to_numpy()
        return *self._with_deletions(frame, rest, gone), gone

    def _matched(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> Flags:
        """Return the rows that the transform applies to."""
        inputs = self._transform.inputs
        flags = np.concatenate([np.full(group.rows, group.input in inputs) for group in groups])
        if not flags.any() or not self._matched_by:
            return flags
        columns = {
            field.name: column_of(frame, rest, field.name).to_arrow().cast(field.type)
            for field in self._matched_by
        }
        return flags & self._transform.matched_rows(pa.table(columns), self._rules.row_rules)

    def _with_deletions(
        self, frame: pl.DataFrame, rest: pa.Table | None, gone: Flags
    ) -> tuple[pl.DataFrame, pa.Table | None]:
        """Return rows with some of them as tombstones; see `transform.with_deletions`."""
        if not gone.any():
            return frame, rest
        flags, tombstone = pl.Series(gone), self._rules.row_rules.tombstone_column
        assert tombstone is not None, "a keyed table with deletions has tombstones"
        emptied = [
            field.name
            for field in self._rules.schema
            if field.nullable and field.name not in self._transform.protected
        ]
        frame = frame.with_columns(
            *(
                pl.when(~flags).then(pl.col(name)).alias(name)
                for name in emptied
                if name in frame.columns
            ),
            pl.col(tombstone) | flags,
        )
        if rest is not None:
            own = pa.array(np.arange(rest.num_rows), mask=gone)
            columns = [
                column.take(own) if name in emptied else column
                for name, column in zip(rest.column_names, rest.columns, strict=True)
            ]
            rest = pa.table(columns, schema=rest.schema)
        return frame, rest

    def _with_values(
        self,
        frame: pl.DataFrame,
        rest: pa.Table | None,
        places: Int64s,
        values: Sequence[pa.ChunkedArray | pl.Series],
    ) -> tuple[pl.DataFrame, pa.Table | None]:
        """Return rows with new values in some of them."""
        rows = frame.height if frame.width or rest is None else rest.num_rows
        source = np.arange(rows)
        source[places] = rows + np.arange(len(places))
        columns = []
        for one, new in zip(self._transform.transform.assignments, values, strict=True):
            if one.column in frame.columns:
                old = frame.get_column(one.column)
                series = _series(new).cast(old.dtype).alias(one.column)
                whole = len(places) == rows
                columns.append(series if whole else pl.concat([old, series]).gather(source))
            else:
                assert rest is not None, one.column
                assert isinstance(new, pa.ChunkedArray), "Spark's values"
                at = rest.schema.get_field_index(one.column)
                joined = pa.chunked_array([*rest.column(at).chunks, *new.chunks], new.type)
                rest = rest.set_column(at, rest.schema.field(at), joined.take(pa.array(source)))
        return frame.with_columns(columns), rest


def _series(values: pa.ChunkedArray | pl.Series) -> pl.Series:
    return values if isinstance(values, pl.Series) else as_column(values)
