"""The rate limit of each scope, and its division between attempts. Pure.

* `max_min_shares` divides limits max-min fairly: no claim can get more without taking from a claim
  that gets less. A claim below the fair share gets what it wants, and the others divide the rest.
* `AdaptiveRate` adapts the rate of a volume to the latency of its storage, as in Ambry:

      latency ≤ threshold    the greatest rate
      else                   least + (greatest - least) · threshold / latency

  The rate falls at once and rises in steps, so that one fast operation does not undo the effect of
  many slow ones.
* `ScopeLimits` has the limit of each scope: explicit, default, or adapted to latency.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

from common.model.group import LimitScope, LimitScopeKind
from coordinator.core.limits import Limits

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
        known = self._rates.get(scope)
        return limit if known is None else known.bounded(limit).rate

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
        for scope, known in list(self._rates.items()):
            limit = self.limit(scope)
            size_bytes, took_s = self._synced.pop(scope, (0, 0.0))
            if limit is None:
                del self._rates[scope]
                continue
            latency_s = took_s / (size_bytes / MIB) if size_bytes else None
            self._rates[scope] = known.bounded(limit).after_look(latency_s)
            if latency_s is None and self._rates[scope].rate == limit:
                del self._rates[scope]

    def _adapts(self, scope: LimitScope) -> bool:
        return scope.kind is LimitScopeKind.VOLUME and self._least > 0
