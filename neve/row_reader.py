"""Reads the rows of a file in a separate process, and writes them to standard output.

    python -m neve.row_reader KIND PATH

Arrow may crash on a damaged file. The parent process therefore gets either validated rows or a
failure exit code. The path `-` is standard input.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

REFUSED = 3
"""Exit code if the file cannot be read; standard error has one sentence with the cause."""


def main(arguments: Sequence[str]) -> int:
    """Read the file, write its rows, and return the exit code."""
    kind, path = arguments
    try:
        rows = _READERS[kind](path)
        rows.validate(full=True)
        with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as writer:
            writer.write_table(rows)
    except (OSError, pa.ArrowException, MemoryError, UnicodeDecodeError) as error:
        sys.stderr.write(str(error) or type(error).__name__)
        return REFUSED
    return 0


def _arrow(path: str) -> pa.Table:
    """Read Arrow's file format or its stream format."""
    if path == "-":
        return pa.ipc.open_stream(sys.stdin.buffer).read_all()
    try:
        return pa.ipc.open_file(path).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(Path(path).read_bytes()).read_all()


_READERS: dict[str, Callable[[str], pa.Table]] = {"parquet": pq.read_table, "arrow": _arrow}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
