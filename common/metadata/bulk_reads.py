"""Bulk reads of tablets: batches in few round trips, decoded while the next batch travels.

A range is read in pieces, which the tile rule joins; a hole means that the range is read again.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import TypeVar

from common.errors import BrokenValueError, ConflictError, MetadataError
from common.metadata.changes.protocol import (
    Seen,
    bounds_seen,
    chunk_notes,
    tablet_seen,
    whole_tablet,
)
from common.metadata.changes.repair_tablets import true_counts
from common.metadata.changes.requests import request_has_ended
from common.metadata.codec import table as codec_table
from common.metadata.codec import tablet as codec_tablet
from common.metadata.codec.layout import broken_value_error
from common.metadata.codec.tablet import (
    BYTES,
    DONE,
    FILES,
    OPERATION_FLAG,
    PURGED,
    RUNNING,
    SELECTED,
    WAITING,
    unpack_files,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import Command, Reply, StreamEntry, get, hget, hgetall, members_after
from common.metadata.store_values import (
    UNREADABLE,
    HistoryEntry,
    RawTablet,
    TabletChanged,
    UnreadableTablet,
)
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, Record, Tablet, TabletId

# ---- Batches of tablets
#
# If the record shows that a tablet has only bounds and files, and all three were read in the same
# MULTI, the other keys need not be read. Most tablets of a scan are of this kind.


TABLETS_PER_MULTI = 32
"""Tablets read in one MULTI; Redis serves no other client meanwhile."""
TABLETS_PER_TRIP = 256
RECORDS_PER_TRIP = 1024
LARGE_FILES = 2_000
"""Tablets with more files are decoded and planned in a thread: 100,000 files take a second."""

Fetch = Callable[[Sequence[Sequence[Command]]], Awaitable[list[list[Reply]]]]
T = TypeVar("T")


async def read_each(
    fetch: Fetch, commands: Sequence[Command], decode: Callable[[int, Reply], T]
) -> list[T]:
    """Return the values of many single reads. One batch is decoded while the next one travels.

    Args:
        fetch: Reads batches.
        commands: One per value.
        decode: Creates a value from the number of a command and its reply.
    """
    values: list[T] = []
    batches = [
        [[command] for command in commands[first : first + RECORDS_PER_TRIP]]
        for first in range(0, len(commands), RECORDS_PER_TRIP)
    ]
    async for replies in _pipelined(fetch, batches):
        first = len(values)
        values += [decode(first + number, reply) for number, (reply,) in enumerate(replies)]
    return values


async def read_records(fetch: Fetch, tablets: Sequence[TabletId]) -> list[Record | None]:
    """Return the records of many tablets."""
    keys = [TabletKeys.of(tablet).record for tablet in tablets]
    return await read_each(
        fetch,
        [hgetall(key) for key in keys],
        lambda number, stored: codec_tablet.unpack_record(keys[number], stored) if stored else None,
    )


async def read_tablets(fetch: Fetch, tablets: Sequence[TabletId]) -> list[Tablet | None]:
    """Return many tablets, each at one moment.

    Raises:
        BrokenValueError: One cannot be decoded.
    """
    result: list[Tablet | None] = []
    for tablet in await read_readable(fetch, tablets):
        if isinstance(tablet, UnreadableTablet):
            raise BrokenValueError(tablet.cause)
        result.append(tablet)
    return result


async def read_readable(
    fetch: Fetch, tablets: Sequence[TabletId], chunked: Container[TabletId] = ()
) -> list[Tablet | UnreadableTablet | None]:
    """Return many tablets, each read at one moment, or why a tablet cannot be read.

    Args:
        fetch: Reads batches.
        tablets: The tablets.
        chunked: Those whose notes on chunks are read, too.
    """
    result: list[Tablet | UnreadableTablet | None] = []
    unread: list[int] = []
    trips = [
        tablets[first : first + TABLETS_PER_TRIP]
        for first in range(0, len(tablets), TABLETS_PER_TRIP)
    ]
    async for replies in _pipelined(fetch, [_bare_reads(trip, chunked) for trip in trips]):
        for batch in replies:
            values = iter(batch)
            for bounds in values:
                tablet, files, record = tablets[len(result)], next(values), next(values)
                chunks = next(values) if tablet in chunked else None
                if bounds is None or codec_tablet.is_bare(record):
                    decode = partial(_bare, tablet, bounds, files, record, chunks)
                    result.append(await _apart(len(files), _readable, tablet, decode))
                else:
                    unread.append(len(result))
                    result.append(None)
    for number, whole in zip(unread, await _whole(fetch, tablets, unread, chunked), strict=True):
        result[number] = whole
    return result


async def _apart(files: int, decode: Callable[..., T], *values: object) -> T:
    """Return what a function makes of values, in a thread if they have many files."""
    if files <= LARGE_FILES:
        return decode(*values)
    return await asyncio.to_thread(decode, *values)


async def read_files(fetch: Fetch, tablets: Sequence[TabletId]) -> list[dict[str, DataFile]]:
    """Return only the files of many tablets; empty for a missing tablet."""
    keys = [TabletKeys.of(tablet).files for tablet in tablets]
    stored = await read_each(fetch, [hgetall(key) for key in keys], lambda _, reply: reply)
    pairs = zip(keys, stored, strict=True)
    return [await _apart(len(files), unpack_files, key, files) for key, files in pairs]


def _readable(
    tablet: TabletId, decode: Callable[[], Tablet | None]
) -> Tablet | UnreadableTablet | None:
    try:
        return decode()
    except BrokenValueError as error:
        return UnreadableTablet(tablet, str(error))
    # Errors of plain texts and numbers, which have no layout.
    except (ValueError, TypeError, OverflowError) as error:
        cause = f"tablet {tablet} cannot be read ({type(error).__name__}: {error}); run `neve fsck`"
        return UnreadableTablet(tablet, cause)


def _bare_reads(tablets: Sequence[TabletId], chunked: Container[TabletId]) -> list[list[Command]]:
    batches: list[list[Command]] = []
    for first in range(0, len(tablets), TABLETS_PER_MULTI):
        batch: list[Command] = []
        for tablet in tablets[first : first + TABLETS_PER_MULTI]:
            keys = TabletKeys.of(tablet)
            batch += (get(keys.bounds), hgetall(keys.files), hgetall(keys.record))
            if tablet in chunked:
                batch.append(hgetall(keys.chunks))
        batches.append(batch)
    return batches


def _bare(
    tablet: TabletId, bounds: Reply, files: Reply, record: Reply, chunks: Reply
) -> Tablet | None:
    keys = TabletKeys.of(tablet)
    read = bounds_seen(keys, bounds)
    if read is None:
        return None
    return Tablet(
        id=tablet,
        bounds=read,
        files=unpack_files(keys.files, files),
        record=codec_tablet.unpack_record(keys.record, record),
        chunks=None if chunks is None else codec_tablet.unpack_chunks(keys.chunks, chunks),
    )


async def _whole(
    fetch: Fetch,
    tablets: Sequence[TabletId],
    numbers: Sequence[int],
    chunked: Container[TabletId],
) -> list[Tablet | UnreadableTablet | None]:
    """Read every key of some tablets."""
    result: list[Tablet | UnreadableTablet | None] = []
    for first in range(0, len(numbers), TABLETS_PER_TRIP):
        batch = [tablets[number] for number in numbers[first : first + TABLETS_PER_TRIP]]
        needs = [whole_tablet(TabletKeys.of(tablet), ()) for tablet in batch]
        for at, tablet in enumerate(batch):
            if tablet in chunked:
                needs[at] |= chunk_notes(TabletKeys.of(tablet))
        replies = await fetch([[*need.reads.values()] for need in needs])
        for tablet, need, reply in zip(batch, needs, replies, strict=True):
            seen = Seen(dict(zip(need.reads, reply, strict=True)), 0.0)
            decode = partial(tablet_seen, tablet, TabletKeys.of(tablet), seen)
            count = max((len(value) for value in reply if isinstance(value, Mapping)), default=0)
            result.append(await _apart(count, _readable, tablet, decode))
    return result


async def _pipelined(
    fetch: Fetch, trips: Sequence[Sequence[Sequence[Command]]]
) -> AsyncIterator[list[list[Reply]]]:
    """Yield the replies of each trip while the next trip is running."""
    following: asyncio.Task[list[list[Reply]]] | None = None
    try:
        for number in range(len(trips)):
            replies = await (following or fetch(trips[number]))
            following = None
            if number + 1 < len(trips):
                following = asyncio.ensure_future(fetch(trips[number + 1]))
                await asyncio.sleep(0)  # The next trip is sent before this thread decodes.
            yield replies
    finally:
        if following is not None:
            following.cancel()


def changed_tablets(
    streams: Mapping[str, str], entries: Mapping[str, Sequence[StreamEntry]]
) -> list[TabletChanged]:
    """Return the entries of change streams as values.

    An entry that cannot be read counts as a change of any tablet of its table. Entries after it
    are still read.

    Args:
        streams: Key of the stream → table id.
        entries: Key of the stream → its entries.
    """
    changes: list[TabletChanged] = []
    for key, stream_entries in entries.items():
        for position, fields in stream_entries:
            try:
                changes.append(_changed(streams[key], position, fields))
            except (KeyError, ValueError):
                nowhere = TabletId(streams[key], b"")
                changes.append(TabletChanged(tablet=nowhere, what=UNREADABLE, position=position))
    return changes


def _changed(table: str, position: str, fields: Mapping[bytes, bytes]) -> TabletChanged:
    text = fields[b"t"].decode()
    attempt, request = fields.get(b"a"), fields.get(b"q")
    return TabletChanged(
        tablet=TabletId.parse(table, text),
        what=fields[b"w"].decode(),
        position=position,
        attempt=attempt.decode() if attempt is not None else None,
        request=request.decode() if request is not None else None,
    )


def history_entries(table: str, key: str, entries: Reply) -> list[HistoryEntry]:
    """Return the entries of a history stream as values.

    Raises:
        MetadataError: An entry is malformed.
    """
    return [_history_entry(table, key, position, words) for position, words in entries]


def _history_entry(table: str, key: str, position: bytes, words: Sequence[bytes]) -> HistoryEntry:
    where = f"{key} {position!r}"
    fields = dict(zip(words[::2], words[1::2], strict=True))
    try:
        tablet, data = TabletId.parse(table, fields[b"t"].decode()), fields[b"h"]
    except (KeyError, ValueError) as error:
        raise broken_value_error(where, f"is no entry of a history ({error})") from error
    return codec_table.HISTORY.unpack(where, data, position=position.decode(), tablet=tablet)


# ------------------------------------------------------------------------------------ The tile rule


def tile(tablets: Iterable[Tablet], start: bytes | None, end: bytes | None) -> list[Tablet] | None:
    """Return the tablets that cover the range exactly once, or None if there is a hole.

    Begin with the tablet that covers the start of the range and reaches furthest. Continue at its
    end, and ignore tablets that are already covered. So every file is seen exactly once, whatever
    the order in which the pieces were read.

    Args:
        tablets: Tablets, each read at one moment, in any order.
        start: First key of the range; None: no lower bound.
        end: Last key of the range; None: no upper bound.
    """
    pieces = list(tablets)
    last = PLUS_INFINITY if end is None else end
    chosen = _follow([piece for piece in pieces if _begins(piece, start)], pieces, last)
    return chosen if chosen and chosen[-1].bounds.end >= last else None


def tile_after(tablets: Sequence[Tablet], reached: bytes | None) -> list[Tablet]:
    """Return the tablets that follow a tablet's end by the same rule, up to the first hole.

    Args:
        tablets: Tablets, each read at one moment, in any order.
        reached: End of the previous tablet; None: begin with the first tablet of the table.
    """
    first = [tablet for tablet in tablets if tablet.bounds.start == reached]
    return _follow(first, tablets, PLUS_INFINITY)


def _follow(first: list[Tablet], pieces: Sequence[Tablet], last: bytes) -> list[Tablet]:
    """Return one of the first tablets and its successors, up to `last` or to a hole."""
    chosen: list[Tablet] = []
    while first:
        best = max(first, key=lambda piece: piece.bounds.end)
        chosen.append(best)
        if best.bounds.end >= last:
            break
        first = [piece for piece in pieces if piece.bounds.start == best.bounds.end]
    return chosen


def _begins(piece: Tablet, start: bytes | None) -> bool:
    if start is None:
        return piece.bounds.start is None
    return piece.bounds.holds(start, start)


# ------------------------------------------------------------------------------------------- Ranges


RANGE_TRIES_MAX = 8
"""Reads of one range before giving up because its bounds keep changing."""
PAGE = 1000
"""Tablet ends read per round trip."""


class RangeReader:
    """Reads the tablets of a key range."""

    def __init__(self, fetch: Fetch) -> None:
        """Create a reader that uses `fetch`."""
        self._fetch = fetch

    async def read(self, table: Table, start: bytes | None, end: bytes | None) -> Sequence[Tablet]:
        """Return the tablets that show every file of a range exactly once.

        Tablets of a partitioned table do not tile, so all of them are returned.

        Raises:
            ConflictError: Splits and merges kept changing the range.
        """
        for _ in range(RANGE_TRIES_MAX):
            partitioned = bool(table.partition_by)
            ids = await self._ids(table.id, None if partitioned else start, end)
            pieces = await read_tablets(self._fetch, ids)
            tablets = [tablet for tablet in pieces if tablet is not None]
            if partitioned:
                return tablets
            tiles = tile(tablets, start, end)
            if tiles is not None:
                return tiles
            if not ids:
                return ()  # The table does not exist.
        raise ConflictError(f"table {table.name}: its tablets keep changing, try again")

    async def _ids(self, table: str, start: bytes | None, end: bytes | None) -> list[TabletId]:
        """Return the tablets that may cover the range, up to the first that ends after it."""
        key = TableKeys(table).index
        last = PLUS_INFINITY if end is None else end
        ends: list[bytes] = []
        inclusive = True
        after = start
        while True:
            page: list[bytes] = (
                await self._fetch([[members_after(key, after, PAGE, inclusive=inclusive)]])
            )[0][0]
            for end in page:
                ends.append(end)
                if end >= last:
                    return [TabletId(table, item) for item in ends]
            if len(page) < PAGE:
                return [TabletId(table, item) for item in ends]
            after, inclusive = page[-1], False


# ------------------------------------------------------------ All keys of a tablet, for `neve fsck`


RAW_TABLETS_PER_TRIP = 64
_WORDS = {
    FILES: "files",
    BYTES: "bytes",
    RUNNING: "running attempts",
    WAITING: "waiting requests",
    SELECTED: "selections",
    OPERATION_FLAG: "operations",
    DONE: "requests done",
    PURGED: "watermarks",
}


async def read_raw_tablets(fetch: Fetch, tablets: Sequence[TabletId]) -> list[RawTablet]:
    """Return the raw values under the keys of tablets, each read at one moment."""
    result: list[RawTablet] = []
    for first in range(0, len(tablets), RAW_TABLETS_PER_TRIP):
        batch = tablets[first : first + RAW_TABLETS_PER_TRIP]
        needs = [whole_tablet(TabletKeys.of(tablet), ()) for tablet in batch]
        replies = await fetch([[*need.reads.values()] for need in needs])
        for tablet, need, reply in zip(batch, needs, replies, strict=True):
            seen = Seen(dict(zip(need.reads, reply, strict=True)), 0.0)
            result.append(await _inspected(fetch, tablet, seen))
    return result


async def _inspected(fetch: Fetch, id_: TabletId, seen: Seen) -> RawTablet:
    keys = TabletKeys.of(id_)
    try:
        tablet = tablet_seen(id_, keys, seen)
        counts = true_counts(keys, seen)
    except (MetadataError, ValueError, UnicodeDecodeError) as error:
        return RawTablet(id=id_, broken=str(error))
    if tablet is None:
        return RawTablet(id=id_)
    record = seen["record"]
    wrong = {
        _WORDS[name]: (int(record.get(name.encode(), b"0")), count)
        for name, count in counts.items()
        if record.get(name.encode(), b"0") != b"%d" % count
    }
    outcomes, ended = await _behind(fetch, tablet)
    return RawTablet(id=id_, tablet=tablet, miscounted=wrong, outcomes=outcomes, ended=ended)


async def _behind(fetch: Fetch, tablet: Tablet) -> tuple[frozenset[str], frozenset[str]]:
    """Return the attempts that have an outcome, and the requests that have ended."""
    keys = TableKeys(tablet.id.table)
    attempts = sorted(tablet.running)
    requests = {*tablet.waiting, *tablet.done}
    if tablet.selection is not None:
        requests.add(tablet.selection.request)
    names = sorted(requests)
    commands: list[Command] = [get(keys.outcome(attempt)) for attempt in attempts]
    commands += [hget(keys.request(request), "state") for request in names]
    if not commands:
        return frozenset(), frozenset()
    replies: list[Reply] = [
        answers[0] for answers in await fetch([[command] for command in commands])
    ]
    ends, states = replies[: len(attempts)], replies[len(attempts) :]
    return (
        frozenset(attempt for attempt, end in zip(attempts, ends, strict=True) if end is not None),
        frozenset(
            request
            for request, state in zip(names, states, strict=True)
            if request_has_ended(state)
        ),
    )
