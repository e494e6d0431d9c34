"""Catalogs of Iceberg tables, and the files that tables name. PyIceberg's clients are used.

A catalog is trusted, since the operator names it. A table is not trusted: its writers choose its
properties and paths. So no property of a table reaches the storage or the code that is loaded
(PyIceberg would take `py-io-impl` and `s3.endpoint` from them), every path is held against the
locations that the operator allows, and files are read up to a bound.
"""

import contextlib
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem, FileType
from pyiceberg import exceptions as failures
from pyiceberg.catalog import Catalog
from pyiceberg.io import (
    AWS_ACCESS_KEY_ID,
    AWS_REGION,
    AWS_ROLE_ARN,
    S3_ACCESS_KEY_ID,
    S3_ANONYMOUS,
    S3_ENDPOINT,
    S3_REGION,
    S3_ROLE_ARN,
    FileIO,
    InputFile,
    InputStream,
    OutputFile,
)
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.utils.config import Config
from requests import Session
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException

from common.control_settings import CODE_PROPERTIES, check_catalog
from common.errors import (
    CompactionError,
    ConfigError,
    RefusedError,
    RequestError,
    UnavailableError,
    first_line,
    redacted,
)
from common.lake.source import LOCATIONS, WasteFile
from common.lake.storage import LakeStorage
from common.model.location_identity import REGION_WITH_ENDPOINT, s3_access
from common.primitives import BoundedMap

FILE_BYTES_MAX = 512 * 1024**2
METADATA_BYTES_MAX = 128 * 1024**2
"""Largest metadata file, before and after compression."""
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10, 60
CATALOGS_MAX = 64
PRIVATE_NAMES = (
    "pyiceberg.catalog.Catalog._load_file_io",
    "pyiceberg.catalog.rest.RestCatalog._load_file_io",
    "pyiceberg.catalog.rest.RestCatalog._create_session",
    "pyiceberg.catalog.rest.RestCatalog._response_to_table",
    "pyiceberg.catalog.rest.RestCatalog._resolve_storage_credentials",
    "pyiceberg.avro.file.AvroFile._read_block",
)
"""Names of PyIceberg that are no part of its interface, and are used or replaced here."""

# --------------------------------------------------------------------------------------- Locations

_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def canonical_uri(uri: str) -> str:
    """Return a location in one spelling: `/folder` on a disk, else `scheme://host/key`.

    Nothing is decoded: in Iceberg, a `%` in a path stands for itself.

    Raises:
        RefusedError: It is no plain location.
    """
    if uri.startswith("/"):
        scheme, rest = "file", uri
    else:
        scheme, colon, rest = uri.partition(":")
        scheme = _SCHEMES.get(scheme.lower(), scheme.lower())
        if not colon or not scheme.isalnum():
            message = f"location {redacted(uri)[:200]!r} is no URI and no absolute path"
            raise RefusedError(message)
    if "\x00" in rest or ".." in rest.split("/"):
        message = f"location {redacted(uri)[:200]!r} has '..' or a zero byte"
        raise RefusedError(message)
    if scheme == "file":
        return "/" + rest.removeprefix("//localhost").lstrip("/")
    host, _, key = rest.removeprefix("//").partition("/")
    return f"{scheme}://{host}/{key}"


class TableRoot:
    """The location of a table. Files below it are named relative to it."""

    def __init__(self, location: str) -> None:
        self.written = location.rstrip("/")
        self._prefix = canonical_uri(self.written).rstrip("/") + "/"

    @property
    def uri(self) -> str:
        """Return the location in one spelling, without trailing slash."""
        return self._prefix[:-1]

    def path_of(self, uri: str) -> str:
        """Return the path of a file in this table: relative if it lies below the root."""
        if uri.startswith(self.written) and uri[len(self.written) : len(self.written) + 1] == "/":
            path = uri[len(self.written) + 1 :]
            if path and ".." not in path and "//" not in path and not path.startswith("/"):
                return path
        whole = canonical_uri(uri)
        path = whole.removeprefix(self._prefix)
        if path != whole and path and not path.startswith("/"):
            return path
        return f"file://{whole}" if whole.startswith("/") else whole

    def uri_of(self, path: str) -> str:
        """Return the URI of a path that `path_of` has returned, as the table's writers spell it."""
        return path if "://" in path else f"{self.written}/{path}"


class OutsideError(RefusedError):
    """A location is not allowed."""


class Admission:
    """Whether locations are allowed. Links of folders on a disk are resolved once each."""

    def __init__(self, roots: Sequence[str] | None) -> None:
        """Take the allowed locations; None: all are."""
        self._roots = None if roots is None else [_below(_resolved(root)) for root in roots]
        self._folders: BoundedMap[str, bool] = BoundedMap(10_000)

    def admits(self, uri: str) -> bool:
        """Return whether a file is below an allowed location."""
        if self._roots is None:
            return True
        whole = canonical_uri(uri)
        if not whole.startswith("/"):
            return any(whole.startswith(root) for root in self._roots)
        folder, _, name = whole.rpartition("/")
        if os.path.islink(whole):
            return self._is_below(whole)
        admitted = self._folders.get(folder)
        if admitted is None:
            admitted = self._is_below(f"{folder}/{name}")
            self._folders.put(folder, admitted)
        return admitted

    def require(self, uri: str) -> None:
        """Refuse a file elsewhere.

        Raises:
            OutsideError: It is not allowed there.
        """
        if not self.admits(uri):
            message = (
                f"the table names {redacted(uri)[:300]}, which lies outside of the locations that "
                "are allowed; name its folder with the setting gateway.locations"
            )
            raise OutsideError(message)

    def _is_below(self, path: str) -> bool:
        real = os.path.realpath(path)
        return any(real.startswith(root) for root in self._roots or ())


def _resolved(root: str) -> str:
    """Return an allowed location in one spelling, without storage options."""
    text = root.strip().partition("?")[0]
    if text in {"/", "file:///"}:
        return "/"
    if text.endswith("://"):
        return text
    whole = canonical_uri(text)
    return os.path.realpath(whole) if whole.startswith("/") else whole


def _below(root: str) -> str:
    return root if root.endswith("/") else f"{root}/"


# ------------------------------------------------------------------------------------------- Files


class _GuardedFile(PyArrowFile):
    """A file that is read up to a bound."""

    def open(self, seekable: bool = True) -> InputStream:
        size_bytes = len(self)
        is_metadata = "metadata.json" in self.location.rpartition("/")[2]
        most = METADATA_BYTES_MAX if is_metadata else FILE_BYTES_MAX
        if size_bytes > most:
            message = f"{redacted(self.location)} has {size_bytes} bytes, more than {most}"
            raise RefusedError(message)
        if is_metadata and ".gz" in self.location.rpartition("/")[2]:
            with super().open(seekable) as stream:
                return _unpacked_within(stream.read(), most, self.location)
        return super().open(seekable)


def _unpacked_within(data: bytes, most: int, location: str) -> InputStream:
    """Return packed bytes as a stream, unless they unpack to more than a bound."""
    left, rest = most, data
    while rest:
        unpacker = zlib.decompressobj(wbits=31)
        while rest and not unpacker.eof:
            left -= len(unpacker.decompress(rest, 1024**2))
            rest = unpacker.unconsumed_tail
            if left < 0:
                message = f"{redacted(location)} unpacks to more than {most} bytes"
                raise RefusedError(message)
        rest = unpacker.unused_data
    stream: Any = io.BytesIO(data)
    return stream  # type: ignore[no-any-return]


_REGIONS = (S3_REGION, AWS_REGION)
_OWN_ACCESS = (
    *(S3_ENDPOINT, S3_ANONYMOUS),
    *(S3_ACCESS_KEY_ID, AWS_ACCESS_KEY_ID, S3_ROLE_ARN, AWS_ROLE_ARN),
)
"""Properties of a catalog that say how an object store is reached."""


def _by_environment(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return what the environment says about object stores, where a catalog does not.

    PyIceberg looks for credentials there, but not for the endpoint. The variables and their order
    are those that count for data files.
    """
    if any(map(properties.get, _OWN_ACCESS)):
        return {}
    endpoint, region = s3_access(os.environ)
    region = region or (REGION_WITH_ENDPOINT if endpoint else "")
    missing = {S3_REGION: region} if region and not any(map(properties.get, _REGIONS)) else {}
    return {**missing, **({S3_ENDPOINT: endpoint} if endpoint else {})}


class GuardedFileIO(PyArrowFileIO):
    """Files at allowed locations only. Options come from the catalog, never from a table.

    If a catalog does not say how an object store is reached, the environment of the process does,
    by the variables that count for all other files.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        own = {name: value for name, value in properties.items() if name not in CODE_PROPERTIES}
        super().__init__({**own, **_by_environment(own)})
        self.is_by_environment = not any(map(own.get, (*_OWN_ACCESS, *_REGIONS)))
        """Whether the environment alone says how object stores are reached."""
        locations = own.get(LOCATIONS)
        self.admission = Admission(None if locations is None else locations.splitlines())

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read."""
        self.admission.require(location)
        scheme, host, path = self.parse_location(location, self.properties)
        return _GuardedFile(location, path, self.fs_by_scheme(scheme, host))

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        self.admission.require(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self.admission.require(location if isinstance(location, str) else location.location)
        super().delete(location)


class LakeFiles:
    """Files of a table on their storage, by the paths that `TableRoot` gives them.

    Links are neither followed nor deleted. Names of files go to the storage as they are: PyIceberg
    would cut off what follows a `?` or `#`, and delete another file.
    """

    def __init__(self, files: GuardedFileIO, root: TableRoot) -> None:
        self._files, self._root = files, root
        self._folders: BoundedMap[str, str] = BoundedMap(10_000)

    def key(self, uri: str) -> str:
        """Return what two spellings of one file have in common.

        Spellings of different files may have the same key, too: a file whose key a snapshot has is
        kept, so this keeps more. Upper and lower case are the same, links of folders are resolved.
        """
        whole = canonical_uri(uri)
        if whole.startswith("/"):
            folder, _, name = os.path.normpath(whole).rpartition("/")
            real = self._folders.get(folder)
            if real is None:
                real = os.path.realpath(folder or "/")
                self._folders.put(folder, real)
            whole = f"{real.rstrip('/')}/{name}"
        return whole.casefold()

    def whole(self, path: str) -> str:
        """Return the canonical location of a path."""
        return canonical_uri(self._root.uri_of(path))

    def stat(self, path: str) -> WasteFile | None:
        """Return a file as it is stored; None: it is missing, a link, or lies below one.

        Raises:
            RefusedError: It lies outside of the allowed locations.
            UnavailableError: The storage does not answer.
        """
        whole = self.whole(path)
        self._files.admission.require(whole)
        with translated(f"look at {path}"):
            if whole.startswith("/"):
                if self._is_linked(os.path.dirname(whole)):
                    return None
                try:
                    return _stated(path, os.lstat(whole))
                except (FileNotFoundError, NotADirectoryError):
                    return None
            storage, key = self._opened(whole)
            return _listed(path, storage.get_file_info(key))

    def _is_linked(self, folder: str) -> bool:
        """Return whether a folder is a link or lies below one; the root may."""
        root, real = self._root.uri, folder
        if f"{folder}/".startswith(f"{root}/"):
            real = os.path.realpath(root) + folder[len(root) :]
        return os.path.realpath(folder) != os.path.normpath(real)

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is skipped."""
        whole = self.whole(path)
        self._files.admission.require(whole)
        with translated(f"delete {path}"), contextlib.suppress(FileNotFoundError):
            if whole.startswith("/"):
                os.unlink(whole)
                return
            storage, key = self._opened(whole)
            if storage.get_file_info(key).type is FileType.File:
                storage.delete_file(key)

    def _opened(self, whole: str) -> tuple[FileSystem, str]:
        scheme, _, key = whole.partition("://")
        return self._files.fs_by_scheme(scheme, key.partition("/")[0]), key


def _stated(path: str, status: os.stat_result) -> WasteFile | None:
    """Return a file of a disk. A copy may keep an old time of writing, but not of its inode."""
    if not S_ISREG(status.st_mode):
        return None
    tag = f"{status.st_ino:x}-{status.st_mtime_ns}-{status.st_size}"
    return WasteFile(path, status.st_size, tag, max(status.st_mtime, status.st_ctime))


def _listed(path: str, info: FileInfo) -> WasteFile | None:
    """Return a file of an object store."""
    if info.type is not FileType.File:
        return None
    return WasteFile(path, info.size, f"{info.mtime_ns}-{info.size}", info.mtime_ns / 1e9)


class _StoredFile(InputFile, OutputFile):
    """A small file of a table's location. It is read and written as a whole."""

    def __init__(self, storage: LakeStorage, location: str, path: str) -> None:
        super().__init__(location)
        self._storage, self._path = storage, path
        self._content: bytes | None = None

    def __len__(self) -> int:
        return len(self._bytes())

    def exists(self) -> bool:
        return self._storage.stat(self._path) is not None

    def open(self, seekable: bool = True) -> InputStream:
        stream: Any = io.BytesIO(self._bytes())
        return stream  # type: ignore[no-any-return]

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        return _Sink(self)

    def write(self, content: bytes) -> None:
        """Write the file, whose name is new."""
        self._storage.replace(self._path, content)
        self._content = content

    def _bytes(self) -> bytes:
        if self._content is None:
            self._content = self._storage.read(self._path, FILE_BYTES_MAX)
        if self._content is None:
            raise UnavailableError(f"{self.location} is gone")
        return self._content


class _Sink(io.BytesIO):
    """Bytes that become the content of a file when they are complete."""

    def __init__(self, file: _StoredFile) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.write(self.getvalue())
        super().close()


class StorageIO(FileIO):
    """The files of a table's location by their URIs, as PyIceberg asks for them."""

    def __init__(self, storage: LakeStorage, root: str) -> None:
        super().__init__()
        self.root = root
        self._storage = storage

    def new_input(self, location: str) -> _StoredFile:
        """Return a file to read."""
        return self._file(location)

    def new_output(self, location: str) -> _StoredFile:
        """Return a file to write."""
        return self._file(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        path = location if isinstance(location, str) else location.location
        self._storage.delete(self._path(path))

    def _file(self, location: str) -> _StoredFile:
        return _StoredFile(self._storage, location, self._path(location))

    def _path(self, location: str) -> str:
        path = location.removeprefix(f"{self.root}/")
        if path == location or ".." in path.split("/"):
            raise RefusedError(f"the metadata names {location[:300]}, which is not in {self.root}")
        return path


# ---------------------------------------------------------------------------------------- Catalogs

_CATALOGS: BoundedMap[tuple[str, frozenset[tuple[str, str]]], Catalog] = BoundedMap(CATALOGS_MAX)
"""Open catalogs by name and properties: tables of a catalog share its connections."""


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return the client of a catalog, connected.

    Args:
        name: Name of the catalog. What its properties lack is taken from PyIceberg's own
            environment variables, such as `PYICEBERG_CATALOG__PROD__CREDENTIAL`.
        properties: Properties by PyIceberg's names, secrets among them. They are never logged.

    Raises:
        ConfigError: Properties are missing or not supported.
        UnavailableError: The catalog does not answer.
    """
    elsewhere = Config().get_catalog_config(name) or {}
    own: dict[str, Any] = {
        **{key: value for key, value in elsewhere.items() if key not in CODE_PROPERTIES},
        **properties,
    }
    kind = check_catalog(name, own)
    key = (name, frozenset((key, str(value)) for key, value in own.items()))
    catalog = _CATALOGS.get(key)
    if catalog is None:
        with translated(f"open the catalog {name}"):
            catalog = _OPENERS[kind](name, own)
        _CATALOGS.put(key, catalog)
    return catalog


class _Guarded:
    """A catalog whose tables get nothing but its own properties to reach files."""

    properties: Properties

    def _load_file_io(
        self, properties: Properties = EMPTY_DICT, location: str | None = None
    ) -> GuardedFileIO:
        return GuardedFileIO(self.properties)


def _open_sql(name: str, own: dict[str, Any]) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog

    class GuardedSqlCatalog(_Guarded, SqlCatalog):
        pass

    uri = str(own.get("uri", ""))
    path = uri.partition(":///")[2].partition("?")[0]
    if uri.startswith("sqlite") and path and not Path(path).is_file():
        message = f"catalogs.{name}.uri: there is no file {path}"  # it would be created
        raise ConfigError(message)
    if uri.startswith("postgresql://"):  # SQLAlchemy would look for another client's package
        uri = uri.replace("postgresql", "postgresql+psycopg2", 1)
    if uri.startswith("postgresql") and "connect_timeout" not in uri:
        uri += f"{'&' if '?' in uri else '?'}connect_timeout={CONNECT_TIMEOUT_S}"
    inner = "common.lake.iceberg.catalogs.GuardedFileIO"
    more = {"uri": uri, "init_catalog_tables": "false", "py-io-impl": inner}
    return GuardedSqlCatalog(name, **{**own, **more})


def _open_glue(name: str, own: dict[str, Any]) -> Catalog:
    from pyiceberg.catalog.glue import GlueCatalog

    class GuardedGlueCatalog(_Guarded, GlueCatalog):
        pass

    return GuardedGlueCatalog(name, **{"glue.max-retries": 0, **own})


def _open_rest(name: str, own: dict[str, Any]) -> Catalog:
    from pyiceberg.catalog.rest import RestCatalog, TableResponse

    class GuardedRestCatalog(RestCatalog):
        def _create_session(self) -> Session:
            session = super()._create_session()
            for prefix in ("https://", "http://"):
                session.mount(prefix, _TimedAdapter())
            return session

        def _load_file_io(
            self, properties: Properties = EMPTY_DICT, location: str | None = None
        ) -> GuardedFileIO:
            return GuardedFileIO({**self.properties, LOCATIONS: own.get(LOCATIONS)})

        def _response_to_table(
            self, identifier_tuple: tuple[str, ...], table_response: TableResponse
        ) -> Table:
            """Return a table whose files are reached with what the catalog lent for it."""
            table = super()._response_to_table(identifier_tuple, table_response)
            lent = self._resolve_storage_credentials(
                table_response.storage_credentials, table_response.metadata_location
            )
            both = {**self.properties, **table_response.config, **lent}
            table.io = GuardedFileIO({**both, LOCATIONS: own.get(LOCATIONS)})
            return table

    return GuardedRestCatalog(name, **own)


_OPENERS = {"sql": _open_sql, "glue": _open_glue, "rest": _open_rest}


class _TimedAdapter(HTTPAdapter):
    """Sends each request once, and waits for its answer for a bounded time."""

    def send(self, request: Any, **options: Any) -> Any:  # type: ignore[override]
        if options.get("timeout") is None:
            options["timeout"] = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
        return super().send(request, **options)


# ------------------------------------------------------------------------------------------ Errors

_REFUSED: tuple[tuple[str, tuple[type[Exception], ...]], ...] = (
    ("there is no such table: ", (failures.NoSuchTableError, failures.NoSuchNamespaceError)),
    (
        "no right: ",
        (
            failures.ForbiddenError,
            failures.UnauthorizedError,
            failures.OAuthError,
            PermissionError,
        ),
    ),
)
_UNAVAILABLE = (failures.RESTError, RequestException, OSError)
_MALFORMED = (
    failures.ValidationError,
    failures.ResolveError,
    failures.NoSuchPropertyException,
    ArithmeticError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    RecursionError,
    SystemError,
    TypeError,
    ValueError,
    zlib.error,
)
"""What PyIceberg raises on files and answers that are not what they should be."""
_CLIENTS = ("sqlalchemy", "psycopg2", "sqlite3", "botocore", "boto3", "urllib3", "pyiceberg")
"""Packages whose errors mean that a catalog does not answer; not all are installed."""


@contextlib.contextmanager
def translated(action: str) -> Iterator[None]:
    """Raise what callers know in place of the errors of catalogs, storages and parsers.

    Args:
        action: What is done, such as `read the table a.b`.
    """
    try:
        yield
    except CompactionError:
        raise
    except Exception as error:
        translation = _translation(action, error)
        if translation is None:
            raise
        raise translation from None


def _translation(action: str, error: Exception) -> CompactionError | None:
    """Return what an error means to callers; None: it is a fault of this program."""
    for cause, kinds in _REFUSED:
        if isinstance(error, kinds):
            return RefusedError(f"cannot {action}: {cause}{_line(error)}")
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, _UNAVAILABLE) and not isinstance(error, pa.ArrowInvalid):
        return UnavailableError(f"cannot {action}: {_line(error)}")
    if isinstance(error, _MALFORMED):
        return RefusedError(f"cannot {action}: it is malformed: {_line(error)}")
    return UnavailableError(f"cannot {action}: {_line(error)}") if module in _CLIENTS else None


def _line(error: BaseException) -> str:
    """Return the first line only: the rest may show a request with its credentials."""
    return redacted(first_line(error))[:500]


def split_identifier(uri: str) -> tuple[str, tuple[str, ...]]:
    """Return the catalog and the identifier in `catalog:namespace.table`.

    Raises:
        RequestError: The text has another form.
    """
    name, colon, rest = uri.partition(":")
    parts = tuple(rest.split("."))
    if not colon or not name or len(parts) < 2 or not all(parts):
        message = f"{redacted(uri)[:200]!r} names no table, expected CATALOG:NAMESPACE.TABLE"
        raise RequestError(message)
    return name, parts
