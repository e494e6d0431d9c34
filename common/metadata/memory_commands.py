"""What each command does to the values of a memory keyspace; the words are Redis's own."""

from collections.abc import Callable, Sequence

from common.metadata.commands import Command, Reply, Word
from common.metadata.memory_values import Values

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


def run(values: Values, command: Command) -> Reply:
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


def _get(values: Values, key: str, _words: Words) -> Reply:
    return values.find(key)


def _mget(values: Values, key: str, words: Words) -> Reply:
    return [values.find(each) for each in (key, *map(str, words))]


def _set(values: Values, key: str, words: Words) -> Reply:
    values.put(key, to_bytes(words[0]))
    if len(words) > 1:
        values.expire(key, int(words[2]) / 1000)
    return b"OK"


def _incr(values: Values, key: str, _words: Words) -> Reply:
    number = int(values.find(key) or 0) + 1
    values.put(key, b"%d" % number)
    return number


def _pexpire(values: Values, key: str, words: Words) -> Reply:
    return int(values.expire(key, int(words[0]) / 1000))


def _hget(values: Values, key: str, words: Words) -> Reply:
    return values.hash(key).get(to_bytes(words[0]))


def _hmget(values: Values, key: str, words: Words) -> Reply:
    stored = values.hash(key)
    return [stored.get(to_bytes(field)) for field in words]


def _hgetall(values: Values, key: str, _words: Words) -> Reply:
    return dict(values.hash(key))


def _hlen(values: Values, key: str, _words: Words) -> Reply:
    return len(values.hash(key))


def _hscan(values: Values, key: str, _words: Words) -> Reply:
    return [b"0", [word for pair in values.hash(key).items() for word in pair]]


def _hset(values: Values, key: str, words: Words) -> Reply:
    values.own_hash(key).update(_pairs(words))
    values.touch(key)
    return len(words) // 2


def _hdel(values: Values, key: str, words: Words) -> Reply:
    stored = values.hash(key)
    gone = [field for field in map(to_bytes, words) if stored.pop(field, None) is not None]
    if gone:
        values.touch(key)
        values.drop_empty(key)
    return len(gone)


def _hincrby(values: Values, key: str, words: Words) -> Reply:
    stored, field = values.own_hash(key), to_bytes(words[0])
    number = int(stored.get(field, b"0")) + int(words[1])
    stored[field] = b"%d" % number
    values.touch(key)
    return number


def _smembers(values: Values, key: str, _words: Words) -> Reply:
    return set(values.set_of(key))


def _sadd(values: Values, key: str, words: Words) -> Reply:
    stored = values.own_set(key)
    new = {to_bytes(word) for word in words} - stored
    stored |= new
    if new:
        values.touch(key)
    return len(new)


def _srem(values: Values, key: str, words: Words) -> Reply:
    stored = values.set_of(key)
    gone = {to_bytes(word) for word in words} & stored
    stored -= gone
    if gone:
        values.touch(key)
        values.drop_empty(key)
    return len(gone)


def _zadd(values: Values, key: str, words: Words) -> Reply:
    return sum(values.add_member(key, to_bytes(member)) for member in words[1::2])


def _zrem(values: Values, key: str, words: Words) -> Reply:
    members = values.members(key)
    gone = [member for member in map(to_bytes, words) if member in members]
    for member in gone:
        members.remove(member)
    if gone:
        values.touch(key)
        values.drop_empty(key)
    return len(gone)


def _zrangebylex(values: Values, key: str, words: Words) -> Reply:
    low, count = to_bytes(words[0]), int(words[4])
    members = values.members(key)
    if low == b"-":
        return members[:count]
    inclusive, least = low[:1] == b"[", low[1:]
    return [each for each in members if each > least or (inclusive and each == least)][:count]


def _zrevrangebylex(values: Values, key: str, words: Words) -> Reply:
    return values.members(key)[::-1][: int(words[4])]


def _zrange(values: Values, key: str, words: Words) -> Reply:
    return values.members(key)[int(words[0]) : int(words[1]) + 1]


def _zcard(values: Values, key: str, _words: Words) -> Reply:
    return len(values.members(key))


def _xadd(values: Values, key: str, words: Words) -> Reply:
    return values.append(key, int(words[2]), _pairs(words[4:])).encode()


def _xrevrange(values: Values, key: str, words: Words) -> Reply:
    highest = str(words[0])
    newest = [entry for entry in reversed(values.stream(key)) if highest in ("+", entry[0])][
        : int(words[3])
    ]
    return [
        [position.encode(), [word for pair in fields.items() for word in pair]]
        for position, fields in newest
    ]


def _publish(_values: Values, _key: str, _words: Words) -> Reply:
    return 0


_COMMANDS: dict[str, Callable[[Values, str, Words], Reply]] = {
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
    "PUBLISH": _publish,
}
