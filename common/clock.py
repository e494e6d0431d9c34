"""Time as a port: decisions get `now_s` as an argument, shells read a `Clock`."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell reads time. Seconds since the epoch; only differences are compared."""

    def now_s(self) -> float:
        """Return the time now, in seconds."""
        ...


class SystemClock:
    """The clock of the machine, made monotonic: it never goes back within a process."""

    def __init__(self) -> None:
        """Pair the monotonic clock with the wall clock, once."""
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Return the time now, in seconds since the epoch."""
        return self._offset_s + time.monotonic()
