"""Interfaces for plug-ins in a rewrite: transforms of rows, and configurers of outputs.

The transform interface: rows in, changed rows out. Entry point group `neve.transforms`.

A transform runs before a rewrite, on batches of rows: an attempt shows it each row of each input
once, those of an input in order. The division into batches is not defined, nor is the order of
inputs, which several processes may read. So the result for a row may depend only on that row and
the context.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from common.model.file import DataFile
from common.model.job import Kind
from common.model.request import OutputSpec
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


# ------------------------------------------------------------------------------------------- Output
# The configurer interface: how a job's outputs are written. Group `neve.configurers`.
#
# A configurer is pure: same parameters, same result; no clock, no I/O, no randomness.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParameters:
    """The inputs of a configurer, for one job."""

    table: Table
    kind: Kind
    inputs: tuple[DataFile, ...]
    hints: Mapping[str, str] = field(default_factory=dict)
    """Hints of the user request; empty for SYSTEM."""

    @property
    def input_bytes(self) -> int:
        """Total bytes of the inputs."""
        return sum(file.size_bytes for file in self.inputs)


class OutputConfigurer(Protocol):
    """Chooses codec and row groups for a job; its options are a setting of the table."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse missing, unknown or wrong options.

        Raises:
            RequestError: Names the option and what was expected.
        """
        ...

    def configure(self, parameters: OutputParameters) -> OutputSpec:
        """Return settings that differ from the table's; None means the table's setting."""
        ...
