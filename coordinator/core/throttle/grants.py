"""The rate that each attempt may use, and its grant.

Lower before raise: a grant is lowered at once, and raised only by the rate that no attempt may be
using. The rate that an attempt *may* be using is the maximum of the rate in its last heartbeat and
the grants sent since.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from common.bounded_map import BoundedMap
from common.model.group import CONTROL_SCOPE, LimitScope, RateGrant, limit_scopes
from common.wire import AttemptProgress
from coordinator.core.limits import Limits
from coordinator.core.throttle.allocation import (
    UNLIMITED,
    RateClaim,
    ScopeLimits,
    max_min_shares,
)
from coordinator.core.throttle.throttled_attempts import ThrottledAttempt, ThrottledAttempts
from neve import api

HEADROOM = 0.02
"""Fraction of a limit that is reserved for attempts that start."""
BLIND_BYTES_S = 64 * 1024.0
"""Maximum initial rate of an attempt while the free rate is unknown."""
WANTED_MIN = 0.1
"""Fraction of an even share that is kept for an attempt that currently moves no bytes."""
CHANGE_MIN = 0.01
"""Relative change below which a grant stays unchanged."""
SCOPES_MAX = 1000


@dataclass(frozen=True, slots=True)
class MovedTotals:
    """Totals of a scope since the start of the coordinator."""

    moved_bytes: int = 0
    waited_s: float = 0.0


class Grants:
    """All attempts that may be moving bytes, and their grants.

    Invariant, except within one heartbeat after a limit was lowered: the rates that the attempts of
    a scope may be using do not exceed its limit in total.
    """

    def __init__(self, limits: Limits) -> None:
        self.scopes = ScopeLimits(limits)
        self._holders = ThrottledAttempts()
        self._targets: dict[str, float] = {}
        self._moved: BoundedMap[LimitScope, MovedTotals] = BoundedMap(SCOPES_MAX)

    def begin(
        self,
        attempt: str,
        compactor: str,
        scopes: tuple[LimitScope, ...],
        now_s: float,
        *,
        blind: bool,
    ) -> float | None:
        """Return the initial rate of an attempt that is being assigned; None means no limit.

        Args:
            attempt: The attempt; a repeated call returns the same rate.
            compactor: The compactor that runs it.
            scopes: Scopes whose limits apply to it.
            now_s: The current time.
            blind: Whether there are running attempts whose rates are unknown.
        """
        known = self._holders.get(attempt)
        if known is None:
            first = self._first(scopes, blind=blind)
            known = ThrottledAttempt(
                attempt=attempt,
                compactor=compactor,
                scopes=scopes,
                applied_bytes_s=first,
                may_bytes_s=first,
                heard_s=now_s,
            )
            self._holders.put(known)
        return _wire_rate(known.applied_bytes_s)

    def note_heartbeat(
        self,
        compactor: str,
        group: str,
        listed: Iterable[AttemptProgress],
        now_s: float,
        begins: Callable[[str], bool],
    ) -> None:
        """Record a heartbeat: the applied rate, moved bytes and waits of each attempt.

        Args:
            compactor: The sender.
            group: Its group.
            listed: All attempts that it runs.
            now_s: The current time.
            begins: Returns whether an unlisted attempt may be on its way to the compactor.
        """
        seen = {progress.attempt: progress for progress in listed}
        for progress in seen.values():
            self._note_progress(compactor, group, progress, now_s)
        for attempt in self._holders.of_compactor(compactor):
            if attempt not in seen and not begins(attempt):
                self.end(attempt)

    def answer(self, listed: Iterable[AttemptProgress]) -> tuple[RateGrant, ...]:
        """Return the grants of the attempts whose rate shall change."""
        grants = []
        for progress in listed:
            holder = self._holders.get(progress.attempt)
            grant = None if holder is None else self._next(holder)
            if holder is not None and grant is not None:
                self._holders.put(replace(holder, may_bytes_s=max(holder.may_bytes_s, grant)))
                grants.append(RateGrant(attempt=progress.attempt, bytes_s=_wire_rate(grant)))
        return tuple(grants)

    def report(self, attempt: str, moved_bytes: int, waited_s: float) -> None:
        """Record the final totals of an attempt, and end it."""
        holder = self._holders.get(attempt)
        if holder is not None:
            self._count(holder, moved_bytes, waited_s)
            self.end(attempt)

    def end(self, attempt: str) -> None:
        """Remove an attempt that no longer moves bytes; an unknown attempt is ignored."""
        self._holders.end(attempt)
        self._targets.pop(attempt, None)

    def lose(self, compactor: str) -> None:
        """Free the grants of a dead or silent compactor."""
        for attempt in self._holders.of_compactor(compactor):
            self.end(attempt)

    def divide(self, now_s: float) -> None:
        """Compute the target rate of each attempt; called regularly."""
        self.scopes.look(now_s)
        limits = {
            scope: rate * (1 - HEADROOM)
            for scope in self._holders.scopes()
            if (rate := self.scopes.rate(scope)) is not None
        }
        if not limits:
            self._targets = {}
            return
        even = {scope: rate / len(self._holders.of_scope(scope)) for scope, rate in limits.items()}
        claims: dict[str, RateClaim[LimitScope]] = {}
        for holder in self._holders:
            if under := tuple(scope for scope in holder.scopes if scope in limits):
                least = WANTED_MIN * min(even[scope] for scope in under)
                claims[holder.attempt] = RateClaim(under, max(holder.wanted_bytes_s, least))
        parts = max_min_shares(limits, claims)
        # The unclaimed rest is granted, too, so that an attempt can speed up without a delay.
        for name, part in parts.items():
            for scope in claims[name].scopes:
                limits[scope] -= part
        rest = max_min_shares(
            limits, {name: RateClaim(claim.scopes) for name, claim in claims.items()}
        )
        self._targets = {name: part + rest[name] for name, part in parts.items()}

    def holder(self, attempt: str) -> ThrottledAttempt | None:
        """Return the state of an attempt, or None."""
        return self._holders.get(attempt)

    def statuses(self) -> tuple[api.Limit, ...]:
        """Return the status of every scope that has an explicit limit, attempts or totals."""
        known = {*self._holders.scopes(), *self.scopes.explicit_scopes()}
        known |= {scope for scope, _ in self._moved}
        if self.scopes.limit(CONTROL_SCOPE) is None:
            known.discard(CONTROL_SCOPE)
        return tuple(self._status(scope) for scope in sorted(known))

    def check(self) -> None:
        """Assert the invariants of the attempts; for tests."""
        self._holders.check()

    def _status(self, scope: LimitScope) -> api.Limit:
        holders, moved = self._holders.of_scope(scope), self._moved.get(scope) or MovedTotals()
        return api.Limit(
            kind=scope.kind.value,
            name=scope.name,
            limit_bytes_s=self.scopes.limit(scope),
            is_default=self.scopes.is_default(scope),
            rate_bytes_s=self.scopes.rate(scope),
            granted_bytes_s=_wire_rate(self._holders.may_bytes_s(scope)),
            attempts=len(holders),
            throttled=sum(holder.throttled for holder in holders),
            moved_bytes=moved.moved_bytes,
            waited_s=moved.waited_s,
        )

    def _first(self, scopes: tuple[LimitScope, ...], *, blind: bool) -> float:
        rates = {each: rate for each in scopes if (rate := self.scopes.rate(each)) is not None}
        if not rates:
            return UNLIMITED
        members = {scope: len(self._holders.of_scope(scope)) for scope in rates}
        fair = min(rate * (1 - HEADROOM) / (1 + members[scope]) for scope, rate in rates.items())
        room = self._room(scopes)
        if blind or room <= 0:
            return min(fair, BLIND_BYTES_S)
        return fair if fair <= room else room / 2

    def _next(self, holder: ThrottledAttempt) -> float | None:
        """Return the new rate of an attempt, or None if its rate stays unchanged."""
        limited = any(self.scopes.rate(scope) is not None for scope in holder.scopes)
        target = self._targets.get(holder.attempt) if limited else UNLIMITED
        applied = holder.applied_bytes_s
        if target is None:  # The attempt or the limits are newer than the last division.
            target = applied if applied < UNLIMITED else self._first(holder.scopes, blind=False)
        if target > applied:
            room = self._room(holder.scopes, 1 - HEADROOM)
            target = min(target, applied + max(0.0, room))
        if target == applied or abs(target - applied) < CHANGE_MIN * min(target, applied):
            return None
        return target

    def _room(self, scopes: tuple[LimitScope, ...], share: float = 1.0) -> float:
        """Return the free rate of an attempt's scopes, using only a fraction of their limits."""
        rates = {each: rate for each in scopes if (rate := self.scopes.rate(each)) is not None}
        rooms = [share * rate - self._holders.may_bytes_s(scope) for scope, rate in rates.items()]
        return min(rooms, default=UNLIMITED)

    def _note_progress(
        self, compactor: str, group: str, progress: AttemptProgress, now_s: float
    ) -> None:
        before = self._holders.get(progress.attempt)
        if before is not None and before.compactor == compactor:
            self._count(before, progress.moved_bytes, progress.waited_s)
            size_bytes = progress.synced_bytes - before.synced_bytes
            for scope in before.scopes:
                self.scopes.synced(scope, size_bytes, progress.sync_s - before.sync_s)
        else:
            # Work from before the first heartbeat to this coordinator is not counted.
            before = ThrottledAttempt(
                attempt=progress.attempt,
                compactor=compactor,
                scopes=limit_scopes(group, progress.volume),
                applied_bytes_s=UNLIMITED,
                may_bytes_s=UNLIMITED,
                heard_s=now_s,
                moved_bytes=progress.moved_bytes,
                waited_s=progress.waited_s,
                synced_bytes=progress.synced_bytes,
                sync_s=progress.sync_s,
            )
        self._holders.put(before.after_heartbeat(progress, now_s))

    def _count(self, holder: ThrottledAttempt, moved_bytes: int, waited_s: float) -> None:
        for scope in holder.scopes:
            known = self._moved.get(scope) or MovedTotals()
            more = MovedTotals(
                known.moved_bytes + max(0, moved_bytes - holder.moved_bytes),
                known.waited_s + max(0.0, waited_s - holder.waited_s),
            )
            self._moved.put(scope, more)


def _wire_rate(bytes_s: float) -> float | None:
    return None if bytes_s == UNLIMITED else bytes_s
