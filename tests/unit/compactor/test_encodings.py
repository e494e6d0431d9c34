"""How columns of outputs are encoded: by what a sample of their values tells."""

import io
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.outputs import RowGroupWriter
from compactor.rewrite.plan.inputs import OutputSettings

ROWS = 40_000


def encodings(column: pa.Array) -> set[str]:
    """Return the encodings of a column that is written, after it was read back unchanged."""
    rows = pa.table({"c": column})
    sink = io.BytesIO()
    groups = RowGroupWriter(sink, rows.schema, OutputSettings("zstd", 1, 1 << 30))
    groups.write(rows)
    groups.close({})
    with pq.ParquetFile(io.BytesIO(sink.getvalue())) as file:
        assert file.read().equals(rows)
        return set(file.metadata.row_group(0).column(0).encodings)


def test_whole_numbers_and_times_that_never_come_again_are_packed() -> None:
    numbers = pa.array([None, *((7919 * at) % 1_000_003 for at in range(1, ROWS))], pa.int64())
    for kind in (pa.int32(), pa.uint64(), pa.timestamp("us", "UTC"), pa.time64("ns")):
        assert "DELTA_BINARY_PACKED" in encodings(numbers.cast(kind))


def test_decimals_that_never_come_again_have_no_dictionary() -> None:
    prices = pa.array([Decimal(at).scaleb(-2) for at in range(ROWS)], pa.decimal128(15, 2))
    assert "RLE_DICTIONARY" not in encodings(prices)


def test_values_that_come_again_have_a_dictionary() -> None:
    few = pa.array([at % 50 for at in range(ROWS)], pa.int64())
    # Most are different in a sample of 4,000 rows, and yet each is there eight times.
    chance = random.Random(1)
    some = pa.array([chance.randrange(5_000) / 4 for _ in range(ROWS)], pa.float64())
    for column in (few, few.cast(pa.string()), some):
        assert "RLE_DICTIONARY" in encodings(column)
