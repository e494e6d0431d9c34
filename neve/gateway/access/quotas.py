"""How much one caller may do: requests and bytes per second, scans and compactions at a time.

Pure, but for what is counted. The memory is bounded whatever the number of callers: of the least
recent ones nothing is remembered, which for them means that they have their whole share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from common.bounded_map import BoundedMap
from common.clock import Clock
from neve.gateway.problems import QuotaError

CALLERS_MAX = 10_000
BURST_S = 5.0
"""For how long a share is saved up: so many seconds of it may be used at once."""
SCAN_RETRY_S = 1.0
COMPACTION_RETRY_S = 2.0


class TokenBucket:
    """A share that fills up at a rate, up to some seconds of it."""

    def __init__(self, rate_s: float, now_s: float) -> None:
        """Be full.

        Args:
            rate_s: What comes in per second; 0: there is no limit.
            now_s: When it begins.
        """
        self._rate_s, self._most = rate_s, max(1.0, rate_s * BURST_S)
        self._left, self._at_s = self._most, now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long it takes until something may be taken; 0: it may be now."""
        if not self._rate_s:
            return 0.0
        self._fill(now_s)
        return max(0.0, (1.0 - self._left) / self._rate_s)

    def take(self, count: float, now_s: float) -> None:
        """Take something out, also more than is left: what follows waits the longer."""
        if self._rate_s:
            self._fill(now_s)
            self._left -= count

    def _fill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        self._left = min(self._most, self._left + passed_s * self._rate_s)
        self._at_s = now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What each caller may; 0: there is no limit."""

    requests_s: float = 0.0
    body_bytes_s: int = 0
    scans_max: int = 0
    compactions_max: int = 0
    request_bytes_max: int = 0


@dataclass(slots=True)
class CallerUse:
    """What one caller uses now."""

    requests: TokenBucket
    body_bytes: TokenBucket
    scans: int = 0
    compactions: dict[tuple[str, str], int] = field(default_factory=dict)
    """Table and request of those that were not finished when they were looked at last → bytes."""
    submitting: int = 0
    submitting_bytes: int = 0


class Quotas:
    """The shares of all callers of one gateway. For one event loop."""

    def __init__(self, shares: Shares, clock: Clock, callers_max: int = CALLERS_MAX) -> None:
        """Know of no caller.

        Args:
            shares: Of each caller.
            clock: Fills the shares up.
            callers_max: Callers that are remembered.
        """
        self._shares, self._clock = shares, clock
        self._uses: BoundedMap[str, CallerUse] = BoundedMap(callers_max)

    def use_of(self, caller: str) -> CallerUse:
        """Return what a caller uses; it counts as the most recent one."""
        use = self._uses.get(caller)
        if use is None:
            now_s, shares = self._clock.now_s(), self._shares
            use = CallerUse(
                TokenBucket(shares.requests_s, now_s), TokenBucket(shares.body_bytes_s, now_s)
            )
        self._uses.put(caller, use)
        return use

    def admit(self, caller: str) -> CallerUse:
        """Count a request; return what its caller uses, whose body is still to come.

        Raises:
            QuotaError: The caller has had its requests, or its bytes, for now.
        """
        use, now_s = self.use_of(caller), self._clock.now_s()
        if wait_s := use.requests.wait_s(now_s):
            raise QuotaError(
                f"caller {caller!r} sends more than {self._shares.requests_s:g} requests per second"
                f" (access.caller_requests_s): try again in {wait_s:.1f} s",
                wait_s,
            )
        if wait_s := use.body_bytes.wait_s(now_s):
            raise QuotaError(
                f"caller {caller!r} sends more than {self._shares.body_bytes_s} bytes per second"
                f" (access.caller_body_bytes_s): try again in {wait_s:.1f} s",
                wait_s,
            )
        use.requests.take(1, now_s)
        return use

    def received(self, use: CallerUse, size_bytes: int) -> None:
        """Count a piece of a body."""
        use.body_bytes.take(size_bytes, self._clock.now_s())

    @contextmanager
    def scan(self, caller: str) -> Iterator[None]:
        """Count a scan for the length of a block.

        Raises:
            QuotaError: The caller has as many as it may have.
        """
        use, most = self.use_of(caller), self._shares.scans_max
        if most and use.scans >= most:
            raise QuotaError(
                f"caller {caller!r} reads {use.scans} scans, as many as it may at a time"
                " (access.caller_scans_max): try again when one is over",
                SCAN_RETRY_S,
            )
        use.scans += 1
        try:
            yield
        finally:
            use.scans -= 1

    def has_room(self, caller: str, size_bytes: int) -> bool:
        """Return whether a caller may have another compaction whose request has so many bytes."""
        return self._refusal(caller, size_bytes) is None

    def _refusal(self, caller: str, size_bytes: int) -> QuotaError | None:
        use, shares = self.use_of(caller), self._shares
        running = len(use.compactions) + use.submitting
        if shares.compactions_max and running >= shares.compactions_max:
            return QuotaError(
                f"caller {caller!r} has {running} compactions that are not finished, as many as it"
                " may have (access.caller_compactions_max): wait for one, or cancel it",
                COMPACTION_RETRY_S,
            )
        held_bytes = sum(use.compactions.values()) + use.submitting_bytes
        if shares.request_bytes_max and held_bytes + size_bytes > shares.request_bytes_max:
            return QuotaError(
                f"caller {caller!r} has {held_bytes} bytes of compaction requests that are not"
                f" finished; {size_bytes} more are above {shares.request_bytes_max}"
                " (access.caller_request_bytes_max): wait for one, or cancel it",
                COMPACTION_RETRY_S,
            )
        return None

    @contextmanager
    def compaction(self, caller: str, size_bytes: int = 0) -> Iterator[CallerUse]:
        """Keep a place for a compaction while it is being submitted.

        Args:
            caller: Whose it is.
            size_bytes: Of its request.

        Raises:
            QuotaError: The caller has as many, or as many bytes of them, as it may have.
        """
        if (refusal := self._refusal(caller, size_bytes)) is not None:
            raise refusal
        use = self.use_of(caller)
        use.submitting += 1
        use.submitting_bytes += size_bytes
        try:
            yield use
        finally:
            use.submitting -= 1
            use.submitting_bytes -= size_bytes
