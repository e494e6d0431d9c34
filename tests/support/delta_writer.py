"""Delta tables of other writers: deltalake, and raw versions for what deltalake cannot write."""

from __future__ import annotations

import io
import json
import struct
import uuid
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import obstore
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from obstore.store import LocalStore, S3Store
from pyarrow import parquet
from pyroaring import BitMap64

MAGIC = struct.pack("<i", 1_681_511_377)
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
WITH_VECTORS = {"delta.enableDeletionVectors": "true"}


class DeltaWriter:
    """A table in a folder or in S3, changed by other writers than Névé."""

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self.options = dict(options or {})
        if uri.startswith("s3://"):
            bucket, _, prefix = uri.removeprefix("s3://").partition("/")
            self.store: Any = S3Store(
                bucket,
                prefix=prefix,
                config={name.lower(): value for name, value in self.options.items()},
                client_options={"allow_http": True},
            )
        else:
            Path(uri).mkdir(parents=True, exist_ok=True)
            self.store = LocalStore(prefix=uri)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.options)

    @property
    def version(self) -> int:
        return self.table.version()

    def append(
        self,
        rows: pa.Table,
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str | None] | None = None,
    ) -> None:
        write_deltalake(
            self.uri,
            rows,
            partition_by=list(partition_by) or None,
            mode="append",
            configuration=dict(configuration or {}) or None,
            storage_options=self.options,
        )

    def stored(self, path: str) -> pa.Table:
        """Return all rows of a data file."""
        data = bytes(obstore.get(self.store, path).bytes())
        return parquet.ParquetFile(io.BytesIO(data)).read()

    def put(self, path: str, data: bytes) -> None:
        """Store a data file."""
        obstore.put(self.store, path, data)

    def stats(self, _head: object, _data: bytes, rows: int) -> str:
        """Return the statistics of a data file."""
        return json.dumps({"numRecords": rows})

    def delete_copying(self, predicate: str) -> None:
        """Delete rows as deltalake does: files with such rows are written again."""
        self.table.delete(predicate)

    def entries(self, version: int) -> list[dict[str, Any]]:
        data = bytes(obstore.get(self.store, f"_delta_log/{version:020}.json").bytes())
        return [json.loads(line) for line in data.splitlines()]

    def live(self) -> dict[str, dict[str, Any]]:
        """Return the live `add` entries by their path in the log. Reads versions one by one."""
        adds: dict[tuple[str, str], dict[str, Any]] = {}
        for version in range(self.version + 1):
            entries = self.entries(version)
            for entry in entries:
                if remove := entry.get("remove"):
                    adds.pop(_key(remove), None)
            for entry in entries:
                if add := entry.get("add"):
                    adds[_key(add)] = add
        return {path: add for (path, _), add in adds.items()}

    def commit(self, *lines: Mapping[str, Any], version: int | None = None) -> int:
        """Create the next version with these lines."""
        version = self.version + 1 if version is None else version
        text = "".join(json.dumps(line) + "\n" for line in lines)
        obstore.put(self.store, f"_delta_log/{version:020}.json", text.encode(), mode="create")
        return version

    def delete_by_vector(self, path: str, positions: Iterable[int], storage: str = "u") -> int:
        """Delete rows of a live file by a deletion vector; those of its old vector stay deleted.

        Args:
            path: As in the log.
            positions: Deleted rows, all of them.
            storage: `u`, `p`: a file with two vectors, named in two ways; `i`: in the log.
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
        """Write a deletion vector, and return its entry for the log."""
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
        text = base85(name.bytes) if storage == "u" else f"{self._absolute}/{path}"
        offset = 1 + len(blocks[0])
        return {"storageType": storage, "pathOrInlineDv": text, "offset": offset, **entry}

    @property
    def _absolute(self) -> str:
        return self.uri if "://" in self.uri else f"file://{self.uri}"

    def rows(self, *columns: str) -> Counter[tuple[Any, ...]]:
        """Return the rows that deltalake's engine reads, with their counts."""
        names = ", ".join(f'"{name}"' for name in columns)
        reader = QueryBuilder().register("t", self.table).execute(f"select {names} from t")
        table = pa.table(reader.read_all())
        return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))

    def polars_rows(self, *columns: str) -> Counter[tuple[Any, ...]]:
        """Return the rows that Polars reads, with their counts.

        Polars 2.1 ignores deletion vectors of files whose paths have a `%`.
        """
        frame = pl.scan_delta(self.uri, storage_options=self.options).select(columns).collect()
        return Counter(frame.rows())


def removal(add: Mapping[str, Any], data_change: bool = False) -> dict[str, Any]:
    """Return the `remove` of an `add`."""
    vector = {"deletionVector": add["deletionVector"]} if add.get("deletionVector") else {}
    return {
        "path": add["path"],
        "deletionTimestamp": 1,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": add["partitionValues"],
        "size": add["size"],
        **vector,
    }


def base85(data: bytes) -> str:
    """Return bytes in the Base85 of ZeroMQ, digit by digit."""
    text = ""
    data += bytes(-len(data) % 4)
    for begin in range(0, len(data), 4):
        word = int.from_bytes(data[begin : begin + 4], "big")
        text += "".join(ALPHABET[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


def _block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["path"], json.dumps(entry.get("deletionVector") or None)
