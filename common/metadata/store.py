"""`TabletStore` over any keyspace: changes by the executor, reads decoded here."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from common.errors import MetadataError, UnavailableError
from common.metadata import codec_table, reading
from common.metadata.changes import Change, Outcome
from common.metadata.codec_file import unpack_files
from common.metadata.commands import (
    TIME,
    Command,
    Reply,
    get,
    hget,
    hgetall,
    hscan,
    members_after,
    newest,
)
from common.metadata.executor import Counts, Executor, Patience, time_s
from common.metadata.keys import (
    COORDINATOR,
    DOORBELLS,
    STORE,
    TABLES,
    TableKeys,
    TabletKeys,
    table_of_channel,
)
from common.metadata.keyspace import Keyspace, LinkLostError
from common.metadata.mutation import transaction_for
from common.metadata.mutation.notes import FORMAT, found_store
from common.metadata.ports import (
    AttemptOutcome,
    GarbageEntry,
    HistoryEntry,
    Manifest,
    PinEntry,
    TabletChanged,
)
from common.metadata.ranges import RangeReader
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import Record, Tablet, TabletId

READ_TRIES_MAX = 3
"""Tries of one read whose connection broke."""
SCAN_COUNT = 1000
"""Fields of a large hash read per round trip."""


class KeyspaceStore:
    """The store that both adapters share; see `common.metadata.ports.TabletStore`."""

    def __init__(
        self,
        keyspace: Keyspace,
        *,
        patience: Patience,
        sleep: Callable[[float], Awaitable[None]],
        chance: Callable[[], float],
        new_store_id: Callable[[], str],
    ) -> None:
        """Stand on a keyspace.

        Args:
            keyspace: Where everything is.
            patience: How often a change is tried.
            sleep: Waits between tries.
            chance: From 0 to below 1, for the length of these waits.
            new_store_id: Names a store that has none yet.
        """
        self._keyspace = keyspace
        self._executor = Executor(keyspace, patience, sleep, chance)
        self._new_store_id = new_store_id
        self._store_id: str | None = None
        self._ranges = RangeReader(self._fetch)

    @property
    def counts(self) -> Counts:
        """Changes, tries, conflicts and lost connections since the start."""
        return self._executor.counts

    async def close(self) -> None:
        """Give the connections back."""
        await self._keyspace.close()

    async def now_s(self) -> float:
        """Return the store's time."""
        return time_s(await self._read(TIME))

    async def apply(self, change: Change) -> Outcome:
        """Execute a change; see the port."""
        await self.store_id()
        return await self._executor.run(transaction_for(change))

    async def store_id(self) -> str:
        """Return the id of this store, made at first use."""
        if self._store_id is None:
            await self._executor.run(found_store(self._new_store_id()))
            stored = await self._read(hgetall(STORE))
            if stored.get(b"format") != str(FORMAT).encode():
                found = stored.get(b"format", b"none").decode(errors="replace")
                message = f"{STORE}: the store has format {found}, this release reads {FORMAT}"
                raise MetadataError(message)
            self._store_id = stored[b"id"].decode()
        return self._store_id

    async def names(self) -> Mapping[str, str]:
        """Return name → table id."""
        stored = await self._read(hgetall(TABLES))
        return {
            name.decode(): codec_table.unpack_name(f"{TABLES} {name!r}", entry)[0]
            for name, entry in sorted(stored.items())
        }

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
        return await self.table(codec_table.unpack_name(f"{TABLES} {name}", stored)[0])

    async def tablet(self, tablet: TabletId) -> Tablet | None:
        """Return all of a tablet."""
        return (await self.tablets([tablet]))[0]

    async def tablet_ids(
        self, table: str, after: bytes | None = None, count: int = 1000
    ) -> Sequence[TabletId]:
        """Return the next tablets of a table."""
        ends = await self._read(members_after(TableKeys(table).index, after, count))
        return [TabletId(table, end) for end in ends]

    async def locate(self, table: str, key: bytes) -> TabletId | None:
        """Return the tablet that holds a key: the first whose end is not before it."""
        found = await self._read(members_after(TableKeys(table).index, key, 1, inclusive=True))
        return TabletId(table, found[0]) if found else None

    async def tablets(self, tablets: Sequence[TabletId]) -> Sequence[Tablet | None]:
        """Return many tablets, each read at one moment."""
        return await reading.read_tablets(self._fetch, tablets)

    async def files(self, tablets: Sequence[TabletId]) -> Sequence[Mapping[str, DataFile]]:
        """Return only the files of many tablets."""
        keys = [TabletKeys.of(tablet) for tablet in tablets]
        return await reading.read_each(
            self._fetch,
            [hgetall(each.files) for each in keys],
            lambda number, stored: unpack_files(keys[number].files, stored),
        )

    async def records(self, tablets: Sequence[TabletId]) -> Sequence[Record | None]:
        """Return the records only."""
        return await reading.read_records(self._fetch, tablets)

    async def read_range(
        self, table: str, start: bytes | None = None, end: bytes | None = None
    ) -> Sequence[Tablet]:
        """Return the tablets that cover a range, by the tile rule."""
        found = await self.table(table)
        return await self._ranges.read(found, start, end) if found else ()

    async def outcome(self, table: str, attempt: str) -> AttemptOutcome | None:
        """Return how an attempt ended."""
        key = TableKeys(table).outcome(attempt)
        stored = await self._read(get(key))
        return codec_table.OUTCOME.unpack(key, stored, attempt=attempt) if stored else None

    async def generation(self, table: str) -> int:
        """Return the table's generation."""
        return int(await self._read(get(TableKeys(table).generation)) or 0)

    async def manifest(self, table: str) -> Manifest | None:
        """Return the last published manifest."""
        key = TableKeys(table).manifest
        stored = await self._read(get(key))
        return codec_table.MANIFEST.unpack(key, stored) if stored else None

    async def coordinator(self) -> str | None:
        """Return the id of the coordinator that leads."""
        stored = await self._read(get(COORDINATOR))
        return stored.decode() if stored else None

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
        return entries[0][0].decode() if entries else "0-0"

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

    async def listen(self) -> AsyncIterator[str]:
        """Yield table ids whose stream has news."""
        async for channel in self._keyspace.listen(DOORBELLS):
            table = table_of_channel(channel)
            if table is not None:
                yield table

    async def _read(self, command: Command) -> Reply:
        return (await self._fetch([[command]]))[0][0]

    async def _fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read, on another connection if one broke."""
        for left in reversed(range(READ_TRIES_MAX)):
            try:
                return await self._keyspace.fetch(batches)
            except LinkLostError as error:
                if not left:
                    message = f"the metadata store does not answer: {error}"
                    raise UnavailableError(message) from error
        raise AssertionError(READ_TRIES_MAX)
