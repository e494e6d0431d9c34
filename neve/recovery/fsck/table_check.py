"""`neve fsck`: check a table's metadata against itself and against storage.

    owner and generation → tablets, each at one moment → tiles → files, many at a time
    → orphans, by the listing sweep → garbage and pins

A table may change while it is checked. A suspected problem is therefore checked again before it is
reported, and a repair is a change that the store refuses if the damage is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from common.metadata.changes import RescueFile, UnpinFiles
from common.metadata.store_values import RawTablet
from common.metadata.table_walk import walk_ids
from common.model.file import DataFile
from common.model.tablet import Bounds, Tablet, TabletId
from common.parquet.location import only_copies
from common.rows.rules import RowRules
from common.units import format_count
from neve.recovery.findings import Finding, FindingCode
from neve.recovery.fsck.file_checks import FileCheck, check_file
from neve.recovery.fsck.tablet_checks import (
    TabletIndex,
    check_bounds,
    check_holes,
    check_tablet,
    duplicate_finding,
    overlap_finding,
    overlapping_neighbours,
)
from neve.recovery.gc import find_orphans
from neve.recovery.location_ownership import (
    check_foreign_marks,
    check_generation,
    check_location_owner,
    check_shared_files,
)
from neve.recovery.scope import Steps, TableScope, gather_bounded, in_thread

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
    return done


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
    found: dict[str, list[Tablet]] = {}
    async for page in _inspect_tablets(scope):
        for tablet in (each.tablet for each in page if each.tablet):
            for path in paths.intersection(tablet.files):
                found.setdefault(path, []).append(tablet)
    return [duplicate_finding(path, held) for path, held in sorted(found.items()) if len(held) > 1]


async def _check_tiles(scope: TableScope) -> list[Finding]:
    """Return holes, overlaps and misplaced files that two checks in a row find."""
    if scope.table.partition_by:
        return []
    first = await _tiles_once(scope)
    if not first:
        return []
    await asyncio.sleep(AGAIN_S)
    seen = {*first}
    return [finding for finding in await _tiles_once(scope) if finding in seen]


async def _tiles_once(scope: TableScope) -> list[Finding]:
    bounds: list[Bounds] = []
    async for page in _inspect_tablets(scope):
        bounds += [found.tablet.bounds for found in page if found.tablet]
    index, found, overlaps = await in_thread(partial(_check_tiling, scope.table.id, bounds))
    for left, right in overlaps:
        found += await _overlap(scope, left, right, index)
    async for page in _inspect_tablets(scope):
        found += await in_thread(partial(_check_page, page, index))
    return found


def _check_tiling(
    table: str, bounds: Sequence[Bounds], steps: Steps
) -> tuple[TabletIndex, list[Finding], Sequence[tuple[Bounds, Bounds]]]:
    """Return the tablets, the holes between them, and the neighbours that overlap."""
    holes = [*steps.over(check_holes(table, bounds))]
    return TabletIndex(bounds), holes, [*steps.over(overlapping_neighbours(bounds))]


def _check_page(page: Sequence[RawTablet], index: TabletIndex, steps: Steps) -> Sequence[Finding]:
    tablets = (raw.tablet for raw in page if raw.tablet)
    return [found for tablet in tablets for found in steps.over(check_bounds(tablet, index))]


async def _overlap(
    scope: TableScope, left: Bounds, right: Bounds, index: TabletIndex
) -> list[Finding]:
    """Return the finding for two overlapping tablets, read again; empty if one is gone."""
    ids = [TabletId(scope.table.id, each.end) for each in (left, right)]
    both = [tablet.tablet for tablet in await scope.store.inspect(ids) if tablet.tablet]
    if len(both) < 2:
        return []
    inside = index.ends_within(right.start, left.end)
    held = await scope.store.files([TabletId(scope.table.id, end) for end in inside])
    doubles = {path for files in held for path in files}
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
        files = [
            (each.id, file) for each in page if each.tablet for file in each.tablet.files.values()
        ]
        done.files += len(files)
        scope.on_progress(f"checked {format_count(done.files, 'file')}")
        looks = (scope.run(check_file, how, tablet, file) for tablet, file in files)
        found = zip(files, await gather_bounded(looks), strict=True)
        suspects = [(tablet, file, bad) for (tablet, file), bad in found if bad is not None]
        done.findings += await _still_held(scope, suspects)


async def _still_held(
    scope: TableScope, suspects: Sequence[tuple[TabletId, DataFile, Finding]]
) -> list[Finding]:
    """Return the findings about files that their tablets still hold unchanged."""
    held = await _files_of(scope, (tablet for tablet, _, _ in suspects))
    return [finding for tablet, file, finding in suspects if held[tablet].get(file.path) == file]


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
    held = await _files_of(scope, (holders[path] for path in suspects))
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
        if path in held[holders[path]] and path in still
    ]


async def _check_forgotten_commits(scope: TableScope) -> list[Finding]:
    """Return findings for outputs of running or abandoned attempts whose inputs are missing.

    Such an attempt was committed, but the store has lost the commit: its outputs hold the rows.
    """
    attempts = [*await scope.store.uncommitted(scope.table.id)]
    async for page in _inspect_tablets(scope):
        for tablet in (each.tablet for each in page if each.tablet):
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
