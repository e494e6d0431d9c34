"""How long tests wait for what must come.

No wait that succeeds proves how long something takes, since machines are shared and slow: a
bound is there only so that what never comes is told as a failure and not as a hanging run. So
bounds are wide, and the same everywhere. A wait that fails names the load of the machine, because
a machine that is too slow is the most frequent cause.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""For what one process does by itself."""
SERVICE_S = 400.0
"""For what several processes do together, starts of Java and of Ray's workers among it."""
LOAD_MAX = 4.0
"""Load per processor above which a wait says little about what was waited for."""


def vain_wait(what: str, waited_s: float, loads: tuple[float, float, float] | None = None) -> str:
    """Return the message of a wait that failed: what it was for, and the load of the machine.

    Args:
        what: What was waited for.
        waited_s: How long.
        loads: Load over 1, 5 and 15 minutes; that of the machine if left out.
    """
    processors = os.cpu_count() or 1
    now, five, fifteen = loads or os.getloadavg()
    load = (
        f"load {now:.1f}, {five:.1f} and {fifteen:.1f} over 1, 5 and 15 minutes on {processors} "
        "processors"
    )
    waited = f"waited {waited_s:.0f} s for {what}; {load}"
    if max(now, five) <= LOAD_MAX * processors:
        return waited
    return (
        f"{waited}: the machine is too slow for this test, which says nothing about the code. Run "
        f"it again at a load below {LOAD_MAX * processors:.0f}"
    )


def wait_until(
    holds: Callable[[], bool],
    what: str,
    *,
    wait_max_s: float,
    pause_s: float = 0.2,
    describe: Callable[[], str] = lambda: "",
) -> float:
    """Wait until something holds, and return the seconds that took.

    Raises:
        TimeoutError: It did not hold in time; the message has the load and the description.
    """
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > wait_max_s:
            raise TimeoutError(f"{vain_wait(what, wait_max_s)}\n{describe()}".rstrip())
        time.sleep(pause_s)
    return time.monotonic() - began
