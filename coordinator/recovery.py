"""Start-up of a coordinator: claim, then learn everything from the store.

Nothing survives in the coordinator that the store does not tell. Reservations that
were running go to the state as found; those whose compactors report within the
grace are adopted, the others released.
"""

import asyncio

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Applied
from common.metadata.ports import TabletStore
from common.metadata.upkeep_changes import ClaimCoordination
from coordinator.ports import Log
from coordinator.scanner import Scanner

CLAIM_PAUSE_S = 1.0
LEAD_CHECK_S = 2.0


async def recover(store: TabletStore, scanner: Scanner, coordinator: str, log: Log) -> None:
    """Claim the lead and have every tablet of every table looked at.

    The scanner's first look at the tables reads each change stream's position before
    the tablets, so that nothing falls between.
    """
    while True:
        try:
            await _claim(store, coordinator)
            await scanner.refresh_tables()
        except (MetadataError, UnavailableError) as error:
            log("start waits for the store", cause=str(error))
            await asyncio.sleep(CLAIM_PAUSE_S)
        else:
            log("coordinator leads", coordinator=coordinator, tables=len(scanner.tables))
            return


async def until_replaced(store: TabletStore, coordinator: str, log: Log) -> str:
    """Return the id of the coordinator that has replaced this one, when that is so."""
    while True:
        await asyncio.sleep(LEAD_CHECK_S)
        try:
            leader = await store.coordinator()
            if leader is None:  # The store has forgotten it: nobody else leads.
                await _claim(store, coordinator)
        except (MetadataError, UnavailableError) as error:
            log("lead not checked", cause=str(error))
            continue
        if leader is not None and leader != coordinator:
            return leader


async def _claim(store: TabletStore, coordinator: str) -> None:
    """Write the id of the coordinator that leads.

    Raises:
        UnavailableError: Nobody knows whether it is written; without it nothing can be
            released for silence, and the next look may find another's id.
    """
    outcome = await store.apply(ClaimCoordination(coordinator=coordinator))
    if not isinstance(outcome, Applied):
        raise UnavailableError(f"the lead is not claimed: {outcome.reason}")
