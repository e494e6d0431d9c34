"""Progress of an attempt: many small reports in, one that only grows out."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from common.model.group import DEFAULT_VOLUME
from common.wire import AttemptProgress
from compactor.core.result import RewriteProgress


class AttemptState(StrEnum):
    """Where an attempt is, as heartbeats tell it; an attempt only moves forward."""

    PREPARING = "preparing"
    REWRITING = "rewriting"
    VERIFYING = "verifying"
    COMMITTING = "committing"


_ORDER = tuple(AttemptState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one attempt is. What it has done never falls, and no state is left twice."""

    attempt: str
    bytes_total: int
    since_s: float
    state: AttemptState = AttemptState.PREPARING
    fraction: float = 0.0
    bytes_done: int = 0
    rows_done: int = 0
    volume: str = DEFAULT_VOLUME
    granted_bytes_s: float | None = None
    """The only number that may fall. None: no limit."""
    moved_bytes: int = 0
    waited_s: float = 0.0
    synced_bytes: int = 0
    sync_s: float = 0.0
    steps: int = 0

    @property
    def work(self) -> tuple[object, ...]:
        """Everything that changes while something is done, or waits for its part of a limit."""
        done = (self.bytes_done, self.rows_done, self.moved_bytes, self.synced_bytes, self.steps)
        return (self.state, self.fraction, self.waited_s, *done)

    def at(self, state: AttemptState) -> Self:
        """Return the progress in a later state; an earlier one changes nothing."""
        if _ORDER.index(state) <= _ORDER.index(self.state):
            return self
        return replace(self, state=state)

    def advanced(self, news: RewriteProgress) -> Self:
        """Return the progress after what the engine told, stragglers included."""
        known = news.state in set(_ORDER[:-1])
        moved = self.at(AttemptState(news.state)) if known else self
        return replace(
            moved,
            fraction=max(self.fraction, min(news.fraction, 1.0)),
            bytes_done=max(self.bytes_done, min(news.bytes_done, self.bytes_total)),
            rows_done=max(self.rows_done, news.rows_done),
            moved_bytes=max(self.moved_bytes, news.moved_bytes),
            waited_s=max(self.waited_s, news.waited_s),
            synced_bytes=max(self.synced_bytes, news.synced_bytes),
            sync_s=max(self.sync_s, news.sync_s),
            steps=max(self.steps, news.steps),
        )

    def message(self, quiet_s: float = 0.0) -> AttemptProgress:
        """Return the progress as a heartbeat carries it.

        Args:
            quiet_s: For how long there was none.
        """
        return AttemptProgress(
            attempt=self.attempt,
            state=self.state.value,
            fraction=self.fraction,
            bytes_done=self.bytes_done,
            bytes_total=self.bytes_total,
            rows_done=self.rows_done,
            since_s=self.since_s,
            volume=self.volume,
            granted_bytes_s=self.granted_bytes_s,
            moved_bytes=self.moved_bytes,
            waited_s=self.waited_s,
            synced_bytes=self.synced_bytes,
            sync_s=self.sync_s,
            quiet_s=quiet_s,
        )
