"""`TabletStore` over any keyspace: the executor makes changes, reads are decoded here.

`walk_ids` and `walk_tiles` iterate over the tablets of a table.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Mapping,
    Sequence,
)

from common.errors import (
    BrokenValueError,
    ConflictError,
    MetadataError,
    RequestError,
    UnavailableError,
    UnknownOutcomeError,
)
from common.metadata import bulk_reads
from common.metadata.bulk_reads import RangeReader, read_raw_tablets, tile_after
from common.metadata.changes import (
    AddFiles,
    AppendGroup,
    AppendRows,
    BeginOperation,
    Change,
    Confirm,
    CreateTable,
    DailySums,
    Outcome,
    SaveSeries,
    SelectFiles,
    SubmitRequest,
    transaction_for,
)
from common.metadata.changes.upkeep import FORMAT, found_store
from common.metadata.codec import table as codec_table
from common.metadata.codec.layout import stored_name, whole_number
from common.metadata.codec.table import request_of_member, unpack_request
from common.metadata.codec.tablet import unpack_chunks, unpack_running
from common.metadata.executor import Executor, ExecutorCounts, RetryLimits, time_s
from common.metadata.keys import (
    COORDINATOR,
    HISTORY_MAX,
    LIMITS,
    REQUESTS_OPEN_MAX,
    SCALES,
    SERIES,
    STORE,
    STREAM_START,
    TABLE_KEYS,
    TABLES,
    TableKeys,
    TabletKeys,
    audit_key,
    retired_name,
)
from common.metadata.keyspace import (
    TIME,
    Command,
    Keyspace,
    LinkLostError,
    Reply,
    StoreBusyError,
    entry_at,
    get,
    hget,
    hgetall,
    hmget,
    hscan,
    last_members,
    member_at,
    members_after,
    mget,
    newest,
    scan,
    xadd,
    zcard,
)
from common.metadata.store_values import (
    CORRECTING_ENTRIES_MAX,
    AcceptedLoss,
    AttemptOutcome,
    CallMark,
    CoordinatorClaim,
    GarbageEntry,
    HistoryEntry,
    ListedTables,
    Manifest,
    Mirror,
    NamedTable,
    PinEntry,
    PublishingMark,
    RawTablet,
    StoreHealth,
    TableBuffer,
    TabletChanged,
    UnreadableTablet,
    correction_of,
)
from common.model.file import DataFile
from common.model.group import LimitScope
from common.model.request import Request
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, Record, Reservation, StoredChunks, Tablet, TabletId
from neve.api.planning import Correction

READ_TRIES_MAX = 3
"""Tries of one read whose connection broke."""
BUSY_TRIES_MAX, BUSY_PAUSE_S = 8, 0.25
"""Tries of one read that the store refuses because it is starting, fails over or is full."""
SCAN_COUNT = 1000
"""Fields of a large hash read per round trip."""
AUDIT_LINE = "line"
"""The field of an audit entry."""
HISTORY_READS = (100, 2_000, HISTORY_MAX + 1_000)
"""Entries of a history that are read at once, until one is found that is counted."""
GROWING = (
    AddFiles,
    AppendRows,
    AppendGroup,
    CreateTable,
    SelectFiles,
    SubmitRequest,
    BeginOperation,
    SaveSeries,
)
"""Changes that let a store grow and wait while it is full; all others may use its reserve.

Reservations and commits use the reserve, because compactions eventually remove files.
"""


class TabletStore:
    """The truth about tables and tablets.

    All reads are asynchronous and bounded; every read of a tablet is one moment (one MULTI).
    """

    def __init__(
        self,
        keyspace: Keyspace,
        *,
        patience: RetryLimits,
        sleep: Callable[[float], Awaitable[None]],
        chance: Callable[[], float],
        new_store_id: Callable[[], str],
    ) -> None:
        """Create a store on a keyspace.

        Args:
            keyspace: The keyspace.
            patience: Bounds on the tries of a change.
            sleep: Waits between tries.
            chance: Returns a random number from 0 to below 1, for the length of these waits.
            new_store_id: Creates an id for a new store.
        """
        self._keyspace = keyspace
        self._sleep = sleep
        self._executor = Executor(keyspace, patience, sleep, chance)
        self._new_store_id = new_store_id
        self._store_id: str | None = None
        self._ranges = RangeReader(self._fetch)

    @property
    def counts(self) -> ExecutorCounts:
        """Changes, tries, conflicts and lost connections since the start."""
        return self._executor.counts

    async def close(self) -> None:
        """Close the connections."""
        await self._keyspace.close()

    async def now_s(self) -> float:
        """Return the store's time (Redis `TIME`), the time base of holds, leases and stamps."""
        return time_s(await self._read(TIME))

    async def apply(self, change: Change, *, confirm: Confirm | None = None) -> Outcome:
        """Execute a change: watch, read, decide, write; retry conflicts within bounds.

        Unknown outcomes are resolved by the mark where the protocol has one; outcomes that stay
        unknown after bounded tries are returned as `Unknown`.

        Args:
            change: The change.
            confirm: Called in each try, after everything is watched and right before the write.
                Its observations outside the store are valid for the state that is written. Its
                errors are passed on.

        Raises:
            ConflictError: A requirement changed on every try.
            MetadataError: A stored value cannot be decoded, or has another format version.
        """
        await self.store_id()
        # A flush makes room.
        grows = isinstance(change, GROWING) and not getattr(change, "segment", 0)
        return await self._executor.run(transaction_for(change), grows=grows, confirm=confirm)

    async def health(self) -> StoreHealth:
        """Return the free memory and the durability of the store."""
        try:
            return await self._keyspace.health()
        except LinkLostError as error:
            raise UnavailableError(f"the metadata store does not answer: {error}") from error

    async def keep_reserve(self) -> None:
        """Reserve memory while there is room, so that a full store can be emptied."""
        try:
            await self._keyspace.keep_reserve()
        except LinkLostError as error:
            raise UnavailableError(f"the metadata store does not answer: {error}") from error

    async def store_id(self) -> str:
        """Return the random id of this store, created at first use; locations carry it.

        Raises:
            MetadataError: The store was written by a release with another format.
        """
        if self._store_id is None:
            await self._executor.run(found_store(self._new_store_id()))
            stored = await self._read(hgetall(STORE))
            if stored.get(b"format") != str(FORMAT).encode():
                stored_format = stored.get(b"format", b"none").decode(errors="replace")
                message = (
                    f"{STORE}: the store has format {stored_format}, this release reads {FORMAT}"
                )
                raise MetadataError(message)
            self._store_id = stored[b"id"].decode()
        return self._store_id

    # -------------------------------------------------------------------------------------- Tablets

    async def tablet(self, tablet: TabletId) -> Tablet | None:
        """Return a complete tablet, or None if its bounds do not exist."""
        return (await self.tablets([tablet]))[0]

    async def tablet_ids(
        self, table: str, after: bytes | None = None, count: int = 1000
    ) -> Sequence[TabletId]:
        """Return up to `count` tablets whose end is greater than `after`, ascending."""
        ends = await self._read(members_after(TableKeys(table).index, after, count))
        return [TabletId(table, end) for end in ends]

    async def tablet_count(self, table: str) -> int:
        """Return the number of tablets of a table."""
        count: int = await self._read(zcard(TableKeys(table).index))
        return count

    async def every(self, table: str, count: int) -> Sequence[bytes]:
        """Return the end of every `count`-th tablet, to divide a scan of a table.

        The last tablet is not included. The cost is low, whatever the number of tablets.
        """
        index = TableKeys(table).index
        indexes = range(count - 1, await self._read(zcard(index)) - 1, count)
        members = await bulk_reads.read_each(
            self._fetch,
            [member_at(index, index_in_table) for index_in_table in indexes],
            lambda _number, ends: ends,
        )
        return [end for ends in members for end in ends]

    async def locate(self, table: str, key: bytes) -> TabletId | None:
        """Return the tablet of a range-partitioned table that holds `key`, or None."""
        ends = await self._read(members_after(TableKeys(table).index, key, 1, inclusive=True))
        return TabletId(table, ends[0]) if ends else None

    async def locate_each(self, table: str, keys: Sequence[bytes]) -> Sequence[TabletId | None]:
        """Return `locate` for many keys, in few round trips; not at one moment."""
        index = TableKeys(table).index
        return await bulk_reads.read_each(
            self._fetch,
            [members_after(index, key, 1, inclusive=True) for key in keys],
            lambda _, ends: TabletId(table, ends[0]) if ends else None,
        )

    async def tablets(self, tablets: Sequence[TabletId]) -> Sequence[Tablet | None]:
        """Return many tablets, each read at one moment, in few round trips."""
        return await bulk_reads.read_tablets(self._fetch, tablets)

    async def readable(
        self, tablets: Sequence[TabletId], chunked: Container[TabletId] = ()
    ) -> Sequence[Tablet | UnreadableTablet | None]:
        """Return `tablets`, with the reason for each tablet that cannot be decoded.

        Args:
            tablets: The tablets.
            chunked: Those whose notes on chunks are read, too.
        """
        return await bulk_reads.read_readable(self._fetch, tablets, chunked)

    async def chunks(self, tablets: Sequence[TabletId]) -> Sequence[StoredChunks]:
        """Return the states of the chunks of many tablets; empty for a tablet that has none."""
        keys = [TabletKeys.of(tablet) for tablet in tablets]
        return await bulk_reads.read_each(
            self._fetch,
            [hgetall(key.chunks) for key in keys],
            lambda number, stored: unpack_chunks(keys[number].chunks, stored),
        )

    async def files(self, tablets: Sequence[TabletId]) -> Sequence[Mapping[str, DataFile]]:
        """Return only the files of many tablets: path → file; empty for a missing tablet."""
        return await bulk_reads.read_files(self._fetch, tablets)

    async def held_among(
        self, paths_of: Mapping[TabletId, Sequence[str]]
    ) -> Sequence[Collection[str]]:
        """Return which of some paths are files of their tablet, for each tablet.

        The cost depends on the number of paths, not on the number of files in the tablets.

        Args:
            paths_of: Tablet → paths.
        """
        tablet_paths = [(tablet, list(paths)) for tablet, paths in paths_of.items() if paths]
        entries = await bulk_reads.read_each(
            self._fetch,
            [hmget(TabletKeys.of(tablet).files, paths) for tablet, paths in tablet_paths],
            lambda number, stored: {
                path
                for path, entry in zip(tablet_paths[number][1], stored, strict=True)
                if entry is not None
            },
        )
        held = dict(zip((tablet for tablet, _ in tablet_paths), entries, strict=True))
        return [held.get(tablet, set()) for tablet in paths_of]

    async def inspect(self, tablets: Sequence[TabletId]) -> Sequence[RawTablet]:
        """Return all values under the keys of tablets, for `neve fsck`."""
        return await read_raw_tablets(self._fetch, tablets)

    async def records(self, tablets: Sequence[TabletId]) -> Sequence[Record | None]:
        """Return only the records, which show a scan whether to look further."""
        return await bulk_reads.read_records(self._fetch, tablets)

    async def read_range(
        self, table: str, start: bytes | None = None, end: bytes | None = None
    ) -> Sequence[Tablet]:
        """Return the tablets that cover keys from `start` to `end`, by the tile rule.

        Raises:
            ConflictError: Splits and merges kept changing the range.
        """
        current = await self.table(table)
        return await self._ranges.read(current, start, end) if current else ()

    # ------------------------------------------------------------------------------------- Requests

    async def request(self, table: str, request: str) -> Request | None:
        """Return a request, or None if it does not exist or ended long ago."""
        key = TableKeys(table).request(request)
        return unpack_request(key, table, request, await self._read(hgetall(key)))

    async def requests(self, table: str, count: int = 100) -> Sequence[Request]:
        """Return the newest requests, including ended ones, newest first."""
        members = await self._read(last_members(TableKeys(table).requests, count))
        return await self._requests_at(table, members)

    async def open_requests(self, table: str) -> Sequence[Request]:
        """Return the requests that are not closed, oldest first.

        They have not ended, or have ended without `CloseRequest`.
        """
        key = TableKeys(table).open_requests
        # Two concurrent submissions may both get the last free slot, so a few more are read.
        members = await self._read(members_after(key, None, 2 * REQUESTS_OPEN_MAX))
        return await self._requests_at(table, members)

    async def _requests_at(self, table: str, members: Sequence[bytes]) -> Sequence[Request]:
        names = [request_of_member(member) for member in members]
        keys = [TableKeys(table).request(name) for name in names]
        replies = await self._fetch([[hgetall(key)] for key in keys])
        requests = (
            unpack_request(key, table, name, stored)
            for key, name, (stored,) in zip(keys, names, replies, strict=True)
        )
        return [request for request in requests if request is not None]

    # ----------------------------------------------- Tables, marks, garbage, pins, history, changes

    async def names(self) -> Mapping[str, str]:
        """Return name → table id for every taken name, whatever the state of its table."""
        return {named_table.name: named_table.id for named_table in await self.named_tables()}

    async def named_tables(self) -> Sequence[NamedTable]:
        """Return every taken name with the location of its table, by name."""
        stored = await self._read(hgetall(TABLES))
        return [codec_table.unpack_name(name, entry) for name, entry in sorted(stored.items())]

    async def listed_tables(self) -> ListedTables:
        """Return the readable named tables, and why others cannot be read."""
        broken: dict[str, str] = {}
        ids: dict[str, str] = {}
        for name, entry in sorted((await self._read(hgetall(TABLES))).items()):
            try:
                ids[name.decode(errors="replace")] = codec_table.unpack_name(name, entry).id
            except BrokenValueError as error:
                broken[name.decode(errors="replace")] = str(error)
        keys = [TableKeys(table) for table in ids.values()]
        replies = await self._hashes([key.table for key in keys])
        tables: list[Table] = []
        for name, table_keys, stored in zip(ids, keys, replies, strict=True):
            try:
                if isinstance(stored, BrokenValueError):
                    raise stored
                if stored:
                    tables.append(codec_table.unpack_table(table_keys.table, ids[name], stored))
            except BrokenValueError as error:
                broken[name] = str(error)
        broken_ids = frozenset(ids[name] for name in broken if name in ids)
        return ListedTables(tables=tuple(tables), broken=broken, broken_ids=broken_ids)

    async def _hashes(self, keys: Sequence[str]) -> list[Mapping[bytes, bytes] | BrokenValueError]:
        """Return hashes, or why a hash cannot be read."""
        try:
            return [stored for (stored,) in await self._fetch([[hgetall(key)] for key in keys])]
        except BrokenValueError as error:
            if len(keys) == 1:
                return [error]
        # One of the keys is not a hash. Read separately, only that one fails.
        return [hash_ for key in keys for hash_ in await self._hashes([key])]

    async def table_ids(self) -> Sequence[str]:
        """Return the ids of all tables, including those without a creator or a name.

        Iterates over every key of the store: for a full scan, not for a request.
        """
        ids: set[str] = set()
        cursor = 0
        while True:
            position, keys = await self._read(scan(TABLE_KEYS, cursor, SCAN_COUNT))
            ids |= {key.decode().split("{", 1)[1].split("}", 1)[0] for key in keys}
            if (cursor := int(position)) == 0:
                return sorted(ids)

    async def tables(self) -> Sequence[Table]:
        """Return every named table, by name."""
        ids = list((await self.names()).values())
        keys = [TableKeys(table) for table in ids]
        replies = await self._fetch([[hgetall(key.table)] for key in keys])
        hashes = zip(keys, replies, strict=True)
        return [
            codec_table.unpack_table(table_keys.table, table_keys.id, stored)
            for table_keys, (stored,) in hashes
            if stored
        ]

    async def table(self, table: str) -> Table | None:
        """Return a table by id, or None."""
        keys = TableKeys(table)
        stored = await self._read(hgetall(keys.table))
        return codec_table.unpack_table(keys.table, table, stored) if stored else None

    async def table_named(self, name: str) -> Table | None:
        """Return a table by name, or None."""
        stored = await self._read(hget(TABLES, name))
        if stored is None:
            return None
        return await self.table(codec_table.unpack_name(name.encode(), stored).id)

    async def outcome(self, table: str, attempt: str) -> AttemptOutcome | None:
        """Return the outcome of an attempt, or None if it has no mark."""
        key = TableKeys(table).outcome(attempt)
        stored = await self._read(get(key))
        return codec_table.OUTCOME.unpack(key, stored, attempt=attempt) if stored else None

    async def call(self, table: str, call: str) -> CallMark | None:
        """Return the result of an accepted call, or None if it has no mark."""
        key = TableKeys(table).call(call)
        stored = await self._read(get(key))
        return codec_table.CALL.unpack(key, stored) if stored else None

    async def call_and_time(self, table: str, call: str) -> tuple[CallMark | None, float]:
        """Return the result of an accepted call, as `call` does, and the store's time."""
        key = TableKeys(table).call(call)
        ((stored, now),) = await self._fetch([[get(key), TIME]])
        return (codec_table.CALL.unpack(key, stored) if stored else None), time_s(now)

    async def buffers(self, tables: Sequence[str]) -> Sequence[TableBuffer]:
        """Return the buffers of tables, without their rows; each is read at one moment."""
        keys = [TableKeys(table) for table in tables]
        batches = [[hgetall(key.rows), hgetall(key.row_counts)] for key in keys]
        replies = zip(keys, await self._fetch(batches), strict=True)
        return [codec_table.unpack_buffer(key, *reply) for key, reply in replies]

    async def readable_buffers(self, tables: Sequence[str]) -> dict[str, TableBuffer]:
        """Return the buffers of tables by id, without those that cannot be read; see `buffers`."""
        try:
            return dict(zip(tables, await self.buffers(tables), strict=True))
        except BrokenValueError:
            if len(tables) == 1:
                return {}
        half = len(tables) // 2
        lower = await self.readable_buffers(tables[:half])
        return lower | await self.readable_buffers(tables[half:])

    async def buffered_rows(
        self, table: str, segments: Sequence[int]
    ) -> Sequence[Mapping[bytes, bytes]]:
        """Return the rows of segments, call → rows as stored; empty if a segment is flushed."""
        batch = [hgetall(TableKeys(table).segment(number)) for number in segments]
        return (await self._fetch([batch]))[0] if batch else []

    async def mirrors(self, tables: Sequence[str]) -> Sequence[Mirror]:
        """Return the states of the mirrors of lake tables, without their files."""
        keys = [TableKeys(table).mirror for table in tables]
        found = await self._fetch([[hmget(key, codec_table.MIRROR_FIELDS)] for key in keys])
        return [*map(codec_table.unpack_mirror, keys, (reply[0] for reply in found))]

    async def publishing(self, table: str) -> Sequence[PublishingMark]:
        """Return the attempts that may have sent something to the log of a lake table."""
        key = TableKeys(table).publishing
        return codec_table.unpack_publishing(key, await self._read(hgetall(key)))

    async def generation(self, table: str) -> int:
        """Return the table's generation; 0 if it was never incremented."""
        key = TableKeys(table).generation
        return whole_number(key, await self._read(get(key)))

    async def loss(self, table: str) -> AcceptedLoss | None:
        """Return the accepted period in which changes were lost, or None."""
        key = TableKeys(table).loss
        stored = await self._read(get(key))
        return codec_table.LOSS.unpack(key, stored) if stored else None

    async def manifest(self, table: str) -> Manifest | None:
        """Return the last published manifest, or None."""
        key = TableKeys(table).manifest
        stored = await self._read(get(key))
        return codec_table.MANIFEST.unpack(key, stored) if stored else None

    async def drop_deletes(self, table: str) -> bool:
        """Return whether a table is being dropped with all of its files."""
        key = TableKeys(table).table
        stored = await self._read(hget(key, codec_table.DELETES))
        return whole_number(f"{key} {codec_table.DELETES}", stored) > 0

    async def claim(self) -> CoordinatorClaim | None:
        """Return the leading coordinator and the start of its lead; None: no claim exists."""
        stored = await self._read(get(COORDINATOR))
        return codec_table.unpack_claim(stored) if stored else None

    async def limits(self) -> Mapping[LimitScope, int]:
        """Return the limits that operators have set, in bytes/s; 0: no limit."""
        limits: dict[LimitScope, int] = {}
        for name, bytes_s in sorted((await self._read(hgetall(LIMITS))).items()):
            try:
                scope = LimitScope.parse(name.decode(errors="replace"))
            except RequestError:
                continue  # No attempt can run under it: all entry points refuse such a name.
            try:
                limits[scope] = int(bytes_s)
            except ValueError as error:
                raise MetadataError(f"{LIMITS} {scope.text} cannot be decoded: {error}") from error
        return limits

    async def series(self) -> Mapping[str, bytes]:
        """Return the stored parts of the recorded values, compressed."""
        parts = await self._read(hgetall(SERIES))
        return {name.decode(errors="replace"): values for name, values in parts.items()}

    async def series_part(self, part: str) -> bytes | None:
        """Return a stored part of the recorded values; None: it is missing."""
        values: bytes | None = await self._read(hget(SERIES, part))
        return values

    async def scales(self) -> Mapping[str, int]:
        """Return the number of compactors set by operators, by group; absent: not set."""
        entries = sorted((await self._read(hgetall(SCALES))).items())
        try:
            return {name.decode(): int(count) for name, count in entries}
        except ValueError as error:
            raise MetadataError(f"{SCALES} cannot be decoded: {error}") from error

    async def garbage(self, table: str) -> Sequence[GarbageEntry]:
        """Return the files to delete."""
        key = TableKeys(table).garbage
        entries: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            position, words = await self._read(hscan(key, cursor, SCAN_COUNT))
            entries.update(zip(words[::2], words[1::2], strict=True))
            if (cursor := int(position)) == 0:
                break
        return [
            codec_table.GARBAGE.unpack(f"{key} {path!r}", stored, path=stored_name(key, path))
            for path, stored in sorted(entries.items())
        ]

    async def garbage_among(self, table: str, paths: Sequence[str]) -> Sequence[str]:
        """Return which of some paths are in garbage."""
        if not paths:
            return ()
        stored = await self._read(hmget(TableKeys(table).garbage, paths))
        return [path for path, entry in zip(paths, stored, strict=True) if entry is not None]

    async def retired_among(self, location: str, paths: Sequence[str]) -> Sequence[str]:
        """Return which of some paths have names that are retired in a location.

        A collector has deleted files of these names, and a stalled collector may do so again.
        """
        if not paths:
            return ()
        marks = await self._read(mget(retired_name(location, path) for path in paths))
        return [path for path, mark in zip(paths, marks, strict=True) if mark is not None]

    async def uncommitted(self, table: str) -> Sequence[Reservation]:
        """Return reservations that ended without a commit and whose outputs wait for deletion.

        A collector that has seen their inputs in storage removes them from this list.
        """
        key = TableKeys(table).uncommitted
        return [*unpack_running(key, await self._read(hgetall(key))).values()]

    async def pins(self, table: str) -> Sequence[PinEntry]:
        """Return the pins, including expired ones."""
        key = TableKeys(table).pins
        stored = await self._read(hgetall(key))
        return [
            codec_table.PIN.unpack(f"{key} {pin!r}", entry, pin=stored_name(key, pin))
            for pin, entry in sorted(stored.items())
        ]

    async def history(self, table: str, count: int = 100) -> Sequence[HistoryEntry]:
        """Return the newest finished attempts, newest first."""
        key = TableKeys(table).history
        return bulk_reads.history_entries(table, key, await self._read(newest(key, count)))

    async def correction(self, table: str) -> Correction:
        """Return the correction of a table's estimates by its newest finished attempts."""
        return correction_of(await self.history(table, CORRECTING_ENTRIES_MAX))

    async def days(self, table: str) -> DailySums:
        """Return the stored daily sums of a table."""
        key = TableKeys(table).days
        return DailySums.unpacked(key, await self._read(get(key)))

    async def newest_days(self, table: str, before: DailySums) -> DailySums:
        """Return daily sums with the finished attempts since then, as far as the history has them.

        Args:
            table: Id of the table.
            before: Sums from `days`.
        """
        sums = before
        for count in HISTORY_READS:
            entries = await self.history(table, count)
            sums = before.with_entries(entries)
            # An entry that is counted already, or a history that ends, shows that none is missing.
            if len(entries) < count or before.counts(entries[-1]):
                break
        return sums

    async def note_audit(self, lines: Sequence[bytes], entries_max: int, kind: str = "") -> None:
        """Append lines to the audit, which keeps about `entries_max` of them.

        Raises:
            UnavailableError: The store does not answer, or is full; lines may have been written.
        """
        key = audit_key(kind)
        entries = [xadd(key, entries_max, {AUDIT_LINE: line}) for line in lines]
        try:
            async with self._keyspace.session() as session:
                await session.execute(entries)
        except (LinkLostError, UnknownOutcomeError) as error:
            raise UnavailableError(f"the metadata store refuses audit entries: {error}") from error

    async def audit(self, count: int, kind: str = "") -> Sequence[bytes]:
        """Return the newest lines of a stream of the audit, newest first."""
        entries = await self._read(newest(audit_key(kind), count))
        return [words[1] for _, words in entries]

    async def tail(self, table: str) -> str:
        """Return the position of the newest entry of the table's change stream."""
        entries = await self._read(newest(TableKeys(table).changes, 1))
        return entries[0][0].decode() if entries else STREAM_START

    async def remembers(self, table: str, position: str) -> bool:
        """Return whether a table's change stream, which is capped, still has an entry.

        The position before the first entry returns True, because trimming cannot be detected there.
        """
        if position == STREAM_START:
            return True
        return bool(await self._read(entry_at(TableKeys(table).changes, position)))

    async def changes(
        self, after: dict[str, str], count: int = 1000, block_s: float = 1.0
    ) -> Sequence[TabletChanged]:
        """Return changes of several tables after the given positions.

        Args:
            after: Table id → position, from `tail` or of the last entry read.
            count: Largest number of entries per table.
            block_s: How long to wait if there are none.
        """
        if not after:
            return ()
        streams = {TableKeys(table).changes: table for table in after}
        positions = {key: after[table] for key, table in streams.items()}
        try:
            entries = await self._keyspace.wait_entries(positions, count, block_s)
        except BrokenValueError:
            # One of the keys is not a stream. The others are read, and the full scan covers its
            # table.
            sound = [table for key, table in streams.items() if await self._is_readable(key)]
            if len(sound) == len(after) or not sound:
                await self._sleep(block_s)
                return ()
            return await self.changes({table: after[table] for table in sound}, count, block_s)
        except LinkLostError as error:
            raise UnavailableError(f"the metadata store does not answer: {error}") from error
        return bulk_reads.changed_tablets(streams, entries)

    async def _is_readable(self, stream: str) -> bool:
        try:
            await self._read(newest(stream, 1))
        except BrokenValueError:
            return False
        return True

    # ------------------------------------------------------------------------ One read, tried again

    async def _read(self, command: Command) -> Reply:
        return (await self._fetch([[command]]))[0][0]

    async def _fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read; use another connection if one breaks."""
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


# --------------------------------------------------------------------------------------- Table walk
# Iteration over all tablets of a table, page by page, so that every file is seen once.


PAGE_TABLETS = 200
TRIES_MAX = 8
PAUSE_S = 0.05


async def walk_ids(store: TabletStore, table: str) -> AsyncIterator[Sequence[TabletId]]:
    """Yield the ids of all tablets, ascending, page by page."""
    after: bytes | None = None
    while ids := await store.tablet_ids(table, after, PAGE_TABLETS):
        yield ids
        after = ids[-1].end


async def walk_tiles(store: TabletStore, table: Table) -> AsyncIterator[Sequence[Tablet]]:
    """Yield the tablets of a table by the tile rule, page by page, ascending.

    Each tablet begins where the previous one ends, and each is read at one moment. So every file
    is seen exactly once, despite concurrent splits and merges. Tablets of a partitioned table do
    not tile; each is independent.

    Raises:
        ConflictError: A merge or split crossed the page that was just read, or there is a
            hole: begin again, or run `fsck`.
    """
    if table.partition_by:
        async for ids in walk_ids(store, table.id):
            yield [tablet for tablet in await store.tablets(ids) if tablet is not None]
        return
    reached: bytes | None = None
    while reached != PLUS_INFINITY:
        page = await _next_tiles(store, table, reached)
        yield page
        reached = page[-1].bounds.end


async def _next_tiles(store: TabletStore, table: Table, reached: bytes | None) -> list[Tablet]:
    for number in range(TRIES_MAX):
        if number:
            await asyncio.sleep(PAUSE_S)
        ids = await store.tablet_ids(table.id, reached, PAGE_TABLETS)
        tablets = [tablet for tablet in await store.tablets(ids) if tablet is not None]
        if tiles := tile_after(tablets, reached):
            return tiles
    raise ConflictError(
        f"table {table.name}: its tablets keep changing, or there is a hole between them; "
        "try again, or check the table with `neve fsck`"
    )
