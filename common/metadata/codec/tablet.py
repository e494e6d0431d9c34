"""Layouts of the values of tablets, including files.

The decoder of files is written out, because a tablet may have very many of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgpack import UnpackException, unpackb

from common.errors import MetadataError
from common.metadata.codec.layout import (
    PREFIX,
    PackedLayout,
    broken_value_error,
    bytes_slot,
    enum_slot,
    flag_slot,
    integer_slot,
    kept_fields,
    number_slot,
    pack,
    pairs_slot,
    text_slot,
    texts_slot,
    unpack,
)
from common.model.file import ChunkGrid, DataFile
from common.model.job import Kind
from common.model.outcome import TabletStatistics
from common.model.tablet import (
    Analysis,
    Bounds,
    ChunkHead,
    ChunkNote,
    Operation,
    OperationKind,
    OperationStep,
    Record,
    Reservation,
    Selection,
    StoredChunks,
)

# ---- Data files
#
# A scan decodes hundreds of thousands of files a second, and most of that time would be spent in
# the constructor of a frozen dataclass. So the decoder sets the slots directly, which is twice as
# fast. Unusual values go through the constructor, which validates them.


FILE_BYTES_MAX = 1024**2

# Fields that most files have come first, because trailing defaults are not stored.
FILE = PackedLayout(
    DataFile,
    integer_slot("size_bytes"),
    integer_slot("rows"),
    number_slot("added_at_s"),
    bytes_slot("key_min"),
    bytes_slot("key_max"),
    bytes_slot("version_min"),
    bytes_slot("version_max"),
    flag_slot("clean"),
    text_slot("job", optional=True),
    integer_slot("schema_id"),
    pairs_slot("tags", str, str),
    number_slot("time_min_s", optional=True),
    number_slot("time_max_s", optional=True),
    integer_slot("tombstones"),
    number_slot("tombstones_since_s", optional=True),
    integer_slot("live_bytes", optional=True),
    text_slot("request", optional=True),
    flag_slot("open"),
    number_slot("measured_at_s", optional=True),
    integer_slot("measured_version", optional=True),
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
_set_measured_at = _setter("measured_at_s")
_set_measured_version = _setter("measured_version")
_set_unknown = _setter("unknown_fields")


def unpack_files(where: str, stored: Mapping[bytes, bytes]) -> dict[str, DataFile]:
    """Return the files of a `files` hash by path.

    Raises:
        MetadataError: An entry is not a file.
    """
    files: dict[str, DataFile] = {}
    for path, data in stored.items():
        file = _quick(path, data)
        if file is None:
            file = unpack_file(where, path, data)
        files[file.path] = file
    return files


def unpack_file(where: str, path: bytes, data: bytes) -> DataFile:
    """Return a file, with full validation.

    Raises:
        MetadataError: It is not a file.
    """
    subject = f"{where} {path!r}"
    if len(data) > FILE_BYTES_MAX:
        raise broken_value_error(
            subject, f"has {len(data)} bytes, at most {FILE_BYTES_MAX} are allowed"
        )
    FILE.checked(subject, unpack(subject, data))
    try:
        return FILE.unpack(subject, data, path=path.decode())
    except UnicodeDecodeError as error:
        raise broken_value_error(subject, "has a path that is not text") from error


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
    schema, tags, time_min, time_max, tombstones, since, live, request, is_open = row[9:18]
    measured_at, measured_version = row[18:]
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
    _set_measured_at(file, measured_at)
    _set_measured_version(file, measured_version)
    _set_unknown(file, unknown)
    return file


# ---------------------------------------------------------------------- Everything else of a tablet


BOUNDS = PackedLayout(
    Bounds,
    bytes_slot("start"),
    bytes_slot("end", optional=False),
    text_slot("partition", optional=True),
)
RESERVATION = PackedLayout(
    Reservation,
    text_slot("job"),
    enum_slot("kind", Kind),
    texts_slot("inputs"),
    text_slot("output_prefix"),
    integer_slot("outputs_max"),
    text_slot("group"),
    text_slot("compactor"),
    number_slot("since_s"),
    number_slot("now_s"),
    text_slot("request", optional=True),
    given=("attempt",),
)
SELECTION = PackedLayout(
    Selection,
    text_slot("request"),
    texts_slot("files"),
    texts_slot("results"),
    integer_slot("completed_jobs"),
    number_slot("since_s"),
)
OPERATION = PackedLayout(
    Operation,
    enum_slot("kind", OperationKind),
    text_slot("operation_id"),
    enum_slot("step", OperationStep),
    bytes_slot("at"),
    number_slot("since_s"),
    text_slot("reason"),
)


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
ANALYSIS, FAILURES, FAILURE, HEAT, SETTLED, SELECTOR = "a", "x", "e", "h", "m", "q"
ABANDONED = "n"
HALVED = "k"
SELECTOR_DUE = "t"
RECENT_ADDS = "l"
ANSWERED = "g"
TABLET_TRIGGERED = "i"
STATISTICS = "y"
ANALYSIS_GROUP = "u"
COMPACTIONS = "c"

_NOTE = (
    enum_slot("analysis", Analysis),
    integer_slot("analysis_version"),
    integer_slot("analysis_settings"),
)
_MARKS = pairs_slot("settled", float, bytes)
_NUMBERS = {
    b"v": "version",
    b"f": "files",
    b"b": "size_bytes",
    b"r": "running",
    b"w": "waiting",
    b"x": "failures",
    b"c": "compactions",
}
_FLAGS = {b"s": "selected", b"o": "operation"}
_TEXTS = {b"e": "failure", b"q": "selector_hash", b"u": "analysis_group"}


def unpack_record(where: str, stored: Mapping[bytes, bytes]) -> Record:
    """Return the record in a `record` hash.

    Raises:
        MetadataError: It is not a record.
    """
    values: dict[str, Any] = {}
    try:
        for field, data in stored.items():
            if (name := _NUMBERS.get(field)) is not None:
                values[name] = int(data)
            elif (name := _FLAGS.get(field)) is not None:
                values[name] = data != b"0"
            elif (name := _TEXTS.get(field)) is not None:
                values[name] = data.decode()
            elif field == b"y":
                values["statistics"] = unpack_statistics(where, data) if data else None
            else:
                _unpack_remark(where, field, data, values)
        return Record(**values)
    except (ValueError, TypeError, OverflowError) as error:
        raise broken_value_error(where, f"is no record ({error})") from error


def unpack_recent(where: str, data: bytes | None) -> tuple[tuple[float, bytes], ...]:
    """Return the notes of recent adds in a record's field."""
    if data is None:
        return ()
    return tuple((float(until_s), _bytes(version)) for until_s, version in unpack(where, data))


def _bytes(value: object) -> bytes:
    """Return bytes unchanged; `bytes(number)` would allocate that many bytes."""
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is no bytes")
    return value


def pack_statistics(statistics: TabletStatistics) -> bytes:
    """Return statistics of a tablet as a record's field, which is written as a whole."""
    return pack([
        statistics.tablet_version,
        statistics.measured_at_s,
        statistics.rows,
        statistics.updated_rows,
        [*statistics.key_quantiles],
        statistics.compared_rows,
        [list(changed_share) for changed_share in statistics.changed_shares],
        statistics.merged_share,
        [list(merged_share) for merged_share in statistics.merged_shares],
    ])  # fmt: skip


def unpack_statistics(where: str, data: bytes) -> TabletStatistics:
    """Return the statistics in a record's field; additions of a newer release are ignored.

    Raises:
        MetadataError: They are malformed.
    """
    version, at_s, rows, updated, quantiles, compared, changed, merged, *more = unpack(where, data)
    return TabletStatistics(
        tablet_version=int(version),
        measured_at_s=float(at_s),
        rows=int(rows),
        updated_rows=int(updated),
        key_quantiles=tuple(_bytes(key) for key in quantiles),
        compared_rows=int(compared),
        changed_shares=tuple((str(name), float(share)) for name, share in changed),
        merged_share=None if merged is None else float(merged),
        merged_shares=tuple((str(name), float(share)) for name, share in (more or [()])[0]),
    )


# The notes on chunks are a hash, so that changes of files count without reading it. Its fields:
#
#     head                   what the notes hold for
#     <number>               note on a chunk: state, version, files
#     <number>.<epoch>       changes of files in a chunk
#     files.<epoch>, bytes.<epoch>

CHUNK_HEAD = "head"


def pack_chunk_head(head: ChunkHead) -> bytes:
    """Return the head of a tablet's notes on chunks."""
    return pack([
        head.epoch,
        head.grid.length_s,
        head.grid.origin_s,
        head.policy,
        head.due_at_s,
        head.files,
        head.size_bytes,
    ])  # fmt: skip


def unpack_chunk_head(where: str, data: bytes | None) -> ChunkHead | None:
    """Return the head of notes on chunks; None if there is none that this release can read."""
    if data is None:
        return None
    try:
        epoch, length_s, origin_s, policy, due_at_s, files, size_bytes, *_ = unpack(where, data)
        return ChunkHead(
            epoch=int(epoch),
            grid=ChunkGrid(float(length_s), float(origin_s)),
            policy=str(policy),
            due_at_s=None if due_at_s is None else float(due_at_s),
            files=None if files is None else int(files),
            size_bytes=int(size_bytes),
        )
    except (MetadataError, ValueError, TypeError, OverflowError):
        return None  # The planner is asked for the whole tablet, and its notes begin anew.


def pack_chunk_note(note: ChunkNote) -> str:
    """Return a note on a chunk as a field of the hash."""
    return f"{note.analysis.value} {note.version} {note.files}"


def unpack_chunks(where: str, stored: Mapping[bytes, bytes]) -> StoredChunks:
    """Return the notes on chunks in a hash; none if this release cannot read one of them.

    Counts of another epoch do not matter any more.
    """
    head = unpack_chunk_head(where, stored.get(CHUNK_HEAD.encode()))
    if head is None:
        return StoredChunks()
    versions, notes = dict[int, int](), dict[int, ChunkNote]()
    counts, epoch = {b"files": 0, b"bytes": 0}, b"%d" % head.epoch
    try:
        for field, data in stored.items():
            name, dot, of = field.partition(b".")
            if not dot:
                if field != b"head":
                    word, version, files = data.split()
                    notes[int(name)] = ChunkNote(_ANALYSES[word], int(version), int(files))
            elif of == epoch:
                if name in counts:
                    counts[name] = int(data)
                else:
                    versions[int(name)] = int(data)
    except (ValueError, KeyError):
        return StoredChunks()
    return StoredChunks(
        head=head,
        versions=versions,
        notes=notes,
        files=counts[b"files"],
        size_bytes=counts[b"bytes"],
    )


_ANALYSES = {analysis.value.encode(): analysis for analysis in Analysis}


def is_bare(stored: Mapping[bytes, bytes]) -> bool:
    """Return whether a record shows that a tablet has only bounds and files.

    Valid only for a record that was read in one MULTI with the rest: then its counts are exact.
    """
    return bool(stored) and all(
        stored.get(field, b"0") == b"0" for field in (b"r", b"w", b"s", b"o", b"d", b"p")
    )


def _unpack_remark(where: str, field: bytes, data: bytes, values: dict[str, Any]) -> None:
    match field:
        case b"a":
            word, version, settings, *due = unpack(where, data)
            values["analysis"] = Analysis(word)
            values["analysis_version"], values["analysis_settings"] = int(version), int(settings)
            values["due_at_s"] = float(due[0]) if due else None
        case b"h" | b"n":
            values["read_heat" if field == b"h" else "abandoned_s"] = float(data)
        case b"m":
            assert _MARKS.from_plain is not None
            values["settled"] = _MARKS.from_plain(unpack(where, data))
        case b"l":
            values["recent_adds"] = unpack_recent(where, data)
        case b"k":
            values["halved_job"], number, *_ = unpack(where, data)
            values["halvings"] = int(number)
        case b"t":
            values["selector_due_s"] = float(data) if data else None
        case b"g" | b"i":
            values["answered_s" if field == b"g" else "triggered_s"] = float(data)
        case _:
            # `d` and `p`, which only `is_bare` uses, or a field of a newer release. It is not
            # changed, because the fields of a record are written separately.
            pass
