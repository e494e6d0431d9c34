"""`neve gc`, the listing sweep: hand files that no metadata refers to over to the collector."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from common.errors import MetadataError, RefusedError, RequestError
from common.metadata.changes import Applied, DiscardFiles
from common.metadata.keys import HISTORY_MAX
from common.metadata.store import walk_ids, walk_tiles
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.file_inspection import inspect_file
from common.parquet.location import Location, existing_files
from common.rows.rules import RowRules
from neve.recovery.scope import Finding, FindingCode, Steps, TableScope, gather_bounded, in_thread
from neve.recovery.stored_files import (
    CLOCKS_APART_S,
    FileOrigin,
    OutputFooter,
    StoredFile,
    file_origin,
    list_location,
    partition_of_file,
    read_output_footer,
    table_of_file,
)
from neve.recovery.table_creation import (
    check_foreign_marks,
    check_generation,
    check_location_owner,
    check_shared_files,
)

# ----------------------------------------------------- Which orphans may hold the only copy of rows
#
# A store that has gone back in time lacks the last commits and the last adds, and a collector may
# have deleted the inputs of those commits. Deleting files that such a store does not know would
# delete rows. An unknown output is therefore an orphan only if each of its inputs is accounted for:
#
#     the input is in the table and in storage    the attempt of the output gave up
#     the input waits for deletion                a known commit replaced the input
#     the input is itself an orphan               an add that was lost, of a call without an answer
#     the input was deleted, and the attempt      a commit that was lost; the collector deletes its
#     that wrote it ended without a commit        outputs only while its inputs are in storage
#     another attempt replaced the input          by the history, or by the footer of a file that
#                                                 is in the table or was replaced by such a file
#
# If changes were lost, an appended file is an orphan only if it is younger than the time at which
# an operator last accepted the loss; until an operator accepts it, no appended file qualifies.
# A file that a known commit replaced is an orphan in any case.

Orphan = tuple[StoredFile, OutputFooter | None]


@dataclass(slots=True, kw_only=True)
class OnlyCopies:
    """Decides which orphans may hold the only copy of rows, from the metadata and the outputs."""

    held: Collection[str]
    """Files of the table that are in storage."""
    garbage: Collection[str]
    deleted: Collection[str] = ()
    """Inputs that are not in storage, and whose attempts ended without a commit."""
    lost_s: float | None
    """When an operator last accepted that changes were lost; the time of the listing if the store
    has gone back in time and no operator has accepted it; None: no changes were lost."""
    _replaced: dict[str, set[str]] = field(default_factory=dict)
    """Input → the attempts that replaced it."""
    _waste: set[str] = field(default_factory=set)
    """Orphans without doubt: no output of them holds the only copy of rows."""

    def committed(self, attempts: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Record committed attempts, given as id and inputs."""
        for attempt, inputs in attempts:
            for path in inputs:
                self._replaced.setdefault(path, set()).add(attempt)

    def among(self, orphans: Sequence[Orphan]) -> dict[str, str]:
        """Return the orphans that may be the only copy of rows, path → reason."""
        self._trace(orphans)
        by_path = {file.path: (file, footer) for file, footer in orphans}
        outputs_of = defaultdict[str, list[str]](list)
        for file, footer in orphans:
            for path in footer.inputs if footer is not None else ():
                outputs_of[path].append(file.path)
        doubts = dict[str, str]()
        unjudged = [*by_path]
        while unjudged:
            file, footer = by_path[unjudged.pop()]
            doubts[file.path] = self._doubt(file, footer)
            # An unreadable output is no copy, but what became of its inputs is not known.
            is_known = footer is not None or _is_appended(file)
            if is_known and not doubts[file.path] and file.path not in self._waste:
                self._waste.add(file.path)
                unjudged += outputs_of[file.path]
        return {path: doubts[path] for path in by_path if doubts[path]}

    def _trace(self, orphans: Sequence[Orphan]) -> None:
        """Record the attempts that wrote replaced orphans: such attempts were committed."""
        left = {file.path: footer for file, footer in orphans if footer is not None}
        reached = [path for path in left if path in self._replaced]
        while reached:
            if (footer := left.pop(reached.pop(), None)) is not None:
                self.committed([(footer.attempt, footer.inputs)])
                reached += [path for path in footer.inputs if path in left]

    def _doubt(self, file: StoredFile, footer: OutputFooter | None) -> str:
        if file.path in self._replaced or (footer is not None and not footer.rows):
            return ""
        if footer is not None:
            lost = [path for path in footer.inputs if not self._is_accounted(path, footer.attempt)]
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            return f"what became of its input {lost[0]}{more} is not known" if lost else ""
        if not _is_appended(file) or self.lost_s is None:
            return ""
        if file.changed_s is not None and file.changed_s > self.lost_s + CLOCKS_APART_S:
            return ""
        return "it is older than the moment at which it was accepted that changes were lost"

    def _is_accounted(self, path: str, attempt: str) -> bool:
        others = self._replaced.get(path, set()) - {attempt}
        known = (self.held, self.garbage, self.deleted, self._waste)
        return bool(others) or any(path in paths for paths in known)


def _is_appended(file: StoredFile) -> bool:
    return file.whose is FileOrigin.APPENDED


# ------------------------------------------------------------------------------------- Find orphans


COMMITTED = AttemptEnd.COMMITTED.value
SERVICE_ORIGINS = frozenset({FileOrigin.OUTPUT, FileOrigin.APPENDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Result of a listing sweep."""

    findings: tuple[Finding, ...]
    stored: Mapping[str, StoredFile]
    orphan_bytes: int = 0
    young: int = 0
    """Unknown files that are recent enough to be about to be added or committed."""
    marks: int = 0
    """Empty outputs that a rebuild still needs, as proof that their inputs were replaced."""


@dataclass(frozen=True, slots=True)
class _Orphan:
    """Tablet, keys and origin of a file that no metadata refers to."""

    end: bytes | None
    key_min: bytes | None = None
    mark: bool = False
    foreign: str = ""
    """The other table that the file was written for; empty: this table."""
    footer: OutputFooter | None = None
    """Footer, if the file is the output of a job."""


@dataclass(frozen=True, slots=True)
class KnownPaths:
    """Paths that the metadata of a table refers to."""

    reserved: Collection[str]
    held: Collection[str]
    garbage: Collection[str]

    def has(self, path: str) -> bool:
        """Return whether the metadata refers to a path."""
        return path in self.held or path in self.reserved or path in self.garbage


async def find_orphans(scope: TableScope) -> SweepResult:
    """Return the files of a location that no metadata refers to; write nothing.

    Raises:
        MetadataError: A tablet cannot be decoded, so its files are unknown.
        UnavailableError: Store or storage does not answer.
    """
    scope.on_progress("listing the location")
    stored = await scope.run(list_location, scope.location)
    listed_s = await scope.store.now_s()
    recorded = await _known_paths(scope)
    ours, users = await in_thread(partial(_unknown, stored, recorded))
    old_s = listed_s - scope.grace_s
    young = [path for path in ours if not _is_old(stored[path], old_s)]
    # The inputs of a young output wait for it: without them, it would be in doubt for ever.
    footers = await _footers(scope, filter(_is_output, young))
    waiting = {*young, *(path for footer in footers for path in footer.inputs)}
    aged = [path for path in ours if path not in waiting]
    existing = await _existing(scope, aged)
    old = [stored[path] for path in aged if path in existing]  # A listing may be stale.
    located = await gather_bounded(_located_orphan(scope, file) for file in old)
    pairs_located = list(zip(old, located, strict=True))
    foreign = [(file, orphan) for file, orphan in pairs_located if orphan.foreign]
    pairs = [
        (file, orphan) for file, orphan in pairs_located if not (orphan.mark or orphan.foreign)
    ]
    kept = await _only_copies(scope, pairs, recorded, stored, listed_s)
    orphans = [(file, orphan) for file, orphan in pairs if file.path not in kept]
    return SweepResult(
        findings=(
            *(_orphan_finding(scope.table, file, orphan) for file, orphan in orphans),
            *(_evidence_finding(stored[path], why) for path, why in sorted(kept.items())),
            *(_foreign_file(file, orphan) for file, orphan in foreign),
            *(
                Finding(
                    code=FindingCode.UNKNOWN,
                    path=path,
                    sentence=f"file of {stored[path].size_bytes} bytes that is not in the table: "
                    "add it, or leave it",
                )
                for path in users
            ),
        ),
        stored=stored,
        orphan_bytes=sum(file.size_bytes for file, _ in orphans),
        young=len(ours) - len(aged),
        marks=len(old) - len(pairs) - len(foreign),
    )


def _unknown(
    stored: Mapping[str, StoredFile], recorded: KnownPaths, steps: Steps
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the unknown files of the service and those of users, each sorted."""
    unknown = [file for file in steps.over(stored.values()) if not recorded.has(file.path)]
    ours = (file.path for file in unknown if file.whose in SERVICE_ORIGINS)
    users = (file.path for file in unknown if file.whose is FileOrigin.USER)
    return steps.in_order(ours), steps.in_order(users)


async def _existing(scope: TableScope, paths: Sequence[str]) -> Collection[str]:
    """Return the given files that exist in storage, by lookup instead of a listing."""
    return await scope.run(existing_files, scope.location, paths) if paths else ()


async def _known_paths(scope: TableScope) -> KnownPaths:
    """Return all paths in the metadata: reserved, held by a tablet, or waiting for deletion."""
    reserved, in_tablets = set[str](), set[str]()
    scope.on_progress("reading what runs")
    async for ids in walk_ids(scope.store, scope.table.id):
        for raw in await scope.store.inspect(ids):
            if raw.broken:
                raise MetadataError(f"tablet {raw.id} cannot be read: {raw.broken}")
            running = raw.tablet.running.values() if raw.tablet else ()
            reserved.update(
                path for entry in running for path in (*entry.inputs, *entry.output_paths)
            )
    scope.on_progress("reading which files are held")
    async for page in walk_tiles(scope.store, scope.table):
        for tablet in page:
            in_tablets.update(tablet.files)
    garbage = {entry.path for entry in await scope.store.garbage(scope.table.id)}
    return KnownPaths(reserved, in_tablets, garbage)


async def _only_copies(
    scope: TableScope,
    orphans: Sequence[tuple[StoredFile, _Orphan]],
    recorded: KnownPaths,
    stored: Mapping[str, StoredFile],
    listed_s: float,
) -> dict[str, str]:
    """Return the orphans that may hold the only copy of rows, path → reason.

    The footers of the table's files are read only if an orphan is in doubt.
    """
    if not orphans:
        return {}
    if why := await _recovered_lately(scope):
        return {file.path: why for file, _ in orphans}
    # Until an operator accepts the loss of changes, every file in the location may hold rows.
    behind = bool(await check_generation(scope))
    loss = await scope.store.loss(scope.table.id)
    lost_s = None if loss is None else loss.until_s
    history = await scope.store.history(scope.table.id, HISTORY_MAX)
    ended = [(entry.attempt, entry.inputs) for entry in history if entry.end == COMMITTED]
    inputs = {path for _, orphan in orphans if orphan.footer for path in orphan.footer.inputs}
    given_up = {f"{entry.job}-{entry.attempt}" for entry in history if entry.end != COMMITTED}
    in_tablets = {path for path in inputs if path in recorded.held}
    uncommitted = {path for path in inputs if _job_and_attempt(path) in given_up}
    # Do not use the listing: it may still name a deleted input, and the output would be deleted.
    existing = await _existing(scope, sorted(in_tablets | uncommitted))
    judge = OnlyCopies(
        held=in_tablets.intersection(existing),
        garbage=recorded.garbage,
        deleted=uncommitted.difference(existing),
        lost_s=listed_s if behind else lost_s,
    )
    judge.committed(ended)
    files = [(file, orphan.footer) for file, orphan in orphans]
    if not await asyncio.to_thread(judge.among, files):
        return {}
    outputs = await in_thread(partial(_outputs_of, recorded.held, stored))
    scope.on_progress(f"reading {len(outputs)} footers")
    footers = await _footers(scope, outputs)
    judge.committed((footer.attempt, footer.inputs) for footer in footers)
    return await asyncio.to_thread(judge.among, files)


def _job_and_attempt(path: str) -> str:
    """Return what the name of an output begins with; its number and suffix follow."""
    return path.rpartition("/")[2].rpartition("-")[0]


def _outputs_of(paths: Iterable[str], stored: Collection[str], steps: Steps) -> Sequence[str]:
    return steps.in_order(path for path in steps.over(paths) if path in stored and _is_output(path))


async def _recovered_lately(scope: TableScope) -> str:
    """Return why unknown files are still evidence after a recovery; empty: they are not.

    Until a recovered table has published a manifest, another rebuild starts from the old files.
    """
    table = scope.table
    if table.incomplete:
        return f"the recovery of the table did not find all files (`neve resume {table.name}`)"
    publishes = table.settings.manifest_interval_s is not None
    if table.former_ids and publishes and await scope.store.manifest(table.id) is None:
        return "the table was recovered, and no manifest of it is published yet"
    return ""


def _is_old(file: StoredFile, until_s: float) -> bool:
    return file.changed_s is not None and file.changed_s < until_s


async def _located_orphan(scope: TableScope, file: StoredFile) -> _Orphan:
    """Return the tablet of an orphan, whose metadata is checked again before the deletion."""
    orphan = await scope.run(_read_orphan, scope.location, scope.table, file)
    if orphan.mark or orphan.foreign or orphan.end is not None:
        return orphan
    if orphan.key_min is not None:
        tablet = await scope.store.locate(scope.table.id, orphan.key_min)
        return replace(orphan, end=tablet.end if tablet else None)
    # An unreadable file cannot be added, and a file without keys belongs to the first tablet.
    first = await scope.store.tablet_ids(scope.table.id, None, 1)
    return replace(orphan, end=first[0].end if first else None)


def _read_orphan(location: Location, table: Table, file: StoredFile) -> _Orphan:
    if foreign := _written_for_another(location, table, file):
        return _Orphan(None, foreign=foreign)
    footer = None
    try:
        footer = read_output_footer(location, file.path)
        if footer is not None and not footer.rows and existing_files(location, footer.inputs):
            return _Orphan(None, mark=True)
        if table.partition_by:
            end = partition_of_file(location, table, file.path).end
            return _Orphan(end, footer=footer)
        facts = inspect_file(location, file.path, RowRules.of(table))
        return _Orphan(None, facts.rows.key_min, footer=footer)
    except RequestError:
        return _Orphan(None, footer=footer)


def _is_output(path: str) -> bool:
    return file_origin(path) is FileOrigin.OUTPUT


async def _footers(scope: TableScope, outputs: Iterable[str]) -> list[OutputFooter]:
    """Return the footers of those outputs of jobs that can be read."""
    footers = await gather_bounded(scope.run(_footer, scope.location, path) for path in outputs)
    return [footer for footer in footers if footer is not None]


def _footer(location: Location, path: str) -> OutputFooter | None:
    try:
        return read_output_footer(location, path)
    except RequestError:
        return None


def _written_for_another(location: Location, table: Table, file: StoredFile) -> str:
    """Return the other table that a file was written for; empty: no other table is known.

    A file without a table id, or an unreadable file, belongs to an earlier table if it is older
    than this table: the files of a dropped table may have been kept on purpose.
    """
    try:
        written_for = table_of_file(location, file.path)
    except RequestError:
        written_for = None
    if written_for is not None:
        return "" if written_for in table.own_ids else f"table {written_for}"
    old = file.changed_s is not None and file.changed_s < table.created_at_s
    return "a table that was here before" if old else ""


def _foreign_file(file: StoredFile, orphan: _Orphan) -> Finding:
    return Finding(
        code=FindingCode.FOREIGN,
        path=file.path,
        sentence=f"file of {file.size_bytes} bytes that was written for {orphan.foreign}: it is "
        "left alone; `neve rebuild` brings a dropped table back, or delete it yourself",
    )


def _orphan_finding(table: Table, file: StoredFile, orphan: _Orphan) -> Finding:
    what = "job output" if file.whose is FileOrigin.OUTPUT else "appended file"
    sentence = f"{what} of {file.size_bytes} bytes that no key of the table knows"
    if orphan.end is None:
        return Finding(code=FindingCode.ORPHANED, path=file.path, sentence=sentence)
    tablet = TabletId(table.id, orphan.end)
    return Finding(
        code=FindingCode.ORPHANED,
        path=file.path,
        tablet=tablet,
        sentence=sentence,
        repair="give it to the collector, which deletes it after the grace",
        changes=(DiscardFiles(tablet=tablet, files={file.path: orphan.key_min}),),
    )


def _evidence_finding(file: StoredFile, why: str) -> Finding:
    what = "job output" if file.whose is FileOrigin.OUTPUT else "appended file"
    return Finding(
        code=FindingCode.EVIDENCE,
        path=file.path,
        sentence=(
            f"{what} of {file.size_bytes} bytes that no key of the table knows and that may hold "
            f"the only copy of its rows: {why}; it stays. A rebuild of the table looks at it"
        ),
    )


# --------------------------------------------------------------- Hand orphans over to the collector


LISTED = frozenset({FindingCode.ORPHANED, FindingCode.EVIDENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class GcResult:
    """Result of `collect_orphans`."""

    found: tuple[Finding, ...]
    """Orphans and evidence only."""
    orphans: int
    orphan_bytes: int
    evidence: int
    """Number of files that are kept because they may hold the only copy of rows."""
    given: int
    """Files handed over; the collector deletes them after the grace period."""
    young: int
    marks: int


async def collect_orphans(scope: TableScope, *, delete: bool) -> GcResult:
    """Find files that no metadata refers to, and optionally hand them over to the collector.

    Args:
        scope: The table.
        delete: Whether to hand the files over; if false, nothing is written.

    Raises:
        RefusedError: The location belongs to another store or shares files with another table, or
            the store has gone back in time, so that unknown files may hold acknowledged rows.
    """
    checks = (check_location_owner, check_shared_files, check_generation, check_foreign_marks)
    for check in checks if delete else ():
        if bars := await check(scope):
            raise RefusedError(bars[0].sentence)
    generation = await scope.generation()
    swept = await find_orphans(scope)
    listed = tuple(finding for finding in swept.findings if finding.code in LISTED)
    given = 0
    for finding in listed if delete else ():
        for change in finding.changes_at(generation):
            # The store refuses if the file was added or reserved since, and so is not an orphan,
            # or if the store has gone back in time since the listing.
            given += isinstance(await scope.store.apply(change), Applied)
    return GcResult(
        found=listed,
        orphans=sum(finding.code is FindingCode.ORPHANED for finding in listed),
        orphan_bytes=swept.orphan_bytes,
        evidence=sum(finding.code is FindingCode.EVIDENCE for finding in listed),
        given=given,
        young=swept.young,
        marks=swept.marks,
    )
