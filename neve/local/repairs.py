"""Which parts of a stack to restart, and when. Pure: observations and times are arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from neve.local.logs import COORDINATOR, GATEWAY, RAY, REDIS

NEEDS: Mapping[str, tuple[str, ...]] = {
    REDIS: (),
    RAY: (),
    GATEWAY: (RAY,),
    COORDINATOR: (RAY, REDIS),
}
"""Part → the parts that must be healthy before it can start. Earlier parts are started first."""
SILENCE_MAX_S: Mapping[str, float] = {REDIS: 60.0, COORDINATOR: 120.0, GATEWAY: 120.0}
"""A part that is alive but does not answer for this long is ended and restarted."""
PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pause before the n-th start in a row; the last one repeats."""
WELL_S = 120.0
"""A part that has been healthy for this long starts over with the shortest pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSight:
    """Observed condition of a part."""

    ended: str = ""
    """Why the part has to be started; empty if its process is alive."""
    answers: bool | None = True
    """None: the part cannot be asked now."""


@dataclass(slots=True)
class _PartFailures:
    """Recent failures of a part."""

    since_s: float
    tries: int = 0
    next_s: float = 0.0
    well_s: float | None = None
    """When the part became healthy again; None if it is down."""
    error: str = ""


class RestartPauses:
    """When to retry the start of a part: at once, then with growing pauses."""

    def __init__(self) -> None:
        self._failures: dict[str, _PartFailures] = {}

    def may_try(self, part: str, now_s: float) -> bool:
        """Record that a part is down, and return whether it is time to start it."""
        failures = self._failures.setdefault(part, _PartFailures(since_s=now_s, next_s=now_s))
        if failures.well_s is not None:
            failures.since_s, failures.well_s = now_s, None
        return now_s >= failures.next_s

    def tried(self, part: str, now_s: float, error: str = "") -> None:
        """Record a finished try; the next try waits longer.

        Args:
            part: The part that was started.
            now_s: The time now.
            error: Why the start failed; empty if the part is up.
        """
        failures = self._failures[part]
        failures.tries += 1
        failures.error = error
        failures.next_s = now_s + PAUSES_S[min(failures.tries, len(PAUSES_S) - 1)]

    def well(self, part: str, now_s: float) -> None:
        """Record that a part is healthy; forget its failures after `WELL_S`."""
        failures = self._failures.get(part)
        if failures is None:
            return
        if failures.well_s is None:
            failures.well_s = now_s
        elif now_s - failures.well_s >= WELL_S:
            del self._failures[part]

    def notes(self, now_s: float) -> dict[str, str]:
        """Return a sentence for each part that is down."""
        return {
            part: f"down for {now_s - each.since_s:.0f} s, started {each.tries} times"
            + (f": {each.error}" if each.error else "")
            for part, each in self._failures.items()
            if each.well_s is None
        }


@dataclass(slots=True)
class Repairs:
    """Repairs in progress, and which repair is next. Each part has its own pauses."""

    silence_max_s: Mapping[str, float] = field(default_factory=lambda: SILENCE_MAX_S)
    pauses: RestartPauses = field(default_factory=RestartPauses)
    starting: set[str] = field(default_factory=set)
    """Parts that are being started."""
    _heard_s: dict[str, float] = field(default_factory=dict)
    """When each part last answered, or last could not be asked."""

    def due(self, sights: Mapping[str, PartSight], now_s: float) -> dict[str, str]:
        """Return the parts to start now, with reasons; they count as being started from now on.

        Args:
            sights: Observed condition of each part of the stack.
            now_s: The time now.
        """
        down = {part: why for part in sights if (why := self._why_down(part, sights[part], now_s))}
        unwell, due = down.keys() | self.starting, {}
        for part in [each for each in NEEDS if each in sights and each not in self.starting]:
            if unwell.intersection(NEEDS[part]):
                # It cannot be started, and another part may be the cause of its silence.
                self._heard_s[part] = now_s
            elif part not in down:
                if sights[part].answers:
                    self.pauses.well(part, now_s)
            elif self.pauses.may_try(part, now_s):
                due[part] = down[part]
        self.starting |= due.keys()
        return due

    def ended(self, part: str, now_s: float, error: str = "") -> None:
        """Record the end of a start.

        Args:
            part: The part that was started.
            now_s: The time now.
            error: Why the start failed; empty if the part is up.
        """
        self.starting.discard(part)
        self._heard_s[part] = now_s
        self.pauses.tried(part, now_s, error)

    def _why_down(self, part: str, sight: PartSight, now_s: float) -> str:
        """Return why a part has to be started; empty if it is healthy or may be."""
        if sight.ended:
            return sight.ended
        if sight.answers is not False or part in self.starting:
            self._heard_s[part] = now_s
            return ""
        silent_s = now_s - self._heard_s.setdefault(part, now_s)
        return f"no answer for {silent_s:.0f} s" if silent_s >= self.silence_max_s[part] else ""
