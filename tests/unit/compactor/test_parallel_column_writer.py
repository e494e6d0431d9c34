"""Row groups whose columns were encoded by several threads: the file that Arrow would write."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite import outputs, parallel_column_writer
from compactor.rewrite.outputs import RowGroupWriter
from compactor.rewrite.parallel_column_writer import ParallelColumnWriter
from compactor.rewrite.parquet_bytes.sources import BufferSource, read_footer_of
from compactor.rewrite.plan.inputs import OutputSettings

ROWS = 5_000
GROUP_BYTES = 150_000
NESTED = pa.list_(pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.string()))]))


def rows() -> pa.Table:
    """Return rows by `k`, with columns of all shapes, null now and then."""
    numbers = range(ROWS)
    return pa.table(
        {
            "k": pa.array(numbers, pa.int64()),
            "few": pa.array([f"text {at % 7}" for at in numbers]),
            "map": pa.array([[("x", at)] for at in numbers], pa.map_(pa.string(), pa.int64())),
            "text": pa.array([None if at % 11 == 0 else f"{at * 7919:x}" for at in numbers]),
            "nested": pa.array([[{"a": at, "b": ["c"] * (at % 3)}] for at in numbers], NESTED),
            "real": pa.array([at / 7 for at in numbers], pa.float64()),
            "none": pa.nulls(ROWS, pa.int32()),
            "flag": pa.array([at % 2 == 0 for at in numbers]),
        }
    )


def written(
    table: pa.Table, monkeypatch: pytest.MonkeyPatch, *, beside: bool, unit_bytes: int = 20_000
) -> bytes:
    """Return a file of these rows."""
    monkeypatch.setattr(outputs, "PARALLEL_BYTES_MIN", 0 if beside else 1 << 40)
    monkeypatch.setattr(parallel_column_writer, "UNIT_BYTES", unit_bytes)
    sink = io.BytesIO()
    settings = OutputSettings("zstd", 3, GROUP_BYTES, bloom_columns=("k", "text"))
    groups = RowGroupWriter(sink, table.schema, settings, ("k",))
    for start in range(0, table.num_rows, 900):
        groups.write(table.slice(start, 900))
    groups.close({"neve.job": "j1"})
    return sink.getvalue()


def described(file: bytes) -> list[Any]:
    """Return what a footer says of each column chunk, places left out."""
    metadata = pq.read_metadata(io.BytesIO(file))
    found: list[Any] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found.append((group.num_rows, group.total_byte_size, group.sorting_columns))
        for at in range(group.num_columns):
            told = group.column(at).to_dict()
            places = {name for name in told if name.endswith(("offset", "offset_index"))}
            found.append(
                {name: told[name] for name in told if name not in places | {"column_index"}}
            )
            chunk = group.column(at)
            found.append((chunk.has_offset_index, chunk.has_column_index))
            found.append(chunk.bloom_filter_offset is not None)
    return found


@pytest.mark.parametrize("unit_bytes", [1, 20_000, 1 << 40])
def test_the_file_says_and_holds_what_one_writer_would_have_written(
    monkeypatch: pytest.MonkeyPatch, unit_bytes: int
) -> None:
    table = rows()
    beside = written(table, monkeypatch, beside=True, unit_bytes=unit_bytes)
    plain = written(table, monkeypatch, beside=False)
    assert described(beside) == described(plain)
    assert len(described(beside)) > 3 * 10
    with pq.ParquetFile(io.BytesIO(beside), page_checksum_verification=True) as file:
        assert file.schema_arrow.remove_metadata() == table.schema
        assert file.metadata.metadata is not None
        assert file.metadata.metadata[b"neve.job"] == b"j1"
        assert file.metadata.created_by.startswith("neve version ")
        assert file.read().equals(table)


def largest_last() -> pa.Table:
    """Return rows whose last column is encoded first, having most of the bytes."""
    numbers = pa.array(range(ROWS), pa.int64())
    texts = pa.array([f"{at * 7919:037x}" for at in range(ROWS)])
    return pa.table({"k": numbers, "v": numbers, "text": texts})


@pytest.mark.parametrize("unit_bytes", [1, 20_000, 1 << 40])
@pytest.mark.parametrize("make", [rows, largest_last])
def test_columns_are_written_in_the_order_of_the_schema(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], pa.Table], unit_bytes: int
) -> None:
    file = written(make(), monkeypatch, beside=True, unit_bytes=unit_bytes)
    assert pq.read_metadata(io.BytesIO(file)).created_by.startswith("neve ")
    assert pq.read_table(io.BytesIO(file)).equals(make())
    layout = read_footer_of(BufferSource(pa.py_buffer(file)))
    assert len(layout.groups) > 1
    assert layout.fault is None
    starts = [chunk.data.start for group in layout.groups for chunk in group.chunks]
    assert starts == sorted(starts)
    for number, group in enumerate(layout.groups):
        assert group.places.ordinal == number
        assert group.places.file_offset == group.chunks[0].data.start
        assert group.places.total_compressed_size == group.compressed_bytes


@pytest.mark.parametrize(
    ("sizes", "units"),
    [
        ([10, 10], [[0], [1]]),
        ([1, 1, 1, 30, 1, 1, 30], [[0, 1, 2], [3, 4, 5], [6]]),
        ([100], [[0]]),
        ([0, 0, 0], [[0, 1, 2]]),
    ],
)
def test_units_are_of_neighbours(sizes: list[int], units: list[list[int]]) -> None:
    assert [list(unit) for unit in parallel_column_writer._units(sizes)] == units


@pytest.mark.parametrize("seed", range(20))
def test_units_hold_each_column_once_and_are_not_much_larger_than_their_share(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randrange(12 * 1024**2) for _ in range(chance.randint(1, 80))]
    units = parallel_column_writer._units(sizes)
    assert [at for unit in units for at in unit] == list(range(len(sizes)))
    assert len(units) <= 2 * parallel_column_writer.UNITS_MAX
    shares = min(
        max(2, sum(sizes) // parallel_column_writer.UNIT_BYTES), parallel_column_writer.UNITS_MAX
    )
    for unit in units:
        assert len(unit) == 1 or sum(sizes[at] for at in unit) <= sum(sizes) / shares


@pytest.mark.parametrize(
    ("sizes", "order"),
    [
        ([4, 4, 4, 4], [0, 1, 2, 3]),
        ([1, 1, 1, 9], [3, 0, 1, 2]),
        ([1, 9, 1, 1], [1, 0, 2, 3]),
        ([6, 5, 5, 6], [0, 1, 3, 2]),
        ([], []),
    ],
)
def test_the_largest_column_is_encoded_first(sizes: list[int], order: list[int]) -> None:
    assert parallel_column_writer._work_order(sizes) == order


def test_other_readers_find_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    table = rows().drop_columns(["map"])
    path = tmp_path / "beside.parquet"
    path.write_bytes(written(table, monkeypatch, beside=True))
    expected = table.to_pylist()
    assert pl.read_parquet(path).to_dicts() == expected
    found = duckdb.connect().sql(f"SELECT * FROM read_parquet('{path}') ORDER BY k").arrow()
    assert pa.table(found).to_pylist() == expected
    one = duckdb.connect().sql(f"SELECT text FROM read_parquet('{path}') WHERE k = 4321").fetchall()
    assert one == [(expected[4321]["text"],)]


def test_a_page_is_found_by_its_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "beside.parquet"
    path.write_bytes(written(rows(), monkeypatch, beside=True))
    found = pl.scan_parquet(path).filter(pl.col("k").is_between(2_000, 2_003)).select("k").collect()
    assert found["k"].to_list() == [2_000, 2_001, 2_002, 2_003]


def test_without_rows_there_is_a_footer(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = rows().schema
    sink = io.BytesIO()
    writer = ParallelColumnWriter(sink, schema, None, lambda _: {})
    writer.close()
    writer.close()
    assert pq.read_table(io.BytesIO(sink.getvalue())).schema.remove_metadata() == schema


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, what: Any) -> int:
            if self.tell() > 10_000:
                raise OSError(28, "no space left")
            return super().write(what)

    monkeypatch.setattr(outputs, "PARALLEL_BYTES_MIN", 0)
    table, sink = rows(), Full()
    groups = RowGroupWriter(sink, table.schema, OutputSettings("zstd", 3, GROUP_BYTES), ("k",))

    def write() -> None:
        for start in range(0, table.num_rows, 500):
            groups.write(table.slice(start, 500))

    with pytest.raises(OSError, match="no space"):
        write()
    groups.abandon()


@pytest.mark.parametrize(("length", "beside"), [(60, False), (6, True)])
def test_a_column_with_nearly_all_bytes_is_not_encoded_apart(
    monkeypatch: pytest.MonkeyPatch, length: int, beside: bool
) -> None:
    table = pa.table({"k": range(ROWS), "text": [f"{at:0{length}}" for at in range(ROWS)]})
    opened: list[pa.Schema] = []

    def noted(sink: Any, schema: pa.Schema, *more: Any) -> ParallelColumnWriter:
        opened.append(schema)
        return ParallelColumnWriter(sink, schema, *more)

    monkeypatch.setattr(outputs, "ParallelColumnWriter", noted)
    file = written(table, monkeypatch, beside=True)
    assert bool(opened) == beside
    assert pq.read_table(io.BytesIO(file)).equals(table)
