"""A store in memory, for tests and simulations: the same changes over a dictionary.

The dictionary behaves like Redis: WATCH by the version of a key, MULTI at one moment. The words of
commands are Redis's own.
"""

import asyncio
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from common.metadata.executor import RetryLimits
from common.metadata.keyspace import Command, KeyspaceSession, Reply, StreamEntry, Word
from common.metadata.store import TabletStore
from common.metadata.store_values import StoreHealth
from common.runtime import Clock
from tests.support.predictable import CountedIds, ManualClock

# ------------------------------------------------------------------------------- Keys with versions


StoredEntry = tuple[str, dict[bytes, bytes]]


class MemoryValues:
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


# ----------------------------------------------------------------------------------------- Commands


Words = Sequence[Word]


def to_bytes(word: Word) -> bytes:
    """Return a word as Redis stores it."""
    if isinstance(word, bytes):
        return word
    return (word if isinstance(word, str) else repr(word)).encode()


def position_key(position: str) -> tuple[int, int]:
    """Return what sorts positions of a stream."""
    millis, _, sequence = position.partition("-")
    return int(millis), int(sequence or 0)


def run(values: MemoryValues, command: Command) -> Reply:
    """Execute one command.

    Raises:
        KeyError: Stores never send such a command.
    """
    name, *words = command
    if name == "TIME":
        now_s = values.now_s()
        return [b"%d" % int(now_s), b"%d" % int(now_s % 1 * 1_000_000)]
    if name == "DEL":
        return sum(values.remove(str(key)) for key in words)
    if name == "SCAN":
        head, _, tail = str(words[2]).partition("*")
        every = values.keys()
        found = (key for key in every if key.startswith(head) and key.endswith(tail))
        return [b"0", [key.encode() for key in found]]
    return _COMMANDS[str(name)](values, str(words[0]), words[1:])


def _pairs(words: Words) -> dict[bytes, bytes]:
    texts = [to_bytes(word) for word in words]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _get(values: MemoryValues, key: str, _words: Words) -> Reply:
    return values.find(key)


def _mget(values: MemoryValues, key: str, words: Words) -> Reply:
    return [values.find(each) for each in (key, *map(str, words))]


def _set(values: MemoryValues, key: str, words: Words) -> Reply:
    values.put(key, to_bytes(words[0]))
    if len(words) > 1:
        values.expire(key, int(words[2]) / 1000)
    return b"OK"


def _incr(values: MemoryValues, key: str, _words: Words) -> Reply:
    number = int(values.find(key) or 0) + 1
    values.put(key, b"%d" % number)
    return number


def _pexpire(values: MemoryValues, key: str, words: Words) -> Reply:
    return int(values.expire(key, int(words[0]) / 1000))


def _hget(values: MemoryValues, key: str, words: Words) -> Reply:
    return values.hash(key).get(to_bytes(words[0]))


def _hmget(values: MemoryValues, key: str, words: Words) -> Reply:
    stored = values.hash(key)
    return [stored.get(to_bytes(field)) for field in words]


def _hgetall(values: MemoryValues, key: str, _words: Words) -> Reply:
    return dict(values.hash(key))


def _hlen(values: MemoryValues, key: str, _words: Words) -> Reply:
    return len(values.hash(key))


def _hscan(values: MemoryValues, key: str, _words: Words) -> Reply:
    return [b"0", [word for pair in values.hash(key).items() for word in pair]]


def _hset(values: MemoryValues, key: str, words: Words) -> Reply:
    values.own_hash(key).update(_pairs(words))
    values.touch(key)
    return len(words) // 2


def _hdel(values: MemoryValues, key: str, words: Words) -> Reply:
    stored = values.hash(key)
    gone = [field for field in map(to_bytes, words) if stored.pop(field, None) is not None]
    if gone:
        values.touch(key)
        values.drop_empty(key)
    return len(gone)


def _hincrby(values: MemoryValues, key: str, words: Words) -> Reply:
    stored, field = values.own_hash(key), to_bytes(words[0])
    number = int(stored.get(field, b"0")) + int(words[1])
    stored[field] = b"%d" % number
    values.touch(key)
    return number


def _smembers(values: MemoryValues, key: str, _words: Words) -> Reply:
    return set(values.set_of(key))


def _sadd(values: MemoryValues, key: str, words: Words) -> Reply:
    stored = values.own_set(key)
    new = {to_bytes(word) for word in words} - stored
    stored |= new
    if new:
        values.touch(key)
    return len(new)


def _srem(values: MemoryValues, key: str, words: Words) -> Reply:
    stored = values.set_of(key)
    gone = {to_bytes(word) for word in words} & stored
    stored -= gone
    if gone:
        values.touch(key)
        values.drop_empty(key)
    return len(gone)


def _zadd(values: MemoryValues, key: str, words: Words) -> Reply:
    return sum(values.add_member(key, to_bytes(member)) for member in words[1::2])


def _zrem(values: MemoryValues, key: str, words: Words) -> Reply:
    members = values.members(key)
    gone = [member for member in map(to_bytes, words) if member in members]
    for member in gone:
        members.remove(member)
    if gone:
        values.touch(key)
        values.drop_empty(key)
    return len(gone)


def _zrangebylex(values: MemoryValues, key: str, words: Words) -> Reply:
    low, count = to_bytes(words[0]), int(words[4])
    members = values.members(key)
    if low == b"-":
        return members[:count]
    inclusive, least = low[:1] == b"[", low[1:]
    return [member for member in members if member > least or (inclusive and member == least)][
        :count
    ]


def _zrevrangebylex(values: MemoryValues, key: str, words: Words) -> Reply:
    return values.members(key)[::-1][: int(words[4])]


def _zrange(values: MemoryValues, key: str, words: Words) -> Reply:
    return values.members(key)[int(words[0]) : int(words[1]) + 1]


def _zcard(values: MemoryValues, key: str, _words: Words) -> Reply:
    return len(values.members(key))


def _xadd(values: MemoryValues, key: str, words: Words) -> Reply:
    return values.append(key, int(words[2]), _pairs(words[4:])).encode()


def _xrevrange(values: MemoryValues, key: str, words: Words) -> Reply:
    highest = str(words[0])
    newest = [entry for entry in reversed(values.stream(key)) if highest in ("+", entry[0])][
        : int(words[3])
    ]
    return [
        [position.encode(), [word for pair in fields.items() for word in pair]]
        for position, fields in newest
    ]


_COMMANDS: dict[str, Callable[[MemoryValues, str, Words], Reply]] = {
    "GET": _get,
    "MGET": _mget,
    "SET": _set,
    "INCR": _incr,
    "PEXPIRE": _pexpire,
    "HGET": _hget,
    "HMGET": _hmget,
    "HGETALL": _hgetall,
    "HLEN": _hlen,
    "HSCAN": _hscan,
    "HSET": _hset,
    "HDEL": _hdel,
    "HINCRBY": _hincrby,
    "SMEMBERS": _smembers,
    "SADD": _sadd,
    "SREM": _srem,
    "ZADD": _zadd,
    "ZREM": _zrem,
    "ZRANGEBYLEX": _zrangebylex,
    "ZREVRANGEBYLEX": _zrevrangebylex,
    "ZRANGE": _zrange,
    "ZCARD": _zcard,
    "XADD": _xadd,
    "XREVRANGE": _xrevrange,
}


# ---- The keyspace
#
# Like Redis, a key counts as changed when it was written, also with the same value, but not by an
# effect that changes nothing (`SADD` of a member, `DEL` of no key).


class MemoryKeyspace:
    """Keys of a store, shared by everybody who has a reference to it."""

    def __init__(self, clock: Clock) -> None:
        """Start empty.

        Args:
            clock: What TIME answers, and what lets keys expire.
        """
        self.values = MemoryValues(clock)
        self._news = asyncio.Event()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KeyspaceSession]:
        """Return a session; what it watches ends with it."""
        yield MemorySession(self)

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, each at one moment."""
        return [self.run(batch) for batch in batches]

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Execute commands at one moment; new entries of streams wake those who wait for them."""
        replies = [run(self.values, command) for command in commands]
        if any(command[0] == "XADD" for command in commands):
            self._news.set()
        return replies

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        """Return entries of streams after positions; wait for the first."""
        found = self._entries(after, count)
        if not found and block_s > 0:
            self._news.clear()
            try:
                async with asyncio.timeout(block_s):
                    await self._news.wait()
            except TimeoutError:
                return {}
            found = self._entries(after, count)
        return found

    async def health(self) -> StoreHealth:
        """Return that nothing is wrong: a process has the memory that it has."""
        return StoreHealth()

    async def keep_reserve(self) -> None:
        """Keep none: there is no bound."""

    async def close(self) -> None:
        """Keep everything: others may share it."""

    def _entries(self, after: Mapping[str, str], count: int) -> dict[str, Sequence[StreamEntry]]:
        found: dict[str, Sequence[StreamEntry]] = {}
        for key, position in after.items():
            entries = self.values.stream(key)
            first = bisect_right(
                entries, position_key(position), key=lambda entry: position_key(entry[0])
            )
            if first < len(entries):
                later = entries[first : first + count]
                found[key] = [(place, dict(fields)) for place, fields in later]
        return found


def slots_of(keys: Iterable[object]) -> set[str]:
    """Return what of some keys has a slot of its own: tables, and keys of the whole store."""
    names = map(str, keys)
    return {name.partition("{")[2].partition("}")[0] or name for name in names}


class MemorySession:
    """One connection: remembers the versions of what it watches.

    As on a Redis Cluster, a transaction keeps to one slot.
    """

    def __init__(self, keyspace: MemoryKeyspace) -> None:
        """Watch nothing yet."""
        self._keyspace = keyspace
        self.watched: dict[str, int] = {}

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch, then read."""
        return self.look_now(watch, reads)

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Write all effects, unless a watched key has changed."""
        return self.execute_now(effects)

    def look_now(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch, then read, at one moment."""
        for key in watch:
            self.watched.setdefault(key, self._keyspace.values.version(key))
        assert len(slots_of(self.watched)) <= 1, f"a transaction watches two slots: {watch}"
        return self._keyspace.run(reads)

    def execute_now(self, effects: Sequence[Command]) -> bool:
        """Write all effects at one moment, unless a watched key has changed."""
        values = self._keyspace.values
        written = (effect[1:] if effect[0] == "DEL" else effect[1:2] for effect in effects)
        slots = slots_of([*self.watched, *chain.from_iterable(written)])
        assert len(slots) == 1, f"a transaction writes another slot: {effects}"
        if any(values.version(key) != version for key, version in self.watched.items()):
            return False
        self._keyspace.run(effects)
        self.watched.clear()
        return True


# ---------------------------------------------------------------------------------------- The store


class MemoryStore(TabletStore):
    """A store that lives as long as the process. Deterministic: no chance, no waiting."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        keyspace: MemoryKeyspace | None = None,
        patience: RetryLimits | None = None,
    ) -> None:
        """Start empty, or on a keyspace that another store shares.

        Args:
            clock: The store's time; a `ManualClock` if left out.
            keyspace: Where everything is; several stores may share one, as processes do.
            patience: How often a change is tried.
        """
        self.keyspace = keyspace or MemoryKeyspace(clock or ManualClock())
        ids = CountedIds("memory")
        super().__init__(
            self.keyspace,
            patience=patience or RetryLimits(),
            sleep=_yield,
            chance=lambda: 0.5,
            new_store_id=lambda: ids.next("store"),
        )


async def _yield(_seconds: float) -> None:
    """Let others run; simulated time passes only where a test moves it."""
    await asyncio.sleep(0)
