"""Quotas per caller, and slots of concurrent scans.

The module does no I/O; it only keeps counts. Its memory is bounded: the counts of the least recent
callers are dropped, so that these callers have their full quota again.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from common.control_settings import IngestSettings
from common.errors import UnavailableError
from common.primitives import BoundedMap
from common.runtime import Clock
from neve.gateway.problems import QuotaError

CALLERS_MAX = 10_000
BURST_S = 5.0
"""Burst size: an unused quota accumulates for up to so many seconds."""
SCAN_RETRY_S = 1.0
COMPACTION_RETRY_S = 2.0


class TokenBucket:
    """A token bucket that refills at a rate, up to `BURST_S` seconds of the rate."""

    def __init__(self, rate_s: float, now_s: float) -> None:
        """Start with a full bucket.

        Args:
            rate_s: Refill per second; 0: there is no limit.
            now_s: Current time.
        """
        self._rate_s, self._most = rate_s, max(1.0, rate_s * BURST_S)
        self._left, self._at_s = self._most, now_s

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a token is available; 0: one is available now."""
        if not self._rate_s:
            return 0.0
        self._fill(now_s)
        return max(0.0, (1.0 - self._left) / self._rate_s)

    def take(self, count: float, now_s: float) -> None:
        """Take tokens; the balance may become negative, which delays later takers."""
        if self._rate_s:
            self._fill(now_s)
            self._left -= count

    def _fill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        self._left = min(self._most, self._left + passed_s * self._rate_s)
        self._at_s = now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Quota of each caller; 0: there is no limit."""

    requests_s: float = 0.0
    body_bytes_s: int = 0
    scans_max: int = 0
    compactions_max: int = 0
    request_bytes_max: int = 0


@dataclass(slots=True)
class CallerUse:
    """Current usage of one caller."""

    requests: TokenBucket
    body_bytes: TokenBucket
    scans: int = 0
    compactions: dict[tuple[str, str], int] = field(default_factory=dict)
    """Table and id of each request that was unfinished at the last check → size in bytes."""
    submitting: int = 0
    submitting_bytes: int = 0


class Quotas:
    """The quotas of all callers of one gateway. For one event loop."""

    def __init__(self, shares: Shares, clock: Clock, callers_max: int = CALLERS_MAX) -> None:
        """Start without callers.

        Args:
            shares: Quota of each caller.
            clock: Clock that refills the quotas.
            callers_max: Maximum number of callers with counts.
        """
        self._shares, self._clock = shares, clock
        self._uses: BoundedMap[str, CallerUse] = BoundedMap(callers_max)

    def use_of(self, caller: str) -> CallerUse:
        """Return the usage of a caller, and mark the caller as the most recent one."""
        use = self._uses.get(caller)
        if use is None:
            now_s, shares = self._clock.now_s(), self._shares
            use = CallerUse(
                TokenBucket(shares.requests_s, now_s), TokenBucket(shares.body_bytes_s, now_s)
            )
        self._uses.put(caller, use)
        return use

    def admit(self, caller: str) -> CallerUse:
        """Count a request before its body arrives, and return the usage of its caller.

        Raises:
            QuotaError: The caller has used up its requests or its bytes.
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
        """Count a scan for the duration of a block.

        Raises:
            QuotaError: The caller has reached its limit of scans.
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
        """Return whether a caller may submit another compaction request of this size."""
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
        """Count a compaction while its request is being submitted.

        Args:
            caller: Name of the caller.
            size_bytes: Size of the request.

        Raises:
            QuotaError: The caller has reached its limit of compactions or of their bytes.
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


# --------------------------------------------------------------------------------------- Scan slots
# Limits of concurrent scans: their number, and the rows that they hold in memory.
#
# A scan holds the piece that it sends until its reader has received it. Stalled readers would fill
# the memory with such pieces. Therefore a scan reads its next piece only while the total is within
# a bound, and the server closes a connection whose reader receives nothing for too long.


class ScanSlots:
    """The scans of one gateway. For one event loop."""

    def __init__(self, most: int, held_bytes_max: int) -> None:
        """Start with all slots free.

        Args:
            most: Maximum number of concurrent scans.
            held_bytes_max: Limit of bytes that were read but not received; scans pause after the
                piece that exceeds it.
        """
        self._most = most
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self.open = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that were read but not received by their readers."""
        return self._held_bytes

    @contextmanager
    def take(self) -> Iterator["ScanSlot"]:
        """Take a slot for the duration of a block.

        Raises:
            UnavailableError: All slots are taken.
        """
        if self.open >= self._most:
            raise UnavailableError(
                f"{self.open} scans are being read, as many as the gateway takes at a time "
                "(gateway.scans_max): try again when one is over"
            )
        self.open += 1
        slot = ScanSlot(self)
        try:
            yield slot
        finally:
            slot.holds(0)
            self.open -= 1

    async def room(self) -> None:
        """Wait until another piece may be read."""
        await self._room.wait()

    def change(self, by_bytes: int) -> None:
        """Change the total of held bytes, and let scans continue or pause."""
        self._held_bytes += by_bytes
        if self._held_bytes < self._held_bytes_max:
            self._room.set()
        else:
            self._room.clear()


class ScanSlot:
    """The slot of one scan."""

    def __init__(self, slots: ScanSlots) -> None:
        self._slots = slots
        self._bytes = 0

    async def room(self) -> None:
        """Release the held bytes, and wait until the next piece may be read."""
        self.holds(0)
        await self._slots.room()

    def holds(self, count: int) -> None:
        """Set the number of bytes that this scan holds."""
        self._slots.change(count - self._bytes)
        self._bytes = count


# ------------------------------------------------------------------------------------ Buffered rows


DELAY_FROM = 0.5
"""Part of a bound from which writers are slowed down."""
DELAY_MAX_S = 1.0
"""Delay of a call at the bound."""
STORE_SLOW_PCT = 10.0
"""Percentage points below the bound of the store's memory, from which writers are slowed down."""


class BufferUse:
    """Sizes of all buffered rows; decides how long a writer waits, and when it is refused.

    Writers are slowed down by four causes: the bytes of their table's buffer, those of all buffers,
    the memory of the store, and the compactions that wait. The first three also refuse rows, when
    the delay is longest.
    """

    def __init__(self, bounds: IngestSettings) -> None:
        """Start with empty buffers, within these bounds."""
        self.bounds = bounds
        self.sizes: dict[str, int] = {}
        """Table id → decoded size of its buffered rows."""
        self.opened_s: float | None = None
        """When the oldest segment was opened; None: no rows are buffered."""
        self.store_used_pct = 0.0
        self.overlapping: Mapping[str, int] = {}
        """Table id → most overlapping files of a tablet whose merges wait."""
        self.backlogs: Mapping[str, int] = {}
        """Name of a table → bytes that wait to be compacted."""
        self.unsafe = {"": "the coordinator has not answered since the start of the gateway"}
        """Id of a table whose rows may not be buffered, or empty for all, and why."""
        self.durability = ""
        """What the store guarantees for acknowledged rows, in words."""
        self.delayed_s, self.refused = 0.0, 0
        """Sum of all delays; number of refused calls."""

    @property
    def table_bytes_max(self) -> int:
        """Bound of one table's buffered rows."""
        return self.bounds.table_bytes_max

    @property
    def size_bytes(self) -> int:
        """Decoded size of all buffered rows."""
        return sum(self.sizes.values())

    def admit(self, table: str, name: str) -> tuple[float, str]:
        """Return how long a call waits before its rows are taken, and why; empty: it does not.

        Args:
            table: Id of the table.
            name: Its name, for the message.

        Raises:
            UnavailableError: A bound is reached; the caller may retry.
        """
        bounds = self.bounds
        above = self.store_used_pct - bounds.store_used_max_pct
        if above > 0:
            raise self.refuse(
                f"the metadata store uses {self.store_used_pct:.0f} % of its memory, and takes no "
                f"rows above {bounds.store_used_max_pct:g} %; append them as files, or try again"
            )
        parts = (
            self.sizes.get(table, 0) / self.table_bytes_max,
            self.size_bytes / bounds.bytes_max,
            1 + (1 - DELAY_FROM) * above / STORE_SLOW_PCT,
            _part(self.overlapping.get(table, 0), bounds.files_max),
            _part(self.backlogs.get(name, 0), bounds.backlog_bytes_max),
        )
        most = max(parts)
        if most <= DELAY_FROM:  # Nearly all calls.
            return 0.0, ""
        causes = (
            f"the buffered rows of table {name!r}",
            "the buffered rows of the service",
            "the memory of the metadata store",
            f"the overlapping files of table {name!r}",
            f"the backlog of table {name!r}",
        )
        full = max(parts[:2])
        if full >= 1:
            cause = causes[parts.index(full)]
            raise self.refuse(f"{cause} have reached their bound; try again after a flush")
        delay_s = DELAY_MAX_S * (min(most, 1.0) - DELAY_FROM) / (1 - DELAY_FROM)
        self.delayed_s += delay_s
        return delay_s, f"{causes[parts.index(most)]} near their bound: {most:.0%}"

    def why_unsafe(self, table: str) -> str | None:
        """Return why rows of a table may not be buffered, or None if they may."""
        return self.unsafe.get("") or self.unsafe.get(table)

    def note_unsafe(self, reasons: Mapping[str, str]) -> None:
        """Keep the reasons of tables that could not be buffered before.

        What was allowed once stays allowed: since then, the coordinator gives no job that drops
        rows to a compactor that does not know buffers.
        """
        before = self.unsafe
        self.unsafe = {
            table: why for table, why in reasons.items() if "" in before or table in before
        }

    def refuse(self, reason: str) -> UnavailableError:
        """Count a refused call, and return its error."""
        self.refused += 1
        return UnavailableError(reason)

    def took(self, table: str, size_bytes: int) -> None:
        """Count rows that were buffered, until the next reading of the store."""
        self.sizes[table] = self.sizes.get(table, 0) + size_bytes


def _part(value: int, most: int) -> float:
    """Return a value as a part of its bound; 0: there is no bound."""
    return value / most if most else 0.0
