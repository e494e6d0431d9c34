"""A pin that lives as long as a piece of work: renewed in the background, ended or left behind."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from common.errors import CompactionError, ConflictError, RefusedError
from common.metadata.changes import Applied
from common.metadata.ports import TabletStore
from common.metadata.upkeep_changes import Pin, Unpin

LEASE_S = 120.0
RENEW_S = 30.0


class Hold:
    """While it is open, no file of the table that was listed within it is deleted."""

    def __init__(self, store: TabletStore, table: str, pin: str, *, keep_s: float = 0.0) -> None:
        """Hold nothing yet.

        Args:
            store: Where the pin is written.
            table: Whose files are held.
            pin: A random name.
            keep_s: How long the pin stays after the end, for whoever copies the files.
        """
        self._store = store
        self._table = table
        self._pin = pin
        self._keep_s = keep_s
        self._task: asyncio.Task[None] | None = None
        self._lost = False

    async def __aenter__(self) -> Self:
        """Begin the pin."""
        outcome = await self._store.apply(self._renewal(LEASE_S))
        if not isinstance(outcome, Applied):
            raise RefusedError(f"the files cannot be held: {outcome.reason}")
        self._task = asyncio.get_running_loop().create_task(self._renew_forever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the pin, or leave it for a while."""
        assert self._task is not None
        self._task.cancel()
        keeps = self._keep_s > 0 and error is None
        change = self._renewal(self._keep_s) if keeps else Unpin(table=self._table, pin=self._pin)
        with suppress(CompactionError):  # A pin that stays ends with its lease.
            await self._store.apply(change)

    def check(self) -> None:
        """Refuse to go on if the pin ran out.

        Raises:
            ConflictError: It did: files may be gone.
        """
        if self._lost:
            raise ConflictError("the pin ran out while files were copied: begin again")

    def _renewal(self, lease_s: float) -> Pin:
        return Pin(table=self._table, pin=self._pin, lease_s=lease_s)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                self._lost = not isinstance(
                    await self._store.apply(self._renewal(LEASE_S)), Applied
                )
            except CompactionError:
                continue  # The store is away; the lease lasts for some more tries.
            if self._lost:
                return
