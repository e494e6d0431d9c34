"""Follows the logs of lake tables: the mirror in the store, attempts whose inputs left, own waste.

    poll       load what is new in the log → compare with the mirror → `MirrorFiles`
    suspects   a running attempt has an input that the log no longer names: look for the attempt in
               the log. It committed: end it, its compactor may be dead. Otherwise: cancel it
    sweep      outputs that the log does not name, of attempts that ended → delete them. On a table
               without other writers, commit a version without changes after a day

The log is the truth and the mirror a cache: a new coordinator compares all of it once. A poll reads
in a thread with a deadline, and one table that does not answer delays no other.

The sweep deletes an output of an attempt with a mark (`MarkPublishing`) only after the version has
grown since the grace, and no version since the attempt's plan has it: what the attempt sent may
have been on its way. Other files of a lake table are deleted by its maintenance only.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from common.control_settings import CatalogSettings
from common.errors import CompactionError, MetadataError, RefusedError, UnavailableError, redacted
from common.lake.mirror import (
    Difference,
    Mirrored,
    difference,
    mirrored_file,
    mirrored_of,
    tablets_of,
    why_refused,
)
from common.lake.open import open_source, storage_options
from common.lake.rules import may_delete_outputs, never_committed
from common.lake.source import Commit, Look, Sighting, Snapshot, TableSource
from common.metadata.changes import (
    Applied,
    ChangeTable,
    DropTable,
    EndLakeAttempt,
    ForgetOutputs,
    MirrorFiles,
    NoteMirrorProblem,
    StampGarbage,
)
from common.metadata.store_values import GarbageEntry, PublishingMark
from common.model.outcome import AttemptEnd
from common.model.table import Column, Table, TableState
from common.model.tablet import Tablet, TabletId
from common.primitives import BoundedMap
from common.wire import MetricValue
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.ports import Submit

T = TypeVar("T")

PART = "following the log"
LOOK_S = 0.25
"""Interval at which due tables are looked for."""
END_GRACE_S = 5.0
"""How long an attempt has to end by itself after its inputs left: it may just have committed."""
SUSPECTS_MAX = 10_000
TABLETS_AT_ONCE = 500
"""Tablets whose files are read at a time when a mirror is compared as a whole."""
FORGET_AT_ONCE = 500
QUIET_S = 86_400.0
"""Time after the grace of an output after which Névé itself commits a version, because no other
writer does: until then, what its attempt sent may arrive."""

OpenSource = Callable[[str, str, Mapping[str, str]], TableSource]


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRules:
    """How lake tables are followed."""

    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    grace_s: float = 600.0
    """How long outputs that nothing refers to are kept."""
    sweep_s: float = 10.0
    """Interval of sweeps of one table."""


@dataclass(slots=True)
class _Followed:
    """What is remembered of a table. All of it can be read again."""

    options: Mapping[str, str] = field(default_factory=dict)
    source: TableSource | None = None
    known: Snapshot | None = None
    token: str | None = None
    """Token of the mirror's head with the files in `mirrored`; None: read the mirror again."""
    mirrored: Mirrored = field(default_factory=dict)
    due_s: float = 0.0
    sweep_due_s: float = 0.0
    is_polled: bool = False
    problem: str | None = None
    """The problem as it was noted last; None: not noted since the start."""
    versions: dict[str, int] = field(default_factory=dict)
    """Attempt → last version when the grace of its outputs had passed."""
    ended_quiet: int = -1
    """Version after which one without changes was sent; -1: none was."""
    is_silent: bool = False
    """Whether its log did not answer the last poll."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A running attempt with an input that the log no longer names."""

    tablet: TabletId
    since_s: float


class LakeFollower:
    """Follows all lake tables. Every method is called from one event loop."""

    def __init__(
        self,
        context: ShellContext,
        rules: LakeRules,
        tables: Callable[[], Collection[Table]],
        submit: Submit,
        open_table: OpenSource = open_source,
    ) -> None:
        """Create a follower that has read nothing.

        Args:
            context: Shared dependencies of the shell.
            rules: How tables are followed.
            tables: Returns all tables of the store.
            submit: Receives the attempts to cancel.
            open_table: Returns the source of a table, by format, URI and options.
        """
        self._context, self._rules = context, rules
        self._tables, self._submit, self._open = tables, submit, open_table
        self.planning_held: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
        """Lets no tablet of a table be planned while its mirror is moved in several steps."""
        self._followed: dict[str, _Followed] = {}
        self._suspects: BoundedMap[str, _Suspect] = BoundedMap(SUSPECTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(rules.catalog.polls_max)
        self.polls = self.moves = self.deleted = 0

    # -------------------------------------------------------------------------------------- Loop

    async def run_forever(self) -> None:
        """Poll tables that are due, and settle suspects."""
        while True:
            self.start_due()
            await asyncio.sleep(LOOK_S)

    def start_due(self) -> None:
        """Start a poll of each table that is due; a table has at most one."""
        lake_tables = {table.id: table for table in self._tables() if table.lake is not None}
        for table_id in [table_id for table_id in self._followed if table_id not in lake_tables]:
            del self._followed[table_id]
        now_s = self._context.clock.now_s()
        for table in lake_tables.values():
            followed = self._followed.setdefault(table.id, _Followed())
            if not followed.is_polled and now_s >= followed.due_s:
                followed.is_polled = True
                task = asyncio.get_running_loop().create_task(self._poll_in_turn(table, followed))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def poke(self, table: str) -> None:
        """Poll a table as soon as possible: an own attempt has committed."""
        if (followed := self._followed.get(table)) is not None:
            followed.due_s = 0.0

    async def _poll_in_turn(self, table: Table, followed: _Followed) -> None:
        try:
            async with self._gate:
                followed.due_s = self._context.clock.now_s() + self._rules.catalog.poll_s
                await self._context.faults.run(PART, table.id, partial(self.poll, table))
        finally:
            followed.is_polled = False

    # -------------------------------------------------------------------------------------- Poll

    async def poll(self, table: Table) -> None:
        """Bring the mirror of a table to the head of its log, or note why it cannot."""
        assert table.lake is not None, table.name
        followed = self._followed.setdefault(table.id, _Followed())
        self.polls += 1
        if table.state is TableState.GOING:
            await self._sweep_dropped(table, followed)
            return
        if table.state not in {TableState.LIVE, TableState.PAUSED}:
            return
        is_silent = False
        try:
            snapshot = await self._load(table, followed)
            problem = why_refused(table, snapshot)
            if not problem:
                await self._mirror(table, followed, snapshot)
                await self._settle_suspects(table, snapshot)
                await self._sweep(table, followed, snapshot)
        except UnavailableError as error:
            problem = f"its log does not answer: {error}"
            is_silent = True
        except MetadataError as error:
            self._context.log("mirror not moved", table=table.name, cause=str(error))
            followed.token = None
            return
        except CompactionError as error:
            problem = f"its log cannot be followed: {error}"
        followed.is_silent = is_silent
        await self._note(table, followed, problem)

    async def _load(self, table: Table, followed: _Followed) -> Snapshot:
        """Return the head; only versions since the last poll are read."""
        assert table.lake is not None, table.name
        lake, catalog = table.lake, self._rules.catalog
        options = await asyncio.to_thread(storage_options, catalog, lake.uri)
        if followed.source is None or options != followed.options:
            followed.source = await asyncio.to_thread(self._open, lake.format, lake.uri, options)
            followed.options, followed.known = options, None
        followed.known = await self._call(table, followed.source.load, followed.known)
        return followed.known

    async def _call(self, table: Table, call: Callable[..., T], *args: object) -> T:
        """Return what a call of a source returns; it is made in a thread with a deadline."""
        threads = self._context.threads.within(self._rules.catalog.answer_max_s)
        return await threads.run(table.location, call, *args)

    async def head(self, table: Table) -> tuple[TableSource, Snapshot]:
        """Return the source of a table, and its head as it is now.

        Raises:
            RefusedError: The table is not compacted at this version.
            UnavailableError: The log does not answer.
        """
        followed = self._followed.setdefault(table.id, _Followed())
        snapshot = await self._load(table, followed)
        if problem := why_refused(table, snapshot):
            raise RefusedError(problem)
        assert followed.source is not None, table.name
        return followed.source, snapshot

    async def attempt_needs(self, table: str) -> tuple[frozenset[str], int | None]:
        """Return what attempts need of a table, whatever its versions name.

        Returns:
            Paths of files that they read, have written or may have committed, and the lowest
            version since which they are looked for; None: there is none.
        """
        store, needed, after = self._context.store, set[str](), None
        marks = await store.publishing(table)
        while ids := await store.tablet_ids(table, after, TABLETS_AT_ONCE):
            for tablet in await store.tablets(ids):
                for entry in tablet.running.values() if tablet is not None else ():
                    needed.update(entry.inputs, entry.output_paths)
            after = ids[-1].end
        for mark in marks:
            needed.update(mark.outputs)
        needed.update(entry.path for entry in await store.garbage(table))
        return frozenset(needed), min((mark.planned for mark in marks), default=None)

    async def _mirror(self, table: Table, followed: _Followed, snapshot: Snapshot) -> None:
        """Move the mirror to a version.

        Raises:
            MetadataError: The store refuses, or does not answer; the mirror is read again.
            RequestError: A file cannot be in the mirror.
        """
        (present,) = await self._context.store.mirrors([table.id])
        token = present.head.token if present.head is not None else ""
        if token != followed.token:
            followed.mirrored = await self._stored_files(table)
            followed.token = token
        elif present.head is not None and present.head.version == snapshot.version:
            await self._with_columns(table, snapshot)  # A catalog changes them without a version.
            return
        table = await self._with_columns(table, snapshot)
        changes = await asyncio.to_thread(_changes, table, followed.mirrored, snapshot)
        is_long = len(changes.steps) > 1
        with self.planning_held(table.id) if is_long else nullcontext():
            for number, step in enumerate(changes.steps, 1):
                change = MirrorFiles(
                    table=table.id,
                    after=token,
                    token=self._context.ids.next("mirror"),
                    version=snapshot.version if number == len(changes.steps) else -1,
                    files=step,
                )
                outcome = await self._context.apply(change)
                if not isinstance(outcome, Applied):
                    raise MetadataError(f"the mirror of table {table.name} stays: {outcome.reason}")
                token = change.token
        followed.mirrored, followed.token = changes.mirrored, token
        self.moves += 1

    async def _stored_files(self, table: Table) -> Mirrored:
        """Return all files of the mirror as the store has them."""
        store, mirrored, after = self._context.store, Mirrored(), None
        while ids := await store.tablet_ids(table.id, after, TABLETS_AT_ONCE):
            files = zip((tablet.end for tablet in ids), await store.files(ids), strict=True)
            mirrored |= await asyncio.to_thread(mirrored_of, files)
            after = ids[-1].end
        return mirrored

    async def _with_columns(self, table: Table, snapshot: Snapshot) -> Table:
        """Give a table the columns of a version, in the store, too."""
        present = {column.name: column for column in table.schema}
        since = table.schema_id + 1
        wanted = tuple(
            _with_history(column, present.get(column.name), since) for column in snapshot.columns
        )
        if wanted == table.schema:
            return table
        change = ChangeTable(table=table.id, settings_version=table.settings_version, schema=wanted)
        outcome = await self._context.apply(change)
        if not isinstance(outcome, Applied):
            raise MetadataError(f"the columns of table {table.name} stay: {outcome.reason}")
        self._context.log("columns of a lake table changed", table=table.name, columns=len(wanted))
        return replace(table, schema=wanted)

    async def _note(self, table: Table, followed: _Followed, problem: str) -> None:
        """Note a problem where operators and reservations see it, or that it is over."""
        problem = redacted(problem)
        faults, sentence = self._context.faults, f"lake table {table.name}: {problem}"
        if problem:
            faults.notice(PART, table.id, sentence)
        else:
            faults.withdraw_notice(PART, table.id)
        if followed.problem == problem:
            return
        outcome = await self._context.apply_or_unknown(
            NoteMirrorProblem(table=table.id, problem=problem)
        )
        followed.problem = problem if isinstance(outcome, Applied) else None

    # ---------------------------------------------------------------------------------- Attempts

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Suspect each running attempt of which an input has left the mirror."""
        if table.lake is None:
            return
        for attempt, entry in tablet.running.items():
            is_hit = any(path not in tablet.files for path in entry.inputs)
            if is_hit and self._suspects.get(attempt) is None:
                now_s = self._context.clock.now_s()
                self._suspects.put(attempt, _Suspect(tablet.id, now_s))

    async def _settle_suspects(self, table: Table, snapshot: Snapshot) -> None:
        """End the suspects of a table that committed, and cancel the others."""
        now_s = self._context.clock.now_s()
        own = [
            (attempt, suspect)
            for attempt, suspect in list(self._suspects)
            if suspect.tablet.table == table.id and now_s - suspect.since_s >= END_GRACE_S
        ]
        for attempt, suspect in own:
            runs = await self._runs(suspect.tablet, attempt)
            if runs and not await self._finished(table, suspect.tablet, attempt, snapshot):
                cause = "an input was replaced or removed by another writer of the table"
                self._submit(on.AttemptCancelAsked(attempt=attempt, cause=cause, lost_input=True))
                self._context.log("attempt has lost an input", table=table.name, attempt=attempt)
            self._suspects.pop(attempt)

    async def _runs(self, tablet: TabletId, attempt: str) -> bool:
        """Return whether an attempt holds its reservation."""
        present = await self._context.store.tablet(tablet)
        return present is not None and attempt in present.running

    async def _finished(
        self, table: Table, tablet: TabletId, attempt: str, snapshot: Snapshot
    ) -> bool:
        """End an attempt if it is in the log; return whether it has ended so."""
        marks = {mark.attempt: mark for mark in await self._context.store.publishing(table.id)}
        if (mark := marks.get(attempt)) is None:
            return False  # It has sent nothing.
        sighting = await self._look(table, mark)
        if sighting.look is not Look.FOUND:
            return False
        named = [snapshot.files[path] for path in mark.outputs if path in snapshot.files]
        change = EndLakeAttempt(
            tablet=tablet,
            attempt=attempt,
            end=AttemptEnd.COMMITTED,
            cause="its compactor did not report it",
            version=sighting.version,
            outputs=tuple(map(mirrored_file, named)),
            reason="found in the log of the table",
        )
        outcome = await self._context.apply_or_unknown(change)
        self._context.log("attempt found in the log", table=table.name, attempt=attempt)
        return isinstance(outcome, Applied)

    async def finish(self, table: Table, tablet: TabletId, attempt: str) -> bool:
        """End an attempt that is about to be released, if it is in the log of its table.

        Returns:
            Whether it has committed. False also if the log does not answer: a release is safe,
            because the sweep looks for the attempt again.
        """
        if table.state is TableState.GOING:
            return False
        try:
            if not await self._runs(tablet, attempt):
                return False
            followed = self._followed.setdefault(table.id, _Followed())
            snapshot = await self._load(table, followed)
            return await self._finished(table, tablet, attempt, snapshot)
        except CompactionError as error:
            self._context.log("attempt not looked for", attempt=attempt, cause=str(error))
            return False

    async def _look(self, table: Table, mark: PublishingMark) -> Sighting:
        source = self._followed[table.id].source
        assert source is not None, table.name
        return await self._call(table, source.look, mark.attempt, mark.outputs, mark.base)

    # ------------------------------------------------------------------------------------- Sweep

    async def _sweep(self, table: Table, followed: _Followed, snapshot: Snapshot) -> None:
        """Delete outputs of ended attempts that no version has, and never will have."""
        now_s = self._context.clock.now_s()
        if now_s < followed.sweep_due_s:
            return
        followed.sweep_due_s = now_s + self._rules.sweep_s
        due, marks = await self._waste(table)
        now_s = await self._context.store.now_s()
        named = {path for path in due if path in snapshot.files}
        waste = [path for path in due if path not in named]
        marked = {path: mark.attempt for mark in marks for path in mark.outputs}
        unsent = [path for path in waste if path not in marked]
        await self._delete(table, unsent)
        gone = {*unsent, *named}
        for mark in marks:
            own = [path for path in waste if marked.get(path) == mark.attempt]
            if own and await self._may_forget(table, followed, snapshot, mark, own):
                gone.update(own)
            elif own and now_s - max(due[path] for path in own) >= self._rules.grace_s + QUIET_S:
                await self._end_quiet(table, followed, snapshot)
        await self._forget(table, sorted(gone), marks)

    async def _end_quiet(self, table: Table, followed: _Followed, snapshot: Snapshot) -> None:
        """Commit a version without changes, once for a version: outputs wait for a newer one."""
        if followed.ended_quiet >= snapshot.version or followed.source is None:
            return
        followed.ended_quiet = snapshot.version
        name = self._context.ids.next("trial")
        await self._call(table, followed.source.require_conditions, name)
        commit = Commit(base=snapshot, attempt="", now_s=self._context.clock.now_s())
        answer = await self._call(table, followed.source.send, commit)
        self._context.log(
            "version without changes committed",
            table=table.name,
            version=snapshot.version + 1,
            answer=answer.value,
        )
        followed.due_s = 0.0

    async def _waste(self, table: Table) -> tuple[dict[str, float], Sequence[PublishingMark]]:
        """Stamp new garbage; return the paths whose grace is over with stamps, and all marks."""
        store = self._context.store
        entries = await store.garbage(table.id)
        if fresh := [entry.path for entry in entries if entry.stamped_s <= 0]:
            settled = tuple(entry.attempt for entry in await store.uncommitted(table.id))
            for first in range(0, len(fresh), FORGET_AT_ONCE):
                paths = tuple(fresh[first : first + FORGET_AT_ONCE])
                await self._context.apply(
                    StampGarbage(table=table.id, paths=paths, settled=settled)
                )
        now_s = await store.now_s()
        due = {entry.path: entry.stamped_s for entry in entries if self._is_due(entry, now_s)}
        return due, await store.publishing(table.id)

    def _is_due(self, entry: GarbageEntry, now_s: float) -> bool:
        return 0 < entry.stamped_s <= now_s - self._rules.grace_s

    async def _may_forget(
        self,
        table: Table,
        followed: _Followed,
        snapshot: Snapshot,
        mark: PublishingMark,
        paths: Sequence[str],
    ) -> bool:
        """Delete outputs of an attempt with a mark, or leave them to the table's vacuum.

        Returns:
            Whether their entries may go. False until the version has grown since the grace.
        """
        newest = snapshot.last_version
        noted = followed.versions.setdefault(mark.attempt, newest)
        if not may_delete_outputs(noted, newest):
            return False
        sighting = await self._look(table, mark)
        unused = never_committed(sighting, paths)
        await self._delete(table, unused)
        if len(unused) < len(paths):
            self._context.log(
                "outputs left to the vacuum of the table",
                table=table.name,
                attempt=mark.attempt,
                look=sighting.look.value,
                files=len(paths) - len(unused),
            )
        followed.versions.pop(mark.attempt)
        return True

    async def _delete(self, table: Table, paths: Sequence[str]) -> None:
        source = self._followed[table.id].source
        if not paths or source is None:
            return
        await self._call(table, source.delete, paths)
        self.deleted += len(paths)
        self._context.log("outputs of a lake table deleted", table=table.name, files=len(paths))

    async def _forget(
        self, table: Table, paths: Sequence[str], marks: Sequence[PublishingMark]
    ) -> None:
        """Forget outputs, and the marks of ended attempts without outputs that wait."""
        store, gone = self._context.store, {*paths}
        over = []
        for mark in marks:
            tablet = await store.tablet(TabletId(table.id, mark.tablet_end))
            if tablet is not None and mark.attempt in tablet.running:
                continue
            waiting = await store.garbage_among(table.id, mark.outputs)
            if gone.issuperset(waiting):
                over.append(mark.attempt)
        for first in range(0, len(paths), FORGET_AT_ONCE):
            some = tuple(paths[first : first + FORGET_AT_ONCE])
            await self._context.apply(ForgetOutputs(table=table.id, paths=some, attempts=()))
        if over:
            change = ForgetOutputs(table=table.id, paths=(), attempts=tuple(over))
            await self._context.apply(change)

    async def _sweep_dropped(self, table: Table, followed: _Followed) -> None:
        """Delete what a detached table has left after the grace, and finish its removal.

        Outputs of attempts with a mark stay: the log may name them, and is not followed any more.
        """
        due, marks = await self._waste(table)
        marked = {path for mark in marks for path in mark.outputs}
        unsent = [path for path in due if path not in marked]
        try:
            if unsent:
                await self._load(table, followed)
                await self._delete(table, unsent)
        except CompactionError as error:
            self._context.log("outputs stay after detach", table=table.name, cause=str(error))
        kept = [entry.path for entry in await self._context.store.garbage(table.id)]
        gone = [path for path in kept if path in marked or path in due]
        await self._forget(table, gone, marks)
        await self._context.store.apply(DropTable(table=table.id, resumed=True))

    # ------------------------------------------------------------------------ What operators see

    def sentences(self, table: str) -> tuple[str, ...]:
        """Return why no job of a table starts, if it is a lake table that is not followed."""
        followed = self._followed.get(table)
        problem = "" if followed is None else followed.problem
        return (f"no job starts, because the log is not followed: {problem}",) if problem else ()

    def silent(self) -> dict[str, str]:
        """Return the tables whose log does not answer: their id, and the reason."""
        return {
            table: followed.problem or ""
            for table, followed in self._followed.items()
            if followed.is_silent
        }

    def figures(self) -> list[MetricValue]:
        """Return the metrics of lake tables."""
        problems = sum(bool(followed.problem) for followed in self._followed.values())
        return [
            MetricValue("neve_lake_tables", len(self._followed)),
            MetricValue("neve_lake_tables_not_followed", problems),
            MetricValue("neve_lake_polls_total", self.polls),
            MetricValue("neve_lake_mirror_changes_total", self.moves),
            MetricValue("neve_lake_outputs_deleted_total", self.deleted),
        ]


def _changes(table: Table, mirrored: Mirrored, snapshot: Snapshot) -> Difference:
    return difference(mirrored, tablets_of(table, snapshot.files.values()))


def _with_history(column: Column, before: Column | None, since: int) -> Column:
    """Return a column with the schema that brought it in this form."""
    form = (column.name, column.type, column.nullable)
    if before is not None and (before.name, before.type, before.nullable) == form:
        return before
    return replace(column, since=since)
