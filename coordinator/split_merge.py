"""Drives splits and merges: takes their steps, and begins new ones based on sizes.

    the scanner reads a tablet with an operation ─► its steps, until it has to wait
    … one that has grown too large ─► a split of it
    a table changed, full scan ─► the records of its tablets ─► splits, merges

The store holds all state: the driver continues operations that another coordinator or a user has
begun. Memory holds only the pending work and, for display, what each operation waits for.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from common.errors import CompactionError, MetadataError, UnavailableError
from common.metadata.changes import Applied, BeginOperation, Outcome, Refused, Unknown
from common.metadata.changes.split_merge import operation_tablets
from common.model.file import DataFile, may_cross
from common.model.job import Job
from common.model.key_values import key_type_of
from common.model.keys import format_key
from common.model.table import Table, TableState
from common.model.tablet import Operation, OperationKind, Record, Tablet, TabletId
from common.parquet.file_inspection import sample_keys
from common.parquet.location import open_location
from common.primitives import BoundedMap
from common.readers.pool import ReaderDeathError
from common.rows.rules import RowRules
from common.storage_threads import StorageThreads
from common.telemetry import Log
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.planning import is_cutting
from coordinator.core.split_merge import (
    AbandonStep,
    OperationChange,
    WaitForTablets,
    files_to_sample,
    has_ranges,
    is_sure,
    merge_bytes,
    next_change,
    pairs_to_merge,
    split_keys,
    why_merge,
    why_split,
)
from coordinator.ports import PlanTablet, Submit

# ------------------------------------------------------------------------------------- Key sampling
# Chooses split keys of a tablet from the bounds of its files or from samples of their keys.


NoteFatalFile = Callable[[str, str], None]
"""Called with the path of a file that has crashed its reader process, and the cause."""


async def choose_split_keys(
    tablet: Tablet,
    table: Table,
    log: Log,
    *,
    parts: int = 2,
    fatal: NoteFatalFile = lambda *_: None,
    threads: StorageThreads | None = None,
) -> tuple[bytes, ...]:
    """Return keys that split a tablet into parts of about equal bytes, or none if none fit.

    Args:
        tablet: The version that was read.
        table: Its table, which has a key.
        log: Receives files that could not be sampled; their key bounds are used instead.
        parts: Number of parts, at least 2.
        fatal: Receives files that must not be read again; in this case no key is returned.
        threads: Threads for calls to the storage.

    Raises:
        UnavailableError: The storage does not answer.
    """
    files = [*tablet.files.values()]
    rough = split_keys(tablet.bounds, files, parts=parts)
    if len(rough) == parts - 1 and all(is_sure(cut, files) for cut in rough):
        return rough
    threads = threads or StorageThreads()
    samples, deaths = await threads.run(table.location, _read_samples, table, files, log)
    for path, cause in deaths.items():
        fatal(path, cause)
    return () if deaths else split_keys(tablet.bounds, files, samples, parts=parts)


def _read_samples(
    table: Table, files: list[DataFile], log: Log
) -> tuple[dict[str, list[bytes]], dict[str, str]]:
    """Return sampled keys by path, and the causes of reader crashes by path."""
    samples: dict[str, list[bytes]] = {}
    deaths: dict[str, str] = {}
    for file in files_to_sample(files):
        try:
            samples[file.path] = sample_keys(
                open_location(table.location), file.path, RowRules.of(table)
            )
        except ReaderDeathError as error:
            deaths[file.path] = str(error)
        except CompactionError as error:
            log("keys of a file not sampled", table=table.name, path=file.path, cause=str(error))
    return samples, deaths


# -------------------------------------------------------------------------------------- Step runner
# Begins splits and merges, and takes their next steps: read, call the core, apply.
#
# A step that the store refuses is not retried at once: the refusal is due to a change of a tablet,
# which schedules the tablet again. At the latest, the full scan does.


STEPS_MAX = 8
"""Maximum number of consecutive steps; an operation has three, and others may take some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRules:
    """Settings of the operator."""

    lasts_max_s: float
    """Age at which an operation is abandoned, and the pause before the next one is begun by size
    in that tablet."""
    at_once_max: int
    """Maximum number of concurrent operations up to which new ones are begun by size."""


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """What an operation waits for, according to its last read."""

    table: Table
    operation: Operation
    tablets: tuple[TabletId, ...]
    waits: str


@dataclass(frozen=True, slots=True)
class LookResult:
    """The result of a look at an operation."""

    status: OperationStatus | None = None
    """Set while the operation is in progress."""
    look_again: bool = False
    """Whether to look again soon, for example after an unknown outcome."""
    abandoned: str = ""
    """Why the operation was abandoned; empty if it was not."""
    ended: bool = False


class OperationSteps:
    """Takes steps. Stateless."""

    def __init__(
        self,
        context: ShellContext,
        plan: PlanTablet,
        why_given_up: Callable[[Job], str | None],
        rules: OperationRules,
        fatal_file: Callable[[TabletId], str | None],
        *,
        submit: Submit = lambda _event: None,
    ) -> None:
        """Create steps that change the context's store and report through `submit`."""
        self._context = context
        self._submit = submit
        self._plan = plan
        self._why_given_up = why_given_up
        self._fatal_file = fatal_file
        self.rules = rules

    async def look(self, tablet: TabletId, table: Table) -> LookResult:
        """Take all possible steps of the operation in a tablet.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        for _ in range(STEPS_MAX):
            tablets = await self._read_all_tablets(tablet)
            if tablets is None:
                return LookResult(ended=True)
            operation = tablets[0].operation
            assert operation is not None, tablet
            change = await self._next_change(tablets, table)
            ids = tuple(member.id for member in tablets)
            if isinstance(change, WaitForTablets):
                return LookResult(OperationStatus(table, operation, ids, change.reason))
            outcome = await self._take(change, operation, ids)
            if isinstance(outcome, Unknown):
                return LookResult(
                    OperationStatus(table, operation, ids, outcome.reason), look_again=True
                )
            if not isinstance(outcome, Applied):
                return LookResult(OperationStatus(table, operation, ids, outcome.reason))
            if isinstance(change, AbandonStep):
                return LookResult(abandoned=change.reason)
        return LookResult(look_again=True)

    async def split(self, tablet: TabletId, table: Table) -> bool:
        """Begin the split of a tablet that has grown too large; return whether it began."""
        read = await self._context.store.tablet(tablet)
        now_s = await self._context.store.now_s()
        rest_s = self.rules.lasts_max_s
        if read is None or (why := why_split(read, table, now_s, rest_s)) is None:
            return False
        if (cause := self._fatal_file(tablet)) is not None:
            self._context.log("a quarantined tablet is not split", tablet=str(tablet), cause=cause)
            return False

        def note(path: str, cause: str) -> None:
            self._submit(on.FileFatal(tablet=tablet, path=path, cause=cause))

        context = self._context
        keys = await choose_split_keys(
            read, table, context.log, fatal=note, threads=context.threads
        )
        if not keys:
            self._context.log("no key splits a tablet", tablet=str(tablet), wanted=why)
            return False
        if any(file.open and may_cross(file, keys[0]) for file in read.files.values()):
            self._context.log("a file still written crosses", tablet=str(tablet), wanted=why)
            return False
        return await self._begin(OperationKind.SPLIT, (tablet,), why, keys[0])

    async def merge(self, left: TabletId, right: TabletId, table: Table) -> bool:
        """Begin the merge of two small neighbours; return whether it began."""
        left_tablet, right_tablet = await self._context.store.tablets([left, right])
        now_s = await self._context.store.now_s()
        if left_tablet is None or right_tablet is None:
            return False
        why = why_merge(left_tablet, right_tablet, table, now_s, self.rules.lasts_max_s)
        if why is None:
            return False
        return await self._begin(OperationKind.MERGE, (left, right), why)

    async def _read_all_tablets(self, tablet: TabletId) -> list[Tablet] | None:
        """Return all tablets of the operation in a tablet, read together; None without one."""
        store = self._context.store
        read = await store.tablet(tablet)
        if read is None or read.operation is None:
            return None
        ids = operation_tablets(read)
        if ids is None:  # The left tablet of a merge; its right neighbour refers to both.
            ids = (tablet, *await store.tablet_ids(tablet.table, after=tablet.end, count=1))
        members = [member for member in await store.tablets(ids) if member is not None]
        own = [member for member in members if _is_of(member, read.operation)]
        return own or None

    async def _next_change(self, tablets: list[Tablet], table: Table) -> OperationChange:
        now_s = await self._context.store.now_s()
        stuck = (
            self._why_stuck(tablets[0], table, now_s) if is_cutting(tablets[0].operation) else ""
        )
        return next_change(tablets, now_s, lasts_max_s=self.rules.lasts_max_s, stuck=stuck)

    def _why_stuck(self, tablet: Tablet, table: Table, now_s: float) -> str:
        """Return why a cutting job is no longer retried; empty if there is no such job."""
        try:
            jobs = self._plan(tablet, table, now_s).jobs
        except CompactionError:
            return ""  # Planning reports the error; the time limit ends the operation.
        reasons = (self._why_given_up(job) for job in jobs)
        return next((why for why in reasons if why is not None), "")

    async def _take(
        self, change: OperationChange, operation: Operation, tablets: tuple[TabletId, ...]
    ) -> Outcome:
        assert not isinstance(change, WaitForTablets), change
        store_change = change.change if isinstance(change, AbandonStep) else change
        outcome = await self._context.apply_or_unknown(store_change)
        why = change.reason if isinstance(change, AbandonStep) else ""
        self._submit_step(
            type(store_change).__name__, operation.operation_id, tablets, outcome, why
        )
        self._context.log(
            "operation moves on" if isinstance(outcome, Applied) else "operation step not taken",
            operation=operation.operation_id,
            kind=operation.kind.value,
            tablets=", ".join(map(str, tablets)),
            step=type(change).__name__,
            found_step=operation.step.value,
            cause=change.reason
            if isinstance(change, AbandonStep)
            else getattr(outcome, "reason", ""),
        )
        return outcome

    async def _begin(
        self,
        kind: OperationKind,
        tablets: tuple[TabletId, ...],
        why: str,
        at: bytes | None = None,
    ) -> bool:
        name = self._context.ids.next("op")
        change = BeginOperation(kind=kind, tablets=tablets, operation=name, at=at, reason=why)
        outcome = await self._context.apply_or_unknown(change)
        begun = isinstance(outcome, Applied)
        self._submit_step(f"Begin{kind.value.capitalize()}", name, tablets, outcome, why)
        self._context.log(
            f"{kind.value} begins" if begun else f"{kind.value} not begun",
            operation=name,
            tablets=", ".join(map(str, tablets)),
            cause=why if begun else getattr(outcome, "reason", ""),
        )
        return begun

    def _submit_step(
        self, step: str, operation: str, tablets: tuple[TabletId, ...], outcome: Outcome, why: str
    ) -> None:
        code, reason = "", why
        if not isinstance(outcome, Applied):
            code = outcome.code if isinstance(outcome, Refused) else "unknown"
            reason = outcome.reason
        event = on.StepAnswered(tablets=tablets, of=operation, step=step, code=code, reason=reason)
        self._submit(event)


def _is_of(tablet: Tablet, operation: Operation) -> bool:
    present = tablet.operation
    return present is not None and present.operation_id == operation.operation_id


# ------------------------------------------------------------------------------------------- Driver


LOOKS_AT_ONCE = 4
RETRY_S = 1.0
"""Pause after the store did not answer."""
WALK_REST_S = 5.0
"""Minimum pause between two walks over the records of a table."""
PAGE_TABLETS = 1000
LARGE_MAX = 1000
"""Tablets that wait for a split; the next full scan finds evicted ones again."""
ABANDONED_MAX = 1000
TRY_REST_S = 60.0
"""Pause after no split key was found for a tablet or its split was refused."""


class OperationDriver:
    """The driver of all splits and merges. Every method is called from one event loop."""

    def __init__(self, context: ShellContext, steps: OperationSteps) -> None:
        """Create a driver without pending work."""
        self._context = context
        self._steps = steps
        self._look: dict[TabletId, None] = {}
        self._large: BoundedMap[TabletId, None] = BoundedMap(LARGE_MAX)
        self._walk: dict[str, None] = {}
        self._walked_s: dict[str, float] = {}
        self._statuses: dict[TabletId, OperationStatus] = {}
        self._tried_s: BoundedMap[TabletId, float] = BoundedMap(LARGE_MAX)
        self._abandoned: BoundedMap[TabletId, tuple[float, str]] = BoundedMap(ABANDONED_MAX)
        self._splitting: set[TabletId] = set()
        self._awake = asyncio.Event()
        self._to_walk = asyncio.Event()

    def table_changed(self, table: str) -> None:
        """Schedule a check of the tablet sizes of a table."""
        self._walk[table] = None
        self._to_walk.set()

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Schedule the next step of a tablet's operation, or a split if it is too large."""
        if tablet.operation is not None:
            self._look[tablet.id] = None
            self._awake.set()
            return
        self._statuses.pop(tablet.id, None)
        limit = table.settings.split_bytes
        if limit and has_ranges(table) and tablet.record.size_bytes > limit:
            self._large.put(tablet.id, None)
            self._awake.set()

    def sentences(self, tablet: TabletId) -> tuple[str, ...]:
        """Return sentences for users on the splits and merges of a tablet."""
        status, now_s = self._statuses.get(tablet), self._context.clock.now_s()
        if status is not None:
            return (_sentence(status, now_s),)
        given_up = self._abandoned.get(tablet)
        if given_up is None or now_s - given_up[0] > self._steps.rules.lasts_max_s:
            return ()
        return (f"a split or merge was abandoned {now_s - given_up[0]:.0f} s ago: {given_up[1]}",)

    async def run_forever(self) -> None:
        """Take steps of several operations at a time, and begin new operations."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(LOOKS_AT_ONCE):
                tasks.create_task(self._look_forever())
            tasks.create_task(self._walk_forever())

    async def _look_forever(self) -> None:
        while True:
            await self._awake.wait()
            if self._look:
                tablet = next(iter(self._look))
                del self._look[tablet]
                await self._guarded(tablet)
            elif (large := next(iter(self._large), None)) is not None:
                self._large.pop(large[0])
                work = partial(self._split, large[0])
                await self._context.faults.run("splitting", str(large[0]), work)
            else:
                self._awake.clear()

    async def _guarded(self, tablet: TabletId) -> None:
        work, again = partial(self._go_on_or_wait, tablet), partial(self._look_again, tablet)
        await self._context.faults.run("splitting and merging", str(tablet), work, retry=again)

    async def _go_on_or_wait(self, tablet: TabletId) -> None:
        try:
            again = await self._go_on(tablet)
        except (MetadataError, UnavailableError) as error:
            self._log("operation waits for the store", tablet, cause=str(error))
            again = True
        if again:
            asyncio.get_running_loop().call_later(RETRY_S, self._look_again, tablet)

    def _look_again(self, tablet: TabletId) -> None:
        self._look[tablet] = None
        self._awake.set()

    async def _go_on(self, tablet: TabletId) -> bool:
        """Take the steps of the operation in a tablet; return whether to look again soon."""
        table = await self._context.store.table(tablet.table)
        if table is None or table.state is TableState.GOING:
            self._statuses.pop(tablet, None)
            return False
        result = await self._steps.look(tablet, table)
        if result.status is not None:
            self._statuses.update(dict.fromkeys(result.status.tablets, result.status))
            return result.look_again
        before = self._statuses.pop(tablet, None)
        for tablet_id in () if before is None else before.tablets:
            self._statuses.pop(tablet_id, None)
        if result.abandoned:
            now_s = self._context.clock.now_s()
            self._abandoned.put(tablet, (now_s, result.abandoned))
        self.table_changed(tablet.table)
        return result.look_again

    async def _split(self, tablet: TabletId) -> None:
        now_s, tried_s = self._context.clock.now_s(), self._tried_s.get(tablet)
        if tablet in self._splitting or not self._has_room():
            return
        if tried_s is not None and now_s - tried_s < TRY_REST_S:
            return
        self._splitting.add(tablet)
        try:
            table = await self._context.store.table(tablet.table)
            if table is not None and await self._steps.split(tablet, table):
                await self._guarded(tablet)
            else:
                self._tried_s.put(tablet, now_s)
        except (MetadataError, UnavailableError) as error:
            self._log("split waits for the store", tablet, cause=str(error))
        finally:
            self._splitting.discard(tablet)

    async def _walk_forever(self) -> None:
        """Walk over the records of scheduled tables, one table after another."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._to_walk.wait()
            now_s = loop.time()
            due = [table for table in self._walk if self._walked_s.get(table, 0.0) <= now_s]
            if not due:
                self._to_walk.clear()
                if timer is not None:
                    timer.cancel()
                if self._walk:
                    first_s = min(self._walked_s[table] for table in self._walk)
                    timer = loop.call_at(first_s, self._to_walk.set)
                continue
            del self._walk[due[0]]
            work, again = (
                partial(self._walk_over_or_log, due[0]),
                partial(self.table_changed, due[0]),
            )
            await self._context.faults.run("looking at sizes", due[0], work, retry=again)

    async def _walk_over_or_log(self, table: str) -> None:
        try:
            await self._walk_over(table)
        except (MetadataError, UnavailableError) as error:
            self._context.log("sizes not looked at", table=table, cause=str(error))

    async def _walk_over(self, table_id: str) -> None:
        table = await self._context.store.table(table_id)
        if table is None:
            self._walked_s.pop(table_id, None)
            for tablet in [status for status in self._statuses if status.table == table_id]:
                del self._statuses[tablet]
            return
        self._walked_s[table_id] = asyncio.get_running_loop().time() + WALK_REST_S
        if not has_ranges(table) or table.state is not TableState.LIVE:
            return
        store, limit = self._context.store, table.settings.split_bytes
        if not limit and not merge_bytes(table):
            return
        before: list[tuple[TabletId, Record]] = []
        after: bytes | None = None
        while ids := await store.tablet_ids(table_id, after=after, count=PAGE_TABLETS):
            records = await store.records(ids)
            page = [(id_, record or Record()) for id_, record in zip(ids, records, strict=True)]
            for id_, record in page:
                if limit and record.size_bytes > limit and not record.operation:
                    self._large.put(id_, None)
                    self._awake.set()
            await self._merge([*before, *page], table)
            before, after = page[-1:], ids[-1].end

    async def _merge(self, page: list[tuple[TabletId, Record]], table: Table) -> None:
        now_s = await self._context.store.now_s()
        for left, right in pairs_to_merge(page, table, now_s, self._steps.rules.lasts_max_s):
            if not self._has_room():
                return
            if await self._steps.merge(left, right, table):
                await self._guarded(right)

    def _has_room(self) -> bool:
        """Return whether fewer operations are in progress than `at_once_max`."""
        under_way = {status.operation.operation_id for status in self._statuses.values()}
        return len(under_way) + len(self._splitting) < self._steps.rules.at_once_max

    def _log(self, event: str, tablet: TabletId, **fields: str) -> None:
        self._context.log(event, tablet=str(tablet), **fields)


def key_text(key: bytes, table: Table) -> str:
    """Return a readable form of a table's key."""
    types = {column.name: column.type for column in table.schema}
    try:
        return format_key(key, [key_type_of(types[name]) for name in table.key])
    except ValueError:
        return key.hex()


def _sentence(status: OperationStatus, now_s: float) -> str:
    operation = status.operation
    where = "" if operation.at is None else f" at {key_text(operation.at, status.table)}"
    why = f" (begun because {operation.reason})" if operation.reason else ""
    since_s = max(0.0, now_s - operation.since_s)
    return (
        f"a {operation.kind.value}{where} has been running for {since_s:.0f} s{why}, at step"
        f" {operation.step.value}: {status.waits}"
    )
