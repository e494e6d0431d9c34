"""The Redis commands for reads and effects, as values.

A command is a tuple of words. Redis receives the words unchanged; the memory keyspace
executes the same words itself. A change sends no other commands.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Word = str | bytes | int | float
Command = tuple[Word, ...]
Reply = Any
"""A reply: bytes, int, list, dict of bytes, set of bytes, or None (RESP3)."""

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
