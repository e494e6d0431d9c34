"""What a coordinator keeps asking the store: who leads, which limits hold, is it well?

Nothing survives in the coordinator that the store does not tell. Reservations that
were running go to the state as found; those whose compactors report within the
grace are adopted, the others released.
"""

import asyncio

from common.errors import ConfigError, MetadataError, UnavailableError
from common.metadata.changes import Applied, ClaimCoordination, SetLimit
from common.metadata.store import TabletStore
from common.metadata.store_values import StoreHealth
from common.model.group import LimitScope, checked_limit
from common.telemetry import Log
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.ports import Submit
from coordinator.scan.scanner import Scanner

# ----------------------------------------- The lead: claim it, then learn everything from the store


CLAIM_PAUSE_S = 1.0
LEAD_CHECK_S = 2.0


async def take_lead(store: TabletStore, scanner: Scanner, coordinator: str, log: Log) -> float:
    """Claim the lead and have every tablet of every table read; return when it was claimed.

    The scanner's first look at the tables reads each change stream's position before
    the tablets, so that nothing falls between.
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
    """Return the id of the coordinator that has replaced this one, when that is so.

    Only a later claim replaces. A store that has gone back in time shows an older one, whose
    coordinator left when this one came: the lead is then claimed again.

    Args:
        store: Where the claim is.
        coordinator: Id of this one.
        log: Hears of a claim that was lost.
        claimed_s: When this one claimed the lead; 0: before everybody else.
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
    """Write the id of the coordinator that leads; return since when it does.

    Raises:
        UnavailableError: Nobody knows whether it is written; without it nothing can be
            released for silence, and the next look may find another's id.
    """
    outcome = await store.apply(ClaimCoordination(coordinator=coordinator))
    if not isinstance(outcome, Applied):
        raise UnavailableError(f"the lead is not claimed: {outcome.reason}")
    claim = await store.claim()
    mine = claim is not None and claim.coordinator == coordinator
    return claim.since_s if claim is not None and mine else outcome.now_s


# ---------------------------------------------------------------- Rate limits of groups and volumes


LIMITS_INTERVAL_S = 10.0
"""How often limits are read again: a restored store may hold others."""
LIMITS_RETRY_S = 1.0


class RateLimits:
    """Reads limits from the store and writes them there; decides nothing."""

    def __init__(self, context: ShellContext, submit: Submit) -> None:
        """Tell the state through `submit`."""
        self._context = context
        self._submit = submit

    async def load(self) -> None:
        """Read the limits, however long it takes: no job may be handed out before."""
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
            MetadataError: What is stored is none.
            UnavailableError: The store does not answer.
        """
        self._submit(on.LimitsSeen(limits=await self._context.store.limits()))

    async def set(self, scope: str, bytes_s: int | None) -> None:
        """Write a limit; it holds from the next heartbeats on.

        Args:
            scope: Such as `group:default`; nothing need run under it.
            bytes_s: 0: no limit; None: what the settings say.

        Raises:
            RequestError: It is too low, or the scope is none.
            MetadataError: The store refused.
            UnavailableError: The store does not answer: it may be written or not.
        """
        checked_limit(bytes_s or 0, scope)
        change = SetLimit(scope=LimitScope.parse(scope), bytes_s=bytes_s)
        await self._context.write(change, f"limit of {scope}")
        self._context.log("limit set", scope=scope, bytes_s=bytes_s)
        await self.refresh()

    async def run_forever(self) -> None:
        """Read the limits now and then."""
        while True:
            await asyncio.sleep(LIMITS_INTERVAL_S)
            await self.load()


# -------------------------------------------------------------------------- The health of the store


HEALTH_INTERVAL_S = 5.0


class StoreHealthWatch:
    """The last health report of the store; before the first one, the store counts as healthy."""

    def __init__(self, store: TabletStore, log: Log) -> None:
        """Look at `store`; `log` hears each warning when it comes up."""
        self.health = StoreHealth()
        self._store = store
        self._log = log

    async def look(self) -> None:
        """Keep the reserve, then ask once."""
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
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(HEALTH_INTERVAL_S)
