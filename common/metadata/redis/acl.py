"""What users of a Redis may do for Névé, each command by name: one list for all who ask.

    rules            what such a user is given, in the words of Redis
    missing_rights   what the user of a server is not given, without doing any of it

The rules are those of `redis.io/docs/latest/operate/oss_and_stack/management/security/acl`, in
words that Redis 6.2 and every Valkey know. `hello`, `auth` and `reset` need no right.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from common.metadata.keyspace import Command, Reply
from common.metadata.redis.connection import Link, ReplyError, text_of

KEYS = "neve:*"
"""Which keys the store has; `common.metadata.keys` makes them."""
PROBE = "neve:rights"
"""A key that is never written: questions name it."""


class RedisUser(StrEnum):
    """The purpose of a user of Redis."""

    STORE = "store"
    """Coordinator, gateway and compactors: the user of `store.url`."""
    SENTINEL = "sentinel"
    """The same on Sentinels: may ask where the primary is, and change nothing."""
    MONITOR = "monitor"
    """Who watches the server: figures of it, and no key."""


TRANSACTION: Mapping[str, Command] = {
    "watch": ("WATCH", PROBE),
    "unwatch": ("UNWATCH",),
    # Refused without a transaction, and so not done.
    "exec": ("EXEC",),
    "multi": ("MULTI",),
}
"""Right → a question that shows whether it is given. `multi` stands last: it begins what the
questions of `STORE` are put into, and no process ends it."""
_QUESTIONS = """
get KEY, mget KEY, exists KEY, strlen KEY, hget KEY f, hmget KEY f, hgetall KEY, hlen KEY
hscan KEY 0, smembers KEY, zcard KEY, zrange KEY 0 0, zrangebylex KEY - +, zrevrangebylex KEY + -
xread STREAMS KEY 0, xrevrange KEY + -, set KEY v, setrange KEY 0 v, incr KEY, hset KEY f v
hdel KEY f, hincrby KEY f 1, sadd KEY m, srem KEY m, zadd KEY 0 m, zrem KEY m, xadd KEY * f v
xtrim KEY MAXLEN 0, pexpire KEY 1, del KEY, scan 0, time, info, wait 0 1, cluster|slots
"""
STORE: Mapping[str, Command] = {
    words[0]: (*words[0].upper().split("|"), *(PROBE if at == "KEY" else at for at in words[1:]))
    for words in map(str.split, _QUESTIONS.strip().replace("\n", ",").split(","))
}
"""Right → a question that shows whether it is given, if it stands in a transaction."""
GREETING = ("ping", "select")
"""What needs no question: who is connected has it, or has no use for it."""
RIGHTS: Mapping[RedisUser, Sequence[str]] = {
    RedisUser.STORE: (*GREETING, *TRANSACTION, *STORE),
    RedisUser.SENTINEL: ("ping", "sentinel|get-master-addr-by-name", "sentinel|masters"),
    RedisUser.MONITOR: ("ping", "info", "dbsize", "slowlog|get", "slowlog|len", "latency|latest"),
}
"""RedisUser → the commands that it may send."""
DENIED = "NOPERM"
_OF_KEY = re.compile(r"access (a|one of the) keys?\b")


def rules(role: RedisUser) -> str:
    """Return what a user of a role is given: keys, no channels, commands one by one."""
    keys = f"~{KEYS} " if role is RedisUser.STORE else ""
    allowed = " ".join(f"+{right}" for right in RIGHTS[role])
    return f"{keys}resetchannels -@all {allowed}"


async def missing_rights(
    link: Link, timeout_s: float, *, unused: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the rights of the store that the user of a server lacks; nothing is changed.

    Redis decides when a command enters a transaction. This one is never executed: the link is
    closed.

    Args:
        link: To the server.
        timeout_s: Longest wait for an answer.
        unused: Rights that this store does not use.

    Returns:
        Names of commands as ACL rules write them, and `~neve:*` for keys.

    Raises:
        LinkLostError: The link broke.
    """
    try:
        opened = await link.exchange(list(TRANSACTION.values()), timeout_s)
        lacks = _denied(TRANSACTION, opened)
        if not isinstance(opened[-1], ReplyError):
            lacks += _denied(STORE, await link.exchange(list(STORE.values()), timeout_s))
    finally:
        await link.disconnect()
    return tuple(right for right in dict.fromkeys(lacks) if right not in unused)


def _denied(asked: Mapping[str, Command], answers: Sequence[Reply]) -> list[str]:
    # `EXEC` is refused in a longer sentence, which gives this reason.
    texts = zip(asked, map(_text_of, answers), strict=True)
    denied = [(right, text) for right, text in texts if DENIED in text]
    return [f"~{KEYS}" if _OF_KEY.search(text) else right for right, text in denied]


def _text_of(answer: Reply) -> str:
    return text_of(answer) if isinstance(answer, ReplyError) else str(answer)


def explained(refusal: str) -> str:
    """Return what Redis says when it refuses somebody, and what to do if it is about rights."""
    if not refusal.startswith(DENIED):
        return refusal
    return (
        f"{refusal}; `neve redis-acl` prints the rights that the user in store.url needs, and"
        " `ACL SETUSER` gives them"
    )
