"""The interface to Redis: commands, the rights to them, reads at one moment, and transactions.

Two adapters implement it: Redis itself, and a dictionary with the same semantics.
Everything above it (`executor`, `store`) is shared by both.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Protocol

from common.errors import CompactionError
from common.metadata.store_values import StoreHealth

# ----------------------------------------------------------------------------------------- Commands
# The Redis commands for reads and effects, as values.
#
# A command is a tuple of words. Redis receives the words unchanged; the memory keyspace
# executes the same words itself. A change sends no other commands.


Word = str | bytes | int | float
Command = tuple[Word, ...]
Reply = Any
"""A reply: bytes, int, list, dict of bytes, set of bytes, or None (RESP3)."""

Send = Callable[[list[Command]], Awaitable[list[Reply]]]
"""Sends commands in one write and returns the answers, errors among them as values."""

INFO: Command = ("INFO",)
TIME: Command = ("TIME",)


def get(key: str) -> Command:
    """Read a string."""
    return ("GET", key)


def mget(keys: Iterable[str]) -> Command:
    """Read some strings of one table; there must be at least one."""
    return ("MGET", *keys)


def hget(key: str, field: Word) -> Command:
    """Read one field of a hash."""
    return ("HGET", key, field)


def hmget(key: str, fields: Iterable[Word]) -> Command:
    """Read some fields of a hash; there must be at least one."""
    return ("HMGET", key, *fields)


def hgetall(key: str) -> Command:
    """Read a whole hash."""
    return ("HGETALL", key)


def hlen(key: str) -> Command:
    """Count the fields of a hash."""
    return ("HLEN", key)


def scan(pattern: str, cursor: int, count: int) -> Command:
    """Iterate over about `count` keys of the whole store, beginning at `cursor`."""
    return ("SCAN", cursor, "MATCH", pattern, "COUNT", count)


def hscan(key: str, cursor: int, count: int) -> Command:
    """Read about `count` fields of a hash, beginning at `cursor`."""
    return ("HSCAN", key, cursor, "COUNT", count)


def smembers(key: str) -> Command:
    """Read a set."""
    return ("SMEMBERS", key)


def members_after(key: str, after: bytes | None, count: int, *, inclusive: bool = False) -> Command:
    """Read up to `count` members of a lexical sorted set that follow `after`, ascending."""
    low = b"-" if after is None else (b"[" if inclusive else b"(") + after
    return ("ZRANGEBYLEX", key, low, b"+", "LIMIT", 0, count)


def last_members(key: str, count: int) -> Command:
    """Read the last `count` members of a lexical sorted set, descending."""
    return ("ZREVRANGEBYLEX", key, "+", "-", "LIMIT", 0, count)


def member_at(key: str, index: int) -> Command:
    """Read the member of a sorted set at an index from 0, as a list of one or no members."""
    return ("ZRANGE", key, index, index)


def zcard(key: str) -> Command:
    """Count the members of a sorted set."""
    return ("ZCARD", key)


def newest(key: str, count: int) -> Command:
    """Read the newest entries of a stream, newest first."""
    return ("XREVRANGE", key, "+", "-", "COUNT", count)


def entry_at(key: str, position: str) -> Command:
    """Read the entry of a stream at a position, if there is one."""
    return ("XREVRANGE", key, position, position, "COUNT", 1)


def set_string(key: str, value: Word, life_s: float | None = None) -> Command:
    """Write a string, optionally one that expires."""
    if life_s is None:
        return ("SET", key, value)
    return ("SET", key, value, "PX", int(life_s * 1000))


def hset(key: str, fields: Mapping[Any, Word]) -> Command:
    """Write fields of a hash; there must be at least one."""
    return ("HSET", key, *(word for pair in fields.items() for word in pair))


def hdel(key: str, *fields: Word) -> Command:
    """Remove fields of a hash."""
    return ("HDEL", key, *fields)


def hincrby(key: str, field: Word, by: int) -> Command:
    """Add to a number in a hash."""
    return ("HINCRBY", key, field, by)


def incr(key: str) -> Command:
    """Increment a number."""
    return ("INCR", key)


def delete(*keys: str) -> Command:
    """Remove keys."""
    return ("DEL", *keys)


def sadd(key: str, *members: Word) -> Command:
    """Add members to a set."""
    return ("SADD", key, *members)


def srem(key: str, *members: Word) -> Command:
    """Remove members from a set."""
    return ("SREM", key, *members)


def zadd(key: str, *members: bytes) -> Command:
    """Add members to a lexical sorted set."""
    return ("ZADD", key, *(word for member in members for word in (0, member)))


def zrem(key: str, *members: bytes) -> Command:
    """Remove members from a sorted set."""
    return ("ZREM", key, *members)


def xadd(key: str, entries_max: int, fields: Mapping[str, Word]) -> Command:
    """Append to a capped stream."""
    words = (word for pair in fields.items() for word in pair)
    return ("XADD", key, "MAXLEN", "~", entries_max, "*", *words)


def pexpire(key: str, life_s: float) -> Command:
    """Let a key expire after `life_s`."""
    return ("PEXPIRE", key, int(life_s * 1000))


# ------------------------------------------------------------------------------------------- Rights
# What users of a Redis may do, each command by name, in words of Redis that 6.2 and every Valkey
# know: `redis.io/docs/latest/operate/oss_and_stack/management/security/acl`. `hello`, `auth` and
# `reset` need no right.

STORE_KEYS = "neve:*"
"""Which keys the store has; `common.metadata.keys` makes them."""
PROBE = "neve:rights"
"""A key that is never written: questions name it."""
DENIED = "NOPERM"
_OF_KEY = re.compile(r"access (a|one of the) keys?\b")


class RedisUser(StrEnum):
    """The purpose of a user of Redis."""

    STORE = "store"
    """Coordinator, gateway and compactors: the user of `store.url`."""
    SENTINEL = "sentinel"
    """The same on Sentinels: may ask where the primary is, and change nothing."""
    MONITOR = "monitor"
    """Who watches the server: figures of it, and no key."""


TRANSACTION_QUESTIONS: Mapping[str, Command] = {
    "watch": ("WATCH", PROBE),
    "unwatch": ("UNWATCH",),
    "exec": ("EXEC",),  # Refused without a transaction, and so not done.
    "multi": ("MULTI",),
}
"""Right → a question that shows whether it is given. `multi` stands last: it begins what the
`RIGHT_QUESTIONS` are put into, and no process ends it."""
_QUESTIONS = """
get KEY, mget KEY, exists KEY, strlen KEY, hget KEY f, hmget KEY f, hgetall KEY, hlen KEY
hscan KEY 0, smembers KEY, zcard KEY, zrange KEY 0 0, zrangebylex KEY - +, zrevrangebylex KEY + -
xread STREAMS KEY 0, xrevrange KEY + -, set KEY v, setrange KEY 0 v, incr KEY, hset KEY f v
hdel KEY f, hincrby KEY f 1, sadd KEY m, srem KEY m, zadd KEY 0 m, zrem KEY m, xadd KEY * f v
xtrim KEY MAXLEN 0, pexpire KEY 1, del KEY, scan 0, time, info, wait 0 1, cluster|slots
"""
RIGHT_QUESTIONS: Mapping[str, Command] = {
    words[0]: (*words[0].upper().split("|"), *(PROBE if at == "KEY" else at for at in words[1:]))
    for words in map(str.split, _QUESTIONS.strip().replace("\n", ",").split(","))
}
"""Right → a question that shows whether it is given, if it stands in a transaction."""
RIGHTS: Mapping[RedisUser, Sequence[str]] = {
    # The first two need no question: who is connected has them, or has no use for them.
    RedisUser.STORE: ("ping", "select", *TRANSACTION_QUESTIONS, *RIGHT_QUESTIONS),
    RedisUser.SENTINEL: ("ping", "sentinel|get-master-addr-by-name", "sentinel|masters"),
    RedisUser.MONITOR: ("ping", "info", "dbsize", "slowlog|get", "slowlog|len", "latency|latest"),
}


def acl_rules(role: RedisUser) -> str:
    """Return what a user of a role is given: keys, no channels, commands one by one."""
    keys = f"~{STORE_KEYS} " if role is RedisUser.STORE else ""
    allowed = " ".join(f"+{right}" for right in RIGHTS[role])
    return f"{keys}resetchannels -@all {allowed}"


async def missing_rights(send: Send, unused: Sequence[str]) -> tuple[str, ...]:
    """Return the rights of the store, but those unused, that a user lacks, as ACL rules name them.

    Redis decides when a command enters a transaction. This one is never executed: the caller
    closes the connection. Keys that may not be reached are `~neve:*`.
    """
    opened = await send([*TRANSACTION_QUESTIONS.values()])
    lacks = _denied(TRANSACTION_QUESTIONS, opened)
    if not isinstance(opened[-1], Exception):
        lacks += _denied(RIGHT_QUESTIONS, await send([*RIGHT_QUESTIONS.values()]))
    return tuple(right for right in dict.fromkeys(lacks) if right not in unused)


def _denied(asked: Mapping[str, Command], answers: Sequence[Reply]) -> list[str]:
    # `EXEC` is refused in a longer sentence, which gives this reason.
    texts = [str(reply) if isinstance(reply, Exception) else "" for reply in answers]
    denied = [(right, text) for right, text in zip(asked, texts, strict=True) if DENIED in text]
    return [f"~{STORE_KEYS}" if _OF_KEY.search(text) else right for right, text in denied]


# ----------------------------------------------------------------------------------------- Keyspace


StreamEntry = tuple[str, Mapping[bytes, bytes]]
"""Position and fields."""


class LinkLostError(CompactionError):
    """The connection broke or timed out. Stays within the stores.

    `sent`: whether an `EXEC` may have reached the server, so that the outcome is unknown.
    """

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class StoreBusyError(LinkLostError):
    """The store answers but refuses work now: it is full, is starting or fails over.

    Nothing was written. The state is temporary or needs an operator; the reason is the store's own.
    """


class KeyspaceSession(Protocol):
    """One connection, held for one try of one transaction."""

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """WATCH the keys, then read, in one round trip. May be called again to read further.

        Raises:
            LinkLostError: The connection is gone; nothing was written.
        """
        ...

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI, the effects and EXEC; return False if a watched key has changed.

        Args:
            effects: Commands for one slot.
            durable: Whether to wait for the configured number of replicas.

        Raises:
            LinkLostError: With `sent`, the effects may be applied, or may still be on their way.
        """
        ...


class Keyspace(Protocol):
    """A Redis, or an equivalent."""

    def session(self) -> AbstractAsyncContextManager[KeyspaceSession]:
        """Return a session on a separate connection; its watches end with it."""
        ...

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, all in one round trip (to each node).

        Reads of one batch in one slot happen at one moment (one MULTI).

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        """Return entries of streams after the given positions; wait if there are none."""
        ...

    async def health(self) -> StoreHealth:
        """Return the free memory and the durability of the store.

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def keep_reserve(self) -> None:
        """Reserve memory while there is room, so that a full store can be emptied.

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
