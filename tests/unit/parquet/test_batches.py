"""Batches of a file's rows are small also where its texts are long and come again and again."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.table import Column
from common.parquet import row_batches as batches
from common.parquet.file_inspection import stream_rows
from common.parquet.location import open_location
from common.parquet.row_batches import (
    OpenFile,
    decoded_bytes,
    open_parquet_file,
    row_batches,
)
from common.rows.rules import RowRules
from tests.support.fast_and_slow import first_fast
from tests.support.peak_memory import peak_bytes
from tests.support.run_apart import run_apart

MEBI = 1024**2
ROWS, TEXT = 100_000, "x" * 20_000
"""Decoded they are 2 GB."""
MEMORY_BYTES = 700 * MEBI
RULES = RowRules(schema=(Column("k", "int64"), Column("s", "string")))


def repeated(texts: list[str | None], rows: int) -> pa.DictionaryArray:
    """Return texts that come again in turn."""
    known = [text for text in texts if text is not None]
    places = [None if text is None else known.index(text) for text in texts]
    indices = pa.array((places[number % len(texts)] for number in range(rows)), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(known))


def written(folder: Path, column: pa.Array, **options: Any) -> Path:
    path = folder / "f.parquet"
    rows = pa.table({"k": pa.array(range(len(column)), pa.int64()), "s": column})
    pq.write_table(rows, path, **{"store_schema": False, **options})
    return path


@contextmanager
def open_file(path: Path) -> Iterator[OpenFile]:
    location = open_location(path.parent.as_uri())
    with location.open_file(path.name) as source, open_parquet_file(source) as parquet:
        yield OpenFile(location, path.name, parquet)


def read(path: Path) -> pa.Table:
    with open_file(path) as file:
        return pa.concat_tables(row_batches(file, file.parquet.schema_arrow.names))


def streamed(path: Path) -> tuple[int, int, int]:
    """Return the rows of a file, the bytes of its largest batch, and memory at most."""
    batches_read = stream_rows(open_location(path.parent.as_uri()), path.name, RULES)
    sizes = [(rows.num_rows, rows.nbytes) for rows in batches_read]
    return sum(rows for rows, _ in sizes), max(size for _, size in sizes), peak_bytes()


def within(limit_bytes: int, call: Callable[[], Any]) -> Any:
    """Call in a process that may have no more memory than so much."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    return call()


LAYOUTS: dict[str, Callable[[], tuple[pa.Array, dict[str, Any]]]] = {
    "one text in all rows": lambda: (repeated([TEXT], ROWS), {}),
    "one long text among short ones": lambda: (
        repeated([TEXT, *(f"short {number:08}" for number in range(9))], 5 * ROWS),
        {},
    ),
    "many long texts, a few rows each": lambda: (
        repeated([f"{number:05}{TEXT[5:]}" for number in range(40)], ROWS),
        {},
    ),
    "read as dictionaries": lambda: (repeated([TEXT], ROWS), {"store_schema": True}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_texts_that_come_again_are_read_in_bounded_memory(tmp_path: Path, layout: str) -> None:
    column, options = LAYOUTS[layout]()
    path = written(tmp_path, column, **options)
    assert path.stat().st_size < 10 * MEBI

    said, code = run_apart(partial(within, 4 * 1024 * MEBI, partial(streamed, path)))

    assert code == 0, said
    rows, largest, peak = said
    assert rows == len(column)
    assert largest <= batches.BATCH_BYTES + 2 * MEBI
    assert peak < MEMORY_BYTES


def test_texts_of_lists_are_read_in_bounded_memory(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays(
        pa.array(range(0, 2 * ROWS + 1, 2), pa.int32()), repeated([TEXT], 2 * ROWS)
    )
    path = written(tmp_path, lists)
    rules = RowRules(schema=(Column("k", "int64"), Column("s", "list<string>")))

    said, _ = run_apart(partial(within, 4 * 1024 * MEBI, partial(peak_of, path, rules)))

    assert said < MEMORY_BYTES


def peak_of(path: Path, rules: RowRules) -> int:
    for _ in stream_rows(open_location(path.parent.as_uri()), path.name, rules):
        pass
    return peak_bytes()


@pytest.mark.parametrize("seed", first_fast(5, range(40), slow=10))
def test_batches_add_up_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(batches, "BATCH_BYTES", chance.choice([10, 1_000, 100_000]))
    monkeypatch.setattr(batches, "SMALL_ROWS", chance.choice([1, 50, 5_000]))
    monkeypatch.setattr(batches, "NESTED_ROWS", chance.choice([1, 7]))
    longest = chance.choice([3, 3_000])
    texts = [None, *("y" * chance.randrange(longest) for _ in range(chance.choice([1, 5, 300])))]
    values = [chance.choice(texts) for _ in range(chance.randrange(3_000))]
    kind = chance.choice([pa.string(), pa.binary(), pa.large_string()])
    column = pa.array([None if text is None else text.encode() for text in values]).cast(kind)
    if chance.random() < 0.3:
        column = column.dictionary_encode()
    path = written(
        tmp_path,
        column,
        store_schema=chance.random() < 0.7,
        row_group_size=chance.choice([1, 100, 10_000]),
        use_dictionary=chance.random() < 0.8,
        data_page_size=chance.choice([100, 10_000]),
        dictionary_pagesize_limit=chance.choice([200, 1_000_000]),
    )

    found, wanted = read(path), pq.read_table(path)

    assert found.to_pylist() == wanted.to_pylist()
    plain = [
        field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in wanted.schema
    ]
    got = [
        field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in found.schema
    ]
    assert got == plain


@pytest.mark.parametrize(
    ("texts", "rows"),
    [(["ab"], 10), ([TEXT], 10), ([TEXT], 5_000), ([TEXT, "ab", None], 9_999)],
)
def test_decoded_bytes_are_those_of_the_rows(
    tmp_path: Path, texts: list[str | None], rows: int
) -> None:
    path = written(tmp_path, repeated(texts, rows))
    real = pq.read_table(path, columns=["s"]).nbytes

    with open_file(path) as file:
        told = decoded_bytes(file, ["s"])

    # Files of few rows are told by what they store: no more than a batch comes of them.
    assert real - batches.BATCH_BYTES <= told <= 1.1 * real + 100_000
