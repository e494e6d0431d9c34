"""Files of tables, as adds, appends and scans see them: the one way from there to storage.

Every method blocks, and is called in a thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from common.errors import CompactionError, UnavailableError
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.file_inspection import (
    FileFacts,
    ProbedFiles,
    inspect_file,
    inspect_new_files,
)
from common.parquet.location import (
    Location,
    existing_files,
    fault,
    open_location,
)
from common.parquet.service_files import LocationOwner, read_owner, written_generation
from common.parquet.write import TABLE_FOOTER, write_table
from common.readers.pool import ReaderDeathError
from common.rows.rules import RowRules
from neve.gateway.scan_tablet import TabletReader
from neve.gateway.scan_weights import ScanWeights


class RowReader(Protocol):
    """Reads tablets of one table at one moment, for one choice of columns."""

    def read(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[pa.Table]:
        """Yield the visible rows of a tablet with keys in `(start, end]`, by key.

        Raises:
            RequestError: A file is missing or damaged.
            UnavailableError: The storage does not answer.
        """
        ...

    def counts(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[int]:
        """Yield numbers of visible rows with keys in `(start, end]`; their sum is the answer.

        Raises:
            RequestError: A file is missing or damaged.
            UnavailableError: The storage does not answer.
        """
        ...


class TableFiles(Protocol):
    """What adds, appends and scans ask of a table's location.

    Every method may raise `UnavailableError`: the storage does not answer. Paths are relative
    to the location.
    """

    def owner(self, table: Table) -> LocationOwner | None:
        """Return which store and table a location is signed for, or None if it is not signed."""
        ...

    def generation(self, table: Table) -> int:
        """Return the generation that a location was left with; 0: none was ever written."""
        ...

    def sizes(self, table: Table, paths: Sequence[str]) -> dict[str, int]:
        """Return the sizes of those files that are there."""
        ...

    def inspect(self, table: Table, paths: Sequence[str]) -> list[FileFacts | CompactionError]:
        """Return what files that are to be added hold, in their order.

        In the place of a file that is missing, damaged or does not fit the table there is the
        error.
        """
        ...

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        """Write rows of one tablet to a file that is seen under its name when it is whole.

        Args:
            table: Whose rules and settings count.
            path: A name that nobody else uses.
            rows: In the table's columns.
        """
        ...

    def reader(self, table: Table, now_s: float, columns: Sequence[str]) -> RowReader:
        """Return a reader of a table's rows as they are visible at one moment."""
        ...


class StoredFiles:
    """Files in storage; satisfies `TableFiles`."""

    def __init__(self) -> None:
        """Have looked at no file."""
        self._looks, self._weights = ProbedFiles(), ScanWeights()

    def owner(self, table: Table) -> LocationOwner | None:
        """Return which store and table a location is signed for, or None if it is not signed."""
        return read_owner(open_location(table.location))

    def generation(self, table: Table) -> int:
        """Return the generation that a location was left with; 0: none was ever written."""
        return written_generation(open_location(table.location))

    def sizes(self, table: Table, paths: Sequence[str]) -> dict[str, int]:
        """Return the sizes of those files that are there."""
        return existing_files(open_location(table.location), paths)

    def inspect(self, table: Table, paths: Sequence[str]) -> list[FileFacts | CompactionError]:
        """Return what files that are to be added hold, or why they cannot be, in their order."""
        location, rules = open_location(table.location), RowRules.of(table)
        try:
            return inspect_new_files(location, paths, rules)
        except ReaderDeathError:
            # One of them did it: each for itself tells which.
            return [_inspected(location, path, rules) for path in paths]

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        """Write rows; on this machine the file gets its name when it is whole."""
        location, rules = open_location(table.location), RowRules.of(table)
        footer = {TABLE_FOOTER: table.id}
        if not location.is_local:
            return write_table(location, path, rows, rules, table.settings, footer=footer)
        scratch = f"{path}.part"
        facts = write_table(location, scratch, rows, rules, table.settings, footer=footer)
        try:
            location.filesystem.move(location.full(scratch), location.full(path))
        except OSError as error:
            raise UnavailableError(fault(location, path, error)) from error
        return replace(facts, path=path)

    def reader(self, table: Table, now_s: float, columns: Sequence[str]) -> RowReader:
        """Return a reader of a table's rows as they are visible at one moment."""
        return TabletReader(table, now_s, columns, self._looks, self._weights)


def _inspected(location: Location, path: str, rules: RowRules) -> FileFacts | CompactionError:
    try:
        return inspect_file(location, path, rules, is_new=True)
    except CompactionError as error:
        return error
