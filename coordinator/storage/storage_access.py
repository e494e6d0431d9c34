"""Storage access of the coordinator: deletion, look-ups, free space, in threads with deadlines."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from common.errors import ConfigError, RequestError, RewriteError, UnavailableError
from common.model.location_identity import MANIFEST_FOLDER
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.parquet.location import only_copies, open_location
from common.parquet.manifest import delete_folder
from common.parquet.service_files import ForeignMark, LocationOwner, foreign_mark, read_owner
from common.primitives import BoundedMap
from common.runtime import Clock, SystemClock
from common.storage_threads import StorageThreads

P = ParamSpec("P")
T = TypeVar("T")
_ERRORS = (OSError, RequestError, ConfigError, UnavailableError)


class ArrowStorage:
    """The storage of all tables; credentials come from the environment's default chains."""

    def __init__(self, clock: Clock | None = None, threads: StorageThreads | None = None) -> None:
        """Create an instance with a clock, by default the system clock, and threads."""
        self._clock = clock or SystemClock()
        self._threads = threads or StorageThreads()

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        """Delete a file or all manifests before a deadline; return whether it existed.

        Raises:
            RewriteError: The deadline has passed, or the storage refused or did not answer.
        """
        return await self._asked(location, self._delete, location, path, until_s)

    async def owner(self, location: str) -> LocationOwner | None:
        """Return the owner according to the mark of a location, or None if there is no mark.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        return await self._asked(location, _owner, location)

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        """Return the complete outputs if an input is missing, else nothing.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        return await self._asked(location, _only_copies, location, outputs, inputs)

    async def foreign_mark(self, location: str, paths: Sequence[str]) -> ForeignMark | None:
        """Return the mark of another table format that owns a location or files in it.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        return await self._asked(location, _foreign_mark, location, paths)

    async def _asked(
        self, location: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return await self._threads.run(location, work, *args, **kwargs)
        except UnavailableError as error:
            raise RewriteError(str(error)) from error

    def _delete(self, location: str, path: str, until_s: float) -> bool:
        try:
            opened = open_location(location)
            # The thread may have waited for long, so check the deadline right before the deletion.
            if self._clock.now_s() > until_s:
                raise RewriteError(f"file {path} of {location} was looked at too long ago")
            if path == MANIFEST_FOLDER:
                delete_folder(opened, path)
                return True
            opened.filesystem.delete_file(opened.full(path))
        except FileNotFoundError:
            return False
        except _ERRORS as error:
            raise RewriteError(f"file {path} of {location} was not deleted: {error}") from error
        return True


def _owner(location: str) -> LocationOwner | None:
    try:
        return read_owner(open_location(location))
    except (UnavailableError, RequestError, ConfigError) as error:
        raise RewriteError(str(error)) from error


def _foreign_mark(location: str, paths: Sequence[str]) -> ForeignMark | None:
    try:
        return foreign_mark(open_location(location), paths)
    except _ERRORS as error:
        raise RewriteError(f"folders of {location} cannot be listed: {error}") from error


def _only_copies(location: str, outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    try:
        return only_copies(open_location(location), outputs, inputs)
    except _ERRORS as error:
        raise RewriteError(f"files of {location} cannot be listed: {error}") from error


# --------------------------------------------------------------------------------------- Free space
#
# A plan must not wait for the storage, so it uses the last measurement. Each read of a tablet
# starts a new measurement in the background if the last one is old. After the first measurement of
# a location, the tablet is replanned. Only tables with the setting `keep_free_bytes` are measured.


FRESH_S = 10.0
"""Age from which a measurement is repeated."""
LOCATIONS_MAX = 10_000


def measured_free_bytes(location: str) -> int | None:
    """Return the free space of a location; None if the storage reports no limit, for example S3.

    Raises:
        OSError: The folder does not exist or cannot be read.
    """
    parts = urlsplit(location)
    return shutil.disk_usage(url2pathname(parts.path)).free if parts.scheme == "file" else None


class FreeSpace:
    """The last measurement of each location."""

    def __init__(
        self, clock: Clock, threads: StorageThreads, ask: Callable[[TabletId], None]
    ) -> None:
        """Create an instance without measurements; `ask` requests the replan of a tablet."""
        self._clock = clock
        self._threads = threads
        self._ask = ask
        self._measured: BoundedMap[str, tuple[float, int | None]] = BoundedMap(LOCATIONS_MAX)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def of(self, table: Table) -> int | None:
        """Return the free space of a table's location; None if unknown or not requested."""
        measured = self._measured.get(table.location) if table.settings.keep_free_bytes else None
        return None if measured is None else measured[1]

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Start a measurement in a thread if the last one is old. Does not wait."""
        location = table.location
        if not table.settings.keep_free_bytes or location in self._under_way:
            return
        measured = self._measured.get(location)
        if measured is None or self._clock.now_s() - measured[0] >= FRESH_S:
            task = asyncio.get_running_loop().create_task(self._measure(location, tablet.id))
            self._under_way[location] = task

    async def _measure(self, location: str, tablet: TabletId) -> None:
        first = self._measured.get(location) is None
        try:
            free = await self._threads.run(location, measured_free_bytes, location)
        except (OSError, UnavailableError):
            return  # The next rewrite in this location reports the problem.
        finally:
            self._under_way.pop(location, None)
        self._measured.put(location, (self._clock.now_s(), free))
        if first:
            self._ask(tablet)
