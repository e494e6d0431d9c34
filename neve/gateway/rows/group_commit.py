"""Group commit of buffered rows: one transaction for all calls of a table that wait.

    call → queue of its table → [decode, check and route all that wait → one transaction] → answers

Calls that arrive while a transaction of their table is under way wait for its end, and go into the
next one together. So the price of a transaction is shared when there are many writers, and a single
writer waits for none. Rows are checked by operations on the whole group; if such a check fails, the
calls are checked one by one, so that a refused call refuses only itself.

A queue is memory of this process, and nothing in it is acknowledged. The table and the ends of its
tablets are those of a moment ago: the transaction checks schema, state, bounds and watermarks, and
a call that it refuses because one of them has changed is made again with what is there now.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import (
    BrokenValueError,
    CompactionError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from common.metadata.changes import AppendGroup, AppendRows, Applied, Refused, RowSpan
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.parquet.append import AppendTarget, digest_text, no_tablets_error, tablet_indices
from common.parquet.buffered import message_of, schema_bytes
from common.primitives import BoundedMap
from common.rows.conform import numbers
from common.rows.key_encoding import encode_column, encode_keys, partition_types
from common.rows.row_facts import row_hash
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from common.runtime import call_id
from neve.gateway.access.callers import open_table, sees_table
from neve.gateway.problems import CallIdError, require_applied
from neve.gateway.rows.add import refuse_future_versions, refuse_unknown_columns
from neve.gateway.rows.ingestion import fit_to_schema
from neve.gateway.services import Services, check_writable

T = TypeVar("T")

TRIES_MAX = 4
_AGAIN = frozenset({RefusalCode.BOUNDS, RefusalCode.TABLET, RefusalCode.SCHEMA, RefusalCode.TABLE})
"""The table is not what it was when the rows were checked: see `RecentTables` and `_Targets`."""
_OF_CALL = frozenset({RefusalCode.CALL_FORM, RefusalCode.CALL_TOO_OLD, RefusalCode.CALL_TOO_NEW})
GROUP_CALLS_MAX = 64
GATHER_CALLS_MIN, GATHER_S = 4, 0.004
"""If so many calls came at about the same time, how long the next group waits for more of them.

The callers that were just answered are about to call again. Without the pause, groups are half as
large, and a call costs a tenth more processor time. With fewer calls, nothing waits."""
GROUP_BYTES_MAX = 16 * 1024**2
"""Decoded size of the calls of a group, unless one call alone has more."""
INLINE_BYTES_MAX = 128 * 1024
"""Decoded size of a group that the event loop checks itself, without a hand-over to a thread."""


# ------------------------------------------------------------------------------------------- Tables


TABLE_S = 1.0
"""How long a table is used as it was read."""
TABLES_MAX = 1000


class RecentTables:
    """Tables by the names in paths, as they were at most a second ago."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._read: BoundedMap[str, tuple[float, Table]] = BoundedMap(TABLES_MAX)

    async def table(self, name: str) -> Table:
        """Return a table, and check the rights of the current call on it; see `Services.table`."""
        read_s, table = self._read.get(name) or (0.0, None)
        now_s = self._services.clock.now_s()
        if table is None or not sees_table(table.name):
            return await self.present(name)
        if not 0 <= now_s - read_s < TABLE_S:
            self._read.put(name, (now_s, table))  # One call reads it; the others do not wait.
            return await self.present(name)
        await open_table(table.name)
        return table

    async def present(self, name: str) -> Table:
        """Return a table as it is now."""
        try:
            table = await self._services.table(name)
        except CompactionError:
            self._read.pop(name)
            raise
        self._read.put(name, (self._services.clock.now_s(), table))
        return table


# --------------------------------------------------------------------------------------------- Room


class Room:
    """A bound in bytes, given to callers in their order."""

    def __init__(self, bytes_max: int) -> None:
        """Start with all bytes free."""
        self._most = self._free = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, size_bytes: int) -> AsyncIterator[None]:
        """Have this number of bytes, or all of them, for the duration of a block."""
        size_bytes = min(size_bytes, self._most)
        if self._waiting or size_bytes > self._free:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give(size_bytes)
                raise
        else:
            self._free -= size_bytes
        try:
            yield
        finally:
            self._give(size_bytes)

    def _give(self, size_bytes: int) -> None:
        self._free += size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            wanted_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= wanted_bytes
                turn.set_result(None)


# ------------------------------------------------------------------------------------------- Checks


@dataclass(slots=True, eq=False)
class _Call:
    """A call that waits for its transaction."""

    table: Table
    id: str
    decode: Callable[[Table], pa.Table]
    """Returns the rows of its body; blocks."""
    size_bytes: int
    """Decoded size of its rows, about."""
    answer: "asyncio.Future[tuple[Applied | Refused, AppendRows]]"

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless the caller has gone."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of some calls, one call after the other."""

    rows: pa.Table
    calls: Mapping[_Call, int]
    """Call → number of its rows."""

    @property
    def starts(self) -> list[int]:
        """Position of the first row of each call."""
        return list(accumulate(self.calls.values(), initial=0))[:-1]

    def apart(self) -> Iterator["_Rows"]:
        """Yield the rows of each call alone."""
        for (call, count), start in zip(self.calls.items(), self.starts, strict=True):
            yield _Rows(self.rows.slice(start, count), {call: count})


_Failures = dict[_Call, Exception]


def _together(parts: Sequence[_Rows]) -> _Rows:
    """Return rows of the same columns together."""
    rows = pa.concat_tables([part.rows for part in parts]) if len(parts) > 1 else parts[0].rows
    return _Rows(rows, {call: count for part in parts for call, count in part.calls.items()})


def _for_all(rows: _Rows, work: Callable[[_Rows], T], failures: _Failures) -> list[T]:
    """Return the result of work on all rows; if it fails, those of work on each call alone.

    Args:
        rows: Rows of some calls.
        work: Fails if it does not like the rows of one of them. Whatever the error, it must not
            reach the others: their callers are not responsible for these rows.
        failures: Gets the error of each call that fails alone.
    """
    try:
        return [work(rows)]
    except Exception as error:
        if len(rows.calls) == 1:
            failures.update(dict.fromkeys(rows.calls, error))
            return []
    return [result for part in rows.apart() for result in _for_all(part, work, failures)]


def checked_rows(table: Table, calls: Sequence[_Call]) -> tuple[list[_Rows], _Failures]:
    """Return the rows of calls in the columns of their table, and calls that do not fit. Blocks.

    Args:
        table: The table.
        calls: Calls of the group.
    """
    bodies: list[_Rows] = []
    failures: _Failures = {}
    for call in calls:
        try:
            rows = call.decode(table)
        except Exception as error:
            failures[call] = error
        else:
            bodies.append(_Rows(rows, {call: rows.num_rows}))
    schema = arrow_schema(table.schema)

    def fit(part: _Rows) -> _Rows:
        refuse_unknown_columns(table, [("the body", part.rows.schema)])
        # Without the metadata of a caller's schema, which would be that of a segment.
        columns = fit_to_schema(part.rows, table).columns
        return _Rows(pa.Table.from_arrays(columns, schema=schema), part.calls)

    fitted: list[_Rows] = []
    while bodies:
        columns = bodies[0].rows.schema
        alike = [body for body in bodies if body.rows.schema.equals(columns)]
        bodies = [body for body in bodies if not body.rows.schema.equals(columns)]
        fitted += _for_all(_together(alike), fit, failures)
    return fitted, failures


@dataclass(frozen=True, slots=True)
class _Rules:
    """What decides about the changes of a group."""

    table: Table
    targets: Sequence[AppendTarget]
    """For an unpartitioned table with a key: its tablets."""
    now_s: float
    """The store's time, for a table with versions."""
    version_ahead_max_s: float
    segment_bytes_max: int
    table_bytes_max: int


def changes_of(
    parts: Sequence[_Rows], rules: _Rules, new_id: Callable[[], str]
) -> tuple[dict[_Call, AppendRows], _Failures]:
    """Return the change of each call, and calls that are refused. Blocks.

    Args:
        parts: Rows of the calls, in the columns of the table.
        rules: Table, tablets and bounds.
        new_id: Returns a call id for a flush.
    """
    failures: _Failures = {}
    rows = _together(parts)
    rows = _Rows(rows.rows.combine_chunks(), rows.calls)
    changes = _for_all(rows, lambda part: _changes_of(part, rules, new_id), failures)
    return {call: change for part in changes for call, change in part.items()}, failures


def _changes_of(group: _Rows, rules: _Rules, new_id: Callable[[], str]) -> dict[_Call, AppendRows]:
    table = rules.table
    versions: pa.LargeBinaryArray | None = None
    if table.version_column is not None:
        column = group.rows.column(table.version_column)
        versions = encode_column(column, RowRules.of(table).version_type)
        highest = [("a row", pc.max(versions).as_py())]
        refuse_future_versions(table, highest, rules.now_s, rules.version_ahead_max_s)
    hashes = row_hash(group.rows)
    spans: list[dict[bytes, RowSpan]] = [{} for _ in group.calls]
    if table.key:
        assert versions is not None, table.name  # Each table with a key has versions.
        spans = _spans(group, rules, versions)
    schema = schema_bytes(group.rows.schema)
    (batch,) = group.rows.to_batches()
    changes: dict[_Call, AppendRows] = {}
    for (call, count), start, row_spans in zip(
        group.calls.items(), group.starts, spans, strict=True
    ):
        rows = batch.slice(start, count)
        changes[call] = AppendRows(
            table=table.id,
            call=call.id,
            content=digest_text(hashes[start : start + count]),
            message=message_of(rows),
            rows=count,
            size_bytes=max(1, rows.nbytes),
            schema_id=table.schema_id,
            schema=schema,
            floor=min((span.version_min or b"" for span in row_spans.values()), default=b""),
            spans=row_spans,
            flush=new_id(),
            segment_bytes_max=rules.segment_bytes_max,
            table_bytes_max=rules.table_bytes_max,
        )
    return changes


def _spans(
    group: _Rows, rules: _Rules, versions: pa.LargeBinaryArray
) -> list[dict[bytes, RowSpan]]:
    """Return what the rows of each call span in each tablet."""
    table, key_rules = rules.table, RowRules.of(rules.table)
    keys = encode_keys(group.rows, table.key, key_rules.key_types)
    if table.partition_by:
        partitions = encode_keys(group.rows, table.partition_by, partition_types(table))
        codes = partitions.dictionary_encode()
        ends = codes.dictionary.to_pylist()
        tablets = numbers(codes.indices, np.int32).astype(np.int64)
    else:
        ends, tablets = tablet_indices(keys, rules.targets)
    calls = np.repeat(np.arange(len(group.calls)), list(group.calls.values()))
    parts = _whole_numbers(calls * len(ends) + tablets)
    numbered, key_min, key_max = _ends_by_part(parts, keys)
    _, version_min, _ = _ends_by_part(parts, versions)
    spans: list[dict[bytes, RowSpan]] = [{} for _ in group.calls]
    for part, low, high, version in zip(numbered, key_min, key_max, version_min, strict=True):
        number, tablet = divmod(part, len(ends))
        spans[number][ends[tablet]] = RowSpan(key_min=low, key_max=high, version_min=version)
    return spans


def _ends_by_part(
    parts: pa.Int64Array, values: pa.LargeBinaryArray
) -> tuple[list[int], list[bytes], list[bytes]]:
    """Return the numbers of parts, ascending, and the lowest and the highest value of each."""
    table = pa.table([parts, values], names=["part", "value"])
    order = pc.sort_indices(table, [("part", "ascending"), ("value", "ascending")])
    ordered = numbers(parts.take(order), np.int64)
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    first = np.append(0, last[:-1] + 1)
    ends = (values.take(order.take(_whole_numbers(at))).to_pylist() for at in (first, last))
    return ordered[first].tolist(), *ends


def _whole_numbers(values: npt.NDArray[np.int64]) -> pa.Int64Array:
    """Return an Arrow array. `pa.array` would load pandas, for seconds without another call."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))]
    return pa.Array.from_buffers(pa.int64(), len(values), buffers)


# ------------------------------------------------------------------------------------------ Tablets


TARGETS_MAX = 1000
"""Tablets of a table whose ends are kept; the tablets of larger tables are looked up by key."""


class _Targets:
    """The tablets of unpartitioned tables, until a transaction shows that they have changed."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._read: BoundedMap[str, list[AppendTarget]] = BoundedMap(TABLES_MAX)
        """Table id → its tablets; empty: too many."""

    def forget(self, table: str) -> None:
        """Forget the tablets of a table."""
        self._read.pop(table)

    async def of(self, table: Table, parts: Sequence[_Rows]) -> list[AppendTarget]:
        """Return the tablets of a table that may hold some rows, ascending.

        Nothing for a table without a key, or with partitions.

        Raises:
            RequestError: A key cannot be encoded.
            UnknownTableError: The table was dropped in the meantime.
        """
        if not table.key or table.partition_by:
            return []
        targets = self._read.get(table.id)
        if targets is None:
            ids = await self._services.store.tablet_ids(table.id, None, TARGETS_MAX + 1)
            if not ids:
                raise no_tablets_error(table)
            is_small = len(ids) <= TARGETS_MAX
            targets = _ascending([tablet.end for tablet in ids]) if is_small else []
            self._read.put(table.id, targets)
        if targets:
            return targets
        types = RowRules.of(table).key_types
        keys = pa.concat_arrays([encode_keys(part.rows, table.key, types) for part in parts])
        located = await self._services.store.locate_each(table.id, keys.unique().to_pylist())
        if None in located:
            raise no_tablets_error(table)
        return _ascending(sorted({tablet.end for tablet in located if tablet is not None}))


def _ascending(ends: Iterable[bytes]) -> list[AppendTarget]:
    targets: list[AppendTarget] = []
    for end in ends:
        targets.append(AppendTarget(targets[-1].up_to if targets else None, end, end))
    return targets


# ------------------------------------------------------------------------------------------- Groups


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows of a call that the store has."""

    rows: int
    size_bytes: int
    repeated: bool
    """Whether the call was accepted before."""


@dataclass(slots=True)
class RowGroups:
    """The queues of all tables. For one event loop."""

    services: Services
    tables: RecentTables
    _targets: _Targets = field(init=False)
    _queues: dict[str, deque[_Call]] = field(default_factory=dict)
    """Table id → calls that wait; there is an entry while a transaction is under way."""

    def __post_init__(self) -> None:
        """Start without calls."""
        self._targets = _Targets(self.services)

    async def buffer(
        self,
        name: str,
        table: Table,
        call: str,
        decode: Callable[[Table], pa.Table],
        size_bytes: int,
    ) -> Taken:
        """Append the rows of a call to the buffer of a table: all of them, or none.

        Args:
            name: How the caller has named the table.
            table: The table, as it was a moment ago.
            call: Id of the call.
            decode: Returns the rows of its body for a table; blocks.
            size_bytes: Decoded size of the rows, about.

        Raises:
            RequestError: The body is malformed, or does not fit the schema.
            RefusedError: The table or a tablet does not accept the rows.
            UnavailableError: A bound is reached, or the store does not answer.
            UnknownOutcomeError: The store did not answer: the rows may be there.
        """
        sent = False
        for number in range(TRIES_MAX):
            waiting = _Call(
                table, call, decode, size_bytes, asyncio.get_running_loop().create_future()
            )
            try:
                answer, change = await self._answer(waiting)
            except RequestError:
                # It may have grown a column a moment ago.
                present = await self.tables.present(name)
                if (present.id, present.schema_id) == (table.id, table.schema_id):
                    raise
                table = present
                continue
            if isinstance(answer, Applied):
                if not answer.repeated:
                    self.services.buffers.took(table.id, change.size_bytes)
                return Taken(change.rows, change.size_bytes, answer.repeated)
            sent |= answer.sent
            if answer.code not in _AGAIN or number == TRIES_MAX - 1:
                self._refuse(table, answer, sent=sent)
            table = await self.tables.present(name)
        raise RefusedError(f"table {table.name!r} keeps changing; try again")

    def _refuse(self, table: Table, answer: Refused, *, sent: bool) -> None:
        """Raise the error of a refused call."""
        if sent:
            # An earlier try may still be on its way to the store.
            raise UnknownOutcomeError(f"{answer.reason}; send the same call again")
        if answer.code == RefusalCode.BUFFERED:
            buffers = self.services.buffers
            buffers.sizes[table.id] = buffers.table_bytes_max
            buffers.admit(table.id, table.name)
        if answer.code in _OF_CALL:
            raise CallIdError(answer.reason, answer.code)
        require_applied(answer)

    async def _answer(self, call: _Call) -> tuple[Applied | Refused, AppendRows]:
        """Put a call into the queue of its table, and return its answer."""
        queue = self._queues.get(call.table.id)
        if queue is None:
            queue = self._queues[call.table.id] = deque()
            self.services.later(self._serve(call.table.id, queue))
        queue.append(call)
        return await call.answer

    async def _serve(self, table: str, queue: deque[_Call]) -> None:
        """Make one transaction after the other until no call waits."""
        group: list[_Call] = []
        try:
            while queue:
                group = _next_group(queue)
                await self._commit(group)
                if len(group) + len(queue) >= GATHER_CALLS_MIN:
                    await asyncio.sleep(GATHER_S)
        finally:
            del self._queues[table]
            for call in (*group, *queue):
                call.answer.cancel()  # Only if this task was cancelled.

    async def _commit(self, group: Sequence[_Call]) -> None:
        """Make the transaction of a group, and answer its calls."""
        try:
            await self._commit_together(group)
        except Exception as error:
            left = [call for call in group if not call.answer.done()]
            if len(left) > 1 and isinstance(error, RequestError | BrokenValueError):
                # Of one call, or of one tablet: it must not fail the others.
                for call in left:
                    await self._commit([call])
                return
            for call in left:
                call.fail(error)

    async def _commit_together(self, group: Sequence[_Call]) -> None:
        """Check the calls of a group, append their rows in one transaction, and answer them."""
        services = self.services
        table = max((call.table for call in group), key=lambda table: table.schema_id)
        generation = await check_writable(services, table)
        in_thread = sum(call.size_bytes for call in group) > INLINE_BYTES_MAX
        parts, failures = await self._run(
            table, partial(checked_rows, table, group), in_thread=in_thread
        )
        _fail(failures)
        if not parts:
            return
        ingest = services.settings.ingest
        rules = _Rules(
            table,
            await self._targets.of(table, parts),
            await services.store.now_s() if table.version_column is not None else 0.0,
            services.settings.gateway.version_ahead_max_s,
            ingest.flush_bytes,
            ingest.table_bytes_max,
        )
        new_id = partial(call_id, services.clock)
        changes, failures = await self._run(
            table, partial(changes_of, parts, rules, new_id), in_thread=in_thread
        )
        _fail(failures)
        if changes:
            await self._append(table, changes, generation)

    async def _run(self, table: Table, work: Callable[[], T], *, in_thread: bool) -> T:
        """Run work on rows in a thread, or here."""
        return await self.services.rows.run(table.location, work) if in_thread else work()

    async def _append(
        self, table: Table, changes: Mapping[_Call, AppendRows], generation: int
    ) -> None:
        group = AppendGroup(table=table.id, calls=tuple(changes.values()), generation=generation)
        outcome = await self.services.store.apply(group)
        if isinstance(outcome, Refused):
            answers: Sequence[Applied | Refused] = [outcome] * len(changes)
        else:
            answers = require_applied(outcome).answers
        for (call, change), answer in zip(changes.items(), answers, strict=True):
            if isinstance(answer, Refused) and answer.code in _AGAIN:
                self._targets.forget(table.id)
            if not call.answer.done():
                call.answer.set_result((answer, change))


def _fail(failures: Mapping[_Call, Exception]) -> None:
    for call, error in failures.items():
        call.fail(error)


def _next_group(queue: deque[_Call]) -> list[_Call]:
    """Take calls from a queue, in their order, as far as the bounds of a group allow."""
    group = [queue.popleft()]
    size_bytes = group[0].size_bytes
    while queue and len(group) < GROUP_CALLS_MAX:
        size_bytes += queue[0].size_bytes
        if size_bytes > GROUP_BYTES_MAX:
            break
        group.append(queue.popleft())
    return group
