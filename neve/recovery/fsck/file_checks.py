"""Comparison of a file with its metadata entry. Runs in threads; reads the footer or all bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from errno import ENAMETOOLONG

import pyarrow as pa
from pyarrow import fs

from common.errors import InputError, RequestError, UnavailableError
from common.metadata.changes import CorrectFile, ForgetFiles
from common.model.file import FAULTY_LAYOUT, DataFile
from common.model.tablet import TabletId
from common.parquet.file_inspection import (
    FileFacts,
    inspect_file,
    open_table_file,
)
from common.parquet.footer_checks import chunk_fault
from common.parquet.location import Location, fault
from common.parquet.row_batches import OpenFile, open_parquet_file, row_batches
from common.readers.pool import in_reader
from common.rows.rules import RowRules
from common.units import format_count
from compactor.rewrite.parquet_bytes.sources import open_source, read_footer_of
from neve.recovery.findings import Finding, FindingCode
from neve.recovery.stored_files import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """Parameters for checks of a table's files."""

    location: Location
    rules: RowRules
    stored: Mapping[str, StoredFile]
    """Files of a listing; other files are looked up one by one."""
    table: str = ""
    """Name of the table, for commands in the advice to the operator."""
    deep: bool = False


def check_file(how: FileCheck, tablet: TabletId, file: DataFile) -> Finding | None:
    """Return a finding about a file, or None.

    Raises:
        UnavailableError: The storage does not answer.
    """
    if file.open:
        return None
    try:
        size = _size(how, file.path)
    except RequestError as error:  # The path is invalid, so the file cannot be brought back.
        return Finding(code=FindingCode.CORRUPT, path=file.path, tablet=tablet, sentence=str(error))
    if size is None:
        return Finding(
            code=FindingCode.MISSING,
            path=file.path,
            tablet=tablet,
            sentence=f"the tablet holds the file ({format_count(file.rows, 'row')}), "
            "storage does not",
            repair="bring it back from a copy; or --forget-missing takes it out of the table",
            changes=(ForgetFiles(tablet=tablet, paths=(file.path,)),),
        )
    try:
        rows, fault = _read_layout(how.location, file.path, size, how.deep)
        if (how.deep or size != file.size_bytes or rows != file.rows) and (
            finding := _compare_entry(how, tablet, file)
        ):
            return finding
        return None if fault is None else _layout_finding(how, tablet, file, fault)
    except UnavailableError as error:
        _size(how, file.path)  # Raises if the storage as a whole does not answer.
        return _unreadable(tablet, file, error)
    except (RequestError, pa.ArrowException, OSError) as error:
        return _unreadable(tablet, file, error)


def _unreadable(tablet: TabletId, file: DataFile, error: Exception) -> Finding:
    return Finding(
        code=FindingCode.CORRUPT,
        path=file.path,
        tablet=tablet,
        sentence=f"the file cannot be read ({error}); bring it back from a copy",
    )


@in_reader("file {path}")
def _read_layout(location: Location, path: str, size: int, deep: bool) -> tuple[int, str | None]:
    """Return the number of rows of a file, and the layout fault that makes readers miss rows."""
    with open_table_file(location, path) as parquet:
        rows = parquet.metadata.num_rows
        fault = chunk_fault(parquet.metadata, size)
    if deep:
        _decode(location, path)
        fault = fault or _fault_of_footer(location, path)
    return rows, fault


def _size(how: FileCheck, path: str) -> int | None:
    if path in how.stored:
        return how.stored[path].size_bytes
    full = how.location.full(path)
    try:
        found = how.location.filesystem.get_file_info(full)
    except OSError as error:
        if error.errno == ENAMETOOLONG:  # Such a file cannot exist.
            return None
        raise UnavailableError(fault(how.location, path, error)) from error
    return int(found.size) if found.type == fs.FileType.File else None


def _decode(location: Location, path: str) -> None:
    """Read a whole file, and verify the checksums of its pages."""
    with (
        location.open_file(path) as source,
        open_parquet_file(source) as parquet,
    ):
        for _ in row_batches(OpenFile(location, path, parquet), parquet.schema_arrow.names):
            pass


def _fault_of_footer(location: Location, path: str) -> str | None:
    """Return a footer's fault in the offsets of row groups; None also for unsupported footers."""
    try:
        with open_source(location, path) as source:
            return read_footer_of(source).fault
    except InputError:
        return None  # Arrow can read the file, so it is not damaged.


def _layout_finding(how: FileCheck, tablet: TabletId, file: DataFile, fault: str) -> Finding:
    """Return the finding for a file in which some readers miss rows."""
    rewrite = f"`neve compact {how.table} --selector layout` rewrites it"
    tagged = replace(file, tags=(*file.tags, FAULTY_LAYOUT))
    change = CorrectFile(tablet=tablet, before=file, after=tagged)
    return Finding(
        code=FindingCode.LAYOUT,
        path=file.path,
        tablet=tablet,
        sentence=f"readers that split files, such as Spark, may miss rows of the file: {fault}",
        repair=rewrite if file.has_faulty_layout else f"tag the file; then {rewrite}",
        changes=() if file.has_faulty_layout else (change,),
    )


def _compare_entry(how: FileCheck, tablet: TabletId, file: DataFile) -> Finding | None:
    """Return a finding if a file's entry differs from its content."""
    facts = inspect_file(how.location, file.path, how.rules)
    wrong = [*_differences(file, facts)]
    if not wrong:
        return None
    after = corrected_entry(file, facts)
    return Finding(
        code=FindingCode.DIFFERENT,
        path=file.path,
        tablet=tablet,
        sentence="the file is not what its entry says: " + ", ".join(wrong),
        repair="write into the entry what the file holds",
        changes=(CorrectFile(tablet=tablet, before=file, after=after),),
    )


def corrected_entry(file: DataFile, facts: FileFacts) -> DataFile:
    """Return a file's entry, corrected by the facts read from the file."""
    fresh = facts.data_file(added_at_s=file.added_at_s)
    since = file.tombstones_since_s or file.added_at_s
    return replace(
        fresh,
        tombstones_since_s=since if fresh.tombstones else None,
        schema_id=file.schema_id,
        tags=tuple(dict.fromkeys((*file.tags, *fresh.tags))),
        job=file.job,
        request=file.request,
    )


def _differences(file: DataFile, facts: FileFacts) -> list[str]:
    rows = facts.rows
    wrong = []
    if facts.size_bytes != file.size_bytes:
        wrong.append(f"{facts.size_bytes} bytes instead of {file.size_bytes}")
    if rows.rows != file.rows:
        wrong.append(f"{format_count(rows.rows, 'row')} instead of {file.rows}")
    if rows.tombstones != file.tombstones:
        wrong.append(f"{format_count(rows.tombstones, 'tombstone')} instead of {file.tombstones}")
    if file.clean and not rows.clean:
        wrong.append("not clean")
    # The bounds of an entry may be wider than those of the rows, but never narrower.
    if _reaches_beyond((rows.key_min, rows.key_max), (file.key_min, file.key_max)):
        wrong.append("keys outside the bounds that are said")
    if _reaches_beyond((rows.version_min, rows.version_max), (file.version_min, file.version_max)):
        wrong.append("versions outside the bounds that are said")
    return wrong


def _reaches_beyond(
    true: tuple[bytes | None, bytes | None], said: tuple[bytes | None, bytes | None]
) -> bool:
    """Return whether the true bounds exceed the recorded ones; None means unknown."""
    low = None not in (true[0], said[0]) and (true[0] or b"") < (said[0] or b"")
    high = None not in (true[1], said[1]) and (true[1] or b"") > (said[1] or b"")
    return low or high
