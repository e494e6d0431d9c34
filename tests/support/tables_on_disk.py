"""Tables on disk for tests: random rows in files, and assignments over them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.model.file import DataFile
from common.model.table import Table, TableSettings
from common.parquet.file_inspection import inspect_file, read_rows
from common.parquet.location import open_location
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.wire import Assignment
from tests.support.assignments import an_assignment

KEYED = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("v", pa.int64()),
        pa.field("dead", pa.bool_()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("x", pa.float64()),
    ]
)


def keyed_table(folder: Path, schema: pa.Schema = KEYED, **changes: Any) -> Table:
    """Return a table with key (k, name) in a folder."""
    fields: dict[str, Any] = {
        "id": "table-1",
        "name": "events",
        "location": folder.as_uri(),
        "schema": columns_of(schema),
        "key": ("k", "name"),
        "version_column": "v",
        "tombstone_column": "dead",
        "time_column": "at",
    }
    return Table(**fields | changes)


def bag_table(folder: Path, schema: pa.Schema = KEYED, **changes: Any) -> Table:
    """Return an append-only table in a folder."""
    bag: dict[str, Any] = {"key": (), "version_column": None, "tombstone_column": None}
    return keyed_table(folder, schema, **bag | changes)


def settings(**changes: Any) -> TableSettings:
    return TableSettings(**changes)


def random_rows(
    chance: random.Random, count: int, *, keys: int = 40, now_s: int = 1_000_000
) -> list[dict[str, object]]:
    """Return rows with many equal keys and versions, nulls, NaN, zeros, tombstones, old times."""
    odd = [float("nan"), 0.0, -0.0, None, 1.5]
    return [
        {
            "k": chance.choice([None, *range(keys)]),
            "name": chance.choice([None, "", "a", "b\0c", "é", "zz"]),
            "v": chance.randrange(6),
            "dead": chance.choice([None, False, False, True]),
            "at": chance.choice([None, (now_s - chance.randrange(200)) * 1_000_000]),
            "x": chance.choice(odd),
        }
        for _ in range(count)
    ]


def write_file(folder: Path, path: str, rows: pa.Table, **options: Any) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / path, **options)


def inspected(table: Table, paths: Sequence[str]) -> tuple[DataFile, ...]:
    """Return files as an add would have put them into the store."""
    location = open_location(table.location)
    rules = RowRules.of(table)
    return tuple(inspect_file(location, path, rules).data_file(added_at_s=1000.0) for path in paths)


def assignment_over(table: Table, paths: Sequence[str], **more: Any) -> Assignment:
    return an_assignment(inspected(table, paths), table=table, **more)


def read_output(table: Table, path: str) -> pa.Table:
    return read_rows(open_location(table.location), path, RowRules.of(table))
