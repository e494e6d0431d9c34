"""Recovery: fsck, gc, rebuild, backup and restore; long calls that report their progress."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeVar

from neve import api
from neve.client.errors import CallerError, NeveError, ProtocolError, error_of
from neve.client.http import Connection, Parameters, decode
from neve.client.tables import table_path

T = TypeVar("T")
OnProgress = Callable[[str], None]
CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 64 * 1024**2


class RecoveryCalls:
    """Client methods for the repair and recovery of metadata and files."""

    _connection: Connection

    def fsck(
        self,
        table: str,
        *,
        progress: OnProgress | None = None,
        repair: bool = False,
        deep: bool = False,
        adopt: bool = False,
        accept: bool = False,
        forget_missing: bool = False,
    ) -> api.FsckReport:
        """Check a table's metadata against its files. Without an option, nothing is written.

        Args:
            table: Name of the table.
            progress: Called with each progress update.
            repair: Repair the findings that can be repaired.
            deep: Decode every file, instead of reading only its footer.
            adopt: Make this store the owner of the location.
            accept: Accept that the store has gone back in time.
            forget_missing: Remove files from the table that are missing in storage.
        """
        options = api.FsckOptions(
            repair=repair, deep=deep, adopt=adopt, accept=accept, forget_missing=forget_missing
        )
        path = table_path(table, "fsck")
        return self._follow_lines(api.FsckReport, path, progress, body=asdict(options))

    def gc(
        self, table: str, *, delete: bool = False, progress: OnProgress | None = None
    ) -> api.GcReport:
        """Find files of the service that no metadata refers to.

        Args:
            table: Name of the table.
            delete: Hand the files to the collector, which deletes them after the grace period.
            progress: Called with each progress update.
        """
        return self._follow_lines(
            api.GcReport, table_path(table, "gc"), progress, parameters={"delete": delete}
        )

    def rebuild(
        self,
        location: str,
        name: str,
        *,
        progress: OnProgress | None = None,
        key: Sequence[str] = (),
        version_column: str | None = None,
        tombstone_column: str | None = None,
        time_column: str | None = None,
        partition_by: Sequence[str] = (),
        append_only: bool = False,
        user_files: bool = True,
        adopt: bool = False,
        dry_run: bool = False,
    ) -> api.RebuildReport:
        """Rebuild a table from the files of a location, after its metadata was lost.

        Args:
            location: URI of the folder of its files.
            name: Name of the new table.
            progress: Called with each progress update.
            key: As for `create_table`. The key and the columns are needed only if the location
                does not describe its table.
            version_column: As for `create_table`.
            tombstone_column: As for `create_table`.
            time_column: As for `create_table`.
            partition_by: As for `create_table`.
            append_only: The table has no key; needed only if the location does not describe it.
            user_files: Whether to add Parquet files that users wrote.
            adopt: Take over a location that belongs to another store.
            dry_run: Report what would be done, and change nothing.
        """
        lost = api.LostTable(
            location=location,
            name=name,
            key=tuple(key),
            version_column=version_column,
            tombstone_column=tombstone_column,
            time_column=time_column,
            partition_by=tuple(partition_by),
            append_only=append_only,
            user_files=user_files,
            adopt=adopt,
            dry_run=dry_run,
        )
        return self._follow_lines(api.RebuildReport, "/v1/rebuild", progress, body=asdict(lost))

    def backup(
        self,
        output: str | Path,
        tables: Sequence[str] = (),
        *,
        hold: str | float = 0,
        copy_to: str | None = None,
        progress: OnProgress | None = None,
    ) -> int:
        """Write the metadata of tables to a file, and return the size in bytes.

        Args:
            output: File to write, through a temporary file that is renamed when complete.
            tables: Names of the tables; empty: all.
            hold: How long the tables' files are kept after the backup, so that they can be
                copied: seconds or a text such as `"2h"`.
            copy_to: Location below which to copy the files as well.
            progress: Called with each progress update.

        Raises:
            CallerError: The output file cannot be created.
        """
        options = api.BackupOptions(tables=tuple(tables), hold=hold, copy_to=copy_to)
        with _new_file(Path(output)) as sink:
            stream = self._connection.stream("/v1/backup", {}, "POST", body=asdict(options))
            with stream as chunks:
                _write_archive(lines_of(chunks), sink.write, progress)
        return Path(output).stat().st_size

    def restore(
        self,
        archive: str | Path,
        *,
        names: Mapping[str, str] | None = None,
        locations: Mapping[str, str] | None = None,
        only: Sequence[str] = (),
        adopt: bool = False,
        dry_run: bool = False,
        progress: OnProgress | None = None,
    ) -> api.RestoreReport:
        """Create tables from an archive; their files must exist in their locations.

        Args:
            archive: A file written by `backup`.
            names: Name in the archive → new name.
            locations: Name in the archive → current location of the files.
            only: Names in the archive to restore; empty: all tables.
            adopt: Take over locations that belong to another store.
            dry_run: Report what would be done, and change nothing.
            progress: Called with each progress update.
        """
        parameters: Parameters = {
            "name": [f"{old}={new}" for old, new in (names or {}).items()],
            "location": [f"{name}={uri}" for name, uri in (locations or {}).items()],
            "only": list(only),
            "adopt": adopt,
            "dry_run": dry_run,
        }
        with _chunks_of(Path(archive)) as chunks:
            return self._follow_lines(
                api.RestoreReport,
                "/v1/restore",
                progress,
                parameters=parameters,
                content=chunks,
                headers={"Content-Type": api.ARCHIVE},
            )

    def _follow_lines(
        self,
        kind: type[T],
        path: str,
        progress: OnProgress | None,
        *,
        parameters: Parameters | None = None,
        **sent: Any,
    ) -> T:
        """Report the progress lines of an answer, and return the result from its last line."""
        with self._connection.stream(path, parameters or {}, "POST", **sent) as chunks:
            for line in lines_of(chunks):
                body = checked_line(line)
                if body["kind"] == "result":
                    return decode(kind, body["result"])
                if progress is not None:
                    progress(str(body.get("text", "")))
        raise ProtocolError("the service's answer ended before its result")


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file, and rename it to `path` when the block succeeds.

    Raises:
        CallerError: The file cannot be created.
        NeveError: Writing failed before the end.
    """
    if path.exists() and not path.is_file():
        raise CallerError(f"{path} cannot be written: it is a folder or a device, expected a file")
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        sink = part.open("xb")
    except OSError as error:
        raise CallerError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with sink:
            yield sink
        part.replace(path)
    except OSError as error:
        raise NeveError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def _chunks_of(path: Path) -> Iterator[Iterator[bytes]]:
    """Open a file, and yield an iterator over its chunks.

    Raises:
        CallerError: The file does not exist, or cannot be read.
    """
    try:
        source = path.open("rb")
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}") from error

    def chunks() -> Iterator[bytes]:
        try:
            yield from iter(lambda: source.read(CHUNK_BYTES), b"")
        except OSError as error:
            raise CallerError(f"{path} cannot be read: {error.strerror}") from error

    with source:  # A call that does not reach the service reads no chunk.
        yield chunks()


def lines_of(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of chunks, each with its line ending."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > LINE_BYTES_MAX:
            raise ProtocolError("the service's answer has a line without an end")


def checked_line(line: bytes) -> dict[str, Any]:
    """Return a decoded line, or raise the error that the line reports."""
    try:
        body = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"the service's answer is no line of JSON: {error}") from error
    if not isinstance(body, dict) or "kind" not in body:
        raise ProtocolError("the service's answer has a line of no kind; are the versions alike?")
    if body["kind"] == "error":
        raise error_of(int(body.get("status", 500)), body)
    return body


def _write_archive(
    lines: Iterator[bytes], write: Callable[[bytes], object], progress: OnProgress | None
) -> None:
    """Write the lines of an archive, and verify its digest."""
    digest, count = hashlib.sha256(), 0
    for line in lines:
        body = checked_line(line)
        if body["kind"] == "progress":
            if progress is not None:
                progress(str(body.get("text", "")))
            continue
        write(line)
        if body["kind"] == "end":
            if (body.get("lines"), body.get("sha256")) != (count, digest.hexdigest()):
                raise ProtocolError("the archive came with another digest than it should have")
            return
        digest.update(line)
        count += 1
    raise ProtocolError("the archive ended before its last line")
