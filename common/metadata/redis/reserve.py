"""Room in a full Redis: memory set aside, and given back when it is needed.

At `maxmemory` Redis refuses every MULTI, also one that only deletes or reads; single
commands that delete are allowed. So a string of nothing is kept, and whoever is refused
deletes it: then reads, commits, releases and the collector go on. A key tells everybody
that the store was full: adds and whatever else lets it grow wait until it has room for a
new reserve and as much again.
"""

from collections.abc import Awaitable, Callable

from common.metadata import codec_table
from common.metadata.commands import Command, Reply, delete, hgetall, set_string
from common.metadata.health import StoreHealth
from common.metadata.keys import FULL, RESERVE, SHORT_STREAM_MAX, TABLES, TableKeys
from common.metadata.redis.link import ReplyError

SHARE_MAX = 16
"""The reserve is at most such a part of `maxmemory`, so that a small store has room for tables."""

Send = Callable[[list[Command]], Awaitable[list[Reply]]]
"""Sends single commands and returns the answers, errors among them as values."""

STATE: Command = ("INFO",)


class Reserve:
    """The memory set aside in one Redis. Nothing is remembered here: others do the same."""

    def __init__(self, send: Send, size_max_bytes: int, replicas_wanted: int = 0) -> None:
        """Send nothing yet.

        Args:
            send: To the Redis.
            size_max_bytes: Of the reserve; 0: keep none.
            replicas_wanted: How many replicas must have an add.
        """
        self._send = send
        self._size_max_bytes = size_max_bytes
        self._replicas_wanted = replicas_wanted

    async def health(self) -> StoreHealth:
        """Return what the server says of itself."""
        info, full = await self._send([STATE, ("EXISTS", FULL)])
        if isinstance(info, ReplyError):
            return StoreHealth(full=full == 1)
        said = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        failures = [
            f"cannot write its {name}"
            for name, field in _WRITES.items()
            if said.get(field, "ok") != "ok"
        ]
        return StoreHealth(
            policy=said.get("maxmemory_policy", StoreHealth().policy),
            memory_bytes=int(said.get("used_memory", 0)),
            memory_max_bytes=int(said.get("maxmemory", 0)),
            full=full == 1,
            append_only=said.get("aof_enabled", "1") == "1",
            write_failure=", ".join(failures),
            replicas=int(said.get("connected_slaves", 0)),
            replicas_wanted=self._replicas_wanted,
        )

    async def keep(self) -> None:
        """Set the memory aside if there is room for it twice; then adds go on, too."""
        health = await self.health()
        (present,) = await self._send([("STRLEN", RESERVE)])
        wanted = min(self._size_max_bytes, health.memory_max_bytes // SHARE_MAX)
        if not wanted:
            if present or health.full:
                await self._send([delete(RESERVE, FULL)])
            return
        if present == wanted and not health.full:
            return
        room = health.memory_max_bytes - health.memory_bytes + present
        if room >= 2 * wanted:
            # The old one goes first: it may be larger. The key is the last to go, so that
            # nobody grows into what is about to be set aside.
            fill: Command = ("SETRANGE", RESERVE, wanted - 1, b"\0")
            await self._send([delete(RESERVE), fill, delete(FULL)])

    async def give_back(self) -> None:
        """Make room in a store that is full: shorten streams, then give the reserve back."""
        (names,) = await self._send([hgetall(TABLES)])
        tables = [] if isinstance(names, ReplyError) else list(names.items())
        trims = [
            ("XTRIM", stream, "MAXLEN", "~", SHORT_STREAM_MAX)
            for name, entry in tables
            for keys in (TableKeys(codec_table.unpack_name(name, entry).id),)
            for stream in (keys.history, keys.changes)
        ]
        await self._send([*trims, delete(RESERVE), set_string(FULL, 1)])


_WRITES = {
    "append-only file": "aof_last_write_status",
    "snapshot": "rdb_last_bgsave_status",
}
"""What is written to disk → what INFO calls its state."""
