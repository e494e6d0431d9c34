"""Compaction work: status, jobs, queue, plan, explain, history, watermarks, limits."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Annotated, Any

from fastapi import Query

from common.errors import (
    BrokenValueError,
    MetadataError,
    PluginError,
    RequestError,
    UnavailableError,
)
from common.metadata import recent_adds
from common.metadata.changes import LowerWatermark
from common.metadata.keys import AUDIT_KINDS
from common.metadata.store_values import HistoryEntry
from common.model.group import LimitScope, LimitScopeKind, checked_limit
from common.model.job import Job, TabletPlan, analysis_id
from common.model.keys import format_key, parse_key
from common.model.outcome import AttemptEnd, TabletStatistics
from common.model.table import Table, recovery_note
from common.model.tablet import Tablet, TabletId
from common.rows.rules import RowRules
from common.units import parse_size_bytes
from common.wire import BacklogSample, QueuedJob, RunningAttempt
from neve import api
from neve.gateway.access.audit import entry_from, folded
from neve.gateway.access.callers import current_call, open_table, sees_table
from neve.gateway.access.route_rights import (
    ADMIN,
    ADMIN_ALL,
    COMPACT,
    COMPACT_LISTED,
    READ,
    READ_ALL,
    READ_LISTED,
    route,
)
from neve.gateway.problems import UnknownCompactorError, UnknownJobError, require_applied
from neve.gateway.services import (
    Services,
    bounded_count,
    check_writable,
    checked_label,
    known_group,
    parsed_tablet,
    whole_id,
)
from neve.gateway.story_views import story_view
from neve.service_settings import settings_to_document, shown_settings

# --------------------------------------------------------------------------------------- Watermarks


async def watermark_sentences(
    services: Services, table: Table, tablets: Sequence[TabletId]
) -> Mapping[str, Sequence[str]]:
    """Return human-readable watermark notes, by the text of the tablet's end."""
    now_s, said = await services.store.now_s(), dict[str, Sequence[str]]()
    if table.version_column is None:
        return dict.fromkeys((tablet.text for tablet in tablets), ())
    for tablet in tablets:
        try:
            known = await services.store.tablet(tablet)
        except BrokenValueError:
            known = None  # The planning of the tablet reports the error.
        said[tablet.text] = [] if known is None else _sentences(table, known, now_s)
    return said


def _sentences(table: Table, tablet: Tablet, now_s: float) -> list[str]:
    said: list[str] = []
    if tablet.purge is not None:
        takes = "are taken all the same" if table.settings.allow_late_data else "are refused"
        said.append(
            f"its watermark is {_text(table, tablet.purge)}: tombstones up to there were dropped,"
            f" and rows of such versions {takes}"
        )
    lowest = recent_adds.bound(tablet.record.recent_adds, now_s)
    highest = max((file.version_max or b"" for file in tablet.files.values()), default=b"")
    if lowest is not None and highest > lowest:
        said.append(
            f"it will not rise above {_text(table, lowest)} for now, which is all that some recent"
            f" add has reached, though a row has version {_text(table, highest)}"
        )
    return said


async def lower_tablet_watermark(
    services: Services, table: Table, tablet: TabletId, to: str | None
) -> api.LoweredWatermark:
    """Lower a tablet's watermark, and return which deleted rows may become visible again.

    Raises:
        RequestError: The table has no versions, or `to` is not a version.
        RefusedError: The watermark is not above `to`.
    """
    if table.version_column is None:
        raise RequestError(
            f"table {table.name!r} has no versions, so its tablets have no watermark"
        )
    version = None if to is None else parse_key([to], (RowRules.of(table).version_type,))
    (known,) = await services.store.tablets([tablet])
    before = known.purge if known is not None else None
    change = LowerWatermark(
        tablet=tablet, to=version, generation=await check_writable(services, table)
    )
    require_applied(await services.store.apply(change))
    was = None if before is None else _text(table, before)
    above = "" if version is None else f" above {_text(table, version)} and"
    rise = (
        "nothing has changed"
        if before == version
        else f"a row that was deleted, and whose tombstone{above} up to {was} was dropped, can be"
        " seen again if a file or an append brings an older version of it"
    )
    return api.LoweredWatermark(
        tablet=tablet.text,
        before=was,
        after=None if version is None else _text(table, version),
        may_rise=rise,
    )


def _text(table: Table, version: bytes) -> str:
    return format_key(version, (RowRules.of(table).version_type,))


# -------------------------------------------------------------------------------------------- Views


def plan_view(
    table: Table,
    plans: Sequence[TabletPlan],
    running: int,
    tablets: Sequence[TabletId] = (),
) -> api.Plan:
    """Return the wire model of the plans of tablets.

    Args:
        table: The table, as stored.
        plans: Plans of the tablets.
        running: Number of jobs that run on the tablets.
        tablets: Ids of the tablets, in the order of the plans, for the names of intervals.
    """
    intervals = tuple(
        replace(interval, tablet=tablet.text, table=table.name)
        for tablet, plan in zip(tablets, plans, strict=False)
        for interval in plan.intervals
    )
    wanted = [job for plan in plans for job in plan.jobs]
    places = {job.id: place for place, job in enumerate(wanted)}
    jobs = [
        replace(
            _planned_view(job),
            table=table.name,
            after=tuple(places[depend] for depend in job.depends_on),
        )
        for job in wanted
    ]
    left = {path: why for plan in plans for path, why in plan.left.items()}
    return api.Plan(jobs=tuple(jobs), left=left, running=running, intervals=intervals)


def queued_view(queued: QueuedJob) -> api.PlannedJob:
    """Return the wire model of a queued job."""
    job = queued.job
    return replace(
        _planned_view(job), id=job.id, table=job.table_name, place=queued.place, age_s=queued.age_s
    )


def _planned_view(job: Job) -> api.PlannedJob:
    return api.PlannedJob(
        tablet=job.tablet.text,
        files=job.inputs,
        input_bytes=job.input_bytes,
        cost_bytes=job.cost_bytes,
        group=job.group,
        priority=job.priority,
        kind=job.kind.value,
        reason=job.reason,
        action=job.action,
        outputs=job.outputs_expected,
        cuts_at_s=job.cuts_at_s,
        output_rows_max=job.output_rows_max,
        tags=dict(job.output_tags),
    )


def job_view(running: RunningAttempt) -> api.Job:
    """Return the wire model of a running job."""
    progress = running.progress
    return api.Job(
        id=running.job_id,
        attempt=running.attempt,
        table=running.table_name,
        tablet=running.tablet,
        kind=running.kind,
        group=running.group,
        compactor=running.compactor,
        inputs=running.inputs,
        input_bytes=running.input_bytes,
        since_s=running.since_s,
        state="" if progress is None else progress.state,
        fraction=0.0 if progress is None else progress.fraction,
        reason=running.reason,
        throttled=running.throttled,
        granted_bytes_s=None if progress is None else progress.granted_bytes_s,
        moved_bytes=0 if progress is None else progress.moved_bytes,
        waited_s=0.0 if progress is None else progress.waited_s,
        quiet_s=running.quiet_s,
    )


def live_bytes_view(tablet: Tablet, last: HistoryEntry | None, *, waiting: bool) -> api.LiveBytes:
    """Return the wire model of a tablet's live bytes.

    Args:
        tablet: The tablet, as stored.
        last: Its last analysis; None: the history has none.
        waiting: Whether another analysis was requested and is not done.
    """
    files = tablet.files.values()
    measured = [file for file in files if file.live_bytes is not None]
    found = tablet.record.statistics
    return api.LiveBytes(
        tablet=tablet.id.text,
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        measured_files=len(measured),
        measured_bytes=sum(file.size_bytes for file in measured),
        live_bytes=sum(file.live_bytes or 0 for file in measured),
        since_s=min((file.measured_at_s or 0.0 for file in measured), default=None),
        waiting=waiting,
        read_bytes=None if last is None else last.bytes_in,
        elapsed_s=None if last is None else last.ended_s - last.started_s,
        rows=None if last is None else last.rows_in,
        **({} if found is None else _found_rows(found)),
    )


def _found_rows(found: TabletStatistics) -> dict[str, Any]:
    return {
        "updated_share": found.updated_share,
        "compared_rows": found.compared_rows,
        "changed_shares": dict(found.changed_shares),
        "merged_share": found.merged_share,
        "key_quantiles": tuple(key.hex() for key in found.key_quantiles),
    }


def finished_view(entry: HistoryEntry) -> api.Finished:
    """Return the wire model of a finished attempt."""
    values = {each.name: getattr(entry, each.name) for each in fields(api.Finished)}
    return api.Finished(**values | {"tablet": entry.tablet.text})


# ------------------------------------------------------------------------------------------- Routes


LIST_MAX = 10_000
ANALYZED_TABLETS_MAX = 10_000
"""Limit of tablets in one call that requests or reads live bytes."""
EXPLAINED_MAX = 100
PLANNED_TABLETS_MAX = 100_000
SCANS_MAX = 1_000_000
STOP_WAIT_MAX_S = 86_400.0


def _size_of(sample: BacklogSample, table: str | None) -> int:
    """Return the backlog of a table; None: of all tables that the caller sees."""
    if table is not None:
        return sample.tables.get(table, 0)
    if current_call().caller.sees_all:
        return sample.size_bytes
    return sum(size for name, size in sample.tables.items() if sees_table(name))


class WorkRoutes:
    """Routes of jobs, compactors and groups."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/status", READ_ALL)
    async def status(self) -> api.Status:
        """Return the status of the whole service."""
        found = await self._services.coordinator.status()
        silence = self._services.store_watch.warning
        errors = (silence, *found.errors) if silence else found.errors
        warnings = (*found.warnings, *await self._recovery_notes())
        return replace(found, errors=errors, warnings=warnings)

    async def _recovery_notes(self) -> list[str]:
        try:
            listed = await self._services.store.listed_tables()
        except (MetadataError, UnavailableError):
            return []  # The status reports that the store is unavailable.
        notes = (recovery_note(table) for table in listed.tables if sees_table(table.name))
        return [note for note in notes if note]

    @route("GET /v1/config", ADMIN_ALL)
    async def config(self) -> dict[str, list[api.Setting]]:
        """Return every setting with its value and its source. Secrets are hidden."""
        shown = shown_settings(self._services.settings)
        return {"settings": [api.Setting(**setting) for setting in settings_to_document(shown)]}

    @route("GET /v1/audit", ADMIN_ALL)
    async def audit(
        self,
        count: Annotated[int, Query(description="Number of entries at most.")] = 100,
        table: Annotated[str | None, Query(description="Only calls about this table.")] = None,
        caller: Annotated[str | None, Query(description="Only calls of this caller.")] = None,
    ) -> dict[str, list[api.AuditEntry]]:
        """Return calls that may have changed something, newest first. Refused calls are included.

        The newest 10,000 lines of each stream are searched. A call has one or two lines.
        """
        count = bounded_count(count, LIST_MAX, "count")
        store = self._services.store
        read = [await store.audit(LIST_MAX, kind) for kind in reversed(AUDIT_KINDS)]
        chosen = {"table": table, "caller": caller}
        wanted = {name: value for name, value in chosen.items() if value is not None}
        # If a call was begun and then refused, its last line is in the stream of refused calls.
        entries = folded(chain.from_iterable(read), len(AUDIT_KINDS) * LIST_MAX, wanted)
        entries = sorted(entries, key=lambda each: each.get("at_s", 0.0), reverse=True)[:count]
        return {"entries": [entry_from(each) for each in entries]}

    @route("GET /v1/jobs", READ_LISTED)
    async def jobs(self) -> dict[str, list[api.Job]]:
        """Return the running jobs."""
        return {"jobs": [job_view(attempt) for attempt in await self._seen_running()]}

    async def _seen_running(self) -> list[RunningAttempt]:
        """Return the running attempts on tables that the caller may see."""
        running = await self._services.coordinator.running()
        return [attempt for attempt in running if sees_table(attempt.table_name)]

    @route("GET /v1/backlog", READ_LISTED)
    async def backlog(
        self,
        table: Annotated[
            str | None, Query(description="Name of a table; every table by default.")
        ] = None,
    ) -> dict[str, list[api.Backlog]]:
        """Return the bytes that are still to be rewritten, by table, largest first.

        A table at rest is not listed. With more than 99 tables, the last entry has no name and
        stands for all other tables.
        """
        if table is not None:
            await self._services.table(table)
        found = (await self._services.coordinator.status()).backlogs
        # The entry without a name stands for all other tables.
        chosen = [each for each in found if table in {None, each.table} and sees_table(each.table)]
        return {"backlog": chosen}

    @route("GET /v1/tables/{table}/backlog", READ)
    async def owed_tablets(
        self, table: str, count: Annotated[int, Query(description="At most so many.")] = 100
    ) -> dict[str, list[api.OwedTablet]]:
        """Return the tablets with the largest backlog, largest first.

        A tablet at rest is not listed.
        """
        services = self._services
        found = await services.table(table)
        owed = await services.coordinator.owed_tablets(
            found.id, bounded_count(count, 10_000, "count")
        )
        return {"tablets": owed}

    @route("GET /v1/backlog/history", READ_LISTED)
    async def backlog_history(
        self,
        table: Annotated[
            str | None, Query(description="Name of a table; all tables by default.")
        ] = None,
    ) -> dict[str, list[api.BacklogPoint]]:
        """Return the backlog over the last hour, oldest point first.

        There is a point every ten seconds. A table that was not among the 20 largest counts as at
        rest. A caller that may not see every table gets the sum of the visible tables. A restart of
        the coordinator clears the history.
        """
        if table is not None:
            await self._services.table(table)
        samples = await self._services.coordinator.backlog_history()
        return {
            "history": [
                api.BacklogPoint(
                    at_s=sample.at_s,
                    size_bytes=_size_of(sample, table),
                )
                for sample in samples
            ]
        }

    @route(
        "POST /v1/jobs/{attempt}/cancel",
        COMPACT_LISTED.noted("on the table of the job"),
        status_code=202,
    )
    async def cancel(self, attempt: str) -> None:
        """Cancel a running job. Its files are not planned again for a while.

        If the job belongs to a request, the request leaves out this tablet. It goes on in the
        other tablets and ends `done_in_part`.
        """
        running = await self._seen_running()
        attempts = {name: job for job in running for name in (job.job_id, job.attempt)}
        found = whole_id(attempt, attempts, "job")
        if found is None:
            raise UnknownJobError(
                f"no running job has attempt {attempt[:64]!r} (any more); `neve jobs` lists them"
            )
        open_table(attempts[found].table_name)
        await self._services.coordinator.cancel(attempts[found].attempt)

    @route("GET /v1/queue", READ_LISTED)
    async def queue(
        self,
        group: Annotated[
            str | None, Query(description="Name of a compaction group; all groups by default.")
        ] = None,
        count: Annotated[int, Query(description="Number of jobs at most.")] = 100,
    ) -> dict[str, list[api.PlannedJob]]:
        """Return the queued jobs, highest priority first."""
        if group is not None:
            checked_label(group, "group name")
        count = bounded_count(count, LIST_MAX, "count")
        queued = await self._services.coordinator.queue(group, count)
        return {"jobs": [queued_view(job) for job in queued if sees_table(job.job.table_name)]}

    @route("GET /v1/activity", READ_LISTED)
    async def activity(self) -> dict[str, list[api.TableActivity]]:
        """Return the tables with queued or running jobs, most bytes first."""
        tables = await self._services.coordinator.activity()
        return {"tables": [table for table in tables if sees_table(table.table)]}

    @route("GET /v1/compactors", READ_ALL)
    async def compactors(self) -> dict[str, list[api.Compactor]]:
        """Return the compactors that send heartbeats."""
        heard = await self._services.coordinator.compactors()
        return {"compactors": heard}

    @route("POST /v1/compactors/{compactor}/drain", ADMIN_ALL, status_code=202)
    async def drain(self, compactor: str) -> None:
        """Drain a compactor: it finishes its jobs, takes no more, and ends.

        Another one is started if its group needs it.
        """
        await self._services.coordinator.drain(await self._known_compactor(compactor))

    @route("POST /v1/compactors/{compactor}/stop", ADMIN_ALL, status_code=202)
    async def stop_compactor(
        self,
        compactor: str,
        wait_max_s: Annotated[
            float | None,
            Query(
                description="Longest wait for its jobs; `compactor.drain_timeout_s` by default.",
                ge=0,
                le=STOP_WAIT_MAX_S,
            ),
        ] = None,
    ) -> None:
        """Stop a compactor: its jobs end in time or are handed to others, and it ends.

        Another one is started if its group needs it.
        """
        known = await self._known_compactor(compactor)
        await self._services.coordinator.stop_compactor(known, wait_max_s)

    async def _known_compactor(self, compactor: str) -> str:
        heard = [each.compactor for each in await self._services.coordinator.compactors()]
        # Without the check for a digit, `default-1` would be `default-10` once it has ended.
        found = whole_id(
            compactor,
            [name for name in heard if not name.removeprefix(compactor)[:1].isdigit()],
            "compactor",
        )
        if found is None:
            known = ", ".join(heard) or "none"
            raise UnknownCompactorError(
                f"no compactor {compactor[:64]!r} is known, expected one of: {known}"
            )
        return found

    @route("GET /v1/groups", READ_ALL)
    async def groups(self) -> dict[str, list[api.Group]]:
        """Return the compaction groups, with their queue, compactors and scaling."""
        status = await self._services.coordinator.status()
        return {"groups": list(status.groups)}

    @route("PUT /v1/groups/{group}/scale", ADMIN_ALL, status_code=202)
    async def scale_group(self, group: str, body: api.ScaleWish) -> None:
        """Set the number of compactors of a group, whatever the settings say."""
        known = await known_group(self._services, group)
        await self._services.coordinator.scale(known, body.compactors)

    @route("DELETE /v1/groups/{group}/scale", ADMIN_ALL, status_code=202)
    async def unscale_group(self, group: str) -> None:
        """Let the service decide again how many compactors a group has."""
        await self._services.coordinator.scale(await known_group(self._services, group), None)

    @route("POST /v1/groups/{group}/pause", ADMIN_ALL, status_code=202)
    async def pause_group(self, group: str) -> None:
        """Pause a compaction group: no more of its jobs start. Running jobs go on."""
        await self._services.coordinator.pause_group(await known_group(self._services, group))

    @route("POST /v1/groups/{group}/resume", ADMIN_ALL, status_code=202)
    async def resume_group(self, group: str) -> None:
        """Resume a paused compaction group."""
        await self._services.coordinator.resume_group(await known_group(self._services, group))

    @route("GET /v1/tables/{table}/explain", READ)
    async def explain(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="End of a tablet; the first 100 tablets by default.")
        ] = None,
    ) -> dict[str, list[api.Explanation]]:
        """Explain the state of tablets: what runs, what waits, and why."""
        services = self._services
        found = await services.table(table)
        if tablet is None:
            ids = await services.store.tablet_ids(found.id, None, EXPLAINED_MAX)
        else:
            ids = [await services.tablet(found, tablet)]
        explained = [await services.coordinator.explain(found.id, id_.text) for id_ in ids]
        marks = await watermark_sentences(services, found, ids)
        shown = [
            # The coordinator may know only the id of the table.
            replace(each, table=table, sentences=(*each.sentences, *marks[each.tablet]))
            for each in explained
        ]
        return {"tablets": shown}

    @route("GET /v1/tables/{table}/story", READ)
    async def story(
        self, table: str, tablet: Annotated[str, Query(description="The end of the tablet.")]
    ) -> api.Story:
        """Return the events of a tablet since the coordinator started, oldest first.

        The story of a removed tablet is available as long as the coordinator keeps it.
        """
        services = self._services
        found = await services.table(table)
        end = parsed_tablet(found, tablet).text
        known = await services.coordinator.story(found.id, end)
        if not known.entries and (whole := await services.tablet(found, tablet)).text != end:
            known = await services.coordinator.story(found.id, whole.text)
        return story_view(known, found)

    @route("GET /v1/tables/{table}/plan", READ)
    async def plan(self, table: str) -> api.Plan:
        """Return the jobs that would be planned for a table now. Nothing is started."""
        services = self._services
        found = await services.table(table)
        now_s = await services.store.now_s()
        plans: list[TabletPlan] = []
        tablets: list[TabletId] = []
        running = 0
        async for page in services.pages(found):
            running += sum(len(tablet.running) for tablet in page)
            plans += await services.rows.run(found.location, self._planned, found, page, now_s)
            tablets += [tablet.id for tablet in page]
            bounded_count(len(plans) or 1, PLANNED_TABLETS_MAX, "number of tablets to plan")
        return plan_view(found, plans, running, tablets)

    def _planned(self, table: Table, tablets: list[Tablet], now_s: float) -> list[TabletPlan]:
        try:
            return [self._services.plan(tablet, table, now_s) for tablet in tablets]
        except PluginError as error:
            raise PluginError(f"table {table.name!r} cannot be planned: {error}") from error

    @route("GET /v1/tables/{table}/history", READ)
    async def history(
        self,
        table: str,
        count: Annotated[int, Query(description="Number of attempts at most.")] = 100,
    ) -> dict[str, list[api.Finished]]:
        """Return the finished attempts of a table, newest first."""
        found = await self._services.table(table)
        entries = await self._services.store.history(
            found.id, bounded_count(count, LIST_MAX, "count")
        )
        return {"attempts": [finished_view(entry) for entry in entries]}

    @route("POST /v1/tables/{table}/replan", COMPACT, status_code=202)
    async def replan(self, table: str) -> None:
        """Plan every tablet of a table again, now."""
        await self._services.coordinator.replan((await self._services.table(table)).id)

    @route("POST /v1/tables/{table}/analyze", COMPACT, status_code=202)
    async def analyze(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="End of a tablet; every tablet of the table by default.")
        ] = None,
    ) -> dict[str, list[str]]:
        """Start an analysis of the live bytes of files, and return its tablets at once.

        A compactor reads the necessary columns when no other job of its group waits. Nothing is
        reserved or rewritten. `live-bytes` returns the results, and the tablets that still wait.
        """
        services = self._services
        found = await services.table(table)
        await check_writable(services, found)
        tablets = await self._tablets(found, tablet)
        await services.coordinator.analyze(
            found.id, [each.id.text for each in tablets if each.files]
        )
        return {"tablets": [each.id.text for each in tablets]}

    @route("GET /v1/tables/{table}/live-bytes", READ)
    async def live_bytes(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="End of a tablet; every tablet of the table by default.")
        ] = None,
    ) -> dict[str, list[api.LiveBytes]]:
        """Return the live bytes of tablets counted so far, and the cost of the analysis."""
        services = self._services
        found = await services.table(table)
        tablets = await self._tablets(found, tablet)
        texts = [each.id.text for each in tablets]
        waiting = set(await services.coordinator.unanalyzed(found.id, texts))
        waiting |= {each.id.text for each in tablets if each.files and each.record.analysis_group}
        history = await services.store.history(found.id, LIST_MAX)
        # The history is newest first; reversed, the newest analysis of each tablet wins.
        last = {
            entry.job: entry for entry in reversed(history) if entry.end == AttemptEnd.COMMITTED
        }
        return {
            "tablets": [
                live_bytes_view(
                    each, last.get(analysis_id(each.id)), waiting=each.id.text in waiting
                )
                for each in tablets
            ]
        }

    async def _tablets(self, table: Table, text: str | None) -> list[Tablet]:
        """Return one tablet, or all tablets of a table up to the limit of one call."""
        services, found = self._services, list[Tablet]()
        if text is not None:
            known = await services.store.tablet(await services.tablet(table, text))
            return [] if known is None else [known]
        async for page in services.pages(table):
            found += page
            if len(found) > ANALYZED_TABLETS_MAX:
                raise RequestError(
                    f"table {table.name!r} has more than {ANALYZED_TABLETS_MAX} tablets, which is "
                    "the most for one call: name one tablet at a time"
                )
        return found

    @route("GET /v1/tables/{table}/maintenance", READ)
    async def maintenance(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="End of a tablet; the first 100 tablets by default.")
        ] = None,
    ) -> api.TableMaintenance:
        """Return possible maintenance of tablets: gain, cost and memory, or why it is not done."""
        services = self._services
        found = await services.table(table)
        only = None if tablet is None else (await services.tablet(found, tablet)).text
        return await services.coordinator.maintenance(found.id, only)

    @route(
        "POST /v1/tables/{table}/reads",
        READ.noted("readers report what they have scanned"),
        status_code=202,
    )
    async def reads(self, table: str, body: api.Reads) -> None:
        """Count scans of tablets by readers that do not scan through the service.

        The rates order system jobs of tables with the setting `workload_points`, and
        `GET /v1/tables/{table}/maintenance` shows them.
        """
        found = await self._services.table(table)
        bounded_count(len(body.tablets), LIST_MAX, "number of tablets")
        for tablet, scans in body.tablets.items():
            parsed_tablet(found, tablet)
            bounded_count(scans, SCANS_MAX, f"scans of tablet {tablet}")
        await self._services.coordinator.note_scans(found.id, body.tablets)

    @route("POST /v1/tables/{table}/trigger", COMPACT)
    async def trigger(self, table: str) -> api.Trigger:
        """Run the planner of a table now, and return its decision for each tablet.

        The planner may decide against a job. A compaction request does not depend on the planner.
        """
        found = await self._services.table(table)
        return await self._services.coordinator.trigger(found.id)

    @route("POST /v1/tables/{table}/lower-watermark", ADMIN)
    async def lower_watermark(
        self,
        table: str,
        tablet: Annotated[str, Query(description="End of the tablet.")],
        to: Annotated[
            str | None, Query(description="New watermark, as text; none removes the watermark.")
        ] = None,
    ) -> api.LoweredWatermark:
        """Lower the watermark of a tablet, so that it takes rows of older versions again.

        The answer says which deleted rows may come back.
        """
        services = self._services
        found = await services.table(table)
        return await lower_tablet_watermark(
            services, found, await services.tablet(found, tablet, whole=True), to
        )

    @route("POST /v1/tables/{table}/lift-quarantine", COMPACT, status_code=202)
    async def lift_quarantine(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="End of a tablet; every tablet of the table by default.")
        ] = None,
    ) -> None:
        """Plan tablets again that are in quarantine after repeated failures."""
        services = self._services
        found = await services.table(table)
        chosen = None if tablet is None else (await services.tablet(found, tablet)).text
        await services.coordinator.lift_quarantine(found.id, chosen)


# --------------------------------------------------------------------------------- Routes of limits


class LimitRoutes:
    """Routes of bandwidth limits of rewrites."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/limits", READ_ALL)
    async def limits(self) -> dict[str, list[api.Limit]]:
        """Return groups and volumes with their limits and what they move now."""
        status = await self._services.coordinator.status()
        return {"limits": list(status.scopes)}

    @route("PUT /v1/groups/{group}/limit", ADMIN_ALL, status_code=202)
    async def limit_group(self, group: str, body: api.LimitWish) -> None:
        """Limit the bytes per second that all jobs of a compaction group read and write."""
        await self._set(LimitScopeKind.GROUP, group, body.limit)

    @route("DELETE /v1/groups/{group}/limit", ADMIN_ALL, status_code=202)
    async def unlimit_group(self, group: str) -> None:
        """Reset the limit of a compaction group to the limit of the settings."""
        await self._set(LimitScopeKind.GROUP, group, None)

    @route("PUT /v1/volumes/{volume}/limit", ADMIN_ALL, status_code=202)
    async def limit_volume(self, volume: str, body: api.LimitWish) -> None:
        """Limit the bytes per second that all jobs on a volume read and write."""
        await self._set(LimitScopeKind.VOLUME, volume, body.limit)

    @route("DELETE /v1/volumes/{volume}/limit", ADMIN_ALL, status_code=202)
    async def unlimit_volume(self, volume: str) -> None:
        """Reset the limit of a volume to the limit of the settings."""
        await self._set(LimitScopeKind.VOLUME, volume, None)

    async def _set(self, kind: LimitScopeKind, name: str, limit: int | str | None) -> None:
        if kind is LimitScopeKind.GROUP:
            await known_group(self._services, name)
        scope = LimitScope(kind, checked_label(name, f"{kind.value} name"))
        what = f"limit of {kind.value} {name}"
        bytes_s = None if limit is None else parse_size_bytes(limit, what)
        checked_limit(bytes_s or 0, f"{kind.value} {name}")
        await self._services.coordinator.set_limit(scope.text, bytes_s)
