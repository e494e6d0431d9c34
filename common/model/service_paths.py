"""Paths in a table's location that only the service writes: the folder `_neve`. Names only.

The files of one append tell the call, the try, and how many there are:

    <call>-<try>-<number>of<count>.parquet

A call that is tried again writes its rows anew, and only the files of one try are added. The
names let a rebuild find that out when nothing else is left (`neve.recovery.rebuild.live_files`).
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
"""A file of this name makes plain readers of a directory fail (`common.parquet.read_guard`)."""
PUBLISHED_PATH = f"{SERVICE_FOLDER}/published"
"""Names the marks of other table formats that the service itself has written."""

DELETED_WITH_TABLE = (MANIFEST_FOLDER, DESCRIPTION_PATH, GENERATION_PATH)
"""What a drop deletes if it was to delete files; the mark of the owner stays."""


def is_guard(path: str) -> bool:
    """Return whether a path is that of a guard, which is no data and no user's file."""
    return path.rpartition("/")[2] == GUARD_NAME


def is_service_path(path: str) -> bool:
    """Return whether a path, relative to the location, is one that only the service writes."""
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
    """Of its files."""


def append_file_names(call: str, attempt: str, count: int) -> Sequence[str]:
    """Return the names of all files of a try.

    Args:
        call: The caller's id of the call, a UUID.
        attempt: The try's id; no two are alike.
        count: How many files there are.
    """
    return [f"{call}-{attempt}-{number}of{count}.parquet" for number in range(1, count + 1)]


def append_try_of(path: str) -> AppendTry | None:
    """Return the try that a file is of, by its path; None: it does not say it, or is a user's."""
    if not path.startswith(f"{APPEND_FOLDER}/"):
        return None
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if found is None:
        return None
    return AppendTry(found["call"].lower(), found["try"], int(found["count"]))
