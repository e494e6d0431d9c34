"""Calls of import and export: directories become tables, and tables are read by others."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from neve.api import (
    ImportProgress,
    ImportReport,
    NewImport,
)
from neve.client.errors import ProtocolError
from neve.client.http import Connection, decode
from neve.client.recovery import checked_line, lines_of
from neve.client.tables import table_path

OnImport = Callable[[ImportProgress], None]


class ImportCalls:
    """The part of the client that is about directories and other engines."""

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
    ) -> ImportReport:
        """Make a table of an existing directory of Parquet files; they stay where they are.

        Repeated after whatever went wrong, it goes on where it was.

        Args:
            location: URI of the directory, or an absolute path there.
            name: Of the table.
            progress: Hears how far it is.
            key: As for `create_table`, like the following four.
            version_column: Tells which row of a key is the newest.
            tombstone_column: True in rows that delete their key.
            time_column: For TTL and time windows.
            partition_by: None: what the folders say (`month=1/`).
            partition_types: Types of partition columns that no file has, if folders mislead.
            settings: Of the table, by name.
            timestamps: `us`: copy files with nanoseconds in microseconds; a value with more digits
                is refused. `us-truncated`: cut them off.
            leave_misfits: Import the files that fit, and leave those that do not.
            readers_use_manifest: Nobody reads the directory itself any more: it may be compacted.
            dry_run: Only say what would be done.
        """
        wanted = NewImport(
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
        return self._imported(wanted, progress)

    def _imported(self, wanted: NewImport, progress: OnImport | None) -> ImportReport:
        body = asdict(wanted)
        with self._connection.stream("/v1/import", {}, "POST", body=body) as chunks:
            for line in lines_of(chunks):
                told = checked_line(line)
                kind = told.pop("kind")
                if kind == "result":
                    return decode(ImportReport, told["result"])
                if progress is not None:
                    progress(decode(ImportProgress, told))
        raise ProtocolError("the service's answer ended before its result")

    def manifest(self, table: str) -> dict[str, Any]:
        """Return the manifest of this moment: what the table is, and every file of it."""
        found = self._connection.call("GET", table_path(table, "manifest"))
        if not isinstance(found, dict):
            raise ProtocolError("the service's answer is no manifest; are the versions alike?")
        return found

    def export(
        self,
        table: str,
        output: str | Path | None = None,
        *,
        names: bool = False,
        write: Callable[[bytes], object] | None = None,
    ) -> int:
        """Write the manifest of this moment; return its size in bytes.

        Args:
            table: Its name.
            output: A file: written beside it first, and renamed when it is whole.
            names: Only the absolute names of the files, a line each; else JSON.
            write: Takes the bytes as they come, instead of a file.
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
