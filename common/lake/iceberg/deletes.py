"""Delete files of Iceberg tables: to which data files they apply, and which rows they remove.

    position deletes   name a path and a position. They apply to data files of their partition with
                       at most their sequence number
    equality deletes   hold values of some columns. They apply to data files of their partition (of
                       all, if their spec has no fields) with a smaller sequence number

These are the rules of Iceberg's specification, section "Scan planning". Delete files are untrusted:
columns are found by their field ids, sizes have bounds, and positions must be those of rows.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO

from common.errors import InputError
from common.lake.iceberg.catalogs import translated
from common.lake.iceberg.manifests import PATH_ID, POSITION_ID, DeleteFile
from common.lake.source import LakeFile, Partition, Positions
from common.primitives import BoundedMap
from common.rows.conform import field_id

ROWS_MAX = 2**26
"""Most rows of one delete file."""
KEYS_MAX = 2**24
"""Most rows of all equality deletes that apply to a file, held in memory while it is read."""
HELD_ROWS_MAX = 2**22
"""Positions of the last delete files that are kept in memory, for the next data file."""
COUNTED_ROWS_MAX = 2**25
"""Most rows of position deletes that one load counts by data file."""
BATCH_ROWS = 2**16
NO_POSITIONS: Positions = np.empty(0, np.uint64)

# ------------------------------------------------------------------------------------ Which apply


Applied = tuple[DeleteFile, int]
"""A file of position deletes, and how many rows of a data file it names; 0: this is unknown."""


class DeleteIndex:
    """The live delete files of a snapshot, by what they apply to."""

    def __init__(
        self, deletes: Iterable[DeleteFile], counts: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Index delete files.

        Args:
            deletes: All live ones.
            counts: Delete file → data file → number of rows. What is missing was not counted.
        """
        self._by_path: dict[str, list[Applied]] = {}
        self._uncounted: dict[Partition, list[DeleteFile]] = {}
        self._equal: dict[Partition | None, list[DeleteFile]] = {}
        self._pairs: dict[tuple[Partition, int], tuple[tuple[int, str], ...]] = {}
        for file in sorted(deletes, key=lambda file: (file.sequence, file.path)):
            if file.equality_ids:
                self._equal.setdefault(None if file.is_global else file.partition, []).append(file)
            elif file.data_path:
                self._by_path.setdefault(file.data_path, []).append((file, file.rows))
            elif (counted := counts.get(file.path)) is not None:
                for path, count in counted.items():
                    self._by_path.setdefault(path, []).append((file, count))
            else:
                self._uncounted.setdefault(file.partition, []).append(file)

    @property
    def is_empty(self) -> bool:
        """Whether there are no delete files."""
        return not (self._by_path or self._uncounted or self._equal)

    def position_deletes(self, file: LakeFile, uri: str) -> list[Applied]:
        """Return the files that delete rows of a data file by position, in order.

        Args:
            file: The data file.
            uri: Its path as the table's writers spell it.
        """
        own = [
            (delete, count)
            for delete, count in self._by_path.get(uri, ())
            if delete.sequence >= file.sequence
            and (delete.data_path or delete.partition == file.partition)
        ]
        ranged = [
            (delete, 0)
            for delete in self._uncounted.get(file.partition, ())
            if delete.sequence >= file.sequence
            and (not delete.path_min or delete.path_min <= uri <= _end_of(delete.path_max))
        ]
        return [*own, *ranged]

    def equality_deletes(self, file: LakeFile) -> tuple[tuple[int, str], ...]:
        """Return the files that may delete rows of a data file by value, ascending."""
        if not self._equal:
            return ()
        key = (file.partition, file.sequence)
        pairs = self._pairs.get(key)
        if pairs is None:
            both = [*self._equal.get(None, ()), *self._equal.get(file.partition, ())]
            later = [delete for delete in both if delete.sequence > file.sequence]
            pairs = tuple(sorted((delete.sequence, delete.path) for delete in later))
            self._pairs[key] = pairs
        return pairs


def _end_of(greatest: str) -> str:
    """Return an upper bound of texts that a writer may have cut off."""
    return greatest + "\U0010ffff"


def identity_of(paths: Iterable[str]) -> str:
    """Return the identity of position deletes: equal ones are the same files in any order."""
    digest = hashlib.sha256("\n".join(sorted(paths)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


# ---------------------------------------------------------------------------- Deletes by position


class PositionReader:
    """Reads position deletes. The last files are kept: they often apply to several data files.

    Calls of several threads may overlap.
    """

    def __init__(self, io: FileIO) -> None:
        self.io = io
        self._held: BoundedMap[str, Mapping[str, Positions]] = BoundedMap(64)
        self._lock = threading.Lock()

    def counts(self, delete: DeleteFile) -> dict[str, int]:
        """Return the number of rows that a delete file names, by data file."""
        counts: dict[str, int] = {}
        for paths, _ in _position_batches(self.io, delete, with_positions=False):
            for entry in pc.value_counts(paths).to_pylist():
                counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
        return counts

    def positions(self, deletes: Sequence[DeleteFile], uri: str, rows: int) -> Positions:
        """Return the positions of a data file's rows that some delete files name.

        Args:
            deletes: Position deletes that apply to it.
            uri: The data file, as the table's writers spell it.
            rows: Number of its rows.

        Raises:
            InputError: A delete file is missing or malformed, or names a row that is not there.
        """
        parts = [self._positions(delete, uri) for delete in deletes]
        positions = np.unique(np.concatenate([NO_POSITIONS, *parts]))
        if positions.size and int(positions[-1]) >= rows:
            message = f"file {uri} has {rows} rows; row {positions[-1]} is deleted"
            raise InputError(message)
        return positions

    def _positions(self, delete: DeleteFile, uri: str) -> Positions:
        if delete.data_path or delete.rows > HELD_ROWS_MAX:
            parts = [
                positions.filter(pc.equal(paths, uri)).to_numpy(zero_copy_only=False)
                for paths, positions in _position_batches(self.io, delete)
            ]
            return _as_positions(parts)
        with self._lock:
            grouped = self._held.get(delete.path)
            if grouped is None:
                grouped = self._grouped(delete)
                self._held.put(delete.path, grouped)
                self._forget(delete.path)
        return grouped.get(uri, NO_POSITIONS)

    def _grouped(self, delete: DeleteFile) -> dict[str, Positions]:
        parts: dict[str, list[NDArray[Any]]] = {}
        for paths, positions in _position_batches(self.io, delete):
            codes = paths.dictionary_encode()
            indices, values = codes.indices.to_numpy(), positions.to_numpy(zero_copy_only=False)
            for number, path in enumerate(codes.dictionary.to_pylist()):
                parts.setdefault(path, []).append(values[indices == number])
        return {path: _as_positions(some) for path, some in parts.items()}

    def _forget(self, newest: str) -> None:
        """Forget all but the newest delete file once too many positions are held."""
        held = list(self._held)
        if sum(part.size for _, grouped in held for part in grouped.values()) > HELD_ROWS_MAX:
            for path, _ in held:
                if path != newest:
                    self._held.pop(path)


def _as_positions(parts: Sequence[NDArray[Any]]) -> Positions:
    if not parts:
        return NO_POSITIONS
    values = np.concatenate(parts)
    if values.size and int(values.min()) < 0:
        message = f"a delete file names the row {int(values.min())}"
        raise InputError(message)
    return values.astype(np.uint64)


def _position_batches(
    io: FileIO, delete: DeleteFile, *, with_positions: bool = True
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield paths and positions of position deletes."""
    names = {PATH_ID: "file_path", POSITION_ID: "pos"}
    wanted = [PATH_ID, *[POSITION_ID] * with_positions]
    for batch in _batches(io, delete, wanted, names, "position deletes"):
        paths = batch.column(0)
        positions = batch.column(1) if with_positions else paths
        if paths.null_count or positions.null_count:
            message = f"position deletes {delete.path} have nulls"
            raise InputError(message)
        yield pc.cast(paths, pa.string()), positions


# -------------------------------------------------------------------------------- Deletes by value


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """How columns of a table are found by field id, for deletes by value."""

    types: Mapping[int, pa.DataType]
    """Types of all columns that the table has or had."""
    names: Mapping[int, Sequence[str]]
    """Names of the columns in files without field ids."""


def matched_positions(
    io: FileIO, deletes: Sequence[DeleteFile], uri: str, columns: ValueColumns
) -> Positions:
    """Return the positions of a data file's rows that deletes by value remove.

    Nulls are equal to each other. A column that the data file lacks is null in each row.

    Args:
        io: Reads files.
        deletes: Equality deletes that apply to the file.
        uri: The data file.
        columns: Columns of the table.

    Raises:
        InputError: A file is missing or malformed, or the deletes are above a bound.
    """
    if sum(delete.rows for delete in deletes) > KEYS_MAX:
        message = (
            f"more than {KEYS_MAX} rows of equality deletes apply to file {uri}: let the table's "
            "engine apply them"
        )
        raise InputError(message)
    by_columns: dict[tuple[int, ...], list[DeleteFile]] = {}
    for delete in deletes:
        by_columns.setdefault(delete.equality_ids, []).append(delete)
    parts = [
        _matched(io, some, ids, uri, columns) for ids, some in sorted(by_columns.items()) if some
    ]
    return np.unique(np.concatenate([NO_POSITIONS, *parts]))


def _matched(
    io: FileIO,
    deletes: Sequence[DeleteFile],
    ids: tuple[int, ...],
    uri: str,
    columns: ValueColumns,
) -> Positions:
    """Return the rows with the values of delete files that have the same columns."""
    keys = [
        _as_types(batch, ids, columns, delete.path)
        for delete in deletes
        for batch in _batches(io, delete, ids, columns.names, "equality deletes")
    ]
    values = [pa.concat_arrays([key[at] for key in keys]).unique() for at in range(len(ids))]
    wanted = np.unique(np.concatenate([_codes(key, values) for key in keys]))
    parts, start = [NO_POSITIONS], 0
    for batch in _file_batches(io, uri, ids, columns.names):
        codes = _codes(_as_types(batch, ids, columns, uri), values)
        rows = np.flatnonzero((codes >= 0) & np.isin(codes, wanted))
        parts.append(rows.astype(np.uint64) + np.uint64(start))
        start += batch.num_rows
    return np.concatenate(parts)


def _codes(key: Sequence[pa.Array], values: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return one number for each row: equal rows have equal ones; -1: not among the values.

    The numbers of the columns are joined one after another. Joined numbers are replaced by ranks
    of the possible pairs only if they would not fit.
    """
    codes = np.zeros(len(key[0]), np.int64)
    size = 1
    for column, known in zip(key, values, strict=True):
        indices = pc.index_in(column, value_set=known, skip_nulls=False)
        own = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        if size * len(known) > 2**62:
            message = "equality deletes have too many values in their columns"
            raise InputError(message)
        codes = np.where((own < 0) | (codes < 0), -1, codes * len(known) + own)
        size *= max(1, len(known))
    return codes


def _as_types(
    batch: pa.RecordBatch, ids: Sequence[int], columns: ValueColumns, path: str
) -> list[pa.Array]:
    """Return columns in the types of the table: files may have narrower ones."""
    arrays = []
    for at, number in enumerate(ids):
        kind = columns.types.get(number)
        if kind is None or pa.types.is_nested(kind):
            message = (
                f"equality deletes name the column with field id {number}, which is no plain column"
                " of the table; let the table's engine apply them"
            )
            raise InputError(message)
        try:
            arrays.append(pc.cast(batch.column(at), kind))
        except pa.ArrowException as error:
            message = f"column {number} of {path} does not fit the table: {error!s:.200}"
            raise InputError(message) from None
    return arrays


# ------------------------------------------------------------------------------------------- Files


def _batches(
    io: FileIO,
    delete: DeleteFile,
    ids: Sequence[int],
    names: Mapping[int, str | Sequence[str]],
    kind: str,
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a delete file, which must have them."""
    rows = 0
    for batch in _file_batches(io, delete.path, ids, names, required=True):
        rows += batch.num_rows
        if rows > min(ROWS_MAX, delete.rows):
            message = f"{kind} {delete.path} have more rows than {min(ROWS_MAX, delete.rows)}"
            raise InputError(message)
        yield batch
    if rows != delete.rows:
        message = f"{kind} {delete.path} have {rows} rows, but the table says {delete.rows}"
        raise InputError(message)


def _file_batches(
    io: FileIO,
    path: str,
    ids: Sequence[int],
    names: Mapping[int, str | Sequence[str]],
    *,
    required: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a Parquet file in the order of field ids; nulls for one that it lacks."""
    with translated(f"read {path}"), _as_input_errors(path), io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        wanted = [_column_of(file.schema_arrow, number, names.get(number)) for number in ids]
        if required and None in wanted:
            message = f"delete file {path} lacks the column with field id {ids[wanted.index(None)]}"
            raise InputError(message)
        present = list(dict.fromkeys(name for name in wanted if name is not None))
        read = present or file.schema_arrow.names[:1]
        for batch in file.iter_batches(BATCH_ROWS, columns=read):
            yield pa.RecordBatch.from_arrays(
                [
                    pa.nulls(batch.num_rows) if name is None else batch.column(name)
                    for name in wanted
                ],
                names=[str(number) for number in ids],
            )


@contextmanager
def _as_input_errors(path: str) -> Iterator[None]:
    """Raise in place of Arrow's errors that a file is missing or damaged."""
    try:
        yield
    except FileNotFoundError:
        message = f"{path} is missing"
        raise InputError(message) from None
    except pa.ArrowException as error:
        message = f"{path} is unreadable: {error!s:.200}"
        raise InputError(message) from None


def _column_of(schema: pa.Schema, number: int, names: str | Sequence[str] | None) -> str | None:
    """Return the name of a column in a file by field id, or by name if the file has no ids."""
    numbered = {own: field.name for field in schema if (own := field_id(field)) is not None}
    if numbered:
        return numbered.get(number)
    wanted = (names,) if isinstance(names, str) else names or ()
    return next((name for name in wanted if name in schema.names), None)
