"""Memory set aside in Redis, and given back when it is full, so that a full store can be emptied.

At `maxmemory` Redis refuses every MULTI, also one that only deletes or reads; single commands
that delete are allowed. So a string of nothing is kept, and a client that is refused deletes it:
then reads, commits, releases and the collector go on. A key shows to all that the store was full:
adds and other changes that let it grow wait until it has room for a new reserve and as much again.

Nothing is remembered here: every process does the same. Each key has the tags of its node. The node
has the key with the first tag. What it holds under the other tags came from another node of a
cluster, and is deleted.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from common.metadata.codec import table
from common.metadata.commands import Command, Reply, delete, set_string
from common.metadata.keys import FULL, RESERVE, SHORT_STREAM_MAX, TableKeys
from common.metadata.redis.connection import ReplyError
from common.metadata.store_values import StoreHealth

SHARE_MAX = 16
"""The reserve is at most such a part of `maxmemory`, so that a small store has room for tables."""

Send = Callable[[list[Command]], Awaitable[list[Reply]]]
"""Sends single commands and returns the answers, errors among them as values."""

_WRITES = {
    "append-only file": "aof_last_write_status",
    "snapshot": "rdb_last_bgsave_status",
}
"""What is written to disk → what INFO calls its state."""


def questions(tag: str) -> list[Command]:
    """Return what `health_of` needs to know of a Redis."""
    return [("INFO",), ("EXISTS", FULL + tag)]


def health_of(info: Reply, full: Reply, replicas_wanted: int = 0) -> StoreHealth:
    """Return what a Redis reports of itself, by its answers to `questions`."""
    if isinstance(info, ReplyError):
        return StoreHealth(full=full == 1)
    fields = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    failures = [
        f"cannot write its {name}"
        for name, field in _WRITES.items()
        if fields.get(field, "ok") != "ok"
    ]
    return StoreHealth(
        policy=fields.get("maxmemory_policy", StoreHealth().policy),
        memory_bytes=int(fields.get("used_memory", 0)),
        memory_max_bytes=int(fields.get("maxmemory", 0)),
        full=full == 1,
        append_only=fields.get("aof_enabled", "1") == "1",
        write_failure=", ".join(failures),
        replicas=int(fields.get("connected_slaves", 0)),
        replicas_wanted=replicas_wanted,
    )


async def keep_reserve(send: Send, tags: Sequence[str], size_max_bytes: int) -> None:
    """Set at most this memory aside if there is room for it twice; then adds go on, too."""
    reserve, full = RESERVE + tags[0], FULL + tags[0]
    strays = [delete(RESERVE + tag, FULL + tag) for tag in tags[1:]]
    info, is_full, present, *_ = await send([*questions(tags[0]), ("STRLEN", reserve), *strays])
    if isinstance(present, ReplyError):
        return  # It starts, or has its keys elsewhere by now: the next round keeps it.
    health = health_of(info, is_full)
    wanted = min(size_max_bytes, health.memory_max_bytes // SHARE_MAX)
    if not wanted:
        if present or health.full:
            await send([delete(reserve, full)])
        return
    if present == wanted and not health.full:
        return
    room = health.memory_max_bytes - health.memory_bytes + present
    if room >= 2 * wanted:
        # The old one goes first: it may be larger. The key is the last to go, so that no change
        # grows into what is about to be set aside.
        fill: Command = ("SETRANGE", reserve, wanted - 1, b"\0")
        await send([delete(reserve), fill, delete(full)])


async def give_back(send: Send, tag: str, table_ids: Iterable[str]) -> None:
    """Make room in a Redis that is full: shorten streams of its tables, then drop the reserve."""
    trims = [
        ("XTRIM", stream, "MAXLEN", "~", SHORT_STREAM_MAX)
        for keys in map(TableKeys, table_ids)
        for stream in (keys.history, keys.changes)
    ]
    await send([*trims, delete(RESERVE + tag), set_string(FULL + tag, 1)])


def ids_of_names(names: Reply) -> list[str]:
    """Return the ids of tables in the answer to a read of all names."""
    if isinstance(names, ReplyError):
        return []
    return [table.unpack_name(name, entry).id for name, entry in names.items()]
