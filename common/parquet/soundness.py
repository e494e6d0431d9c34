"""Does a footer agree with itself? Some that do not end the process that looks further."""

import pyarrow.parquet as pq


def footer_fault(metadata: pq.FileMetaData) -> str | None:
    """Return what is wrong with a footer, or None.

    Arrow ends the whole process when it is asked for statistics of a column chunk that is
    of another type than its column.
    """
    physical = [metadata.schema.column(n).physical_type for n in range(metadata.num_columns)]
    rows = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        if group.num_columns != len(physical) or group.num_rows < 0 or group.total_byte_size < 0:
            return f"row group {number} has sizes that cannot be"
        for at, wanted in enumerate(physical):
            if (found := group.column(at).physical_type) != wanted:
                name = metadata.schema.column(at).path
                return f"column {name} is {wanted}, but {found} in row group {number}"
    if rows != metadata.num_rows:
        return f"row groups have {rows} rows, the file {metadata.num_rows}"
    return None
