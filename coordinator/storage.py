"""Deletion of replaced files, through Arrow's file systems, off the event loop."""

import asyncio

from common.errors import ConfigError, RequestError, RewriteError, UnavailableError
from common.model.own_paths import MANIFEST_FOLDER
from common.parquet.location import open_location
from common.parquet.manifest_files import delete_folder
from common.parquet.owner import owner_of


class ArrowStorage:
    """The storage of all tables; credentials come from the environment's own chains."""

    async def delete(self, location: str, path: str) -> bool:
        """Delete a file, or all manifests; return whether it was there.

        Raises:
            RewriteError: The storage refused or did not answer; try again later.
        """
        return await asyncio.to_thread(_delete, location, path)

    async def store_id(self, location: str) -> str | None:
        """Return the id in `_neve/store` of a location, or None if there is none.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        return await asyncio.to_thread(_store_id, location)


def _delete(location: str, path: str) -> bool:
    try:
        opened = open_location(location)
        if path == MANIFEST_FOLDER:
            delete_folder(opened, path)
            return True
        opened.filesystem.delete_file(opened.full(path))
    except FileNotFoundError:
        return False
    except (OSError, RequestError, ConfigError, UnavailableError) as error:
        raise RewriteError(f"file {path} of {location} was not deleted: {error}") from error
    return True


def _store_id(location: str) -> str | None:
    try:
        return owner_of(open_location(location))
    except (UnavailableError, RequestError, ConfigError) as error:
        raise RewriteError(str(error)) from error
