"""Work of the command line in a separate process, which may crash or be killed.

    python -m neve.child_process parquet|arrow PATH
    python -m neve.child_process location URI

The first reads the rows of a file and writes them to standard output. Arrow may crash on a damaged
file, so the parent process gets either validated rows or a failure exit code. The path `-` is
standard input. The second tests a storage location, for `neve doctor --location`: clients of object
stores retry for many minutes and cannot be interrupted.
"""

import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

REFUSED = 3
"""Exit code if the work fails; standard error has one sentence with the cause."""


def main(arguments: Sequence[str]) -> int:
    """Do the work and return the exit code."""
    kind, subject = arguments
    return try_storage(subject) if kind == "location" else write_rows(kind, subject)


def write_rows(kind: str, path: str) -> int:
    """Read the file, write its rows, and return the exit code."""
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


def try_storage(uri: str) -> int:
    """Write, list, read and delete a small file; return the exit code."""
    # Imported here because rows are read without the service's packages.
    from common.errors import CompactionError
    from common.model.location_identity import SERVICE_FOLDER
    from common.parquet.location import open_location, try_location
    from common.runtime import SystemClock

    try:
        location = open_location(uri)
        path = f"{SERVICE_FOLDER}/doctor-{secrets.token_hex(6)}"
        took_s = try_location(location, path, SystemClock().now_s)
    except CompactionError as error:
        sys.stderr.write(str(error))
        return REFUSED
    steps = ", ".join(f"{step} {seconds * 1000:.0f} ms" for step, seconds in took_s.items())
    sys.stdout.write(f"{location.uri} can be written, listed, read and deleted ({steps})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
