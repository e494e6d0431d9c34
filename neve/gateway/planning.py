"""Planning: queue, plan, backlog, triggers, maintenance and simulations."""

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Any

from fastapi import Query

from common.errors import ConfigError, PluginError, RequestError, UnavailableError
from common.model.job import Job, TabletPlan
from common.model.table import OPERATIONS_OF_LAKES, Table
from common.model.tablet import StoredChunks, Tablet, TabletId
from common.windows import WindowRule
from common.wire import QueuedJob
from neve import api
from neve.gateway.access.callers import (
    ADMIN,
    COMPACT,
    READ,
    READ_LISTED,
    Role,
    current_call,
    route,
    sees_table,
)
from neve.gateway.compactors import CompactorRoutes
from neve.gateway.jobs import JobRoutes
from neve.gateway.problems import QuotaError
from neve.gateway.rows.ingestion import IngestRoutes
from neve.gateway.services import LIST_MAX, Services, bounded_count, checked_label
from neve.gateway.table_settings import check_table_planner, settings_with_fixed
from neve.gateway.tables import TableRoutes


def plan_view(
    table: Table,
    plans: Sequence[TabletPlan],
    running: int,
    tablets: Sequence[TabletId] = (),
    chunks: Sequence[StoredChunks] = (),
    *,
    count: int = LIST_MAX,
) -> api.Plan:
    """Return the wire model of the plans of tablets.

    Args:
        table: The table, as stored.
        plans: Plans of the tablets.
        running: Number of jobs that run on the tablets.
        tablets: Ids of the tablets, in the order of the plans, for the names of intervals.
        chunks: The stored states of their chunks; empty: none.
        count: Number of jobs, of files that are left, and of intervals, at most.
    """
    none = [StoredChunks()] * len(tablets)
    intervals = (
        _interval_view(replace(interval, tablet=tablet.text, table=table.name), stored)
        for tablet, plan, stored in zip(tablets, plans, chunks or none, strict=False)
        for interval in plan.intervals
    )
    planned = [job for plan in plans for job in plan.jobs]
    numbers = {job.id: number for number, job in enumerate(planned)}
    jobs = [
        replace(
            _planned_view(job),
            table=table.name,
            after=tuple(numbers[depend] for depend in job.depends_on),
        )
        for job in planned[:count]
    ]
    reasons = Counter(why for plan in plans for why in plan.left.values())
    return api.Plan(
        jobs=tuple(jobs),
        left=_examples(plans, count),
        running=running,
        intervals=tuple(islice(intervals, count)),
        job_count=len(planned),
        input_bytes=sum(job.input_bytes for job in planned),
        left_count=reasons.total(),
        left_reasons=dict(reasons.most_common(REASONS_MAX)),
        interval_count=sum(len(plan.intervals) for plan in plans),
    )


def _examples(plans: Sequence[TabletPlan], count: int) -> dict[str, str]:
    """Return some of the files that are left: the first one of each reason, then others."""
    left = [(path, why) for plan in plans for path, why in plan.left.items()]
    firsts = {why: path for path, why in reversed(left)}
    chosen = {path: why for why, path in islice(reversed(firsts.items()), count)}
    for path, why in left:
        if len(chosen) >= count:
            break
        chosen[path] = why
    return chosen


def _interval_view(interval: api.Interval, stored: StoredChunks) -> api.Interval:
    """Return an interval with its stored state."""
    note = stored.notes.get(interval.index)
    if stored.head is None or note is None:
        return interval
    changes = stored.versions.get(interval.index, 0)
    return replace(interval, stored=note.analysis.value, changes=changes)


def queued_view(queued: QueuedJob) -> api.PlannedJob:
    """Return the wire model of a queued job."""
    job = queued.job
    return replace(
        _planned_view(job),
        id=job.id,
        table=job.table_name,
        place=queued.place or None,
        age_s=queued.age_s if queued.place else None,
        paused=queued.paused,
        predecessors=queued.after,
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
        expected_bytes=job.cost_bytes and job.cost_bytes - job.input_bytes,
        expected_s=job.expected_s if job.cost_bytes else 0.0,
    )


REASONS_MAX = 100
"""Reasons of files that are left, which an answer counts one by one."""
PLANNED_TABLETS_MAX = 100_000
NAMED_TABLETS_MAX = 100


def _with_settings(services: Services, table: Table, texts: Sequence[str]) -> Table:
    """Return a table with other settings, given as `name=value`.

    Raises:
        RequestError: A setting is unknown, or its value is not allowed.
    """
    pairs = [text.partition("=") for text in texts]
    if strange := next((name for name, equals, _ in pairs if not equals), None):
        raise RequestError(f"setting {strange[:100]!r} has no value, expected name=value")
    if not pairs:
        return table
    changes = {name: value for name, _, value in pairs}
    settings = settings_with_fixed(table.settings, changes, services=services.settings.services)
    changed = replace(table, settings=settings)
    check_table_planner(changed)
    return changed


async def _pages(
    services: Services, table: Table, named: Sequence[str] | None
) -> AsyncIterator[list[Tablet]]:
    """Yield the named tablets, or all tablets of a table, page by page."""
    if named is None:
        async for page in services.pages(table):
            yield page
        return
    ids = [await services.tablet(table, text) for text in named]
    yield [tablet for tablet in await services.store.tablets(ids) if tablet is not None]


class PlanningRoutes:
    """Routes of planned work."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/queue", READ_LISTED)
    async def queue(
        self,
        group: Annotated[
            str | None, Query(description="Name of a compaction group; all groups by default.")
        ] = None,
        count: Annotated[int, Query(description="Number of jobs at most.")] = 100,
    ) -> dict[str, list[api.PlannedJob]]:
        """Return the queued jobs of each group in their order of starts, then jobs without a place.

        Paused jobs have none, nor have jobs that wait for other jobs of their plan.
        """
        if group is not None:
            checked_label(group, "group name")
        count = bounded_count(count, LIST_MAX, "count")
        queued = await self._services.coordinator.queue(group, count)
        return {"jobs": [queued_view(job) for job in queued if sees_table(job.job.table_name)]}

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
        backlogs = (await self._services.coordinator.status()).backlogs
        # The entry without a name stands for all other tables.
        chosen = [
            backlog
            for backlog in backlogs
            if table in {None, backlog.table} and sees_table(backlog.table)
        ]
        return {"backlog": chosen}

    @route("GET /v1/tables/{table}/backlog", READ)
    async def owed_tablets(
        self, table: str, count: Annotated[int, Query(description="At most so many.")] = 100
    ) -> dict[str, list[api.OwedTablet]]:
        """Return the tablets with the largest backlog, largest first.

        A tablet at rest is not listed.
        """
        services = self._services
        stored_table = await services.table(table)
        owed = await services.coordinator.owed_tablets(
            stored_table.id, bounded_count(count, 10_000, "count")
        )
        return {"tablets": owed}

    @route("GET /v1/tables/{table}/backlog/history", READ)
    async def tablet_backlog_history(
        self, table: str, count: Annotated[int, Query(description="At most so many.")] = 20
    ) -> dict[str, list[api.TabletBacklogHistory]]:
        """Record the tablets with the largest backlog, and return the points of recorded tablets.

        The backlog of a tablet is recorded from the first call that finds it among the largest, and
        until an hour has passed without such a call: a point every ten seconds, an hour at most. A
        tablet that has come to rest has points of 0. The service records 100 tablets; the ones that
        were asked for longest ago are dropped. A restart of the coordinator clears the history.
        """
        services = self._services
        stored_table = await services.table(table)
        count = bounded_count(count, api.RECORDED_TABLETS_MAX, "count")
        return {"tablets": await services.coordinator.tablet_backlogs(stored_table.id, count)}

    @route("GET /v1/tables/{table}/plan", READ)
    async def plan(
        self,
        table: str,
        tablet: Annotated[
            list[str] | None,
            Query(description="End of a tablet; may be repeated. Every tablet by default."),
        ] = None,
        setting: Annotated[
            list[str] | None,
            Query(
                description="Plan with another setting of the table, `name=value`; may be repeated."
            ),
        ] = None,
        count: Annotated[
            int,
            Query(
                description="Number of jobs, of files that are left out, and of intervals, at most."
            ),
        ] = 100,
    ) -> api.Plan:
        """Return the jobs that would be planned for a table now. Nothing is started or changed."""
        services = self._services
        stored_table = _with_settings(services, await services.table(table), setting or ())
        bounded_count(len(tablet or ()) or 1, NAMED_TABLETS_MAX, "number of named tablets")
        count = bounded_count(count, LIST_MAX, "count")
        now_s = await services.store.now_s()
        plans: list[TabletPlan] = []
        tablets: list[TabletId] = []
        running = 0
        correction = await services.store.correction(stored_table.id)
        planned = partial(self._planned, correction=correction)
        async for page in _pages(services, stored_table, tablet):
            running += sum(len(tablet.running) for tablet in page)
            plans += await services.rows.run(
                stored_table.location, planned, stored_table, page, now_s
            )
            tablets += [tablet.id for tablet in page]
            bounded_count(len(plans) or 1, PLANNED_TABLETS_MAX, "number of tablets to plan")
        has_intervals = any(plan.intervals for plan in plans)
        chunks = await services.store.chunks(tablets) if has_intervals else ()
        view = plan_view(stored_table, plans, running, tablets, chunks, count=count)
        waits = await self._closed_windows(stored_table, plans)
        return replace(view, correction=correction, waits=waits)

    async def _closed_windows(self, table: Table, plans: Sequence[TabletPlan]) -> tuple[str, ...]:
        """Return why planned jobs wait for a window; nothing if the coordinator does not answer."""
        rule, of_groups = WindowRule.of(table.settings), self._services.settings.groups
        planned = (job for plan in plans for job in plan.jobs)
        waiting = (job for job in planned if rule is None or not rule.is_exempt(job))
        groups = list(dict.fromkeys(job.group for job in waiting))
        has_windows = any(group in of_groups and of_groups[group].windows for group in groups)
        if rule is None and not has_windows:  # A coordinator of an older release has no such call.
            return ()
        with suppress(UnavailableError):
            return tuple(await self._services.coordinator.closed_windows(table.id, groups))
        return ()

    def _planned(
        self, table: Table, tablets: list[Tablet], now_s: float, correction: api.Correction
    ) -> list[TabletPlan]:
        plan = partial(self._services.plan, correction=correction)
        try:
            return [plan(tablet, table, now_s) for tablet in tablets]
        except PluginError as error:
            raise PluginError(f"table {table.name!r} cannot be planned: {error}") from error

    @route("GET /v1/tables/{table}/plan/shadow", READ)
    async def shadow_plan(self, table: str) -> api.ShadowPlan:
        """Compare a table's planner with its shadow planner, which starts no jobs.

        Each planner has planned the files that the table had when the comparison began and those
        that users have added since, as if its jobs ended at once. A change of the table's settings
        and a restart of the coordinator begin the comparison anew.
        """
        stored_table = await self._services.table(table)
        if not stored_table.settings.shadow_planner:
            raise RequestError(
                f"table {table!r} has no shadow planner; `neve table set {table} "
                "shadow_planner=NAME` begins a comparison"
            )
        found = await self._services.coordinator.shadow_plan(stored_table.id)
        return replace(found, table=stored_table.name)

    @route("POST /v1/tables/{table}/replan", COMPACT, status_code=202)
    async def replan(self, table: str) -> None:
        """Plan every tablet of a table again, now."""
        await self._services.coordinator.replan((await self._services.table(table)).id)

    @route("POST /v1/tables/{table}/trigger", COMPACT)
    async def trigger(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="End of a tablet; every tablet of the table by default.")
        ] = None,
    ) -> api.Trigger:
        """Run the planner of a table now, and return its decision for each tablet.

        The planner may decide against a job. A compaction request does not depend on the planner.
        """
        services = self._services
        stored_table = await services.table(table)
        only = None if tablet is None else (await services.tablet(stored_table, tablet)).text
        return await services.coordinator.trigger(stored_table.id, only)

    @route("POST /v1/tables/{table}/maintenance/{operation}", ADMIN)
    async def maintain(
        self,
        table: str,
        operation: str,
        dry_run: Annotated[bool, Query(description="Change nothing.")] = False,
        files: Annotated[
            int | None,
            Query(description="Delete at most so many; by default as the table's settings say."),
        ] = None,
    ) -> api.LakeRun:
        """Run a maintenance operation of a lake table once, or show what it would do.

        Delta tables have `checkpoint`, `log-cleanup` and `vacuum`, Iceberg tables
        `expire-snapshots`, `orphan-files` and `manifests`. A vacuum or a search for orphan files
        only looks for files at first, and deletes them after the grace, unless a version of the
        table names them by then; an expiry does so after its commit.
        The table setting `lake_maintenance` runs operations without a call.
        """
        services = self._services
        stored_table = await services.table(table)
        if stored_table.lake is None:
            raise RequestError(
                f"table {table!r} is no lake table: the service maintains it by itself"
            )
        names = OPERATIONS_OF_LAKES[stored_table.lake.format]
        if operation not in names:
            raise RequestError(
                f"operation {operation[:100]!r} is unknown, expected one of {', '.join(names)}"
            )
        if files is not None:
            bounded_count(files, 1_000_000, "files")
        order = api.LakeOrder(operation=operation, dry_run=dry_run, files=files)
        return await services.coordinator.maintain(stored_table.id, order)

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
        stored_table = await services.table(table)
        only = None if tablet is None else (await services.tablet(stored_table, tablet)).text
        return await services.coordinator.maintenance(stored_table.id, only)


# -------------------------------------------------------------------------------------- Simulations
# Simulations: days of compaction in a process of its own, with the decision code of the service.
#
# A simulation runs in a process with limits on its time and memory, at a lower priority, one at a
# time: the gateway has no planners, and answers other calls meanwhile. It shows a table only to a
# caller that may read it, and groups and compactors only to one that may read all tables.


SIMULATION_COMMAND = (sys.executable, "-m", "neve.simulate.side_by_side")
SIMULATION_REFUSED = 3
"""Exit code of a process that could not carry out its order."""
SIMULATION_CPU_S = 60
"""Processor time of a simulation."""
SIMULATION_MAX_S = 180.0
"""Longest time of a simulation on a busy machine."""
SIMULATION_MEMORY_BYTES = 1024**3
SIMULATED_FILES_MAX = 20_000
"""Largest table that is simulated here."""
SIMULATION_RETRY_S = 5.0
SIMULATION_BYTES_MAX = 16 * 1024**2
SMALLER = "simulate fewer days, tablets or variants, or use `neve simulate` on another machine"
NO_COMPACTORS = (
    "one compactor with one slot is assumed: your rights do not include the groups and compactors"
)


class SimulationRoutes:
    """The route of simulations."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tables, self._files = TableRoutes(services), IngestRoutes(services)
        self._jobs, self._compactors = JobRoutes(services), CompactorRoutes(services)
        self._runs = False

    @route("POST /v1/simulations", READ_LISTED.noted("with a table: on that table"))
    async def simulate(self, body: api.NewSimulation) -> api.Simulation:
        """Simulate days of compaction, and compare variants. Nothing is started or changed.

        Give a specification, or a table: its files, the arrivals of the last day and the speed of
        its jobs, with its planner and others. The simulation may take a minute of processor time;
        one runs at a time, and a call during another one is answered 429.
        """
        if bool(body.specification) == bool(body.table):
            raise RequestError("give either a specification or a table")
        order: dict[str, Any] = {
            "new": body,
            "cpu_s": SIMULATION_CPU_S,
            "memory_bytes": SIMULATION_MEMORY_BYTES,
        }
        notes: tuple[str, ...] = ()
        if self._runs:
            raise QuotaError("another simulation is running", SIMULATION_RETRY_S)
        self._runs = True
        try:
            if body.table:
                sees_all = current_call().caller.may(Role.READ)
                notes = () if sees_all else (NO_COMPACTORS,)
                order["parts"] = await self._parts(body.table, sees_all=sees_all)
                order["now_s"] = self._services.clock.now_s()
            packed = await asyncio.to_thread(pickle.dumps, order)
            simulation = await _simulated(packed)
        finally:
            self._runs = False
        settings = self._services.settings.gateway
        return replace(
            simulation,
            notes=notes,
            hour_price=settings.compactor_hour_price,
            currency=settings.currency,
        )

    async def _parts(self, name: str, *, sees_all: bool) -> tuple[Any, ...]:
        """Return a table, its files and attempts, and the groups and compactors of the service."""
        table = await self._tables.describe(name, totals=False)
        files: list[api.File] = []
        after: str | None = None
        while True:
            page = await self._files.files(name, after)
            files += page.files
            if len(files) > SIMULATED_FILES_MAX:
                raise RequestError(
                    f"table {name!r} has more than {SIMULATED_FILES_MAX:,} files; `neve simulate"
                    f" --from {name}` simulates larger tables on your machine"
                )
            if (after := page.next) is None:
                break
        attempts = (await self._jobs.history(name, LIST_MAX))["attempts"]
        if not sees_all:
            return table, files, attempts, [], []
        groups = (await self._compactors.groups())["groups"]
        return table, files, attempts, groups, (await self._compactors.compactors())["compactors"]


async def _simulated(order: bytes) -> api.Simulation:
    """Carry out an order in a process.

    Raises:
        RequestError: The order is wrong, or takes too long.
        ConfigError: The process died.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        SIMULATION_COMMAND,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=_environment(),
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.to_thread(_outputs, process, order)
    except subprocess.TimeoutExpired as error:
        raise RequestError(
            f"the simulation takes longer than {SIMULATION_MAX_S:g} s: {SMALLER}"
        ) from error
    finally:
        process.kill()  # A caller that leaves ends its simulation, and the thread that waits.
    code, text = process.returncode or 0, errors.decode("utf-8", "replace").strip()
    if code == SIMULATION_REFUSED:
        raise RequestError(text)
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and not text):
        raise RequestError(
            f"the simulation needs more than {SIMULATION_CPU_S} s of processor time, or too much"
            f" memory: {SMALLER}"
        )
    if code or len(output) > SIMULATION_BYTES_MAX:
        raise ConfigError(f"the simulation failed (exit code {code}): {text[-500:]}")
    return await asyncio.to_thread(_unpacked, output)


def _unpacked(output: bytes) -> api.Simulation:
    """Return the simulation that a process has written."""
    answer = _of_tuples(json.loads(output))
    variants, curves = answer.pop("variants"), answer.pop("curves")
    return api.Simulation(
        variants=tuple(api.SimulatedVariant(**_of_tuples(variant)) for variant in variants),
        curves=tuple(api.SimulatedCurve(**curve) for curve in curves),
        **answer,
    )


def _of_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in fields.items()}


def _tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


def _outputs(process: subprocess.Popen[bytes], order: bytes) -> tuple[bytes, bytes]:
    """Give a process its order; return what it writes. It has ended afterwards."""
    with process:
        try:
            return process.communicate(order, SIMULATION_MAX_S)
        finally:
            process.kill()


def _environment() -> dict[str, str]:
    """Return the environment of the process: paths of modules, few threads, and no secrets.

    Arrow's own allocators reserve gigabytes of address space before they use them.
    """
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "1",
    }
