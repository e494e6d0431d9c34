"""What a manifest says: which files of a table a reader should read. Pure.

    _neve/manifest/latest.json                      the pointer: one small JSON object
    _neve/manifest/<number>-<begun>-<random>/part-<n>.parquet    one row per file

For engines that know no Névé. The format is described for users in
`docs/reference/manifest.md`; `common.parquet.manifest_files` writes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from common.metadata.readings import Loss
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import Tablet
from common.model.unknown_fields import as_plain
from common.parquet.location import Location

FORMAT = "neve-manifest"
FORMAT_VERSION = 1

PART_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("merge", pa.bool_(), nullable=False),
        pa.field("tombstones", pa.int64(), nullable=False),
        pa.field("tablet", pa.string(), nullable=False),
        pa.field("partition", pa.string()),
        pa.field("key_min", pa.string()),
        pa.field("key_max", pa.string()),
        pa.field("time_min_s", pa.float64()),
        pa.field("time_max_s", pa.float64()),
    ]
)


@dataclass(slots=True, kw_only=True)
class Totals:
    """What a manifest's files come to."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    merge: bool = False
    """Whether some can only be read together with others."""

    def plain(self) -> dict[str, Any]:
        """Return them as JSON knows them."""
        return asdict(self)

    def add(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Count entries."""
        for each in entries:
            self.files += 1
            self.rows += each["rows"]
            self.size_bytes += each["size_bytes"]
            self.merge = self.merge or each["merge"]


def to_merge(table: Table, files: Sequence[DataFile]) -> frozenset[str]:
    """Return the files of one tablet that can only be read together with others.

    Rows of a clean file that overlaps no other in keys are what a reader sees, but for
    those that have expired. Append-only tables need no merge.

    Args:
        table: Whose.
        files: All of the tablet's.
    """
    if not table.key:
        return frozenset()
    merged = {file.path for file in files if file.rows and not file.clean}
    before: DataFile | None = None
    known = [file for file in files if file.key_min is not None and file.key_max is not None]
    for file in sorted(known, key=lambda each: (each.key_min or b"", each.path)):
        if before is not None and (file.key_min or b"") <= (before.key_max or b""):
            merged |= {before.path, file.path}
        if before is None or (file.key_max or b"") > (before.key_max or b""):
            before = file
    return frozenset(merged)


def entries_of(location: Location, table: Table, tablet: Tablet) -> list[dict[str, Any]]:
    """Return what a manifest says of a tablet's files, by path: one row of a part each."""
    files = [file for _, file in sorted(tablet.files.items()) if not file.open]
    merged = to_merge(table, files)
    return [
        {
            "path": file.path,
            "file": absolute_name(location, file.path),
            "size_bytes": file.size_bytes,
            "rows": file.rows,
            "merge": file.path in merged,
            "tombstones": file.tombstones,
            "tablet": tablet.id.text,
            "partition": tablet.bounds.partition,
            "key_min": None if file.key_min is None else file.key_min.hex(),
            "key_max": None if file.key_max is None else file.key_max.hex(),
            "time_min_s": file.time_min_s,
            "time_max_s": file.time_max_s,
        }
        for file in files
    ]


def absolute_name(location: Location, path: str) -> str:
    """Return a name by which engines open a file: `/data/t/a.parquet`, `s3://lake/t/a.parquet`.

    Nothing is percent-encoded: engines take such names as they are. A local file has no
    scheme, because they do not agree on what `%` means behind one.
    """
    if location.is_local:
        return f"{location.root}/{path}"
    parts = urlsplit(location.uri)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path).rstrip('/')}/{path}"


def header(
    table: Table, number: int, begun_s: float, totals: Totals | None, loss: Loss | None = None
) -> dict[str, Any]:
    """Return what a manifest says before it names files or parts.

    Args:
        table: Whose.
        number: Of the manifest; 0: it was made for one reader only.
        begun_s: The store's time from before files were looked up.
        totals: Of all files; None: not known yet.
        loss: What the manifest may not know of, for the store has lost it.
    """
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "table": table.name,
        "table_id": table.id,
        "location": table.location,
        "number": number,
        "begun_s": begun_s,
        "schema": [
            {"name": each.name, "type": each.type, "nullable": each.nullable}
            for each in table.schema
        ],
        "key": list(table.key),
        "version_column": table.version_column,
        "tombstone_column": table.tombstone_column,
        "time_column": table.time_column,
        "ttl_s": table.settings.ttl_s,
        "partition_by": list(table.partition_by),
    }
    if loss is not None:
        body["loss"] = as_plain(loss)
    if totals is not None:
        body["totals"] = totals.plain()
    return body
