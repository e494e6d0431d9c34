"""Regular work on the store: the lead, limits, results of jobs, the store's health, snapshots.

A coordinator takes all durable state from the store. Existing reservations enter the state as
FOUND. Those whose compactors report within the grace period are adopted, the others are released.
"""

import asyncio
from contextlib import suppress
from functools import partial

from common.errors import ConfigError, MetadataError, UnavailableError
from common.metadata.changes import Applied, ClaimCoordination, SaveSeries, SetLimit, StoreDays
from common.metadata.store import TabletStore
from common.metadata.store_values import StoreHealth
from common.model.group import LimitScope, checked_limit
from common.primitives import BoundedMap
from common.spi.planner import UNCORRECTED
from common.telemetry import Log
from coordinator.context import STORE_AWAY_ERRORS, ShellContext
from coordinator.core import events as on
from coordinator.core.series import SeriesPart, SeriesStore
from coordinator.core.state import CoordinatorState
from coordinator.core.views import window_usages
from coordinator.core.windows import packed_usages, unpacked_usages
from coordinator.ports import Submit
from coordinator.scan.scanner import Scanner
from neve.api import Correction

# ----------------------------------------------------------------------------------------- The lead


CLAIM_PAUSE_S = 1.0
LEAD_CHECK_S = 2.0


async def take_lead(store: TabletStore, scanner: Scanner, coordinator: str, log: Log) -> float:
    """Claim the lead, and schedule the read of all tablets; return the time of the claim.

    The scanner reads the position of each change stream before the tablets, so that no change is
    missed.
    """
    while True:
        try:
            (await store.health()).check()
            claimed_s = await _claim(store, coordinator)
            await scanner.refresh_tables()
        except (ConfigError, MetadataError, UnavailableError) as error:
            log("start waits for the store", cause=str(error))
            await asyncio.sleep(CLAIM_PAUSE_S)
        else:
            log("coordinator leads", coordinator=coordinator, tables=len(scanner.tables))
            return claimed_s


async def until_replaced(
    store: TabletStore, coordinator: str, log: Log, claimed_s: float = 0.0
) -> str:
    """Wait until another coordinator has replaced this one, and return its id.

    Only a later claim replaces this coordinator. A store that has lost writes shows the claim of a
    previous coordinator; the lead is then claimed again.

    Args:
        store: The store with the claim.
        coordinator: Id of this coordinator.
        log: Receives a lost claim.
        claimed_s: When this coordinator claimed the lead; 0 means before all others.
    """
    while True:
        await asyncio.sleep(LEAD_CHECK_S)
        try:
            claim = await store.claim()
            if claim is not None and claim.coordinator == coordinator:
                claimed_s = claim.since_s
            elif claim is not None and claim.since_s > claimed_s:
                return claim.coordinator
            else:
                log("claim was lost", found=claim.coordinator if claim else None)
                claimed_s = await _claim(store, coordinator)
        except (MetadataError, UnavailableError) as error:
            log("lead not checked", cause=str(error))


async def _claim(store: TabletStore, coordinator: str) -> float:
    """Write the claim of a coordinator; return its time.

    Raises:
        UnavailableError: The outcome is unknown. Without a claim, no reservation can be released
            for silence, and the next check may find the id of another coordinator.
    """
    outcome = await store.apply(ClaimCoordination(coordinator=coordinator))
    if not isinstance(outcome, Applied):
        raise UnavailableError(f"the lead is not claimed: {outcome.reason}")
    claim = await store.claim()
    is_ours = claim is not None and claim.coordinator == coordinator
    return claim.since_s if claim is not None and is_ours else outcome.now_s


# ---------------------------------------------------------------- Rate limits of groups and volumes


LIMITS_INTERVAL_S = 10.0
"""Interval between reads of the limits, because a restored store may hold others."""
LIMITS_RETRY_S = 1.0


class RateLimits:
    """Reads limits from the store and writes them; makes no decisions."""

    def __init__(self, context: ShellContext, submit: Submit) -> None:
        """Create an instance that passes limits to the state through `submit`."""
        self._context = context
        self._submit = submit
        self._reading = asyncio.Lock()
        """Held during a read, so that an older answer never replaces a newer one."""

    async def load(self) -> None:
        """Read the limits, and retry until it succeeds: no job may be assigned before."""
        while True:
            try:
                await self.refresh()
            except (MetadataError, UnavailableError) as error:
                self._context.log("limits not read", cause=str(error))
                await asyncio.sleep(LIMITS_RETRY_S)
            else:
                return

    async def refresh(self) -> None:
        """Read the limits once.

        Raises:
            MetadataError: A stored limit is invalid.
            UnavailableError: The store does not answer.
        """
        async with self._reading:
            self._submit(on.LimitsSeen(limits=await self._context.store.limits()))

    async def set(self, scope: str, bytes_s: int | None) -> None:
        """Write a limit; it applies from the next heartbeats on.

        Args:
            scope: The scope, for example `group:default`; it may be unused.
            bytes_s: The limit; 0 means no limit, None the limit of the settings.

        Raises:
            RequestError: The limit is too low, or the scope is invalid.
            MetadataError: The store refused.
            UnavailableError: The store does not answer; the limit may or may not be written.
        """
        checked_limit(bytes_s or 0, scope)
        change = SetLimit(scope=LimitScope.parse(scope), bytes_s=bytes_s)
        await self._context.write(change, f"limit of {scope}")
        self._context.log("limit set", scope=scope, bytes_s=bytes_s)
        await self.refresh()

    async def run_forever(self) -> None:
        """Read the limits every `LIMITS_INTERVAL_S`."""
        while True:
            await asyncio.sleep(LIMITS_INTERVAL_S)
            await self.load()


# ------------------------------------------------------------- Corrections by the results of tables


CORRECTIONS_INTERVAL_S = 5.0
"""Shortest interval between two reads of a table's history."""
CORRECTED_TABLES_MAX = 10_000


class TableCorrections:
    """The corrections of tables by their histories.

    The history of a table is read before the table is first planned, and again after commits.
    """

    def __init__(self, context: ShellContext) -> None:
        """Create an instance without corrections."""
        self._context = context
        self._corrections: BoundedMap[str, Correction] = BoundedMap(CORRECTED_TABLES_MAX)
        self._due: dict[str, None] = {}
        self._news = asyncio.Event()

    def of(self, table: str) -> Correction:
        """Return the correction of a table, as far as its history has been read."""
        correction = self._corrections.get(table)
        if correction is None:
            self.read_soon(table)
            return UNCORRECTED
        return correction

    def read_soon(self, table: str) -> None:
        """Schedule a read of the history of a table."""
        self._due[table] = None
        self._news.set()

    async def read_first(self, table: str) -> None:
        """Read the history of a table, unless it has been read before."""
        if table not in self._corrections:
            await self._read_if_possible(table)

    async def read(self, table: str) -> None:
        """Read the history of a table.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        self._corrections.put(table, await self._context.store.correction(table))

    async def run_forever(self) -> None:
        """Read the scheduled histories; one that cannot be read leaves the last correction."""
        while True:
            await self._news.wait()
            self._news.clear()
            due, self._due = self._due, {}
            for table in due:
                await self._read_if_possible(table)
            await asyncio.sleep(CORRECTIONS_INTERVAL_S)

    async def _read_if_possible(self, table: str) -> None:
        with suppress(*STORE_AWAY_ERRORS):
            work = partial(self.read, table)
            await self._context.faults.run("results", table, work, STORE_AWAY_ERRORS)


# ---------------------------------------------------------------------------- Daily sums of tables


DAYS_INTERVAL_S = 300.0
"""Interval between two rounds. A history keeps 10,000 attempts meanwhile."""
DUE_TABLES_MAX = 100_000


class DailySumsKeeper:
    """Adds finished attempts to the daily sums of their tables, some minutes after commits.

    Attempts that end while no coordinator runs are added after the next commit of their table.
    """

    def __init__(self, context: ShellContext) -> None:
        """Create an instance for which no table is due."""
        self._context = context
        self._due: BoundedMap[str, None] = BoundedMap(DUE_TABLES_MAX)

    def count_soon(self, table: str) -> None:
        """Add the new attempts of a table with the next round."""
        self._due.put(table, None)

    async def count(self, table: str) -> None:
        """Add the new attempts of a table.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: The store does not answer.
        """
        store = self._context.store
        before = await store.days(table)
        sums = await store.newest_days(table, before)
        if sums != before:
            # If it is refused, another coordinator has added them, or the table is gone.
            await store.apply(StoreDays(table=table, before=before.position, sums=sums))

    async def run_forever(self) -> None:
        """Add the new attempts of all due tables, round by round."""
        while True:
            await asyncio.sleep(DAYS_INTERVAL_S)
            await self.count_all()

    async def count_all(self) -> None:
        """Add the new attempts of all due tables; a table that fails is due again."""
        due, self._due = self._due, BoundedMap(DUE_TABLES_MAX)
        for table, _ in due:
            try:
                work = partial(self.count, table)
                await self._context.faults.run("daily sums", table, work, STORE_AWAY_ERRORS)
            except STORE_AWAY_ERRORS:
                self.count_soon(table)


# -------------------------------------------------------------------------- The health of the store


HEALTH_INTERVAL_S = 5.0


class StoreHealthWatch:
    """The last health report of the store; before the first one, the store counts as healthy."""

    def __init__(self, store: TabletStore, log: Log) -> None:
        """Create a watch of `store`; `log` receives new warnings."""
        self.health = StoreHealth()
        self._store = store
        self._log = log

    async def look(self) -> None:
        """Maintain the reserve, then read the health once."""
        try:
            await self._store.keep_reserve()
            health = await self._store.health()
        except (MetadataError, UnavailableError) as error:
            self._log("store not looked at", cause=str(error))
            return
        if health.warnings and not self.health.warnings:
            self._log("store needs care", warnings=[*health.warnings])
        self.health = health

    async def run_forever(self) -> None:
        """Read the health every `HEALTH_INTERVAL_S`."""
        while True:
            await self.look()
            await asyncio.sleep(HEALTH_INTERVAL_S)


# --------------------------------------------------------------- Snapshot of the recorded values


SERIES_INTERVAL_S = 300.0
"""Time in which every part is written once; after a restart, so much may be missing."""
SERIES_PAUSE_S = 5.0
"""Shortest pause between two parts."""
WINDOWS_PART = "windows"
"""Part of the recorded values with the use of the budgets of windows."""
WINDOWS_INTERVAL_S = 1.0
"""Pause between two writes of this part; a restart may miss what started and ended in it."""


class SeriesKeeper:
    """Stores the recorded values part by part, and reads them when a coordinator starts."""

    def __init__(self, context: ShellContext, series: SeriesStore) -> None:
        """Create an instance that has written nothing."""
        self._context, self._series = context, series
        self._sizes: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        """Size of the parts that were read or written, compressed."""
        return sum(self._sizes.values())

    async def load(self) -> None:
        """Read the snapshot once. Without it the recorded values begin now, and work goes on."""
        parts: dict[str, SeriesPart] = {}
        try:
            stored = await self._context.store.series()
        except (MetadataError, UnavailableError) as error:
            self._context.log("series not read", cause=str(error))
            return
        for name, packed in stored.items():
            if name == WINDOWS_PART:
                continue
            try:
                parts[name] = await asyncio.to_thread(SeriesPart.unpacked, packed)
            except ValueError as error:
                self._context.log("series not read", block=name, cause=str(error))
            else:
                self._sizes[name] = len(packed)
        self._series.load(parts, self._context.clock.now_s())

    async def run_forever(self) -> None:
        """Write one part after the other."""
        while True:
            parts = self._series.parts()
            pause_s = SERIES_INTERVAL_S / max(1, len(parts))
            for name in parts:
                await asyncio.sleep(max(SERIES_PAUSE_S, pause_s))
                await self.write(name)
            if not parts:
                await asyncio.sleep(SERIES_PAUSE_S)

    async def write(self, name: str) -> None:
        """Write a part; one that cannot be written is written again with the next round."""
        packed = await asyncio.to_thread(self._series.part(name).packed)
        try:
            outcome = await self._context.store.apply(SaveSeries(part=name, values=packed))
        except (MetadataError, UnavailableError) as error:
            self._context.log("series not written", block=name, cause=str(error))
            return
        if not isinstance(outcome, Applied):
            self._context.log("series not written", block=name, cause=outcome.reason)
            return
        self._sizes[name] = len(packed)


# ------------------------------------------------------------------- Use of the budgets of windows


class WindowUsageKeeper:
    """Stores what has started in windows with a budget, and reads it when a coordinator starts."""

    def __init__(self, context: ShellContext, state: CoordinatorState, submit: Submit) -> None:
        """Create an instance that has written nothing.

        Args:
            context: Ports of the shell.
            state: The state whose budgets are stored.
            submit: Receives the event with what was stored.
        """
        self._context, self._state, self._submit = context, state, submit
        self._changes = 0
        """Changes that are stored."""

    async def load(self) -> None:
        """Read the use once, and retry until it succeeds: no job may be assigned before."""
        packed: bytes | None = None
        while True:
            try:
                packed = await self._context.store.series_part(WINDOWS_PART)
                break
            except (MetadataError, UnavailableError) as error:
                self._context.log("windows not read", cause=str(error))
                await asyncio.sleep(LIMITS_RETRY_S)
        if packed is None:
            return
        try:
            unpacked_usages(packed)
        except ValueError as error:
            self._context.log("windows not read", cause=str(error))
        else:
            self._submit(on.WindowUsesSeen(packed=packed))

    async def run_forever(self) -> None:
        """Write the use of budgets whenever it has changed."""
        while True:
            await asyncio.sleep(WINDOWS_INTERVAL_S)
            await self.write()

    async def write(self) -> None:
        """Write the use if it has changed; a write that fails is repeated with the next call."""
        changes, usages = self._state.look(
            window_usages, self._changes, self._context.clock.now_s()
        )
        if usages is None:
            return
        change = SaveSeries(part=WINDOWS_PART, values=packed_usages(usages))
        try:
            outcome = await self._context.store.apply(change)
        except (MetadataError, UnavailableError) as error:
            self._context.log("windows not written", cause=str(error))
            return
        if isinstance(outcome, Applied):
            self._changes = changes
        else:
            self._context.log("windows not written", cause=outcome.reason)
