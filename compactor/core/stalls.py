"""Which attempts stand still: nothing was read, written or worked out for too long.

A process below the compactor may be frozen, or wait for something that never comes; nobody
is told. So the shell looks again and again, and an attempt without progress is given up.

Three things are no stall. An engine that is being started cannot do anything yet. Tasks that
wait for their part of a limit say so, and that counts as progress. And an attempt of which no
task runs may wait for a free core, as long as another attempt of the same engine moves on.

Only time that was spent looking counts: if the compactor itself was frozen, nobody is blamed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compactor.core.progress import AttemptState, Progress
from compactor.core.result import EngineHealth

LOOK_GAP_MAX_S = 3.0
"""More than that between two looks is time in which nobody looked."""
_ENGINE = ""
"""Key of the engine itself, beside those of attempts."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen last, and for how long it has been the same."""

    what: object
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Attempts to be given up, with the engine."""

    cause: str
    attempts: tuple[str, ...]
    """Those that stand still; others on the same engine are merely unlucky."""


class StallWatch:
    """Looks at an engine and its attempts from time to time."""

    def __init__(self, stall_s: float) -> None:
        """Have seen nothing yet.

        Args:
            stall_s: So long without progress is a stall; 0: nothing is.
        """
        self._stall_s = stall_s
        self._seen: dict[str, _Seen] = {}
        self._looked_s: float | None = None

    def quiet_s(self, attempt: str) -> float:
        """Return for how long an attempt has made no progress."""
        seen = self._seen.get(attempt)
        return 0.0 if seen is None else seen.quiet_s

    def look(self, held: Sequence[Progress], health: EngineHealth, now_s: float) -> Stall | None:
        """Return what has stood still for too long, or None.

        Args:
            held: The attempts that are not over.
            health: Of the engine.
            now_s: The time now.
        """
        gap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        watched = [each for each in held if each.state is not AttemptState.COMMITTING]
        now_seen = {each.attempt: each.work for each in watched} | {_ENGINE: health.signs}
        passed_s = gap_s if health.up and gap_s <= LOOK_GAP_MAX_S else 0.0
        self._seen = {key: self._aged(key, what, passed_s) for key, what in now_seen.items()}
        stall = self._found(watched, health) if self._stall_s and health.up else None
        if stall is not None:
            self._seen = {}
        return stall

    def _aged(self, key: str, what: object, passed_s: float) -> _Seen:
        seen = self._seen.get(key)
        if seen is None or seen.what != what:
            return _Seen(what)
        return replace(seen, quiet_s=seen.quiet_s + passed_s)

    def _found(self, watched: list[Progress], health: EngineHealth) -> Stall | None:
        if (silent_s := self.quiet_s(_ENGINE)) >= self._stall_s:
            cause = f"the Spark driver has given no sign of life for {silent_s:.0f} s"
            return Stall(cause=cause, attempts=tuple(each.attempt for each in watched))
        stalled = [each for each in watched if self._stands_still(each, watched, health)]
        if not stalled:
            return None
        said = ", ".join(f"{each.attempt} ({each.state})" for each in stalled)
        longest_s = max(self.quiet_s(each.attempt) for each in stalled)
        cause = f"no progress for {longest_s:.0f} s: {said}"
        return Stall(cause=cause, attempts=tuple(each.attempt for each in stalled))

    def _stands_still(self, each: Progress, watched: list[Progress], health: EngineHealth) -> bool:
        if self.quiet_s(each.attempt) < self._stall_s:
            return False
        if each.state is not AttemptState.REWRITING or each.attempt in health.busy:
            return True
        others = [other.attempt for other in watched if other.attempt != each.attempt]
        return all(self.quiet_s(other) >= self._stall_s for other in others)
