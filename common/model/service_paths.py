"""Paths in a table's location that only the service writes: the folder `_neve`. Names only.

The names of an append's files carry the call, the try, and the number of files:

    <call>-<try>-<number>of<count>.parquet

A repeated call writes its rows anew, and only the files of one try are added. A rebuild without
metadata recognises complete tries by these names (`neve.recovery.rebuild.live_files`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

SERVICE_FOLDER = "_neve"
APPEND_FOLDER = f"{SERVICE_FOLDER}/append"
DESCRIPTION_PATH = f"{SERVICE_FOLDER}/table.json"
GENERATION_PATH = f"{SERVICE_FOLDER}/generation"
MANIFEST_FOLDER = f"{SERVICE_FOLDER}/manifest"
COPIED_FOLDER = f"{SERVICE_FOLDER}/copied"
"""Lists of users' files that an import has copied; a folder for each table's id."""
GUARDS_FOLDER = f"{SERVICE_FOLDER}/guards"
GUARD_NAME = "000-READ-WITH-neve.read-OR-THE-MANIFEST.parquet"
"""A file with this name makes plain readers of a directory fail (`common.parquet.read_guard`)."""
PUBLISHED_PATH = f"{SERVICE_FOLDER}/published"
"""Lists the marks of other table formats that the service itself has written."""

DELETED_WITH_TABLE = (MANIFEST_FOLDER, DESCRIPTION_PATH, GENERATION_PATH)
"""Files that `drop` deletes if it deletes files; the owner mark stays."""


def is_guard(path: str) -> bool:
    """Return whether a path is that of a guard file, which holds no data."""
    return path.rpartition("/")[2] == GUARD_NAME


def is_service_path(path: str) -> bool:
    """Return whether only the service writes a path, given relative to the location."""
    return path.startswith(f"{SERVICE_FOLDER}/")


# ------------------------------------------------------------------------------- Files of an append


_UUID = "-".join(f"[0-9a-f]{{{length}}}" for length in (8, 4, 4, 4, 12))
_NAME = re.compile(
    rf"(?P<call>{_UUID})-(?P<try>.+)-(?P<number>[0-9]+)of(?P<count>[0-9]+)\.parquet", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class AppendTry:
    """One try of an append."""

    call: str
    id: str
    count: int
    """Number of its files."""


def append_file_names(call: str, attempt: str, count: int) -> Sequence[str]:
    """Return the names of all files of a try.

    Args:
        call: The caller's id of the call, a UUID.
        attempt: Unique id of the try.
        count: Number of files.
    """
    return [f"{call}-{attempt}-{number}of{count}.parquet" for number in range(1, count + 1)]


def append_try_of(path: str) -> AppendTry | None:
    """Return the try of a file, from its path; None: it is not a file of an append."""
    if not path.startswith(f"{APPEND_FOLDER}/"):
        return None
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    return AppendTry(match["call"].lower(), match["try"], int(match["count"]))
