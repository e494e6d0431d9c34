"""Storage as the collector sees it: deletion and look-ups, in threads with deadlines."""

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from common.clock import Clock, SystemClock
from common.errors import ConfigError, RequestError, RewriteError, UnavailableError
from common.model.service_paths import MANIFEST_FOLDER
from common.parquet.location import only_copies, open_location
from common.parquet.manifest import delete_folder
from common.parquet.service_files import owner_of
from common.storage_threads import StorageThreads

P = ParamSpec("P")
T = TypeVar("T")
_ERRORS = (OSError, RequestError, ConfigError, UnavailableError)


class ArrowStorage:
    """The storage of all tables; credentials come from the environment's own chains."""

    def __init__(self, clock: Clock | None = None, threads: StorageThreads | None = None) -> None:
        """Read the time from `clock`, by default the machine's, and use these threads."""
        self._clock = clock or SystemClock()
        self._threads = threads or StorageThreads()

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        """Delete a file, or all manifests, unless it is too late; return whether it was there.

        Raises:
            RewriteError: It was too late, or the storage refused or did not answer.
        """
        return await self._asked(location, self._delete, location, path, until_s)

    async def store_id(self, location: str) -> str | None:
        """Return the id in `_neve/store` of a location, or None if there is none.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        return await self._asked(location, _store_id, location)

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        """Return the outputs that are whole although an input is missing.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        return await self._asked(location, _only_copies, location, outputs, inputs)

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
            # A thread may have waited for long: the last moment at which anybody can know.
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


def _store_id(location: str) -> str | None:
    try:
        return owner_of(open_location(location))
    except (UnavailableError, RequestError, ConfigError) as error:
        raise RewriteError(str(error)) from error


def _only_copies(location: str, outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    try:
        return only_copies(open_location(location), outputs, inputs)
    except _ERRORS as error:
        raise RewriteError(f"files of {location} cannot be looked at: {error}") from error
