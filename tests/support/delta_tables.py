"""Delta tables of other writers than Névé: deltalake, and what deltalake cannot write.

The log, deletion vectors and rows are read and written without the product's code. Tests that
identify rows name them by a column `id`.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote

import deltalake
import obstore
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, S3Store
from pyroaring import BitMap64

Actions = Sequence[Mapping[str, Any]]

WITH_VECTORS = {"delta.enableDeletionVectors": "true"}
FEATURES = ["deletionVectors"]
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": FEATURES,
    "writerFeatures": [*FEATURES, "appendOnly", "invariants"],
}
LOG = "_delta_log"
MADE_MS = 1_700_000_000_000
MAGIC = struct.pack("<i", 1_681_511_377)
_TYPES = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def base85(data: bytes) -> str:
    """Return bytes, filled up with zeros, in the Base85 of ZeroMQ."""
    filled = data + bytes(-len(data) % 4)
    return base64.b85encode(filled).decode().translate(str.maketrans(_B85, _Z85))


def from_base85(text: str) -> bytes:
    """Return the bytes of a text in the Base85 of ZeroMQ."""
    return base64.b85decode(text.translate(str.maketrans(_Z85, _B85)))


def removal(add: Mapping[str, Any], data_change: bool = False) -> dict[str, Any]:
    """Return the `remove` of an `add`."""
    vector = {"deletionVector": add["deletionVector"]} if add.get("deletionVector") else {}
    return {
        "path": add["path"],
        "deletionTimestamp": MADE_MS,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": add["partitionValues"],
        "size": add["size"],
        **vector,
    }


class DeltaTable:
    """A table in a folder or in S3. Each change is one version, and replaces no other's version."""

    def __init__(self, uri: str | Path, options: Mapping[str, str] | None = None) -> None:
        self.uri = str(uri)
        self.options = dict(options or {})
        if self.uri.startswith("s3://"):
            bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
            self.store: Any = S3Store(
                bucket,
                prefix=prefix,
                config={name.lower(): value for name, value in self.options.items()},
                client_options={"allow_http": True},
            )
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.store = LocalStore(prefix=self.uri)

    @classmethod
    def create(
        cls,
        uri: str | Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Self:
        """Create a table that allows deletion vectors."""
        table = cls(uri)
        metadata = _metadata(str(uuid.uuid4()), schema, partition_by, properties or {})
        table.commit({"protocol": PROTOCOL}, {"metaData": metadata}, version=0)
        return table

    @property
    def folder(self) -> Path:
        """Folder of a table that is not in S3."""
        return Path(self.uri)

    # --------------------------------------------------------------------------------------- Log

    @property
    def version(self) -> int:
        """The newest version that is a file of its own."""
        listed = obstore.list_with_delimiter(self.store, LOG)["objects"]
        names = (entry["path"].rpartition("/")[2].partition(".") for entry in listed)
        return max(int(number) for number, _, suffix in names if suffix == "json")

    def entries(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a version in their order."""
        data = bytes(obstore.get(self.store, f"{LOG}/{version:020}.json").bytes())
        return [json.loads(line) for line in data.splitlines() if line]

    def actions(self, version: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield all actions up to a version; within a version, removes come before adds."""
        last = self.version if version is None else version
        for number in range(last + 1):
            yield from sorted(self.entries(number), key=lambda action: "add" in action)

    def live(self, version: int | None = None) -> dict[str, dict[str, Any]]:
        """Return the `add` actions of the live files of a version, by decoded path."""
        adds: dict[tuple[str, str], dict[str, Any]] = {}
        for action in self.actions(version):
            if remove := action.get("remove"):
                adds.pop(_key(remove), None)
            if add := action.get("add"):
                adds[_key(add)] = add
        return {unquote(path): add for (path, _), add in adds.items()}

    @property
    def metadata(self) -> dict[str, Any]:
        """The newest `metaData`."""
        return [action["metaData"] for action in self.actions() if "metaData" in action][-1]

    def commit(self, *actions: Mapping[str, Any], version: int | None = None) -> int:
        """Create a version, the next one if none is given; return its number.

        Raises:
            FileExistsError: Another writer was faster.
        """
        number = self.version + 1 if version is None else version
        text = "".join(json.dumps(action) + "\n" for action in actions)
        try:
            obstore.put(self.store, f"{LOG}/{number:020}.json", text.encode(), mode="create")
        except AlreadyExistsError as error:
            raise FileExistsError(str(error)) from error
        return number

    def change(self, make: Callable[[dict[str, dict[str, Any]]], Actions]) -> int:
        """Commit the actions that `make` returns for the live files; repeat it after a conflict."""
        while True:
            version = self.version
            actions = make(self.live(version))
            info = {"commitInfo": {"timestamp": MADE_MS}}
            try:
                return self.commit(*actions, info, version=version + 1)
            except FileExistsError:
                continue

    # ------------------------------------------------------------------------------------ Writing

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
        path, data = f"{folders}part-{uuid.uuid4()}.parquet", io.BytesIO()
        pq.write_table(rows, data, **{"compression": "snappy", **options})
        self.put(path, data.getvalue())
        return {
            "path": quote(path, safe="/="),
            "partitionValues": dict(values or {}),
            "size": data.tell(),
            "modificationTime": MADE_MS,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows.num_rows}),
        }

    def put(self, path: str, data: bytes) -> None:
        """Store a data file."""
        obstore.put(self.store, path, data)

    def stats(self, _head: object, _data: bytes, rows: int) -> str:
        """Return the statistics of a data file."""
        return json.dumps({"numRecords": rows})

    def append(
        self, rows: pa.Table, values: Mapping[str, str | None] | None = None, **options: Any
    ) -> str:
        """Append one file; return its path."""
        add = self.write(rows, values, **options)
        self.change(lambda _: [{"add": add}])
        return unquote(add["path"])

    def add_column(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Replace the schema, with the same id of the table."""
        old = self.metadata
        new = _metadata(old["id"], schema, partition_by, old["configuration"])
        self.change(lambda _: [{"metaData": new}])

    def widen(self, schema: pa.Schema, features: Sequence[str] = ("typeWidening",)) -> None:
        """Widen columns to those of a schema, and let the table have features of readers."""
        protocol = [action["protocol"] for action in self.actions() if "protocol" in action][-1]
        needs = {
            part: sorted({*protocol[part], *features})
            for part in ("readerFeatures", "writerFeatures")
        }
        old = self.metadata
        new = _metadata(old["id"], schema, old["partitionColumns"], old["configuration"])
        before = {field["name"]: field for field in json.loads(old["schemaString"])["fields"]}
        fields = json.loads(new["schemaString"])["fields"]
        for field in fields:
            changes = _type_changes(before[field["name"]]["type"], field["type"])
            former = before[field["name"]]["metadata"].get("delta.typeChanges", [])
            if both := [*former, *changes]:
                field["metadata"]["delta.typeChanges"] = both
        new["schemaString"] = json.dumps({"type": "struct", "fields": fields})
        new["configuration"]["delta.enableTypeWidening"] = "true"
        self.change(lambda _: [{"protocol": {**protocol, **needs}}, {"metaData": new}])

    def delete(self, ids: Iterable[int]) -> None:
        """Delete rows by deletion vectors, whatever file holds them."""
        wanted = set(ids)

        def vectors(files: dict[str, dict[str, Any]]) -> Actions:
            actions: list[dict[str, Any]] = []
            for path, add in files.items():
                before = set(self.deleted(add))
                stored = self.stored(path, ["id"])["id"].to_pylist()
                positions = {at for at, row in enumerate(stored) if row in wanted}
                if not positions <= before:
                    vector = self.vector(before | positions)
                    actions.append({"remove": removal(add, data_change=True)})
                    actions.append({"add": {**add, "deletionVector": vector}})
            return actions

        self.change(vectors)

    def delete_by_copy(self, ids: Iterable[int]) -> None:
        """Delete rows by writing the files that hold them anew."""
        wanted = set(ids)

        def copies(files: dict[str, dict[str, Any]]) -> Actions:
            actions: list[dict[str, Any]] = []
            for path, add in files.items():
                rows = self.rows_of(path, add)
                kept = rows.filter(pa.array([row not in wanted for row in rows["id"].to_pylist()]))
                if kept.num_rows < rows.num_rows:
                    actions.append({"remove": removal(add, data_change=True)})
                    actions.append({"add": self.write(kept, add["partitionValues"])})
            return actions

        self.change(copies)

    def delete_by_vector(self, path: str, positions: Iterable[int], storage: str = "u") -> int:
        """Delete rows of a live file by a deletion vector; return the version.

        Args:
            path: Decoded.
            positions: Deleted rows, all of them, those of its old vector too.
            storage: See `vector`.
        """
        add = self.live()[path]
        new = {**add, "dataChange": True, "deletionVector": self.vector(positions, storage)}
        new["stats"] = json.dumps({**json.loads(add["stats"]), "tightBounds": False})
        return self.commit(
            {"commitInfo": {"timestamp": 1, "operation": "DELETE"}},
            {"remove": removal(add, data_change=True)},
            {"add": new},
        )

    def vector(self, positions: Iterable[int], storage: str = "u") -> dict[str, Any]:
        """Write a deletion vector, and return its entry for the log.

        Args:
            positions: Of the deleted rows.
            storage: `u`, `p`: a file with two vectors, named in two ways; `i`: in the log.
        """
        bitmap = BitMap64(positions)
        data = MAGIC + bitmap.serialize()
        entry: dict[str, Any] = {"sizeInBytes": len(data), "cardinality": len(bitmap)}
        if storage == "i":
            return {"storageType": "i", "pathOrInlineDv": base85(data), **entry}
        other = MAGIC + BitMap64([7]).serialize()
        blocks = [_block(other), _block(data)]
        name = uuid.uuid4()
        path = f"deletion_vector_{name}.bin"
        obstore.put(self.store, path, b"\x01" + b"".join(blocks))
        root = self.uri if "://" in self.uri else f"file://{self.uri}"
        text = base85(name.bytes) if storage == "u" else f"{root}/{path}"
        offset = 1 + len(blocks[0])
        return {"storageType": storage, "pathOrInlineDv": text, "offset": offset, **entry}

    # ------------------------------------------------------------------------------------ Reading

    def deleted(self, add: Mapping[str, Any]) -> list[int]:
        """Return the deleted positions of a file."""
        vector = add.get("deletionVector")
        if not vector:
            return []
        text = vector["pathOrInlineDv"]
        if vector["storageType"] == "i":
            content = from_base85(text)[: vector["sizeInBytes"]]
        else:
            name = uuid.UUID(bytes=from_base85(text[-20:]))
            folder = f"{text[:-20]}/" if text[:-20] else ""
            read = obstore.get(self.store, f"{folder}deletion_vector_{name}.bin")
            body, at = bytes(read.bytes()), vector.get("offset", 0)
            (size,) = struct.unpack_from(">I", body, at)
            assert size == vector["sizeInBytes"], (size, vector)
            content = body[at + 4 : at + 4 + size]
            assert struct.unpack_from(">I", body, at + 4 + size) == (zlib.crc32(content),)
        assert content[:4] == MAGIC
        positions = list(BitMap64.deserialize(content[4:]))
        assert len(positions) == vector["cardinality"], vector
        return positions

    def rows_of(self, path: str, add: Mapping[str, Any]) -> pa.Table:
        """Return the live rows of a file, without partition columns."""
        rows, gone = self.stored(path), set(self.deleted(add))
        return rows.filter(pa.array([at not in gone for at in range(rows.num_rows)], pa.bool_()))

    def rows(self, version: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a version by `id`; partition values are texts."""
        fields = json.loads(self.metadata["schemaString"])["fields"]
        missing = dict.fromkeys(field["name"] for field in fields)
        rows: list[dict[str, Any]] = []
        for path, add in self.live(version).items():
            stored = self.rows_of(path, add).to_pylist()
            rows += [missing | row | add["partitionValues"] for row in stored]
        return sorted(rows, key=lambda row: row["id"])

    def stored(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """Return all rows of a data file."""
        data = obstore.get(self.store, path).bytes()
        return pq.ParquetFile(pa.BufferReader(data)).read(columns)

    # ---------------------------------------------------------------------------- Other libraries

    @property
    def table(self) -> deltalake.DeltaTable:
        """The table as deltalake opens it."""
        return deltalake.DeltaTable(self.uri, storage_options=self.options)

    def append_by_deltalake(
        self,
        rows: pa.Table,
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str | None] | None = None,
    ) -> None:
        """Append rows, and create the table if it is not there."""
        deltalake.write_deltalake(
            self.uri,
            rows,
            partition_by=list(partition_by) or None,
            mode="append",
            configuration=dict(configuration or {}) or None,
            storage_options=self.options,
        )

    def deltalake_rows(self, *columns: str) -> Counter[tuple[Any, ...]]:
        """Return the rows that deltalake's engine reads, with their counts."""
        names = ", ".join(f'"{name}"' for name in columns)
        engine = deltalake.QueryBuilder().register("t", self.table)
        read = pa.table(engine.execute(f"select {names} from t").read_all())
        return Counter(zip(*(read[name].to_pylist() for name in columns), strict=True))

    def polars_rows(self, *columns: str) -> Counter[tuple[Any, ...]]:
        """Return the rows that Polars reads, with their counts.

        Polars 2.1 ignores deletion vectors of files whose paths have a `%`.
        """
        frame = pl.scan_delta(self.uri, storage_options=self.options).select(columns).collect()
        return Counter(frame.rows())


def _metadata(
    table_id: str, schema: pa.Schema, partition_by: Sequence[str], properties: Mapping[str, str]
) -> dict[str, Any]:
    fields = [
        {
            "name": field.name,
            "type": _delta_type(field.type),
            "nullable": field.nullable,
            "metadata": {},
        }
        for field in schema
    ]
    return {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partition_by),
        "configuration": {**WITH_VECTORS, **properties},
        "createdTime": MADE_MS,
    }


def _delta_type(arrow: pa.DataType) -> Any:
    """Return a type as a log has it: a primitive one, or a list or struct of such."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow):
        element = _delta_type(arrow.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_struct(arrow):
        fields = [
            {"name": field.name, "type": _delta_type(field.type), "nullable": True, "metadata": {}}
            for field in arrow
        ]
        return {"type": "struct", "fields": fields}
    return _TYPES[arrow]


def _type_changes(old: Any, new: Any, path: str = "") -> list[dict[str, str]]:
    """Return the entries of a field whose type is widened; in structs, fields have their own."""
    if isinstance(old, dict):
        if old["type"] == "array":
            return _type_changes(old["elementType"], new["elementType"], "element")
        for before, field in zip(old["fields"], new["fields"], strict=True):
            if changes := _type_changes(before["type"], field["type"]):
                field["metadata"]["delta.typeChanges"] = changes
        return []
    entry = {"fromType": old, "toType": new, **({"fieldPath": path} if path else {})}
    return [entry] if old != new else []


def _block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["path"], json.dumps(entry.get("deletionVector") or None)
