"""Deletes replaced files after their grace period, and never while a reader may use them.

The protocol requires this order per entry: unstamped → if its attempt did not commit, check that
the attempt has left its inputs in the location → no published log names the file → stamp with the
store's time, read after the entry; older than the grace period → no reader may list the file (pins
and manifests) → no tablet holds the file → delete the file, then the entry. The next round repeats
a round that failed at any point. A round that stalls between a check and a deletion does not
delete.

The scheduler of maintenance starts a round for one table. A round processes at most `ROUND_MAX`
files, so that a dropped table with a million files does not delay the garbage of other tables.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from common.errors import MetadataError, RewriteError, UnavailableError
from common.metadata.changes import (
    Applied,
    DropTable,
    ForgetGarbage,
    KeepGarbage,
    Outcome,
    RestoreName,
    StampGarbage,
    UnpinFiles,
)
from common.metadata.store import TabletStore
from common.metadata.store_values import GarbageEntry
from common.model.location_identity import LocationIdentity
from common.model.table import Table, TableState
from common.model.tablet import TabletId
from common.runtime import Clock, SystemClock
from common.telemetry import Log
from common.units import format_count
from coordinator.context import TableFaults
from coordinator.core.maintenance import GarbageCounts, OperationStatistics
from coordinator.core.scans import GarbageRules, is_deletable
from coordinator.ports import Storage

PART = "deletion of files"
STAMP_BATCH = 500
DELETE_BATCH = 500
TABLES_AT_ONCE = 4
"""Tables whose files are deleted at a time: an unavailable storage leaves room for others."""
ENTRY_BYTES = 256
"""Estimated memory of the store for one replaced file."""
DELETE_THREADS = 32
"""Concurrent deletions of all tables."""
DELETES_AT_ONCE = DELETE_THREADS // TABLES_AT_ONCE
"""Concurrent deletions of one table, so that an unavailable storage leaves threads for others."""
ROUND_MAX = 5_000
"""Maximum number of deletions of one table per round; the next round then has known work."""
LOOK_LASTS_S = 30.0
"""How long after its check a file may be deleted; after that, it is checked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedCounts:
    """Result of one round over a table's garbage."""

    stamped: int = 0
    deleted: int = 0
    kept: int = 0
    waiting: int = 0
    left: int = 0
    """Waiting files that another round could delete now."""

    def __add__(self, other: "CollectedCounts") -> "CollectedCounts":
        """Return the sums of both results."""
        return CollectedCounts(
            stamped=self.stamped + other.stamped,
            deleted=self.deleted + other.deleted,
            kept=self.kept + other.kept,
            waiting=self.waiting + other.waiting,
            left=self.left + other.left,
        )


class ManifestCoverage(Protocol):
    """Determines which replaced files published manifests may still list."""

    async def covered_s(self, table: Table) -> float:
        """Return the stamp below which replaced files are in no manifest in use."""
        ...

    async def left_s(self, table: Table) -> float:
        """Return the stamp from which replaced files of a dropped table must be kept."""
        ...

    async def published(self, table: Table, paths: Collection[str]) -> frozenset[str]:
        """Return the files among some replaced ones that a published log names."""
        ...


class GarbageCollector:
    """Collects the garbage of one table per call; remembers only what it has logged."""

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
        """Create a collector.

        Args:
            store: The store with the garbage entries.
            storage: The storage with the files.
            rules: How long files are kept.
            log: Receives anomalies.
            manifests: Manifests that may list replaced files; None means none are published.
            clock: The clock that the storage uses.
            faults: Shows tables whose files are not deleted because another format owns them.
            known_generation: Returns the generation that the store of a table must have reached.
        """
        self._store = store
        self._storage = storage
        self._rules = rules
        self._log = log
        self._manifests = manifests
        self._clock = clock or SystemClock()
        self._faults = faults or TableFaults(log)
        self._known_generation = known_generation
        self._reported: set[str] = set()

    async def run(self, table: Table) -> OperationStatistics | None:
        """Collect a table; return the work that is left, if another round can do it at once."""
        try:
            done = await self.collect(table)
        except (MetadataError, UnavailableError) as error:
            self._log("collecting a table failed", table=table.name, cause=str(error))
            return None
        if done.deleted:
            self._log("files deleted", table=table.name, files=done.deleted, waiting=done.waiting)
        if not done.left:
            return None
        return OperationStatistics(
            name=table.id,
            why=f"{format_count(done.left, 'replaced file')} can be deleted",
            ram_anchored_bytes=done.left * ENTRY_BYTES,
            data_retained_bytes=done.left,
            priority=table.settings.maintenance_priority,
        )

    async def collect(self, table: Table) -> CollectedCounts:
        """Stamp new entries of a table, and delete the files that are due.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: The store did not answer.
        """
        entries = await self._store.garbage(table.id)
        if entries and table.state is TableState.GOING:
            entries = await self._leave_evidence(table, entries)
        every, entries = len(entries), await self._unpublished(table, entries)
        fresh = [entry.path for entry in entries if entry.stamped_s <= 0]
        stamped = await self._stamp(table, fresh) if fresh else 0
        done = await self._delete_due(table, entries)
        await self._forget_pins(table)
        await self._finish_drop(table)
        kept = len(fresh) - stamped + every - len(entries)
        return done + CollectedCounts(stamped=stamped, kept=kept)

    async def _unpublished(
        self, table: Table, entries: Sequence[GarbageEntry]
    ) -> Sequence[GarbageEntry]:
        """Return the entries whose files no published log names; the others have no stamp then.

        So the grace of a file begins when a later version lacks it.
        """
        if self._manifests is None or not entries:
            return entries
        published = await self._manifests.published(table, [entry.path for entry in entries])
        for entry in entries:
            if entry.path in published and entry.stamped_s > 0:
                await self._store.apply(KeepGarbage(table=table.id, path=entry.path))
        return [entry for entry in entries if entry.path not in published]

    async def _leave_evidence(
        self, table: Table, entries: Sequence[GarbageEntry]
    ) -> Sequence[GarbageEntry]:
        """Remove entries whose files must stay when a table is dropped without its files.

        Returns:
            The other entries.
        """
        if self._manifests is None or await self._store.drop_deletes(table.id):
            return entries
        left_s = await self._manifests.left_s(table)
        stay = [
            entry.path for entry in entries if entry.stamped_s <= 0 or entry.stamped_s >= left_s
        ]
        for first in range(0, len(stay), STAMP_BATCH):
            batch = tuple(stay[first : first + STAMP_BATCH])
            await self._store.apply(ForgetGarbage(table=table.id, paths=batch))
        kept = {*stay}
        return [entry for entry in entries if entry.path not in kept]

    async def _stamp(self, table: Table, fresh: Sequence[str]) -> int:
        """Stamp new entries, except those of files that may be the only copy of their rows."""
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
        """Return the attempts whose outputs may be deleted, and the outputs that must stay.

        The inputs of an uncommitted attempt still exist. If one is missing, the attempt did commit,
        and the store has lost that write: its outputs are then the only copy of its rows. The check
        is done once, before the entries are stamped, because later replacements are by commits that
        the store has.
        """
        settled: list[str] = []
        held: set[str] = set()
        for entry in await self._store.uncommitted(table.id):
            outputs = entry.output_paths
            fresh_outputs = [path for path in outputs if path in fresh]
            if not fresh_outputs:
                continue  # It ended after the entries were read, or its outputs stay.
            try:
                only = await self._storage.only_copies(table.location, outputs, entry.inputs)
            except RewriteError as error:
                self._log("location not readable", table=table.name, cause=str(error))
                held.update(fresh_outputs)
                continue
            if not only:
                settled.append(entry.attempt)
                continue
            held.update(fresh_outputs)
            self._report_only_copies(table, entry.attempt, only)
            if table.state is TableState.GOING:  # Let the drop finish; the files are kept.
                await self._store.apply(ForgetGarbage(table=table.id, paths=tuple(fresh_outputs)))
        return settled, held

    def _report_only_copies(self, table: Table, attempt: str, only: Sequence[str]) -> None:
        if attempt not in self._reported:
            self._reported.add(attempt)
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
        # If nothing could be deleted, the next round waits for its longest wait.
        more = len(ripe) > ROUND_MAX and deleted + kept > 0
        waiting = len(stamped) - deleted - kept
        left = len(ripe) - deleted - kept if more else 0
        return CollectedCounts(deleted=deleted, kept=kept, waiting=waiting, left=left)

    async def _ripe(self, table: Table, stamped: Sequence[GarbageEntry]) -> list[GarbageEntry]:
        """Return the entries whose files may be deleted now, unless a tablet holds them."""
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
        """Return the numbers of waiting and deletable replaced files, by the end of their tablet.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: The store did not answer.
        """
        entries = await self._store.garbage(table.id)
        stamped = [entry for entry in entries if entry.stamped_s > 0]
        ripe = Counter(entry.tablet_end for entry in await self._ripe(table, stamped))
        return {
            end: GarbageCounts(waiting=waiting, deletable=ripe[end])
            for end, waiting in Counter(entry.tablet_end for entry in entries).items()
        }

    async def _delete_some(self, table: Table, entries: Sequence[GarbageEntry]) -> tuple[int, int]:
        """Check entries once more, and delete their files only within `LOOK_LASTS_S` of the check.

        Returns:
            The numbers of deleted files and of files in use.
        """
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
        """Return the paths that a tablet still holds."""
        by_tablet: dict[TabletId, list[str]] = defaultdict(list)
        for entry, holder in zip(entries, await self._holders(table, entries), strict=True):
            if holder is not None:
                by_tablet[holder].append(entry.path)
        return {path for held in await self._store.held_among(by_tablet) for path in held}

    async def _holders(
        self, table: Table, entries: Sequence[GarbageEntry]
    ) -> list[TabletId | None]:
        """Return the tablet that would hold each file, based on keys, which survive a split."""
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
        """Remove the pins of dead readers: an expired lease is never renewed."""
        pins = await self._store.pins(table.id)
        if not pins:
            return
        stale_s = await self._store.now_s() - self._rules.grace_s
        for pin in pins:
            if pin.until_s < stale_s:
                await self._store.apply(UnpinFiles(table=table.id, pin=pin.pin))

    async def _ours(self, table: Table) -> bool:
        """Return whether the location belongs to this store and this table.

        This check prevents deletions by a copied store, and in a location that now belongs to
        another table.
        """
        try:
            owner = await self._storage.owner(table.location)
        except RewriteError as error:
            self._log("location not readable", table=table.name, cause=str(error))
            return False
        if owner is None:
            return True
        store_id = await self._store.store_id()
        if owner.store != store_id:
            self._log(
                "location belongs to another store",
                table=table.name,
                found=owner.store,
                ours=store_id,
            )
            return False
        if owner.is_another(table.id):
            self._log("location belongs to another table", table=table.name, found=owner.table)
            return False
        return True

    async def _owns_files(self, table: Table, paths: Sequence[str]) -> bool:
        """Return whether no table of another format owns some files; otherwise they are kept.

        Checked before each deletion, because such a table may have been created after this one.
        """
        try:
            mark = await self._storage.foreign_mark(table.location, paths)
        except RewriteError as error:
            self._log("location not readable", table=table.name, cause=str(error))
            return False
        if mark is None:
            self._faults.withdraw_notice(PART, table.id)
            return True
        if table.state is TableState.GOING:  # Let the drop finish; the files are kept.
            await self._store.apply(ForgetGarbage(table=table.id, paths=tuple(paths)))
        else:
            self._faults.notice(PART, table.id, mark.stop(table.name))
        return False

    async def _finish_drop(self, table: Table) -> None:
        """Resume the drop of a table, whose next steps wait for its garbage."""
        if table.state is TableState.GOING:
            await self._store.apply(DropTable(table=table.id, resumed=True))


async def finish_drops(
    store: TabletStore, tables: Collection[Table], log: Log, faults: TableFaults | None = None
) -> None:
    """Free the names of tables whose drop was interrupted before its last step.

    Args:
        store: The store with the names.
        tables: Tables that are known to exist; others are looked up.
        log: Receives the freed names.
        faults: Isolates failures of one table.
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


async def finish_drops_forever(
    store: TabletStore,
    tables: Callable[[], Collection[Table]],
    interval_s: float,
    log: Log,
    faults: TableFaults | None = None,
) -> None:
    """Call `finish_drops` every `interval_s`."""
    while True:
        await asyncio.sleep(interval_s)
        await finish_drops(store, tables(), log, faults)


# -------------------------------------------------------------------------------- Unfinished tables
# Repairs tables without a name and names without a table.
#
#     creating:  the table, new ─► its name ─► live, acknowledged
#                      │               │
#                      └─── died here ─┴──► unused, not found by name, and its name stays taken
#
# A new table or a name without a table is remembered when it is first seen, and removed if it is
# unchanged one grace period later. If its creator wakes up after that, the store refuses the last
# step, and the creator undoes its work (`common/metadata/changes/tables.py`).
#
# A live or paused table without a name was acknowledged and holds rows: a fail-over has lost either
# its name or its drop, on different nodes of the store. Its name is restored one grace period
# later, unless another table has the name or the location. A table without a name that was being
# filled is removed: its files stay, and its recovery is repeated.


REMOVAL = "the removal of unfinished tables"

Identities = Callable[[Mapping[str, str]], Awaitable[Mapping[str, LocationIdentity]]]
"""Returns the current identities of locations, by the same keys."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The repair of a table, if its state is unchanged one grace period later."""

    table: Table | None = None
    """Table whose name is to be restored; None means that the table or name is removed."""


async def _identities_by_uri(_locations: Mapping[str, str]) -> Mapping[str, LocationIdentity]:
    """Return no identities, so that locations are compared by URI only."""
    return {}


class UnfinishedTables:
    """Checks every table of the store, with or without a name."""

    def __init__(
        self,
        store: TabletStore,
        grace_s: float,
        log: Log,
        faults: TableFaults,
        identities: Identities = _identities_by_uri,
    ) -> None:
        """Create an instance without remembered tables.

        Args:
            store: The store with the tables.
            grace_s: How long a table must be unchanged before it is repaired.
            log: Receives the repairs.
            faults: Isolates failures of one table, and shows notices to operators.
            identities: Determines which locations share files.
        """
        self._store = store
        self._grace_s = grace_s
        self._log = log
        self._faults = faults
        self._identities = identities
        self._seen_s: dict[tuple[str, bool], float] = {}
        """(Table id, whether it has lost its name) → store time when it was first seen so."""

    async def look(self) -> int:
        """Check once; return the number of removed or restored tables and names.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: The store did not answer.
        """
        findings = await self._look_for_all()
        # The time is read last, so that it is not earlier than any finding.
        now_s = await self._store.now_s()
        keys = {table: (table, finding.table is not None) for table, finding in findings.items()}
        self._seen_s = {key: self._seen_s.get(key, now_s) for key in keys.values()}
        self._faults.keep_notices(REMOVAL, findings)
        done = 0
        for table, finding in findings.items():
            if now_s - self._seen_s[keys[table]] >= self._grace_s:
                step = partial(self._remove, table)
                if finding.table is not None:
                    step = partial(self._restore, finding.table)
                done += bool(await self._faults.run(REMOVAL, table, step))
        return done

    async def _look_for_all(self) -> dict[str, _Found]:
        """Return unfinished tables, tables without a name, and names without a table."""
        ids = await self._store.table_ids()
        named = {named_table.id for named_table in await self._store.named_tables()}
        findings = {table: _Found() for table in sorted(named.difference(ids))}
        for table in ids:
            look = partial(self._look_at, table, has_name=table in named)
            if (finding := await self._faults.run(REMOVAL, table, look)) is not None:
                findings[table] = finding
        return findings

    async def _look_at(self, table: str, *, has_name: bool) -> _Found | None:
        """Return the repair of an existing table, or None if it needs none."""
        present = await self._store.table(table)
        if present is None:
            return None
        if present.state is TableState.NEW:
            return _Found()
        if has_name:
            return None  # The collector continues a drop.
        if present.state in {TableState.FILLING, TableState.GOING}:
            return _Found()
        if (table, True) not in self._seen_s:
            self._log("table has no name", table=table, was=present.name, location=present.location)
        return _Found(present)

    async def _remove(self, table: str) -> bool:
        outcome = await self._store.apply(DropTable(table=table, unfinished=True))
        if removed := isinstance(outcome, Applied) and outcome.complete:
            self._log("unfinished table removed", table=table)
        return removed

    async def _restore(self, table: Table) -> bool:
        """Restore the name of a table, or notify operators why this is not possible."""
        others = {
            named_table.id: named_table.location for named_table in await self._store.named_tables()
        }
        identities = dict(await self._identities({**others, table.id: table.location}))
        own_identity = identities.pop(table.id, None)
        change = RestoreName(table=table.id, identity=own_identity, others=identities)
        outcome: Outcome = await self._store.apply(change)
        if isinstance(outcome, Applied):
            self._log("name given back to a table", table=table.id, name=table.name)
            return True
        self._faults.notice(
            REMOVAL,
            table.id,
            f"table {table.id} ({table.location}) has lost its name {table.name!r}, which"
            f" cannot be restored: {outcome.reason}; drop the table that now has this name, or"
            " move its files",
        )
        return False

    async def run_forever(self, interval_s: float) -> None:
        """Check in a loop.

        Args:
            interval_s: Pause between two checks; if tables wait for a repair, at most the grace
                period.
        """
        while True:
            await asyncio.sleep(min(interval_s, self._grace_s) if self._seen_s else interval_s)
            try:
                await self.look()
            except (MetadataError, UnavailableError) as error:
                self._log("unfinished tables not looked for", cause=str(error))
