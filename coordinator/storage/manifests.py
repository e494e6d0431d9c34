"""Publishes manifests: file lists for engines without Névé support (`common.parquet.manifest`).

    time and number → pin → files by the tile rule, part by part → check pin and generation
    → pointer → record in the store

No manifest is published if the store has lost writes, if a table is being filled, or if its
recovery is incomplete: the manifest would replace a more complete one. The time is read before the
files, so that a manifest never claims to be newer than it is. Several coordinators may publish at
the same time: the store records one of two manifests with the same number, and the collector trusts
only a pointer to the recorded manifest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.errors import CompactionError
from common.metadata.changes import Applied, PublishManifest
from common.metadata.file_pin import RENEW_S, FilePin
from common.metadata.store import TabletStore, walk_tiles
from common.metadata.store_values import Manifest
from common.model.location_identity import MANIFEST_FOLDER
from common.model.table import Table, TableState
from common.parquet import manifest as manifest_files
from common.parquet.location import Location, open_location
from common.parquet.manifest import (
    ManifestTotals,
    manifest_entries,
    manifest_header,
)
from common.parquet.service_files import generation_fault, owner_of, written_generation
from common.primitives import BoundedMap
from common.runtime import IdSource
from common.storage_threads import StorageThreads
from common.telemetry import Log
from coordinator.core.scans import PublishRules, is_publish_due

PART_FILES = 100_000
WRITING_MAX_S = 1800.0
"""A manifest that takes longer to write is abandoned; its files are deleted later."""
TABLES_MAX = 100_000
"""Tables whose last manifest is remembered."""
NEVER_S = float("inf")


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
        """
        self._threads = threads or StorageThreads()
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
        awaited = not changed and last is not None and await self._awaited(table, last)
        interval_s = table.settings.manifest_interval_s
        assert interval_s is not None, table.name
        rules = PublishRules(interval_s=interval_s, grace_s=self._grace_s)
        return is_publish_due(last, now_s, rules, changed=changed, awaited=awaited)

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
        begun_s = await self._store.now_s()
        number = 1 if last is None else last.number + 1
        folder = manifest_files.manifest_folder_name(number, begun_s, self._ids.next("m"))
        deleted = await self._threads.run(table.location, self._clean, location, last, begun_s)
        pin = self._ids.next("pin")
        async with FilePin(self._store, table.id, pin, renew_s=self._renew_s) as held:
            body = await self._written(location, table, (number, begun_s, folder))
            if await self._store.now_s() - begun_s > WRITING_MAX_S:
                self._log("manifest took too long to write", table=table.name, number=number)
                return False
            if not await self._stays(table):  # A drop may have removed tablets meanwhile.
                return False
            await held.confirm()
            if await self._went_back(table):
                return False
            await self._threads.run(
                table.location, manifest_files.write_pointer, location, folder, body
            )
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

    async def _went_back(self, table: Table) -> bool:
        """Return whether the store has lost changes of a table since they were read."""
        generation = self._known_generation(table.id)
        if await self._store.generation(table.id) >= generation:
            return False
        self._log("store has gone back in time", table=table.name, generation=generation)
        return True

    async def _stays(self, table: Table) -> bool:
        """Return whether no drop of a table has begun."""
        stored = await self._store.table(table.id)
        return stored is not None and stored.state is not TableState.GOING

    async def _written(
        self, location: Location, table: Table, what: tuple[int, float, str]
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
