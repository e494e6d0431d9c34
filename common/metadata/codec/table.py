"""Layouts of the values of tables: settings, garbage, pins, outcomes, history, requests."""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import lru_cache
from typing import Any

from common.errors import BrokenValueError, MetadataError
from common.metadata.codec.layout import (
    PREFIX,
    PackedLayout,
    Slot,
    broken_value_error,
    bytes_slot,
    enum_slot,
    flag_slot,
    integer_slot,
    kept_fields,
    number_slot,
    pack,
    plain_tree,
    stored_name,
    text_slot,
    texts_slot,
    unpack,
    whole_number,
)
from common.metadata.keys import COORDINATOR, TABLES, TableKeys
from common.metadata.store_values import (
    AcceptedLoss,
    AttemptOutcome,
    BufferCounts,
    BufferSegment,
    CallKind,
    CallMark,
    CoordinatorClaim,
    GarbageEntry,
    HistoryEntry,
    Manifest,
    Mirror,
    MirrorHead,
    NamedTable,
    PinEntry,
    PublishingMark,
    TableBuffer,
)
from common.model.fields import UNKNOWN, StoredValue, known_fields
from common.model.location_identity import LocationIdentity
from common.model.outcome import AttemptEnd
from common.model.request import (
    KeyRange,
    OutputSpec,
    Request,
    RequestState,
    SelectorSpec,
    TransformKind,
    TransformSpec,
)
from common.model.table import (
    Column,
    Filling,
    LakeTable,
    Table,
    TableSettings,
    TableState,
    missing_columns,
)

# ------------------------------------------------------------------------------------------- Tables


GARBAGE = PackedLayout(
    GarbageEntry,
    number_slot("stamped_s"),
    bytes_slot("key_min"),
    bytes_slot("tablet_end"),
    given=("path",),
)
CALL = PackedLayout(
    CallMark,
    enum_slot("kind", CallKind),
    text_slot("content"),
    number_slot("at_s"),
    integer_slot("rows"),
    integer_slot("files"),
    integer_slot("size_bytes"),
    text_slot("names"),
    texts_slot("tablets"),
    text_slot("request"),
)
SEGMENT = PackedLayout(
    BufferSegment,
    text_slot("flush"),
    integer_slot("schema_id"),
    bytes_slot("schema", optional=False),
    number_slot("opened_s"),
    number_slot("closed_s"),
    bytes_slot("floor", optional=False),
    given=("number",),
)
LAST_SEGMENT = "last"
"""Field of `neve:{t}:rows`: the highest number of a segment so far."""


def segment_field(number: int) -> str:
    """Return the field of a segment in `neve:{t}:rows`."""
    return f"s{number}"


def count_fields(number: int) -> tuple[str, str, str]:
    """Return the fields that count a segment's rows, bytes and calls in `neve:{t}:rows:counts`."""
    return f"{number}:rows", f"{number}:bytes", f"{number}:calls"


def unpack_segments(key: str, stored: Mapping[bytes, bytes]) -> tuple[BufferSegment, ...]:
    """Return the segments of a table's buffered rows, ascending."""
    segments = []
    for name, value in stored.items():
        if name == LAST_SEGMENT.encode():
            continue
        if name[:1] != b"s" or not name[1:].isdigit():
            raise broken_value_error(key, f"has the unknown field {name[:40]!r}")
        number = int(name[1:])
        segments.append(SEGMENT.unpack(f"{key} {number}", value, number=number))
    return tuple(sorted(segments, key=lambda segment: segment.number))


def unpack_buffer(
    keys: TableKeys, rows: Mapping[bytes, bytes], counts: Mapping[bytes, bytes]
) -> TableBuffer:
    """Return a table's buffer; counts of segments that are gone are left out."""
    segments = unpack_segments(keys.rows, rows)
    numbers: dict[int, BufferCounts] = {}
    for segment in segments:
        stored = [counts.get(name.encode()) for name in count_fields(segment.number)]
        rows_count, size_bytes, calls = (whole_number(keys.row_counts, value) for value in stored)
        numbers[segment.number] = BufferCounts(rows=rows_count, size_bytes=size_bytes, calls=calls)
    return TableBuffer(segments=segments, counts=numbers)


# Rows of a call are too large for msgpack's limits: version and checksum of all that follows,
# decoded length and number of rows, then the compressed Arrow message.
_ROWS_HEAD, _ROWS_SIZE = struct.Struct("<BI"), struct.Struct("<QI")
ROWS_BYTES_MAX = 64 * 1024**2
"""Largest decoded size of the rows of one call."""


def pack_rows(message: bytes, rows: int) -> bytes:
    """Return the rows of a call as they are stored, with length and checksum."""
    body = _ROWS_SIZE.pack(len(message), rows) + zlib.compress(message, 1)
    return _ROWS_HEAD.pack(PREFIX[0], zlib.crc32(body)) + body


def unpack_rows(where: str, stored: bytes) -> tuple[bytes, int]:
    """Return the Arrow message with the rows of a call, and their number.

    Raises:
        BrokenValueError: They are damaged, or were written by a newer release.
    """
    try:
        version, checksum = _ROWS_HEAD.unpack_from(stored)
        length, rows = _ROWS_SIZE.unpack_from(stored, _ROWS_HEAD.size)
    except struct.error as error:
        raise broken_value_error(where, f"is too short ({error})") from error
    if version != PREFIX[0]:
        raise BrokenValueError(f"{where}: rows have format {version}, this release reads 1")
    if zlib.crc32(stored[_ROWS_HEAD.size :]) != checksum or length > ROWS_BYTES_MAX:
        raise broken_value_error(where, "has damaged rows: their checksum or length is wrong")
    data = stored[_ROWS_HEAD.size + _ROWS_SIZE.size :]
    return zlib.decompressobj().decompress(data, length), rows


MIRROR_HEAD = PackedLayout(
    MirrorHead,
    text_slot("token"),
    integer_slot("version"),
    number_slot("moved_s"),
    text_slot("problem"),
    number_slot("problem_s"),
)
PUBLISHING = PackedLayout(
    PublishingMark,
    bytes_slot("tablet_end", optional=False),
    integer_slot("planned"),
    integer_slot("base"),
    texts_slot("outputs"),
    number_slot("marked_s"),
    given=("attempt",),
)
HEAD, COMMITTED = MIRROR_FIELDS = "head", "committed"
"""Fields of `neve:{t}:mirror`: a `MirrorHead`, and the newest version of an own commit."""


def unpack_mirror(key: str, stored: Sequence[bytes | None]) -> Mirror:
    """Return the state of a lake table's mirror from its `MIRROR_FIELDS`.

    Raises:
        MetadataError: A stored value is malformed.
    """
    head, committed = stored
    return Mirror(
        head=None if head is None else MIRROR_HEAD.unpack(f"{key} {HEAD}", head),
        committed=-1 if committed is None else whole_number(f"{key} {COMMITTED}", committed),
    )


def unpack_publishing(key: str, stored: Mapping[bytes, bytes]) -> list[PublishingMark]:
    """Return the marks of attempts that may have sent something, by attempt."""
    marks = ((stored_name(key, name), mark) for name, mark in sorted(stored.items()))
    return [PUBLISHING.unpack(f"{key} {name}", mark, attempt=name) for name, mark in marks]


CLAIM = PackedLayout(CoordinatorClaim, text_slot("coordinator"), number_slot("since_s"))
PIN = PackedLayout(PinEntry, number_slot("since_s"), number_slot("until_s"), given=("pin",))
# Outcomes are kept for a day, so they hold only required fields. Earlier releases wrote the
# outputs after the cause.
OUTCOME = PackedLayout(
    AttemptOutcome, enum_slot("end", AttemptEnd), text_slot("cause"), given=("attempt",)
)


def _manifests(rows: tuple[Any, ...]) -> tuple[tuple[int, str, float, float], ...]:
    for row in rows:
        kinds = [type(item) for item in row] if type(row) is tuple else []
        if len(kinds) < 4 or kinds[:2] != [int, str] or not {*kinds[2:4]} <= {int, float}:
            raise ValueError("an earlier manifest is none")
    return rows


MANIFEST = PackedLayout(
    Manifest,
    integer_slot("number"),
    text_slot("path"),
    number_slot("begun_s"),
    number_slot("published_s"),
    Slot("earlier", (tuple,), None, _manifests),
)
LOSS = PackedLayout(AcceptedLoss, number_slot("since_s"), number_slot("until_s"))
HISTORY = PackedLayout(
    HistoryEntry,
    text_slot("attempt"),
    text_slot("job"),
    text_slot("kind"),
    text_slot("end"),
    text_slot("group"),
    text_slot("compactor"),
    texts_slot("inputs"),
    texts_slot("outputs"),
    integer_slot("bytes_in"),
    integer_slot("bytes_out"),
    integer_slot("rows_in"),
    integer_slot("rows_out"),
    number_slot("started_s"),
    number_slot("ended_s"),
    text_slot("reason"),
    text_slot("cause"),
    text_slot("request", optional=True),
    integer_slot("superseded"),
    integer_slot("tombstones_dropped"),
    integer_slot("expired_dropped"),
    integer_slot("transform_dropped"),
    integer_slot("rows_changed"),
    integer_slot("rows_deleted"),
    integer_slot("expected_bytes"),
    integer_slot("expected_files"),
    number_slot("expected_s"),
    integer_slot("expected_gain"),
    integer_slot("gain"),
    given=("position", "tablet"),
)

# Fields of the hash `neve:{t}:table`.
SPEC, SETTINGS, SETTINGS_VERSION, STATE, DELETES = "spec", "settings", "version", "state", "deletes"
TRIGGERED = "triggered"
FILLING, FILLED, INCOMPLETE = "filling", "filled", "incomplete"
_APART = {
    "id",
    "settings",
    "settings_version",
    "state",
    "triggered_at_s",
    "triggered_by",
    "filling",
    "incomplete",
}
_LAKE_PREFIX = bytes([PREFIX[0] + 1])
"""Version byte of the spec of a lake table. Releases that know none refuse to read such a table:
they would compact it like their own, and delete files that the table's log names."""
_TABLES_CACHED = 256
_COLUMN_FIELDS = len(known_fields(Column))


def unpack_claim(stored: bytes) -> CoordinatorClaim:
    """Return the claim of the leading coordinator; an earlier release wrote only the id.

    Raises:
        MetadataError: It is not a claim.
    """
    if stored.startswith(PREFIX):
        return CLAIM.unpack(COORDINATOR, stored)
    return CoordinatorClaim(coordinator=stored.decode(errors="replace"), since_s=0.0)


def table_fields(table: Table) -> dict[str, bytes | str | int]:
    """Return the fields of the hash that holds a table."""
    spec = _pack_named(table, _APART)
    fields: dict[str, bytes | str | int] = {
        SPEC: spec if table.lake is None else _LAKE_PREFIX + spec[len(PREFIX) :],
        SETTINGS: pack_settings(table.settings),
        SETTINGS_VERSION: table.settings_version,
        STATE: table.state.value,
    }
    if table.filling is not None:
        fields[FILLING] = pack_filling(table.filling)
    return fields


def pack_filling(filling: Filling) -> bytes:
    """Return the run that fills a table, with its number of files, as bytes.

    The field stays after the table is filled, as the mark of the change to live or paused.
    """
    return pack([filling.run, filling.verb, filling.files])


def unpack_filling(where: str, stored: Mapping[bytes, bytes]) -> Filling | None:
    """Return the run that fills a table, or has filled it; None: it was created empty.

    Raises:
        MetadataError: The stored value is malformed.
    """
    return _unpack_filling(where, stored.get(b"filling"), stored.get(b"filled"))


def _unpack_filling(where: str, packed: bytes | None, done: bytes | None) -> Filling | None:
    if packed is None:
        return None
    try:
        run, verb, files, *_ = unpack(where, packed)
        return Filling(run=run, verb=verb, files=files, done=int(done or 0))
    except (ValueError, TypeError) as error:
        raise broken_value_error(where, f"holds no run that fills it ({error})") from error


def pack_triggered(at_s: float, by: str) -> bytes:
    """Return time and name of the last trigger as bytes."""
    return pack([at_s, by])


def pack_settings(settings: TableSettings) -> bytes:
    """Return settings as bytes, without the defaults."""
    return _pack_named(settings, set())


def is_lake_spec(spec: bytes | None) -> bool:
    """Return whether a stored spec is that of a lake table."""
    return spec is not None and spec.startswith(_LAKE_PREFIX)


def unpack_table(where: str, table: str, stored: Mapping[bytes, bytes]) -> Table:
    """Return the table in a `table` hash.

    Raises:
        MetadataError: It is not a table.
    """
    try:
        spec, settings = stored[b"spec"], stored[b"settings"]
        version, state = stored[b"version"], stored[b"state"]
    except KeyError as error:
        raise broken_value_error(where, f"lacks the field {error}") from error
    separate = tuple(
        stored.get(name) for name in (b"triggered", b"filling", b"filled", b"incomplete")
    )
    return _unpack_table(table, (spec, settings, version, state), separate)


@lru_cache(maxsize=_TABLES_CACHED)
def _unpack_table(
    table_id: str, stored: tuple[bytes, bytes, bytes, bytes], separate: tuple[bytes | None, ...]
) -> Table:
    """Decode once what is otherwise read again with every change of the table."""
    where = TableKeys(table_id).table
    spec, settings, version, packed_state = stored
    triggered, filling, filled, incomplete = separate
    state = unpack_state(where, packed_state)
    is_lake = is_lake_spec(spec)
    named = unpack(where, PREFIX + spec[len(PREFIX) :] if is_lake else spec)
    try:
        if is_lake:
            named["lake"] = LakeTable(**_arguments(where, LakeTable, named["lake"]))
        at_s, by, *_ = (0.0, "") if triggered is None else unpack(where, triggered)
        table = Table(
            **_arguments(where, Table, named) | {"schema": _columns(where, named["schema"])},
            id=table_id,
            settings=unpack_settings(where, settings),
            settings_version=int(version),
            state=state,
            triggered_at_s=float(at_s),
            triggered_by=by,
            filling=(
                _unpack_filling(where, filling, filled) if state is TableState.FILLING else None
            ),
            incomplete=bool(incomplete),
        )
        _check_named_columns(table)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise broken_value_error(where, f"is no table ({error})") from error
    return table


def _check_named_columns(table: Table) -> None:
    """Refuse a table whose key, version, tombstone or time column is not in its schema."""
    named = (*table.key, table.version_column, table.tombstone_column, table.time_column)
    for name in missing_columns(table.schema, named):
        raise ValueError(f"column {name!r:.80} is not in its schema")


def unpack_settings(where: str, data: bytes) -> TableSettings:
    """Return the settings in `data`."""
    named = unpack(where, data)
    try:
        return TableSettings(**_arguments(where, TableSettings, named))
    except (ValueError, TypeError, OverflowError) as error:
        raise broken_value_error(where, f"holds no settings of this release ({error})") from error


def unpack_state(where: str, data: bytes) -> TableState:
    """Return a table's state."""
    try:
        return TableState(data.decode())
    except ValueError as error:
        raise broken_value_error(where, "is no state of a table") from error


def pack_name(table: Table, identity: LocationIdentity | None = None) -> bytes:
    """Return the entry of `neve:tables`: table id, location, and its identity if known.

    Only the identity's names are stored. Names of parent folders add nothing where mounts are
    known, and every read of the list of tables reads all entries.
    """
    names = [] if identity is None else [list(identity.names)]
    return pack([table.id, table.location, *names])


def unpack_name(name: bytes, data: bytes) -> NamedTable:
    """Return an entry of `neve:tables`.

    Raises:
        MetadataError: It is malformed.
    """
    where = f"{TABLES} {name!r}"
    row = unpack(where, data)
    kinds = tuple(map(type, row)) if type(row) is tuple else ()
    identity = None
    if kinds[:3] == (str, str, tuple):
        if {*map(type, row[2])} != {str}:
            raise broken_value_error(where, "has a malformed identity")
        identity = LocationIdentity(row[2])
    elif kinds != (str, str):
        raise broken_value_error(where, "is not an entry of a table")
    return NamedTable.of(name.decode(errors="replace"), row[0], row[1], identity)


def _pack_named(value: Any, separate: set[str]) -> bytes:
    """Return a dataclass as names and values, for fields that change often."""
    named: dict[str, object] = {}
    for field in known_fields(value):
        item = getattr(value, field.name)
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if field.name not in separate and (default is MISSING or item != default):
            named[field.name] = _plain_field(field.name, item)
    return pack(named | dict(value.unknown_fields))


def _arguments(where: str, kind: type[StoredValue], named: Any) -> dict[str, Any]:
    """Return names and values as a dataclass takes them, unknown ones in one field."""
    if type(named) is not dict:
        raise TypeError(f"{kind.__name__} is {type(named).__name__}")
    field_names = {field.name for field in known_fields(kind)}
    unknown = tuple(pair for pair in named.items() if pair[0] not in field_names)
    return {name: value for name, value in named.items() if name in field_names} | {
        UNKNOWN: kept_fields(where, unknown)
    }


def _columns(where: str, rows: Iterable[Any]) -> tuple[Column, ...]:
    return tuple(
        Column(*row[:_COLUMN_FIELDS], unknown_fields=kept_fields(where, row[_COLUMN_FIELDS:]))
        for row in rows
    )


def _column_row(column: Column) -> list[Any]:
    row = [column.name, column.type, column.nullable, column.since]
    if column.unknown_fields:
        return [*row, *column.unknown_fields]
    return row if column.since else row[:-1]


def _plain_field(name: str, item: Any) -> object:
    if name == "schema":
        return [_column_row(column) for column in item]
    if isinstance(item, LakeTable):
        return {field.name: getattr(item, field.name) for field in known_fields(item)} | dict(
            item.unknown_fields
        )
    return plain_tree(item)


# ---- Requests, and their order
#
# A request is a hash of two fields: its state, which changes and is often read alone, and
# everything else.


# Fields of the hash `neve:{t}:request:<id>`.
REQUEST_STATE, VALUE = "state", "value"


def _options(name: str) -> Slot:
    def from_plain(value: dict[Any, Any]) -> dict[str, str]:
        if any(type(word) is not str for pair in value.items() for word in pair):
            raise ValueError(f"{name} are no texts")
        return value

    return Slot(name, (dict,), dict, from_plain)


def _nested(name: str, layout: PackedLayout[Any]) -> Slot:
    def from_plain(row: object) -> Any:
        try:
            return layout.made(name, row)
        except MetadataError as error:
            raise ValueError(str(error)) from error

    return Slot(name, (tuple,), lambda value: tuple(layout.row(value)), from_plain)


_RANGE = PackedLayout(KeyRange, bytes_slot("start"), bytes_slot("until"))
_SELECTOR = PackedLayout(SelectorSpec, _options("options"), text_slot("name"))
_TRANSFORM = PackedLayout(
    TransformSpec,
    _options("options"),
    enum_slot("kind", TransformKind),
    text_slot("text"),
    text_slot("name"),
)
_OUTPUT = PackedLayout(
    OutputSpec,
    text_slot("codec", optional=True),
    integer_slot("codec_level", optional=True),
    integer_slot("row_group_bytes", optional=True),
)


def _ranges(name: str) -> Slot:
    slot = _nested(name, _RANGE)
    assert slot.to_plain is not None
    assert slot.from_plain is not None
    to_plain, from_plain = slot.to_plain, slot.from_plain
    return Slot(
        name,
        (tuple,),
        lambda value: tuple(map(to_plain, value)),
        lambda rows: tuple(map(from_plain, rows)),
    )


REQUEST = PackedLayout(
    Request,
    _nested("selector", _SELECTOR),
    _nested("transform", _TRANSFORM),
    _nested("output", _OUTPUT),
    _options("hints"),
    number_slot("submitted_at_s"),
    _nested("range", _RANGE),
    integer_slot("boost"),
    number_slot("deadline_s", optional=True),
    flag_slot("automatic"),
    number_slot("ended_at_s", optional=True),
    text_slot("cause"),
    flag_slot("fails"),
    _ranges("cancelled_ranges"),
    given=("id", "table", "state"),
)


def request_fields(request: Request) -> dict[str, bytes | str]:
    """Return the fields of the hash that holds a request."""
    return {REQUEST_STATE: request.state.value, VALUE: REQUEST.pack(request)}


def unpack_request(
    where: str, table: str, request: str, stored: Mapping[bytes, bytes]
) -> Request | None:
    """Return the request in a `request` hash, or None if the hash is empty.

    Raises:
        MetadataError: It is not a request.
    """
    if not stored:
        return None
    try:
        state, value = RequestState(stored[b"state"].decode()), stored[b"value"]
    except (KeyError, ValueError) as error:
        raise broken_value_error(where, f"is no request ({error})") from error
    return REQUEST.unpack(where, value, id=request, table=table, state=state)


def request_member(request: Request) -> bytes:
    """Return a request's member in the sorted sets of requests: by time, then by id."""
    return b"%020d:%s" % (int(request.submitted_at_s * 1_000_000), request.id.encode())


def submitted_at_s(member: bytes) -> float:
    """Return the submission time of a member."""
    return int(member.partition(b":")[0]) / 1_000_000


def request_of_member(member: bytes) -> str:
    """Return the request id of a member."""
    return member.partition(b":")[2].decode(errors="replace")
