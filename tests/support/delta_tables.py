"""A small writer and reader of Delta tables, for tests: it knows deletion vectors.

It shares no code with the product. Rows are identified by a column `id`, so that a test can say
which rows a table has to have.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

_TYPES = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.float64(): "double",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
}
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
VECTORS_MAGIC = 1681511377


# ------------------------------------------------------------------------------------ Vectors


def roaring(positions: Iterable[int]) -> bytes:
    """Return positions in the form of a 64-bit Roaring bitmap of Delta, without its magic."""
    keys: dict[int, dict[int, list[int]]] = {}
    for position in sorted(set(positions)):
        low = position & 0xFFFFFFFF
        keys.setdefault(position >> 32, {}).setdefault(low >> 16, []).append(low & 0xFFFF)
    out = struct.pack("<Q", len(keys))
    for key, containers in sorted(keys.items()):
        out += struct.pack("<I", key) + _roaring32(containers)
    return out


def _roaring32(containers: Mapping[int, list[int]]) -> bytes:
    heads, bodies = b"", []
    for key, values in sorted(containers.items()):
        heads += struct.pack("<HH", key, len(values) - 1)
        if len(values) <= 4096:
            bodies.append(struct.pack(f"<{len(values)}H", *values))
            continue
        bits = bytearray(8192)
        for value in values:
            bits[value >> 3] |= 1 << (value & 7)
        bodies.append(bytes(bits))
    at = 8 + len(heads) + 4 * len(bodies)
    offsets = b""
    for body in bodies:
        offsets += struct.pack("<I", at)
        at += len(body)
    return struct.pack("<II", 12346, len(bodies)) + heads + offsets + b"".join(bodies)


def positions_of(content: bytes) -> list[int]:
    """Return the positions of a 64-bit Roaring bitmap without its magic."""
    (count,) = struct.unpack_from("<Q", content)
    at, positions = 8, list[int]()
    for _ in range(count):
        (key,) = struct.unpack_from("<I", content, at)
        values, at = _values32(content, at + 4)
        positions += [key << 32 | value for value in values]
    return positions


def _values32(content: bytes, at: int) -> tuple[list[int], int]:
    begun = at
    (cookie,) = struct.unpack_from("<I", content, at)
    runs = b""
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        runs = content[at + 4 : at + 4 + (count + 7) // 8]
        at += 4 + len(runs)
    else:
        assert cookie == 12346, cookie
        (count,) = struct.unpack_from("<I", content, at + 4)
        at += 8
    heads = [struct.unpack_from("<HH", content, at + 4 * n) for n in range(count)]
    at += 4 * count
    if not runs or count >= 4:
        at += 4 * count
    assert begun < at
    values = []
    for number, (key, last) in enumerate(heads):
        if runs and runs[number >> 3] >> (number & 7) & 1:
            (run_count,) = struct.unpack_from("<H", content, at)
            for run in range(run_count):
                start, length = struct.unpack_from("<HH", content, at + 2 + 4 * run)
                values += [key << 16 | start + n for n in range(length + 1)]
            at += 2 + 4 * run_count
        elif last + 1 <= 4096:
            lows = struct.unpack_from(f"<{last + 1}H", content, at)
            values += [key << 16 | low for low in lows]
            at += 2 * (last + 1)
        else:
            bits = content[at : at + 8192]
            values += [key << 16 | n for n in range(1 << 16) if bits[n >> 3] >> (n & 7) & 1]
            at += 8192
    return values, at


def z85(content: bytes) -> str:
    """Return bytes as Z85 text."""
    return base64.b85encode(content).decode().translate(str.maketrans(_B85, _Z85))


def from_z85(text: str) -> bytes:
    """Return the bytes of a Z85 text."""
    return base64.b85decode(text.translate(str.maketrans(_Z85, _B85)))


# -------------------------------------------------------------------------------------------- Table


class DeltaTable:
    """A table in a folder. Each change is one version, created only if no other has its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "_delta_log"

    @classmethod
    def create(
        cls,
        folder: Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Create a table that allows deletion vectors."""
        table = cls(folder)
        table._log.mkdir(parents=True)
        features = ["deletionVectors"]
        actions = [
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": features,
                    "writerFeatures": [*features, "appendOnly", "invariants"],
                }
            },
            {"metaData": _metadata(str(uuid.uuid4()), schema, partition_by, properties or {})},
        ]
        table.commit(0, actions)
        return table

    @property
    def version(self) -> int:
        """The newest version."""
        return max(int(path.stem) for path in self._log.glob("*.json"))

    def commit(self, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """Create a version.

        Raises:
            FileExistsError: Another writer was faster.
        """
        path = self._log / f"{version:020}.json"
        temporary = self._log / f".{uuid.uuid4()}.tmp"
        temporary.write_text("".join(json.dumps(action) + "\n" for action in actions))
        try:
            os.link(temporary, path)
        finally:
            temporary.unlink()

    def change(self, make: Any) -> int:
        """Commit the actions that `make` returns for the live files; repeat it after a conflict."""
        while True:
            version = self.version
            actions = make(self.live(version))
            try:
                self.commit(
                    version + 1, [*actions, {"commitInfo": {"timestamp": 1_700_000_000_000}}]
                )
            except FileExistsError:
                continue
            return version + 1

    def live(self, version: int | None = None) -> dict[str, dict[str, Any]]:
        """Return the `add` actions of the live files of a version, by decoded path."""
        files: dict[str, dict[str, Any]] = {}
        for action in self.actions(version):
            if "remove" in action:
                files.pop(unquote(action["remove"]["path"]), None)
            if "add" in action:
                files[unquote(action["add"]["path"])] = action["add"]
        return files

    def actions(self, version: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield all actions up to a version; within a version, removes come before adds."""
        last = self.version if version is None else version
        for number in range(last + 1):
            lines = (self._log / f"{number:020}.json").read_text().splitlines()
            read = [json.loads(line) for line in lines if line]
            yield from sorted(read, key=lambda action: "add" in action)

    @property
    def schema_names(self) -> list[str]:
        """Names of the columns."""
        metadata = [action["metaData"] for action in self.actions() if "metaData" in action][-1]
        return [field["name"] for field in json.loads(metadata["schemaString"])["fields"]]

    def write(
        self, rows: pa.Table, values: Mapping[str, str | None] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Write a data file, and return its `add` action.

        Args:
            rows: Rows without partition columns.
            values: Values of the partition columns.
            options: Options of Arrow's writer.
        """
        folders = "".join(
            f"{name}={'__HIVE_DEFAULT_PARTITION__' if value is None else quote(value, safe='')}/"
            for name, value in (values or {}).items()
        )
        path = f"{folders}part-{uuid.uuid4()}.parquet"
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.folder / path, **{"compression": "snappy", **options})
        return {
            "path": quote(path, safe="/="),
            "partitionValues": dict(values or {}),
            "size": (self.folder / path).stat().st_size,
            "modificationTime": 1_700_000_000_000,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows.num_rows}),
        }

    def append(
        self, rows: pa.Table, values: Mapping[str, str | None] | None = None, **options: Any
    ) -> str:
        """Append one file; return its path."""
        add = self.write(rows, values, **options)
        self.change(lambda _: [{"add": add}])
        return unquote(add["path"])

    def add_column(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Replace the schema, with the same id of the table."""
        old = [action["metaData"] for action in self.actions() if "metaData" in action][-1]
        new = _metadata(old["id"], schema, partition_by, old["configuration"])
        self.change(lambda _: [{"metaData": new}])

    def delete(self, ids: Iterable[int]) -> None:
        """Delete rows by deletion vectors, whatever file holds them."""
        wanted = set(ids)

        def vectors(files: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
            actions: list[dict[str, Any]] = []
            for path, add in files.items():
                stored = pq.read_table(self.folder / path, columns=["id"], partitioning=None)[
                    "id"
                ].to_pylist()
                before = set(self.deleted(add))
                positions = {at for at, row in enumerate(stored) if row in wanted}
                if not positions <= before:
                    actions += self._replaced(add, before | positions)
            return actions

        self.change(vectors)

    def delete_by_copy(self, ids: Iterable[int]) -> None:
        """Delete rows by writing the files that hold them anew."""
        wanted = set(ids)

        def copies(files: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
            actions: list[dict[str, Any]] = []
            for path, add in files.items():
                rows = self.rows_of(path, add)
                kept = rows.filter(pa.array([row not in wanted for row in rows["id"].to_pylist()]))
                if kept.num_rows < rows.num_rows:
                    actions.append({"remove": _removed(add)})
                    actions.append({"add": self.write(kept, add["partitionValues"])})
            return actions

        self.change(copies)

    def _replaced(self, add: dict[str, Any], positions: set[int]) -> list[dict[str, Any]]:
        content = struct.pack("<I", VECTORS_MAGIC) + roaring(positions)
        name = uuid.uuid4()
        body = (
            b"\x01"
            + struct.pack(">I", len(content))
            + content
            + struct.pack(">I", zlib.crc32(content))
        )
        (self.folder / f"deletion_vector_{name}.bin").write_bytes(body)
        vector = {
            "storageType": "u",
            "pathOrInlineDv": z85(name.bytes),
            "offset": 1,
            "sizeInBytes": len(content),
            "cardinality": len(positions),
        }
        return [{"remove": _removed(add)}, {"add": {**add, "deletionVector": vector}}]

    def deleted(self, add: Mapping[str, Any]) -> list[int]:
        """Return the deleted positions of a file."""
        vector = add.get("deletionVector")
        if not vector:
            return []
        if vector["storageType"] == "i":
            content = from_z85(vector["pathOrInlineDv"])[: vector["sizeInBytes"]]
        else:
            text = vector["pathOrInlineDv"]
            name = uuid.UUID(bytes=from_z85(text[-20:]))
            path = self.folder / text[:-20] / f"deletion_vector_{name}.bin"
            at = vector.get("offset", 0)
            body = path.read_bytes()
            (size,) = struct.unpack_from(">I", body, at)
            assert size == vector["sizeInBytes"], (size, vector)
            content = body[at + 4 : at + 4 + size]
            assert struct.unpack_from(">I", body, at + 4 + size) == (zlib.crc32(content),)
        assert struct.unpack_from("<I", content) == (VECTORS_MAGIC,)
        positions = positions_of(content[4:])
        assert len(positions) == vector["cardinality"], vector
        return positions

    def rows_of(self, path: str, add: Mapping[str, Any]) -> pa.Table:
        """Return the live rows of a file, without partition columns."""
        rows = pq.read_table(self.folder / path, partitioning=None)
        gone = set(self.deleted(add))
        return rows.filter(pa.array([at not in gone for at in range(rows.num_rows)], pa.bool_()))

    def rows(self, version: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a version by `id`; partition values are texts."""
        rows: list[dict[str, Any]] = []
        missing = dict.fromkeys(self.schema_names)
        for path, add in self.live(version).items():
            stored = self.rows_of(path, add).to_pylist()
            rows += [missing | row | add["partitionValues"] for row in stored]
        return sorted(rows, key=lambda row: row["id"])


def _metadata(
    table_id: str, schema: pa.Schema, partition_by: Sequence[str], properties: Mapping[str, str]
) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": _TYPES[field.type], "nullable": field.nullable, "metadata": {}}
        for field in schema
    ]
    return {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partition_by),
        "configuration": {"delta.enableDeletionVectors": "true", **properties},
        "createdTime": 1_700_000_000_000,
    }


def _removed(add: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("path", "partitionValues", "size", "deletionVector")
    return {
        **{name: add[name] for name in kept if name in add},
        "deletionTimestamp": 1_700_000_000_000,
        "dataChange": True,
        "extendedFileMetadata": True,
    }
