"""Where the tables of a stack may be, if its settings do not say it.

    gateway.locations   is what the operator says: nothing is added but `--allow`
    else                the user's home, the working directory of `neve up`, the folder for
                        temporary files, what earlier `neve up` and `--allow` have named

Always: `tables` in the stack's folder, and nothing else of it: secrets, logs and the data
of Redis lie there. Its private folder among temporary files is as closed. Buckets have to
be named.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from common.errors import ConfigError
from common.model.location_identity import is_system_path
from common.settings import GatewaySettings
from neve.local.state import StackFolder, write_secret
from neve.local.temporary import make_private

REMEMBERED_MAX = 100


def with_locations(
    given: GatewaySettings,
    folder: StackFolder,
    private: Path,
    allow: Iterable[str],
    environ: Mapping[str, str],
) -> GatewaySettings:
    """Return the gateway's settings with the places that tables may be in.

    Args:
        given: By the operator.
        folder: The stack's; what is named here is remembered there.
        private: Its folder of what lives as long as it runs: sockets, scratch.
        allow: Named for this start and later ones: folders, buckets, prefixes.
        environ: Of the user, where home and temporary files are looked up.

    Raises:
        ConfigError: One of them is none, or is the system's.
    """
    # Here, so that what only names a stack's folder starts fast.
    from neve.gateway.storage import locations_of

    make_private(folder.tables)
    named = [*_remembered(folder), *map(absolute, allow)]
    usual = [] if given.locations else [*_usual(environ)]
    every = dict.fromkeys((*given.locations, *usual, *named, str(folder.tables)))
    closed = (*given.private_folders, str(folder.path), str(private))
    settings = replace(given, locations=tuple(every), private_folders=closed)
    locations_of(settings)
    kept = [each for each in dict.fromkeys((*named, *usual)) if each in every]
    write_secret(folder.locations_file, json.dumps(kept[-REMEMBERED_MAX:]))
    return settings


def absolute(written: str) -> str:
    """Return a folder or prefix as the service names it; a relative path is meant from here."""
    return written if "://" in written else os.path.abspath(os.path.expanduser(written))


def _usual(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders of the user who starts the stack, but none that holds everything."""
    try:
        working = os.getcwd()
    except OSError:  # It has been removed under us.
        working = ""
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    for path in (environ.get("HOME", ""), working, temporary):
        if path.strip("/") and not is_system_path(os.path.realpath(path)):
            yield os.path.realpath(path)


def _remembered(folder: StackFolder) -> list[str]:
    try:
        known = json.loads(folder.locations_file.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder.locations_file} is not readable: {error}") from None
    return [str(each) for each in known]
