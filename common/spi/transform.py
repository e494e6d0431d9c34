"""The transform interface: rows in, changed rows out. Entry point group `neve.transforms`.

A transform runs in the tasks of a rewrite, on batches of rows. The division into batches is not
defined. The result for a row may depend only on that row and the context, because the order in
which files are merged is not defined either.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from common.model.table import Table

DELETED = "_neve_deleted"
"""A bool column that a transform may add: rows where it is true are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformContext:
    """The inputs of a transform other than the rows."""

    table: Table
    request: str
    """Id of the user request."""
    options: Mapping[str, str] = field(default_factory=dict)
    now_s: float = 0.0
    """The same moment for all rows of the attempt, in seconds since the epoch."""


class RowTransform(Protocol):
    """Changes rows of one table."""

    def apply(self, rows: pa.Table, context: TransformContext) -> pa.Table:
        """Return the same rows in the same order, with changed values.

        The columns and their types stay the same, and `DELETED` may be appended.
        No row is added or removed; key, version, tombstone, time and partition stay.
        A violation fails the job.

        Args:
            rows: Rows in the request's range, without tombstones; at least one.
            context: The other inputs.
        """
        ...
