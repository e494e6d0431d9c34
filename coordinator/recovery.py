"""Start-up of a coordinator: claim, then learn everything from the store.

Nothing survives in the coordinator that the store does not tell. Reservations that
were running go to the state as found; those whose compactors report within the
grace are adopted, the others released.
"""

import asyncio

from common.errors import ConfigError, MetadataError, UnavailableError
from common.metadata.changes import Applied, ClaimCoordination
from common.metadata.ports import TabletStore
from coordinator.ports import Log
from coordinator.scanner import Scanner

CLAIM_PAUSE_S = 1.0
LEAD_CHECK_S = 2.0


async def recover(store: TabletStore, scanner: Scanner, coordinator: str, log: Log) -> float:
    """Claim the lead, have every tablet of every table looked at; return when it was claimed.

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
