"""Layouts of what belongs to tables: the table itself, garbage, pins, outcomes, history."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from functools import lru_cache
from typing import Any

from common.metadata.codec import (
    PREFIX,
    Layout,
    Slot,
    broken,
    kept_fields,
    one_of,
    pack,
    plain_tree,
    raw,
    real,
    text,
    texts,
    unpack,
    whole,
)
from common.metadata.keys import COORDINATOR, TABLES, TableKeys
from common.metadata.readings import (
    AttemptOutcome,
    CallKind,
    CallMark,
    Claim,
    GarbageEntry,
    HistoryEntry,
    Loss,
    Manifest,
    NamedTable,
    PinEntry,
)
from common.model.location_identity import LocationIdentity
from common.model.outcome import AttemptEnd
from common.model.table import Column, Table, TableSettings, TableState
from common.model.unknown_fields import UNKNOWN, Stored, known_fields

GARBAGE = Layout(
    GarbageEntry, real("stamped_s"), raw("key_min"), raw("tablet_end"), given=("path",)
)
CALL = Layout(
    CallMark,
    one_of("kind", CallKind),
    text("content"),
    real("at_s"),
    whole("rows"),
    whole("files"),
    whole("size_bytes"),
    text("names"),
    texts("tablets"),
    text("request"),
)
CLAIM = Layout(Claim, text("coordinator"), real("since_s"))
PIN = Layout(PinEntry, real("since_s"), real("until_s"), given=("pin",))
# A day of them is kept, so it says no more than what is asked for. Earlier releases wrote the
# outputs behind the cause.
OUTCOME = Layout(AttemptOutcome, one_of("end", AttemptEnd), text("cause"), given=("attempt",))


def _manifests(rows: tuple[Any, ...]) -> tuple[tuple[int, str, float, float], ...]:
    for row in rows:
        kinds = [type(item) for item in row] if type(row) is tuple else []
        if len(kinds) < 4 or kinds[:2] != [int, str] or not {*kinds[2:4]} <= {int, float}:
            raise ValueError("an earlier manifest is none")
    return rows


MANIFEST = Layout(
    Manifest,
    whole("number"),
    text("path"),
    real("begun_s"),
    real("published_s"),
    Slot("earlier", (tuple,), None, _manifests),
)
LOSS = Layout(Loss, real("since_s"), real("until_s"))
HISTORY = Layout(
    HistoryEntry,
    text("attempt"),
    text("job"),
    text("kind"),
    text("end"),
    text("group"),
    text("compactor"),
    texts("inputs"),
    texts("outputs"),
    whole("bytes_in"),
    whole("bytes_out"),
    whole("rows_in"),
    whole("rows_out"),
    real("started_s"),
    real("ended_s"),
    text("reason"),
    text("cause"),
    text("request", optional=True),
    whole("superseded"),
    whole("tombstones_dropped"),
    whole("expired_dropped"),
    whole("transform_dropped"),
    whole("rows_changed"),
    whole("rows_deleted"),
    given=("position", "tablet"),
)

# Fields of the hash `neve:{t}:table`.
SPEC, SETTINGS, SETTINGS_VERSION, STATE, DELETES = "spec", "settings", "version", "state", "deletes"
_APART = {"id", "settings", "settings_version", "state"}
_TABLES_CACHED = 256
_COLUMN_FIELDS = len(known_fields(Column))


def unpack_claim(stored: bytes) -> Claim:
    """Return who leads; an earlier release wrote the bare id.

    Raises:
        MetadataError: It is no claim.
    """
    if stored.startswith(PREFIX):
        return CLAIM.unpack(COORDINATOR, stored)
    return Claim(coordinator=stored.decode(errors="replace"), since_s=0.0)


def table_fields(table: Table) -> dict[str, bytes | str | int]:
    """Return the fields of the hash that holds a table."""
    return {
        SPEC: _pack_named(table, _APART),
        SETTINGS: pack_settings(table.settings),
        SETTINGS_VERSION: table.settings_version,
        STATE: table.state.value,
    }


def pack_settings(settings: TableSettings) -> bytes:
    """Return settings as bytes, without the defaults."""
    return _pack_named(settings, set())


def unpack_table(where: str, table: str, stored: Mapping[bytes, bytes]) -> Table:
    """Return the table in a `table` hash.

    Raises:
        MetadataError: It is no table.
    """
    try:
        spec, settings = stored[b"spec"], stored[b"settings"]
        version, state = stored[b"version"], stored[b"state"]
    except KeyError as error:
        raise broken(where, f"lacks the field {error}") from error
    return _unpack_table(table, (spec, settings, version, state))


@lru_cache(maxsize=_TABLES_CACHED)
def _unpack_table(table: str, stored: tuple[bytes, bytes, bytes, bytes]) -> Table:
    """Decode once what is read again with every change of the table."""
    where = TableKeys(table).table
    spec, settings, version, state = stored
    named = unpack(where, spec)
    try:
        return Table(
            **_known(where, Table, named) | {"schema": _columns(where, named["schema"])},
            id=table,
            settings=unpack_settings(where, settings),
            settings_version=int(version),
            state=unpack_state(where, state),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise broken(where, f"is no table ({error})") from error


def unpack_settings(where: str, data: bytes) -> TableSettings:
    """Return the settings in `data`."""
    named = unpack(where, data)
    try:
        return TableSettings(**_known(where, TableSettings, named))
    except (ValueError, TypeError) as error:
        raise broken(where, f"holds no settings of this release ({error})") from error


def unpack_state(where: str, data: bytes) -> TableState:
    """Return a table's state."""
    try:
        return TableState(data.decode())
    except ValueError as error:
        raise broken(where, "is no state of a table") from error


def pack_name(table: Table, identity: LocationIdentity | None = None) -> bytes:
    """Return the entry of `neve:tables`: table id, location, its identity if known.

    Of an identity the names are kept. Ways over the folders above tell no more where mounts
    are told, and every look at the list of tables reads all entries.
    """
    known = [] if identity is None else [list(identity.names)]
    return pack([table.id, table.location, *known])


def unpack_name(name: bytes, data: bytes) -> NamedTable:
    """Return an entry of `neve:tables`.

    Raises:
        MetadataError: It is none.
    """
    where = f"{TABLES} {name!r}"
    row = unpack(where, data)
    kinds = tuple(map(type, row)) if type(row) is tuple else ()
    identity = None
    if kinds[:3] == (str, str, tuple):
        if {*map(type, row[2])} != {str}:
            raise broken(where, "has an identity that is none")
        identity = LocationIdentity(row[2])
    elif kinds != (str, str):
        raise broken(where, "is no entry of a table")
    return NamedTable.of(name.decode(errors="replace"), row[0], row[1], identity)


def _pack_named(value: Any, apart: set[str]) -> bytes:
    """Return a dataclass as names and values, for what changes more often than the version."""
    named: dict[str, object] = {}
    for field in known_fields(value):
        item = getattr(value, field.name)
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if field.name not in apart and (default is MISSING or item != default):
            named[field.name] = _plain_field(field.name, item)
    return pack(named | dict(value.unknown_fields))


def _known(where: str, kind: type[Stored], named: Any) -> dict[str, Any]:
    """Return names and values as a dataclass takes them: those that are unknown in one field."""
    if type(named) is not dict:
        raise TypeError(f"{kind.__name__} is {type(named).__name__}")
    known = {field.name for field in known_fields(kind)}
    unknown = tuple(pair for pair in named.items() if pair[0] not in known)
    return {name: value for name, value in named.items() if name in known} | {
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
    return plain_tree(item)
