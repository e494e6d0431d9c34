"""Directories of tables of other formats, laid out as those formats define it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]})


def delta(root: Path) -> None:
    """A Delta table of two files, the second of them deleted in its log."""
    _rows(root / "part-00000-1.snappy.parquet")
    _rows(root / "part-00001-2.snappy.parquet")
    meta = {"id": "m", "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    commit = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": meta},
        {"add": {"path": "part-00000-1.snappy.parquet", "size": 9, "dataChange": True}},
        {"add": {"path": "part-00001-2.snappy.parquet", "size": 9, "dataChange": True}},
    ]
    removed = [{"remove": {"path": "part-00001-2.snappy.parquet", "dataChange": True}}]
    for number, actions in enumerate((commit, removed)):
        text = "\n".join(map(json.dumps, actions))
        _text(root / f"_delta_log/{number:020d}.json", text)


def iceberg(root: Path) -> None:
    """An Iceberg table; its metadata are Avro manifests and one JSON file."""
    _rows(root / "data/00000-0-a.parquet")
    body = {"format-version": 2, "table-uuid": "u", "location": str(root), "snapshots": []}
    _text(root / "metadata/00000-5f1c.metadata.json", json.dumps(body))
    _text(root / "metadata/snap-1-0-5f1c.avro", "Obj")


def hudi(root: Path) -> None:
    """A Hudi table, copy on write."""
    _rows(root / "4f2e-0_0-1-0_20240131000000.parquet")
    _text(root / ".hoodie/hoodie.properties", "hoodie.table.name=t\n")
    _text(root / ".hoodie/20240131000000.commit", "{}")


def spark_sink(root: Path) -> None:
    """What a query of Spark's Structured Streaming has written."""
    _rows(root / "part-00000-a-c000.snappy.parquet")
    _text(root / "_spark_metadata/0", 'v1\n{"path":"part-00000-a-c000.snappy.parquet"}')


def lance(root: Path) -> None:
    """A Lance dataset, with a Parquet file that somebody keeps next to it."""
    _rows(root / "export.parquet")
    _text(root / "_versions/1.manifest", "LANC")
    _text(root / "data/0b.lance", "LANC")


FORMATS = {
    "Delta Lake": delta,
    "Apache Iceberg": iceberg,
    "Apache Hudi": hudi,
    "Spark's streaming file sink": spark_sink,
    "Lance": lance,
}
"""Format → what writes a table of it into a folder."""


def _rows(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ROWS, path)


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
