"""The values of a memory keyspace: one dictionary, a version per key, expiry by a clock."""

from bisect import insort
from typing import Any

from common.clock import Clock

StoredEntry = tuple[str, dict[bytes, bytes]]


class Values:
    """Owns all keys. Every change of a key goes through `touch` or `remove`."""

    def __init__(self, clock: Clock) -> None:
        """Start empty."""
        self._clock = clock
        self._held: dict[str, Any] = {}
        self._versions: dict[str, int] = {}
        self._expires_s: dict[str, float] = {}
        self._sequence = 0

    def now_s(self) -> float:
        """Return the time."""
        return self._clock.now_s()

    def keys(self) -> list[str]:
        """Return all keys that are there."""
        return sorted(key for key in list(self._held) if self.find(key) is not None)

    def version(self, key: str) -> int:
        """Return how often a key has changed; expiry counts."""
        self.find(key)
        return self._versions.get(key, 0)

    def touch(self, key: str) -> None:
        """Count a change of a key."""
        self._versions[key] = self._versions.get(key, 0) + 1

    def find(self, key: str) -> Any:
        """Return the value of a key, or None if it is absent or has expired."""
        if self._expires_s.get(key, float("inf")) <= self.now_s():
            self.remove(key)
        return self._held.get(key)

    def remove(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        self._expires_s.pop(key, None)
        if self._held.pop(key, None) is None:
            return False
        self.touch(key)
        return True

    def put(self, key: str, value: Any) -> None:
        """Write a value; an old expiry goes."""
        self._expires_s.pop(key, None)
        self._held[key] = value
        self.touch(key)

    def expire(self, key: str, life_s: float) -> bool:
        """Let a key live so long from now; return whether it is there."""
        if self.find(key) is None:
            return False
        self._expires_s[key] = self.now_s() + life_s
        self.touch(key)
        return True

    def life_s(self, key: str) -> float | None:
        """Return how long a key still lives, or None if it does not expire."""
        expires_s = self._expires_s.get(key)
        return None if expires_s is None else expires_s - self.now_s()

    def hash(self, key: str) -> dict[bytes, bytes]:
        """Return a hash, to read."""
        return self.find(key) or {}

    def own_hash(self, key: str) -> dict[bytes, bytes]:
        """Return a hash, to write; the writer touches the key."""
        return self._own(key, {})  # type: ignore[no-any-return]  # values are of any type

    def set_of(self, key: str) -> set[bytes]:
        """Return a set, to read."""
        return self.find(key) or set()

    def own_set(self, key: str) -> set[bytes]:
        """Return a set, to write; the writer touches the key."""
        return self._own(key, set())  # type: ignore[no-any-return]  # values are of any type

    def members(self, key: str) -> list[bytes]:
        """Return a lexical sorted set, ascending, to read."""
        return self.find(key) or []

    def add_member(self, key: str, member: bytes) -> bool:
        """Put a member into a sorted set; return whether it is new."""
        members = self._own(key, [])
        if member in members:
            return False
        insort(members, member)
        self.touch(key)
        return True

    def stream(self, key: str) -> list[StoredEntry]:
        """Return a stream, oldest entry first, to read."""
        return self.find(key) or []

    def append(self, key: str, entries_max: int, fields: dict[bytes, bytes]) -> str:
        """Append to a stream, capped; return the position."""
        self._sequence += 1
        position = f"{int(self.now_s() * 1000)}-{self._sequence}"
        entries = self._own(key, [])
        entries.append((position, fields))
        del entries[: max(0, len(entries) - entries_max)]
        self.touch(key)
        return position

    def drop_empty(self, key: str) -> None:
        """Remove a collection that has become empty, as Redis does; its writer has touched it."""
        if not self._held.get(key):
            self._held.pop(key, None)
            self._expires_s.pop(key, None)

    def _own(self, key: str, empty: Any) -> Any:
        value = self.find(key)
        if value is None:
            value = self._held[key] = empty
        return value
