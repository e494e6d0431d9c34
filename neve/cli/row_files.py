"""Files with rows on this machine: Parquet, CSV, Arrow."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from common.errors import InputError, RequestError
from common.model.table import Column
from common.rows.schema import arrow_schema
from neve import api, row_reader

ARROW = frozenset({".arrow", ".arrows", ".ipc", ".feather"})
KINDS = ".parquet, .csv or .arrow"


def read(path: Path, columns: Callable[[], Sequence[api.Column]]) -> pa.Table:
    """Return the rows of a file.

    Args:
        path: Its suffix tells its kind; `-` is an Arrow stream on standard input.
        columns: Asked for the table's, which tell what the texts of a CSV file mean.

    Raises:
        RequestError: The suffix is not known.
        InputError: It is missing or broken.
    """
    suffix = ".arrow" if str(path) == "-" else path.suffix.lower()
    try:
        if suffix == ".parquet":
            return _read_apart("parquet", path)
        if suffix == ".csv":
            known = arrow_schema(Column(each.name, each.type, each.nullable) for each in columns())
            convert = pyarrow.csv.ConvertOptions(
                column_types={each.name: each.type for each in known}, strings_can_be_null=True
            )
            return pyarrow.csv.read_csv(path, convert_options=convert)
        if suffix in ARROW:
            return _read_apart("arrow", path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"file {path} cannot be read: {error}") from error
    raise RequestError(f"file {path} has the suffix {suffix!r}, wanted {KINDS}")


def write(path: Path, reader: pa.RecordBatchReader) -> int:
    """Write batches to a file as they come and return how many rows there were.

    Args:
        path: Its suffix tells its kind.
        reader: Where they come from.

    Raises:
        RequestError: The suffix is not known.
    """
    suffix, rows = path.suffix.lower(), 0
    if suffix not in {".parquet", ".csv"} | ARROW:
        raise RequestError(f"file {path} has the suffix {suffix!r}, wanted {KINDS}")
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
) -> "pq.ParquetWriter | pa.csv.CSVWriter | pa.ipc.RecordBatchFileWriter":
    if suffix == ".parquet":
        return pq.ParquetWriter(path, schema)
    if suffix == ".csv":
        return pyarrow.csv.CSVWriter(str(path), schema)
    return pa.ipc.new_file(str(path), schema)


def _read_apart(kind: str, path: Path) -> pa.Table:
    """Have a process of its own read a file: a damaged one may end it."""
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", row_reader.__name__, kind, str(path)]
    rows: pa.Table | None = None
    with subprocess.Popen(
        command, env=search, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None, command
        assert reader.stderr is not None, command
        try:
            rows = pa.ipc.open_stream(reader.stdout).read_all()
        except pa.ArrowException:
            rows = None  # It broke off: how the process ended says why.
        said = reader.stderr.read().decode(errors="replace").strip()
    if reader.returncode == 0 and rows is not None:
        return rows
    raise _failed(path, reader.returncode, said)


def _failed(path: Path, code: int, said: str) -> InputError:
    if code < 0:
        said = f"it ends the process that reads it ({signal.Signals(-code).name})"
    return InputError(f"file {path} cannot be read: {said or 'it breaks off'}")


def read_schema(example: str | None, written: str | None) -> pa.Schema | None:
    """Return the schema that a user gave, or None if the service has to read the example.

    Args:
        example: A Parquet file; if it lies on this machine, it is read here.
        written: Columns as `id:int64,name:string not null`.

    Raises:
        RequestError: A column has no type, or one that is not known.
        InputError: The example is no Parquet file.
    """
    if written is not None:
        return arrow_schema(_column(text) for text in _split(written))
    if example is None or not Path(example).is_file():
        return None
    try:
        return pq.read_schema(example)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"file {example} cannot be read as Parquet: {error}") from error


def _split(written: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    parts, depth = [""], 0
    for letter in written:
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _column(text: str) -> Column:
    name, colon, kind = text.partition(":")
    if not colon or not name.strip():
        raise RequestError(f"column {text!r} is not of the form name:type")
    kind = kind.strip()
    nullable = not kind.endswith(" not null")
    return Column(name.strip(), kind.removesuffix(" not null"), nullable)
