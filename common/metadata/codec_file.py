"""The layout of a data file, and its decoder, written out by hand.

A scan decodes hundreds of thousands of files a second, and most of that time would go
into the constructor of a frozen dataclass. So the fields are put into their slots
directly, twice as fast; whatever looks odd goes through the constructor, which refuses.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgpack import UnpackException, unpackb

from common.errors import MetadataError
from common.metadata.codec import (
    PREFIX,
    Layout,
    broken,
    flag,
    kept_fields,
    pairs,
    raw,
    real,
    text,
    unpack,
    whole,
)
from common.model.file import DataFile

FILE_BYTES_MAX = 1024**2

# What most files have comes first: the defaults at the end cost nothing.
FILE = Layout(
    DataFile,
    whole("size_bytes"),
    whole("rows"),
    real("added_at_s"),
    raw("key_min"),
    raw("key_max"),
    raw("version_min"),
    raw("version_max"),
    flag("clean"),
    text("job", optional=True),
    whole("schema_id"),
    pairs("tags", str, str),
    real("time_min_s", optional=True),
    real("time_max_s", optional=True),
    whole("tombstones"),
    real("tombstones_since_s", optional=True),
    whole("live_bytes", optional=True),
    text("request", optional=True),
    flag("open"),
    given=("path",),
    bytes_max=FILE_BYTES_MAX,
)
_DEFAULTS = FILE.plain_defaults
_SHAPES = FILE.shapes
_TAGS = _DEFAULTS[10]
_COUNT = len(_DEFAULTS)


def _setter(name: str) -> Callable[[DataFile, Any], None]:
    setter: Callable[[DataFile, Any], None] = getattr(DataFile, name).__set__
    return setter


_new = object.__new__
_set_path = _setter("path")
_set_size = _setter("size_bytes")
_set_rows = _setter("rows")
_set_added = _setter("added_at_s")
_set_key_min = _setter("key_min")
_set_key_max = _setter("key_max")
_set_version_min = _setter("version_min")
_set_version_max = _setter("version_max")
_set_clean = _setter("clean")
_set_job = _setter("job")
_set_schema = _setter("schema_id")
_set_tags = _setter("tags")
_set_time_min = _setter("time_min_s")
_set_time_max = _setter("time_max_s")
_set_tombstones = _setter("tombstones")
_set_since = _setter("tombstones_since_s")
_set_live = _setter("live_bytes")
_set_request = _setter("request")
_set_open = _setter("open")
_set_unknown = _setter("unknown_fields")


def unpack_files(where: str, stored: Mapping[bytes, bytes]) -> dict[str, DataFile]:
    """Return the files of a `files` hash by path.

    Raises:
        MetadataError: Something in it is no file.
    """
    files: dict[str, DataFile] = {}
    for path, data in stored.items():
        file = _quick(path, data)
        if file is None:
            file = unpack_file(where, path, data)
        files[file.path] = file
    return files


def unpack_file(where: str, path: bytes, data: bytes) -> DataFile:
    """Return a file, the careful way.

    Raises:
        MetadataError: It is no file.
    """
    subject = f"{where} {path!r}"
    if len(data) > FILE_BYTES_MAX:
        raise broken(subject, f"has {len(data)} bytes, at most {FILE_BYTES_MAX} are allowed")
    FILE.checked(subject, unpack(subject, data))
    try:
        return FILE.unpack(subject, data, path=path.decode())
    except UnicodeDecodeError as error:
        raise broken(subject, "has a path that is no text") from error


def _quick(path: bytes, data: bytes) -> DataFile | None:
    """Return a file, or None if anything about it is not plain to see."""
    if data[:1] != PREFIX or len(data) > FILE_BYTES_MAX:
        return None
    try:
        row = unpackb(data[1:], use_list=False, max_ext_len=0)
        row += _DEFAULTS[len(row) :]
        name = path.decode()
        unknown = kept_fields(name, row[_COUNT:]) if len(row) > _COUNT else ()
    except (ValueError, TypeError, UnpackException, MetadataError):
        return None
    if unknown:
        row = row[:_COUNT]
    if tuple(map(type, row)) not in _SHAPES or ".." in name or name[:1] in "/":
        return None
    return _made(name, row, unknown)


def _made(name: str, row: tuple[Any, ...], unknown: tuple[Any, ...]) -> DataFile | None:
    size, rows, added, key_min, key_max, version_min, version_max, clean, job = row[:9]
    schema, tags, time_min, time_max, tombstones, since, live, request, is_open = row[9:]
    if size < 0 or rows < 0 or tombstones < 0 or tags != _TAGS:
        return None
    file = _new(DataFile)
    _set_path(file, name)
    _set_size(file, size)
    _set_rows(file, rows)
    _set_added(file, added)
    _set_key_min(file, key_min)
    _set_key_max(file, key_max)
    _set_version_min(file, version_min)
    _set_version_max(file, version_max)
    _set_clean(file, clean)
    _set_job(file, job)
    _set_schema(file, schema)
    _set_tags(file, tags)
    _set_time_min(file, time_min)
    _set_time_max(file, time_max)
    _set_tombstones(file, tombstones)
    _set_since(file, since)
    _set_live(file, live)
    _set_request(file, request)
    _set_open(file, is_open)
    _set_unknown(file, unknown)
    return file
