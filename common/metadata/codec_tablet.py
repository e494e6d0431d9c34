"""Layouts of what belongs to tablets: files, bounds, reservations, selections, records."""

from collections.abc import Mapping
from typing import Any

from common.errors import MetadataError
from common.metadata.codec import (
    Layout,
    Slot,
    broken,
    flag,
    one_of,
    pairs,
    raw,
    real,
    text,
    texts,
    unpack,
    whole,
)
from common.model.file import DataFile
from common.model.job import Kind
from common.model.tablet import (
    Analysis,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Record,
    Reservation,
    Selection,
)

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
)
BOUNDS = Layout(Bounds, raw("start"), raw("end", optional=False), text("partition", optional=True))
RESERVATION = Layout(
    Reservation,
    text("job"),
    one_of("kind", Kind),
    texts("inputs"),
    text("output_prefix"),
    whole("outputs_max"),
    text("group"),
    text("compactor"),
    real("since_s"),
    real("now_s"),
    text("request", optional=True),
    given=("attempt",),
)
SELECTION = Layout(
    Selection,
    text("request"),
    texts("files"),
    texts("results"),
    whole("completed_jobs"),
    real("since_s"),
)
OPERATION = Layout(
    Operation,
    one_of("kind", OperationKind),
    text("operation_id"),
    one_of("step", OperationStep),
    raw("at"),
)


def unpack_file(where: str, path: bytes, data: bytes) -> DataFile:
    """Return a file. Written out by hand: a scan decodes hundreds of thousands a second.

    Raises:
        MetadataError: It is no file.
    """
    row = FILE.checked(where, unpack(where, data))
    (size, rows, added, key_min, key_max, version_min, version_max, clean, job) = row[:9]
    (schema, tags, time_min, time_max, tombstones, since, live, request, is_open) = row[9:]
    try:
        return DataFile(
            path=path.decode(),
            size_bytes=size,
            rows=rows,
            key_min=key_min,
            key_max=key_max,
            version_min=version_min,
            version_max=version_max,
            time_min_s=time_min,
            time_max_s=time_max,
            tombstones=tombstones,
            tombstones_since_s=since,
            live_bytes=live,
            schema_id=schema,
            clean=clean,
            open=is_open,
            added_at_s=added,
            tags=_tags(tags) if tags else (),
            job=job,
            request=request,
        )
    except ValueError as error:
        raise broken(where, f"is no file ({error})") from error


def unpack_files(where: str, stored: Mapping[bytes, bytes]) -> dict[str, DataFile]:
    """Return the files of a `files` hash."""
    files = (unpack_file(where, path, data) for path, data in stored.items())
    return {file.path: file for file in files}


def unpack_running(where: str, stored: Mapping[bytes, bytes]) -> dict[str, Reservation]:
    """Return the reservations of a `running` hash."""
    names = {field.decode(errors="replace"): data for field, data in stored.items()}
    return {
        attempt: RESERVATION.unpack(f"{where} {attempt}", data, attempt=attempt)
        for attempt, data in names.items()
    }


# The record is a hash of short names, so that counts change without being read.
VERSION, FILES, BYTES, RUNNING, WAITING = "v", "f", "b", "r", "w"
SELECTED, OPERATION_FLAG, DONE, PURGED = "s", "o", "d", "p"
ANALYSIS, FAILURES, FAILURE, HEAT, SETTLED = "a", "x", "e", "h", "m"

_NOTE = (
    one_of("analysis", Analysis),
    whole("analysis_version"),
    whole("analysis_settings"),
)
_MARKS = pairs("settled", float, bytes)
_NUMBERS = {
    b"v": "version",
    b"f": "files",
    b"b": "size_bytes",
    b"r": "running",
    b"w": "waiting",
    b"x": "failures",
}
_FLAGS = {b"s": "selected", b"o": "operation"}


def unpack_record(where: str, stored: Mapping[bytes, bytes]) -> Record:
    """Return the record in a `record` hash.

    Raises:
        MetadataError: It is no record.
    """
    values: dict[str, Any] = {}
    try:
        for field, data in stored.items():
            if (name := _NUMBERS.get(field)) is not None:
                values[name] = int(data)
            elif (name := _FLAGS.get(field)) is not None:
                values[name] = data != b"0"
            else:
                _unpack_remark(where, field, data, values)
        return Record(**values)
    except (ValueError, TypeError) as error:
        raise broken(where, f"is no record ({error})") from error


def is_bare(stored: Mapping[bytes, bytes]) -> bool:
    """Return whether a record says that a tablet has bounds, files and nothing else.

    True only of a record read in one MULTI with the rest: counts are exact then.
    """
    return bool(stored) and all(
        stored.get(field, b"0") == b"0" for field in (b"r", b"w", b"s", b"o", b"d", b"p")
    )


def _unpack_remark(where: str, field: bytes, data: bytes, values: dict[str, Any]) -> None:
    match field:
        case b"a":
            word, version, settings = unpack(where, data)
            values["analysis"] = Analysis(word)
            values["analysis_version"], values["analysis_settings"] = int(version), int(settings)
        case b"e":
            values["failure"] = data.decode()
        case b"h":
            values["read_heat"] = float(data)
        case b"m":
            assert _MARKS.from_plain is not None
            values["settled"] = _MARKS.from_plain(unpack(where, data))
        case b"d" | b"p":
            pass  # Only `is_bare` asks for these.
        case _:
            message = f"{where}: field {field!r} was written by another release"
            raise MetadataError(message)


def _tags(value: tuple[Any, ...]) -> tuple[tuple[str, str], ...]:
    slot: Slot = _TAGS
    assert slot.from_plain is not None
    return slot.from_plain(value)  # type: ignore[return-value]


_TAGS = pairs("tags", str, str)
