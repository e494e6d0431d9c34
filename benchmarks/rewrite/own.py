"""Névé's own side of the comparison: a data set as a table, and a job over all its files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.rewrite.datasets import TOMBSTONE, VERSION, Change, Dataset
from common.model.file import DataFile
from common.model.request import Request, TransformKind, TransformSpec
from common.model.table import Table, TableSettings
from common.parquet.file_inspection import inspect_file
from common.parquet.location import open_location
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.runtime import RandomIds
from common.wire import Assignment
from tests.support.assignments import an_assignment


@dataclass(frozen=True, slots=True)
class Own:
    """A data set as a table, its files inspected as an add inspects them."""

    table: Table
    inputs: tuple[DataFile, ...]
    change: Change | None = None

    @classmethod
    def of(cls, data: Dataset, group_rows: int, level: int) -> "Own":
        """Read the files of a data set.

        Args:
            data: The data set.
            group_rows: Rows of a row group; the setting is in bytes, so they are converted.
            level: Of zstd.
        """
        keyed = bool(data.key)
        table = Table(
            id="bench",
            name="bench",
            location=Path(data.folder).as_uri(),
            schema=columns_of(pq.read_schema(data.paths[0])),
            key=data.key,
            version_column=VERSION if keyed else None,
            tombstone_column=TOMBSTONE if keyed else None,
            settings=TableSettings(
                codec="zstd",
                codec_level=level,
                row_group_bytes=group_rows * _bytes_per_row(data.paths),
            ),
        )
        location, rules = open_location(table.location), RowRules.of(table)
        facts = (inspect_file(location, path, rules) for path in data.files)
        return cls(table, tuple(fact.data_file(added_at_s=0.0) for fact in facts), data.change)

    def unclean(self) -> "Own":
        """Return the same with files of which nothing is known: none is copied."""
        return replace(self, inputs=tuple(replace(file, clean=False) for file in self.inputs))

    def assignment(self) -> Assignment:
        """Return a job over all files, which may drop every tombstone."""
        versions = [file.version_max for file in self.inputs if file.version_max is not None]
        return an_assignment(
            self.inputs,
            attempt=RandomIds().next("att"),
            table=self.table,
            settled=max(versions, default=None),
            request=self._request(),
        )

    def _request(self) -> Request | None:
        """Return the user's request that changes rows; None: a system job."""
        if self.change is None:
            return None
        if self.change.delete_where:
            kind, text = TransformKind.DELETE_WHERE, self.change.delete_where
        else:
            kind, text = TransformKind.SET, f"{self.change.column} = {self.change.value}"
        transform = TransformSpec(kind=kind, text=text)
        return Request(id="request-1", table=self.table.id, transform=transform)

    def remove_outputs(self) -> int:
        """Delete what rewrites have left; return how many bytes that was."""
        folder = Path(open_location(self.table.location).root) / "_neve"
        files = [path for path in folder.rglob("*") if path.is_file()]
        size_bytes = sum(path.stat().st_size for path in files)
        for path in files:
            path.unlink()
        return size_bytes


def _bytes_per_row(paths: Sequence[str]) -> int:
    """Return decoded bytes per row, as the writer counts them: of the first row group."""
    with pq.ParquetFile(paths[0]) as file:
        rows = file.read_row_group(0)
    return max(1, rows.nbytes // max(1, rows.num_rows))
