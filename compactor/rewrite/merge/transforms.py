"""A transform applied to decoded row groups, before they are merged.

Rows are changed as they are decoded, in whatever order and by whatever task. So a row group at the
end of a range is changed by both of its tasks, from the same stored rows; each task counts the rows
of its own range. The values of expressions are computed from the decoded columns. Those that only
Spark computes, and those of a plug-in, are in the attempt's folder, by row number.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from common.rows.conform import Flags
from compactor.rewrite.attempt_folder import NewValues, StoredValues, joined_values
from compactor.rewrite.kernel.normalized_keys import RowGroup, as_column
from compactor.rewrite.kernel.reader import RowGroupChange
from compactor.rewrite.kernel.winners import column_of
from compactor.rewrite.plan.rewrite_plan import RewritePlan, Rules, TransformPlan
from compactor.rewrite.transform import chosen_rows, computed_values

# ------------------------------------------------------------------------------- Values of rows


class _Values(Protocol):
    """Where the values of a transform come from."""

    def of(
        self, frame: pl.DataFrame, meant: Flags, groups: Sequence[RowGroup]
    ) -> tuple[dict[str, NewValues], Flags | None]:
        """Return the new values by column, and which rows are deleted.

        Args:
            frame: Columns that Polars supports.
            meant: Which rows of the frame the transform applies to; at least one.
            groups: The row groups that the frame consists of.

        Raises:
            NotNativeError: Spark has to evaluate the expressions.
            RewriteError: Values are missing.
        """
        ...


class _NativeValues:
    """Values that Polars computes."""

    def __init__(self, rules: Rules, transform: TransformPlan) -> None:
        evaluations = transform.evaluations(rules.schema)
        assert evaluations is not None, "the kernel evaluates the expressions"
        self._transform, self._evaluations = transform, evaluations

    def of(
        self, frame: pl.DataFrame, meant: Flags, groups: Sequence[RowGroup]
    ) -> tuple[dict[str, NewValues], Flags | None]:
        places = np.flatnonzero(meant)
        # At least one column, because a frame without columns has no rows.
        rows = frame.select(sorted(self._transform.transform.columns) or frame.columns[:1])
        # Other rows are not evaluated, so that they cannot fail.
        rows = rows if len(places) == frame.height else rows[places]
        computed = computed_values(self._transform, self._evaluations, rows)
        if self._transform.deletes:
            gone = np.zeros(len(meant), np.bool_)
            gone[places] = computed[0].fill_null(value=False).to_numpy()
            return {}, gone
        names = [one.column for one in self._transform.transform.assignments]
        index = np.arange(len(places))
        values = zip(names, computed, strict=True)
        return {name: NewValues(places, index, series) for name, series in values}, None


class _StoredValues:
    """Values in files of the attempt's folder."""

    def __init__(self, plan: RewritePlan, transform: TransformPlan) -> None:
        self._folder, self._transform = plan.folder, transform
        self._inputs: dict[int, StoredValues] = {}

    def of(
        self, frame: pl.DataFrame, meant: Flags, groups: Sequence[RowGroup]
    ) -> tuple[dict[str, NewValues], Flags | None]:
        columns, begin = dict[str, list[NewValues]](), 0
        gone = np.zeros(len(meant), np.bool_) if self._transform.may_delete else None
        for group in groups:
            own, before = meant[begin : begin + group.rows], begin
            begin += group.rows
            if group.input not in self._transform.inputs:
                continue
            stored = self._of_input(group.input)
            numbers = stored.numbers(group.start, group.rows)
            rows = chosen_rows(numbers, own, f"number {group.input}")
            if not len(rows):
                continue
            numbers = numbers[rows]
            if gone is not None:
                gone[rows + before] = stored.deleted(numbers)
            if not self._transform.deletes:
                for name, values in stored.columns(numbers, rows + before).items():
                    columns.setdefault(name, []).append(values)
        return {name: joined_values(parts) for name, parts in columns.items()}, gone

    def _of_input(self, at: int) -> StoredValues:
        if at not in self._inputs:  # Two threads may open an input, which does no harm.
            self._inputs[at] = StoredValues(self._folder, at)
        return self._inputs[at]


# --------------------------------------------------------------------------------------- The change


def change_of(plan: RewritePlan) -> RowGroupChange | None:
    """Return the change of the table's files by the job's transform; None: there is none."""
    transform = plan.rules.transform
    if transform is None:
        return None
    if transform.native:
        return TransformChange(plan.rules, transform, _NativeValues(plan.rules, transform))
    return TransformChange(plan.rules, transform, _StoredValues(plan, transform))


class TransformChange:
    """Deletions or new values by a transform; threads may share it."""

    def __init__(self, rules: Rules, transform: TransformPlan, values: _Values) -> None:
        """Prepare the change.

        Args:
            rules: Rules of the job.
            transform: Its transform.
            values: Values of the transform.
        """
        self._rules, self._transform, self._values = rules, transform, values
        needed = transform.matched_by(rules.row_rules)
        self._matched_by = [field for field in rules.schema if field.name in needed]

    def apply(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> tuple[pl.DataFrame, pa.Table | None, Flags | None]:
        """Return rows after the change; see `RowGroupChange`."""
        affected = meant = self._matched(frame, rest, groups)
        if not meant.any():
            return frame, rest, meant
        values, gone = self._values.of(frame, meant, groups)
        if values:
            frame, rest = _with_values(frame, rest, values)
        if gone is not None:
            frame, rest = self._with_deletions(frame, rest, gone)
            affected = gone
        # The rows of a plug-in were counted when its values were stored.
        return frame, rest, affected if self._transform.asks_spark else None

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
    frame: pl.DataFrame, rest: pa.Table | None, values: Mapping[str, NewValues]
) -> tuple[pl.DataFrame, pa.Table | None]:
    """Return rows with new values in some of them."""
    rows = frame.height if frame.width or rest is None else rest.num_rows
    columns = []
    for name, new in values.items():
        source = np.arange(rows)
        source[new.places] = rows + new.index
        if name in frame.columns:
            old = frame.get_column(name)
            series = _series(new.values).cast(old.dtype).alias(name)
            if isinstance(new.values, pl.Series) and len(new.places) == rows:
                columns.append(series)
            else:
                columns.append(pl.concat([old, series]).gather(source))
        else:
            assert rest is not None, name
            assert isinstance(new.values, pa.ChunkedArray), "stored values"
            at = rest.schema.get_field_index(name)
            joined = pa.chunked_array([*rest.column(at).chunks, *new.values.chunks])
            rest = rest.set_column(at, rest.schema.field(at), joined.take(pa.array(source)))
    return frame.with_columns(columns), rest


def _series(values: pa.ChunkedArray | pl.Series) -> pl.Series:
    return values if isinstance(values, pl.Series) else as_column(values)
