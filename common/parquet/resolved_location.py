"""Identities of locations on this machine: links, bind mounts and inode numbers resolved.

A local folder has several names (`common.model.location_identity`). For a folder that does not
exist, the nearest existing parent and the rest of the path are used. Arrow is not loaded: `neve up`
checks the locations of its settings.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from common.model.location_identity import (
    LocationIdentity,
    canonical_scheme,
    identity_of_uri,
    normal_path,
    s3_access,
)

SCHEMES = ("file", "s3", "gs", "abfs", "abfss")
MOUNTS_FILE = Path("/proc/self/mountinfo")
AZURE_ACCOUNT_VARIABLE = "AZURE_STORAGE_ACCOUNT"
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system, or a folder of one."""

    device: str
    folder: str
    """The mounted folder of the file system; empty: its root."""
    point: str
    """The mount point; empty: the root."""


@dataclass(frozen=True, slots=True)
class ResolvedLocation:
    """A location as it is used: its canonical URI, and its identity."""

    uri: str
    identity: LocationIdentity


def read_mounts(file: Path = MOUNTS_FILE) -> tuple[Mount, ...]:
    """Return the mounts in mounting order; empty if the system does not list them."""
    try:
        lines = file.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ()
    words = (line.split(" ") for line in lines)
    return tuple(
        Mount(device, _plain(folder), _plain(point))
        for _, _, device, folder, point, *_ in (word for word in words if len(word) > 5)
    )


def _plain(written: str) -> str:
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), written).rstrip("/")


def resolve_location(
    uri: str,
    mounts: Iterable[Mount] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ResolvedLocation:
    """Return a location as it is on this machine now; its URI has no links in it.

    Args:
        uri: URI of the location, in its normal form.
        mounts: The mounts; None: read from the system.
        environ: Source of object store endpoints; None: the environment of the process.
    """
    return _Machine(mounts, environ).site_of(uri)


def identities_of(locations: Mapping[str, str]) -> dict[str, LocationIdentity]:
    """Return the present identities of locations, by the same keys; links may have changed.

    Args:
        locations: Any key → URI.
    """
    machine = _Machine()
    return {key: machine.site_of(uri).identity for key, uri in locations.items()}


class _Machine:
    """Cached facts about this machine: folders that tables share are read only once."""

    def __init__(
        self, mounts: Iterable[Mount] | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._endpoints = endpoints(os.environ if environ is None else environ)
        # Of two mounts at one point, the later one hides the other.
        self._mounts = {
            read_mount.point: read_mount
            for read_mount in (read_mounts() if mounts is None else mounts)
        }
        self._real: dict[str, str] = {"": ""}
        self._number: dict[str, str] = {}

    def site_of(self, uri: str) -> ResolvedLocation:
        """Return a location as it is now."""
        path = _local_path(uri)
        if path is None:
            return ResolvedLocation(uri, identity_of_uri(uri, self._endpoints))
        real = self._real_path(path)
        numbers = tuple(self._numbers(real))
        names = (f"file:{real}", *self._mounted(real), *numbers[:1])
        return ResolvedLocation(f"file://{quote(real)}", LocationIdentity(names, numbers[1:]))

    def _real_path(self, path: str) -> str:
        """Return a path without links."""
        above, _, base_name = path.rpartition("/")
        if base_name == "..":
            return _resolved(path)
        if above not in self._real:
            self._real[above] = _resolved(above)
        real = f"{self._real[above]}/{base_name}" if base_name else self._real[above]
        return _resolved(real) if os.path.islink(real) else real

    def _mounted(self, real: str) -> Iterator[str]:
        """Yield the name of a path within its file system, which no bind mount changes."""
        for folder in _up_from(real):
            mount = self._mounts.get(folder)
            if mount is not None:
                yield f"mount {mount.device}:{mount.folder}{real[len(folder) :]}"
                return

    def _numbers(self, real: str) -> Iterator[str]:
        """Yield the names of a path by the inode number of each parent folder, nearest first."""
        for folder in _up_from(real):
            if folder not in self._number:
                self._number[folder] = _number_of(folder or "/")
            if number := self._number[folder]:
                yield f"inode {number}:{real[len(folder) :]}"


def _local_path(uri: str) -> str | None:
    """Return the path of a local location; None: it is not of this machine."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if canonical_scheme(parts.scheme) != "file":
        return None
    path = unquote(parts.path)
    # A link may lead elsewhere than its text suggests, so the machine resolves `..`.
    return path.rstrip("/") if ".." in path.split("/") else normal_path(path)


def _resolved(path: str) -> str:
    try:
        return os.path.realpath(path or "/").rstrip("/")
    except (OSError, ValueError):  # An unreadable link, or an invalid byte in the path.
        return normal_path(path)


def _up_from(real: str) -> Iterator[str]:
    """Yield a path and all folders above it, the root as an empty text."""
    yield real
    while real:
        real = real.rpartition("/")[0]
        yield real


def _number_of(folder: str) -> str:
    """Return device and inode of a folder; empty: it is not there, or not for us to look at."""
    try:
        status = os.stat(folder)
    except (OSError, ValueError):
        return ""
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}:{status.st_ino}"


def endpoints(environ: Mapping[str, str]) -> dict[str, str]:
    """Return where object stores are whose URIs do not say it."""
    return {"s3": s3_access(environ)[0], "abfs": environ.get(AZURE_ACCOUNT_VARIABLE, "")}
