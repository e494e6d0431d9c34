"""Which limit each scope has now: said by an operator, by default, or by its latency."""

from collections.abc import Mapping

from common.model.group import LimitScope, LimitScopeKind
from coordinator.core.adaptive_rate import AdaptiveRate
from coordinator.core.limits import Limits

LOOK_INTERVAL_S = 2.0
"""How often latency is looked at; shorter than a heartbeat would tell nothing more."""
MIB = 1024**2


class ScopeLimits:
    """Limits by scope, in bytes/s. What operators say is replaced as a whole."""

    def __init__(self, limits: Limits) -> None:
        self._said: dict[LimitScope, int] = {}
        self._defaults = {
            LimitScopeKind.GROUP: limits.group_limit_bytes_s,
            LimitScopeKind.VOLUME: limits.volume_limit_bytes_s,
        }
        self._least = limits.volume_least_bytes_s
        self._threshold_s = limits.volume_latency_s
        self._rates: dict[LimitScope, AdaptiveRate] = {}
        self._synced: dict[LimitScope, tuple[int, float]] = {}
        self._looked_s = 0.0

    def say(self, limits: Mapping[LimitScope, int]) -> None:
        """Note what operators have said of scopes; 0: no limit. Others have the default."""
        self._said = dict(limits)

    def said(self) -> list[LimitScope]:
        """Return the scopes that operators have said something of, in order."""
        return sorted(self._said)

    def is_default(self, scope: LimitScope) -> bool:
        """Return whether nobody has said anything of a scope."""
        return scope not in self._said

    def limit(self, scope: LimitScope) -> int | None:
        """Return the limit that was said, or that is the default; None: there is none."""
        return self._said.get(scope, self._defaults[scope.kind]) or None

    def rate(self, scope: LimitScope) -> int | None:
        """Return what a scope may move now, its latency looked at; None: no limit."""
        limit = self.limit(scope)
        if limit is None or not self._adapts(scope):
            return limit
        known = self._rates.get(scope)
        return limit if known is None else known.bounded(limit).rate

    def synced(self, scope: LimitScope, size_bytes: int, took_s: float) -> None:
        """Count how long a volume took to make so many bytes durable."""
        if size_bytes > 0 and self._adapts(scope):
            known_bytes, known_s = self._synced.get(scope, (0, 0.0))
            self._synced[scope] = (known_bytes + size_bytes, known_s + took_s)
            limit = self.limit(scope)
            if scope not in self._rates and limit is not None:
                self._rates[scope] = AdaptiveRate.begin(self._least, limit, self._threshold_s)

    def look(self, now_s: float) -> None:
        """Let rates follow what was measured since the last look."""
        if now_s - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        for scope, known in list(self._rates.items()):
            limit = self.limit(scope)
            size_bytes, took_s = self._synced.pop(scope, (0, 0.0))
            if limit is None:
                del self._rates[scope]
                continue
            latency_s = took_s / (size_bytes / MIB) if size_bytes else None
            self._rates[scope] = known.bounded(limit).looked(latency_s)
            if latency_s is None and self._rates[scope].rate == limit:
                del self._rates[scope]

    def _adapts(self, scope: LimitScope) -> bool:
        return scope.kind is LimitScopeKind.VOLUME and self._least > 0
