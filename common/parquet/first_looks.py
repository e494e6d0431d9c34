"""First looks: files of others are opened by a reader process before they are opened here.

What is known to end a process that opens a Parquet file does so in its footer. So a service
that must read rows itself, because they are many, lets a reader open each file once before.
"""

import threading
from collections.abc import Sequence

from common.bounded import BoundedMap
from common.errors import CompactionError
from common.model.file import DataFile
from common.parquet.at_once import look_at_each
from common.parquet.inspect import opened
from common.parquet.location import Location
from common.readers.door import in_reader
from common.readers.pool import ReaderDeathError

AT_ONCE = 64
"""Files that a reader opens for one order."""
KNOWN_MAX = 50_000
"""Files whose looks are remembered, some 10 MB; those looked at longest ago are forgotten."""


class FirstLooks:
    """Which files a reader has opened and lived. For many threads."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        """Know of none."""
        self._lock = threading.Lock()
        self._known: BoundedMap[tuple[str, str], None] = BoundedMap(known_max)

    def take(self, location: Location, files: Sequence[DataFile]) -> None:
        """Let a reader open those files that no job wrote and none has opened yet. Blocks.

        Args:
            location: Of their table.
            files: Which are about to be opened in this process.

        Raises:
            RequestError: One of them is missing, is not Parquet, is damaged, or ends whoever
                opens it.
            UnavailableError: The storage does not answer.
        """
        paths = [file.path for file in files if file.job is None]
        with self._lock:
            fresh = [path for path in paths if (location.uri, path) not in self._known]
        for first in range(0, len(fresh), AT_ONCE):
            some = fresh[first : first + AT_ONCE]
            _look(location, some)
            self._note(location, some)

    def _note(self, location: Location, paths: Sequence[str]) -> None:
        with self._lock:
            for path in paths:
                self._known.put((location.uri, path), None)


def _look(location: Location, paths: Sequence[str]) -> None:
    try:
        errors = open_files(location, paths)
    except ReaderDeathError:
        # One of them did it: each for itself tells which.
        for path in paths:
            open_file(location, path)
        return
    for error in errors:
        if error is not None:
            raise error


@in_reader("some files")
def open_files(location: Location, paths: Sequence[str]) -> list[CompactionError | None]:
    """Open files; return what `open_file` raises for each, in their order."""

    def look(path: str) -> CompactionError | None:
        try:
            open_file(location, path)
        except CompactionError as error:
            return error
        return None

    return look_at_each(location, look, paths)


@in_reader("file {path}")
def open_file(location: Location, path: str) -> None:
    """Open a file, which reads its footer.

    Raises:
        RequestError: It is missing, not Parquet or damaged.
        UnavailableError: The storage does not answer.
    """
    with opened(location, path) as file:
        _ = file.schema_arrow
