"""A transform applied to the rows of inputs, after they are read and before they are merged.

A transform is a plug-in or a list of expressions. The result of a plug-in is checked against its
contract. The values of expressions come from Spark; see `transform_expressions`.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import ConfigError, PluginError, RequestError, RewriteError, TransformError
from common.model.request import TransformKind
from common.plugins import load_transform
from common.rows.arrays import Flags, Int64s
from common.rows.conform import conform
from common.rows.row_hash import row_hash
from common.rows.rules import RowRules
from common.spi.transform import DELETED, TransformContext
from compactor.rewrite.attempt_folder import ChangeCounts
from compactor.rewrite.plan.rewrite_plan import RewritePlan, Rules
from compactor.rewrite.plan.transform_plan import TransformPlan
from compactor.rewrite.transform_expressions import ExpressionValues, from_spark

# ------------------------------------------------------------------------------------- Changed rows


def with_deletions(rows: pa.Table, gone: Flags, rules: RowRules, kept: frozenset[str]) -> pa.Table:
    """Return the rows with some of them deleted.

    Append-only: they are removed. Keyed: they become tombstones, with nulls in all columns
    except those that are kept or must not be null. No value is invented for these.

    Args:
        rows: Rows in the plan's schema.
        gone: Which of them.
        rules: Rules of the table; with a key it has a tombstone column.
        kept: Columns that keep their values.
    """
    if not gone.any():
        return rows
    if not rules.key:
        return rows.filter(pa.array(~gone))
    own = pa.array(np.arange(rows.num_rows), mask=gone)
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name == rules.tombstone_column:
            columns.append(pc.if_else(pa.array(gone), pa.scalar(value=True), column))
        elif field.name in kept or not field.nullable:
            columns.append(column)
        else:
            columns.append(column.take(own))
    return pa.table(columns, schema=rows.schema)


def with_values(rows: pa.Table, places: Int64s, values: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    """Return the rows with new values in some of them.

    Args:
        rows: Rows in the plan's schema.
        places: Row numbers, each once.
        values: Values by column, one per row number, of the column's type.
    """
    if len(places) == 0:
        return rows
    source = np.arange(rows.num_rows)
    source[places] = rows.num_rows + np.arange(len(places))
    chosen = pa.array(source)
    columns = [
        pa.chunked_array([*column.chunks, *values[name].chunks], column.type).take(chosen)
        if name in values
        else column
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return pa.table(columns, schema=rows.schema)


# ----------------------------------------------------------------------------------------- Plug-ins


class PluginTransform:
    """Passes affected rows to a plug-in, and validates everything that it returns."""

    def __init__(self, rules: Rules, transform: TransformPlan, folder: str) -> None:
        """Load the plug-in.

        Args:
            rules: Rules of the job.
            transform: Names the plug-in.
            folder: Folder of the attempt.

        Raises:
            TransformError: It is not installed on this host, or does not load.
        """
        self._rules, self._transform, self._folder = rules, transform, folder
        try:
            self._plugin = load_transform(transform.transform.plugin)
        except (ConfigError, PluginError) as error:
            # Otherwise the result would depend on which compactor takes the job.
            where = f"cannot be used on compactor host {socket.gethostname()}"
            raise self._misbehaved(f"{where}: {error}") from error
        self._context = TransformContext(
            table=transform.table,
            request=transform.request,
            options=transform.transform.options,
            now_s=transform.now_s,
        )
        self._counts = ChangeCounts()

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        """Return the next rows of an input, changed.

        Raises:
            TransformError: It raised, or returned a value that its contract forbids.
        """
        if at not in self._transform.inputs:
            return rows
        places = np.flatnonzero(self._transform.matched_rows(rows, self._rules.row_rules))
        if len(places) == 0:
            return rows
        before = rows.take(pa.array(places))
        after, deleted = self._applied(before)
        values = {name: after.column(name) for name in after.column_names}
        changed = with_values(rows, places, values)
        count = int(deleted.sum())
        self._counts.changed += len(places) - count
        self._counts.deleted += count
        if not deleted.any():
            return changed
        if self._rules.row_rules.key and self._rules.row_rules.tombstone_column is None:
            raise self._misbehaved("deletes rows, but the table has no tombstone column")
        gone = np.zeros(rows.num_rows, np.bool_)
        gone[places] = deleted
        return with_deletions(changed, gone, self._rules.row_rules, self._transform.protected)

    def end(self, at: int) -> None:
        """Report how many rows were changed."""
        self._counts.write(self._folder, at)
        self._counts = ChangeCounts()

    def _applied(self, before: pa.Table) -> tuple[pa.Table, Flags]:
        try:
            after = self._plugin.apply(before, self._context)
        except (Exception, SystemExit) as error:
            raise self._misbehaved(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(after, pa.Table):
            raise self._misbehaved(f"returned {type(after).__name__}, expected a pyarrow table")
        if after.num_rows != before.num_rows:
            rows = f"{after.num_rows} rows for {before.num_rows}"
            raise self._misbehaved(f"returned {rows}; it may neither add nor remove rows")
        deleted = self._deleted(after)
        if DELETED in after.column_names:
            after = after.drop_columns([DELETED])
        return self._checked(before, after), deleted

    def _deleted(self, after: pa.Table) -> Flags:
        if DELETED not in after.column_names:
            return np.zeros(after.num_rows, np.bool_)
        column = after.column(DELETED)
        if column.type != pa.bool_():
            raise self._misbehaved(f"returned {DELETED} as {column.type}, expected bool")
        flags: Flags = pc.fill_null(column, fill_value=False).to_numpy()
        return flags

    def _checked(self, before: pa.Table, after: pa.Table) -> pa.Table:
        schema = self._rules.schema
        if sorted(after.column_names) != sorted(schema.names):
            names = ", ".join(after.column_names)
            raise self._misbehaved(
                f"returned the columns {names}, expected {', '.join(schema.names)}"
            )
        try:
            after = conform(after, schema, "what it returned")
        except RequestError as error:
            raise self._misbehaved(str(error)) from error
        for field, column in zip(schema, after.columns, strict=True):
            if not field.nullable and column.null_count:
                raise self._misbehaved(f"returned nulls in {field.name}, which must not be null")
        for name in sorted(self._transform.protected.intersection(schema.names)):
            if (row_hash(before.select([name])) != row_hash(after.select([name]))).any():
                raise self._misbehaved(f"changed the column {name}, which no transform may change")
        return after

    def _misbehaved(self, fact: str) -> TransformError:
        return TransformError(f"{self._transform.transform.description} {fact}")


# ------------------------------------------------------------------------------ The change of a job


class RowChange(Protocol):
    """The change of the inputs' rows; all rows of each input are passed, in order."""

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        """Return the next rows of an input, changed; the same table if they are not.

        Args:
            at: Number of the input.
            start: Number of the first of the rows.
            rows: Rows in the plan's schema.

        Raises:
            RewriteError: They cannot be changed.
            PluginError: A plug-in misbehaved.
        """
        ...

    def end(self, at: int) -> None:
        """Mark the end of an input.

        Raises:
            RewriteError: Values are left over.
        """
        ...


def row_change_of(plan: RewritePlan, answers: ExpressionValues | None) -> RowChange:
    """Return the change of a plan.

    Args:
        plan: Plan of the job.
        answers: Spark's values, if the plan's transform has expressions.
    """
    if plan.rules.transform is None:
        return _NoChange()
    if plan.rules.transform.asks_spark:
        assert answers is not None, "a transform with expressions needs their values"
        return _ExpressionChange(plan, plan.rules.transform, answers)
    return PluginTransform(plan.rules, plan.rules.transform, plan.folder)


class _NoChange:
    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        return rows

    def end(self, at: int) -> None:
        pass


class _ExpressionChange:
    """Applies the values of expressions."""

    def __init__(
        self, plan: RewritePlan, transform: TransformPlan, answers: ExpressionValues
    ) -> None:
        self._rules, self._folder, self._paths = plan.rules, plan.folder, plan.inputs.paths
        self._transform = transform
        self._answers = answers
        deletes = transform.transform.kind is TransformKind.DELETE_WHERE
        self._apply: Callable[[pa.Table, Int64s, pa.Table], pa.Table]
        self._apply = self._deleted if deletes else self._assigned
        self._counts = ChangeCounts()

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        if at not in self._transform.inputs:
            return rows
        asked = np.flatnonzero(self._transform.matched_rows(rows, self._rules.row_rules))
        answers = self._answers.below(at, start + rows.num_rows)
        found = answers.column("row").to_numpy() - start if answers is not None else asked[:0]
        if not np.array_equal(asked, found):
            path = self._paths[at]
            message = f"file {path}: {len(found)} values for {len(asked)} rows"
            raise RewriteError(message)
        return rows if answers is None else self._apply(rows, found, answers)

    def end(self, at: int) -> None:
        self._answers.end(at)
        self._counts.write(self._folder, at)
        self._counts = ChangeCounts()

    def _deleted(self, rows: pa.Table, places: Int64s, answers: pa.Table) -> pa.Table:
        chosen = pc.fill_null(answers.column("a0"), fill_value=False).combine_chunks()
        gone = np.zeros(rows.num_rows, np.bool_)
        gone[places] = chosen.to_numpy(zero_copy_only=False)
        self._counts.deleted += int(gone.sum())
        return with_deletions(rows, gone, self._rules.row_rules, self._transform.protected)

    def _assigned(self, rows: pa.Table, places: Int64s, answers: pa.Table) -> pa.Table:
        values = {}
        for number, one in enumerate(self._transform.transform.assignments):
            arrow = rows.schema.field(one.column).type
            try:
                chunks = [from_spark(c, arrow) for c in answers.column(f"a{number}").chunks]
            except pa.ArrowInvalid as error:
                subject = self._transform.transform.description
                message = f"{subject}: a value does not fit into column {one.column}: {error}"
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
            subject = self._transform.transform.description
            raise TransformError(f"{subject}: a value is null, but column {name} must not be null")
