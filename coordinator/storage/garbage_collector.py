"""Deletes replaced files, after their grace and never under a reader.

The order per entry is the protocol's: unstamped → its attempt, if it was not committed,
has left its inputs in place → stamped with the store's time read after the entry was seen;
older than the grace → no reader may still list it (pins, and manifests) → no tablet holds
it → delete the file, then the entry. A round that dies anywhere is repeated by the next;
one that stood still for too long between its look and a deletion does not delete.

A round takes some tables at a time, and of each no more than `ROUND_MAX` files: whoever has
dropped a table of a million files makes nobody else's garbage wait.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from common.clock import Clock, SystemClock
from common.errors import MetadataError, RewriteError, UnavailableError
from common.metadata.changes import (
    DropTable,
    ForgetGarbage,
    KeepGarbage,
    StampGarbage,
    UnpinFiles,
)
from common.metadata.store import TabletStore
from common.metadata.store_values import GarbageEntry
from common.model.table import Table, TableState
from common.model.tablet import TabletId
from common.telemetry import Log
from coordinator.core.file_retention import GarbageRules, is_deletable
from coordinator.core.maintenance.operations import GarbageCounts
from coordinator.ports import Storage
from coordinator.table_faults import TableFaults

PART = "deletion of files"
STAMP_BATCH = 500
DELETE_BATCH = 500
TABLES_AT_ONCE = 4
DELETE_THREADS = 32
"""Files that are deleted at once, of all tables."""
DELETES_AT_ONCE = DELETE_THREADS // TABLES_AT_ONCE
"""Of one table: a storage that does not answer leaves threads for the others."""
ROUND_MAX = 5_000
"""Most files of one table that one round deletes; the next round begins at once."""
LOOK_LASTS_S = 30.0
"""How long after it was read an entry's file may be deleted; after that it is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedCounts:
    """What one round over a table's garbage has done."""

    stamped: int = 0
    deleted: int = 0
    kept: int = 0
    waiting: int = 0
    more: bool = False
    """Whether some of those that wait might have gone already."""

    def __add__(self, other: "CollectedCounts") -> "CollectedCounts":
        """Return the sums."""
        return CollectedCounts(
            stamped=self.stamped + other.stamped,
            deleted=self.deleted + other.deleted,
            kept=self.kept + other.kept,
            waiting=self.waiting + other.waiting,
            more=self.more or other.more,
        )


class ManifestCoverage(Protocol):
    """What published manifests say of files that were replaced."""

    async def covered_s(self, table: Table) -> float:
        """Return up to which stamp replaced files are in no manifest that is still read."""
        ...

    async def left_s(self, table: Table) -> float:
        """Return from which stamp on replaced files of a dropped table have to stay."""
        ...


class GarbageCollector:
    """Looks at one table's garbage per call; remembers only what it has logged."""

    def __init__(
        self,
        store: TabletStore,
        storage: Storage,
        rules: GarbageRules,
        log: Log,
        manifests: ManifestCoverage | None = None,
        *,
        clock: Clock | None = None,
        faults: TableFaults | None = None,
        known_generation: Callable[[str], int] = lambda _table: 0,
    ) -> None:
        """Use this store and this storage.

        Args:
            store: Where the garbage is written.
            storage: Where the files are.
            rules: How long they are kept.
            log: Hears what is odd.
            manifests: Waited for; None: nobody publishes any.
            clock: The one that the storage reads.
            faults: Shows where nothing is deleted because another table format owns the files.
            known_generation: Table id → the generation that its store must have reached.
        """
        self._store = store
        self._storage = storage
        self._rules = rules
        self._log = log
        self._manifests = manifests
        self._clock = clock or SystemClock()
        self._faults = faults or TableFaults(log)
        self._known_generation = known_generation
        self._told: set[str] = set()

    async def collect(self, table: Table) -> CollectedCounts:
        """Stamp what is new, delete what is due.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: It did not answer.
        """
        entries = await self._store.garbage(table.id)
        if entries and table.state is TableState.GOING:
            entries = await self._leave_evidence(table, entries)
        fresh = [entry.path for entry in entries if entry.stamped_s <= 0]
        stamped = await self._stamp(table, fresh) if fresh else 0
        done = await self._delete_due(table, entries)
        await self._forget_pins(table)
        await self._finish_drop(table)
        return done + CollectedCounts(stamped=stamped, kept=len(fresh) - stamped)

    async def _leave_evidence(
        self, table: Table, entries: Sequence[GarbageEntry]
    ) -> Sequence[GarbageEntry]:
        """Forget what has to stay of a table that is dropped without its files; return the rest."""
        if self._manifests is None or await self._store.drop_deletes(table.id):
            return entries
        left_s = await self._manifests.left_s(table)
        stay = [
            entry.path for entry in entries if entry.stamped_s <= 0 or entry.stamped_s >= left_s
        ]
        for first in range(0, len(stay), STAMP_BATCH):
            some = tuple(stay[first : first + STAMP_BATCH])
            await self._store.apply(ForgetGarbage(table=table.id, paths=some))
        kept = {*stay}
        return [entry for entry in entries if entry.path not in kept]

    async def _stamp(self, table: Table, fresh: Sequence[str]) -> int:
        """Stamp new entries, except for files that may be an only copy."""
        settled, held = await self._look_at_uncommitted(table, frozenset(fresh))
        paths = [path for path in fresh if path not in held]
        generation = self._known_generation(table.id)
        for first in range(0, len(paths), STAMP_BATCH):
            change = StampGarbage(
                table=table.id,
                paths=tuple(paths[first : first + STAMP_BATCH]),
                settled=() if first else tuple(settled),
                generation=generation,
            )
            await self._store.apply(change)
        return len(paths)

    async def _look_at_uncommitted(
        self, table: Table, fresh: frozenset[str]
    ) -> tuple[list[str], set[str]]:
        """Return which attempts may lose their outputs, and which outputs must stay.

        An attempt that was not committed leaves its inputs where they are. If one is missing,
        the attempt was committed and a store that has gone back in time has forgotten it:
        then its outputs are the only copy of its rows. This is looked at once, before the
        entries are stamped; what is replaced later is replaced by a commit that is known.
        """
        settled: list[str] = []
        held: set[str] = set()
        for entry in await self._store.uncommitted(table.id):
            outputs = entry.output_paths
            mine = [path for path in outputs if path in fresh]
            if not mine:
                continue  # It ended after the entries were read; or they stay.
            try:
                only = await self._storage.only_copies(table.location, outputs, entry.inputs)
            except RewriteError as error:
                self._log("location not readable", table=table.name, cause=str(error))
                held.update(mine)
                continue
            if not only:
                settled.append(entry.attempt)
                continue
            held.update(mine)
            self._tell_only_copies(table, entry.attempt, only)
            if table.state is TableState.GOING:  # The drop may end; the files stay.
                await self._store.apply(ForgetGarbage(table=table.id, paths=tuple(mine)))
        return settled, held

    def _tell_only_copies(self, table: Table, attempt: str, only: Sequence[str]) -> None:
        if attempt not in self._told:
            self._told.add(attempt)
            self._log(
                "output may be the only copy", table=table.name, attempt=attempt, paths=[*only]
            )

    async def _delete_due(self, table: Table, entries: Sequence[GarbageEntry]) -> CollectedCounts:
        stamped = [entry for entry in entries if entry.stamped_s > 0]
        if not stamped:
            return CollectedCounts()
        ripe = await self._ripe(table, stamped)
        deleted = kept = 0
        for first in range(0, min(len(ripe), ROUND_MAX), DELETE_BATCH):
            done, used = await self._delete_some(table, ripe[first : first + DELETE_BATCH])
            deleted, kept = deleted + done, kept + used
        # Where nothing could be deleted, the next round comes no sooner.
        more = len(ripe) > ROUND_MAX and deleted + kept > 0
        waiting = len(stamped) - deleted - kept
        return CollectedCounts(deleted=deleted, kept=kept, waiting=waiting, more=more)

    async def _ripe(self, table: Table, stamped: Sequence[GarbageEntry]) -> list[GarbageEntry]:
        """Return the entries whose files may go now, as far as no tablet holds them."""
        pins = await self._store.pins(table.id)
        now_s = await self._store.now_s()
        ripe = [entry for entry in stamped if is_deletable(entry, pins, now_s, self._rules)]
        if ripe and not await self._ours(table):
            return []
        if ripe and self._manifests is not None:
            covered_s = await self._manifests.covered_s(table)
            ripe = [entry for entry in ripe if entry.stamped_s < covered_s]
        return ripe

    async def counts(self, table: Table) -> dict[bytes | None, GarbageCounts]:
        """Return how many replaced files wait and how many may go, by the end of their tablet.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: It did not answer.
        """
        entries = await self._store.garbage(table.id)
        stamped = [entry for entry in entries if entry.stamped_s > 0]
        ripe = Counter(each.tablet_end for each in await self._ripe(table, stamped))
        return {
            end: GarbageCounts(waiting=waiting, deletable=ripe[end])
            for end, waiting in Counter(each.tablet_end for each in entries).items()
        }

    async def _delete_some(self, table: Table, entries: Sequence[GarbageEntry]) -> tuple[int, int]:
        """Look at some entries once more, and delete their files soon after that or not at all."""
        until_s = self._clock.now_s() + LOOK_LASTS_S
        if await self._store.generation(table.id) < self._known_generation(table.id):
            return 0, 0
        if not await self._ours(table):
            return 0, 0
        paths = [entry.path for entry in entries]
        if not await self._owns_files(table, paths):
            return 0, 0
        still = {*await self._store.garbage_among(table.id, paths)}
        used = await self._used(table, entries)
        for path in sorted(used):
            await self._store.apply(KeepGarbage(table=table.id, path=path))
            self._log("file in garbage is in use", table=table.name, path=path)
        gate = asyncio.Semaphore(DELETES_AT_ONCE)

        async def delete(path: str) -> bool:
            async with gate:
                return await self._delete(table, path, until_s)

        wanted = [path for path in paths if path in still and path not in used]
        done = await asyncio.gather(*map(delete, wanted))
        gone = tuple(path for path, deleted in zip(wanted, done, strict=True) if deleted)
        if gone:
            forget = ForgetGarbage(
                table=table.id,
                paths=gone,
                location=table.location,
                retired_s=self._rules.retired_s,
            )
            await self._store.apply(forget)
        return len(gone), len(used)

    async def _used(self, table: Table, entries: Sequence[GarbageEntry]) -> set[str]:
        """Return the paths that some tablet still holds."""
        by_tablet: dict[TabletId, list[str]] = defaultdict(list)
        for entry, holder in zip(entries, await self._holders(table, entries), strict=True):
            if holder is not None:
                by_tablet[holder].append(entry.path)
        return {path for held in await self._store.held_among(by_tablet) for path in held}

    async def _holders(
        self, table: Table, entries: Sequence[GarbageEntry]
    ) -> list[TabletId | None]:
        """Return the tablets that would hold files: by their keys, which outlive a split."""
        keys = {
            entry.path: entry.key_min
            for entry in entries
            if entry.key_min is not None and not table.partition_by
        }
        located = dict(
            zip(keys, await self._store.locate_each(table.id, [*keys.values()]), strict=True)
        )
        return [
            located[entry.path]
            if entry.path in located
            else None
            if entry.tablet_end is None
            else TabletId(table.id, entry.tablet_end)
            for entry in entries
        ]

    async def _delete(self, table: Table, path: str, until_s: float) -> bool:
        try:
            await self._storage.delete(table.location, path, until_s)
        except RewriteError as error:
            self._log("file not deleted", table=table.name, path=path, cause=str(error))
            return False
        return True

    async def _forget_pins(self, table: Table) -> None:
        """Remove the pins of readers that died: a lease that has run out is never renewed."""
        pins = await self._store.pins(table.id)
        if not pins:
            return
        stale_s = await self._store.now_s() - self._rules.grace_s
        for pin in pins:
            if pin.until_s < stale_s:
                await self._store.apply(UnpinFiles(table=table.id, pin=pin.pin))

    async def _ours(self, table: Table) -> bool:
        """Return whether the location is this store's, and this table's.

        A copied store must delete nothing, and no table where another one has been made since.
        """
        try:
            found = await self._storage.owner(table.location)
        except RewriteError as error:
            self._log("location not readable", table=table.name, cause=str(error))
            return False
        if found is None:
            return True
        ours = await self._store.store_id()
        if found.store != ours:
            self._log(
                "location belongs to another store", table=table.name, found=found.store, ours=ours
            )
            return False
        if found.is_another(table.id):
            self._log("location belongs to another table", table=table.name, found=found.table)
            return False
        return True

    async def _owns_files(self, table: Table, paths: Sequence[str]) -> bool:
        """Return whether no table of another format may own some files; else they stay.

        Looked at before each deletion: such a table may have been made after this one.
        """
        try:
            mark = await self._storage.foreign_mark(table.location, paths)
        except RewriteError as error:
            self._log("location not readable", table=table.name, cause=str(error))
            return False
        if mark is None:
            self._faults.withdraw_notice(PART, table.id)
            return True
        if table.state is TableState.GOING:  # The drop may end; the files stay.
            await self._store.apply(ForgetGarbage(table=table.id, paths=tuple(paths)))
        else:
            self._faults.notice(PART, table.id, mark.stop(table.name))
        return False

    async def _finish_drop(self, table: Table) -> None:
        """Let a table that is going make its next steps (they wait for its garbage)."""
        if table.state is TableState.GOING:
            await self._store.apply(DropTable(table=table.id, resumed=True))


async def collect_all(
    store: TabletStore,
    collector: GarbageCollector,
    tables: Collection[Table],
    log: Log,
    faults: TableFaults | None = None,
) -> CollectedCounts:
    """Collect every table, some at a time; one that fails or has much stops no others.

    Returns:
        The sums.
    """
    faults, turns = faults or TableFaults(log), asyncio.Semaphore(TABLES_AT_ONCE)

    async def collect(table: Table) -> CollectedCounts:
        try:
            return await collector.collect(table)
        except (MetadataError, UnavailableError) as error:
            log("collecting a table failed", table=table.name, cause=str(error))
            return CollectedCounts()

    async def collect_in_turn(table: Table) -> CollectedCounts:
        async with turns:
            work = partial(collect, table)
            return await faults.run("the collector", table.id, work) or CollectedCounts()

    return sum(await asyncio.gather(*map(collect_in_turn, tables)), start=CollectedCounts())


async def finish_drops(
    store: TabletStore, tables: Collection[Table], log: Log, faults: TableFaults | None = None
) -> None:
    """Free the names that drops have left which were broken off before their last step.

    Args:
        store: Where names are.
        tables: Those that are there; others are looked up.
        log: Hears whose name was freed.
        faults: Keeps a table that fails from ending the round.
    """
    faults = faults or TableFaults(log)

    async def finish(table_id: str) -> None:
        if await store.table(table_id) is None:
            await store.apply(DropTable(table=table_id, resumed=True))
            log("unfinished table removed", table=table_id)

    present = {table.id for table in tables}
    try:
        for named_table in await store.named_tables():
            if named_table.id not in present:
                work = partial(finish, named_table.id)
                await faults.run("the collector", named_table.id, work)
    except (MetadataError, UnavailableError) as error:
        log("unfinished tables not looked for", cause=str(error))


async def collect_forever(
    store: TabletStore,
    collector: GarbageCollector,
    tables: Callable[[], Collection[Table]],
    interval_s: float,
    log: Log,
    *,
    faults: TableFaults | None = None,
) -> None:
    """Collect again and again.

    Args:
        store: Where the garbage is written.
        collector: Looks at one table.
        tables: Returns those to look at.
        interval_s: Pause between two rounds; there is none while files are left that may go.
        log: Hears what was deleted.
        faults: Keeps tables that fail from ending the loop.
    """
    faults = faults or TableFaults(log)
    more = False
    while True:
        await asyncio.sleep(0 if more else interval_s)
        done = await collect_all(store, collector, tables(), log, faults)
        await finish_drops(store, tables(), log, faults)
        if done.deleted:
            log("files deleted", files=done.deleted, waiting=done.waiting)
        more = done.more
