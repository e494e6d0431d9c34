"""Add files from a table's location: inspect and route each file, and apply one change for all.

This module rejects columns that the table does not have, and versions in the future.
"""

import asyncio
import difflib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from common.errors import CompactionError, RefusedError, RequestError
from common.metadata.changes import AddFiles, Applied, Outcome, Refused, Window
from common.metadata.changes.files import files_digest, names_digest, why_no_window
from common.metadata.store_values import CallKind, CallMark
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import encode_value, format_key
from common.model.location_identity import SERVICE_FOLDER, is_service_path
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.append import WRITTEN_MAX_S, AppendTarget, no_tablets_error, targets_of
from common.parquet.file_inspection import FileFacts
from common.parquet.location import open_location
from common.rows.key_encoding import Partition, partition_of_path
from common.rows.rules import RowRules
from common.rows.schema import normal_type, schema_id_of, type_to_text
from neve import api
from neve.gateway.key_views import file_view, key_text, key_types
from neve.gateway.problems import ChangeRefusedError, require_applied
from neve.gateway.rows.calls import call_once, checked_call, repeated_view, require_same_call
from neve.gateway.services import Services, check_writable, flush_rows

# ------------------------------------------------------------------------------------------ Routing
# Routing of files to tablets. Each file belongs to exactly one tablet, or is rejected.


TABLETS_NAMED_MAX = 5


@dataclass(slots=True)
class RoutedFiles:
    """Files by the end of their tablet, and the partitions among them."""

    files: dict[bytes, list[DataFile]] = field(default_factory=dict)
    partitions: dict[bytes, str] = field(default_factory=dict)
    content: str = ""
    """Digest of what the caller sent; empty: the files are the content."""

    def put(self, end: bytes, file: DataFile, partition: Partition | None = None) -> None:
        """Add a file to a tablet."""
        self.files.setdefault(end, []).append(file)
        if partition is not None:
            self.partitions[end] = partition.text

    def view(self, table: Table, call: str) -> api.Added:
        """Return the wire model of the added files."""
        types = key_types(table)
        files = [
            file_view(file, TabletId(table.id, end).text, types)
            for end, files in self.files.items()
            for file in files
        ]
        return api.Added(
            call=call,
            files=tuple(files),
            rows=sum(file.rows for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            file_count=len(files),
            tablets=tuple(sorted({file.tablet for file in files})),
        )

    def sizes(self) -> dict[str, int]:
        """Return the size of each file by its path."""
        return {file.path: file.size_bytes for files in self.files.values() for file in files}


async def tablets_of(services: Services, table: Table, files: Sequence[DataFile]) -> list[bytes]:
    """Return for each file the end of the tablet that holds it; for range-partitioned tables.

    Raises:
        RequestError: A file crosses tablets; the message names them and what to do.
    """
    keys = [file.key_min for file in files if file.key_min is not None]
    located = iter(await services.store.locate_each(table.id, keys))
    first: Sequence[TabletId] = ()
    if len(keys) < len(files):
        first = await services.store.tablet_ids(table.id, None, 1)
        if not first:
            raise no_tablets_error(table)
    ends: list[bytes] = []
    for file in files:
        # Without a key or a row, a file belongs to the first tablet.
        tablet = first[0] if file.key_min is None else next(located)
        if tablet is None:
            raise RequestError(f"table {table.name!r} has no tablet for the keys of {file.path}")
        if file.key_max is not None and file.key_max > tablet.end:
            raise await _crossing_error(services, table, file, tablet)
        ends.append(tablet.end)
    return ends


async def _crossing_error(
    services: Services, table: Table, file: DataFile, first: TabletId
) -> RequestError:
    types = key_types(table)
    last = await services.store.locate(table.id, file.key_max or b"")
    more = await services.store.tablet_ids(table.id, first.end, TABLETS_NAMED_MAX)
    crossed = [
        first,
        *(tablet_id for tablet_id in more if last is not None and tablet_id.end <= last.end),
    ]
    named = ", ".join(
        f"{tablet_id.text} (up to {key_text(tablet_id.end, types)})" for tablet_id in crossed
    )
    rest = " and more" if last is not None and last not in crossed else ""
    return RequestError(
        f"file {file.path} has keys from {key_text(file.key_min, types)} to "
        f"{key_text(file.key_max, types)}, so it crosses the tablets {named}{rest}; "
        f"a file belongs to one tablet: cut it there, or bring its rows in with `append`, "
        "which cuts them"
    )


def checked_paths(paths: Iterable[str], most: int, *, own: bool = False) -> Sequence[str]:
    """Check the number of paths, that each occurs once, and that users may add them.

    Args:
        paths: Paths in the table's location.
        most: Maximum number of paths.
        own: Whether paths of the service itself are allowed.

    Raises:
        RequestError: A check failed.
    """
    listed = list(paths)
    if not 1 <= len(listed) <= most:
        raise RequestError(f"{len(listed)} files are given, expected 1 to {most} in one call")
    if len(set(listed)) < len(listed):
        (twice, _) = Counter(listed).most_common(1)[0]
        raise RequestError(f"file {twice} is given twice, expected each once")
    for path in listed:
        if is_service_path(path) and not own:
            raise RequestError(
                f"file {path} lies in {SERVICE_FOLDER}/, which the service keeps for itself; "
                "expected a file elsewhere below the table's location"
            )
    return listed


# ---------------------------------------------------------------------------------------- Add retry
# Retries of an add, by the code of the store's refusal.
#
# bounds, tablet   a split or merge has ended since the tablets were read: route again
# crosses          a split has begun: cut the rows there as well; a user's file is rejected
# operation        a split or merge is about to end: wait a moment, then route again
# look-too-old     a collector may have deleted a file since its inspection: inspect again
# replaced         a sweep has discarded the file of an append as an orphan: write it again


TRIES_MAX = 4
AGAIN = frozenset({RefusalCode.BOUNDS, RefusalCode.TABLET, RefusalCode.LOOK_TOO_OLD})
"""A tablet was split or merged between routing and writing, or too much time has passed."""
ENDS = RefusalCode.OPERATION
WRITTEN_AGAIN = frozenset({RefusalCode.CROSSES, RefusalCode.REPLACED})
SLOW = frozenset({RefusalCode.LOOK_TOO_OLD, RefusalCode.REPLACED})
KEEPS_CHANGING = "its tablets keep changing"
TOO_SLOW = "its storage takes longer than files without metadata are kept"
WAITS_MAX = 40
WAIT_S = 0.05
"""Pause for the end of a split or merge, which follows its last step at once."""


class AddRetry:
    """Counts the retries of one add, and limits them."""

    def __init__(self) -> None:
        """Start without tries."""
        self._tries = 0
        self._waits = 0
        self.reason = KEEPS_CHANGING
        """Reason of the last retry, for the final error message."""

    async def may_retry(self, outcome: Outcome, *, writes: bool) -> bool:
        """Return whether to route the files again, after a wait if that helps.

        Args:
            outcome: Outcome of the add.
            writes: Whether this call writes its files, so that it can write new ones.
        """
        if not isinstance(outcome, Refused):
            return False
        if outcome.code == ENDS:
            self._waits += 1
            await asyncio.sleep(WAIT_S)
            return self._waits <= WAITS_MAX
        self._tries += 1
        self.reason = TOO_SLOW if outcome.code in SLOW else KEEPS_CHANGING
        return outcome.code in AGAIN or (writes and outcome.code in WRITTEN_AGAIN)

    def count(self) -> None:
        """Count a try that was given up before its change, because it took too long."""
        self._tries += 1
        self.reason = TOO_SLOW

    @property
    def exhausted(self) -> bool:
        """Whether all tries are used up."""
        return self._tries >= TRIES_MAX


async def append_targets(
    services: Services, table: Table, more_ends: Iterable[bytes]
) -> list[AppendTarget]:
    """Return the targets of the rows of an unpartitioned table, ascending.

    Args:
        services: Ports and settings.
        table: A table without partitions.
        more_ends: Ends of further tablets that may be being split. Rows are cut at the split key of
            these tablets and of those that were recently being split.

    Raises:
        UnknownTableError: The table was dropped in the meantime.
    """
    ends = tuple(dict.fromkeys((*more_ends, *services.split_hints.of(table.id))))
    targets, splits = await targets_of(services.store, table, ends)
    services.split_hints.seen(table.id, ends, splits)
    return targets


# ------------------------------------------------------------------------------------------ Columns


def refuse_unknown_columns(table: Table, sources: Sequence[tuple[str, pa.Schema]]) -> None:
    """Reject columns that the table does not have.

    Args:
        table: Table of the rows.
        sources: Name of each source for the message, with its schema.

    Raises:
        RequestError: A column is unknown; the message names source and column.
    """
    names = [column.name for column in table.schema]
    for source, schema in sources:
        for entry in schema:  # By position: a schema may have two fields of one name.
            if (column := entry.name) not in names:
                close = difflib.get_close_matches(column, names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names)}"
                kind = type_to_text(normal_type(entry.type))
                raise RequestError(
                    f"{source} contains column {column!r}, "
                    f"but table {table.name!r} has no such column; {hint} To add it: "
                    f"`neve table set {table.name} --add-column '{column}:{kind}'`"
                )


# ----------------------------------------------------------------------------------------- Versions


_POINTS = (KeyType.TIMESTAMP, KeyType.DATE)


def refuse_future_versions(
    table: Table, versions: Iterable[tuple[str, bytes | None]], now_s: float, ahead_max_s: float
) -> None:
    """Reject versions that are too far in the future.

    Args:
        table: Table with the version column.
        versions: Name of each source for the message, with its highest version.
        now_s: Time of the store.
        ahead_max_s: `gateway.version_ahead_max_s`; 0: no limit.

    Raises:
        RequestError: A version is too far ahead; the message names source, version and limit.
    """
    if table.version_column is None or not ahead_max_s:
        return
    kind = RowRules.of(table).version_type
    if kind not in _POINTS:
        return
    latest = datetime.fromtimestamp(now_s, UTC) + timedelta(seconds=ahead_max_s)
    highest = encode_value(latest.date() if kind is KeyType.DATE else latest, kind)
    for what, version in versions:
        if version is not None and version > highest:
            raise RequestError(
                f"{what} has version {format_key(version, (kind,))} in column"
                f" {table.version_column}, later than {latest:%Y-%m-%d %H:%M} UTC; is a clock"
                " wrong? Setting gateway.version_ahead_max_s says how far ahead is taken"
            )


# ------------------------------------------------------------------------------------------- Window


VERSION_MAX = (1 << 63) - 1


def checked_window(table: Table, version: int | None, written: str | None) -> Window | None:
    """Return the window of time that an add replaces, or None if it has none.

    Args:
        table: The table.
        version: Version of the added files.
        written: Two dates or times in UTC, such as `2026-05-01..2026-05-02`.

    Raises:
        RequestError: One of the two is missing or malformed, or the table cannot take them.
    """
    if version is None and written is None:
        return None
    if version is None or written is None:
        given = "window" if version is None else "version"
        raise RequestError(f"only {given} is given, expected version and window together, or none")
    if not 1 <= version <= VERSION_MAX:
        raise RequestError(f"version is {version}, expected 1 to {VERSION_MAX}")
    if (why := why_no_window(table)) is not None:
        raise RequestError(why)
    start, dots, end = written.partition("..")
    try:
        start_s, end_s = _time_s(start), _time_s(end)
    except ValueError:
        start_s = end_s = 0.0
    if not dots or start_s >= end_s:
        raise RequestError(
            f"window is {written!r}, expected two dates or times in UTC, the later one last: "
            "2026-05-01..2026-05-02"
        )
    return Window(start_s, end_s, version)


def _time_s(text: str) -> float:
    at = datetime.fromisoformat(text.strip())
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


# ---------------------------------------------------------------------------------------------- Add


LOOKS_AT_ONCE = 32
"""Number of files in one call of a reader process."""
Prepare = Callable[[float, Collection[bytes]], Awaitable[RoutedFiles]]
"""Returns files by tablet, given the store's time and the tablets of the last try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingFiles:
    """One call that adds files to a table."""

    services: Services
    table: Table
    call: str
    kind: CallKind
    window: Window | None = None


async def add_files(
    services: Services,
    table: Table,
    paths: Sequence[str],
    call: str | None,
    *,
    own: bool = False,
    window: Window | None = None,
) -> api.Added:
    """Add files to a table: all of them, or none.

    Args:
        services: Ports and settings.
        table: The table.
        paths: Paths as the user wrote them.
        call: Call id from the caller.
        own: Whether the files may be files that the service has written.
        window: The window of time in which they replace files of lower versions; None: none.

    Raises:
        RequestError: A file is not below the location, is unreadable, does not fit the schema
            or crosses tablets; the message names it.
        RefusedError: The table or a tablet does not accept files now.
    """
    call = checked_call(services, call)
    location = open_location(table.location)
    plain = checked_paths(
        [location.relative(path.strip()) for path in paths], api.PATHS_MAX, own=own
    )

    async def prepare(now_s: float, _ends: Collection[bytes]) -> RoutedFiles:
        if window is not None:
            await flush_rows(services, table)  # The files replace buffered rows as well.
        await _refuse_garbage(services, table, plain)
        facts = await _inspect(services, table, plain)
        refuse_unknown_columns(table, [(f"file {fact.path}", fact.schema) for fact in facts])
        routed = await _route(services, table, facts, now_s)
        refuse_future_versions(
            table,
            [
                (f"file {file.path}", file.version_max)
                for files in routed.files.values()
                for file in files
            ],
            now_s,
            services.settings.gateway.version_ahead_max_s,
        )
        return routed

    incoming = IncomingFiles(
        services=services, table=table, call=call, kind=CallKind.ADD, window=window
    )
    return await call_once(
        services,
        table,
        call,
        same=lambda mark: _require_same_files(incoming, mark, plain),
        make=lambda now_s: add_incoming(incoming, prepare, now_s),
    )


async def add_incoming(
    incoming: IncomingFiles, prepare: Prepare, now_s: float | None = None
) -> api.Added:
    """Add files to a table in one change, with retries.

    A collector may delete a file between its inspection and the change. The change therefore
    contains the time of the inspection, and the store refuses it if the inspection is older than
    the grace period of deletions.

    Args:
        incoming: The call.
        prepare: Inspects or writes the files.
        now_s: The store's time a moment ago; None: read it.

    Raises:
        RequestError: A file does not fit the table.
        RefusedError: The table does not accept the files now.
    """
    services, table = incoming.services, incoming.table
    generation = await check_writable(services, table)
    moving, routed = AddRetry(), RoutedFiles()
    while not moving.exhausted:
        began_s = services.clock.now_s()
        looked_s, now_s = await services.store.now_s() if now_s is None else now_s, None
        routed = await prepare(looked_s, routed.files)
        took_s = services.clock.now_s() - began_s
        inspected_s = await _inspected_at_s(incoming, routed.sizes(), looked_s, took_s)
        if inspected_s is None:
            moving.count()
            continue
        change = AddFiles(
            table=table.id,
            call=incoming.call,
            files={end: tuple(tablet_files) for end, tablet_files in routed.files.items()},
            partitions=routed.partitions,
            kind=incoming.kind,
            content=routed.content,
            looked_s=inspected_s,
            look_max_s=services.settings.coordinator.garbage_grace_s,
            generation=generation,
            run="" if table.filling is None else table.filling.run,
            window=incoming.window,
        )
        outcome = await services.store.apply(change)
        if not await moving.may_retry(outcome, writes=incoming.kind is CallKind.APPEND):
            return _added_view(incoming, routed, require_applied(outcome))
    raise RefusedError(f"table {table.name!r}: {moving.reason}; try again")


def _added_view(incoming: IncomingFiles, routed: RoutedFiles, outcome: Applied) -> api.Added:
    """Return the answer: the added files, or the counts of the mark for a repeated call."""
    mark = outcome.call
    if outcome.repeated and mark is not None and mark.names != names_digest(routed.sizes()):
        return repeated_view(incoming.call, mark)
    return replace(routed.view(incoming.table, incoming.call), replaced=outcome.replaced)


async def _inspected_at_s(
    incoming: IncomingFiles, sizes: Mapping[str, int], looked_s: float, took_s: float
) -> float | None:
    """Return when all files were known to exist, after a new check if that was long ago.

    Args:
        incoming: The call.
        sizes: Path → size in bytes.
        looked_s: The store's time before the files were prepared.
        took_s: Duration of the preparation, by the clock of this process. It spares most adds a
            read of the store's time; the store refuses a change whose inspection is too old.

    Returns:
        The time; None: a file is missing, or was written too long ago, so the files must be
        prepared again.
    """
    services = incoming.services
    valid_s = services.settings.coordinator.garbage_grace_s / 2
    if incoming.kind is CallKind.ADD and took_s <= valid_s:
        return looked_s
    now_s = await services.store.now_s()
    if incoming.kind is CallKind.APPEND and now_s - looked_s > WRITTEN_MAX_S:
        return None
    if now_s - looked_s <= valid_s:
        return looked_s
    if await services.store.garbage_among(incoming.table.id, [*sizes]):
        return None
    table, look = incoming.table, services.files.sizes
    sizes_now = await services.footers.run(table.location, look, table, [*sizes])
    return now_s if sizes_now == sizes else None


async def _require_same_files(
    incoming: IncomingFiles, mark: CallMark, paths: Sequence[str]
) -> None:
    """Reject a repeated call with other files, or with files whose content has changed.

    If files were compacted and deleted since, only the names of all files are compared.

    Raises:
        RefusedError: The call id was used for something else.
    """
    services, table = incoming.services, incoming.table
    sizes = await services.footers.run(table.location, services.files.sizes, table, paths)
    content = files_digest(sizes, incoming.window)
    if len(sizes) < len(paths) and names_digest(paths) == mark.names:
        content = mark.content
    require_same_call(incoming.call, mark, CallKind.ADD, content)


async def _inspect(services: Services, table: Table, paths: Sequence[str]) -> list[FileFacts]:
    facts: list[FileFacts] = []
    for result in await inspect_incoming(services, table, paths):
        if isinstance(result, CompactionError):
            raise result  # Report the first refusal.
        facts.append(result)
    return facts


async def inspect_incoming(
    services: Services, table: Table, paths: Sequence[str]
) -> list[FileFacts | CompactionError]:
    """Return the facts of files to add or the errors that prevent it, in the order of paths."""
    batches = [paths[at : at + LOOKS_AT_ONCE] for at in range(0, len(paths), LOOKS_AT_ONCE)]
    look = services.files.inspect
    work = [services.footers.run(table.location, look, table, batch) for batch in batches]
    # Await all inspections, so that none continues after an error is reported.
    results = await asyncio.gather(*work, return_exceptions=True)
    if failed := [result for result in results if isinstance(result, BaseException)]:
        raise failed[0]
    return [
        facts for result in results if not isinstance(result, BaseException) for facts in result
    ]


async def _route(
    services: Services, table: Table, facts: Sequence[FileFacts], now_s: float
) -> RoutedFiles:
    routed = RoutedFiles()
    files = [
        replace(fact.data_file(added_at_s=now_s), schema_id=schema_id_of(table, fact.schema))
        for fact in facts
    ]
    if table.partition_by:
        for file in files:
            partition = partition_of_path(table, file.path)
            routed.put(partition.end, file, partition)
    else:
        for end, file in zip(await tablets_of(services, table, files), files, strict=True):
            routed.put(end, file)
    return routed


async def _refuse_garbage(services: Services, table: Table, paths: Sequence[str]) -> None:
    """Reject files that a collector may be deleting now.

    This check comes before the inspection of footers: after it, both the entry and the file may
    already be gone.
    """
    if garbage := await services.store.garbage_among(table.id, paths):
        raise ChangeRefusedError(
            f"file {garbage[0]} was replaced by a compaction and is being deleted; "
            "add it under another name",
            RefusalCode.REPLACED,
        )
