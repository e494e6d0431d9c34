"""What rows take when they are decoded, where footers do not tell: texts in dictionaries.

A text of 2 KiB that comes again a million times is 2 KiB in its file. A footer counts it
like that; a task that gathers rows does not. So some rows of the largest files are looked at.
"""

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.parquet.location import Location
from compactor.rewrite.files import opened_input
from compactor.rewrite.footers import Footer
from compactor.rewrite.kernel.bounds import is_text
from compactor.rewrite.kernel.lanes import in_order

ROWS_MIN = 1 << 14
"""Files of fewer rows are not looked at: what they hold is small however long it is."""
FILES_MAX, SAMPLE_ROWS = 3, 1024
SHORT_BYTES = 64
"""Where a row has more for a text than that, most texts are stored once each."""


def decoded_bytes(location: Location, footers: Mapping[str, Footer]) -> int:
    """Return what all rows of some files take, decoded.

    Args:
        location: Of the table.
        footers: By path.

    Raises:
        InputError: A file cannot be read.
        UnavailableError: The storage does not answer.
    """
    told = sum(footer.decoded_bytes for footer in footers.values())
    large = [path for path, footer in footers.items() if footer.num_rows >= ROWS_MIN]
    large.sort(key=lambda path: (-footers[path].num_rows, path))
    more = in_order(
        "sample", [partial(_more_per_row, location, path) for path in large[:FILES_MAX]]
    )
    rows = sum(footer.num_rows for footer in footers.values())
    return told + int(max(more, default=0.0) * rows)


def _more_per_row(location: Location, path: str) -> float:
    """Return how many bytes a row's texts have more than its file has for them."""
    with opened_input(location, path) as parquet:
        metadata, schema = parquet.metadata, parquet.schema_arrow
        names = [field.name for field in schema if _is_text(field.type)]
        known = dict.fromkeys(names, 0)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for at in range(group.num_columns):
                if (column := group.column(at)).path_in_schema in known:
                    known[column.path_in_schema] += column.total_uncompressed_size
        rows = max(1, metadata.num_rows)
        repeated = [name for name in names if known[name] < SHORT_BYTES * rows]
        if not repeated:
            return 0.0
        found = _sampled(parquet, repeated)
    return float(sum(max(0.0, found[name] - known[name] / rows) for name in repeated))


def _sampled(parquet: pq.ParquetFile, names: list[str]) -> dict[str, float]:
    """Return how long texts are in some rows: of the first and of the middle row group."""
    groups = sorted({0, parquet.num_row_groups // 2})
    found = dict.fromkeys(names, 0.0)
    for number in groups:
        batches = parquet.iter_batches(SAMPLE_ROWS, row_groups=[number], columns=names)
        if (batch := next(batches, None)) is not None and batch.num_rows:
            for name in names:
                length = pc.sum(pc.binary_length(_plain(batch.column(name)))).as_py() or 0
                found[name] = max(found[name], length / batch.num_rows)
    return found


def _plain(values: pa.Array) -> pa.Array:
    if is_type.is_dictionary(values.type):
        return values.dictionary_decode()
    return values


def _is_text(arrow: pa.DataType) -> bool:
    return is_text(arrow.value_type if is_type.is_dictionary(arrow) else arrow)
