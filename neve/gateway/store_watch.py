"""Detects within seconds that the store does not answer, and since when.

Callers of the store wait for `store.timeout_s` and then retry. That is right for work, but too
slow for operators who want to know why nothing happens.
"""

import asyncio

from common.errors import MetadataError, UnavailableError
from common.metadata.store import TabletStore
from common.runtime import Clock
from common.telemetry import Log
from common.units import format_duration

LOOK_INTERVAL_S = 1.0
PATIENCE_S = 2.0
"""A store that takes longer to return the time counts as not answering."""
ADVICE = (
    "reads and changes wait meanwhile; check that it runs and is reachable, and read its log"
    " (`neve up` restarts its own Redis)"
)


class StoreWatch:
    """Requests the store's time every second."""

    def __init__(
        self,
        store: TabletStore,
        clock: Clock,
        log: Log,
        *,
        interval_s: float = LOOK_INTERVAL_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Create a watch that assumes that the store answers.

        Args:
            store: The store.
            clock: Measures the silence.
            log: Gets the begin and end of a silence.
            interval_s: Pause between two checks.
            patience_s: Longest time for an answer.
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
        """How long the store has been silent; 0: it answers."""
        return 0.0 if self._since_s is None else max(self._clock.now_s() - self._since_s, 0.001)

    @property
    def warning(self) -> str:
        """Warning for an operator; empty: the store answers."""
        if self._since_s is None:
            return ""
        length = format_duration(self.silent_s)
        return f"the store (Redis) has not answered for {length} ({self._cause}): {ADVICE}"

    async def look(self) -> None:
        """Check once."""
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
        """Wait until the first check has ended."""
        await self._looked.wait()

    async def run_forever(self) -> None:
        """Check at every interval."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    def _silent(self, since_s: float, cause: str) -> None:
        if self._since_s is None:
            self._since_s = since_s
            self._log("store does not answer", cause=cause)
        self._cause = cause
