"""Rows of appends and of buffers as files: routed to tablets, cut, written below `_neve/append/`.

Whoever adds the files routes them again if a tablet was split or merged in the meantime.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import UnavailableError, UnknownTableError
from common.metadata.store import TabletStore
from common.model.location_identity import APPEND_FOLDER
from common.model.table import Table
from common.model.tablet import OperationKind, TabletId
from common.parquet.file_inspection import FileFacts
from common.parquet.location import Location, fault, open_location
from common.parquet.row_batches import folders_of, place_guards
from common.parquet.write import TABLE_FOOTER, write_table
from common.rows.conform import Words, numbers
from common.rows.key_encoding import Partition, encode_keys, partition_of, partition_types
from common.rows.row_facts import row_hash, rows_digest
from common.rows.rules import RowRules

WRITTEN_MAX_S = 450.0
"""An append rewrites its files after this time, because a rebuild would treat older files without
a manifest entry as abandoned (`neve.recovery.stored_files`)."""


# ------------------------------------------------------------------------------------------ Targets


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """The target of rows with keys in `(after, up_to]`: the tablet with end `end`."""

    after: bytes | None
    up_to: bytes
    end: bytes


def no_tablets_error(table: Table) -> UnknownTableError:
    """Return the error for a table that lost its tablets since it was looked up."""
    return UnknownTableError(f"table {table.name!r} was dropped a moment ago: it has no tablets")


async def targets_of(
    store: TabletStore, table: Table, ends: Iterable[bytes]
) -> tuple[list[AppendTarget], Mapping[bytes, bytes]]:
    """Return the targets of the rows of an unpartitioned table, ascending, and keys of splits.

    Args:
        store: The store.
        table: A table without partitions.
        ends: Ends of tablets that may be being split: rows are cut there as well.

    Raises:
        UnknownTableError: The table was dropped in the meantime.
    """
    ids: list[TabletId] = []
    while page := await store.tablet_ids(table.id, ids[-1].end if ids else None):
        ids += page
    if not ids:
        raise no_tablets_error(table)
    tablets = await store.tablets([TabletId(table.id, end) for end in ends])
    splits = {
        tablet.id.end: tablet.operation.at
        for tablet in tablets
        if tablet is not None
        and tablet.operation is not None
        and tablet.operation.kind is not OperationKind.MERGE
        and tablet.operation.at is not None
    }
    targets: list[AppendTarget] = []
    for tablet_id in ids:
        for up_to in (splits.get(tablet_id.end), tablet_id.end):
            after = targets[-1].up_to if targets else None
            if up_to is not None and (after is None or after < up_to):
                targets.append(AppendTarget(after, up_to, tablet_id.end))
    return targets, splits


# --------------------------------------------------------------------------------------------- Rows


@dataclass(frozen=True, slots=True)
class TabletRows:
    """The rows of one tablet."""

    end: bytes
    rows: pa.Table
    partition: Partition | None = None

    def path(self, name: str) -> str:
        """Return the path of the file with these rows."""
        return f"{APPEND_FOLDER}/{self.partition.folder if self.partition else ''}{name}"


def content_digest(rows: pa.Table) -> str:
    """Return a digest of rows that does not depend on their order."""
    return digest_text(row_hash(rows))


def digest_text(hashes: Words) -> str:
    """Return the digest of rows from a hash of each."""
    return f"{len(hashes)}:{rows_digest(hashes):016x}"


def cut_by_tablet(
    rows: pa.Table, table: Table, targets: Sequence[AppendTarget]
) -> list[TabletRows]:
    """Split rows by tablet.

    Args:
        rows: Rows in the table's columns.
        table: Table with the key.
        targets: Targets of rows, ascending; empty for a partitioned table.
    """
    if table.partition_by:
        return list(_by_partition(rows, table))
    if not table.key or len(targets) == 1:
        return [TabletRows(targets[0].end, rows)]
    keys = encode_keys(rows, table.key, RowRules.of(table).key_types)
    numbers = pc.array_sort_indices(keys)
    ordered, parts, begin = keys.take(numbers), [], 0
    while begin < len(numbers):
        target = targets[_target_index(targets, ordered[begin].as_py())]
        behind = _index_after(ordered, begin, target.up_to)
        tablet_rows = rows.take(numbers.slice(begin, behind - begin))
        parts.append(TabletRows(target.end, tablet_rows))
        begin = behind
    return parts


def tablet_indices(
    keys: pa.LargeBinaryArray, targets: Sequence[AppendTarget]
) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Return the ends of the tablets of some keys, and the index of its tablet for each key.

    Args:
        keys: Encoded keys.
        targets: Targets of rows, ascending. A key above all of them belongs to the last one.
    """
    order = pc.array_sort_indices(keys)
    ordered, positions = keys.take(order), numbers(order, np.uint64)
    ends: list[bytes] = []
    tablets = np.empty(len(keys), np.int64)
    begin = 0
    while begin < len(keys):
        at = _target_index(targets, ordered[begin].as_py())
        behind = _index_after(ordered, begin, targets[at].up_to)
        if behind == begin:
            behind = len(keys)
        tablets[positions[begin:behind]] = len(ends)
        ends.append(targets[at].end)
        begin = behind
    return ends, tablets


def _by_partition(rows: pa.Table, table: Table) -> Iterator[TabletRows]:
    types = partition_types(table)
    codes = pa.array(encode_keys(rows, table.partition_by, types)).dictionary_encode()
    for number, end in enumerate(codes.dictionary.to_pylist()):
        tablet_rows = rows.filter(pc.equal(codes.indices, number))
        first = [tablet_rows.column(name)[0].as_py() for name in table.partition_by]
        yield TabletRows(end, tablet_rows, partition_of(table, first))


def _target_index(targets: Sequence[AppendTarget], key: bytes) -> int:
    """Return the index of a key's target: the first target that does not end below the key."""
    return min(bisect_left(targets, key, key=lambda target: target.up_to), len(targets) - 1)


def _index_after(ordered: pa.Array, low: int, end: bytes) -> int:
    """Return the index after the last key that is not greater than `end`."""
    high = len(ordered)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if ordered[middle].as_py() <= end else (low, middle)
    return low


# -------------------------------------------------------------------------------------------- Files


def write_appended(table: Table, path: str, rows: pa.Table) -> FileFacts:
    """Write rows of one tablet; a local file gets its name when it is complete. Blocks.

    Args:
        table: Table with the rules and settings.
        path: A unique path.
        rows: Rows in the table's columns.

    Raises:
        UnavailableError: The storage refused the file.
    """
    location, rules = open_location(table.location), RowRules.of(table)
    footer = {TABLE_FOOTER: table.id}
    if not location.is_local:
        return write_table(location, path, rows, rules, table.settings, footer=footer)
    scratch = f"{path}.part"
    facts = write_table(location, scratch, rows, rules, table.settings, footer=footer)
    name_whole_file(location, scratch, path)
    return replace(facts, path=path)


def write_guarded(table: Table, path: str, rows: pa.Table) -> FileFacts:
    """Write rows as `write_appended`, after the guards of their folder. Blocks."""
    if table.settings.directory_guard:
        place_guards(open_location(table.location), folders_of([path]))
    return write_appended(table, path, rows)


def name_whole_file(location: Location, scratch: str, path: str) -> None:
    """Give a complete local file its name.

    Raises:
        UnavailableError: The storage refused it.
    """
    try:
        location.filesystem.move(location.full(scratch), location.full(path))
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error
