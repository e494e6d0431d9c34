"""A transform applied to decoded row groups, before they are merged.

Rows are changed as they are decoded, in whatever order and by whatever task. So a row group at the
end of a range is changed by both of its tasks, from the same stored rows; each task counts the rows
of its own range.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from common.expressions.native import NotNativeError
from common.model.request import KeyRange
from common.rows.conform import Flags
from compactor.rewrite.kernel.normalized_keys import RowGroup, UnsupportedRowsError
from compactor.rewrite.kernel.reader import RowGroupChange
from compactor.rewrite.kernel.winners import column_of
from compactor.rewrite.plan.rewrite_plan import RewritePlan, Rules, TransformPlan


def change_of(plan: RewritePlan) -> RowGroupChange | None:
    """Return the change of the table's files by the job's transform; None: there is none."""
    transform = plan.rules.transform
    return None if transform is None else NativeChange(plan.rules, transform)


class NativeChange:
    """Expressions that Polars evaluates. It holds no state, so threads may share it."""

    def __init__(self, rules: Rules, transform: TransformPlan) -> None:
        """Compile the expressions.

        Args:
            rules: Rules of the job.
            transform: Its transform, which the kernel supports.
        """
        evaluations = transform.evaluations(rules.schema)
        assert evaluations is not None, "the kernel supports the transform"
        self._evaluations = evaluations
        self._rules, self._transform = rules, transform
        needed = {rules.row_rules.tombstone_column}
        if transform.key_range != KeyRange() or transform.cancelled:
            needed |= set(rules.row_rules.key)
        self._matched_by = [field for field in rules.schema if field.name in needed]

    def apply(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> tuple[pl.DataFrame, pa.Table | None, Flags]:
        """Return rows after the change; see `RowGroupChange`."""
        matched = self._matched(frame, rest, groups)
        if not matched.any():
            return frame, rest, matched
        try:
            if self._transform.deletes:
                gone = self._deleted(frame, matched)
                return *self._with_deletions(frame, rest, gone), gone
            return self._with_values(frame, matched), rest, matched
        except NotNativeError as error:
            raise UnsupportedRowsError(str(error)) from error

    def _matched(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> Flags:
        """Return the rows that the transform applies to."""
        inputs = self._transform.inputs
        flags = np.concatenate([np.full(each.rows, each.input in inputs) for each in groups])
        if not flags.any() or not self._matched_by:
            return flags
        columns = {
            field.name: column_of(frame, rest, field.name).to_arrow().cast(field.type)
            for field in self._matched_by
        }
        return flags & self._transform.matched_rows(pa.table(columns), self._rules.row_rules)

    def _deleted(self, frame: pl.DataFrame, matched: Flags) -> Flags:
        (predicate,) = self._evaluations
        true: Flags = predicate(frame).fill_null(value=False).to_numpy()
        return matched & true

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

    def _with_values(self, frame: pl.DataFrame, matched: Flags) -> pl.DataFrame:
        """Return rows with new values in some of them."""
        places, whole = np.flatnonzero(matched), bool(matched.all())
        # Other rows are not evaluated, so that they cannot fail.
        rows = frame if whole else frame[places]
        source = np.arange(frame.height)
        source[places] = frame.height + np.arange(len(places))
        columns = []
        for one, evaluate in zip(
            self._transform.transform.assignments, self._evaluations, strict=True
        ):
            values = evaluate(rows).alias(one.column)
            if values.null_count() and not self._may_be_null(one.column):
                raise NotNativeError(f"a null value for column {one.column}")
            if not whole:
                values = pl.concat([frame.get_column(one.column), values]).gather(source)
            columns.append(values)
        return frame.with_columns(columns)

    def _may_be_null(self, name: str) -> bool:
        return next(c for c in self._transform.table.schema if c.name == name).nullable
