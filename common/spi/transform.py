"""The transform door: rows in, changed rows out. Entry point group `neve.transforms`.

A transform runs where the rows are, in the tasks of a rewrite, on some rows at a time;
how they are cut into tables is nobody's promise. What it makes of a row may depend on
that row and the context alone, for nobody knows in which order files are merged.
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
    """What a transform may look at beside the rows."""

    table: Table
    request: str
    """Id of the user request."""
    options: Mapping[str, str] = field(default_factory=dict)
    now_s: float = 0.0
    """One moment for all rows of the attempt, in seconds since the epoch."""


class RowTransform(Protocol):
    """Changes rows of one table."""

    def apply(self, rows: pa.Table, context: TransformContext) -> pa.Table:
        """Return the same rows in the same order, changed.

        The columns are the same, of the same types, and may be followed by `DELETED`.
        No row is added or left out; key, version, tombstone, time and partition stay.
        Whatever breaks this fails the job.

        Args:
            rows: Rows in the request's range that are no tombstones; at least one.
            context: The rest.
        """
        ...
