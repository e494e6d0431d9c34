"""A transform by a plug-in: called, and what it returns held against what it may return."""

import socket

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import ConfigError, PluginError, RequestError, TransformError
from common.plugins import load_transform
from common.rows.arrays import Flags
from common.rows.conform import conform
from common.rows.row_hash import row_hash
from common.spi.transform import DELETED, TransformContext
from compactor.rewrite.change_counts import ChangeCounts
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.touching import with_deletions, with_values
from compactor.rewrite.transforming import TransformPlan


class PluggedIn:
    """Shows a plug-in the rows that it is meant for, and believes it nothing."""

    def __init__(self, plan: RewritePlan, transform: TransformPlan) -> None:
        """Load the plug-in.

        Raises:
            TransformError: It is not installed on this host, or does not load.
        """
        self._plan = plan
        self._transform = transform
        try:
            self._plugin = load_transform(transform.transform.plugin)
        except (ConfigError, PluginError) as error:
            # Other compactors may have it; but then its rows would depend on who takes a job.
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
            TransformError: It raised, or returned something that its contract forbids.
        """
        if at not in self._transform.inputs:
            return rows
        places = np.flatnonzero(self._transform.meant(rows, self._plan.rules))
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
        if self._plan.rules.key and self._plan.rules.tombstone_column is None:
            raise self._misbehaved("deletes rows, but the table has no tombstone column")
        gone = np.zeros(rows.num_rows, np.bool_)
        gone[places] = deleted
        return with_deletions(changed, gone, self._plan.rules, self._transform.protected)

    def end(self, at: int) -> None:
        """Tell how many rows of it were changed."""
        self._counts.tell(self._plan.progress_folder, at)
        self._counts = ChangeCounts()

    def _applied(self, before: pa.Table) -> tuple[pa.Table, Flags]:
        try:
            after = self._plugin.apply(before, self._context)
        except (Exception, SystemExit) as error:
            raise self._misbehaved(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(after, pa.Table):
            raise self._misbehaved(f"returned {type(after).__name__}, wanted a pyarrow table")
        if after.num_rows != before.num_rows:
            rows = f"{after.num_rows} rows for {before.num_rows}"
            raise self._misbehaved(f"returned {rows}; it may neither add rows nor leave them out")
        deleted = self._deleted(after)
        if DELETED in after.column_names:
            after = after.drop_columns([DELETED])
        return self._checked(before, after), deleted

    def _deleted(self, after: pa.Table) -> Flags:
        if DELETED not in after.column_names:
            return np.zeros(after.num_rows, np.bool_)
        column = after.column(DELETED)
        if column.type != pa.bool_():
            raise self._misbehaved(f"returned {DELETED} as {column.type}, wanted bool")
        flags: Flags = pc.fill_null(column, fill_value=False).to_numpy()
        return flags

    def _checked(self, before: pa.Table, after: pa.Table) -> pa.Table:
        schema = self._plan.schema
        if sorted(after.column_names) != sorted(schema.names):
            names = ", ".join(after.column_names)
            raise self._misbehaved(
                f"returned the columns {names}, wanted {', '.join(schema.names)}"
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
        return TransformError(f"{self._transform.transform.said} {fact}")
