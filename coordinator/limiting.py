"""Limits of groups and volumes: kept in the store, told to the state."""

import asyncio

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Applied, Refused, SetLimit
from common.model.group import LimitScope, checked_limit
from coordinator.core import events as on
from coordinator.performing import Context
from coordinator.ports import Submit

REFRESH_S = 10.0
"""How often the store is read again: a restored one may say something else."""
LOAD_PAUSE_S = 1.0


class Limiting:
    """Reads limits from the store and writes them there; decides nothing."""

    def __init__(self, context: Context, submit: Submit) -> None:
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
                await asyncio.sleep(LOAD_PAUSE_S)
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
        outcome = await self._context.store.apply(change)
        if isinstance(outcome, Refused):
            raise MetadataError(f"limit of {scope} is not written: {outcome.reason}")
        if not isinstance(outcome, Applied):
            raise UnavailableError(f"limit of {scope} may not be written: {outcome.reason}")
        self._context.log("limit set", scope=scope, bytes_s=bytes_s)
        await self.refresh()

    async def run_forever(self) -> None:
        """Read the limits now and then."""
        while True:
            await asyncio.sleep(REFRESH_S)
            await self.load()
