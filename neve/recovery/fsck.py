"""`neve fsck`: check a table's metadata against itself and against storage.

    owner and generation → tablets, each at one moment → tiles → files, many at a time
    → orphans, by the listing sweep → garbage and pins

A table may change while it is checked. A suspected problem is therefore checked again before it is
reported, and a repair is a change that the store refuses if the damage is gone.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from errno import ENAMETOOLONG
from functools import partial
from itertools import pairwise

import pyarrow as pa
from pyarrow import fs

from common.errors import BrokenValueError, InputError, RequestError, UnavailableError
from common.metadata.changes import (
    Change,
    ClearMarks,
    CorrectFile,
    DropDuplicate,
    EndReservation,
    FillHole,
    ForgetFiles,
    JoinTablets,
    MoveFile,
    RecountRecord,
    RescueFile,
    TrimTablet,
    UnpinFiles,
)
from common.metadata.changes.repair_tablets import why_not_joined
from common.metadata.store import walk_ids
from common.metadata.store_values import RawTablet
from common.model.file import FAULTY_LAYOUT, DataFile
from common.model.outcome import RefusalCode
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId
from common.parquet.buffered import read_buffer
from common.parquet.file_inspection import FileFacts, chunk_fault, inspect_file, open_table_file
from common.parquet.location import Location, fault, only_copies
from common.parquet.row_batches import OpenFile, open_parquet_file, row_batches
from common.readers.pool import in_reader
from common.rows.rules import RowRules
from common.units import format_count
from compactor.rewrite.parquet_bytes.sources import open_source, read_footer_of
from neve.recovery.gc import find_orphans
from neve.recovery.scope import Finding, FindingCode, Steps, TableScope, gather_bounded, in_thread
from neve.recovery.stored_files import StoredFile
from neve.recovery.table_creation import (
    check_foreign_marks,
    check_generation,
    check_location_owner,
    check_shared_files,
)

# ------------------------------------------------------------------------------------ Tablet checks
# Checks of the metadata of single tablets and of neighbouring tablets. Pure.


TABLETS_NAMED_MAX = 5


def check_tablet(raw: RawTablet) -> Iterator[Finding]:
    """Yield the findings about one tablet."""
    if raw.broken:
        yield Finding(code=FindingCode.UNDECODABLE, tablet=raw.id, sentence=raw.broken)
    if raw.tablet is None:
        return
    if raw.miscounted:
        yield _count_finding(raw)
    for attempt in sorted(raw.outcomes):
        yield Finding(
            code=FindingCode.STALE_RESERVATION,
            tablet=raw.id,
            sentence=f"attempt {attempt} has ended, but holds a reservation",
            repair="remove the reservation",
            changes=(EndReservation(tablet=raw.id, attempt=attempt),),
        )
    if raw.ended:
        yield _stale_marks(raw)
    yield from _stale_selection(raw.tablet)


def _count_finding(raw: RawTablet) -> Finding:
    wrong = ", ".join(
        f"{recorded} {name}, there are {actual}"
        for name, (recorded, actual) in raw.miscounted.items()
    )
    return Finding(
        code=FindingCode.COUNTS,
        tablet=raw.id,
        sentence=f"the record counts {wrong}",
        repair="count anew",
        changes=(RecountRecord(tablet=raw.id),),
    )


def _stale_marks(raw: RawTablet) -> Finding:
    requests = tuple(sorted(raw.ended))
    return Finding(
        code=FindingCode.STALE_MARKS,
        tablet=raw.id,
        sentence=f"requests that are over have a selection or marker here: {_list_of(requests)}",
        repair="remove selection and markers",
        changes=(ClearMarks(tablet=raw.id, requests=requests),),
    )


def _stale_selection(tablet: Tablet) -> Iterator[Finding]:
    if tablet.selection is None:
        return
    if gone := sorted(set(tablet.selection.files) - tablet.files.keys()):
        yield Finding(
            code=FindingCode.STALE_SELECTION,
            tablet=tablet.id,
            sentence=f"request {tablet.selection.request} selected files that are not here: "
            f"{_list_of(gone)}; cancel the request",
        )


class TabletIndex:
    """Finds the tablets of a table by key, even if tablets overlap or leave holes."""

    def __init__(self, bounds: Sequence[Bounds]) -> None:
        """Create an index.

        Args:
            bounds: Bounds of all tablets, ascending by end.
        """
        self.bounds = bounds
        self._ends = [bound.end for bound in bounds]
        self._lower = _next_with_lower_start(bounds)

    def home(self, file: DataFile) -> Bounds | None:
        """Return the first tablet whose bounds contain all keys of a file."""
        if file.key_min is None or file.key_max is None:
            last = self.bounds[-1:]
            return last[0] if last and _belongs(last[0], file) else None
        index = bisect_left(self._ends, file.key_max)
        while index < len(self.bounds):
            if self.bounds[index].holds(file.key_min, file.key_max):
                return self.bounds[index]
            index = self._lower[index]
        return None

    def ends_within(self, start: bytes | None, end: bytes) -> Sequence[bytes]:
        """Return the tablet ends greater than `start` and at most `end`."""
        first = 0 if start is None else bisect_right(self._ends, start)
        return self._ends[first : bisect_right(self._ends, end)]


def _next_with_lower_start(bounds: Sequence[Bounds]) -> list[int]:
    """Return, per tablet, the index of the next tablet with a lower start; `len(bounds)`: none."""
    following = [len(bounds)] * len(bounds)
    starts = [bound.start or b"" for bound in bounds]
    for index in reversed(range(len(bounds))):
        other = index + 1
        while other < len(bounds) and starts[other] >= starts[index]:
            other = following[other]
        following[index] = other
    return following


def check_bounds(tablet: Tablet, others: TabletIndex) -> Iterator[Finding]:
    """Yield the files of a tablet whose keys lie outside it.

    Args:
        tablet: The tablet, with its files.
        others: All tablets of the table.
    """
    if tablet.bounds.partition is not None:
        return
    for path, file in sorted(tablet.files.items()):
        if _belongs(tablet.bounds, file):
            continue
        home = others.home(file)
        target = None if home is None else TabletId(tablet.id.table, home.end)
        changes = () if target is None else (MoveFile(tablet=tablet.id, target=target, path=path),)
        yield Finding(
            code=FindingCode.OUTSIDE,
            path=path,
            tablet=tablet.id,
            sentence="the file has keys outside its tablet",
            repair="" if target is None else f"move its entry to tablet {target.text}",
            changes=changes,
        )


def _belongs(bounds: Bounds, file: DataFile) -> bool:
    if file.key_min is None or file.key_max is None:
        return not file.rows or (bounds.start is None and bounds.end == PLUS_INFINITY)
    return bounds.holds(file.key_min, file.key_max)


def check_holes(table: str, tablets: Sequence[Bounds]) -> Iterator[Finding]:
    """Yield the holes between the tablets of a table, in ascending order.

    Args:
        table: Id of the table.
        tablets: Bounds of all tablets that have bounds, ascending by end.
    """
    reached: bytes | None = None
    for bounds in tablets:
        if bounds.start is not None and (reached is None or bounds.start > reached):
            yield _hole_finding(table, reached, bounds.start)
        reached = bounds.end
    if reached != PLUS_INFINITY:
        yield _hole_finding(table, reached, PLUS_INFINITY)


def overlapping_neighbours(tablets: Sequence[Bounds]) -> Iterator[tuple[Bounds, Bounds]]:
    """Yield the pairs of neighbouring tablets that overlap, ascending by end."""
    for left, right in pairwise(tablets):
        if right.start is None or right.start < left.end:
            yield left, right


def _hole_finding(table: str, start: bytes | None, end: bytes) -> Finding:
    tablet = TabletId(table, end)
    return Finding(
        code=FindingCode.HOLE,
        tablet=tablet,
        sentence=f"no tablet holds the keys from {_bound_text(start)} to {_bound_text(end)}",
        repair="make the tablet",
        changes=(FillHole(tablet=tablet, start=start),),
    )


def _bound_text(key: bytes | None) -> str:
    if key is None:
        return "the beginning"
    return "the end" if key == PLUS_INFINITY else key.hex()


def _list_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - TABLETS_NAMED_MAX} more" if len(names) > TABLETS_NAMED_MAX else ""
    return ", ".join(names[:TABLETS_NAMED_MAX]) + more


# ----------------------------------------------------------------------------- Tablets that overlap


FILES_NAMED_MAX = 3


def overlap_finding(left: Tablet, right: Tablet, others: TabletIndex, doubles: set[str]) -> Finding:
    """Return the finding for two overlapping tablets, with a repair if there is one.

    Args:
        left: The tablet with the lower end.
        right: The next tablet, which starts before the end of `left`.
        others: All tablets of the table.
        doubles: Files of the right tablet that other tablets hold as well.
    """
    end = left.bounds.end
    finding = Finding(
        code=FindingCode.OVERLAP,
        tablet=right.id,
        sentence=f"the tablet starts at {_bound_text(right.bounds.start)}, "
        f"but the one before it ends at {_bound_text(end)}",
    )
    if right.operation is not None:
        kind = right.operation.kind.value
        return replace(
            finding, sentence=f"{finding.sentence}; a {kind} is under way: abandon it first"
        )
    before = [file for _, file in sorted(right.files.items()) if _reaches(file, end)]
    homes = [(file, _home_of(file, end, others)) for file in before]
    if homeless := [file.path for file, home in homes if home is None]:
        return _join_finding(finding, left, right, homeless)
    trim = TrimTablet(tablet=right.id, before=right.bounds.start, start=end)
    moves = _move_changes(right.id, homes, doubles)
    return replace(
        finding,
        repair=f"let it start there; {len(before)} of its files go to the tablets that hold them",
        changes=(*moves, trim),
    )


def _move_changes(
    tablet: TabletId, homes: Sequence[tuple[DataFile, Bounds | None]], doubles: set[str]
) -> Iterator[Change]:
    for file, home in homes:
        assert home is not None, file
        target = TabletId(tablet.table, home.end)
        if file.path in doubles:
            yield DropDuplicate(tablet=tablet, holder=target, path=file.path)
        else:
            yield MoveFile(tablet=tablet, target=target, path=file.path)


def _join_finding(finding: Finding, left: Tablet, right: Tablet, paths: Sequence[str]) -> Finding:
    named = ", ".join(paths[:FILES_NAMED_MAX]) + (" …" if len(paths) > FILES_NAMED_MAX else "")
    why = f"{finding.sentence}; files of it lie on both sides: {named}"
    if refusal := why_not_joined(left, right):
        advice = "restore the table from a backup, or rebuild it"
        if refusal.code != RefusalCode.PURGED:
            advice = "when nothing of that is left, check again"
        return replace(finding, sentence=f"{why}; {refusal.reason}: {advice}")
    return replace(
        finding,
        sentence=why,
        repair=f"make one tablet of it and tablet {left.id.text}",
        changes=(JoinTablets(left=left.id, right=right.id),),
    )


def _reaches(file: DataFile, end: bytes) -> bool:
    return file.key_min <= end if file.key_min is not None else file.rows > 0


def _home_of(file: DataFile, end: bytes, others: TabletIndex) -> Bounds | None:
    """Return the first tablet that contains all keys of a file, if it ends at or before `end`."""
    home = None if file.key_min is None else others.home(file)
    return None if home is None or home.end > end else home


def duplicate_finding(path: str, holders: Sequence[Tablet]) -> Finding:
    """Return a finding that several tablets hold a file; only the one with its keys keeps it."""
    names = ", ".join(holder.id.text for holder in holders)
    finding = Finding(
        code=FindingCode.DOUBLE,
        path=path,
        tablet=holders[0].id,
        sentence=f"several tablets hold the file: {names}",
    )
    right = [holder for holder in holders if _holds(holder, path)]
    if len(right) != 1:
        why = "none of them holds all its keys" if not right else "their bounds overlap"
        return replace(finding, sentence=f"{finding.sentence}; {why}")
    (keeper,) = right
    wrong = (holder for holder in holders if holder.id != keeper.id)
    return replace(
        finding,
        repair=f"leave it in tablet {keeper.id.text}, which holds its keys, alone",
        changes=tuple(
            DropDuplicate(tablet=tablet.id, holder=keeper.id, path=path) for tablet in wrong
        ),
    )


def _holds(tablet: Tablet, path: str) -> bool:
    file = tablet.files[path]
    if file.key_min is None or file.key_max is None:
        return False
    return tablet.bounds.holds(file.key_min, file.key_max)


# -------------------------------------------------------------------------------------- File checks
# Comparison of a file with its metadata entry. Runs in threads; reads the footer or all bytes.


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
        info = how.location.filesystem.get_file_info(full)
    except OSError as error:
        if error.errno == ENAMETOOLONG:  # Such a file cannot exist.
            return None
        raise UnavailableError(fault(how.location, path, error)) from error
    return int(info.size) if info.type == fs.FileType.File else None


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
        wrong.append("keys outside the recorded bounds")
    if _reaches_beyond((rows.version_min, rows.version_max), (file.version_min, file.version_max)):
        wrong.append("versions outside the recorded bounds")
    return wrong


def _reaches_beyond(
    true: tuple[bytes | None, bytes | None], recorded: tuple[bytes | None, bytes | None]
) -> bool:
    """Return whether the true bounds exceed the recorded ones; None means unknown."""
    low = None not in (true[0], recorded[0]) and (true[0] or b"") < (recorded[0] or b"")
    high = None not in (true[1], recorded[1]) and (true[1] or b"") > (recorded[1] or b"")
    return low or high


# -------------------------------------------------------------------------------------- Table check


AGAIN_S = 0.1
"""Pause before the second check of findings that a split or merge may have caused."""


@dataclass(slots=True)
class TableCheck:
    """Findings and totals of a check."""

    findings: list[Finding] = field(default_factory=list)
    tablets: int = 0
    files: int = 0
    size_bytes: int = 0


async def fsck(scope: TableScope, *, deep: bool = False) -> TableCheck:
    """Check a table, and return all findings; write nothing.

    Args:
        scope: The table.
        deep: Decode every file, instead of reading only its footer.

    Raises:
        MetadataError: The store gave an unexpected answer.
        UnavailableError: Store or storage does not answer.
    """
    done = TableCheck()
    done.findings += await check_location_owner(scope)
    done.findings += await check_shared_files(scope)
    done.findings += await check_generation(scope)
    done.findings += await check_foreign_marks(scope)
    scope.on_progress("checking tablets")
    holders = await _check_tablets(scope, done)
    done.findings += await _check_tiles(scope)
    await _check_orphans(scope, done)
    await _check_files(scope, done, deep=deep)
    done.findings += await _check_garbage(scope, holders)
    done.findings += await _check_forgotten_commits(scope)
    done.findings += await _check_pins(scope)
    done.findings += await _check_buffer(scope)
    return done


async def _check_buffer(scope: TableScope) -> list[Finding]:
    """Return a finding if buffered rows cannot be decoded; they are not flushed then."""
    try:
        await read_buffer(scope.store, scope.table, scope.threads)
    except BrokenValueError as error:
        return [Finding(code=FindingCode.UNDECODABLE, sentence=f"buffered rows: {error}")]
    return []


async def _inspect_tablets(scope: TableScope) -> AsyncIterator[Sequence[RawTablet]]:
    async for ids in walk_ids(scope.store, scope.table.id):
        yield await scope.store.inspect(ids)


async def _check_tablets(scope: TableScope, done: TableCheck) -> dict[str, TabletId]:
    """Check each tablet by itself, and return file path → tablet that holds the file."""
    holders: dict[str, TabletId] = {}
    twice: set[str] = set()
    async for page in _inspect_tablets(scope):
        for tablet in page:
            done.tablets += 1
            done.findings += check_tablet(tablet)
            files = tablet.tablet.files if tablet.tablet else {}
            done.size_bytes += sum(file.size_bytes for file in files.values())
            twice.update(files.keys() & holders.keys())
            holders.update(dict.fromkeys(files, tablet.id))
    if twice:
        done.findings += await _still_in_two_tablets(scope, twice)
    return holders


async def _still_in_two_tablets(scope: TableScope, paths: set[str]) -> list[Finding]:
    """Return findings for files that two tablets still hold; a split or merge may look the same."""
    await asyncio.sleep(AGAIN_S)
    holders: dict[str, list[Tablet]] = {}
    async for page in _inspect_tablets(scope):
        for tablet in (raw.tablet for raw in page if raw.tablet):
            for path in paths.intersection(tablet.files):
                holders.setdefault(path, []).append(tablet)
    return [
        duplicate_finding(path, tablets)
        for path, tablets in sorted(holders.items())
        if len(tablets) > 1
    ]


async def _check_tiles(scope: TableScope) -> list[Finding]:
    """Return holes, overlaps and misplaced files that two checks in a row find."""
    if scope.table.partition_by:
        return []
    first = await _tiles_once(scope)
    if not first:
        return []
    await asyncio.sleep(AGAIN_S)
    first_findings = {*first}
    return [finding for finding in await _tiles_once(scope) if finding in first_findings]


async def _tiles_once(scope: TableScope) -> list[Finding]:
    bounds: list[Bounds] = []
    async for page in _inspect_tablets(scope):
        bounds += [raw.tablet.bounds for raw in page if raw.tablet]
    index, findings, overlaps = await in_thread(partial(_check_tiling, scope.table.id, bounds))
    for left, right in overlaps:
        findings += await _overlap(scope, left, right, index)
    async for page in _inspect_tablets(scope):
        findings += await in_thread(partial(_check_page, page, index))
    return findings


def _check_tiling(
    table: str, bounds: Sequence[Bounds], steps: Steps
) -> tuple[TabletIndex, list[Finding], Sequence[tuple[Bounds, Bounds]]]:
    """Return the tablets, the holes between them, and the neighbours that overlap."""
    holes = [*steps.over(check_holes(table, bounds))]
    return TabletIndex(bounds), holes, [*steps.over(overlapping_neighbours(bounds))]


def _check_page(page: Sequence[RawTablet], index: TabletIndex, steps: Steps) -> Sequence[Finding]:
    tablets = (raw.tablet for raw in page if raw.tablet)
    return [finding for tablet in tablets for finding in steps.over(check_bounds(tablet, index))]


async def _overlap(
    scope: TableScope, left: Bounds, right: Bounds, index: TabletIndex
) -> list[Finding]:
    """Return the finding for two overlapping tablets, read again; empty if one is gone."""
    ids = [TabletId(scope.table.id, bounds.end) for bounds in (left, right)]
    both = [tablet.tablet for tablet in await scope.store.inspect(ids) if tablet.tablet]
    if len(both) < 2:
        return []
    inside = index.ends_within(right.start, left.end)
    tablet_files = await scope.store.files([TabletId(scope.table.id, end) for end in inside])
    doubles = {path for files in tablet_files for path in files}
    return [overlap_finding(both[0], both[1], index, doubles)]


async def _check_orphans(scope: TableScope, done: TableCheck) -> None:
    broken = {FindingCode.UNDECODABLE, FindingCode.HOLE, FindingCode.OVERLAP}
    if broken & {finding.code for finding in done.findings}:
        scope.on_progress("orphans are not looked for: not every tablet can be read")
        return
    done.findings += (await find_orphans(scope)).findings


async def _check_files(scope: TableScope, done: TableCheck, *, deep: bool) -> None:
    # Look files up one by one: a file that arrived after a listing would appear to be missing.
    how = FileCheck(
        location=scope.location,
        rules=RowRules.of(scope.table),
        stored={},
        table=scope.table.name,
        deep=deep,
    )
    async for page in _inspect_tablets(scope):
        files = [(raw.id, file) for raw in page if raw.tablet for file in raw.tablet.files.values()]
        done.files += len(files)
        scope.on_progress(f"checked {format_count(done.files, 'file')}")
        looks = (scope.run(check_file, how, tablet, file) for tablet, file in files)
        checked = zip(files, await gather_bounded(looks), strict=True)
        suspects = [(tablet, file, bad) for (tablet, file), bad in checked if bad is not None]
        done.findings += await _still_held(scope, suspects)


async def _still_held(
    scope: TableScope, suspects: Sequence[tuple[TabletId, DataFile, Finding]]
) -> list[Finding]:
    """Return the findings about files that their tablets still hold unchanged."""
    files_now = await _files_of(scope, (tablet for tablet, _, _ in suspects))
    return [
        finding for tablet, file, finding in suspects if files_now[tablet].get(file.path) == file
    ]


async def _files_of(
    scope: TableScope, tablets: Iterable[TabletId]
) -> Mapping[TabletId, Mapping[str, DataFile]]:
    """Return the files of tablets; read each tablet once, even if it is listed repeatedly."""
    ids = [*dict.fromkeys(tablets)]
    return dict(zip(ids, await scope.store.files(ids), strict=True))


async def _check_garbage(scope: TableScope, holders: Mapping[str, TabletId]) -> list[Finding]:
    """Return findings for files that wait for deletion but are in use."""
    entries = await scope.store.garbage(scope.table.id)
    suspects = [entry.path for entry in entries if entry.path in holders]
    files_now = await _files_of(scope, (holders[path] for path in suspects))
    # A store that failed over in the meantime may have lost the change that queued the deletion.
    still = {*await scope.store.garbage_among(scope.table.id, suspects)} if suspects else set[str]()
    return [
        Finding(
            code=FindingCode.STALE_GARBAGE,
            path=path,
            tablet=holders[path],
            sentence="the file waits for deletion, but the tablet holds it",
            repair="take it out of garbage",
            changes=(RescueFile(tablet=holders[path], path=path),),
        )
        for path in suspects
        if path in files_now[holders[path]] and path in still
    ]


async def _check_forgotten_commits(scope: TableScope) -> list[Finding]:
    """Return findings for outputs of running or abandoned attempts whose inputs are missing.

    Such an attempt was committed, but the store has lost the commit: its outputs hold the rows.
    """
    attempts = [*await scope.store.uncommitted(scope.table.id)]
    async for page in _inspect_tablets(scope):
        for tablet in (raw.tablet for raw in page if raw.tablet):
            attempts += tablet.running.values()
    looks = (
        scope.run(only_copies, scope.location, attempt.output_paths, attempt.inputs)
        for attempt in attempts
    )
    return [
        Finding(
            code=FindingCode.EVIDENCE,
            path=path,
            sentence=(
                f"output of attempt {entry.attempt}, which replaced files that storage does not "
                "have any more, and whose commit the store does not know: it may hold the only "
                "copy of their rows. It stays; a rebuild of the table takes it in"
            ),
        )
        for entry, paths in zip(attempts, await gather_bounded(looks), strict=True)
        for path in paths
    ]


async def _check_pins(scope: TableScope) -> list[Finding]:
    now_s = await scope.store.now_s()
    return [
        Finding(
            code=FindingCode.STALE_PIN,
            sentence=f"pin {pin.pin} ran out {now_s - pin.until_s:.0f} s ago",
            repair="remove it",
            changes=(UnpinFiles(table=scope.table.id, pin=pin.pin),),
        )
        for pin in await scope.store.pins(scope.table.id)
        if pin.until_s + scope.grace_s < now_s
    ]
