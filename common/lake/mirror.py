"""A version of a lake table as the store mirrors it: columns, tablets and data files. Pure.

    snapshot → why it is refused
             → columns and partition columns of the table
             → tablet end → its partition, and its files

A tablet is a partition value; a table without partition columns has one tablet. Gateway (attach,
dry run) and coordinator (follower) use the same functions, so both see the same tablets.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from common.errors import RequestError
from common.lake.source import LakeFile, LakeFormat, Snapshot
from common.model.file import DELETE_FILES, MIRRORED_MAX, DataFile, MirroredFiles
from common.model.table import SPEC_PARTITIONS, LakeTable, Table
from common.model.tablet import PLUS_INFINITY
from common.rows.key_encoding import partition_of, partition_types, value_of_folder
from common.units import parse_size_bytes

DELETES = "deletes"
"""Name of the tag with the identity of a file's deletes."""
TARGET_BYTES_MIN = 1024
TARGET_PROPERTIES = ("delta.targetFileSize", "write.target-file-size-bytes")
"""Properties with the size of files that the table's own engine aims for."""

DATA_FOLDER_PROPERTIES = (
    *("write.data.path", "write.object-storage.path", "write.folder-storage.path"),
)


def target_bytes_of(snapshot: Snapshot) -> int | None:
    """Return the file size that the table's own engine aims for; None: none is set, or readable."""
    for name in TARGET_PROPERTIES:
        with suppress(RequestError):
            if (text := snapshot.properties.get(name)) is not None:
                return max(TARGET_BYTES_MIN, parse_size_bytes(text, name))
    return None


def partition_names(format_name: str, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of the parts of a table's partitions, as `Table.partition_by` has them."""
    is_by_spec = format_name == LakeFormat.ICEBERG
    return SPEC_PARTITIONS if is_by_spec else tuple(snapshot.partition_columns)


def data_folder_of(snapshot: Snapshot) -> str:
    """Return the folder of data files below the root of an Iceberg table.

    A folder outside of the root is not used: outputs lie where others look for them by default.
    """
    for name in DATA_FOLDER_PROPERTIES:
        folder = snapshot.properties.get(name, "").rstrip("/")
        _, below, path = folder.partition(f"{snapshot.root}/")
        if below and path and ".." not in path:
            return path
    return "data"


def why_refused(table: Table, snapshot: Snapshot) -> str:
    """Return why a table is not compacted at a version, as a sentence; empty: it is."""
    assert table.lake is not None, table.name
    uri = table.lake.uri
    if snapshot.table_id != table.lake.table_id:
        return (
            f"the table at {uri} has the id {snapshot.table_id}, the attached one had "
            f"{table.lake.table_id}, so it was created anew: `neve detach {table.name}`, and "
            "attach it again"
        )
    if snapshot.refusal:
        return snapshot.refusal
    if snapshot.root != table.lake.root:
        return (
            f"the table {uri} has the location {snapshot.root}, it was attached at "
            f"{table.lake.root}: `neve detach {table.name}`, and attach it again"
        )
    if not table.lake.partition_types and tuple(snapshot.partition_columns) != table.partition_by:
        return (
            f"the table at {uri} has other partition columns than when it was attached: "
            f"`neve detach {table.name}`, and attach it again"
        )
    return ""


def mirrored_file(file: LakeFile) -> DataFile:
    """Return the entry of a file in the mirror. Its `tombstones` are its deleted rows."""
    live_bytes = None
    if file.deleted_rows and file.rows:
        share = max(0, file.rows - file.deleted_rows) / file.rows
        live_bytes = round(file.size_bytes * share)
    return DataFile(
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        tombstones=file.deleted_rows,
        live_bytes=live_bytes,
        tags=_tags(file),
        added_at_s=file.added_at_s,
    )


def _tags(file: LakeFile) -> tuple[tuple[str, str], ...]:
    tags = ((DELETES, _identity(file)),) if file.deletes or file.equality else ()
    return (*tags, (DELETE_FILES, str(file.delete_files))) if file.delete_files else tags


def _identity(file: LakeFile) -> str:
    """Return the identity of all deletes of a file; empty: none."""
    if not file.equality:
        return file.deletes
    # Equality deletes only come and go with sequence numbers, so count and last one identify them.
    last, path = file.equality[-1]
    return f"{file.deletes}/{len(file.equality)}/{last}/{path[-36:]}"


def deletes_of(file: DataFile) -> str:
    """Return the identity of the deletes of a mirrored file; empty: none."""
    return next((value for name, value in file.tags if name == DELETES), "")


@dataclass(frozen=True, slots=True)
class MirroredTablet:
    """The files of one partition."""

    partition: str | None
    """Text of the partition; None: the table has no partitions."""
    files: dict[str, LakeFile] = field(default_factory=dict)


def tablets_of(table: Table, files: Iterable[LakeFile]) -> dict[bytes, MirroredTablet]:
    """Return files by the end of their tablet.

    Args:
        table: The table, with the columns of the version.
        files: Files of the version.

    Raises:
        RequestError: A partition value does not fit its column.
    """
    if not table.partition_by:
        every = {file.path: file for file in files}
        return {PLUS_INFINITY: MirroredTablet(None, every)}
    types, tablets = partition_types(table), dict[bytes, MirroredTablet]()
    ends: dict[object, bytes] = {}
    for file in files:
        end = ends.get(file.partition)
        if end is None:
            texts = dict(file.partition)
            values = [
                value_of_folder(_text_of(texts, name, file), kind)
                for name, kind in zip(table.partition_by, types, strict=True)
            ]
            partition = partition_of(table, values)
            end = ends[file.partition] = partition.end
            text = partition.text if table.lake is None else _partition_text(table.lake, file)
            tablets.setdefault(end, MirroredTablet(text or partition.text))
        tablets[end].files[file.path] = file
    return tablets


def _partition_text(lake: LakeTable, file: LakeFile) -> str:
    """Return the text of a partition whose parts are no columns; empty: they are columns."""
    if not lake.partition_types:
        return ""
    (name, spec), (_, text) = file.partition
    return f"{name}={spec}/{text}".rstrip("/")


def _text_of(texts: Mapping[str, str | None], name: str, file: LakeFile) -> str | None:
    if name not in texts:
        raise RequestError(f"file {file.path} has no value of the partition column {name!r}")
    return texts[name]


Mirrored = dict[str, tuple[bytes, str]]
"""Path of each file in the mirror → end of its tablet, and identity of its deletes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What brings a mirror to a version, in steps that fit into one change each."""

    steps: tuple[Mapping[bytes, MirroredFiles], ...]
    """In each step: tablet end → files in and out. At least one step, which may be empty."""
    went: Mapping[bytes, frozenset[str]]
    """Tablet end → files that leave, over all steps."""
    mirrored: Mirrored
    """The files of the mirror after the last step."""


def difference(mirrored: Mirrored, tablets: Mapping[bytes, MirroredTablet]) -> Difference:
    """Return what brings a mirror to a version.

    Args:
        mirrored: Files of the mirror now.
        tablets: Files of the version, by tablet.
    """
    after: Mirrored = {}
    # Grouped and not sorted: a sort of 100,000 entries lets no other thread run meanwhile.
    moves = defaultdict[bytes, list[tuple[bytes, str, LakeFile | None]]](list)
    for end, tablet in tablets.items():
        for path, file in tablet.files.items():
            after[path] = (end, _identity(file))
            if mirrored.get(path) != after[path]:
                moves[end].append((end, path, file))
    went: dict[bytes, set[str]] = {}
    for path, (end, _) in mirrored.items():
        if path not in after or after[path][0] != end:
            moves[end].append((end, path, None))
            went.setdefault(end, set()).add(path)
    ordered = list(chain.from_iterable(moves[end] for end in sorted(moves)))
    steps = [
        _step(ordered[first : first + MIRRORED_MAX], tablets)
        for first in range(0, max(1, len(ordered)), MIRRORED_MAX)
    ]
    frozen = {end: frozenset(paths) for end, paths in went.items()}
    return Difference(tuple(steps), frozen, after)


def _step(
    moves: Iterable[tuple[bytes, str, LakeFile | None]], tablets: Mapping[bytes, MirroredTablet]
) -> dict[bytes, MirroredFiles]:
    came: dict[bytes, list[DataFile]] = {}
    went: dict[bytes, list[str]] = {}
    for end, path, file in moves:
        if file is None:
            went.setdefault(end, []).append(path)
        else:
            came.setdefault(end, []).append(mirrored_file(file))
    return {
        end: MirroredFiles(
            came=tuple(came.get(end, ())),
            went=tuple(went.get(end, ())),
            partition=tablets[end].partition if end in tablets else None,
        )
        for end in {**came, **went}
    }


def mirrored_of(tablets: Iterable[tuple[bytes, Mapping[str, DataFile]]]) -> Mirrored:
    """Return the files of a mirror as they were read from the store, by tablet."""
    return {path: (end, deletes_of(file)) for end, files in tablets for path, file in files.items()}
