"""Progress of a rewrite: reports of the engine, reports to the coordinator, and stalls.

An engine sends many small progress reports. The coordinator gets one that only grows. An attempt
whose numbers do not change for too long is given up. Values only: no clock, no I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from common.model.file import DataFile
from common.model.group import DEFAULT_VOLUME
from common.model.outcome import DroppedRows, RowCounts, Statistics
from common.wire import AttemptProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteProgress:
    """The engine's progress with one attempt."""

    fraction: float
    bytes_done: int = 0
    rows_done: int = 0
    state: str = "rewriting"
    moved_bytes: int = 0
    waited_s: float = 0.0
    synced_bytes: int = 0
    sync_s: float = 0.0
    steps: int = 0
    """Work that the other numbers do not show; only its growth matters."""

    def advanced(self, news: Self, bytes_max: int) -> Self:
        """Return the progress after a later or an older report; no number falls.

        Args:
            news: The report. Its state is handled by the caller, which knows the order of states.
            bytes_max: Size of the inputs, an upper bound.
        """
        return replace(
            self,
            fraction=max(self.fraction, min(news.fraction, 1.0)),
            bytes_done=max(self.bytes_done, min(news.bytes_done, bytes_max)),
            rows_done=max(self.rows_done, news.rows_done),
            moved_bytes=max(self.moved_bytes, news.moved_bytes),
            waited_s=max(self.waited_s, news.waited_s),
            synced_bytes=max(self.synced_bytes, news.synced_bytes),
            sync_s=max(self.sync_s, news.sync_s),
            steps=max(self.steps, news.steps),
        )


OnProgress = Callable[[RewriteProgress], None]
"""Called with the progress of a rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """An engine's signs of life."""

    up: bool
    """Whether it has started; a starting engine is not expected to make progress."""
    signs: int = 0
    """Life signs so far. A healthy engine gives one every few seconds."""
    busy: frozenset[str] = frozenset()
    """Attempts whose tasks ran at the last life sign; others wait for a free core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """The engine's result: verified outputs with their statistics."""

    outputs: tuple[DataFile, ...]
    counts: RowCounts
    dropped: DroppedRows | None = None
    kernel: str = ""
    timings_s: dict[str, float] = field(default_factory=dict)
    statistics: Statistics | None = None
    """Result of an analysis, which writes nothing."""


# -------------------------------------------------------------------------- Progress of one attempt


class AttemptPhase(StrEnum):
    """The phase of an attempt in heartbeats; an attempt only moves forward."""

    PREPARING = "preparing"
    REWRITING = "rewriting"
    VERIFYING = "verifying"
    COMMITTING = "committing"


_ORDER = tuple(AttemptPhase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of one attempt. Its numbers never fall, and no phase is repeated."""

    attempt: str
    bytes_total: int
    since_s: float
    state: AttemptPhase = AttemptPhase.PREPARING
    engine: RewriteProgress = RewriteProgress(fraction=0.0)
    """The engine's reports, without its state."""
    volume: str = DEFAULT_VOLUME
    granted_bytes_s: float | None = None
    """The only number that may fall. None: no limit."""

    @property
    def work(self) -> tuple[object, ...]:
        """All values that change while work is done, or while it waits for its part of a limit."""
        engine = self.engine
        done = (engine.bytes_done, engine.rows_done, engine.moved_bytes, engine.synced_bytes)
        return (self.state, engine.fraction, engine.waited_s, engine.steps, *done)

    def at(self, state: AttemptPhase) -> Self:
        """Return the progress in a later state; an earlier one changes nothing."""
        if _ORDER.index(state) <= _ORDER.index(self.state):
            return self
        return replace(self, state=state)

    def advanced(self, news: RewriteProgress) -> Self:
        """Return the progress after a report of the engine, which may be late."""
        is_known = news.state in set(_ORDER[:-1])
        moved = self.at(AttemptPhase(news.state)) if is_known else self
        return replace(moved, engine=self.engine.advanced(news, self.bytes_total))

    def message(self, quiet_s: float = 0.0) -> AttemptProgress:
        """Return the progress in the form of a heartbeat.

        Args:
            quiet_s: Time without progress.
        """
        engine = self.engine
        return AttemptProgress(
            attempt=self.attempt,
            state=self.state.value,
            fraction=engine.fraction,
            bytes_done=engine.bytes_done,
            bytes_total=self.bytes_total,
            rows_done=engine.rows_done,
            since_s=self.since_s,
            volume=self.volume,
            granted_bytes_s=self.granted_bytes_s,
            moved_bytes=engine.moved_bytes,
            waited_s=engine.waited_s,
            synced_bytes=engine.synced_bytes,
            sync_s=engine.sync_s,
            quiet_s=quiet_s,
        )


# --------------------------------------------------------------------------------- Stalled attempts


CHECK_GAP_MAX_S = 3.0
"""A longer gap between two checks does not count as time without progress."""
_ENGINE_KEY = ""
"""Key of the engine itself, in addition to those of attempts."""


@dataclass(frozen=True, slots=True)
class _Observation:
    """The last observed value, and the time for which it has not changed."""

    what: object
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Attempts to give up, together with the engine."""

    cause: str
    attempts: tuple[str, ...]
    """The stalled ones; other attempts on the same engine are affected without fault."""


class StallWatch:
    """Checks an engine and its attempts at intervals."""

    def __init__(self, stall_s: float) -> None:
        """Create a watch without observations.

        Args:
            stall_s: Time without progress that counts as a stall; 0: never.
        """
        self._stall_s = stall_s
        self._seen: dict[str, _Observation] = {}
        self._looked_s: float | None = None

    def quiet_s(self, attempt: str) -> float:
        """Return how long an attempt has made no progress."""
        seen = self._seen.get(attempt)
        return 0.0 if seen is None else seen.quiet_s

    def look(self, held: Sequence[Progress], health: EngineHealth, now_s: float) -> Stall | None:
        """Return what has stalled, or None.

        Args:
            held: The attempts that are not over.
            health: Health of the engine.
            now_s: The time now.
        """
        gap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        watched = [progress for progress in held if progress.state is not AttemptPhase.COMMITTING]
        now_seen = {progress.attempt: progress.work for progress in watched} | {
            _ENGINE_KEY: health.signs
        }
        passed_s = gap_s if health.up and gap_s <= CHECK_GAP_MAX_S else 0.0
        self._seen = {key: self._aged(key, what, passed_s) for key, what in now_seen.items()}
        stall = self._found(watched, health) if self._stall_s and health.up else None
        if stall is not None:
            self._seen = {}
        return stall

    def _aged(self, key: str, what: object, passed_s: float) -> _Observation:
        seen = self._seen.get(key)
        if seen is None or seen.what != what:
            return _Observation(what)
        return replace(seen, quiet_s=seen.quiet_s + passed_s)

    def _found(self, watched: list[Progress], health: EngineHealth) -> Stall | None:
        if (silent_s := self.quiet_s(_ENGINE_KEY)) >= self._stall_s:
            cause = f"the Spark driver has sent no life sign for {silent_s:.0f} s"
            return Stall(cause=cause, attempts=tuple(progress.attempt for progress in watched))
        stalled = [
            progress for progress in watched if self._stands_still(progress, watched, health)
        ]
        if not stalled:
            return None
        listing = ", ".join(f"{progress.attempt} ({progress.state})" for progress in stalled)
        longest_s = max(self.quiet_s(progress.attempt) for progress in stalled)
        cause = f"no progress for {longest_s:.0f} s: {listing}"
        return Stall(cause=cause, attempts=tuple(progress.attempt for progress in stalled))

    def _stands_still(self, each: Progress, watched: list[Progress], health: EngineHealth) -> bool:
        if self.quiet_s(each.attempt) < self._stall_s:
            return False
        if each.state is not AttemptPhase.REWRITING or each.attempt in health.busy:
            return True
        others = [other.attempt for other in watched if other.attempt != each.attempt]
        return all(self.quiet_s(other) >= self._stall_s for other in others)
