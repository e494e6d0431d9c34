"""Shared by all parts of the shell: store, clock, ids, log, threads, and failures of one table.

A change of the store goes through `ShellContext.apply`, which refuses changes of a table whose
store has lost recent changes.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from common.errors import (
    BrokenValueError,
    ConfigError,
    MetadataError,
    RequestError,
    RewriteError,
    UnavailableError,
    redacted,
)
from common.metadata.changes import (
    Applied,
    BumpGeneration,
    Change,
    Guarded,
    Outcome,
    Refused,
    Unknown,
    table_of,
)
from common.metadata.store import TabletStore
from common.model.location_identity import MANIFEST_FOLDER
from common.model.outcome import RefusalCode
from common.model.table import Table, TableState
from common.model.tablet import Tablet, TabletId
from common.parquet.foreign_formats import ForeignMark, foreign_mark
from common.parquet.location import Location, only_copies, open_location
from common.parquet.manifest import delete_folder
from common.parquet.service_files import (
    LocationOwner,
    generation_fault,
    read_description,
    read_owner,
    write_description,
    write_generation,
    written_generation,
)
from common.primitives import Backoff, BoundedMap
from common.runtime import Clock, IdSource, SystemClock
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.tracing import Spans

# ------------------------------------------------------------------------------------- Table faults
# Isolation of unexpected failures of work on one table, so that loops over all tables continue.
#
#     a loop over all tables ─► `run` for each ─► done
#                                              └► fails: logged, counted, paused for a while
#
# A pause applies to one kind of work (`collector`, `manifests`, …) on one table or tablet. All
# other work continues, including other kinds of work on the same table. The pause doubles with each
# consecutive failure and ends with a success. A failure of the core is not isolated: it ends the
# process, regardless of the caller (`CoordinatorService.failed`).


T = TypeVar("T")

BACKOFF = Backoff(base_s=5.0, max_s=300.0)
FAULTS_MAX = 10_000
CAUSE_CHARS_MAX = 500
SENTENCES_MAX = 5
"""Number of unreadable tables and tablets that `neve status` lists."""


STORE_AWAY_ERRORS = (MetadataError, UnavailableError)
"""Errors of a store or storage that does not answer; all work waits for it."""


def is_store_away(error: Exception) -> bool:
    """Return whether an error is due to an unavailable store, and not to its content."""
    return isinstance(error, STORE_AWAY_ERRORS) and not isinstance(error, BrokenValueError)


@dataclass(frozen=True, slots=True)
class Fault:
    """The last failure, the number of consecutive failures, and the time of the next try."""

    part: str
    cause: str
    times: int
    retry_at_s: float
    """Time of the event loop's clock."""

    def sentence(self, now_s: float) -> str:
        """Return a sentence that describes the fault to users."""
        often = "" if self.times == 1 else f" {self.times} times in a row"
        return (
            f"{self.part} failed{often} and pauses for"
            f" {max(0.0, self.retry_at_s - now_s):.0f} s: {self.cause}"
        )


class TableFaults:
    """The faults of a coordinator. Every method is called from one event loop."""

    def __init__(self, log: Log, backoff: Backoff = BACKOFF) -> None:
        """Create an instance without faults; `backoff` sets the length of pauses."""
        self._log = log
        self._backoff = backoff
        self._faults: BoundedMap[tuple[str, str], Fault] = BoundedMap(FAULTS_MAX)
        self._retries_due: set[tuple[str, str]] = set()
        self._unreadable: BoundedMap[str, str] = BoundedMap(FAULTS_MAX)
        self._notices: BoundedMap[tuple[str, str], str] = BoundedMap(FAULTS_MAX)
        self.counts: Counter[str] = Counter()
        """Number of failures since the start, by kind of work."""

    async def run(
        self,
        part: str,
        subject: str,
        work: Callable[[], Awaitable[T]],
        expected: tuple[type[Exception], ...] = (),
        retry: Callable[[], None] | None = None,
    ) -> T | None:
        """Run work on a table or tablet, unless it pauses; return None if it failed or pauses.

        Args:
            part: Kind of work, as shown to users.
            subject: Id of the table, or text of the tablet.
            work: The work to run.
            expected: Errors that are raised to the caller, except for broken stored values,
                which count as faults of the table.
            retry: Schedules the work again; called when the pause is over. Not needed by callers
                that run periodically.
        """
        fault = self._faults.get((part, subject))
        if fault is not None and asyncio.get_running_loop().time() < fault.retry_at_s:
            self._retry_later(part, subject, retry)
            return None
        try:
            done = await work()
        except Exception as error:  # A failure on one table must not end the loop over all tables.
            if isinstance(error, expected) and not isinstance(error, BrokenValueError):
                raise
            self.note(part, subject, error)
            self._retry_later(part, subject, retry)
            return None
        self._faults.pop((part, subject))
        return done

    def _retry_later(self, part: str, subject: str, retry: Callable[[], None] | None) -> None:
        """Schedule one call of `retry` for the end of the pause."""
        key, loop = (part, subject), asyncio.get_running_loop()
        fault = self._faults.get(key)
        if retry is None or fault is None or key in self._retries_due:
            return

        self._retries_due.add(key)
        loop.call_at(fault.retry_at_s, self._retry, key, retry)

    def _retry(self, key: tuple[str, str], retry: Callable[[], None]) -> None:
        self._retries_due.discard(key)
        retry()

    def note(self, part: str, subject: str, error: Exception) -> str:
        """Record a fault, and return its cause."""
        previous = self._faults.get((part, subject))
        times = 1 if previous is None else previous.times + 1
        cause = redacted(f"{type(error).__name__}: {error}"[:CAUSE_CHARS_MAX])
        retry_at_s = asyncio.get_running_loop().time() + self._backoff.wait_s(times)
        self._faults.put((part, subject), Fault(part, cause, times, retry_at_s))
        self.counts[part] += 1
        place = _place_of(error)
        self._log("work on a table failed", work=part, subject=subject, cause=cause, place=place)
        return cause

    def sentences(self, *subjects: str) -> tuple[str, ...]:
        """Return one sentence for users on each fault of the given tables and tablets."""
        now_s = asyncio.get_running_loop().time()
        causes = [(subject, cause) for subject, cause in self._unreadable if subject in subjects]
        return (
            *(_quarantined(subject, cause) for subject, cause in causes),
            *(fault.sentence(now_s) for (_, subject), fault in self._faults if subject in subjects),
        )

    def unreadable(self, part: str, subject: str, cause: str) -> str:
        """Record that a table or tablet cannot be decoded; return a sentence for users.

        It is quarantined: it is not planned until it can be read. This counts as one fault of
        `part`, and as another one if the cause changes.
        """
        cause = redacted(cause[:CAUSE_CHARS_MAX])
        if self._unreadable.get(subject) != cause:
            self._unreadable.put(subject, cause)
            self.counts[part] += 1
            self._log("quarantined, cannot be read", work=part, subject=subject, cause=cause)
        return _quarantined(subject, cause)

    def readable(self, subject: str) -> None:
        """Record that a table or tablet can be read."""
        if self._unreadable.pop(subject) is not None:
            self._log("can be read again", subject=subject)

    def all_unreadable(self) -> tuple[str, ...]:
        """Return a sentence for each of the first unreadable tables and tablets, and a count."""
        sentences = [_quarantined(subject, cause) for subject, cause in self._unreadable]
        more = len(sentences) - SENTENCES_MAX
        return (*sentences[:SENTENCES_MAX], *([f"{more} more cannot be read"] if more > 0 else []))

    def notice(self, part: str, table: str, sentence: str) -> None:
        """Show that a table needs an operator, until the notice is withdrawn.

        Args:
            part: Kind of work that needs the operator.
            table: Id of the table.
            sentence: The problem, and how to solve it.
        """
        if self._notices.get((part, table)) != sentence:
            self._notices.put((part, table), sentence)
            self._log("table needs an operator", table=table, cause=sentence)

    def withdraw_notice(self, part: str, table: str) -> None:
        """Withdraw the notice of one kind of work about a table, if there is one."""
        self._notices.pop((part, table))

    def keep_notices(self, part: str, tables: Collection[str]) -> None:
        """Withdraw the notices of one kind of work about all other tables."""
        for key in [key for key, _ in self._notices if key[0] == part and key[1] not in tables]:
            self._notices.pop(key)

    @property
    def notices(self) -> tuple[str, ...]:
        """The first notices on tables that need an operator."""
        return tuple(sentence for _, sentence in self._notices)[:SENTENCES_MAX]

    @property
    def unreadable_tablets(self) -> int:
        """Number of unreadable tablets, without those of unreadable tables."""
        return sum(";" in subject for subject, _ in self._unreadable)

    @property
    def unreadable_tables(self) -> tuple[str, ...]:
        """The unreadable tables, by the name or id under which they were recorded."""
        return tuple(subject for subject, _ in self._unreadable if ";" not in subject)

    @property
    def unreadable_records(self) -> Mapping[str, tuple[int, str]]:
        """Table, by name or id → number of its unreadable records, and why one is."""
        counts = Counter(subject.partition(";")[0] for subject, _ in self._unreadable)
        causes = {subject.partition(";")[0]: cause for subject, cause in self._unreadable}
        return {table: (count, causes[table]) for table, count in counts.items()}

    def forget(self, table: str) -> None:
        """Remove a dropped table."""
        for part, subject in [key for key, _ in self._faults]:
            if subject.partition(";")[0] == table:
                self._faults.pop((part, subject))
        for subject, _ in self._unreadable:
            if subject.partition(";")[0] == table:
                self._unreadable.pop(subject)
        for key in [key for key, _ in self._notices if key[1] == table]:
            self._notices.pop(key)

    @property
    def standing(self) -> int:
        """Number of tables and tablets for which any kind of work pauses."""
        subjects = {subject for (_, subject), _ in self._faults}
        return len(subjects.union(subject for subject, _ in self._unreadable))


def _quarantined(subject: str, cause: str) -> str:
    what = "tablet" if ";" in subject else "table"
    return f"{what} {subject} is quarantined, it cannot be read: {cause}"


def _place_of(error: Exception) -> str:
    """Return the file and line where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


# -------------------------------------------------------------------------------------- Generations
# The generation of every table: incremented regularly, and written to the table's location.
#
#     read the location's generation → read the store's generation → if the store is behind, the
#     table stays read-only until `neve fsck --accept` → otherwise increment the store's generation
#     → write the new generation to the location
#
# The file is read before the key, so a lower key proves that the store is behind. Known generations
# are kept in memory: a new coordinator checks each table before its first change, and each change
# requires the known generation of the store (`common.metadata.changes`). The description of the
# table (`_neve/table.json`) is updated at the same time.


LOOK_AGAIN_S = 5.0
"""Interval between checks of tables that are new or behind."""
LOOK_LASTS_S = 5.0
"""How long after a check a generation may be incremented: shorter than a fail-over of the store."""
TABLES_AT_ONCE = 8
_TABLE_ERRORS = (ConfigError, MetadataError, RequestError, UnavailableError)


class Generations:
    """Decides from the generation of a table whether the table may be changed."""

    def __init__(
        self,
        store: TabletStore,
        log: Log,
        faults: TableFaults | None = None,
        threads: StorageThreads | None = None,
        *,
        interval_s: float = 60.0,
    ) -> None:
        """Create an instance without known generations.

        Args:
            store: The store of the tables.
            log: Receives anomalies.
            faults: Isolates failures of one table.
            threads: Threads for calls to the storage.
            interval_s: Interval between two increments of a table.
        """
        self._interval_s = interval_s
        self.threads = threads or StorageThreads()
        self.faults = faults or TableFaults(log)
        self._store = store
        self._log = log
        self._reasons: dict[str, str | None] = {}
        self._highest: dict[str, int] = {}
        self._described: dict[str, Table] = {}

    def may_change(self, table: str) -> bool:
        """Return whether the generation of a table was read and is not behind."""
        return self._reasons.get(table, "not looked at yet") is None

    @property
    def read_only(self) -> Mapping[str, str]:
        """Id of each table that is behind → why it is read-only."""
        return {table: reason for table, reason in self._reasons.items() if reason is not None}

    def known(self, table: str) -> int:
        """Return the highest known generation of a table."""
        return self._highest.get(table, 0)

    async def refusal(self, table: str) -> str | None:
        """Return why no job of a table may be reserved, or None; check the table if necessary."""
        if table not in self._reasons:
            try:
                stored = await self._store.table(table)
                return None if stored is None else await self.look(stored)
            except Exception as error:  # A table that cannot be checked gets no jobs.
                if not isinstance(error, _TABLE_ERRORS):
                    self.faults.note("the look at generations", table, error)
                return f"its generation cannot be checked: {redacted(str(error))}"
        return self._reasons[table]

    async def look(self, table: Table) -> str | None:
        """Compare store and location; return why the table is read-only, or None.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        if table.lake is not None:  # Its log is the truth, and nothing is written beside that.
            self._reasons[table.id] = None
            return None
        location, known_generation = open_location(table.location), self.known(table.id)
        written = await self.threads.run(table.location, written_generation, location)
        stored = await self._store.generation(table.id)
        if stored < known_generation and written < known_generation:
            # The store lost writes before the location was written: record the known generation.
            await self.threads.run(table.location, _raise_written, location, known_generation)
            written = known_generation
        reason = generation_fault(table.name, stored, written)
        owner = await self.threads.run(table.location, read_owner, location)
        if reason is None and owner is not None:
            reason = foreign_owner(table, owner)
        if reason and not self._reasons.get(table.id):
            self._log("table is read-only", table=table.name, cause=reason)
        self._reasons[table.id] = reason
        if reason is None:
            self._highest[table.id] = stored
        return reason

    async def count_up(self, table: Table) -> None:
        """Increment the generation of a table, unless it is behind.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        until_s = await self._store.now_s() + LOOK_LASTS_S
        if await self.look(table) is not None or table.lake is not None:
            return
        location, generation = open_location(table.location), self.known(table.id)
        change = BumpGeneration(table=table.id, generation=generation, until_s=until_s)
        outcome = await self._store.apply(change)
        if isinstance(outcome, Applied) and outcome.generation is not None:
            self._highest[table.id] = outcome.generation
            await self.threads.run(table.location, _raise_written, location, outcome.generation)
        if self._described.get(table.id) != table:
            await self.threads.run(table.location, _describe, location, table)
            self._described[table.id] = table

    async def run_forever(self, tables: Callable[[], Collection[Table]]) -> None:
        """Increment all tables once per interval; check new tables and those behind more often.

        Args:
            tables: Returns the existing tables.
        """
        rounds, gate = 0, asyncio.Semaphore(TABLES_AT_ONCE)
        pause_s = min(LOOK_AGAIN_S, self._interval_s)

        async def count_up(table: Table) -> None:
            async with gate:
                work = partial(self._count_up_or_log, table)
                await self.faults.run("the look at generations", table.id, work)

        while True:
            everyone = [table for table in tables() if table.state is not TableState.GOING]
            whole = rounds % int(self._interval_s / pause_s) == 0
            due = [table for table in everyone if whole or not self.may_change(table.id)]
            await asyncio.gather(*map(count_up, due))
            self._forget_all_but({table.id for table in everyone})
            rounds += 1
            await asyncio.sleep(pause_s)

    async def _count_up_or_log(self, table: Table) -> None:
        try:
            await self.count_up(table)
        except _TABLE_ERRORS as error:
            self._log("generation not counted up", table=table.name, cause=str(error))

    def _forget_all_but(self, tables: set[str]) -> None:
        for table in [table_id for table_id in self._reasons if table_id not in tables]:
            del self._reasons[table]
            self._highest.pop(table, None)
            self._described.pop(table, None)


def _raise_written(location: Location, generation: int) -> None:
    """Write a generation to a location, unless it has a higher one from another coordinator."""
    if written_generation(location) < generation:
        write_generation(location, generation)


def _describe(location: Location, table: Table) -> None:
    """Write the description of a table; an incomplete table keeps the state described before."""
    described = read_description(location) if table.incomplete else None
    if described is not None and described.id == table.id:
        table = replace(table, state=described.state)
    write_description(location, table)


def foreign_owner(table: Table, owner: LocationOwner) -> str | None:
    """Return why a table is read-only if its location belongs to another table, or None."""
    if not owner.is_another(table.id):
        return None
    return (
        f"table {table.name} is read-only: the mark in its location {table.location} belongs"
        f" to the table with id {owner.table}; check for a moved folder or a changed link or"
        f" mount, then run `neve fsck {table.name}`"
    )


# ------------------------------------------------------------------------------------------ Context


@dataclass(frozen=True, slots=True)
class ShellContext:
    """Shared dependencies of the shell. It makes no decisions."""

    store: TabletStore
    clock: Clock
    ids: IdSource
    log: Log
    coordinator: str
    """Random id under which this coordinator has claimed the lead."""
    generations: Generations | None = None
    """Refuses changes of tables whose store has lost recent changes."""
    spans: Spans = field(default_factory=Spans)
    """Receives the spans of attempts."""
    faults: TableFaults = field(init=False)
    """Keeps failures of one table from stopping the work on all tables."""
    threads: StorageThreads = field(init=False)
    """Threads that read storage. Callers share what they learn about a silent storage."""

    def __post_init__(self) -> None:
        """Share faults and threads with `generations`."""
        generations = self.generations
        faults = TableFaults(self.log) if generations is None else generations.faults
        object.__setattr__(self, "faults", faults)
        object.__setattr__(
            self, "threads", StorageThreads() if generations is None else generations.threads
        )

    async def apply(self, change: Change) -> Outcome:
        """Apply a change, unless the store of its table is older than the table's location.

        The change requires the same condition.
        """
        if self.generations is None or not isinstance(change, Guarded):
            return await self.store.apply(change)
        table = table_of(change)
        if (reason := await self.generations.refusal(table)) is not None:
            return Refused(code=RefusalCode.GENERATION, reason=reason)
        guarded = replace(change, generation=self.generations.known(table))
        return await self.store.apply(guarded)

    async def write(self, change: Change, what: str) -> None:
        """Write an operator's change.

        Args:
            change: A change of the whole store, not of one table.
            what: What is written, for messages.

        Raises:
            MetadataError: The store refused.
            UnavailableError: The store does not answer; the change may or may not be written.
        """
        outcome = await self.store.apply(change)
        if isinstance(outcome, Refused):
            raise MetadataError(f"{what} is not written: {outcome.reason}")
        if not isinstance(outcome, Applied):
            raise UnavailableError(f"{what} may not be written: {outcome.reason}")

    async def apply_or_unknown(self, change: Change) -> Outcome:
        """Apply a change; if the store gives no clear answer, the outcome is `Unknown`."""
        try:
            return await self.apply(change)
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))


# -------------------------------------------------------------------------------- Access to storage
# Storage access of the coordinator: deletion, look-ups, free space, in threads with deadlines.


P = ParamSpec("P")
_STORAGE_ERRORS = (OSError, RequestError, ConfigError, UnavailableError)


class ArrowStorage:
    """The storage of all tables; credentials come from the environment's default chains."""

    def __init__(self, clock: Clock | None = None, threads: StorageThreads | None = None) -> None:
        """Create an instance with a clock, by default the system clock, and threads."""
        self._clock = clock or SystemClock()
        self._threads = threads or StorageThreads()

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        """Delete a file or all manifests before a deadline; return whether it existed.

        Raises:
            RewriteError: The deadline has passed, or the storage refused or did not answer.
        """
        return await self._asked(location, self._delete, location, path, until_s)

    async def owner(self, location: str) -> LocationOwner | None:
        """Return the owner by the mark of a location, or None; see `Storage`."""
        return await self._asked(location, _owner, location)

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        """Return the complete outputs if an input is missing, else nothing.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        return await self._asked(location, _only_copies, location, outputs, inputs)

    async def foreign_mark(self, location: str, paths: Sequence[str]) -> ForeignMark | None:
        """Return the mark of another format that owns the location or files; see `Storage`."""
        return await self._asked(location, _foreign_mark, location, paths)

    async def _asked(
        self, location: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return await self._threads.run(location, work, *args, **kwargs)
        except UnavailableError as error:
            raise RewriteError(str(error)) from error

    def _delete(self, location: str, path: str, until_s: float) -> bool:
        try:
            opened = open_location(location)
            # The thread may have waited for long, so check the deadline right before the deletion.
            if self._clock.now_s() > until_s:
                raise RewriteError(f"file {path} of {location} was looked at too long ago")
            if path == MANIFEST_FOLDER:
                delete_folder(opened, path)
                return True
            opened.filesystem.delete_file(opened.full(path))
        except FileNotFoundError:
            return False
        except _STORAGE_ERRORS as error:
            raise RewriteError(f"file {path} of {location} was not deleted: {error}") from error
        return True


def _owner(location: str) -> LocationOwner | None:
    try:
        return read_owner(open_location(location))
    except (UnavailableError, RequestError, ConfigError) as error:
        raise RewriteError(str(error)) from error


def _foreign_mark(location: str, paths: Sequence[str]) -> ForeignMark | None:
    try:
        return foreign_mark(open_location(location), paths)
    except _STORAGE_ERRORS as error:
        raise RewriteError(f"folders of {location} cannot be listed: {error}") from error


def _only_copies(location: str, outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    try:
        return only_copies(open_location(location), outputs, inputs)
    except _STORAGE_ERRORS as error:
        raise RewriteError(f"files of {location} cannot be listed: {error}") from error


# --------------------------------------------------------------------------------------- Free space
#
# A plan must not wait for the storage, so it uses the last measurement. Each read of a tablet
# starts a new measurement in the background if the last one is old. After the first measurement of
# a location, the tablet is replanned. Only tables with the setting `keep_free_bytes` are measured.


FRESH_S = 10.0
"""Age from which a measurement is repeated."""
LOCATIONS_MAX = 10_000


def measured_free_bytes(location: str) -> int | None:
    """Return the free space of a location; None if the storage reports no limit, for example S3.

    Raises:
        OSError: The folder does not exist or cannot be read.
    """
    parts = urlsplit(location)
    return shutil.disk_usage(url2pathname(parts.path)).free if parts.scheme == "file" else None


class FreeSpace:
    """The last measurement of each location."""

    def __init__(
        self, clock: Clock, threads: StorageThreads, ask: Callable[[TabletId], None]
    ) -> None:
        """Create an instance without measurements; `ask` requests the replan of a tablet."""
        self._clock = clock
        self._threads = threads
        self._ask = ask
        self._measured: BoundedMap[str, tuple[float, int | None]] = BoundedMap(LOCATIONS_MAX)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def of(self, table: Table) -> int | None:
        """Return the free space of a table's location; None if unknown or not requested."""
        measured = self._measured.get(table.location) if table.settings.keep_free_bytes else None
        return None if measured is None else measured[1]

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Start a measurement in a thread if the last one is old. Does not wait."""
        location = table.location
        if not table.settings.keep_free_bytes or location in self._under_way:
            return
        measured = self._measured.get(location)
        if measured is None or self._clock.now_s() - measured[0] >= FRESH_S:
            task = asyncio.get_running_loop().create_task(self._measure(location, tablet.id))
            self._under_way[location] = task

    async def _measure(self, location: str, tablet: TabletId) -> None:
        first = self._measured.get(location) is None
        try:
            free = await self._threads.run(location, measured_free_bytes, location)
        except (OSError, UnavailableError):
            return  # The next rewrite in this location reports the problem.
        finally:
            self._under_way.pop(location, None)
        self._measured.put(location, (self._clock.now_s(), free))
        if first:
            self._ask(tablet)
