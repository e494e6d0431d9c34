"""What the slices share: ports, settings, threads, and the look-ups that all begin with."""

import asyncio
import difflib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Depends
from fastapi.security import HTTPBearer

from common.clock import Clock
from common.errors import (
    RefusedError,
    RequestError,
    UnavailableError,
    UnknownGroupError,
    UnknownTableError,
    UnknownTabletError,
)
from common.ids import IdSource
from common.metadata.store import TabletStore
from common.metadata.store_watch import StoreWatch
from common.model.job import TabletPlan
from common.model.table import DNS_LABEL, Table, TableSettings, filling_text
from common.model.tablet import Tablet, TabletId
from common.parquet.service_files import generation_fault
from common.settings import Settings
from common.storage_threads import StorageThreads
from common.telemetry import Log
from neve.gateway.access.audit import Audit, AuditFile
from neve.gateway.access.callers import open_table, sees_table
from neve.gateway.access.quotas import Quotas, Shares
from neve.gateway.scan_slots import ScanSlots
from neve.gateway.table_files import StoredFiles, TableFiles
from neve.gateway.table_locations import (
    Locations,
    Owners,
    locations_of,
)

if TYPE_CHECKING:  # The gateway calls the actor, and does not load it.
    from coordinator.actor import CoordinatorActor

BEARER = Depends(HTTPBearer(auto_error=False, description="The token of the gateway."))
"""Shows in the schema that a route takes the token; `authentication` is what asks for it."""

# --------------------------------------------------------------- Tablets that were seen being split


TABLETS_MAX = 1000
"""Of all tables; when there are more, all are forgotten."""


class SplitHints:
    """Ends of tablets by table."""

    def __init__(self) -> None:
        """Know of none."""
        self._ends: dict[str, dict[bytes, None]] = {}

    def of(self, table: str) -> tuple[bytes, ...]:
        """Return the ends of the tablets of a table that are perhaps being split."""
        return tuple(self._ends.get(table, ()))

    def seen(self, table: str, looked: Iterable[bytes], splitting: Iterable[bytes]) -> None:
        """Note which of the tablets that were looked at are being split."""
        ends = self._ends.setdefault(table, {})
        for end in looked:
            ends.pop(end, None)
        ends.update(dict.fromkeys(splitting))
        if not ends:
            del self._ends[table]
        if sum(map(len, self._ends.values())) > TABLETS_MAX:
            self._ends.clear()


# -------------------------------------------------------------------------- May a table be written?


CHECK_INTERVAL_S = 60.0
TABLES_MAX = 100_000


class GenerationChecks:
    """Remembers which tables were found whole, and looks again every minute.

    A table that was found behind is looked at each time, so that it is writable as soon
    as somebody has accepted.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    async def check(
        self, store: TabletStore, table: Table, now_s: float, read: Callable[[], Awaitable[int]]
    ) -> int:
        """Return the generation that a table's store must have, and has.

        Args:
            store: The store.
            table: The table.
            now_s: When this is asked.
            read: Reads the generation of the table's location.

        Raises:
            RefusedError: The store has gone back in time; the message says how to accept it.
            UnavailableError: The storage does not answer.
        """
        seen_s, known = self._seen.get(table.id, (None, 0))
        if seen_s is not None and 0 <= now_s - seen_s < CHECK_INTERVAL_S:
            return known
        # The location first: what is counted up meanwhile is then not taken for a lag.
        written = await read()
        reason = generation_fault(table.name, await store.generation(table.id), written)
        if reason is not None:
            raise RefusedError(reason)
        if len(self._seen) >= TABLES_MAX:
            self._seen.clear()
        self._seen[table.id] = now_s, written
        return written


# ----------------------------------------------------------------------------------------- Services


READS_PAUSE_S = 1.0
READS_MAX = 100_000
"""Tablets whose scans wait to be told; further ones are not counted."""


class ReadCounts:
    """Scans of tablets since the coordinator was told last. It is told once a second at most."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self._counts: dict[tuple[str, str], int] = {}

    def note(self, services: "Services", table: str, tablets: Iterable[str]) -> None:
        """Count a scan of tablets.

        Args:
            services: Tell the coordinator later.
            table: Id of the table.
            tablets: Their ends as text.
        """
        idle = not self._counts
        for tablet in tablets:
            if len(self._counts) < READS_MAX or (table, tablet) in self._counts:
                self._counts[table, tablet] = self._counts.get((table, tablet), 0) + 1
        if idle and self._counts:
            services.later(self._tell(services.coordinator))

    async def _tell(self, coordinator: "CoordinatorActor") -> None:
        await asyncio.sleep(READS_PAUSE_S)
        counts, self._counts = self._counts, {}
        by_table: dict[str, dict[str, int]] = {}
        for (table, tablet), count in counts.items():
            by_table.setdefault(table, {})[tablet] = count
        # Who is away hears of the next scans; a rate forgives that.
        with suppress(UnavailableError):
            for table, scans in by_table.items():
                await coordinator.note_scans(table, scans)


LATENCIES_MAX = 1_000
"""Tables whose readers' waits are to be told; further ones are left out."""


class ReadWaits:
    """How long readers have waited since the coordinator was told last: once a second at most.

    Reports of one second are averaged here, so that a reader who reports too often costs nothing
    beyond its own calls.
    """

    def __init__(self) -> None:
        """Know of none yet."""
        self._waits: dict[str, tuple[float, int]] = {}

    def note(self, services: "Services", table: str, latency_s: float, reads: int) -> None:
        """Count reads of a table.

        Args:
            services: Tell the coordinator later.
            table: Id of the table.
            latency_s: Average wait of these reads.
            reads: How many.
        """
        idle = not self._waits
        if len(self._waits) < LATENCIES_MAX or table in self._waits:
            before_s, count = self._waits.get(table, (0.0, 0))
            self._waits[table] = before_s + latency_s * reads, count + reads
        if idle and self._waits:
            services.later(self._tell(services.coordinator))

    async def _tell(self, coordinator: "CoordinatorActor") -> None:
        await asyncio.sleep(READS_PAUSE_S)
        waits, self._waits = self._waits, {}
        with suppress(UnavailableError):  # The next reads tell the same.
            await coordinator.note_latencies(
                {table: (wait_s / reads, reads) for table, (wait_s, reads) in waits.items()}
            )


PlanTablet = Callable[[Tablet, Table, float], TabletPlan]
"""Plans a tablet of a table at a time with the planners of the settings; pure."""

UnreadSettings = Callable[[TableSettings], Mapping[str, str]]

PAGE_TABLETS = 200
"""Tablets read from the store at once."""
LOOK_THREADS = 16
ROW_THREADS = 4
LOOK_MAX_S = 45.0
"""Longest look at a mark of a location, which every call takes first: clients wait for a minute."""
LONG_STEP_MAX_S = 3600.0
"""Longest step of what takes long on purpose: a listing, a file that is read or copied whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that the routes need of the outside."""

    store: TabletStore
    store_watch: StoreWatch
    coordinator: "CoordinatorActor"
    plan: PlanTablet
    settings: Settings
    clock: Clock
    ids: IdSource
    log: Log
    footers: StorageThreads = field(default_factory=lambda: StorageThreads(LOOK_THREADS))
    """Short work on storage: footers, listings, marks."""
    rows: StorageThreads = field(init=False)
    """Long work on rows, step by step: scans and appends."""
    files: TableFiles = field(default_factory=StoredFiles)
    owners: Owners = field(default_factory=Owners)
    generations: GenerationChecks = field(default_factory=GenerationChecks)
    unread_settings: UnreadSettings = lambda _: {}
    """Tells the settings of a table that have no effect with its planner, and why."""
    split_hints: SplitHints = field(default_factory=SplitHints)
    scans: ScanSlots = field(init=False)
    reads: ReadCounts = field(default_factory=ReadCounts)
    waits: ReadWaits = field(default_factory=ReadWaits)
    audit: Audit = field(init=False)
    quotas: Quotas = field(init=False)
    pending: set[asyncio.Task[object]] = field(default_factory=set)
    """What goes on behind an answer; kept so that it is not collected."""

    def __post_init__(self) -> None:
        """Open the places of scans that the settings give."""
        gateway = self.settings.gateway
        places = ScanSlots(gateway.scans_max, gateway.scan_bytes_max)
        object.__setattr__(self, "scans", places)
        object.__setattr__(self, "rows", self.footers.beside(ROW_THREADS))
        object.__setattr__(self, "audit", self._audit())
        object.__setattr__(self, "quotas", self._quotas())

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

    @property
    def looks(self) -> StorageThreads:
        """Where marks of locations are looked at, before each call."""
        return self.footers.within(LOOK_MAX_S)

    @property
    def long_steps(self) -> StorageThreads:
        """Where work is done whose steps may take long."""
        return self.footers.within(LONG_STEP_MAX_S)

    @property
    def locations(self) -> Locations:
        """Where tables may be."""
        return locations_of(self.settings.gateway)

    def later(self, work: Coroutine[object, object, object]) -> None:
        """Do something that nobody waits for; its failure is logged."""
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self.pending.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self.pending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log("background work failed", cause=f"{type(error).__name__}: {error}")

    async def table(self, name: str, *, filling: bool = False) -> Table:
        """Return a table by name, or by its id: one whose name no URL can hold has that.

        Args:
            name: As the caller wrote it.
            filling: Whether it may be one that a recovery fills.

        Raises:
            RefusedError: A recovery fills it.
            RequestError: The text cannot be a name.
            UnknownTableError: No table has it, or none that the caller may see.
            ForbiddenError: The caller may not do to it what the call is for.
        """
        # What the caller may not see is not even looked for: the answer takes as long as of a
        # table that does not exist.
        table = await self.store.table_named(name) if sees_table(name) else None
        if table is None:
            table = await self._table_by_id(name)
        open_table(table.name)
        if table.filling is not None and not filling:
            raise RefusedError(filling_text(table), "filling")
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

    async def tablet(self, table: Table, text: str) -> TabletId:
        """Return the id of a tablet by the text of its end.

        Raises:
            UnknownTabletError: The table has no such tablet.
        """
        tablet = parsed_tablet(table, text)
        if (await self.store.readable([tablet]))[0] is None:
            raise UnknownTabletError(f"table {table.name!r} has no tablet {text!r} (any more)")
        return tablet

    async def pages(self, table: Table, after: bytes | None = None) -> AsyncIterator[list[Tablet]]:
        """Yield all tablets of a table, page by page, ascending.

        Args:
            table: Whose.
            after: Only tablets whose end is greater.
        """
        while ids := await self.store.tablet_ids(table.id, after, PAGE_TABLETS):
            yield [tablet for tablet in await self.store.tablets(ids) if tablet is not None]
            after = ids[-1].end


def _hint(name: str, names: Iterable[str]) -> str:
    """Return what else the caller may have meant."""
    seen = sorted(filter(sees_table, names))
    if close := difflib.get_close_matches(name, seen, n=1):
        return f"did you mean {close[0]!r}?"
    return f"there are: {', '.join(seen[:10])}" if seen else "there is none yet"


def parsed_tablet(table: Table, text: str) -> TabletId:
    """Return the id that a text names, whether there is such a tablet or not.

    Raises:
        UnknownTabletError: The text names none.
    """
    try:
        return TabletId.parse(table.id, text)
    except ValueError as error:
        raise UnknownTabletError(
            f"table {table.name!r} has no tablet {text[:100]!r}; "
            "expected `last` or the hex text that `tablets` tells"
        ) from error


def checked_label(text: str, what: str) -> str:
    """Return a name that is a DNS label.

    Args:
        text: What the user wrote.
        what: It names, for the message.

    Raises:
        RequestError: It is none.
    """
    if DNS_LABEL.fullmatch(text):
        return text
    raise RequestError(
        f"{what} {text[:100]!r} must be a DNS label: 1 to 63 lower-case letters, digits "
        "and dashes, with a letter or digit at both ends"
    )


def bounded_count(count: int, most: int, what: str) -> int:
    """Return a count that is at least 1 and at most `most`."""
    if 1 <= count <= most:
        return count
    raise RequestError(f"{what} {count} is out of range, expected 1 to {most}")


async def check_table_owner(services: Services, table: Table) -> None:
    """Refuse a table whose location belongs to another store.

    Raises:
        RefusedError: It does.
        UnavailableError: Its storage does not answer.
    """
    store = await services.store.store_id()
    now_s = services.clock.now_s()
    owners, files = services.owners, services.files
    await services.looks.run(table.location, owners.check, table, store, now_s, files)


async def check_location_allowed(services: Services, table: Table) -> None:
    """Refuse a table that is not where the operator lets tables be.

    Raises:
        RefusedError: It is not.
    """
    now_s = services.clock.now_s()
    admit, locations = services.owners.admit, services.locations
    await services.looks.run(table.location, admit, table, locations, now_s)


async def check_writable(services: Services, table: Table) -> int:
    """Refuse to write a table whose location is another's, or newer than the store.

    Returns:
        The generation of the location, which the store must still have when it is written.

    Raises:
        RefusedError: It is.
    """
    await check_location_allowed(services, table)
    await check_table_owner(services, table)
    now_s = services.clock.now_s()
    look = services.files.generation
    written = partial(services.looks.run, table.location, look, table)
    return await services.generations.check(services.store, table, now_s, written)


async def known_group(services: Services, name: str) -> str:
    """Return the name of a compaction group that is configured, or has jobs or compactors.

    Raises:
        RequestError: The text cannot be a name.
        UnknownGroupError: There is no such group.
    """
    checked_label(name, "group name")
    settings, status = services.settings, await services.coordinator.status()
    named = {group.name for service in settings.services.values() for group in service.groups}
    known = {*settings.groups, *named, *(each.group for each in status.groups)}
    if name not in known:
        raise UnknownGroupError(
            f"there is no compaction group {name!r}; there are: {', '.join(sorted(known))}"
        )
    return name
