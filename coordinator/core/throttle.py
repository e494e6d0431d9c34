"""The rate that each attempt may use, and its grant.

Lower before raise: a grant is lowered at once, and raised only by the rate that no attempt may be
using. The rate that an attempt *may* be using is the maximum of the rate in its last heartbeat and
the grants sent since.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isclose
from typing import Generic, Self, TypeVar

from common.model.group import CONTROL_SCOPE, LimitScope, LimitScopeKind, RateGrant, limit_scopes
from common.primitives import BoundedMap, remove_from_index
from common.wire import AttemptProgress, VolumeUse
from coordinator.core.limits import Limits
from neve import api

# --------------------------------------------------------------------------------------- Allocation
# The rate limit of each scope, and its division between attempts. Pure.
#
# * `max_min_shares` divides limits max-min fairly: no claim can get more without taking from a
#   claim that gets less. A claim below the fair share gets what it wants, and the others divide the
#   rest.
# * `AdaptiveRate` adapts the rate of a volume to the latency of its storage, as in Ambry:
#
#       latency ≤ threshold    the greatest rate
#       else                   least + (greatest - least) · threshold / latency
#
#   The rate falls at once and rises in steps, so that one fast operation does not undo the effect
#   of many slow ones.
# * `ScopeLimits` has the limit of each scope: explicit, default, or adapted to latency.


# --------------------------------------------------------------------------------- Max-min fairness


ScopeKey = TypeVar("ScopeKey")
UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True)
class RateClaim(Generic[ScopeKey]):
    """The rate that one attempt wants, and the scopes whose limits apply to it."""

    scopes: tuple[ScopeKey, ...]
    wanted_bytes_s: float = UNLIMITED


def max_min_shares(
    limits: Mapping[ScopeKey, float], claims: Mapping[str, RateClaim[ScopeKey]]
) -> dict[str, float]:
    """Return the share of each claim, in bytes/s; infinite if no limit applies.

    The shares of a scope never exceed its limit in total. The result has the order of the claims
    and depends on the arguments only.

    Args:
        limits: Scope → bytes/s; a missing scope has no limit.
        claims: Claims by a name that the caller chooses.
    """
    parts: dict[str, float] = {}
    room = dict(limits)
    members: dict[ScopeKey, dict[str, None]] = {scope: {} for scope in limits}
    for name, claim in claims.items():
        for scope in claim.scopes:
            if scope in members:
                members[scope][name] = None
    while open_scopes := [scope for scope, inside in members.items() if inside]:
        tightest = min(open_scopes, key=lambda scope: room[scope] / len(members[scope]))
        fair = max(0.0, room[tightest] / len(members[tightest]))
        inside = list(members[tightest])
        modest = [name for name in inside if claims[name].wanted_bytes_s < fair]
        for name in modest or inside:
            parts[name] = min(claims[name].wanted_bytes_s, fair)
            _settle_claim(name, parts[name], claims[name].scopes, room, members)
    return {name: parts.get(name, UNLIMITED) for name in claims}


def _settle_claim(
    name: str,
    part: float,
    scopes: Iterable[ScopeKey],
    room: dict[ScopeKey, float],
    members: dict[ScopeKey, dict[str, None]],
) -> None:
    for scope in scopes:
        if scope in members and name in members[scope]:
            del members[scope][name]
            room[scope] -= part


# --------------------------------------------------------------------------------- Adaptive rates


RISE_STEPS = 10
"""Number of measurements in which a rate rises from the least to the greatest."""


def desired_rate(
    latency: float, least: int, greatest: int, threshold: float, steepness: float = 1.0
) -> int:
    """Return the rate that a latency allows.

    Args:
        latency: Measured latency, in any unit.
        least: The lowest rate; if it is not below `greatest`, the rate does not adapt.
        greatest: The highest rate.
        threshold: Latency up to which the greatest rate is allowed, in the same unit.
        steepness: Ambry's `k`; above 1 the curve jumps at the threshold.
    """
    if least >= greatest or latency <= threshold:
        return greatest
    wanted = int(least + (greatest - least) * threshold / latency / steepness)
    return min(max(wanted, least), greatest)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRate:
    """A rate between two bounds that adapts to latency.

    Invariant: `least` ≤ `rate` ≤ `greatest`, unless `greatest` is below `least`.
    """

    least: int
    greatest: int
    threshold: float
    rate: int

    @classmethod
    def begin(cls, least: int, greatest: int, threshold: float) -> Self:
        """Create a rate that starts at its greatest value, because no latency is known."""
        return cls(least=least, greatest=greatest, threshold=threshold, rate=greatest)

    def bounded(self, greatest: int) -> Self:
        """Return the rate with another upper bound."""
        if greatest == self.greatest:
            return self
        rate = greatest if self.rate == self.greatest else min(self.rate, greatest)
        return replace(self, greatest=greatest, rate=max(rate, min(self.least, greatest)))

    def after_look(self, latency: float | None) -> Self:
        """Return the rate after a measurement; None means no measurement, so the rate may rise."""
        wanted = self.greatest
        if latency is not None:
            wanted = desired_rate(latency, self.least, self.greatest, self.threshold)
        step = max(1, (self.greatest - self.least) // RISE_STEPS)
        return replace(self, rate=min(wanted, self.rate + step))


# -------------------------------------------------------------------------- The limit of each scope


LATENCY_INTERVAL_S = 2.0
"""Interval between adaptations of rates; new measurements arrive with heartbeats only."""
MIB = 1024**2


class ScopeLimits:
    """Limits by scope, in bytes/s. Explicit limits are replaced as a whole set."""

    def __init__(self, limits: Limits) -> None:
        self._explicit: dict[LimitScope, int] = {}
        self._defaults = {
            LimitScopeKind.GROUP: limits.group_limit_bytes_s,
            LimitScopeKind.VOLUME: limits.volume_limit_bytes_s,
            LimitScopeKind.CONTROL: 0,
        }
        self._least = limits.volume_least_bytes_s
        self._threshold_s = limits.volume_latency_s
        self._rates: dict[LimitScope, AdaptiveRate] = {}
        self._synced: dict[LimitScope, tuple[int, float]] = {}
        self._looked_s = 0.0

    def set_explicit(self, limits: Mapping[LimitScope, int]) -> None:
        """Replace the explicit limits; 0 means no limit. Other scopes have the default."""
        self._explicit = dict(limits)

    def set_control(self, bytes_s: float | None) -> None:
        """Set the limit of all attempts of the service together; None means no limit."""
        self._defaults[LimitScopeKind.CONTROL] = 0 if bytes_s is None else max(1, round(bytes_s))

    def explicit_scopes(self) -> list[LimitScope]:
        """Return the scopes that have an explicit limit, sorted."""
        return sorted(self._explicit)

    def is_default(self, scope: LimitScope) -> bool:
        """Return whether a scope has no explicit limit."""
        return scope not in self._explicit

    def limit(self, scope: LimitScope) -> int | None:
        """Return the explicit or default limit of a scope; None means no limit."""
        return self._explicit.get(scope, self._defaults[scope.kind]) or None

    def rate(self, scope: LimitScope) -> int | None:
        """Return the current rate of a scope, adapted to latency; None means no limit."""
        limit = self.limit(scope)
        if limit is None or not self._adapts(scope):
            return limit
        adapted = self._rates.get(scope)
        return limit if adapted is None else adapted.bounded(limit).rate

    def synced(self, scope: LimitScope, size_bytes: int, took_s: float) -> None:
        """Record how long a volume took to sync a number of bytes."""
        if size_bytes > 0 and self._adapts(scope):
            known_bytes, known_s = self._synced.get(scope, (0, 0.0))
            self._synced[scope] = (known_bytes + size_bytes, known_s + took_s)
            limit = self.limit(scope)
            if scope not in self._rates and limit is not None:
                self._rates[scope] = AdaptiveRate.begin(self._least, limit, self._threshold_s)

    def look(self, now_s: float) -> None:
        """Adapt the rates to the measurements since the last look."""
        if now_s - self._looked_s < LATENCY_INTERVAL_S:
            return
        self._looked_s = now_s
        for scope, rate in list(self._rates.items()):
            limit = self.limit(scope)
            size_bytes, took_s = self._synced.pop(scope, (0, 0.0))
            if limit is None:
                del self._rates[scope]
                continue
            latency_s = took_s / (size_bytes / MIB) if size_bytes else None
            self._rates[scope] = rate.bounded(limit).after_look(latency_s)
            if latency_s is None and self._rates[scope].rate == limit:
                del self._rates[scope]

    def _adapts(self, scope: LimitScope) -> bool:
        return scope.kind is LimitScopeKind.VOLUME and self._least > 0


# ------------------------------------------------------------------------------- Throttled attempts
# The attempts that may be moving bytes, indexed by compactor and by scope. State only.


WANTED_GROWTH = 1.5
"""Factor on the measured rate that an attempt without waits claims."""
WAITED_SHARE = 0.05
"""Fraction of waiting time above which an attempt claims an unlimited rate."""
INTERVAL_S_MIN = 0.2
"""Minimum interval between heartbeats for a rate to be computed."""
QUIET_S = 3.0
"""Time without news after which an attempt wants nothing; a driver reports less often than a
compactor."""


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
    foreground: bool = False
    """Whether it stands for the reads and appends of a gateway on a volume."""

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
        is_news = (after.moved_bytes, after.waited_s) != (self.moved_bytes, self.waited_s)
        if passed_s < (INTERVAL_S_MIN if is_news else QUIET_S):
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
        return [self._holders[attempt] for attempt in self._by_scope.get(scope, {})]

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


# ------------------------------------------------------------------------------------------- Grants


HEADROOM = 0.02
"""Fraction of a limit that is reserved for attempts that start."""
BLIND_BYTES_S = 64 * 1024.0
"""Maximum initial rate of an attempt while the free rate is unknown."""
WANTED_MIN = 0.1
"""Fraction of an even share that is kept for an attempt that currently moves no bytes."""
CHANGE_MIN = 0.01
"""Relative change below which a grant stays unchanged."""
SCOPES_MAX = 1000
FOREGROUND_SILENCE_S = 10.0
"""A gateway that has not reported for so long does not read or append any more."""


@dataclass(frozen=True, slots=True)
class MovedTotals:
    """Totals of a scope since the start of the coordinator."""

    moved_bytes: int = 0
    waited_s: float = 0.0
    foreground_bytes: int = 0
    """Part of `moved_bytes` that reads and appends have moved."""


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
        self.foreground_part = 0.0
        """Part of a volume that reads and appends get while compaction wants the rest."""
        self._foreground: dict[str, dict[str, float | None]] = {}
        """Gateway → volume → its rate."""

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
        holder = self._holders.get(attempt)
        if holder is None:
            first = self._first(scopes, blind=blind)
            holder = ThrottledAttempt(
                attempt=attempt,
                compactor=compactor,
                scopes=scopes,
                applied_bytes_s=first,
                may_bytes_s=first,
                heard_s=now_s,
            )
            self._holders.put(holder)
        return _wire_rate(holder.applied_bytes_s)

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
            scopes = limit_scopes(group, progress.volume)
            self._note_progress(compactor, scopes, progress, now_s)
        for attempt in self._holders.of_compactor(compactor):
            if attempt not in seen and not begins(attempt):
                self.end(attempt)

    def note_foreground(self, gateway: str, uses: Iterable[VolumeUse], now_s: float) -> None:
        """Record what the reads and appends of a gateway have moved, and set their rates.

        Args:
            gateway: The sender.
            uses: All volumes that it uses now.
            now_s: The current time.
        """
        rates: dict[str, float | None] = {}
        for use in uses:
            attempt = _foreground_name(gateway, use.volume)
            progress = AttemptProgress(
                attempt=attempt,
                state="foreground",
                volume=use.volume,
                granted_bytes_s=use.granted_bytes_s,
                moved_bytes=use.moved_bytes,
                waited_s=use.waited_s,
            )
            scopes = (LimitScope(LimitScopeKind.VOLUME, use.volume),)
            self._note_progress(gateway, scopes, progress, now_s, foreground=True)
            holder = self._holders.get(attempt)
            assert holder is not None, attempt
            grant = self._next(holder)
            rate = holder.applied_bytes_s if grant is None else grant
            self._holders.put(replace(holder, may_bytes_s=max(holder.applied_bytes_s, rate)))
            rates[use.volume] = _wire_rate(rate)
        kept = {_foreground_name(gateway, volume) for volume in rates}
        for attempt in self._holders.of_compactor(gateway):
            if attempt not in kept:
                self.end(attempt)
        self._foreground.pop(gateway, None)
        if rates:  # A gateway takes another name when it reads again.
            self._foreground[gateway] = rates

    def foreground_rates(self, gateway: str) -> Mapping[str, float | None]:
        """Return the rate of a gateway's reads and appends by volume; None: no limit."""
        return self._foreground.get(gateway, {})

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
        self._lose_silent_gateways(now_s)
        limits = {
            scope: rate * (1 - HEADROOM)
            for scope in self._holders.scopes()
            if (rate := self.scopes.rate(scope)) is not None
        }
        if not limits:
            self._targets = {}
            return
        even = {scope: rate / len(self._holders.of_scope(scope)) for scope, rate in limits.items()}
        foreground = self._take_foreground(limits, even)
        self._targets = self._take_attempts(limits, even)
        for scope, taken in foreground.items():
            readers = [holder for holder in self._holders.of_scope(scope) if holder.foreground]
            whole = taken + max(0.0, limits[scope])
            self._targets |= {holder.attempt: whole / len(readers) for holder in readers}

    def _take_attempts(
        self, limits: dict[LimitScope, float], even: Mapping[LimitScope, float]
    ) -> dict[str, float]:
        """Take the rates of attempts from the limits, and return them by attempt."""
        claims: dict[str, RateClaim[LimitScope]] = {}
        for holder in self._holders:
            under = tuple(scope for scope in holder.scopes if scope in limits)
            if under and not holder.foreground:
                least = WANTED_MIN * min(even[scope] for scope in under)
                claims[holder.attempt] = RateClaim(under, max(holder.wanted_bytes_s, least))
        # The unclaimed rest is granted, too, so that an attempt can speed up without a delay.
        unlimited = {name: RateClaim(claim.scopes) for name, claim in claims.items()}
        rates = dict.fromkeys(claims, 0.0)
        for wanted in (claims, unlimited):
            for name, part in max_min_shares(limits, wanted).items():
                rates[name] += part
                for scope in claims[name].scopes:
                    limits[scope] -= part
        return rates

    def _take_foreground(
        self, limits: dict[LimitScope, float], even: Mapping[LimitScope, float]
    ) -> dict[LimitScope, float]:
        """Take the rates of reads and appends from the limits of volumes, and return them.

        They get their part, or less if they want less, or more if compaction wants less.
        """
        rates: dict[LimitScope, float] = {}
        for scope, limit in limits.items():
            wanted = {True: 0.0, False: 0.0}
            for holder in self._holders.of_scope(scope):
                least = WANTED_MIN * even[scope]
                wanted[holder.foreground] += max(holder.wanted_bytes_s, least)
            if wanted[True]:
                part = min(wanted[True], limit * self.foreground_part)
                rates[scope] = min(limit, max(part, limit - wanted[False]))
                limits[scope] = limit - rates[scope]
        return rates

    def _lose_silent_gateways(self, now_s: float) -> None:
        for holder in list(self._holders):
            if holder.foreground and now_s - holder.heard_s > FOREGROUND_SILENCE_S:
                self.end(holder.attempt)
                self._foreground.pop(holder.compactor, None)

    def holder(self, attempt: str) -> ThrottledAttempt | None:
        """Return the state of an attempt, or None."""
        return self._holders.get(attempt)

    def statuses(self) -> tuple[api.Limit, ...]:
        """Return the status of every scope that has an explicit limit, attempts or totals."""
        scopes = {*self._holders.scopes(), *self.scopes.explicit_scopes()}
        scopes |= {scope for scope, _ in self._moved}
        if self.scopes.limit(CONTROL_SCOPE) is None:
            scopes.discard(CONTROL_SCOPE)
        return tuple(self._status(scope) for scope in sorted(scopes))

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
            attempts=sum(not holder.foreground for holder in holders),
            throttled=sum(holder.throttled for holder in holders if not holder.foreground),
            moved_bytes=moved.moved_bytes,
            foreground_bytes=moved.foreground_bytes,
            waited_s=moved.waited_s,
        )

    def _first(self, scopes: tuple[LimitScope, ...], *, blind: bool) -> float:
        rates = {scope: rate for scope in scopes if (rate := self.scopes.rate(scope)) is not None}
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
        if target is None and holder.foreground:
            return None  # The next division decides, within a tick.
        if target is None:  # The attempt or the limits are newer than the last division.
            target = applied if applied < UNLIMITED else self._first(holder.scopes, blind=False)
        if target > applied and not holder.foreground:  # Readers do not wait for room.
            room = self._room(holder.scopes, 1 - HEADROOM)
            target = min(target, applied + max(0.0, room))
        if target == applied or abs(target - applied) < CHANGE_MIN * min(target, applied):
            return None
        return target

    def _room(self, scopes: tuple[LimitScope, ...], share: float = 1.0) -> float:
        """Return the free rate of an attempt's scopes, using only a fraction of their limits."""
        rates = {scope: rate for scope in scopes if (rate := self.scopes.rate(scope)) is not None}
        rooms = [share * rate - self._holders.may_bytes_s(scope) for scope, rate in rates.items()]
        return min(rooms, default=UNLIMITED)

    def _note_progress(
        self,
        compactor: str,
        scopes: tuple[LimitScope, ...],
        progress: AttemptProgress,
        now_s: float,
        *,
        foreground: bool = False,
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
                scopes=scopes,
                applied_bytes_s=UNLIMITED,
                may_bytes_s=UNLIMITED,
                heard_s=now_s,
                moved_bytes=progress.moved_bytes,
                waited_s=progress.waited_s,
                synced_bytes=progress.synced_bytes,
                sync_s=progress.sync_s,
                foreground=foreground,
            )
        self._holders.put(before.after_heartbeat(progress, now_s))

    def _count(self, holder: ThrottledAttempt, moved_bytes: int, waited_s: float) -> None:
        for scope in holder.scopes:
            totals = self._moved.get(scope) or MovedTotals()
            more_bytes = max(0, moved_bytes - holder.moved_bytes)
            more = MovedTotals(
                totals.moved_bytes + more_bytes,
                totals.waited_s + max(0.0, waited_s - holder.waited_s),
                totals.foreground_bytes + (more_bytes if holder.foreground else 0),
            )
            self._moved.put(scope, more)


def _foreground_name(gateway: str, volume: str) -> str:
    return f"{gateway}:{volume}"


def _wire_rate(bytes_s: float) -> float | None:
    return None if bytes_s == UNLIMITED else bytes_s
