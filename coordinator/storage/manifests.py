"""Publishes manifests: file lists for engines without Névé support (`common.parquet.manifest`).

    time and number → pin → files by the tile rule, part by part → check pin and generation
    → log of another format, if the table publishes one → pointer → record in the store

No manifest is published if the store has lost writes, if a table is being filled, or if its
recovery is incomplete: the manifest would replace a more complete one. The time is read before the
files, so that a manifest never claims to be newer than it is. Several coordinators may publish at
the same time: the store records one of two manifests with the same number, and the collector trusts
only a pointer to the recorded manifest.

If the log of another format cannot be published, the pointer is written, but not recorded: files
that the log names then stay, and no commit waits. A table with a key is published while it is at
rest. Otherwise the manifest is recorded, and the replaced files that the log names get no stamp
before a later version lacks them (`ManifestPublisher.published`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyarrow.parquet import FileMetaData

from common.errors import CompactionError, ConflictError, RefusedError, UnavailableError, redacted
from common.metadata.changes import Applied, PublishManifest
from common.metadata.file_pin import RENEW_S, FilePin
from common.metadata.store import TabletStore, walk_tiles
from common.metadata.store_values import Manifest
from common.model.location_identity import MANIFEST_FOLDER
from common.model.table import PUBLISH_DELTA, PUBLISH_ICEBERG, PUBLISH_OFF, Table, TableState
from common.model.tablet import Tablet
from common.parquet import manifest as manifest_files
from common.parquet.file_inspection import open_table_file
from common.parquet.foreign_formats import (
    PublishedNote,
    own_log,
    read_note,
    remove_own_log,
    write_note,
)
from common.parquet.location import Location, open_location
from common.parquet.manifest import (
    ManifestTotals,
    files_to_merge,
    manifest_entries,
    manifest_header,
)
from common.parquet.service_files import generation_fault, owner_of, written_generation
from common.primitives import BoundedMap
from common.runtime import IdSource
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.units import format_count
from common.wire import MetricValue
from coordinator.context import TableFaults
from coordinator.core.scans import PublishRules, is_publish_due

PART_FILES = 100_000
WRITING_MAX_S = 1800.0
"""A manifest that takes longer to write is abandoned; its files are deleted later."""
TABLES_MAX = 100_000
"""Tables whose last manifest is remembered."""
NEVER_S = float("inf")
FAILED_REST_S = 60.0
"""Pause after a manifest whose log could not be published."""


# ----------------------------------------------------------------------------------- Published logs
# The log of a table with the setting `publish`: `common.lake.delta.publication` has the rules, and
# `common.lake.iceberg.publication` those of metadata of Iceberg, which is called a log here.


LOG_PART = "the published log"
LOG_KEPT_S = {PUBLISH_DELTA: 21_600.0, PUBLISH_ICEBERG: 0.0}
"""How long old versions of a published log stay, at least two graces. A version of Iceberg is read
without those before it."""
LOG_PATHS_MAX = 500_000
"""Paths of all logs that are kept in memory; other logs are read again for each version."""


class PublishedLogs:
    """Publishes the logs of tables, and removes logs that are not wanted any more.

    What it remembers is only a cache.
    """

    def __init__(
        self,
        options: Callable[[str], Mapping[str, str]],
        ids: IdSource,
        grace_s: float,
        faults: TableFaults,
        threads: StorageThreads | None = None,
    ) -> None:
        """Create an instance with empty caches.

        Args:
            options: Returns the options of the storage of a URI.
            ids: Source of names for trials.
            grace_s: How long a reader may use a version.
            faults: Shows operators what keeps a log from being published.
            threads: Threads for calls to the storage.
        """
        self._options = options
        self._ids = ids
        self._grace_s = grace_s
        self._faults = faults
        self._threads = threads or StorageThreads()
        self._heads: BoundedMap[str, Any] = BoundedMap(TABLES_MAX)
        self._absent: BoundedMap[str, None] = BoundedMap(TABLES_MAX)
        self._noted: BoundedMap[str, str] = BoundedMap(TABLES_MAX)
        self.problems: dict[str, str] = {}
        """Table id → why its log cannot be published or removed."""
        self.versions = 0
        """Versions that were published since the start."""
        self.failures = 0
        """Publications and removals that failed since the start."""

    async def begin(self, table: Table) -> "LogPublication | None":
        """Read the head of a table's log; remove a log that is not wanted.

        It is called before the time and the files are read.

        Returns:
            A publication, which has failed already if the head cannot be read; None: no log is
            published, and there is none.
        """
        publication = LogPublication(self, table)
        try:
            if table.settings.publish == PUBLISH_OFF:
                await self.remove(table)
                return None
            self._absent.pop(table.id)
            await self._threads.run(table.location, self._open, publication)
        except CompactionError as error:
            await self.fail(publication, error)
        return publication

    async def remove(self, table: Table) -> None:
        """Remove the log of a table, once.

        Raises:
            RefusedError: Another writer has added to it.
            UnavailableError: The storage does not answer.
        """
        if table.id in self._absent:
            return
        self._heads.pop(table.id)
        location = open_location(table.location)
        await self._threads.run(table.location, remove_own_log, location)
        self._settled(table)
        self._absent.put(table.id, None)

    def _open(self, publication: "LogPublication") -> None:
        """Read the head, in a thread."""
        from common.lake.open import open_published_log  # Needs the packages of lake tables.

        table = publication.table
        location, options = open_location(table.location), self._options(table.location)
        note = read_note(location)
        if table.id not in note.tables:
            present = own_log(location)
            if present is not None and present.table not in table.own_ids:
                remove_own_log(location)  # The log of an earlier table in this location.
        kind = table.settings.publish
        remove_own_log(location, kind)  # That of another format, if the setting was changed.
        log = open_published_log(table.location, options, kind, _footer_reader(location))
        publication.open(log, self._heads.get(table.id))
        if table.id not in note.tables:
            publication.require_conditions(self._ids.next("trial"))
            write_note(location, note.naming(table.id))

    async def publish(self, publication: "LogPublication", begun_s: float, lag: str) -> None:
        """Create the next version, and clean the log up.

        Args:
            publication: All files of a table.
            begun_s: Time of the store before they were read.
            lag: Why these files cannot be published.

        Raises:
            CompactionError: The version was not created, or this is unknown.
        """
        table = publication.table
        try:
            head = await self._threads.run(table.location, publication.create, begun_s, lag)
        except CompactionError:
            self._heads.pop(table.id)
            raise
        has_version = head.version >= 0
        self.versions += has_version
        self._remember(table.id, head)
        if publication.is_clean_due:
            keep_s = max(LOG_KEPT_S[table.settings.publish], 2 * self._grace_s)
            await self._threads.run(table.location, publication.clean, keep_s, begun_s)
        note = "" if has_version else lag
        if self._noted.get(table.id) != note:
            location = open_location(table.location)
            await self._threads.run(table.location, _note_problem, location, note)
            self._noted.put(table.id, note)
        if table.id in self.problems:
            self._settled(table)

    async def named(self, table: Table, paths: Collection[str]) -> frozenset[str]:
        """Return the files among some replaced ones that the published state of a table names.

        The state of a table with a key may be older than the last manifest; that of other tables
        is not. While a state cannot be read, it counts as naming all files.

        Raises:
            UnavailableError: The storage does not answer.
        """
        if not paths or not table.key or table.state is TableState.GOING:
            return frozenset()
        if table.settings.publish == PUBLISH_OFF and table.id in self._absent:
            return frozenset()
        try:
            head = await self._threads.run(table.location, self._head, table)
        except UnavailableError:
            raise
        except CompactionError:
            return frozenset(paths)
        if head is None:
            return frozenset()
        self._remember(table.id, head)
        return frozenset(path for path in paths if path in head.paths)

    def _head(self, table: Table) -> Any:
        """Return the head of a table's log, in a thread; None: there is none."""
        from common.lake.open import open_published_log  # Needs the packages of lake tables.

        location = open_location(table.location)
        if table.own_ids.isdisjoint(read_note(location).tables):
            return None
        present, kind = own_log(location), table.settings.publish
        if present is not None:
            kind = present.format  # Not the setting's, until the next publication.
        elif kind == PUBLISH_OFF:
            return None
        options = self._options(table.location)
        log = open_published_log(table.location, options, kind, _footer_reader(location))
        return log.head(table, self._heads.get(table.id))

    def _remember(self, table: str, head: Any) -> None:
        self._heads.put(table, head)
        count = 0
        for name, other in reversed(list(self._heads)):
            count += len(other.paths)
            if count > LOG_PATHS_MAX:
                self._heads.pop(name)

    def _settled(self, table: Table) -> None:
        self.problems.pop(table.id, None)
        self._noted.pop(table.id)
        self._faults.withdraw_notice(LOG_PART, table.id)

    async def fail(self, publication: "LogPublication", error: CompactionError) -> None:
        """Show why a log is not published, to operators and readers."""
        publication.has_failed = True
        if isinstance(error, ConflictError):  # Another coordinator was first.
            return
        table, problem = publication.table, redacted(str(error))
        self.failures += 1
        is_new = self.problems.get(table.id) != problem
        self.problems[table.id] = problem
        self._noted.pop(table.id)
        self._faults.notice(
            LOG_PART, table.id, f"the log of table {table.name} is not published: {problem}"
        )
        if is_new:
            location = open_location(table.location)
            with suppress(CompactionError):
                await self._threads.run(table.location, _note_problem, location, problem)

    def figures(self, tables: Iterable[Table]) -> list[MetricValue]:
        """Return the metrics of published logs, and forget the problems of dropped tables."""
        present = {table.id: table for table in tables}
        for gone in self.problems.keys() - present.keys():
            del self.problems[gone]
        published = sum(table.settings.publish != PUBLISH_OFF for table in present.values())
        return [
            MetricValue("neve_published_logs", published),
            MetricValue("neve_published_logs_failing", len(self.problems)),
            MetricValue("neve_published_versions_total", self.versions),
            MetricValue("neve_published_failures_total", self.failures),
        ]


def _footer_reader(location: Location) -> Callable[[str], FileMetaData]:
    """Return a function that returns footers of files by their paths."""

    def read(path: str) -> FileMetaData:
        with open_table_file(location, path) as file:
            return file.metadata

    return read


def _note_problem(location: Location, problem: str) -> None:
    """Write a problem next to the log, where `neve table describe` finds it."""
    note = read_note(location)
    if note.tables and note.problem != problem:
        write_note(location, PublishedNote(note.tables, problem))


class LogPublication:
    """One publication of a table's log."""

    def __init__(self, logs: PublishedLogs, table: Table) -> None:
        """Create a publication whose log is not open."""
        self.table = table
        self.has_failed = False
        self.is_clean_due = False
        self.tablets = 0
        """Tablets that were added."""
        self._logs = logs
        self._error: CompactionError | None = None
        self._unrest: list[str] = []
        self._log: Any = None
        self._listing: Any = None

    def open(self, log: Any, known: Any) -> None:
        """Read the head of the log. Blocks.

        Args:
            log: A `PublishedLog` or `PublishedMetadata`.
            known: The head that this process wrote last, or None.
        """
        self._log = log
        self._listing = log.listing(self.table, log.head(self.table, known))

    def require_conditions(self, name: str) -> None:
        """Refuse a storage without conditional writes. Blocks."""
        self._log.require_conditions(name)

    def add(self, tablet: Tablet) -> None:
        """Add the files of a tablet; a failure fails the publication, not the manifest."""
        if self.has_failed or self._error is not None:
            return
        files = [file for _, file in sorted(tablet.files.items()) if not file.open]
        self.tablets += 1
        if files_to_merge(self.table, files):
            self._unrest.append(tablet.bounds.partition or tablet.id.text)
        try:
            self._listing.add(tablet.bounds.partition, files)
        except CompactionError as error:
            self._error = error
        except (LookupError, ValueError) as error:  # A path or partition without a form in a log.
            self._error = RefusedError(f"tablet {tablet.id.text}: {error}")

    async def publish(self, begun_s: float, *, changed: bool = False) -> bool:
        """Create the next version; return whether there is a version as of `begun_s`.

        Args:
            begun_s: Time of the store before the files were read.
            changed: Whether the table has changed since.
        """
        if self.has_failed:
            return False
        try:
            if self._error is not None:
                raise self._error
            await self._logs.publish(self, begun_s, self._lag(changed=changed))
        except CompactionError as error:
            await self._logs.fail(self, error)
        return not self.has_failed

    def _lag(self, *, changed: bool) -> str:
        """Return why the files that were read are no state for readers who do not merge."""
        if unrest := self._unrest:
            return (
                f"{len(unrest)} of {format_count(self.tablets, 'tablet')} not at rest, such as "
                f"{unrest[0]}: files share keys or have deleted rows; "
                f"`neve compact {self.table.name}` merges them"
            )
        # One tablet is read at one moment; several are of one state if nothing has changed.
        if changed and self.table.key and self.tablets > 1:
            return "the table has changed while its tablets were read"
        return ""

    def create(self, begun_s: float, lag: str) -> Any:
        """Create the next version; return it as the new head. Blocks."""
        self.is_clean_due = self._listing.is_clean_due
        head = self._listing.head
        if lag and head.version >= 0 and head.table != self.table.id:
            # A recovery has no evidence that the files of the earlier state are still there.
            remove_own_log(open_location(self.table.location))
            self._listing = self._log.listing(self.table, type(head)())
        return self._log.publish(self._listing, begun_s, lag)

    def clean(self, keep_s: float, now_s: float) -> None:
        """Delete old entries. Blocks."""
        self._log.clean(keep_s, now_s)


# ---------------------------------------------------------------------------------------- Manifests


@dataclass(frozen=True, slots=True)
class _LastPublished:
    """State of a table when this process published its last manifest."""

    tail: str
    table: Table


class ManifestPublisher:
    """Publishes the manifests of all tables. Its memory is only a cache."""

    def __init__(
        self,
        store: TabletStore,
        ids: IdSource,
        grace_s: float,
        log: Log,
        *,
        renew_s: float = RENEW_S,
        known_generation: Callable[[str], int] = lambda _table: 0,
        threads: StorageThreads | None = None,
        logs: PublishedLogs | None = None,
    ) -> None:
        """Create a publisher with an empty cache.

        Args:
            store: The store of the tables.
            ids: Source of names for manifests and pins.
            grace_s: How long a reader may use a listing.
            log: Receives anomalies.
            renew_s: Pause between two renewals of a pin.
            known_generation: Returns the generation that the store of a table must have reached.
            threads: Threads for calls to the storage.
            logs: Logs of other formats; None: none are published.
        """
        self._threads = threads or StorageThreads()
        self._logs = logs
        self._tried_s: BoundedMap[str, float] = BoundedMap(TABLES_MAX)
        self._renew_s = renew_s
        self._known_generation = known_generation
        self._store = store
        self._ids = ids
        self._grace_s = grace_s
        self._log = log
        self._published: BoundedMap[str, _LastPublished] = BoundedMap(TABLES_MAX)
        self._withdrawn: BoundedMap[str, None] = BoundedMap(TABLES_MAX)

    async def covered_s(self, table: Table) -> float:
        """Return the stamp below which replaced files are in no manifest that a reader may use.

        Args:
            table: The table; without published manifests the result is infinite.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        if not publishes(table):
            return NEVER_S
        last = await self._store.manifest(table.id)
        if last is None:
            return 0.0
        covered_s = last.covered_s(await self._store.now_s(), self._grace_s)
        if covered_s is None:
            return 0.0
        pointer = await self._threads.run(
            table.location, manifest_files.read_pointer, open_location(table.location)
        )
        if pointer is None or pointer.path != last.path:
            self._published.pop(table.id)  # A publisher died before it recorded the manifest.
            return 0.0
        return covered_s

    async def left_s(self, table: Table) -> float:
        """Return the stamp from which replaced files of a dropped table must be kept.

        The table's files and its last manifest are kept. The files that the manifest lists must
        therefore be kept, too, and the files that a rebuild needs to recognise replacements. If the
        store has lost writes, all files must be kept.

        Args:
            table: A table that is being dropped without its files.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        location = open_location(table.location)
        written = await self._threads.run(table.location, written_generation, location)
        if (
            generation_fault(table.name, await self._store.generation(table.id), written)
            is not None
        ):
            return 0.0
        if table.settings.manifest_interval_s is None:
            return NEVER_S
        last = await self._store.manifest(table.id)
        return 0.0 if last is None else last.begun_s

    async def published(self, table: Table, paths: Collection[str]) -> frozenset[str]:
        """Return the files among some replaced ones that a published log still names.

        A manifest does not imply it: the log of a table with a key may be older.

        Raises:
            UnavailableError: The storage does not answer.
        """
        return frozenset() if self._logs is None else await self._logs.named(table, paths)

    async def look(self, table: Table) -> bool:
        """Publish a table's manifest if it is due; return whether it was published.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
            ConflictError: Its tablets kept changing; the next look tries again.
        """
        if table.incomplete:
            return False
        last = await self._store.manifest(table.id)
        if not publishes(table):
            await self._withdraw(table, last)
            if self._logs is not None and table.settings.manifest_interval_s is None:
                await self._logs.remove(table)
            return False
        self._withdrawn.pop(table.id)
        seen = _LastPublished(await self._store.tail(table.id), table)
        if not await self._is_due(table, last, seen):
            return False
        return await self._publish(table, last, seen)

    async def is_due(self, table: Table) -> bool:
        """Return whether the next look publishes the manifest of a table.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: The store did not answer.
        """
        if table.incomplete or not publishes(table):
            return False
        last = await self._store.manifest(table.id)
        return await self._is_due(
            table, last, _LastPublished(await self._store.tail(table.id), table)
        )

    async def _is_due(self, table: Table, last: Manifest | None, seen: _LastPublished) -> bool:
        now_s, changed = await self._store.now_s(), self._published.get(table.id) != seen
        tried_s = self._tried_s.get(table.id)
        if tried_s is not None and now_s - tried_s < FAILED_REST_S:
            return False
        awaited = not changed and last is not None and await self._awaited(table, last)
        interval_s = table.settings.manifest_interval_s
        assert interval_s is not None, table.name
        rules = PublishRules(interval_s=interval_s, grace_s=self._grace_s)
        return is_publish_due(last, now_s, rules, changed=changed, awaited=awaited)

    @property
    def log_problems(self) -> Mapping[str, str]:
        """Table id → why its log cannot be published or removed."""
        return {} if self._logs is None else self._logs.problems

    def log_figures(self, tables: Iterable[Table]) -> list[MetricValue]:
        """Return the metrics of published logs, given all tables."""
        return [] if self._logs is None else self._logs.figures(tables)

    async def run(self, table: Table) -> None:
        """Publish a table's manifest if it is due; a failure is logged."""
        if table.state is TableState.GOING:
            return
        try:
            await self.look(table)
        except CompactionError as error:
            self._log("manifest not published", table=table.name, cause=str(error))

    async def _awaited(self, table: Table, last: Manifest) -> bool:
        """Return whether replaced files wait for a manifest that begins after their stamp."""
        entries = await self._store.garbage(table.id)
        return any(entry.stamped_s > last.begun_s for entry in entries)

    async def _publish(
        self, table: Table, last: Manifest | None, published: _LastPublished
    ) -> bool:
        location = open_location(table.location)
        store, store_id = (
            await self._threads.run(table.location, owner_of, location),
            await self._store.store_id(),
        )
        if store != store_id:
            self._log(
                "location belongs to another store", table=table.name, found=store, ours=store_id
            )
            return False
        if await self._went_back(table):
            return False
        log = None if self._logs is None else await self._logs.begin(table)
        begun_s = await self._store.now_s()
        number = 1 if last is None else last.number + 1
        folder = manifest_files.manifest_folder_name(number, begun_s, self._ids.next("m"))
        deleted = await self._threads.run(table.location, self._clean, location, last, begun_s)
        pin = self._ids.next("pin")
        async with FilePin(self._store, table.id, pin, renew_s=self._renew_s) as held:
            body = await self._written(location, table, (number, begun_s, folder), log)
            if await self._store.now_s() - begun_s > WRITING_MAX_S:
                self._log("manifest took too long to write", table=table.name, number=number)
                return False
            if not await self._stays(table):  # A drop may have removed tablets meanwhile.
                return False
            await held.confirm()
            if await self._went_back(table):
                return False
            is_known = log is None or await self._logged(log, begun_s, published.tail)
            await self._threads.run(
                table.location, manifest_files.write_pointer, location, folder, body
            )
        if not is_known:
            self._tried_s.put(table.id, begun_s)
            return False
        self._tried_s.pop(table.id)
        change = PublishManifest(
            table=table.id,
            number=number,
            path=folder,
            begun_s=begun_s,
            deleted=deleted,
            generation=self._known_generation(table.id),
        )
        outcome = await self._store.apply(change)
        if not isinstance(outcome, Applied):
            self._log("manifest not noted", table=table.name, number=number, cause=outcome.reason)
            return False
        self._published.put(table.id, published)
        return True

    async def _logged(self, log: LogPublication, begun_s: float, tail: str) -> bool:
        """Create the next version of a log; return whether there is one as of `begun_s`.

        Args:
            log: All files of a table.
            begun_s: Time of the store before they were read.
            tail: Newest change of the table before they were read.
        """
        changed = await self._store.tail(log.table.id) != tail
        return await log.publish(begun_s, changed=changed)

    async def _went_back(self, table: Table) -> bool:
        """Return whether the store has lost changes of a table since they were read."""
        generation = self._known_generation(table.id)
        if await self._store.generation(table.id) >= generation:
            return False
        # A table that has been dropped meanwhile has no generation any more.
        if await self._store.table(table.id) is not None:
            self._log("store has gone back in time", table=table.name, generation=generation)
        return True

    async def _stays(self, table: Table) -> bool:
        """Return whether no drop of a table has begun, and its log is wanted as before."""
        stored = await self._store.table(table.id)
        if stored is None or stored.state is TableState.GOING:
            return False
        return stored.settings.publish == table.settings.publish

    async def _written(
        self,
        location: Location,
        table: Table,
        what: tuple[int, float, str],
        log: "LogPublication | None",
    ) -> dict[str, Any]:
        """Write all parts; return the body of the pointer."""
        number, begun_s, folder = what
        totals, parts = ManifestTotals(), list[dict[str, Any]]()
        entries: list[dict[str, Any]] = []

        async def write(count: int) -> None:
            batch = entries[:count]
            del entries[:count]
            part = await self._threads.run(
                table.location, manifest_files.write_part, location, folder, len(parts), batch
            )
            parts.append(part)

        async for page in walk_tiles(self._store, table):
            for tablet in page:
                tablet_entries = manifest_entries(location, table, tablet)
                totals.add(tablet_entries)
                entries += tablet_entries
                if log is not None:
                    log.add(tablet)
            while len(entries) >= PART_FILES:
                await write(PART_FILES)
        if entries or not parts:
            await write(len(entries))
        loss = await self._store.loss(table.id)
        return {**manifest_header(table, number, begun_s, totals, loss), "parts": parts}

    def _clean(self, location: Location, last: Manifest | None, now_s: float) -> tuple[str, ...]:
        """Delete outdated manifests; return those that the store has recorded."""
        if last is None:
            return ()
        outdated = last.outdated(now_s, self._grace_s)
        kept = {last.path, *(manifest[1] for manifest in last.earlier)} - {*outdated}
        before_s = now_s - 2 * WRITING_MAX_S - self._grace_s
        manifest_files.delete_others(location, kept, outdated, before_s)
        return outdated

    async def _withdraw(self, table: Table, last: Manifest | None) -> None:
        """Delete published manifests, once: a manifest without updates becomes wrong."""
        if last is None or table.id in self._withdrawn or await self._went_back(table):
            return
        location = open_location(table.location)
        if (
            await self._threads.run(table.location, owner_of, location)
            == await self._store.store_id()
        ):
            await self._threads.run(
                table.location, manifest_files.delete_folder, location, MANIFEST_FOLDER
            )
            self._withdrawn.put(table.id, None)


def publishes(table: Table) -> bool:
    """Return whether a table's manifest is published (not while it is dropped or filled)."""
    settled = table.state in {TableState.LIVE, TableState.PAUSED}
    return table.settings.manifest_interval_s is not None and settled
