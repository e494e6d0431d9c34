"""`TabletStore` over any keyspace: changes by the executor, reads decoded here."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from common.errors import MetadataError, UnavailableError
from common.metadata import reading
from common.metadata.changes import AddFiles, Change, CreateTable, Outcome
from common.metadata.codec_file import unpack_files
from common.metadata.commands import TIME, hgetall, hmget, member_at, members_after, zcard
from common.metadata.executor import Counts, Executor, Patience, time_s
from common.metadata.health import StoreHealth
from common.metadata.inspected import Inspected
from common.metadata.inspection import inspect_tablets
from common.metadata.keys import STORE, TableKeys, TabletKeys
from common.metadata.keyspace import Keyspace, LinkLostError
from common.metadata.mutation import transaction_for
from common.metadata.mutation.notes import FORMAT, found_store
from common.metadata.ranges import RangeReader
from common.metadata.readings import Unreadable
from common.metadata.request_changes import BeginOperation, Select, SubmitRequest
from common.metadata.request_reads import RequestReads
from common.model.file import DataFile
from common.model.tablet import Record, Tablet, TabletId

GROWING = (AddFiles, CreateTable, Select, SubmitRequest, BeginOperation)
"""Changes that let a store grow, and wait while it is full; all others may use its reserve.

Also reservations and commits: the files that a compaction replaces leave the store at last.
"""


class KeyspaceStore(RequestReads):
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
        super().__init__(keyspace, sleep)
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
        grows = isinstance(change, GROWING)
        return await self._executor.run(transaction_for(change), grows=grows)

    async def health(self) -> StoreHealth:
        """Return how much room the store has, and what it would survive."""
        try:
            return await self._keyspace.health()
        except LinkLostError as error:
            raise UnavailableError(f"the metadata store does not answer: {error}") from error

    async def keep_reserve(self) -> None:
        """Set memory aside in the store while there is room."""
        try:
            await self._keyspace.keep_reserve()
        except LinkLostError as error:
            raise UnavailableError(f"the metadata store does not answer: {error}") from error

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

    async def tablet(self, tablet: TabletId) -> Tablet | None:
        """Return all of a tablet."""
        return (await self.tablets([tablet]))[0]

    async def tablet_ids(
        self, table: str, after: bytes | None = None, count: int = 1000
    ) -> Sequence[TabletId]:
        """Return the next tablets of a table."""
        ends = await self._read(members_after(TableKeys(table).index, after, count))
        return [TabletId(table, end) for end in ends]

    async def every(self, table: str, count: int) -> Sequence[bytes]:
        """Return the end of every `count`-th tablet but the last."""
        index = TableKeys(table).index
        places = range(count - 1, await self._read(zcard(index)) - 1, count)
        found = await reading.read_each(
            self._fetch, [member_at(index, place) for place in places], lambda _number, ends: ends
        )
        return [end for ends in found for end in ends]

    async def locate(self, table: str, key: bytes) -> TabletId | None:
        """Return the tablet that holds a key: the first whose end is not before it."""
        found = await self._read(members_after(TableKeys(table).index, key, 1, inclusive=True))
        return TabletId(table, found[0]) if found else None

    async def locate_each(self, table: str, keys: Sequence[bytes]) -> Sequence[TabletId | None]:
        """Return the tablets that hold some keys."""
        index = TableKeys(table).index
        return await reading.read_each(
            self._fetch,
            [members_after(index, key, 1, inclusive=True) for key in keys],
            lambda _, found: TabletId(table, found[0]) if found else None,
        )

    async def tablets(self, tablets: Sequence[TabletId]) -> Sequence[Tablet | None]:
        """Return many tablets, each read at one moment."""
        return await reading.read_tablets(self._fetch, tablets)

    async def readable(self, tablets: Sequence[TabletId]) -> Sequence[Tablet | Unreadable | None]:
        """Return many tablets, and what keeps others from being read."""
        return await reading.read_readable(self._fetch, tablets)

    async def files(self, tablets: Sequence[TabletId]) -> Sequence[Mapping[str, DataFile]]:
        """Return only the files of many tablets."""
        keys = [TabletKeys.of(tablet) for tablet in tablets]
        return await reading.read_each(
            self._fetch,
            [hgetall(each.files) for each in keys],
            lambda number, stored: unpack_files(keys[number].files, stored),
        )

    async def held_among(
        self, asked: Mapping[TabletId, Sequence[str]]
    ) -> Sequence[Collection[str]]:
        """Return those of some paths that are files of their tablet."""
        wanted = [(tablet, list(paths)) for tablet, paths in asked.items() if paths]
        found = await reading.read_each(
            self._fetch,
            [hmget(TabletKeys.of(tablet).files, paths) for tablet, paths in wanted],
            lambda number, stored: {
                path
                for path, entry in zip(wanted[number][1], stored, strict=True)
                if entry is not None
            },
        )
        held = dict(zip((tablet for tablet, _ in wanted), found, strict=True))
        return [held.get(tablet, set()) for tablet in asked]

    async def inspect(self, tablets: Sequence[TabletId]) -> Sequence[Inspected]:
        """Return everything under the keys of tablets."""
        return await inspect_tablets(self._fetch, tablets)

    async def records(self, tablets: Sequence[TabletId]) -> Sequence[Record | None]:
        """Return the records only."""
        return await reading.read_records(self._fetch, tablets)

    async def read_range(
        self, table: str, start: bytes | None = None, end: bytes | None = None
    ) -> Sequence[Tablet]:
        """Return the tablets that cover a range, by the tile rule."""
        found = await self.table(table)
        return await self._ranges.read(found, start, end) if found else ()
