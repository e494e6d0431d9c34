"""Import and export: register directories as tables, and write manifests for other engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from neve import api
from neve.client.errors import ProtocolError
from neve.client.http import Connection, decode
from neve.client.recovery import checked_line, lines_of
from neve.client.tables import table_path

OnImport = Callable[["api.ImportProgress"], None]


class ImportCalls:
    """Client methods for imports and exports."""

    _connection: Connection

    def import_table(
        self,
        location: str,
        name: str,
        *,
        progress: OnImport | None = None,
        key: Sequence[str] = (),
        version_column: str | None = None,
        tombstone_column: str | None = None,
        time_column: str | None = None,
        partition_by: Sequence[str] | None = None,
        partition_types: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        timestamps: Literal["us", "us-truncated"] | None = None,
        leave_misfits: bool = False,
        readers_use_manifest: bool = False,
        dry_run: bool = False,
    ) -> api.ImportReport:
        """Register an existing directory of Parquet files as a table, without moving the files.

        Repeat the call after a failure; the import continues where it stopped.

        Args:
            location: URI of the directory, or an absolute path on the service's machine.
            name: Name of the new table.
            progress: Called with each progress update.
            key: Sort and primary key, as for `create_table`.
            version_column: Column that orders the rows of a key; the highest version is the newest.
            tombstone_column: Boolean column that is true in rows that delete their key.
            time_column: Column that TTL and time windows use.
            partition_by: Partition columns; None: take them from the folder names (`month=1/`).
            partition_types: Types of partition columns that no file contains, if the types
                inferred from the folder names are wrong.
            settings: Table settings, by name.
            timestamps: `us`: copy files that have nanosecond timestamps, and store microseconds;
                reject values that are finer. `us-truncated`: truncate those values.
            leave_misfits: Import the files that fit, and skip the others.
            readers_use_manifest: Confirm that all readers use the manifest instead of listing the
                directory, so that the table may be compacted.
            dry_run: Report what would be done, and change nothing.
        """
        body = api.NewImport(
            location=location,
            name=name,
            key=tuple(key),
            version_column=version_column,
            tombstone_column=tombstone_column,
            time_column=time_column,
            partition_by=None if partition_by is None else tuple(partition_by),
            partition_types=dict(partition_types or {}),
            settings=dict(settings or {}),
            timestamps=timestamps,
            leave_misfits=leave_misfits,
            readers_use_manifest=readers_use_manifest,
            dry_run=dry_run,
        )
        return self._imported(body, progress)

    def _imported(self, options: api.NewImport, progress: OnImport | None) -> api.ImportReport:
        body = asdict(options)
        with self._connection.stream("/v1/import", {}, "POST", body=body) as chunks:
            for line in lines_of(chunks):
                message = checked_line(line)
                kind = message.pop("kind")
                if kind == "result":
                    return decode(api.ImportReport, message["result"])
                if progress is not None:
                    progress(decode(api.ImportProgress, message))
        raise ProtocolError("the service's answer ended before its result")

    def manifest(self, table: str) -> dict[str, Any]:
        """Return the current manifest: the description of a table and all its files."""
        answer = self._connection.call("GET", table_path(table, "manifest"))
        if not isinstance(answer, dict):
            raise ProtocolError("the service's answer is no manifest; are the versions alike?")
        return answer

    def export(
        self,
        table: str,
        output: str | Path | None = None,
        *,
        names: bool = False,
        write: Callable[[bytes], object] | None = None,
    ) -> int:
        """Write the current manifest of a table, and return the size in bytes.

        Args:
            table: Name of the table.
            output: File to write, through a temporary file that is renamed when complete.
            names: Write only the absolute file names, one per line, instead of JSON.
            write: Called with each chunk of bytes if there is no `output`.
        """
        path = table_path(table, "manifest", *(["files"] if names else []))
        if output is None:
            return self._streamed(path, write or (lambda _: None))
        target = Path(output)
        part = target.with_name(target.name + ".part")
        try:
            with part.open("wb") as sink:
                size_bytes = self._streamed(path, sink.write)
            part.replace(target)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return size_bytes

    def _streamed(self, path: str, write: Callable[[bytes], object]) -> int:
        size_bytes = 0
        with self._connection.stream(path, {}) as chunks:
            for chunk in chunks:
                write(chunk)
                size_bytes += len(chunk)
        return size_bytes
