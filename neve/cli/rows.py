"""`neve add`, `append`, `flush`, `call` and `scan`: write rows to tables and read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import typer

from common.errors import InputError, RequestError
from common.model.table import Column
from common.rows.schema import arrow_schema
from common.units import format_count
from neve import api, child_process
from neve.api.files import open_regular
from neve.cli import render
from neve.cli.session import Name, OptionalTablet, Panel, Session, names, verb

# ------------------------------------------------------------- Files with rows: Parquet, CSV, Arrow


ARROW = frozenset({".arrow", ".arrows", ".ipc", ".feather"})
KINDS = ".parquet, .csv or .arrow"


def read_rows(path: Path, columns: Callable[[], Sequence[api.Column]]) -> pa.Table:
    """Return the rows of a file.

    Args:
        path: The suffix determines the format; `-` is an Arrow stream on standard input.
        columns: Returns the table's columns; called for CSV files only.

    Raises:
        RequestError: The suffix is unknown.
        InputError: The file is missing or broken.
    """
    suffix = ".arrow" if str(path) == "-" else path.suffix.lower()
    try:
        if str(path) != "-" and suffix in (*ARROW, ".csv", ".parquet"):
            open_regular(path).close()
        if suffix == ".parquet":
            return _read_in_process("parquet", path)
        if suffix == ".csv":
            schema = arrow_schema(
                Column(column.name, column.type, column.nullable) for column in columns()
            )
            convert = pyarrow.csv.ConvertOptions(
                column_types={column.name: column.type for column in schema},
                strings_can_be_null=True,
            )
            return pyarrow.csv.read_csv(path, convert_options=convert)
        if suffix in ARROW:
            return _read_in_process("arrow", path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"file {path} cannot be read: {error}") from error
    raise RequestError(f"file {path} has the suffix {suffix!r}, expected {KINDS}")


def write_rows(path: Path, reader: pa.RecordBatchReader) -> int:
    """Write batches to a file as they arrive and return the number of rows.

    Args:
        path: The suffix determines the format.
        reader: Source of the batches.

    Raises:
        RequestError: The suffix is unknown.
    """
    suffix, rows = path.suffix.lower(), 0
    if suffix not in {".parquet", ".csv"} | ARROW:
        raise RequestError(f"file {path} has the suffix {suffix!r}, expected {KINDS}")
    try:
        with _writer(path, suffix, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"file {path} cannot be written: {error}") from error
    return rows


def _writer(
    path: Path, suffix: str, schema: pa.Schema
) -> pq.ParquetWriter | pa.csv.CSVWriter | pa.ipc.RecordBatchFileWriter:
    if suffix == ".parquet":
        return pq.ParquetWriter(path, schema)
    if suffix == ".csv":
        return pyarrow.csv.CSVWriter(str(path), schema)
    return pa.ipc.new_file(str(path), schema)


def _read_in_process(kind: str, path: Path) -> pa.Table:
    """Read a file in a separate process, because a damaged file may crash it."""
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", child_process.__name__, kind, str(path)]
    rows: pa.Table | None = None
    with subprocess.Popen(
        command, env=search, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None, command
        assert reader.stderr is not None, command
        try:
            rows = pa.ipc.open_stream(reader.stdout).read_all()
        except pa.ArrowException:
            rows = None  # The process ended early; its exit code gives the reason.
        cause = reader.stderr.read().decode(errors="replace").strip()
    if reader.returncode == 0 and rows is not None:
        return rows
    raise _read_error(path, reader.returncode, cause)


def _read_error(path: Path, code: int, cause: str) -> InputError:
    if code < 0:
        cause = f"it crashes the process that reads it ({signal.Signals(-code).name})"
    return InputError(f"file {path} cannot be read: {cause or 'it ends unexpectedly'}")


def read_schema(example: str | None, written: str | None) -> pa.Schema | None:
    """Return the schema from the user's input, or None if the service has to read the example.

    Args:
        example: A Parquet file; a file on this machine is read here.
        written: Columns, such as `id:int64,name:string not null`.

    Raises:
        RequestError: A column has no type or an unknown one.
        InputError: The example is not a Parquet file.
    """
    if written is not None:
        return arrow_schema(_parse_column(text) for text in _split_columns(written))
    if example is None or not Path(example).is_file():
        return None
    try:
        return pq.read_schema(example)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"file {example} cannot be read as Parquet: {error}") from error


def _split_columns(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _parse_column(text: str) -> Column:
    name, colon, kind = text.partition(":")
    if not colon or not name.strip():
        raise RequestError(f"column {text!r} is not of the form name:type")
    kind = kind.strip()
    nullable = not kind.endswith(" not null")
    return Column(name.strip(), kind.removesuffix(" not null"), nullable)


# -------------------------------------------------------------------------------------------- Verbs


LIMIT_DEFAULT = 20

Start = Annotated[
    str | None,
    typer.Option(help="First key, inclusive; with partitions, the first one, such as `2025,4`."),
]
End = Annotated[
    str | None, typer.Option(help="Last key, inclusive; with partitions, the last one.")
]


CallId = Annotated[
    str | None,
    typer.Option(help="Id of the call; a retry with the same id has no further effect."),
]


@verb("add", Panel.TABLES, "neve add users 2025/a.parquet 2025/b.parquet")
def add(
    session: Session,
    name: Name,
    paths: Annotated[
        list[str], typer.Argument(help="Files in the table's location.", metavar="FILE...")
    ],
    *,
    version: Annotated[
        int | None,
        typer.Option(help="Version of the files, from 1: they replace lower ones in the window."),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            help="Two dates or times in UTC, the end exclusive: `2026-05-01..2026-05-02`. Files of "
            "lower versions in it are replaced.",
            metavar="A..B",
        ),
    ] = None,
    call: CallId = None,
) -> None:
    """Add Parquet files in the table's location: all or none, at most 10,000.

    With --version and --window they replace the files of lower versions in a window of time.
    """
    files = [_path_for_service(path) for path in paths]
    added = session.client.add_files(name, files, version=version, window=window, call=call)
    session.show(added, render.add_sentence)


@verb("append", Panel.TABLES, "neve append users rows.csv")
def append(
    session: Session,
    name: Name,
    file: Annotated[
        Path,
        typer.Argument(
            help="Parquet, CSV or Arrow file; `-` reads an Arrow stream.", metavar="FILE"
        ),
    ],
    call: CallId = None,
    *,
    buffered: Annotated[
        bool,
        typer.Option(
            "--buffered",
            help="Buffer the rows until the service flushes them into files; at most 4 MiB.",
        ),
    ] = False,
) -> None:
    """Append the rows of a file on this machine."""
    rows = read_rows(file, lambda: session.client.describe(name).schema)
    if buffered:
        answer = session.client.buffer_rows(name, rows, call=call)
        session.show(answer, render.buffered_sentence)
        return
    session.show(session.client.append(name, rows, call=call), render.add_sentence)


@verb("flush", Panel.TABLES, "neve flush users")
def flush(session: Session, name: Name, tablet: OptionalTablet = None) -> None:
    """Flush the buffered rows of a table, and wait until they are in files.

    With a tablet: only the segments of the buffer with rows of it, whole. All tablets share them.
    """
    session.show(session.client.flush(name, tablet), render.flushed_sentence)


@verb("call", Panel.TABLES, "neve call users 019513d5-6c00-7000-8000-000000000000")
def call(
    session: Session,
    name: Name,
    call: Annotated[str, typer.Argument(help="Id of the call.", metavar="CALL")],
) -> None:
    """Show the outcome of a call: accepted, not accepted, or too old."""
    session.show(session.client.call(name, call), render.call_sentence)


@verb("scan", Panel.TABLES, "neve scan users --columns id,name --start 100 --end 200")
def scan(
    session: Session,
    name: Name,
    *,
    columns: Annotated[str | None, typer.Option(help="Column names, separated by commas.")] = None,
    start: Start = None,
    end: End = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file: .parquet, .csv or .arrow.")
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Maximum number of rows; 0 means all.")
    ] = LIMIT_DEFAULT,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
    include_expired: Annotated[
        bool | None,
        typer.Option(
            "--include-expired/--hide-expired",
            help="Include expired rows that no compaction has dropped, or not; by default as the "
            "table setting `show_expired_rows` says.",
        ),
    ] = None,
    include_deleted: Annotated[
        bool,
        typer.Option(
            "--include-deleted",
            help="Include tombstones that no compaction has dropped; with the table setting "
            "`keep_deleted_rows` each with the newest row that it hides.",
        ),
    ] = False,
) -> None:
    """Read a table: the newest row of each key, without deleted and expired rows."""
    expired, deleted = include_expired, include_deleted
    if count:
        rows = session.client.count(
            name, start, end, include_expired=expired, include_deleted=deleted
        )
        session.show({"rows": rows}, f"{rows:,}")
        return
    names_read = names(columns) or None
    reader = session.client.scan(
        name,
        names_read,
        start,
        end,
        batches=True,
        include_expired=expired,
        include_deleted=deleted,
    )
    if output is not None:
        rows = write_rows(output, reader)
        session.show(
            {"rows": rows, "output": str(output)}, f"wrote {format_count(rows, 'row')} to {output}"
        )
        return
    rows_read = (row for batch in reader for row in batch.to_pylist())
    first_rows = list(rows_read if limit <= 0 else islice(rows_read, limit))
    cells = [list(row.values()) for row in first_rows]
    session.show(
        first_rows, lambda _: render.grid([(name, "") for name in reader.schema.names], cells)
    )
    if limit > 0 and next(rows_read, None) is not None:
        session.say(
            f"only the first {format_count(limit, 'row')}; --limit 0 shows all, --output "
            "writes a file"
        )


def _path_for_service(path: str) -> str:
    """Return a path for the service: an absolute path if the file exists on this machine."""
    if "://" in path or not Path(path).exists():
        return path
    return str(Path(path).resolve())
