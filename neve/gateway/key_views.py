"""Conversion of keys, files and tablets from and to user notation."""

from collections.abc import Sequence

from common.errors import RequestError
from common.model.file import DataFile
from common.model.key_values import KeyType, key_type_of
from common.model.keys import PLUS_INFINITY, format_key, parse_key
from common.model.request import KeyRange
from common.model.table import Table
from common.model.tablet import Tablet
from neve import api


def key_types(table: Table) -> tuple[KeyType, ...]:
    """Return the type families of a table's key columns, in order."""
    types = {column.name: column.type for column in table.schema}
    return tuple(key_type_of(types[name]) for name in table.key)


def range_types(table: Table) -> tuple[KeyType, ...]:
    """Return the type families of a range's values: partition columns if any, else key columns."""
    if not table.partition_by:
        return key_types(table)
    types = {column.name: column.type for column in table.schema}
    return tuple(key_type_of(types[name]) for name in table.partition_by)


def key_range(table: Table, start: str | None, end: str | None) -> KeyRange:
    """Return a range from the texts of its first and last key, both inclusive.

    Args:
        table: Table of the keys; for a partitioned table, keys are partition values.
        start: A key, or a prefix of one; None: from the beginning.
        end: A key, or a prefix, which includes all keys that begin with it; None: to the end.

    Raises:
        RequestError: A key cannot be parsed, or the range is empty.
    """
    if start is None and end is None:
        return KeyRange()
    types = range_types(table)
    if not types:
        raise RequestError(f"table {table.name!r} has no key, so it has no range of keys")
    first = None if start is None else parse_key(start, types) or None
    last = PLUS_INFINITY if end is None else parse_key(end, types) or PLUS_INFINITY
    # After every key that begins with `last`: the first byte of the next value is at most 02.
    until = None if last == PLUS_INFINITY else last + b"\xff"
    if first == PLUS_INFINITY or (first is not None and until is not None and first >= until):
        raise RequestError(f"no key lies from {start!r} to {end!r}, expected start before end")
    return KeyRange(first, until)


def file_view(file: DataFile, tablet: str, types: Sequence[KeyType]) -> api.File:
    """Return the wire model of a file.

    Args:
        file: The file, as stored.
        tablet: Text of the tablet's end.
        types: Type families of the key columns.
    """
    return api.File(
        path=file.path,
        tablet=tablet,
        size_bytes=file.size_bytes,
        rows=file.rows,
        key_min=key_text(file.key_min, types),
        key_max=key_text(file.key_max, types),
        tombstones=file.tombstones,
        schema_id=file.schema_id,
        clean=file.clean,
        open=file.open,
        added_at_s=file.added_at_s,
        time_min_s=file.time_min_s,
        time_max_s=file.time_max_s,
        tags=dict(file.tags),
        job=file.job,
        request=file.request,
        live_bytes=file.live_bytes,
        measured_at_s=file.measured_at_s,
    )


def tablet_view(tablet: Tablet, types: Sequence[KeyType]) -> api.Tablet:
    """Return the wire model of a tablet.

    Args:
        tablet: The tablet, as stored.
        types: Type families of the key columns.
    """
    ranged = tablet.bounds.partition is None
    operation = tablet.operation
    return api.Tablet(
        tablet=tablet.id.text,
        files=len(tablet.files),
        size_bytes=sum(file.size_bytes for file in tablet.files.values()),
        rows=sum(file.rows for file in tablet.files.values()),
        start=key_text(tablet.bounds.start, types) if ranged else None,
        end=key_text(tablet.bounds.end, types) if ranged else None,
        partition=tablet.bounds.partition,
        running=len(tablet.running),
        waiting=len(tablet.waiting),
        selected=tablet.selection is not None,
        operation=None if operation is None else f"{operation.kind.value} ({operation.step.value})",
        analysis=tablet.record.analysis.value,
        failures=tablet.record.failures,
        failure=tablet.record.failure,
        compactions=tablet.record.compactions,
    )


def key_text(key: bytes | None, types: Sequence[KeyType]) -> str | None:
    """Return a key in user notation; hex if its bytes do not match the types."""
    if key is None:
        return None
    if key == PLUS_INFINITY:
        return "+inf"
    try:
        return format_key(key, types)
    except ValueError:
        return f"0x{key.hex()}"
