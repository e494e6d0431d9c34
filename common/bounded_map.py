"""A map that forgets its oldest entries, for memories that may have gaps."""

from collections import OrderedDict
from collections.abc import Iterator
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
