"""A table's location, and the paths that may be in it.

Whoever adds a file names a path; none may lead out of the table's own folder: neither
with `..`, nor with another scheme or bucket, nor through a link.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as arrow_fs

from common.errors import ConfigError, RequestError, UnavailableError
from common.model.location_identity import canonical_scheme
from common.parquet.object_store import cause_of, s3_filesystem

MAGIC = b"PAR1"
"""What a Parquet file ends with; one that was broken off does not."""
SCHEMES = ("file", "s3", "gs", "abfs", "abfss")


@dataclass(frozen=True, slots=True)
class Location:
    """A folder in some storage. `root` is the filesystem's own name for it, without a slash."""

    uri: str
    filesystem: arrow_fs.FileSystem
    root: str

    def __reduce__(self) -> tuple[Callable[[str], "Location"], tuple[str]]:
        """Another process opens it anew, by its own credentials."""
        return open_location, (self.uri,)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, where links and folders exist."""
        return isinstance(self.filesystem, arrow_fs.LocalFileSystem)

    def relative(self, path: str) -> str:
        """Return a path relative to the location, whatever form the user wrote.

        Args:
            path: Relative, or a URI or absolute path below the location.

        Raises:
            RequestError: It is not below the location.
        """
        if "://" in path:
            path = self._below(path, _split(path))
        elif path.startswith("/"):
            path = self._below(path, ("file", "", path))
        parts = path.split("/")
        if (
            not path
            or "\\" in path
            or "\0" in path
            or any(part in ("", ".", "..") for part in parts)
        ):
            message = f"path {path!r} is not a plain path below {self.uri}: no '..', no empty parts"
            raise RequestError(message)
        return path

    def full(self, path: str) -> str:
        """Return the filesystem's name of a file of the table.

        Raises:
            RequestError: It is not below the location, or a link leads out of it.
        """
        path = self.relative(path)
        inside = f"{self.root}/{path}"
        if self.is_local and self._meets_link(path):
            root = os.path.realpath(self.root)
            if os.path.commonpath([root, os.path.realpath(inside)]) != root:
                message = f"path {path!r} leads out of {self.uri} through a link"
                raise RequestError(message)
        return inside

    def open_file(self, path: str) -> pa.NativeFile:
        """Return a file of the table, to be read at any place.

        Raises:
            RequestError: It is not below the location, or a link leads out of it.
            OSError: It cannot be opened, or is no plain file: to open a pipe may take for ever.
        """
        return self.filesystem.open_input_file(self._plain_file(path))

    def open_stream(self, path: str) -> pa.NativeFile:
        """Return a file of the table, to be read from its beginning; errors as `open_file`."""
        return self.filesystem.open_input_stream(self._plain_file(path))

    def _plain_file(self, path: str) -> str:
        full = self.full(path)
        if self.is_local and not stat.S_ISREG(os.stat(full).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe, a folder or a device, not a file", full)
        return full

    def _meets_link(self, path: str) -> bool:
        """Return whether a name on the way from the location to a file is a link."""
        # To ask for these names is much cheaper than to resolve two whole paths.
        name = self.root
        for part in path.split("/"):
            name = f"{name}/{part}"
            if os.path.islink(name):
                return True
        return False

    def _below(self, path: str, parts: tuple[str, str, str]) -> str:
        scheme, host, name = parts
        own_scheme, own_host, own_name = _split(self.uri)
        prefix = own_name.rstrip("/") + "/"
        same = (canonical_scheme(scheme), host) == (canonical_scheme(own_scheme), own_host)
        if same and not name.startswith(prefix) and self.is_local:
            # Perhaps by another way: links above the file are looked through, none at its end.
            folder, _, last = name.rpartition("/")
            name, prefix = f"{os.path.realpath(folder)}/{last}", f"{os.path.realpath(own_name)}/"
        if not same or not name.startswith(prefix):
            message = f"path {path} is not in the table's location {self.uri}"
            raise RequestError(message)
        return name[len(prefix) :]


def open_location(uri: str) -> Location:
    """Return the location of a URI such as `file:///data/t` or `s3://bucket/t`.

    Raises:
        RequestError: It is no URI of a kind of storage that is known.
        ConfigError: The storage's client cannot be set up here.
    """
    scheme, host, path = _split(uri)
    if scheme not in SCHEMES or not (host if scheme != "file" else path.strip("/")):
        message = f"location {uri} is not a folder's URI, wanted one of {', '.join(SCHEMES)}://…"
        raise RequestError(message)
    try:
        filesystem, root = _filesystem(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"location {uri} cannot be used: {error}"
        raise RequestError(message) from error
    except OSError as error:
        message = f"location {uri}: its storage cannot be reached from here: {error}"
        raise ConfigError(message) from error
    return Location(uri, filesystem, root.rstrip("/"))


def _filesystem(uri: str) -> tuple[arrow_fs.FileSystem, str]:
    scheme, host, path = _split(uri)
    if scheme != "s3" or urlsplit(uri).query:
        filesystem, root = arrow_fs.FileSystem.from_uri(uri)
        return filesystem, root
    return s3_filesystem(host, os.environ), f"{host}/{path.strip('/')}"


def child_of(uri: str, name: str) -> str:
    """Return the URI of a folder in a location; what it says of its storage stays behind it."""
    folder, mark, options = uri.partition("?")
    return f"{folder.rstrip('/')}/{quote(name)}{mark}{options}"


def fault(location: Location, path: str, error: OSError) -> str:
    """Return the sentence about an error of a location's storage, with what to do about it."""
    cause = cause_of(error)
    if cause is None:
        return f"storage of {location.uri} does not answer for {path}: {error}"
    return f"storage of {location.uri} refuses {path}: {cause} ({error})"


def resolve(location: str, path: str) -> str:
    """Return the filesystem's name of a path of a location; see `Location.full`.

    Raises:
        RequestError: It is not below the location.
    """
    return open_location(location).full(path)


def size_of(location: Location, path: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        RequestError: There is no such file.
        UnavailableError: The storage does not answer.
    """
    try:
        found = location.filesystem.get_file_info(location.full(path))
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error
    if found.type != arrow_fs.FileType.File:
        what = "is a folder" if found.type == arrow_fs.FileType.Directory else "does not exist"
        message = f"file {path} {what} in {location.uri}"
        raise RequestError(message)
    return int(found.size)


def existing(location: Location, paths: Sequence[str]) -> dict[str, int]:
    """Return those of some files that are in storage, with their sizes.

    Raises:
        RequestError: A path is not below the location.
        UnavailableError: The storage does not answer.
    """
    full = [location.full(path) for path in paths]
    try:
        found = location.filesystem.get_file_info(full)
    except OSError as error:
        raise UnavailableError(fault(location, "some files", error)) from error
    return {
        path: int(info.size)
        for path, info in zip(paths, found, strict=True)
        if info.type == arrow_fs.FileType.File
    }


def only_copies(location: Location, outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Return the outputs of an attempt that are whole although an input of it is missing.

    Only the last bytes of an output are read: what else is in it is for others to find out.

    Args:
        location: Of their table.
        outputs: Paths that the attempt may have written.
        inputs: Paths of what it read.

    Raises:
        RequestError: A path is not below the location.
        UnavailableError: The storage does not answer.
    """
    if existing(location, inputs).keys() == {*inputs}:
        return []
    return sorted(path for path in existing(location, outputs) if _is_whole(location, path))


def _is_whole(location: Location, path: str) -> bool:
    try:
        with location.open_file(path) as file:
            size = file.size()
            return bool(size > len(MAGIC) and file.read_at(len(MAGIC), size - len(MAGIC)) == MAGIC)
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error


def _split(uri: str) -> tuple[str, str, str]:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        message = f"{uri!r} is not a URI: {error}"
        raise RequestError(message) from error
    return parts.scheme, parts.netloc, unquote(parts.path)
