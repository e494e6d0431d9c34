"""Append rows: cut by tablet, sorted, written below `_neve/append/`, then added.

The name of a file says call and content, so a repeated call writes nothing twice: what
is there is what it would write. Files that were never added are found by the listing
sweep. On this machine a file gets its name when it is whole; object stores do so anyway.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from common.digests import digest
from common.errors import RefusedError, RequestError
from common.metadata.changes import Refused
from common.model.table import Table
from common.parquet.inspect import FileFacts, inspect_file
from common.parquet.location import Location, open_location
from common.parquet.write import write_table
from common.rows.conform import conform
from common.rows.encode import encode_keys
from common.rows.facts import RowTally
from common.rows.partitions import Partition, partition_of, partition_types
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from neve import api
from neve.gateway.add import routed_change
from neve.gateway.columns import refuse_unknown
from neve.gateway.moving import Moving, Place, places_of
from neve.gateway.problems import TooLargeError, applied
from neve.gateway.route import Routed, checked_call
from neve.gateway.services import Services, check_writable

FOLDER = "_neve/append"
DECODED_FACTOR_MAX = 4
"""A body may hold compressed columns; this bounds what they become, in bodies."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one tablet."""

    end: bytes
    rows: pa.Table
    partition: Partition | None = None
    between: tuple[bytes, bytes] = (b"", b"")
    """Behind which key and up to which its rows lie; other tablets make other files."""

    def path(self, name: str) -> str:
        """Return where its file lies."""
        return f"{FOLDER}/{self.partition.folder if self.partition else ''}{name}.parquet"


async def append_rows(services: Services, table: Table, body: bytes, call: str | None) -> api.Added:
    """Append the rows of an Arrow stream: all of them, or none.

    Args:
        services: Ports.
        table: Where.
        body: An Arrow IPC stream.
        call: The caller's id of this call.

    Raises:
        RequestError: It is no Arrow stream, holds no row, or does not fit the schema.
        RefusedError: The table or a tablet does not take it now.
    """
    call = checked_call(call, await services.store.now_s())
    await check_writable(services, table)
    rows = await services.rows.run(
        read_stream, body, DECODED_FACTOR_MAX * services.settings.gateway.body_bytes_max
    )
    refuse_unknown(table, [("the body", rows.schema)])
    RowTally(RowRules.of(table)).require(rows.schema.names, "the body")
    location = open_location(table.location)
    content = hashlib.sha256(body).hexdigest()
    own = own_call(call, content)
    moving, routed = Moving(), Routed()
    while not moving.tired:
        now_s = await services.store.now_s()
        places = [] if table.partition_by else await places_of(services, table, routed.files)
        parts = await services.rows.run(cut, rows, table, places)
        routed = Routed()
        for part in parts:
            path = part.path(f"{call}-{digest([content, part.end, *part.between])}")
            scratch = f"{path}.{services.ids.next('part')}"
            facts = await services.rows.run(write_once, location, path, scratch, part.rows, table)
            file = replace(facts.data_file(added_at_s=now_s), schema_id=table.schema_id)
            routed.put(part.end, file, part.partition)
        outcome = await services.store.apply(routed_change(table, own, routed))
        if await moving.again(outcome, cuts=True):
            continue
        if isinstance(outcome, Refused) and outcome.code == "call":
            # The same rows came under this id before, and were cut by other tablets then.
            return api.Added(call=call, files=(), rows=rows.num_rows, size_bytes=0)
        applied(outcome)
        return routed.view(table, call)
    raise RefusedError(f"table {table.name!r}: its tablets keep changing; try again")


def read_stream(body: bytes, bytes_max: int) -> pa.Table:
    """Return the rows of an Arrow IPC stream.

    Args:
        body: The stream.
        bytes_max: What the rows may take in memory.

    Raises:
        RequestError: It is none, or holds no row.
        TooLargeError: It holds more than the service takes at once.
    """
    try:
        with pa.ipc.open_stream(body) as reader:
            batches, size = [], 0
            for batch in reader:
                size += batch.nbytes
                if size > bytes_max:
                    raise TooLargeError(
                        f"the rows take more than {bytes_max} bytes: append them in parts"
                    )
                batches.append(batch)
            rows = pa.Table.from_batches(batches, reader.schema)
            rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(f"the body is not an Arrow IPC stream: {error}") from error
    if rows.num_rows == 0:
        raise RequestError("the body holds no row, wanted at least one")
    return rows


def cut(rows: pa.Table, table: Table, places: Sequence[Place]) -> list[Part]:
    """Return rows by tablet, in the table's columns.

    Args:
        rows: With some of the table's columns.
        table: Whose columns and key count.
        places: Where rows go, ascending; of a partitioned table none.

    Raises:
        RequestError: A column is missing or does not fit.
    """
    known = conform(rows, arrow_schema(table.schema), "the body")
    if table.partition_by:
        return list(_by_partition(known, table))
    if not table.key or len(places) == 1:
        return [Part(places[0].end, known)]
    keys = encode_keys(known, table.key, RowRules.of(table).key_types)
    numbers = pc.array_sort_indices(keys)
    ordered, parts, begin = keys.take(numbers), [], 0
    while begin < len(numbers):
        place = places[_first(places, ordered[begin].as_py())]
        behind = _behind(ordered, begin, place.up_to)
        mine = known.take(numbers.slice(begin, behind - begin))
        parts.append(Part(place.end, mine, between=(place.after or b"", place.up_to)))
        begin = behind
    return parts


def _by_partition(rows: pa.Table, table: Table) -> Iterator[Part]:
    types = partition_types(table)
    codes = pa.array(encode_keys(rows, table.partition_by, types)).dictionary_encode()
    for number, end in enumerate(codes.dictionary.to_pylist()):
        mine = rows.filter(pc.equal(codes.indices, number))
        first = [mine.column(name)[0].as_py() for name in table.partition_by]
        yield Part(end, mine, partition_of(table, first))


def _first(places: Sequence[Place], key: bytes) -> int:
    """Return the number of the place of a key: the first that does not end below it."""
    return min(bisect_left(places, key, key=lambda place: place.up_to), len(places) - 1)


def _behind(ordered: pa.Array, low: int, end: bytes) -> int:
    """Return the place behind the last key that is not greater than `end`."""
    high = len(ordered)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if ordered[middle].as_py() <= end else (low, middle)
    return low


def write_once(
    location: Location, path: str, scratch: str, rows: pa.Table, table: Table
) -> FileFacts:
    """Write a file, or look into the one that an earlier try of the same call has written.

    Args:
        location: Of the table.
        path: Names call and content.
        scratch: Name until the file is whole: two tries of one call may run at once.
        rows: Of one tablet.
        table: Whose rules and settings count.
    """
    rules = RowRules.of(table)
    if location.filesystem.get_file_info(location.full(path)).type == fs.FileType.File:
        return inspect_file(location, path, rules)
    if not location.is_local:
        return write_table(location, path, rows, rules, table.settings)
    facts = write_table(location, scratch, rows, rules, table.settings)
    location.filesystem.move(location.full(scratch), location.full(path))
    return replace(facts, path=path)


def own_call(call: str, content: str) -> str:
    """Return the id under which rows are added: of the caller's time, call and content.

    Under the caller's id alone, a repetition that another split of tablets has cut into
    other files would look like another call.
    """
    chance = digest([call, content], 18)
    return f"{call[:14]}7{chance[:3]}-8{chance[3:6]}-{chance[6:]}"
