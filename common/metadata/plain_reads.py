"""The plain reads of a store: tables by id and name, marks, garbage, pins, history, feed."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from common.errors import BrokenValueError, MetadataError, RequestError, UnavailableError
from common.metadata import codec_table, reading
from common.metadata.codec_tablet import unpack_running
from common.metadata.commands import (
    Command,
    Reply,
    entry_at,
    get,
    hget,
    hgetall,
    hmget,
    hscan,
    newest,
    scan,
)
from common.metadata.keys import (
    COORDINATOR,
    DOORBELLS,
    LIMITS,
    TABLE_KEYS,
    TABLES,
    TableKeys,
    table_of_channel,
)
from common.metadata.keyspace import Keyspace, LinkLostError, StoreBusyError
from common.metadata.readings import (
    AttemptOutcome,
    CallMark,
    Claim,
    GarbageEntry,
    HistoryEntry,
    ListedTables,
    Loss,
    Manifest,
    NamedTable,
    PinEntry,
    TabletChanged,
)
from common.model.limit import Scope
from common.model.table import Table
from common.model.tablet import Reservation

READ_TRIES_MAX = 3
"""Tries of one read whose connection broke."""
BUSY_TRIES_MAX, BUSY_PAUSE_S = 8, 0.25
"""Tries of one read that the store refuses because it starts, fails over or is full."""
SCAN_COUNT = 1000
"""Fields of a large hash read per round trip."""
NO_CHANGES = "0-0"
"""The position before every entry of a stream."""


class PlainReads:
    """Reads that concern no tablet's files; see `common.metadata.ports.TabletStore`."""

    def __init__(self, keyspace: Keyspace, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Read from `keyspace`; `sleep` waits while it is busy."""
        self._keyspace = keyspace
        self._sleep = sleep

    async def names(self) -> Mapping[str, str]:
        """Return name → table id."""
        return {each.name: each.id for each in await self.named_tables()}

    async def named_tables(self) -> Sequence[NamedTable]:
        """Return every name that is taken, with the location of its table."""
        stored = await self._read(hgetall(TABLES))
        return [codec_table.unpack_name(name, entry) for name, entry in sorted(stored.items())]

    async def listed_tables(self) -> ListedTables:
        """Return the named tables that can be read, and what keeps others from that."""
        broken: dict[str, str] = {}
        ids: dict[str, str] = {}
        for name, entry in sorted((await self._read(hgetall(TABLES))).items()):
            try:
                ids[name.decode(errors="replace")] = codec_table.unpack_name(name, entry).id
            except BrokenValueError as error:
                broken[name.decode(errors="replace")] = str(error)
        keys = [TableKeys(table) for table in ids.values()]
        replies = await self._fetch([[hgetall(each.table)] for each in keys])
        tables: list[Table] = []
        for name, each, (stored,) in zip(ids, keys, replies, strict=True):
            try:
                if stored:
                    tables.append(codec_table.unpack_table(each.table, ids[name], stored))
            except BrokenValueError as error:
                broken[name] = str(error)
        known = frozenset(ids[name] for name in broken if name in ids)
        return ListedTables(tables=tuple(tables), broken=broken, broken_ids=known)

    async def table_ids(self) -> Sequence[str]:
        """Return the ids of all tables, named or not; walks over every key of the store."""
        found: set[str] = set()
        cursor = 0
        while True:
            position, keys = await self._read(scan(TABLE_KEYS, cursor, SCAN_COUNT))
            found |= {key.decode().split("{", 1)[1].split("}", 1)[0] for key in keys}
            if (cursor := int(position)) == 0:
                return sorted(found)

    async def tables(self) -> Sequence[Table]:
        """Return every named table, by name."""
        ids = list((await self.names()).values())
        keys = [TableKeys(table) for table in ids]
        replies = await self._fetch([[hgetall(each.table)] for each in keys])
        found = zip(keys, replies, strict=True)
        return [
            codec_table.unpack_table(each.table, each.id, stored)
            for each, (stored,) in found
            if stored
        ]

    async def table(self, table: str) -> Table | None:
        """Return a table by id."""
        keys = TableKeys(table)
        stored = await self._read(hgetall(keys.table))
        return codec_table.unpack_table(keys.table, table, stored) if stored else None

    async def table_named(self, name: str) -> Table | None:
        """Return a table by name."""
        stored = await self._read(hget(TABLES, name))
        if stored is None:
            return None
        return await self.table(codec_table.unpack_name(name.encode(), stored).id)

    async def outcome(self, table: str, attempt: str) -> AttemptOutcome | None:
        """Return how an attempt ended."""
        key = TableKeys(table).outcome(attempt)
        stored = await self._read(get(key))
        return codec_table.OUTCOME.unpack(key, stored, attempt=attempt) if stored else None

    async def call(self, table: str, call: str) -> CallMark | None:
        """Return the mark of an accepted call."""
        key = TableKeys(table).call(call)
        stored = await self._read(get(key))
        return codec_table.CALL.unpack(key, stored) if stored else None

    async def generation(self, table: str) -> int:
        """Return the table's generation."""
        return int(await self._read(get(TableKeys(table).generation)) or 0)

    async def loss(self, table: str) -> Loss | None:
        """Return between which moments changes were lost."""
        key = TableKeys(table).loss
        stored = await self._read(get(key))
        return codec_table.LOSS.unpack(key, stored) if stored else None

    async def manifest(self, table: str) -> Manifest | None:
        """Return the last published manifest."""
        key = TableKeys(table).manifest
        stored = await self._read(get(key))
        return codec_table.MANIFEST.unpack(key, stored) if stored else None

    async def drop_deletes(self, table: str) -> bool:
        """Return whether a table is being dropped with all of its files."""
        return int(await self._read(hget(TableKeys(table).table, codec_table.DELETES)) or 0) > 0

    async def claim(self) -> Claim | None:
        """Return who leads, and since when."""
        stored = await self._read(get(COORDINATOR))
        return codec_table.unpack_claim(stored) if stored else None

    async def limits(self) -> Mapping[Scope, int]:
        """Return the limits that operators have set; 0: none."""
        limits: dict[Scope, int] = {}
        for name, bytes_s in sorted((await self._read(hgetall(LIMITS))).items()):
            try:
                scope = Scope.parse(name.decode(errors="replace"))
            except RequestError:
                continue  # Nothing can run under it: no door lets such a name in.
            try:
                limits[scope] = int(bytes_s)
            except ValueError as error:
                raise MetadataError(f"{LIMITS} {scope.text} cannot be decoded: {error}") from error
        return limits

    async def garbage(self, table: str) -> Sequence[GarbageEntry]:
        """Return the files to delete; what comes in meanwhile may be missing."""
        key = TableKeys(table).garbage
        found: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            position, words = await self._read(hscan(key, cursor, SCAN_COUNT))
            found.update(zip(words[::2], words[1::2], strict=True))
            if (cursor := int(position)) == 0:
                break
        return [
            codec_table.GARBAGE.unpack(f"{key} {path!r}", stored, path=path.decode())
            for path, stored in sorted(found.items())
        ]

    async def garbage_among(self, table: str, paths: Sequence[str]) -> Sequence[str]:
        """Return those of some paths that are in garbage."""
        if not paths:
            return ()
        stored = await self._read(hmget(TableKeys(table).garbage, paths))
        return [path for path, entry in zip(paths, stored, strict=True) if entry is not None]

    async def uncommitted(self, table: str) -> Sequence[Reservation]:
        """Return what attempts held that ended without a commit, until a collector has looked."""
        key = TableKeys(table).uncommitted
        return [*unpack_running(key, await self._read(hgetall(key))).values()]

    async def pins(self, table: str) -> Sequence[PinEntry]:
        """Return the pins."""
        key = TableKeys(table).pins
        stored = await self._read(hgetall(key))
        return [
            codec_table.PIN.unpack(f"{key} {pin!r}", entry, pin=pin.decode())
            for pin, entry in sorted(stored.items())
        ]

    async def history(self, table: str, count: int = 100) -> Sequence[HistoryEntry]:
        """Return the newest finished attempts."""
        key = TableKeys(table).history
        return reading.history(table, key, await self._read(newest(key, count)))

    async def tail(self, table: str) -> str:
        """Return the position of the newest change."""
        entries = await self._read(newest(TableKeys(table).changes, 1))
        return entries[0][0].decode() if entries else NO_CHANGES

    async def remembers(self, table: str, position: str) -> bool:
        """Return whether an entry of a change stream is still there."""
        if position == NO_CHANGES:
            return True
        return bool(await self._read(entry_at(TableKeys(table).changes, position)))

    async def changes(
        self, after: dict[str, str], count: int = 1000, block_s: float = 1.0
    ) -> Sequence[TabletChanged]:
        """Return changes of several tables after the given positions."""
        if not after:
            return ()
        streams = {TableKeys(table).changes: table for table in after}
        positions = {key: after[table] for key, table in streams.items()}
        try:
            entries = await self._keyspace.wait_entries(positions, count, block_s)
        except LinkLostError as error:
            raise UnavailableError(f"the metadata store does not answer: {error}") from error
        return reading.changed_tablets(streams, entries)

    async def listen(self) -> AsyncGenerator[str, None]:
        """Yield table ids whose stream has news."""
        async with aclosing(self._keyspace.listen(DOORBELLS)) as channels:
            async for channel in channels:
                table = table_of_channel(channel)
                if table is not None:
                    yield table

    async def _read(self, command: Command) -> Reply:
        return (await self._fetch([[command]]))[0][0]

    async def _fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read, on another connection if one broke."""
        lost = busy = 0
        while True:
            try:
                return await self._keyspace.fetch(batches)
            except StoreBusyError as error:
                if (busy := busy + 1) == BUSY_TRIES_MAX:
                    message = f"the metadata store cannot be read now: {error}"
                    raise UnavailableError(message) from error
                await self._sleep(BUSY_PAUSE_S)
            except LinkLostError as error:
                if (lost := lost + 1) == READ_TRIES_MAX:
                    message = f"the metadata store does not answer: {error}"
                    raise UnavailableError(message) from error
