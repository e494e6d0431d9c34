"""Tests a storage location in a separate process, for `neve doctor --location`.

    python -m neve.storage_trial URI

Clients of object stores retry for many minutes and cannot be interrupted; a separate process can be
killed.
"""

import secrets
import sys
from collections.abc import Sequence

from common.errors import CompactionError
from common.model.location_identity import SERVICE_FOLDER
from common.parquet.location import open_location, try_location
from common.runtime import SystemClock

REFUSED = 3
"""Exit code if a step fails; standard error has one sentence with the cause."""


def main(arguments: Sequence[str]) -> int:
    """Write, list, read and delete a small file; return the exit code."""
    (uri,) = arguments
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
