"""A pin that lasts as long as a piece of work: begun, renewed in the background, ended.

While it is held, no file of the table that was listed within it is deleted. A reader calls
`check` before it uses what it has read under a pin: a process that was suspended, or a store that
did not answer for a whole lease, has lost the protection.

    begin ──► renewed every `renew_s`; a failed renewal is retried soon
       │ refused: it has expired, or the store has lost it ──► lost
       │ no renewal for a whole lease ───────────────────────► lost
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from common.errors import (
    CompactionError,
    ConflictError,
    RefusedError,
    UnavailableError,
    UnknownOutcomeError,
)
from common.metadata.changes import Applied, PinFiles, Refused, Unknown, UnpinFiles
from common.metadata.store import TabletStore

LEASE_S = 120.0
RENEW_S = 30.0
RETRY_S = 2.0
"""Pause after a renewal that the store did not answer."""

Later = Callable[[Coroutine[Any, Any, object]], object]
"""Starts work that no caller waits for."""


class FilePin:
    """The pin of one reader. One block at a time."""

    def __init__(
        self,
        store: TabletStore,
        table: str,
        pin: str,
        *,
        renew_s: float | None = None,
        keep_s: float = 0.0,
        later: Later | None = None,
    ) -> None:
        """Create a pin without acquiring it.

        Args:
            store: The store of the pin.
            table: Id of the table whose files are held.
            pin: A random name.
            renew_s: Pause between two renewals; None: `RENEW_S`.
            keep_s: How long the pin stays after the end, for processes that copy the files.
            later: Ends the pin after the block without waiting; None: the block waits for it.
        """
        self._store = store
        self._table = table
        self._pin = pin
        self._renew_s = RENEW_S if renew_s is None else renew_s
        self._keep_s = keep_s
        self._later = later
        self._task: asyncio.Task[None] | None = None
        self._valid_until_s = 0.0
        self._lost = ""

    async def __aenter__(self) -> Self:
        """Begin the pin.

        Raises:
            RefusedError: The table does not accept it now.
            UnavailableError: The store does not answer.
        """
        begun_s = _now_s()
        outcome = await self._store.apply(
            PinFiles(table=self._table, pin=self._pin, lease_s=LEASE_S)
        )
        if not isinstance(outcome, Applied):
            error = RefusedError if isinstance(outcome, Refused) else UnavailableError
            raise error(f"the files cannot be pinned: {outcome.reason}")
        self._valid_until_s = begun_s + LEASE_S
        self._task = asyncio.get_running_loop().create_task(self._renew_forever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the pin, or keep it for `keep_s`."""
        assert self._task is not None
        self._task.cancel()
        if self._later is None:
            await self._end(keeps=error is None)
        else:
            self._later(self._end(keeps=error is None))

    def check(self) -> None:
        """Raise an error if listed files may have been deleted.

        Raises:
            ConflictError: The protection ended.
        """
        if not self._lost and _now_s() >= self._valid_until_s:
            self._lost = f"it could not be renewed for {LEASE_S:.0f} s"
        if self._lost:
            raise ConflictError(
                "the files are no longer protected from deletion, because the "
                f"pin that protects them has expired ({self._lost}): begin again"
            )

    async def confirm(self) -> None:
        """Renew the pin now, so that the store confirms that it never expired.

        Raises:
            ConflictError: It has expired.
            MetadataError: The store did not answer as expected.
            UnavailableError: It did not answer.
        """
        await self._renew()
        self.check()

    async def _renew(self) -> None:
        begun_s = _now_s()
        change = PinFiles(table=self._table, pin=self._pin, lease_s=LEASE_S, renews=True)
        match await self._store.apply(change):
            case Applied():
                self._valid_until_s = begun_s + LEASE_S
            case Refused(reason=reason):
                self._lost = reason
            case Unknown(reason=reason):
                raise UnknownOutcomeError(reason)

    async def _renew_forever(self) -> None:
        pause_s = self._renew_s
        while not self._lost:
            await asyncio.sleep(pause_s)
            try:
                await self._renew()
                pause_s = self._renew_s
            except CompactionError:  # The store is down; the lease is long enough for more tries.
                pause_s = min(RETRY_S, self._renew_s)

    async def _end(self, *, keeps: bool) -> None:
        with suppress(CompactionError):  # A pin that stays expires with its lease.
            if keeps and self._keep_s > 0:
                await self._store.apply(
                    PinFiles(table=self._table, pin=self._pin, lease_s=self._keep_s, renews=True)
                )
            else:
                await self._store.apply(UnpinFiles(table=self._table, pin=self._pin))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
