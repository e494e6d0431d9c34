"""Memory set aside in Redis, and given back when it is full, so that a full store can be emptied.

At `maxmemory` Redis refuses every MULTI, also one that only deletes or reads; single commands
that delete are allowed. So a string of nothing is kept, and whoever is refused deletes it: then
reads, commits, releases and the collector go on. A key tells everybody that the store was full:
adds and whatever else lets it grow wait until it has room for a new reserve and as much again.
"""

from collections.abc import Awaitable, Callable, Sequence

from common.metadata.codec import table
from common.metadata.commands import Command, Reply, delete, set_string
from common.metadata.keys import SHORT_STREAM_MAX, TableKeys
from common.metadata.redis.connection import ReplyError
from common.metadata.store_values import StoreHealth

SHARE_MAX = 16
"""The reserve is at most such a part of `maxmemory`, so that a small store has room for tables."""

Send = Callable[[list[Command]], Awaitable[list[Reply]]]
"""Sends single commands and returns the answers, errors among them as values."""

STATE: Command = ("INFO",)


class MemoryReserve:
    """The memory set aside in one Redis. Nothing is remembered here: others do the same."""

    def __init__(
        self,
        send: Send,
        table_ids: Callable[[], Awaitable[Sequence[str]]],
        *,
        size_max_bytes: int,
        replicas_wanted: int,
        reserves: Sequence[str],
        fulls: Sequence[str],
    ) -> None:
        """Send nothing yet.

        Args:
            send: To the Redis.
            table_ids: Returns the tables that have streams in it.
            size_max_bytes: Of the reserve; 0: keep none.
            replicas_wanted: How many replicas must have an add.
            reserves: Keys that the reserve may have in this Redis. It has the first one. What
                another one holds came from another node of a cluster, and is deleted.
            fulls: Keys that tell that it was full, likewise.
        """
        self._send = send
        self._table_ids = table_ids
        self._reserve, self._strays = reserves[0], [*reserves[1:], *fulls[1:]]
        self._full = fulls[0]
        self._size_max_bytes = size_max_bytes
        self._replicas_wanted = replicas_wanted

    async def health(self) -> StoreHealth:
        """Return what the server says of itself."""
        info, full = await self._send([STATE, ("EXISTS", self._full)])
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
        present, *_ = await self._send([("STRLEN", self._reserve), *map(delete, self._strays)])
        if isinstance(present, ReplyError):
            return  # It starts, or has its keys elsewhere by now: the next round keeps it.
        wanted = min(self._size_max_bytes, health.memory_max_bytes // SHARE_MAX)
        if not wanted:
            if present or health.full:
                await self._send([delete(self._reserve, self._full)])
            return
        if present == wanted and not health.full:
            return
        room = health.memory_max_bytes - health.memory_bytes + present
        if room >= 2 * wanted:
            # The old one goes first: it may be larger. The key is the last to go, so that
            # nobody grows into what is about to be set aside.
            fill: Command = ("SETRANGE", self._reserve, wanted - 1, b"\0")
            await self._send([delete(self._reserve), fill, delete(self._full)])

    async def give_back(self) -> None:
        """Make room in a store that is full: shorten streams, then give the reserve back."""
        trims = [
            ("XTRIM", stream, "MAXLEN", "~", SHORT_STREAM_MAX)
            for keys in map(TableKeys, await self._table_ids())
            for stream in (keys.history, keys.changes)
        ]
        await self._send([*trims, delete(self._reserve), set_string(self._full, 1)])


_WRITES = {
    "append-only file": "aof_last_write_status",
    "snapshot": "rdb_last_bgsave_status",
}
"""What is written to disk → what INFO calls its state."""


def ids_of_names(names: Reply) -> list[str]:
    """Return the ids of tables in the answer to a read of all names."""
    if isinstance(names, ReplyError):
        return []
    return [table.unpack_name(name, entry).id for name, entry in names.items()]
