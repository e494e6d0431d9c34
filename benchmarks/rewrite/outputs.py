"""What contenders have written: rows and values, codec and row groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from benchmarks.rewrite.wanted import THREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Facts about the outputs of a run."""

    files: int
    rows: int
    size_bytes: int
    digest: str
    """Of all columns of all rows, whatever their order and the files."""
    codecs: tuple[str, ...]
    group_rows: int
    """Rows of the largest row group."""


def inspect_outputs(files: Sequence[str], like: str) -> Output:
    """Read everything that a run has written.

    Args:
        files: Paths of its outputs, at least one.
        like: Path of an input: values are compared as values of its types, since some engines
            write others of the same meaning.
    """
    codecs, group_rows = set(), 0
    for file in files:
        footer = pq.read_metadata(file)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            group_rows = max(group_rows, group.num_rows)
            codecs |= {group.column(at).compression.lower() for at in range(group.num_columns)}
    rows, digest = row_digest(files, like)
    return Output(
        files=len(files),
        rows=rows,
        size_bytes=sum(Path(file).stat().st_size for file in files),
        digest=digest,
        codecs=tuple(sorted(codecs)),
        group_rows=group_rows,
    )


def row_digest(files: Sequence[str], like: str) -> tuple[int, str]:
    """Return the number of rows and the sum of the hashes of all rows, over all columns.

    Args:
        files: Paths of Parquet files.
        like: Path of a file with the columns and types that count.
    """
    with duckdb.connect(config={"threads": THREADS}) as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.execute("SET TimeZone = 'UTC'")
        described = connection.execute("DESCRIBE SELECT * FROM read_parquet($1)", [like])
        values = ", ".join(_value(name, kind) for name, kind, *_ in described.fetchall())
        query = f"SELECT count(*), sum(hash({values})) FROM read_parquet($1)"
        answer = connection.execute(query, [list(files)]).fetchone()
    assert answer is not None
    return int(answer[0]), str(answer[1])


def _value(name: str, kind: str) -> str:
    if kind.startswith("TIMESTAMP"):  # Their units differ between writers.
        return f'epoch_us("{name}"::TIMESTAMP)'
    return f'"{name}"::{kind}'
