"""Reads a file with rows in a process of its own, and writes them to standard output.

    python -m neve.row_reader KIND PATH

Arrow does not survive every damaged file. Whoever reads what this process writes gets rows
that were validated, or an end that is no success. `-` is standard input.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

REFUSED = 3
"""Exit code if the file cannot be read; one sentence about it is on standard error."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
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
    """Read the file or the stream form."""
    if path == "-":
        return pa.ipc.open_stream(sys.stdin.buffer).read_all()
    try:
        return pa.ipc.open_file(path).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(Path(path).read_bytes()).read_all()


_READERS: dict[str, Callable[[str], pa.Table]] = {"parquet": pq.read_table, "arrow": _arrow}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
