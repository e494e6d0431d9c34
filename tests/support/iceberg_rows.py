"""Rows of an Iceberg table by the letter of the specification. Slow, and of no product."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, ManifestEntry
from pyiceberg.table import Table


def spec_rows(table: Table, *columns: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of the head, each with how often it is there.

    Position deletes apply to files of their partition with at most their sequence number, equality
    deletes to those with a smaller one. Columns are found by the names that files have.
    """
    snapshot = table.current_snapshot()
    entries = [
        entry
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io)
    ]
    deletes = [entry for entry in entries if entry.data_file.content != DataFileContent.DATA]
    rows: Counter[tuple[Any, ...]] = Counter()
    for entry in entries:
        if entry.data_file.content == DataFileContent.DATA:
            applied = [delete for delete in deletes if _applies(table, delete, entry)]
            for row in _live_rows(table, entry, applied):
                rows[tuple(row[name] for name in columns)] += 1
    return rows


def _applies(table: Table, delete: ManifestEntry, data: ManifestEntry) -> bool:
    by_value = delete.data_file.content == DataFileContent.EQUALITY_DELETES
    is_global = by_value and not table.specs()[delete.data_file.spec_id].fields
    same = (
        delete.data_file.spec_id == data.data_file.spec_id
        and delete.data_file.partition == data.data_file.partition
    )
    assert delete.sequence_number is not None, delete
    assert data.sequence_number is not None, data
    is_later = delete.sequence_number >= data.sequence_number + by_value
    return is_later and (same or is_global)


def _live_rows(
    table: Table, entry: ManifestEntry, deletes: list[ManifestEntry]
) -> list[dict[str, Any]]:
    path = entry.data_file.file_path
    rows = _read(table, path)
    gone = set[int]()
    for delete in deletes:
        removed = _read(table, delete.data_file.file_path)
        if delete.data_file.content == DataFileContent.POSITION_DELETES:
            gone |= {row["pos"] for row in removed if row["file_path"] == path}
        else:
            values = {tuple(row.items()) for row in removed}
            names = list(removed[0]) if removed else []
            gone |= {
                at
                for at, row in enumerate(rows)
                if tuple((name, row[name]) for name in names) in values
            }
    return [row for at, row in enumerate(rows) if at not in gone]


def _read(table: Table, path: str) -> list[dict[str, Any]]:
    with table.io.new_input(path).open() as stream:
        rows: list[dict[str, Any]] = pq.ParquetFile(stream).read().to_pylist()
    return rows
