"""A table's location: access to its storage, paths in it, and whether it is usable.

Errors of object stores get an explanation with a remedy here.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as arrow_fs

from common.errors import CompactionError, ConfigError, RequestError, UnavailableError
from common.model.location_identity import REGION_WITH_ENDPOINT, canonical_scheme, s3_access
from common.parquet.resolved_location import SCHEMES
from common.primitives import BoundedMap

# ---- Object stores that speak S3
#
# Credentials come only from the default chain: environment, profile, web identity (IRSA), instance;
# those of a lake table may be lent by its catalog (`lend`).
# Endpoint and region have the same names as in other tools:
#
#     AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL    of a store that is not Amazon's, such as MinIO
#     AWS_REGION, AWS_DEFAULT_REGION           unset: the bucket's region is looked up
#
# Arrow's client transfers the bytes, never Hadoop's.


CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 60.0
TRIES_MAX = 5
CLIENTS_MAX = 64

_CAUSES = (
    ("NO_SUCH_BUCKET", "there is no such bucket: create it, or correct the name"),
    ("INVALID_ACCESS_KEY_ID", "the access key is unknown there"),
    ("INVALID_CLIENT_TOKEN_ID", "the access key is unknown there"),
    ("SIGNATURE_DOES_NOT_MATCH", "the secret key does not fit the access key"),
    ("EXPIRED_TOKEN", "the credentials have expired"),
    ("MISSING_AUTHENTICATION_TOKEN", "no credentials were found"),
    ("PermanentRedirect", "the bucket is in another region: set AWS_REGION to it"),
    ("AuthorizationHeaderMalformed", "the bucket is in another region: set AWS_REGION to it"),
    ("HTTP status 301", "the bucket is in another region: set AWS_REGION to it"),
    ("HTTP status 400", "the bucket may be in another region (AWS_REGION), or no token was sent"),
    (
        "ACCESS_DENIED",
        "the credentials in use do not allow it, or none were found "
        "(environment, profile, web identity and instance were searched)",
    ),
    ("NETWORK_CONNECTION", "there is no answer: check AWS_ENDPOINT_URL and the network"),
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded", "HTTP status 507")
_SILENT = (
    "AWS Error NETWORK",
    "AWS Error SERVICE_UNAVAILABLE",
    "AWS Error SLOW_DOWN",
    "AWS Error THROTTLING",
    "AWS Error INTERNAL_FAILURE",
    "AWS Error REQUEST_TIMEOUT",
    "HTTP status 500",
    "HTTP status 502",
    "HTTP status 503",
    "HTTP status 504",
    "(os error 5)",
    "(os error 28)",
    "(os error 116)",
    "(os error 122)",
    *_FULL_TEXTS,
)
"""Texts of object store, Rust or Java errors that mean that the object was not reached."""
_SILENCES = _FULL | frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
    }
)
"""Error numbers for silent file servers, full disks and local resource limits."""


def s3_filesystem(bucket: str, environ: Mapping[str, str]) -> arrow_fs.FileSystem:
    """Return the client for a bucket; cached per bucket and environment.

    Args:
        bucket: Name of the bucket.
        environ: Source of endpoint and region.

    Raises:
        ConfigError: The endpoint is not a URL, or the bucket's region is unknown.
    """
    endpoint, region = s3_access(environ)
    # A client has threads, so a forked child needs its own.
    return _client(os.getpid(), bucket, endpoint, region)


def error_advice(error: OSError) -> str | None:
    """Return an operator's remedy for an object store error; None: unknown."""
    text = str(error)
    return next((cause for sign, cause in _CAUSES if sign in text), None)


def is_transient(error: OSError) -> bool:
    """Return whether an error may disappear by itself, unlike a wrong name or key."""
    return error_advice(error) is None or "NETWORK_CONNECTION" in str(error)


def is_silence(error: OSError) -> bool:
    """Return whether an error comes from a failing storage instead of the file.

    Malformed Parquet also raises an `OSError`, but without an error number.
    """
    if isinstance(error, TimeoutError | ConnectionError) or error.errno in _SILENCES:
        return True
    return is_silence_text(str(error))


def is_silence_text(text: str) -> bool:
    """Return `is_silence` for the text of an error."""
    return any(sign in text for sign in _SILENT)


def is_full(error: Exception) -> bool:
    """Return whether an error means that a storage is full."""
    return getattr(error, "errno", None) in _FULL or any(sign in str(error) for sign in _FULL_TEXTS)


ErrorType = TypeVar("ErrorType", bound=CompactionError)


def storage_error(
    kind: type[ErrorType], message: str, error: Exception
) -> ErrorType | UnavailableError:
    """Return an error of `kind`, or an UnavailableError if the storage fails now.

    Args:
        kind: Error class that blames a file, a job or a setting.
        message: The operation that failed.
        error: The error of the storage, Arrow or Polars.
    """
    if is_full(error):
        message = f"{message}; the storage is full: free some room or raise the quota"
    if (isinstance(error, OSError) and is_silence(error)) or is_silence_text(str(error)):
        return UnavailableError(message)
    return kind(message)


@lru_cache(CLIENTS_MAX)
def _client(_process: int, bucket: str, endpoint: str, region: str) -> arrow_fs.FileSystem:
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.netloc):
        message = f"endpoint {endpoint!r} is not a URL such as https://minio.example:9000"
        raise ConfigError(message)
    where = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if endpoint else {}
    return arrow_fs.S3FileSystem(
        region=region or (REGION_WITH_ENDPOINT if endpoint else _region_of(bucket)),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=TRIES_MAX),
        **where,
    )


def _region_of(bucket: str) -> str:
    try:
        return str(arrow_fs.resolve_s3_region(bucket))
    except OSError as error:
        message = f"bucket {bucket}: its region is unknown, set AWS_REGION: {error}"
        raise ConfigError(message) from error


# ---- Locations and paths
#
# Users name the paths of files. No path may lead out of the table's own folder: neither with `..`,
# nor with another scheme or bucket, nor through a link.


MAGIC = b"PAR1"
"""The last bytes of a complete Parquet file."""


@dataclass(frozen=True, slots=True)
class Location:
    """A folder in a storage. `root` is its path in the filesystem, without a trailing slash."""

    uri: str
    filesystem: arrow_fs.FileSystem
    root: str
    memory: Mapping[str, pa.Buffer] = field(default_factory=dict, compare=False)
    """Files that are in memory instead: those of buffered rows, for this process only."""

    def __reduce__(self) -> tuple[Callable[[str], "Location"], tuple[str]]:
        """Make another process open it anew, with its own credentials."""
        return open_location, (self.uri,)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, where links and folders exist."""
        return isinstance(self.filesystem, arrow_fs.LocalFileSystem)

    def relative(self, path: str) -> str:
        """Return a path relative to the location, from any form that a user may write.

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
        """Return the path of a table's file in its filesystem.

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
        """Return a file of the table for random reads.

        Raises:
            RequestError: It is not below the location, or a link leads out of it.
            OSError: It cannot be opened, or is not a plain file: opening a pipe may block.
        """
        if (held := self.memory.get(path)) is not None:
            return pa.BufferReader(held)
        return self.filesystem.open_input_file(self._plain_file(path))

    def open_stream(self, path: str) -> pa.NativeFile:
        """Return a file of the table for sequential reads; errors as `open_file`."""
        return self.filesystem.open_input_stream(self._plain_file(path))

    def _plain_file(self, path: str) -> str:
        full = self.full(path)
        if self.is_local and not stat.S_ISREG(os.stat(full).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe, a folder or a device, not a file", full)
        return full

    def _meets_link(self, path: str) -> bool:
        """Return whether a part of the path from the location to a file is a link."""
        # Checking these names is much cheaper than resolving two whole paths.
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
            # It may be another route: links in the folder are resolved, but not a link at the end.
            folder, _, base_name = name.rpartition("/")
            name, prefix = (
                f"{os.path.realpath(folder)}/{base_name}",
                f"{os.path.realpath(own_name)}/",
            )
        if not same or not name.startswith(prefix):
            message = f"path {path} is not in the table's location {self.uri}"
            raise RequestError(message)
        return name[len(prefix) :]


def open_location(uri: str) -> Location:
    """Return the location of a URI such as `file:///data/t` or `s3://bucket/t`.

    Raises:
        RequestError: It is not a URI of a supported storage.
        ConfigError: The storage's client cannot be created here.
    """
    scheme, host, path = _split(uri)
    if scheme not in SCHEMES or not (host if scheme != "file" else path.strip("/")):
        message = f"location {uri} is not a folder's URI, expected one of {', '.join(SCHEMES)}://…"
        raise RequestError(message)
    try:
        filesystem, root = _filesystem(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"location {uri} cannot be used: {error}"
        raise RequestError(message) from error
    except OSError as error:
        message = f"location {uri}: its storage cannot be reached from this machine: {error}"
        raise ConfigError(message) from error
    return Location(uri, filesystem, root.rstrip("/"))


def _filesystem(uri: str) -> tuple[arrow_fs.FileSystem, str]:
    scheme, host, path = _split(uri)
    if scheme != "s3" or urlsplit(uri).query:
        filesystem, root = arrow_fs.FileSystem.from_uri(uri)
        return filesystem, root
    lent = _lent_filesystem(uri, host)
    return lent or s3_filesystem(host, os.environ), f"{host}/{path.strip('/')}"


Lender = Callable[[str], arrow_fs.FileSystem | None]
"""Returns the client for a bucket with the credentials that are lent now; None: none are."""
LENT_MAX = 10_000
_lent: BoundedMap[str, Lender] = BoundedMap(LENT_MAX)
"""Locations whose credentials are lent to this process, by URI without trailing slash."""


def lend(uri: str, lender: Lender) -> None:
    """Let this process reach the files below a location with lent credentials.

    The lender is asked whenever a location is opened, so it returns credentials that last for the
    work on one file. They stay in the memory of this process.

    Args:
        uri: Location of a table in an object store; another one is ignored.
        lender: Asked for the client; it replaces an earlier one.
    """
    if uri.startswith("s3://"):
        _lent.put(uri.rstrip("/"), lender)


def _lent_filesystem(uri: str, bucket: str) -> arrow_fs.FileSystem | None:
    """Return the client with lent credentials for a location or a folder in it, if there are any.

    Raises:
        UnavailableError: The lender does not answer.
    """
    if not len(_lent):
        return None
    folder = uri.rstrip("/")
    while "://" in folder and not folder.endswith(":/"):
        if (lender := _lent.get(folder)) is not None:
            return lender(bucket)
        folder = folder.rpartition("/")[0]
    return None


def child_uri(uri: str, name: str) -> str:
    """Return the URI of a subfolder of a location; the query of the URI stays at its end."""
    folder, mark, options = uri.partition("?")
    return f"{folder.rstrip('/')}/{quote(name)}{mark}{options}"


def fault(location: Location, path: str, error: OSError) -> str:
    """Return the message about an error of a location's storage, with a remedy."""
    if is_full(error):
        return f"storage of {location.uri} is full, {path} cannot be written: {error}"
    cause = error_advice(error)
    if cause is None:
        return f"storage of {location.uri} does not answer for {path}: {error}"
    return f"storage of {location.uri} refuses {path}: {cause} ({error})"


def resolve(location: str, path: str) -> str:
    """Return the path of a location's file in its filesystem; see `Location.full`.

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
        info = location.filesystem.get_file_info(location.full(path))
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error
    if info.type != arrow_fs.FileType.File:
        what = "is a folder" if info.type == arrow_fs.FileType.Directory else "does not exist"
        message = f"file {path} {what} in {location.uri}"
        raise RequestError(message)
    return int(info.size)


def existing_files(location: Location, paths: Sequence[str]) -> dict[str, int]:
    """Return which of some files exist in storage, with their sizes.

    Raises:
        RequestError: A path is not below the location.
        UnavailableError: The storage does not answer.
    """
    full = [location.full(path) for path in paths]
    try:
        infos = location.filesystem.get_file_info(full)
    except OSError as error:
        raise UnavailableError(fault(location, "some files", error)) from error
    return {
        path: int(info.size)
        for path, info in zip(paths, infos, strict=True)
        if info.type == arrow_fs.FileType.File
    }


def only_copies(location: Location, outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Return the complete outputs of an attempt, if an input of it is missing.

    Only the last bytes of an output are read; its contents are not verified.

    Args:
        location: Location of their table.
        outputs: Paths that the attempt may have written.
        inputs: Paths that it read.

    Raises:
        RequestError: A path is not below the location.
        UnavailableError: The storage does not answer.
    """
    if existing_files(location, inputs).keys() == {*inputs}:
        return []
    return sorted(path for path in existing_files(location, outputs) if _is_whole(location, path))


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


# ------------------------------------------------------------------------------- Concurrent reads


Found = TypeVar("Found")

REMOTE_FILES_AT_ONCE = 8
"""Files of an object store that one process reads concurrently."""


def map_files(
    location: Location, look: Callable[[str], Found], paths: Sequence[str]
) -> list[Found]:
    """Return the results for files, in their order; remote files are read concurrently.

    Args:
        location: Location of the table.
        look: Called with each path.
        paths: Paths of the files.
    """
    if location.is_local or len(paths) < 2:
        return [look(path) for path in paths]
    with ThreadPoolExecutor(REMOTE_FILES_AT_ONCE) as threads:
        return [*threads.map(look, paths)]


# ------------------------------------------------------------------------- Test of a location


CONTENT = b"neve"
_Step = Callable[[Location, str], None]


def try_location(location: Location, path: str, now_s: Callable[[], float]) -> dict[str, float]:
    """Write, list, read and delete a small file; return the seconds of each step.

    The file is deleted after a failure, if possible.

    Args:
        location: Location to test.
        path: Path of a file that does not exist.
        now_s: Returns the time.

    Raises:
        ConfigError: Names the failed step, and a remedy.
    """
    took_s, full = {}, location.full(path)
    for name, step in _STEPS.items():
        begun_s = now_s()
        try:
            step(location, full)
        except OSError as error:
            if name != "delete":
                _clean(location, full)
            raise ConfigError(_failed_step(location, name, error)) from error
        took_s[name] = now_s() - begun_s
    return took_s


def _failed_step(location: Location, step: str, error: OSError) -> str:
    cause = error_advice(error)
    what = f"{cause} ({error})" if cause else str(error)
    return f"{location.uri}: {step} failed: {what}"


def _clean(location: Location, full: str) -> None:
    try:
        location.filesystem.delete_file(full)
    except OSError:
        return  # The first error is more useful.


def _write(location: Location, full: str) -> None:
    if location.is_local:
        location.filesystem.create_dir(posixpath.dirname(full), recursive=True)
    with location.filesystem.open_output_stream(full) as stream:
        stream.write(CONTENT)


def _list(location: Location, full: str) -> None:
    selector = arrow_fs.FileSelector(posixpath.dirname(full), allow_not_found=True)
    sizes = {entry.path: entry.size for entry in location.filesystem.get_file_info(selector)}
    if sizes.get(full) != len(CONTENT):
        raise OSError("a file that was just written is not listed")


def _read(location: Location, full: str) -> None:
    with location.filesystem.open_input_file(full) as file:
        content = file.read_at(file.size(), 0)
    if content != CONTENT:
        raise OSError("a file that was just written has other contents")


def _delete(location: Location, full: str) -> None:
    location.filesystem.delete_file(full)
    info = location.filesystem.get_file_info(full)
    if info.type != arrow_fs.FileType.NotFound:
        raise OSError("a file that was just deleted still exists")


_STEPS: dict[str, _Step] = {"write": _write, "list": _list, "read": _read, "delete": _delete}
