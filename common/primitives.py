"""Small values and rules used everywhere: bounded maps, backoff, budgets, digests. No I/O."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedMap(Generic[Key, Value]):
    """At most `count_max` entries; the least recently put entry is evicted first."""

    def __init__(self, count_max: int) -> None:
        assert count_max > 0, count_max
        self._count_max = count_max
        # A plain dict is slow to find its first entry after many entries before it were deleted.
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        """Yield all entries, least recently put first."""
        return iter(list(self._entries.items()))

    def get(self, key: Key) -> Value | None:
        """Return the value under a key, or None."""
        return self._entries.get(key)

    def newest(self) -> tuple[Key, Value] | None:
        """Return the most recently put entry, or None if the map is empty."""
        return next(reversed(self._entries.items()), None)

    def put(self, key: Key, value: Value) -> None:
        """Set a value and mark its key as the newest."""
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._count_max:
            self._entries.popitem(last=False)

    def pop(self, key: Key) -> Value | None:
        """Remove an entry and return its value, or None."""
        return self._entries.pop(key, None)


# ------------------------------------------------------------------------------------------ Backoff
# The wait before the next try. Pure: callers that want jitter add it.


_DOUBLINGS_MAX = 60
"""Doublings after which the wait stops growing, to avoid an overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double with each consecutive failure, up to a bound."""

    base_s: float = 0.2
    """Wait after the first failure."""
    max_s: float = 15.0

    def wait_s(self, failures: int) -> float:
        """Return the wait before the next try: 0 before the first failure.

        Args:
            failures: Number of consecutive failures.
        """
        if failures < 1:
            return 0.0
        return min(self.base_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.max_s)


# ------------------------------------------------------------------------------------------ Digests
# A rate of bytes, and what has been moved: a token bucket. Compactors and gateways keep to it.


BUDGET_BURST_S = 1.0
"""Seconds of its rate that a budget saves up ahead, so that time spent on work counts."""
BUDGET_CHECK_S = 0.1
"""Longest interval at which a wait for a budget checks for another rate."""


@dataclass(slots=True)
class Budget:
    """Bytes that were moved, and how many of them a rate has paid for. Totals only grow."""

    bytes_s: float
    """The rate; infinite: no limit."""
    at_s: float
    """Until when the rate has paid."""
    asked: float = 0.0
    """Bytes moved."""
    covered: float = 0.0
    """Bytes that the rate has paid for, a little ahead."""
    waited_s: float = 0.0

    @property
    def moved_bytes(self) -> int:
        """Bytes that were moved and paid for."""
        return int(min(self.asked, self.covered))

    def pass_time(self, now_s: float) -> None:
        """Let the rate pay for the time that has passed; a clock that goes back pays nothing."""
        passed_s, self.at_s = max(0.0, now_s - self.at_s), max(self.at_s, now_s)
        if self.bytes_s == math.inf:
            self.covered = max(self.covered, self.asked)
        else:
            ahead = self.asked + self.bytes_s * BUDGET_BURST_S
            self.covered = min(self.covered + self.bytes_s * passed_s, ahead)

    def wait_s(self, goal: float) -> float:
        """Return how long to wait before the next check; 0: so many bytes are covered."""
        lacks = max(0.0, goal - self.covered)
        if not lacks or not self.bytes_s:
            return BUDGET_CHECK_S if lacks else 0.0
        return min(BUDGET_CHECK_S, lacks / self.bytes_s)


# Ids derived from content, and the time that a call id carries. Pure.
#
# A job id is derived from the content of the job, so planning the same job twice gives the same id.


CALL_LIFE_S = 24 * 3600
"""How long the mark of a call is kept; older call ids are refused."""
PUBLISH_LIFE_S = 24 * 3600.0
"""An attempt at a lake table that reserved its inputs longer ago may not publish.

It is less than the shortest retention of old versions and of files without a reference, so what
the attempt has read and written is still there (`docs/lake-tables.md`).
"""


def call_time_s(call: str) -> float | None:
    """Return the time that a call id carries, or None if it is not a UUIDv7."""
    text = call.replace("-", "")
    if len(text) != 32 or text[12] != "7":
        return None
    try:
        return int(text[:12], 16) / 1000
    except ValueError:
        return None


def digest(parts: Iterable[str | bytes], length: int = 16) -> str:
    """Return a hex digest of a sequence of texts; different sequences have different encodings.

    Args:
        parts: What identifies the object, in an order that the caller fixes.
        length: Number of hex digits, at most 64.
    """
    # Parts are joined first: one long update takes half the time of many short ones, and every
    # planned job needs an id.
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += (len(data).to_bytes(8, "big"), data)
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:length]


# ------------------------------------------------------------------------------------------ Indexes
# Indexes of members by key, as dictionaries of dictionaries: members keep their order.


Index = TypeVar("Index")


def remove_from_index(index: dict[Index, dict[str, None]], key: Index, member: str) -> None:
    """Remove a member from an index, and its key with the last member."""
    members = index[key]
    del members[member]
    if not members:
        del index[key]


def earliest_s(*times_s: float | None) -> float | None:
    """Return the earliest time; None stands for never."""
    given_s = [time_s for time_s in times_s if time_s is not None]
    return min(given_s, default=None)
