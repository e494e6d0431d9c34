"""The attempts that may be moving bytes, indexed by compactor and by scope. State only."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isclose

from common.indexes import remove_from_index
from common.model.group import LimitScope
from common.wire import AttemptProgress
from coordinator.core.throttle.allocation import UNLIMITED

WANTED_GROWTH = 1.5
"""Factor on the measured rate that an attempt without waits claims."""
WAITED_SHARE = 0.05
"""Fraction of waiting time above which an attempt claims an unlimited rate."""
INTERVAL_S_MIN = 0.2
"""Minimum interval between heartbeats for a rate to be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottledAttempt:
    """An attempt that moves bytes or is about to."""

    attempt: str
    compactor: str
    scopes: tuple[LimitScope, ...]
    applied_bytes_s: float
    """Rate that its compactor applies, from its last heartbeat."""
    may_bytes_s: float
    """Maximum rate that its compactor may be applying; at least `applied_bytes_s`."""
    heard_s: float
    wanted_bytes_s: float = UNLIMITED
    moved_bytes: int = 0
    waited_s: float = 0.0
    synced_bytes: int = 0
    sync_s: float = 0.0
    throttled: bool = False
    """Whether it had to wait recently."""

    def after_heartbeat(self, progress: AttemptProgress, now_s: float) -> "ThrottledAttempt":
        """Return the attempt after a heartbeat that lists it; its totals never decrease."""
        applied = UNLIMITED if progress.granted_bytes_s is None else progress.granted_bytes_s
        after = replace(
            self,
            applied_bytes_s=applied,
            may_bytes_s=applied,
            moved_bytes=max(self.moved_bytes, progress.moved_bytes),
            waited_s=max(self.waited_s, progress.waited_s),
            synced_bytes=max(self.synced_bytes, progress.synced_bytes),
            sync_s=max(self.sync_s, progress.sync_s),
        )
        passed_s = now_s - self.heard_s
        if passed_s < INTERVAL_S_MIN:
            return after
        throttled = after.waited_s - self.waited_s > WAITED_SHARE * passed_s
        moved_bytes_s = (after.moved_bytes - self.moved_bytes) / passed_s
        wanted = UNLIMITED if throttled else WANTED_GROWTH * moved_bytes_s
        return replace(after, heard_s=now_s, throttled=throttled, wanted_bytes_s=wanted)


class ThrottledAttempts:
    """Attempts with indexes by compactor and by scope.

    Invariant: the indexes and the sums cover the same attempts.
    """

    def __init__(self) -> None:
        self._holders: dict[str, ThrottledAttempt] = {}
        self._by_compactor: dict[str, dict[str, None]] = {}
        self._by_scope: dict[LimitScope, dict[str, None]] = {}
        self._sums: dict[LimitScope, float] = {}
        """Scope → total rate that its attempts with a limit may be applying."""
        self._unlimited: Counter[LimitScope] = Counter()
        """Scope → number of attempts that may be running without a limit."""

    def __iter__(self) -> Iterator[ThrottledAttempt]:
        return iter(self._holders.values())

    def get(self, attempt: str) -> ThrottledAttempt | None:
        """Return an attempt, or None."""
        return self._holders.get(attempt)

    def scopes(self) -> list[LimitScope]:
        """Return the scopes with attempts."""
        return list(self._by_scope)

    def of_compactor(self, compactor: str) -> list[str]:
        """Return the ids of a compactor's attempts."""
        return list(self._by_compactor.get(compactor, {}))

    def of_scope(self, scope: LimitScope) -> list[ThrottledAttempt]:
        """Return the attempts of a scope."""
        return [self._holders[each] for each in self._by_scope.get(scope, {})]

    def may_bytes_s(self, scope: LimitScope) -> float:
        """Return the total rate that the attempts of a scope may be applying."""
        return UNLIMITED if self._unlimited[scope] else self._sums.get(scope, 0.0)

    def put(self, holder: ThrottledAttempt) -> None:
        """Add or update an attempt."""
        before = self._holders.get(holder.attempt)
        if before is not None and _is_counted_alike(before, holder):
            self._holders[holder.attempt] = holder
            return
        self.end(holder.attempt)
        self._holders[holder.attempt] = holder
        self._by_compactor.setdefault(holder.compactor, {})[holder.attempt] = None
        for scope in holder.scopes:
            self._by_scope.setdefault(scope, {})[holder.attempt] = None
            self._add(scope, holder.may_bytes_s, 1)

    def end(self, attempt: str) -> None:
        """Remove an attempt; an unknown attempt is ignored."""
        holder = self._holders.pop(attempt, None)
        if holder is None:
            return
        remove_from_index(self._by_compactor, holder.compactor, attempt)
        for scope in holder.scopes:
            remove_from_index(self._by_scope, scope, attempt)
            self._add(scope, holder.may_bytes_s, -1)
            if scope not in self._by_scope:  # Only a rounding error is left.
                del self._sums[scope], self._unlimited[scope]

    def _add(self, scope: LimitScope, may_bytes_s: float, times: int) -> None:
        finite = may_bytes_s < UNLIMITED
        self._sums[scope] = self._sums.get(scope, 0.0) + (times * may_bytes_s if finite else 0.0)
        self._unlimited[scope] += 0 if finite else times

    def check(self) -> None:
        """Assert the invariants of the indexes; for tests."""
        listed = [member for members in self._by_compactor.values() for member in members]
        assert sorted(listed) == sorted(self._holders)
        for scope, members in self._by_scope.items():
            assert members
            assert all(scope in self._holders[member].scopes for member in members)
            total = sum(attempt.may_bytes_s for attempt in self.of_scope(scope))
            assert isclose(self.may_bytes_s(scope), total, abs_tol=1.0), (scope, total)
        for holder in self:
            assert all(holder.attempt in self._by_scope[scope] for scope in holder.scopes)
            assert holder.may_bytes_s >= holder.applied_bytes_s


def _is_counted_alike(before: ThrottledAttempt, after: ThrottledAttempt) -> bool:
    """Return whether indexes and sums stay unchanged, as for most heartbeats."""
    return (
        before.may_bytes_s == after.may_bytes_s
        and before.compactor == after.compactor
        and before.scopes == after.scopes
    )
