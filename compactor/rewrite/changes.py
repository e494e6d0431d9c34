"""A transform applied to the rows of inputs, while they are read and before they are merged."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import RewriteError, TransformError
from common.model.request import TransformKind
from common.rows.arrays import Int64s
from compactor.rewrite.change_counts import ChangeCounts
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.plugged import PluggedIn
from compactor.rewrite.questions import Answers
from compactor.rewrite.spark_values import from_spark
from compactor.rewrite.touching import with_deletions, with_values
from compactor.rewrite.transforming import TransformPlan


class Change(Protocol):
    """What happens to the rows of inputs; of each input all rows are shown, in order."""

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        """Return the next rows of an input, changed; the same table if they are not.

        Args:
            at: Number of the input.
            start: Number of the first of the rows.
            rows: In the plan's schema.

        Raises:
            RewriteError: They cannot be changed.
            PluginError: A plug-in misbehaved.
        """
        ...

    def end(self, at: int) -> None:
        """All rows of an input have been shown.

        Raises:
            RewriteError: More was known of it.
        """
        ...


def change_of(plan: RewritePlan, answers: Answers | None) -> Change:
    """Return the change that a plan asks for.

    Args:
        plan: What to do.
        answers: Spark's, if the plan's transform has expressions.
    """
    if plan.transform is None:
        return _Nothing()
    if plan.transform.asks_spark:
        assert answers is not None, "a transform with expressions needs their values"
        return _Answered(plan, plan.transform, answers)
    return PluggedIn(plan, plan.transform)


class _Nothing:
    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        return rows

    def end(self, at: int) -> None:
        pass


class _Answered:
    """Does what the values of expressions say."""

    def __init__(self, plan: RewritePlan, transform: TransformPlan, answers: Answers) -> None:
        self._plan = plan
        self._transform = transform
        self._answers = answers
        deletes = transform.transform.kind is TransformKind.DELETE_WHERE
        self._apply: Callable[[pa.Table, Int64s, pa.Table], pa.Table]
        self._apply = self._deleted if deletes else self._assigned
        self._counts = ChangeCounts()

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        if at not in self._transform.inputs:
            return rows
        asked = np.flatnonzero(self._transform.meant(rows, self._plan.rules))
        answers = self._answers.below(at, start + rows.num_rows)
        found = answers.column("row").to_numpy() - start if answers is not None else asked[:0]
        if not np.array_equal(asked, found):
            path = self._plan.inputs[at]
            message = f"file {path}: {len(found)} rows were answered, but {len(asked)} asked about"
            raise RewriteError(message)
        return rows if answers is None else self._apply(rows, found, answers)

    def end(self, at: int) -> None:
        self._answers.end(at)
        self._counts.tell(self._plan.progress_folder, at)
        self._counts = ChangeCounts()

    def _deleted(self, rows: pa.Table, places: Int64s, answers: pa.Table) -> pa.Table:
        chosen = pc.fill_null(answers.column("a0"), fill_value=False).combine_chunks()
        gone = np.zeros(rows.num_rows, np.bool_)
        gone[places] = chosen.to_numpy(zero_copy_only=False)
        self._counts.deleted += int(gone.sum())
        return with_deletions(rows, gone, self._plan.rules, self._transform.protected)

    def _assigned(self, rows: pa.Table, places: Int64s, answers: pa.Table) -> pa.Table:
        values = {}
        for number, one in enumerate(self._transform.transform.assignments):
            arrow = rows.schema.field(one.column).type
            try:
                chunks = [from_spark(c, arrow) for c in answers.column(f"a{number}").chunks]
            except pa.ArrowInvalid as error:
                said = self._transform.transform.said
                message = f"{said}: a value does not fit into column {one.column}: {error}"
                raise TransformError(message) from error
            values[one.column] = pa.chunked_array(chunks, arrow)
            self._require_values(one.column, values[one.column])
        self._counts.changed += len(places)
        return with_values(rows, places, values)

    def _require_values(self, name: str, values: pa.ChunkedArray) -> None:
        """Refuse nulls for a column that must not be null.

        Raises:
            TransformError: Names the transform and the column.
        """
        table = self._transform.table
        if values.null_count and not next(c for c in table.schema if c.name == name).nullable:
            said = self._transform.transform.said
            raise TransformError(f"{said}: a value is null, but column {name} must not be null")
