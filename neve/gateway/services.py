"""Dependencies of all slices: ports, settings, threads, and the common look-ups of calls."""

import asyncio
import difflib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from fastapi import Depends
from fastapi.security import HTTPBearer

from common.errors import (
    RefusedError,
    RequestError,
    UnavailableError,
    UnknownGroupError,
    UnknownTableError,
    UnknownTabletError,
)
from common.metadata.store import TabletStore
from common.model.job import TabletPlan
from common.model.table import DNS_LABEL, Table, TableSettings, TableState, filling_text
from common.model.tablet import Tablet, TabletId
from common.parquet.buffered import Flushed, FlushPorts, flush_table, rows_of_tablet
from common.parquet.service_files import generation_fault
from common.primitives import Budget
from common.runtime import Clock, IdSource
from common.settings import Settings
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.wire import VolumeUse
from neve.api import Correction
from neve.gateway.access.audit import Audit, AuditFile
from neve.gateway.access.callers import open_table, refuse_lake_table, sees_table
from neve.gateway.access.quotas import BufferUse, Quotas, ScanSlots, Shares
from neve.gateway.notify.notifier import Notifier
from neve.gateway.store_watch import StoreWatch
from neve.gateway.table_files import StoredFiles
from neve.gateway.table_locations import Locations, Owners, locations_of

if TYPE_CHECKING:  # The gateway calls the coordinator's actor, but does not import it.
    from coordinator.actor import CoordinatorActor

BEARER = Depends(HTTPBearer(auto_error=False, description="The token of the gateway."))
"""Declares the token in the OpenAPI schema; `authentication` checks it."""

# ---------------------------------------------------------------- Tablets with a split in progress


TABLETS_MAX = 1000
"""Limit over all tables; if it is exceeded, all hints are dropped."""


class SplitHints:
    """Ends of tablets that were recently being split, by table."""

    def __init__(self) -> None:
        """Start without hints."""
        self._ends: dict[str, dict[bytes, None]] = {}

    def of(self, table: str) -> tuple[bytes, ...]:
        """Return the ends of the tablets of a table that may be being split."""
        return tuple(self._ends.get(table, ()))

    def seen(self, table: str, ends_seen: Iterable[bytes], splitting: Iterable[bytes]) -> None:
        """Record which of the tablets that were read are being split."""
        ends = self._ends.setdefault(table, {})
        for end in ends_seen:
            ends.pop(end, None)
        ends.update(dict.fromkeys(splitting))
        if not ends:
            del self._ends[table]
        if sum(map(len, self._ends.values())) > TABLETS_MAX:
            self._ends.clear()


# ------------------------------------------------------------------- Checks of a table's generation


CHECK_INTERVAL_S = 60.0
TABLES_MAX = 100_000


class GenerationChecks:
    """Caches for a minute that the store is not older than a table's location.

    A failed check is not cached, so that the table is writable as soon as an operator accepts the
    loss of changes.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def checked(self, table: str, now_s: float) -> int | None:
        """Return the generation of a table's location, or None if its check is a minute old."""
        seen_s, generation = self._seen.get(table, (None, 0))
        recent = seen_s is not None and 0 <= now_s - seen_s < CHECK_INTERVAL_S
        return generation if recent else None

    async def check(self, store: TabletStore, table: Table, now_s: float, written: int) -> None:
        """Check that the store has reached the generation of a table's location.

        Args:
            store: The store.
            table: The table.
            now_s: Current time.
            written: The generation of the table's location. It must be read before this call: an
                increment in between must not look like a lagging store.

        Raises:
            RefusedError: The store has gone back in time; the message says how to accept it.
        """
        reason = generation_fault(table.name, await store.generation(table.id), written)
        if reason is not None:
            raise RefusedError(reason)
        if len(self._seen) >= TABLES_MAX:
            self._seen.clear()
        self._seen[table.id] = now_s, written


# ----------------------------------------------------------------------------------------- Services


READS_PAUSE_S = 1.0
READS_MAX = 100_000
"""Limit of tablets with scans to report; scans of further tablets are not counted."""


class ReadCounts:
    """Counts scans of tablets, and reports them to the coordinator at most once per second."""

    def __init__(self) -> None:
        """Start with empty counts."""
        self._counts: dict[tuple[str, str], int] = {}

    def note(self, services: "Services", table: str, tablets: Iterable[str]) -> None:
        """Count a scan of tablets.

        Args:
            services: Services that run the later report.
            table: Id of the table.
            tablets: Ends of the tablets, as text.
        """
        idle = not self._counts
        for tablet in tablets:
            if len(self._counts) < READS_MAX or (table, tablet) in self._counts:
                self._counts[table, tablet] = self._counts.get((table, tablet), 0) + 1
        if idle and self._counts:
            services.later(self._notify(services.coordinator))

    async def _notify(self, coordinator: "CoordinatorActor") -> None:
        await asyncio.sleep(READS_PAUSE_S)
        counts, self._counts = self._counts, {}
        by_table: dict[str, dict[str, int]] = {}
        for (table, tablet), count in counts.items():
            by_table.setdefault(table, {})[tablet] = count
        # A coordinator that is down misses these counts; the rates tolerate that.
        with suppress(UnavailableError):
            for table, scans in by_table.items():
                await coordinator.note_scans(table, scans)


LATENCIES_MAX = 1_000
"""Limit of tables with latencies to report; further tables are not counted."""


class ReadWaits:
    """Averages read latencies, and reports them to the coordinator at most once per second.

    Reports within a second are combined, so that frequent reports do not load the coordinator.
    """

    def __init__(self) -> None:
        """Start without latencies."""
        self._waits: dict[str, tuple[float, int]] = {}

    def note(self, services: "Services", table: str, latency_s: float, reads: int) -> None:
        """Count reads of a table.

        Args:
            services: Services that run the later report.
            table: Id of the table.
            latency_s: Average latency of the reads.
            reads: Number of reads.
        """
        idle = not self._waits
        if len(self._waits) < LATENCIES_MAX or table in self._waits:
            before_s, count = self._waits.get(table, (0.0, 0))
            self._waits[table] = before_s + latency_s * reads, count + reads
        if idle and self._waits:
            services.later(self._notify(services.coordinator))

    async def _notify(self, coordinator: "CoordinatorActor") -> None:
        await asyncio.sleep(READS_PAUSE_S)
        waits, self._waits = self._waits, {}
        with suppress(UnavailableError):  # Later reads report the same.
            await coordinator.note_latencies(
                {table: (wait_s / reads, reads) for table, (wait_s, reads) in waits.items()}
            )


FOREGROUND_BEAT_S = 0.5
"""Interval between reports of the bytes that reads and appends move."""
FOREGROUND_IDLE_S = 5.0
"""A volume without reads and appends for so long is not reported any more."""
FOREGROUND_WAIT_MAX_S = 30.0
"""Longest wait of one payment, since callers time out; later payments wait for the rest."""


@dataclass(slots=True)
class _VolumeBudget(Budget):
    """The bytes that a volume has granted to this gateway, and those that it has moved."""

    used_s: float = 0.0
    """When it was last used."""

    def use(self, volume: str) -> VolumeUse:
        """Return the use of the volume for a report."""
        rate = None if self.bytes_s == inf else self.bytes_s
        return VolumeUse(
            volume=volume,
            moved_bytes=self.moved_bytes,
            waited_s=self.waited_s,
            granted_bytes_s=rate,
        )


class ForegroundBytes:
    """Paces reads and appends, the class `foreground`, on volumes with a limit.

    Each piece is paid for after it was moved: the caller then waits until the rate of its volume
    has covered all bytes before. The coordinator divides a volume's limit between this class and
    compaction by shares, and sends the rate as the answer to a report. While the coordinator does
    not answer, the last rate stays. Without `control.foreground_shares` nothing is counted.
    """

    def __init__(self) -> None:
        """Start without volumes."""
        self._volumes: dict[str, _VolumeBudget] = {}
        self._reports = False

    async def pay(self, services: "Services", volume: str, size_bytes: int) -> None:
        """Count bytes that were moved on a volume, and wait until its rate has covered them."""
        if not size_bytes or not services.settings.control.foreground_shares:
            return
        now_s = services.clock.now_s()
        budget = self._volumes.setdefault(volume, _VolumeBudget(inf, now_s))
        budget.pass_time(now_s)
        budget.asked += size_bytes
        budget.used_s, goal, end_s = now_s, budget.asked, now_s + FOREGROUND_WAIT_MAX_S
        if not self._reports:
            self._reports = True
            services.later(self._report(services))
        budget.pass_time(now_s)
        while budget.covered < goal and now_s < end_s:
            await asyncio.sleep(budget.wait_s(goal))
            last_s, now_s = now_s, services.clock.now_s()
            budget.pass_time(now_s)
            budget.waited_s += now_s - last_s
            budget.used_s = now_s

    async def _report(self, services: "Services") -> None:
        """Report all volumes in use regularly, and apply the rates of the answers."""
        name = services.ids.next("gateway")
        try:
            while self._volumes:
                uses = tuple(budget.use(volume) for volume, budget in self._volumes.items())
                with suppress(UnavailableError):
                    self._apply(await services.coordinator.foreground(name, uses))
                await asyncio.sleep(FOREGROUND_BEAT_S)
                oldest_s = services.clock.now_s() - FOREGROUND_IDLE_S
                for volume, budget in list(self._volumes.items()):
                    if budget.used_s < oldest_s:
                        del self._volumes[volume]
            with suppress(UnavailableError):
                await services.coordinator.foreground(name, ())
        finally:
            self._reports = False

    def _apply(self, rates: Mapping[str, float | None]) -> None:
        for volume, rate in rates.items():
            if (budget := self._volumes.get(volume)) is not None:
                budget.bytes_s = inf if rate is None else rate


class TabletPlanner(Protocol):
    """Plans a tablet of a table at a time with the planners of the settings; pure."""

    def __call__(
        self, tablet: Tablet, table: Table, now_s: float, /, *, correction: Correction
    ) -> TabletPlan:
        """Return the plan."""
        ...


UnreadSettings = Callable[[TableSettings], Mapping[str, str]]

LIST_MAX = 10_000
"""Limit of entries in the answer of a call."""
PAGE_TABLETS = 200
"""Tablets read from the store at once."""
LOOK_THREADS = 16
ROW_THREADS = 4
LOOK_MAX_S = 45.0
"""Longest check of a location's mark before each call; clients time out after a minute."""
LONG_STEP_MAX_S = 3600.0
"""Longest step of work that is expected to be slow: listing, reading or copying a whole file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """External dependencies of the routes."""

    store: TabletStore
    store_watch: StoreWatch
    coordinator: "CoordinatorActor"
    plan: TabletPlanner
    settings: Settings
    clock: Clock
    ids: IdSource
    log: Log
    footers: StorageThreads = field(default_factory=lambda: StorageThreads(LOOK_THREADS))
    """Threads for short work on storage: footers, listings, marks."""
    rows: StorageThreads = field(init=False)
    """Threads for long work on rows, step by step: scans and appends."""
    files: StoredFiles = field(default_factory=StoredFiles)
    owners: Owners = field(default_factory=Owners)
    generations: GenerationChecks = field(default_factory=GenerationChecks)
    unread_settings: UnreadSettings = lambda _: {}
    """Returns the settings of a table that have no effect with its planner, name → reason."""
    split_hints: SplitHints = field(default_factory=SplitHints)
    scans: ScanSlots = field(init=False)
    reads: ReadCounts = field(default_factory=ReadCounts)
    waits: ReadWaits = field(default_factory=ReadWaits)
    foreground: ForegroundBytes = field(default_factory=ForegroundBytes)
    audit: Audit = field(init=False)
    quotas: Quotas = field(init=False)
    buffers: BufferUse = field(init=False)
    notifier: Notifier = field(init=False)
    pending: set[asyncio.Task[object]] = field(default_factory=set)
    """Background tasks, referenced here so that they are not garbage collected."""

    def __post_init__(self) -> None:
        """Create the parts that depend on the settings."""
        gateway = self.settings.gateway
        scans = ScanSlots(gateway.scans_max, gateway.scan_bytes_max)
        object.__setattr__(self, "scans", scans)
        object.__setattr__(self, "rows", self.footers.with_threads(ROW_THREADS))
        object.__setattr__(self, "audit", self._audit())
        object.__setattr__(self, "quotas", self._quotas())
        object.__setattr__(self, "buffers", BufferUse(self.settings.ingest))
        watched = self.coordinator, self.store, self.store_watch
        rules = self.settings.notify
        notifier = Notifier(rules, watched, self.clock, self.ids, self.log)
        object.__setattr__(self, "notifier", notifier)

    def _audit(self) -> Audit:
        access = self.settings.access
        kept = access.audit_file_bytes_max, access.audit_files_kept, self.clock
        file = AuditFile(Path(access.audit_file), *kept) if access.audit_file else None
        most = access.audit_entries_max

        async def note_lines(lines: Sequence[bytes], kind: str) -> None:
            await self.store.note_audit(lines, most, kind)

        return Audit(file, note_lines, self.clock, self.log)

    def _quotas(self) -> Quotas:
        access = self.settings.access
        shares = Shares(
            requests_s=access.caller_requests_s,
            body_bytes_s=access.caller_body_bytes_s,
            scans_max=access.caller_scans_max,
            compactions_max=access.caller_compactions_max,
            request_bytes_max=access.caller_request_bytes_max,
        )
        return Quotas(shares, self.clock)

    def with_coordinator(self, coordinator: "CoordinatorActor") -> "Services":
        """Return the same services with another door to the coordinator; all else is shared."""
        shared = copy(self)
        object.__setattr__(shared, "coordinator", coordinator)
        return shared

    @property
    def looks(self) -> StorageThreads:
        """Threads for the checks of owner marks before each call."""
        return self.footers.within(LOOK_MAX_S)

    @property
    def long_steps(self) -> StorageThreads:
        """Threads for work with slow steps."""
        return self.footers.within(LONG_STEP_MAX_S)

    @property
    def locations(self) -> Locations:
        """Allowed locations of tables."""
        return locations_of(self.settings.gateway)

    def later(self, work: Coroutine[object, object, object]) -> None:
        """Run a coroutine in the background, and log its failure."""
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self.pending.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self.pending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log("background work failed", cause=f"{type(error).__name__}: {error}")

    async def table(self, name: str, *, filling: bool = False) -> Table:
        """Return a table by name, or by id for a table whose name cannot be part of a URL.

        Args:
            name: Name or id, as the caller wrote it.
            filling: Whether the table may be in the state filling.

        Raises:
            RefusedError: A recovery is filling the table, or it is a lake table, which the route
                of the call does not serve.
            RequestError: The text is not a valid name.
            UnknownTableError: No table that the caller may see has this name.
            ForbiddenError: The caller lacks a role that the call requires.
            UnavailableError: The audit cannot be written.
        """
        # Do not look for a table that the caller may not see: the answer must take as long as
        # for a table that does not exist.
        table = await self.store.table_named(name) if sees_table(name) else None
        if table is None:
            table = await self._table_by_id(name)
        await open_table(table.name)
        if table.filling is not None and not filling:
            raise RefusedError(filling_text(table), "filling")
        if table.lake is not None:
            refuse_lake_table(table.name, table.lake.uri)
        return table

    async def _table_by_id(self, name: str) -> Table:
        names = await self.store.names()
        if name in names.values() or name in names:
            by_id = await self.store.table(names.get(name, name))
            if by_id is not None and sees_table(by_id.name):
                return by_id
        checked_label(name, "table name")
        if name in names and sees_table(name):
            raise UnknownTableError(
                f"table {name!r} is being dropped, and only its name is left;"
                f" `neve table drop {name}` finishes it"
            )
        raise UnknownTableError(f"no table is named {name!r}; {_hint(name, names)}")

    async def tablet(self, table: Table, text: str, *, whole: bool = False) -> TabletId:
        """Return the id of an existing tablet by the text of its end, or by a unique prefix.

        Args:
            table: The table.
            text: The text from the caller.
            whole: Whether a prefix is refused. The id of a tablet that is gone may be a prefix of
                another id, so calls that change rows or bounds need the whole id.

        Raises:
            RequestError: The ids of several tablets begin with the text.
            UnknownTabletError: The table has no such tablet.
        """
        is_half = len(text) % 2 == 1 and text != "last"  # Two digits make a byte.
        tablet = parsed_tablet(table, f"{text}0" if is_half else text)
        exists = (await self.store.readable([tablet]))[0] is not None
        if exists and not is_half:
            return tablet
        # Ends are sorted, so those with the prefix follow each other.
        ends = await self.store.tablet_ids(table.id, tablet.end, PREFIXED_MAX)
        ids = [end.text for end in ([tablet, *ends] if exists else ends)]
        if whole:
            longer = [end for end in ids if end.startswith(text.lower())]
            hint = f"; this call needs the whole id, such as {longer[0]!r}" if longer else ""
            raise UnknownTabletError(
                f"table {table.name!r} has no tablet {text!r} (any more){hint}"
            )
        whole_text = None if text == "last" else whole_id(text.lower(), ids, "tablet")
        if whole_text is None:
            raise UnknownTabletError(f"table {table.name!r} has no tablet {text!r} (any more)")
        return TabletId.parse(table.id, whole_text)

    async def page_of_ids(
        self, table: Table, after: str | None, count: int, only: str | None = None
    ) -> Sequence[TabletId]:
        """Return the ids of up to `count` tablets after one, given as text, ascending.

        Args:
            table: The table.
            after: End of a tablet; None: begin with the first tablet.
            count: Maximum number of tablets.
            only: End of the only tablet to return, or a unique prefix of it.

        Raises:
            UnknownTabletError: A text is not the end of a tablet.
        """
        if only is not None:
            return [await self.tablet(table, only)]
        begin = None if after is None else parsed_tablet(table, after).end
        return await self.store.tablet_ids(table.id, begin, count)

    async def pages(self, table: Table, after: bytes | None = None) -> AsyncIterator[list[Tablet]]:
        """Yield all tablets of a table, page by page, ascending.

        Args:
            table: The table.
            after: Yield only tablets with a greater end.
        """
        while ids := await self.store.tablet_ids(table.id, after, PAGE_TABLETS):
            yield [tablet for tablet in await self.store.tablets(ids) if tablet is not None]
            after = ids[-1].end


def _hint(name: str, names: Iterable[str]) -> str:
    """Return a hint with the closest or the existing table names that the caller may see."""
    visible = sorted(filter(sees_table, names))
    if close := difflib.get_close_matches(name, visible, n=1):
        return f"did you mean {close[0]!r}?"
    return f"there are: {', '.join(visible[:10])}" if visible else "there is none yet"


def parsed_tablet(table: Table, text: str) -> TabletId:
    """Parse the id of a tablet, without checking that the tablet exists.

    Raises:
        UnknownTabletError: The text is not the end of a tablet.
    """
    try:
        return TabletId.parse(table.id, text)
    except ValueError as error:
        raise UnknownTabletError(
            f"table {table.name!r} has no tablet {text[:100]!r}; "
            "expected `last` or the hex text that `tablets` lists"
        ) from error


PREFIXED_MAX = 4
"""Tablets that are read to see whether a prefix is unique."""


def whole_id(given: str, ids: Iterable[str], what: str) -> str | None:
    """Return the known id that a text is, or the only one that begins with it; None: none does.

    Args:
        given: Text from the caller.
        ids: Ids of existing objects.
        what: Kind of the objects, for the message.

    Raises:
        RequestError: Several ids begin with the text.
    """
    matching = sorted({name for name in ids if given and name.startswith(given)})
    if given in matching:
        return given
    if len(matching) > 1:
        raise RequestError(
            f"{what} {given[:64]!r} is ambiguous: the ids {', '.join(matching[:3])}"
            f"{' …' if len(matching) > 3 else ''} begin with it; give more characters"
        )
    return matching[0] if matching else None


def checked_label(text: str, what: str) -> str:
    """Check that a name is a DNS label, and return it.

    Args:
        text: Name from the user.
        what: Kind of the name, for the message.

    Raises:
        RequestError: The name is not a DNS label.
    """
    if DNS_LABEL.fullmatch(text):
        return text
    raise RequestError(
        f"{what} {text[:100]!r} must be a DNS label: 1 to 63 lower-case letters, digits "
        "and dashes, with a letter or digit at both ends"
    )


def bounded_count(count: int, most: int, what: str) -> int:
    """Check that a count is from 1 to `most`, and return it."""
    if 1 <= count <= most:
        return count
    raise RequestError(f"{what} {count} is out of range, expected 1 to {most}")


async def check_table_owner(services: Services, table: Table) -> None:
    """Reject a table whose location belongs to another store or table.

    Raises:
        RefusedError: The location has another owner.
        UnavailableError: Its storage does not answer.
    """
    if table.lake is not None:  # Its folder has no mark of the service.
        return
    store = await services.store.store_id()
    now_s = services.clock.now_s()
    owner_of = services.files.owner
    await services.looks.run(table.location, services.owners.check, table, store, now_s, owner_of)


async def check_location_allowed(services: Services, table: Table) -> None:
    """Reject a table outside the locations that the operator allows.

    Raises:
        RefusedError: No table is allowed at its location.
    """
    now_s = services.clock.now_s()
    admit, locations = services.owners.admit, services.locations
    await services.looks.run(table.location, admit, table, locations, now_s)


async def check_writable(services: Services, table: Table) -> int:
    """Check that a table may be written: its location is allowed, owned, and not newer.

    Returns:
        The generation of the location, which the store must still have at the write.

    Raises:
        RefusedError: The location is not allowed, has another owner, or is newer than the store.
    """
    if table.lake is not None:
        await check_location_allowed(services, table)
        return 0
    now_s = services.clock.now_s()
    checked = services.generations.checked(table.id, now_s)
    if checked is not None and services.owners.has_checked(table, now_s):
        return checked
    store = await services.store.store_id()
    look = partial(_look_at_location, services, table, store, now_s)
    written = await services.looks.run(table.location, look)
    await services.generations.check(services.store, table, now_s, written)
    return written


def _look_at_location(services: Services, table: Table, store: str, now_s: float) -> int:
    """Check a location in a thread, and return its generation."""
    services.owners.admit(table, services.locations, now_s)
    services.owners.check(table, store, now_s, services.files.owner)
    return services.files.generation(table)


async def flush_rows(
    services: Services, table: Table, numbers: Collection[int] | None = None
) -> Flushed:
    """Put the rows of a table that are buffered now into files.

    Args:
        services: Ports and settings.
        table: The table.
        numbers: The segments of its buffer to flush; None: all.

    Raises:
        RefusedError: The table does not accept files now; its rows stay buffered.
        UnavailableError: Store or storage does not answer; its rows stay buffered.
    """
    if table.state not in {TableState.LIVE, TableState.PAUSED}:
        return Flushed()
    (buffer,) = await services.store.buffers([table.id])
    if not buffer.segments:
        return Flushed()
    ports = FlushPorts(
        store=services.store,
        ids=services.ids,
        threads=services.rows,
        write=services.files.write,
        look_max_s=services.settings.coordinator.garbage_grace_s,
    )
    return await flush_table(ports, table, await check_writable(services, table), numbers)


async def buffered_in(services: Services, table: Table, tablet: str) -> dict[int, int]:
    """Return how many buffered rows belong to a tablet, given as text: segment → rows.

    Raises:
        UnknownTabletError: The table has no such tablet.
        UnavailableError: The store does not answer.
    """
    (stored,) = await services.store.tablets([await services.tablet(table, tablet)])
    if stored is None:
        raise UnknownTabletError(f"table {table.name!r} has no tablet {tablet!r} (any more)")
    return await rows_of_tablet(services.store, table, stored, services.rows)


async def known_group(services: Services, name: str) -> str:
    """Check that a compaction group is configured or known to the coordinator; return its name.

    Raises:
        RequestError: The text is not a valid name.
        UnknownGroupError: The group does not exist.
    """
    checked_label(name, "group name")
    settings, status = services.settings, await services.coordinator.status()
    named = {group.name for service in settings.services.values() for group in service.groups}
    groups = {*settings.groups, *named, *(group.group for group in status.groups)}
    if name not in groups:
        raise UnknownGroupError(
            f"there is no compaction group {name!r}; there are: {', '.join(sorted(groups))}"
        )
    return name


T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """Caches an answer briefly, and runs at most one query at a time for all callers."""

    def __init__(self, ask: Callable[[], Awaitable[T]], lasts_s: float) -> None:
        """Create an empty cache.

        Args:
            ask: Called for an answer; its exceptions are cached like answers.
            lasts_s: How long an answer is cached.
        """
        self._ask = ask
        self._lasts_s = lasts_s
        self._asked: asyncio.Future[T] | None = None
        self._until_s = 0.0

    async def answer(self) -> T:
        """Return the answer, at most `lasts_s` old.

        Raises:
            Exception: Any exception of `ask`.
        """
        loop = asyncio.get_running_loop()
        old = self._asked is None or (self._asked.done() and loop.time() >= self._until_s)
        if old:
            self._asked = asyncio.ensure_future(self._ask_once())
        assert self._asked is not None
        # A caller that leaves must not cancel the query of the others.
        return await asyncio.shield(self._asked)

    async def _ask_once(self) -> T:
        try:
            return await self._ask()
        finally:
            self._until_s = asyncio.get_running_loop().time() + self._lasts_s
