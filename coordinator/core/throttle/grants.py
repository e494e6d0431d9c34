"""Who may move how many bytes per second, and the grant of each attempt.

Lower first: a grant is lowered at once, and raised only by what nobody may be applying.
What an attempt *may* be applying is what its last heartbeat said, or what it was sent
since, whichever is more.
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
"""Of a limit: left for attempts that begin."""
BLIND_BYTES_S = 64 * 1024.0
"""The most that an attempt begins with while it is not known what is free."""
WANTED_MIN = 0.1
"""Of an even part: so much is kept for an attempt that moves nothing now."""
CHANGE_MIN = 0.01
"""A grant that would change by less stays as it is."""
SCOPES_MAX = 1000


@dataclass(frozen=True, slots=True)
class MovedTotals:
    """Totals of a scope since the coordinator was started."""

    moved_bytes: int = 0
    waited_s: float = 0.0


class Grants:
    """All attempts that may be moving bytes, and what they may move.

    Always true, unless a limit was lowered less than a heartbeat ago: what the attempts
    of a scope may be applying adds up to no more than its limit.
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
        """Return what an attempt that is handed out now begins with; None: no limit.

        Args:
            attempt: Asked again, it gets the same answer.
            compactor: Who runs it.
            scopes: That it is under.
            now_s: The time now.
            blind: Whether attempts run of which nobody knows what they apply.
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
        """Note a heartbeat: what each attempt applies, has moved, and waited for.

        Args:
            compactor: Whose.
            group: Of the compactor.
            listed: All that it holds.
            now_s: The time now.
            begins: Whether an attempt that is not listed may be on its way to the compactor.
        """
        seen = {progress.attempt: progress for progress in listed}
        for progress in seen.values():
            self._note_progress(compactor, group, progress, now_s)
        for attempt in self._holders.of_compactor(compactor):
            if attempt not in seen and not begins(attempt):
                self.end(attempt)

    def answer(self, listed: Iterable[AttemptProgress]) -> tuple[RateGrant, ...]:
        """Return the grants of attempts that shall apply others than they do."""
        grants = []
        for progress in listed:
            holder = self._holders.get(progress.attempt)
            grant = None if holder is None else self._next(holder)
            if holder is not None and grant is not None:
                self._holders.put(replace(holder, may_bytes_s=max(holder.may_bytes_s, grant)))
                grants.append(RateGrant(attempt=progress.attempt, bytes_s=_wire_rate(grant)))
        return tuple(grants)

    def report(self, attempt: str, moved_bytes: int, waited_s: float) -> None:
        """Note how much an attempt has moved in all, and that it moves nothing any more."""
        holder = self._holders.get(attempt)
        if holder is not None:
            self._count(holder, moved_bytes, waited_s)
            self.end(attempt)

    def end(self, attempt: str) -> None:
        """An attempt moves nothing any more; an unknown one changes nothing."""
        self._holders.end(attempt)
        self._targets.pop(attempt, None)

    def lose(self, compactor: str) -> None:
        """A compactor is dead or silent: what its attempts had is free."""
        for attempt in self._holders.of_compactor(compactor):
            self.end(attempt)

    def divide(self, now_s: float) -> None:
        """Work out who should have how much; called every now and then."""
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
        # What nobody wants now is given all the same: whoever wants it soon need not wait.
        for name, part in parts.items():
            for scope in claims[name].scopes:
                limits[scope] -= part
        rest = max_min_shares(
            limits, {name: RateClaim(claim.scopes) for name, claim in claims.items()}
        )
        self._targets = {name: part + rest[name] for name, part in parts.items()}

    def holder(self, attempt: str) -> ThrottledAttempt | None:
        """Return what is known of an attempt, or None."""
        return self._holders.get(attempt)

    def statuses(self) -> tuple[api.Limit, ...]:
        """Return every scope that has a limit of its own, or under which something moves."""
        known = {*self._holders.scopes(), *self.scopes.explicit_scopes()}
        known |= {scope for scope, _ in self._moved}
        if self.scopes.limit(CONTROL_SCOPE) is None:
            known.discard(CONTROL_SCOPE)
        return tuple(self._status(scope) for scope in sorted(known))

    def check(self) -> None:
        """Assert what is always true of the attempts; for tests."""
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
        """Return what an attempt shall apply; None: what it does already."""
        limited = any(self.scopes.rate(scope) is not None for scope in holder.scopes)
        target = self._targets.get(holder.attempt) if limited else UNLIMITED
        applied = holder.applied_bytes_s
        if target is None:  # It came since the limits were divided, or they did.
            target = applied if applied < UNLIMITED else self._first(holder.scopes, blind=False)
        if target > applied:
            room = self._room(holder.scopes, 1 - HEADROOM)
            target = min(target, applied + max(0.0, room))
        if target == applied or abs(target - applied) < CHANGE_MIN * min(target, applied):
            return None
        return target

    def _room(self, scopes: tuple[LimitScope, ...], share: float = 1.0) -> float:
        """Return how much of a share of its limits an attempt may still be given."""
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
            # What it did before we knew of it is not ours to count.
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
