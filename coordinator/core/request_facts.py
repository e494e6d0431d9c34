"""Small questions about a request in a tablet, and what others may know of it. Pure."""

import math
from collections.abc import Mapping, Sequence

from common.errors import RequestError
from common.expressions.file_pruning import ColumnBounds, may_be_true
from common.metadata.request_predicates import may_hold_range
from common.model.file import DataFile
from common.model.key_values import NANOS, KeyType, key_type_of
from common.model.keys import encode_value
from common.model.request import Request, TransformKind
from common.model.table import Table
from common.model.tablet import Bounds, Tablet
from common.rows.partitions import partition_types, partition_values
from common.spi.planner import RequestFacts

TIME_ROUNDED_S = 1e-3
"""More than a time of a file, which is a float, may be off."""
TIMES_MAX_S = 1e11
"""Up to here: some thousand years. Floats beyond are too coarse."""


def concerns(request: Request, bounds: Bounds) -> bool:
    """Return whether a tablet may hold rows of a request's range."""
    return may_hold_range(request.range, bounds)


def closed_files(tablet: Tablet) -> tuple[DataFile, ...]:
    """Return the files that are no longer written, by path."""
    return tuple(file for _, file in sorted(tablet.files.items()) if not file.open)


def shown_files(request: Request, tablet: Tablet) -> tuple[DataFile, ...]:
    """Return what a request's selector is shown: files with keys in its range, by path."""
    closed = closed_files(tablet)
    if tablet.bounds.partition is not None:
        return closed  # The range is one of partitions.
    return tuple(file for file in closed if _in_range(request, file))


def matching_files(
    request: Request, table: Table, tablet: Tablet, files: Sequence[DataFile]
) -> tuple[DataFile, ...]:
    """Return the files that may hold rows which the request's transform means.

    Only `delete where` leaves files out: by the values of the tablet's partition, and by the
    bounds of their versions, their times and the first column of their keys.

    Args:
        request: Any.
        table: Its table.
        tablet: As it was read.
        files: Of the tablet.
    """
    transform = request.transform
    if transform.kind is not TransformKind.DELETE_WHERE:
        return tuple(files)
    of_partition = _partition_bounds(table, tablet)
    return tuple(
        file
        for file in files
        if may_be_true(transform.text, {**_file_bounds(table, file), **of_partition})
    )


def _partition_bounds(table: Table, tablet: Tablet) -> Mapping[str, ColumnBounds]:
    if tablet.bounds.partition is None:
        return {}
    try:
        values = partition_values(table, tablet.bounds.partition)
    except RequestError:
        return {}
    bounds = {}
    for (name, value), kind in zip(values.items(), partition_types(table), strict=True):
        key = encode_value(value, kind)
        bounds[name] = ColumnBounds(type=_type(table, name), least=key, greatest=key)
    return bounds


def _file_bounds(table: Table, file: DataFile) -> Mapping[str, ColumnBounds]:
    bounds = dict(_time_bounds(table, file))
    ends = [(table.version_column, file.version_min, file.version_max)]
    if table.key:
        ends.append((table.key[0], file.key_min, file.key_max))
    for name, least, greatest in ends:
        if name is not None and least is not None and greatest is not None:
            bounds[name] = ColumnBounds(type=_type(table, name), least=least, greatest=greatest)
    return bounds


def _time_bounds(table: Table, file: DataFile) -> Mapping[str, ColumnBounds]:
    """Return the bounds of a time column of moments: seconds as floats, rounded outwards.

    Files do not tell whether there are nulls besides.
    """
    name, first_s, last_s = table.time_column, file.time_min_s, file.time_max_s
    if name is None or first_s is None or last_s is None:
        return {}
    column, kind = _type(table, name), KeyType.TIMESTAMP
    if key_type_of(column) is not kind or not max(-first_s, last_s) < TIMES_MAX_S:
        return {}
    least, greatest = (
        encode_value(math.floor(end_s * NANOS), kind)
        for end_s in (first_s - TIME_ROUNDED_S, last_s + TIME_ROUNDED_S)
    )
    return {name: ColumnBounds(type=column, least=least, greatest=greatest, nulls=True)}


def _type(table: Table, name: str) -> str:
    return next(each.type for each in table.schema if each.name == name)


def facts_of(request: Request) -> RequestFacts:
    """Return what dispatchers and planners may know of a request."""
    output = request.output
    chosen = {
        "codec": output.codec,
        "codec_level": output.codec_level,
        "row_group_bytes": output.row_group_bytes,
    }
    return RequestFacts(
        request=request.id,
        hints=request.hints,
        boost=request.boost,
        output={name: value for name, value in chosen.items() if value is not None},
    )


def left(request: Request, tablet: Tablet) -> bool:
    """Return whether a tablet has a marker, selection or running entry of a request."""
    waits = request.id in tablet.waiting
    return waits or holds(request, tablet) or bool(running(request, tablet))


def running(request: Request, tablet: Tablet) -> tuple[str, ...]:
    """Return a request's attempts under way in a tablet."""
    return tuple(
        attempt for attempt, entry in sorted(tablet.running.items()) if entry.request == request.id
    )


def is_done(request: Request, tablet: Tablet) -> bool:
    """Return whether a request has its done marker in a tablet."""
    return request.id in tablet.done


def holds(request: Request, tablet: Tablet) -> bool:
    """Return whether the selection of a tablet is a request's."""
    return tablet.selection is not None and tablet.selection.request == request.id


def _in_range(request: Request, file: DataFile) -> bool:
    if file.key_min is None or file.key_max is None:
        return True
    start, until = request.range.start, request.range.until
    return (start is None or file.key_max >= start) and (until is None or file.key_min < until)
