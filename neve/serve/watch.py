"""The condition of a service's actors as seen from outside, and the remedies. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

GONE_ACTION_PAUSE_S = 10.0
"""Shortest interval between two starts of an actor."""
SILENCE_MAX_S = 60.0
"""An actor that has not answered for this time is ended, so that Ray restarts it."""


class ServeStep(StrEnum):
    """Steps that `neve serve` reports; text and JSON output use the same names."""

    NOTE = "note"
    """Something needs the operator's attention."""
    WAITS = "waits"
    JOINED = "joined"
    """The process has joined the Ray cluster."""
    REPLACES = "replaces"
    """An actor with other settings or of another release is ended."""
    STARTED = "started"
    ANSWERS = "answers"
    """The service answers; the line continues with its address."""
    DRAINS = "drains"
    """Compactors end their jobs."""
    ENDED = "ended"
    """The whole service has ended."""


class News:
    """Filters repeated sentences: a sentence is new if the previous call did not include it."""

    def __init__(self) -> None:
        """Start without sentences."""
        self._reported: frozenset[str] = frozenset()

    def of(self, sentences: Iterable[str]) -> tuple[str, ...]:
        """Return the new sentences. A sentence that differs only in numbers is not new."""
        by_shape = {re.sub(r"[\d,.]+", "#", sentence): sentence for sentence in sentences}
        fresh = tuple(sentence for key, sentence in by_shape.items() if key not in self._reported)
        self._reported = frozenset(by_shape)
        return fresh


class Sight(StrEnum):
    """Observed condition of an actor."""

    ANSWERS = "answers"
    SILENT = "silent"
    """The actor exists but does not answer: it is starting, waits for a node, or hangs."""
    WAITS = "waits"
    """The actor waits for a node; Ray has not scheduled it."""
    GONE = "gone"
    """No actor has this name: it was ended permanently, or never started."""


class Remedy(StrEnum):
    """What to do about an actor that does not answer."""

    NOTHING = "nothing"
    START = "start"
    RESTART = "restart"
    """End its process; Ray restarts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWatch:
    """State of one actor between two observations."""

    part: str
    answers: bool = False
    heard_s: float | None = None
    """When it last answered, was started or restarted; None before the first observation."""
    acted_s: float | None = None
    """When it was last started."""
    restarts: int = 0
    """How often it was restarted because of silence."""

    def silent_s(self, now_s: float) -> float:
        """Return how long the actor has not answered, in seconds."""
        return 0.0 if self.answers or self.heard_s is None else max(0.0, now_s - self.heard_s)

    def seen(self, sight: Sight, now_s: float) -> "tuple[PartWatch, Remedy]":
        """Return the state after an observation, and the remedy.

        Args:
            sight: The observed condition.
            now_s: The time now, from a monotonic clock.
        """
        since_s = now_s if self.heard_s is None else self.heard_s
        if sight in (Sight.ANSWERS, Sight.WAITS):
            # A restart does not help an actor that waits for a node.
            return replace(self, answers=sight is Sight.ANSWERS, heard_s=now_s), Remedy.NOTHING
        watched = replace(self, answers=False, heard_s=since_s)
        if sight is Sight.GONE:
            if self.acted_s is not None and now_s - self.acted_s < GONE_ACTION_PAUSE_S:
                return watched, Remedy.NOTHING
            return replace(watched, heard_s=now_s, acted_s=now_s), Remedy.START
        if now_s - since_s < SILENCE_MAX_S:
            return watched, Remedy.NOTHING
        return replace(watched, heard_s=now_s, restarts=self.restarts + 1), Remedy.RESTART
