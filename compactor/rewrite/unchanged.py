"""Inputs are what they were when they were added: size, rows and columns.

Files must not change. One that was damaged or replaced may still be a Parquet file, and
its rows would take the place of those that the table had.
"""

from collections.abc import Mapping

import pyarrow as pa

from common.errors import InputError, RequestError
from common.parquet.location import Location, size_of
from common.wire import Assignment
from compactor.rewrite.footers import Footer

CHANGED = "it was damaged or replaced; files must not change"


def require_unchanged(
    location: Location, assignment: Assignment, footers: Mapping[str, Footer]
) -> None:
    """Refuse inputs that are not what the store knows of them.

    Args:
        location: Of the table. Object stores are not asked for sizes: that would be a request
            per file.
        assignment: The job.
        footers: Of its inputs, by path.

    Raises:
        InputError: Names the file, and how it differs.
        UnavailableError: The storage does not answer.
    """
    columns = {column.name for column in assignment.table.schema}
    seen: pa.Schema | None = None
    for file in assignment.inputs:
        footer = footers[file.path]
        if footer.num_rows != file.rows:
            raise InputError(
                f"file {file.path} has {footer.num_rows} rows, but {file.rows} when it was"
                f" added: {CHANGED}"
            )
        if location.is_local and (found := _size_of(location, file.path)) != file.size_bytes:
            raise InputError(
                f"file {file.path} has {found} bytes, but {file.size_bytes} when it was added:"
                f" {CHANGED}"
            )
        # Of thousands of files, nearly all have the schema of the one before. One that was added
        # under a newer schema than the job's may have columns that the job's does not.
        newer = file.schema_id > assignment.table.schema_id
        if not newer and (seen is None or not seen.equals(footer.schema)):
            seen = footer.schema
            if strange := [name for name in seen.names if name not in columns]:
                raise InputError(
                    f"file {file.path} has a column {strange[0]!r}, which its table does not"
                    f" have: {CHANGED}"
                )


def _size_of(location: Location, path: str) -> int:
    try:
        return size_of(location, path)
    except RequestError as error:
        raise InputError(str(error)) from error
