"""What other ways to compact lake tables do when somebody else writes meanwhile.

    python -m benchmarks.lake_races

A rewrite reads a version of a table, another writer changes the table, then the rewrite commits:
PyIceberg's `overwrite` of the rows that were read, with the table as it was read or loaded again;
deltalake's `optimize.compact()` of a table object that was opened before. The outcome is the rows
of the table compared with those that it should have. The races of Névé with the same writers are
`tests/contract/test_lake_iceberg_races.py` and `tests/contract/test_lake_delta_races.py`.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import deltalake
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.support.delta_tables import DeltaTable
from tests.support.iceberg_tables import IcebergTable, sqlite_catalog

FILES, ROWS = 4, 100
SCHEMA = Schema(NestedField(1, "id", LongType()))
DELETED = [3, 150, 151]


def batch(first: int) -> pa.Table:
    """Return the rows of one file."""
    return pa.table({"id": pa.array(range(first, first + ROWS), pa.int64())})


def outcome(rows: Iterable[int], expected: Iterable[int], error: Exception | None) -> str:
    """Return what a race has done to the rows, in words."""
    present, wanted = Counter(rows), Counter(expected)
    lost, more = (wanted - present).total(), (present - wanted).total()
    words = [f"{lost} lost"] * (lost > 0) + [f"{more} too many"] * (more > 0)
    if not words:
        words = ["rows right"]
    return ", ".join([*words, f"refused ({type(error).__name__})" if error else "commits"])


Change = Callable[[IcebergTable | DeltaTable], None]
"""What the other writer does."""


def append(table: IcebergTable | DeltaTable) -> None:
    """Append a file."""
    table.append(batch(FILES * ROWS))


def delete(table: IcebergTable | DeltaTable) -> None:
    """Delete rows by position: a delete file, or a deletion vector."""
    table.delete(DELETED)


def delete_and_append(table: IcebergTable | DeltaTable) -> None:
    """Delete rows by position, then append a file."""
    delete(table)
    append(table)


def copy(table: IcebergTable | DeltaTable) -> None:
    """Delete rows by writing their file again."""
    if isinstance(table, IcebergTable):
        table.delete_by_copy(f"id == {DELETED[0]}")
    else:
        table.delete_by_copy(DELETED[:1])


def expected(change: Change | None) -> list[int]:
    """Return the rows that a table has to have after a change."""
    count = FILES + (change in {append, delete_and_append})
    gone = DELETED if change in {delete, delete_and_append} else DELETED[: change is copy]
    return [number for number in range(count * ROWS) if number not in gone]


def race_iceberg(folder: Path, change: Change | None, *, again: bool) -> str:
    """Race PyIceberg's `overwrite`; without a change with another one of the same files."""
    table = IcebergTable.create(sqlite_catalog(folder), "events", SCHEMA)
    for number in range(FILES):
        table.append(batch(number * ROWS))
    read, error = table.table, None
    rows = read.scan().to_arrow()
    if change is None:
        table.table.overwrite(rows)
    else:
        change(table)
    try:
        (table.table if again else read).overwrite(rows)
    except Exception as caught:  # Whatever it raises is the answer.
        error = caught
    found = table.table.scan().to_arrow()["id"].to_pylist()
    return outcome(found, expected(change), error)


def race_delta(folder: Path, change: Change | None) -> str:
    """Race deltalake's compaction; without a change with another one of the same files."""
    table, error = DeltaTable.create(folder, batch(0).schema), None
    for number in range(FILES):
        table.append(batch(number * ROWS))
    opened = deltalake.DeltaTable(str(folder))
    if change is None:
        deltalake.DeltaTable(str(folder)).optimize.compact()
    else:
        change(table)
    try:
        opened.optimize.compact()
    except Exception as caught:  # Whatever it raises is the answer.
        error = caught
    found = [row["id"] for row in table.rows()]
    return outcome(found, expected(change), error)


RACES: dict[str, Change | None] = {
    "unrelated append": append,
    "deletes by position": delete,
    "the same, then an append": delete_and_append,
    "deletes by a copy": copy,
    "another compaction": None,
}


def main() -> None:
    """Run all races, and print one line for each."""
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # It announces its retries.
    ways: dict[str, Callable[[Path, Change | None], str]] = {
        "PyIceberg overwrite": lambda folder, change: race_iceberg(folder, change, again=False),
        "the same, loaded again": lambda folder, change: race_iceberg(folder, change, again=True),
        "deltalake optimize.compact": race_delta,
    }
    for race, change in RACES.items():
        print(race)
        for way, run in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                print(f"    {way}: {run(Path(folder) / 'table', change)}")


if __name__ == "__main__":
    main()
