"""Deletes replaced files, after their grace and never under a reader.

The order per entry is the protocol's: unstamped → stamped with the store's time read
after the entry was seen; older than the grace → no reader may still list it (pins, and
manifests) → no tablet holds it → delete the file, then the entry. A round that dies
anywhere is repeated by the next.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.errors import MetadataError, RewriteError, UnavailableError
from common.metadata.changes import DropTable
from common.metadata.ports import GarbageEntry, PinEntry, TabletStore
from common.metadata.upkeep_changes import ForgetGarbage, KeepGarbage, StampGarbage, Unpin
from common.model.table import Table, TableState
from common.model.tablet import TabletId
from coordinator.ports import Log, Storage

STAMP_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorRules:
    """How long files are kept. Seconds."""

    grace_s: float
    clock_skew_max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one look at a table's garbage came to."""

    stamped: int = 0
    deleted: int = 0
    kept: int = 0
    waiting: int = 0


class Covered(Protocol):
    """What published manifests say of files that were replaced."""

    async def covered_s(self, table: Table) -> float:
        """Return up to which stamp replaced files are in no manifest that is still read."""
        ...


def due(entry: GarbageEntry, pins: Sequence[PinEntry], now_s: float, rules: CollectorRules) -> bool:
    """Return whether an entry's file may go, as far as time and readers say.

    Args:
        entry: Stamped entry.
        pins: Read after the entry.
        now_s: The store's time, read after the pins.
        rules: Grace and clock skew.
    """
    if entry.stamped_s <= 0 or now_s - entry.stamped_s < rules.grace_s:
        return False
    # A reader that began after the stamp has listed files without this one.
    newest = entry.stamped_s + rules.clock_skew_max_s
    return not any(pin.since_s < newest and pin.until_s > now_s for pin in pins)


class Collector:
    """One look at a table's garbage per call; holds nothing between calls."""

    def __init__(
        self,
        store: TabletStore,
        storage: Storage,
        rules: CollectorRules,
        log: Log,
        manifests: Covered | None = None,
    ) -> None:
        """Use this store and this storage.

        Args:
            store: Where the garbage is written.
            storage: Where the files are.
            rules: How long they are kept.
            log: Hears what is odd.
            manifests: Waited for; None: nobody publishes any.
        """
        self._store = store
        self._storage = storage
        self._rules = rules
        self._log = log
        self._manifests = manifests

    async def collect(self, table: Table) -> Round:
        """Stamp what is new, delete what is due.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: It did not answer.
        """
        entries = await self._store.garbage(table.id)
        fresh = [entry.path for entry in entries if entry.stamped_s <= 0]
        for first in range(0, len(fresh), STAMP_BATCH):
            paths = tuple(fresh[first : first + STAMP_BATCH])
            await self._store.apply(StampGarbage(table=table.id, paths=paths))
        deleted, kept, waiting = await self._delete_due(table, entries)
        await self._forget_pins(table)
        await self._finish_drop(table)
        return Round(stamped=len(fresh), deleted=deleted, kept=kept, waiting=waiting)

    async def _delete_due(
        self, table: Table, entries: Sequence[GarbageEntry]
    ) -> tuple[int, int, int]:
        stamped = [entry for entry in entries if entry.stamped_s > 0]
        if not stamped:
            return 0, 0, 0
        pins = await self._store.pins(table.id)
        now_s = await self._store.now_s()
        ripe = [entry for entry in stamped if due(entry, pins, now_s, self._rules)]
        if ripe and not await self._ours(table):
            return 0, 0, len(stamped)
        if ripe and self._manifests is not None:
            covered_s = await self._manifests.covered_s(table)
            ripe = [entry for entry in ripe if entry.stamped_s < covered_s]
        deleted = kept = 0
        for entry in ripe:
            if await self._in_use(table, entry):
                kept += 1
            elif await self._delete(table, entry):
                deleted += 1
        return deleted, kept, len(stamped) - deleted - kept

    async def _forget_pins(self, table: Table) -> None:
        """Remove the pins of readers that died: a lease that has run out is never renewed."""
        pins = await self._store.pins(table.id)
        if not pins:
            return
        stale_s = await self._store.now_s() - self._rules.grace_s
        for each in pins:
            if each.until_s < stale_s:
                await self._store.apply(Unpin(table=table.id, pin=each.pin))

    async def _ours(self, table: Table) -> bool:
        """Return whether the location is this store's: a copied store must delete nothing."""
        try:
            found = await self._storage.store_id(table.location)
        except RewriteError as error:
            self._log("location not readable", table=table.name, cause=str(error))
            return False
        ours = await self._store.store_id()
        if found is not None and found != ours:
            self._log("location belongs to another store", table=table.name, found=found, ours=ours)
            return False
        return True

    async def _in_use(self, table: Table, entry: GarbageEntry) -> bool:
        """Return whether some tablet still holds the file; then stamp it back and say so."""
        tablet = await self._holder(table, entry)
        held = await self._store.tablet(tablet) if tablet is not None else None
        if held is None or entry.path not in held.files:
            return False
        await self._store.apply(KeepGarbage(table=table.id, path=entry.path))
        self._log("file in garbage is in use", table=table.name, path=entry.path)
        return True

    async def _holder(self, table: Table, entry: GarbageEntry) -> TabletId | None:
        """Return the tablet that would hold the file: by its key, which outlives a split."""
        if entry.key_min is not None and not table.partition_by:
            return await self._store.locate(table.id, entry.key_min)
        return None if entry.tablet_end is None else TabletId(table.id, entry.tablet_end)

    async def _delete(self, table: Table, entry: GarbageEntry) -> bool:
        try:
            await self._storage.delete(table.location, entry.path)
        except RewriteError as error:
            self._log("file not deleted", table=table.name, path=entry.path, cause=str(error))
            return False
        await self._store.apply(ForgetGarbage(table=table.id, path=entry.path))
        return True

    async def _finish_drop(self, table: Table) -> None:
        """Let a table that is going make its next steps (they wait for its garbage)."""
        if table.state is TableState.GOING:
            await self._store.apply(DropTable(table=table.id, resumed=True))


async def collect_all(
    store: TabletStore, collector: Collector, tables: Collection[Table], log: Log
) -> Round:
    """Collect every table; one that fails does not stop the others. Return the sums."""
    total = Round()
    for table in tables:
        try:
            done = await collector.collect(table)
        except (MetadataError, UnavailableError) as error:
            log("collecting a table failed", table=table.name, cause=str(error))
            continue
        total = Round(
            stamped=total.stamped + done.stamped,
            deleted=total.deleted + done.deleted,
            kept=total.kept + done.kept,
            waiting=total.waiting + done.waiting,
        )
    return total


async def collect_forever(
    store: TabletStore,
    collector: Collector,
    tables: Callable[[], Collection[Table]],
    interval_s: float,
    log: Log,
) -> None:
    """Collect again and again.

    Args:
        store: Where the garbage is written.
        collector: Looks at one table.
        tables: Returns those to look at.
        interval_s: Pause between two rounds.
        log: Hears what was deleted.
    """
    while True:
        await asyncio.sleep(interval_s)
        done = await collect_all(store, collector, tables(), log)
        if done.deleted:
            log("files deleted", files=done.deleted, waiting=done.waiting)
