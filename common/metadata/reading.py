"""Bulk reads: batches of tablets in few round trips, decoded while the next batch comes.

A record read in the same MULTI as bounds and files, which says that nothing else is
there, spares the other keys. Most tablets of a scan are of that kind.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from common.errors import BrokenValueError
from common.metadata import codec_table, codec_tablet
from common.metadata.codec_file import unpack_files
from common.metadata.commands import Command, Reply, get, hgetall
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import StreamEntry
from common.metadata.mutation.requirements import bounds_seen, tablet_seen, whole_tablet
from common.metadata.mutation.transaction import Seen
from common.metadata.readings import UNREADABLE, HistoryEntry, TabletChanged, Unreadable
from common.model.tablet import Record, Tablet, TabletId

TABLETS_PER_MULTI = 32
"""Tablets read at one moment; Redis serves nobody else meanwhile."""
TABLETS_PER_TRIP = 256
RECORDS_PER_TRIP = 1024

Fetch = Callable[[Sequence[Sequence[Command]]], Awaitable[list[list[Reply]]]]
T = TypeVar("T")


async def read_each(
    fetch: Fetch, commands: Sequence[Command], decode: Callable[[int, Reply], T]
) -> list[T]:
    """Return what many single reads tell, decoding one batch while the next one travels.

    Args:
        fetch: Reads batches.
        commands: One per value wanted.
        decode: Makes a value of the command's number and its reply.
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
    found: list[Tablet | None] = []
    for tablet in await read_readable(fetch, tablets):
        if isinstance(tablet, Unreadable):
            raise BrokenValueError(tablet.cause)
        found.append(tablet)
    return found


async def read_readable(
    fetch: Fetch, tablets: Sequence[TabletId]
) -> list[Tablet | Unreadable | None]:
    """Return many tablets, each at one moment, and what keeps others from being read."""
    found: list[Tablet | Unreadable | None] = []
    unread: list[int] = []
    trips = [
        tablets[first : first + TABLETS_PER_TRIP]
        for first in range(0, len(tablets), TABLETS_PER_TRIP)
    ]
    async for replies in _pipelined(fetch, [_bare_reads(trip) for trip in trips]):
        for batch in replies:
            for at in range(0, len(batch), 3):
                bounds, files, record = batch[at : at + 3]
                if bounds is None or codec_tablet.is_bare(record):
                    tablet = tablets[len(found)]
                    found.append(_readable(tablet, partial(_bare, tablet, bounds, files, record)))
                else:
                    unread.append(len(found))
                    found.append(None)
    for number, whole in zip(unread, await _whole(fetch, tablets, unread), strict=True):
        found[number] = whole
    return found


def _readable(tablet: TabletId, decode: Callable[[], Tablet | None]) -> Tablet | Unreadable | None:
    try:
        return decode()
    except BrokenValueError as error:
        return Unreadable(tablet, str(error))
    except (ValueError, TypeError) as error:  # Of plain texts and numbers, which have no layout.
        return Unreadable(tablet, f"tablet {tablet}: {type(error).__name__}: {error}")


def _bare_reads(tablets: Sequence[TabletId]) -> list[list[Command]]:
    batches: list[list[Command]] = []
    for first in range(0, len(tablets), TABLETS_PER_MULTI):
        batch: list[Command] = []
        for tablet in tablets[first : first + TABLETS_PER_MULTI]:
            keys = TabletKeys.of(tablet)
            batch += (get(keys.bounds), hgetall(keys.files), hgetall(keys.record))
        batches.append(batch)
    return batches


def _bare(tablet: TabletId, bounds: Reply, files: Reply, record: Reply) -> Tablet | None:
    keys = TabletKeys.of(tablet)
    read = bounds_seen(keys, bounds)
    if read is None:
        return None
    return Tablet(
        id=tablet,
        bounds=read,
        files=unpack_files(keys.files, files),
        record=codec_tablet.unpack_record(keys.record, record),
    )


async def _whole(
    fetch: Fetch, tablets: Sequence[TabletId], numbers: Sequence[int]
) -> list[Tablet | Unreadable | None]:
    """Read every key of some tablets."""
    found: list[Tablet | Unreadable | None] = []
    for first in range(0, len(numbers), TABLETS_PER_TRIP):
        some = [tablets[number] for number in numbers[first : first + TABLETS_PER_TRIP]]
        needs = [whole_tablet(TabletKeys.of(tablet), ()) for tablet in some]
        replies = await fetch([[*need.reads.values()] for need in needs])
        for tablet, need, reply in zip(some, needs, replies, strict=True):
            seen = Seen(dict(zip(need.reads, reply, strict=True)), 0.0)
            found.append(
                _readable(tablet, partial(tablet_seen, tablet, TabletKeys.of(tablet), seen))
            )
    return found


async def _pipelined(
    fetch: Fetch, trips: Sequence[Sequence[Sequence[Command]]]
) -> AsyncIterator[list[list[Reply]]]:
    """Yield the replies of each trip; the next one is under way meanwhile."""
    following: asyncio.Task[list[list[Reply]]] | None = None
    try:
        for number in range(len(trips)):
            replies = await (following or fetch(trips[number]))
            following = None
            if number + 1 < len(trips):
                following = asyncio.ensure_future(fetch(trips[number + 1]))
                await asyncio.sleep(0)  # Let it be sent before this thread decodes.
            yield replies
    finally:
        if following is not None:
            following.cancel()


def changed_tablets(
    streams: Mapping[str, str], entries: Mapping[str, Sequence[StreamEntry]]
) -> list[TabletChanged]:
    """Return the entries of change streams as values.

    One that cannot be read stands for any change, of any tablet of its table: what it says
    is lost, and those behind it are not.

    Args:
        streams: Key of the stream → table id.
        entries: Key of the stream → what was read of it.
    """
    changes: list[TabletChanged] = []
    for key, found in entries.items():
        for position, fields in found:
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


def history(table: str, key: str, entries: Reply) -> list[HistoryEntry]:
    """Return the entries of a history stream as values."""
    found: list[HistoryEntry] = []
    for position, words in entries:
        fields = dict(zip(words[::2], words[1::2], strict=True))
        tablet = TabletId.parse(table, fields[b"t"].decode())
        found.append(
            codec_table.HISTORY.unpack(
                f"{key} {position!r}", fields[b"h"], position=position.decode(), tablet=tablet
            )
        )
    return found
