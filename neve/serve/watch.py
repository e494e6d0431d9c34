"""How the actors of a service are, seen from outside, and what follows from it. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

GONE_ACTION_PAUSE_S = 10.0
"""An actor that does not start is tried again so often."""
SILENCE_MAX_S = 60.0
"""An actor that has not answered for this time is ended, so that Ray starts it again."""


class ServeStep(StrEnum):
    """What `neve serve` says that it does; text and JSON have the same names."""

    NOTE = "note"
    """Something is odd, and ought to be looked at."""
    WAITS = "waits"
    JOINED = "joined"
    """It is part of the Ray cluster."""
    REPLACES = "replaces"
    """An actor of other settings or another release is ended."""
    STARTED = "started"
    ANSWERS = "answers"
    """The service does; the rest of the line says where."""
    DRAINS = "drains"
    """Compactors end their jobs."""
    ENDED = "ended"
    """The whole service is."""


class News:
    """Sentences that hold for a while: each is news once, until it has not held."""

    def __init__(self) -> None:
        """Know of none."""
        self._told: frozenset[str] = frozenset()

    def of(self, sentences: Iterable[str]) -> tuple[str, ...]:
        """Return those that did not hold before. Only other numbers are no news."""
        found = {re.sub(r"[\d,.]+", "#", sentence): sentence for sentence in sentences}
        fresh = tuple(each for key, each in found.items() if key not in self._told)
        self._told = frozenset(found)
        return fresh


class Sight(StrEnum):
    """What one look at an actor shows."""

    ANSWERS = "answers"
    SILENT = "silent"
    """It exists and does not answer: it starts, waits for a node, or hangs."""
    WAITS = "waits"
    """Ray has not placed it anywhere yet."""
    GONE = "gone"
    """Nobody has such a name: it was ended for good, or never started."""


class Remedy(StrEnum):
    """What to do about an actor that does not answer."""

    NOTHING = "nothing"
    START = "start"
    RESTART = "restart"
    """End its process. Ray starts it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWatch:
    """What is remembered of one actor between two looks."""

    part: str
    answers: bool = False
    heard_s: float | None = None
    """When it last answered, was started, or was restarted; None: not looked at yet."""
    acted_s: float | None = None
    """When it was last started."""
    restarts: int = 0
    """How often it was restarted because of silence."""

    def silent_s(self, now_s: float) -> float:
        """Return for how long it has not answered."""
        return 0.0 if self.answers or self.heard_s is None else max(0.0, now_s - self.heard_s)

    def seen(self, sight: Sight, now_s: float) -> "tuple[PartWatch, Remedy]":
        """Return what is remembered after a look, and what to do.

        Args:
            sight: What the look has shown.
            now_s: The time now, of a clock that never goes back.
        """
        since_s = now_s if self.heard_s is None else self.heard_s
        if sight in (Sight.ANSWERS, Sight.WAITS):
            # A restart does not help who waits for a node.
            return replace(self, answers=sight is Sight.ANSWERS, heard_s=now_s), Remedy.NOTHING
        watched = replace(self, answers=False, heard_s=since_s)
        if sight is Sight.GONE:
            if self.acted_s is not None and now_s - self.acted_s < GONE_ACTION_PAUSE_S:
                return watched, Remedy.NOTHING
            return replace(watched, heard_s=now_s, acted_s=now_s), Remedy.START
        if now_s - since_s < SILENCE_MAX_S:
            return watched, Remedy.NOTHING
        return replace(watched, heard_s=now_s, restarts=self.restarts + 1), Remedy.RESTART
