"""Notices within seconds that the store does not answer, and knows since when.

Whoever waits for the store waits as long as `store.timeout_s` and then tries again: that is
right for work, and too late for whoever wants to know why nothing happens.
"""

import asyncio

from common.clock import Clock
from common.errors import MetadataError, UnavailableError
from common.metadata.store import TabletStore
from common.telemetry import Log
from common.units import format_duration

LOOK_INTERVAL_S = 1.0
PATIENCE_S = 2.0
"""A store that needs longer for the time of day does not answer, as far as people are concerned."""
ADVICE = (
    "nothing can be read or changed meanwhile; see that it runs and can be reached, and its log"
    " (a stack of `neve up` starts its own Redis again)"
)


class StoreWatch:
    """Asks the store for the time every second."""

    def __init__(
        self,
        store: TabletStore,
        clock: Clock,
        log: Log,
        *,
        interval_s: float = LOOK_INTERVAL_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Believe that it answers.

        Args:
            store: The store.
            clock: Tells since when it is silent.
            log: Hears when its silence begins and ends.
            interval_s: Pause between two looks.
            patience_s: How long an answer may take.
        """
        self._store = store
        self._clock = clock
        self._log = log
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._cause = ""
        self._looked = asyncio.Event()

    @property
    def silent_s(self) -> float:
        """How long it has been silent; 0: it answers."""
        return 0.0 if self._since_s is None else max(self._clock.now_s() - self._since_s, 0.001)

    @property
    def warning(self) -> str:
        """What an operator should know; empty: it answers."""
        if self._since_s is None:
            return ""
        length = format_duration(self.silent_s)
        return f"the store (Redis) has not answered for {length} ({self._cause}): {ADVICE}"

    async def look(self) -> None:
        """Ask once."""
        asked_s = self._clock.now_s()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._store.now_s()
        except TimeoutError:
            self._silent(asked_s, f"no answer within {self._patience_s:g} s")
        except (MetadataError, UnavailableError) as error:
            self._silent(asked_s, str(error))
        else:
            if self._since_s is not None:
                self._log("store answers again", silent_s=round(self.silent_s, 1))
            self._since_s = None
        self._looked.set()

    async def until_looked(self) -> None:
        """Return when it is known whether the store answers."""
        await self._looked.wait()

    async def run_forever(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    def _silent(self, since_s: float, cause: str) -> None:
        if self._since_s is None:
            self._since_s = since_s
            self._log("store does not answer", cause=cause)
        self._cause = cause
