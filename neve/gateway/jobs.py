"""Jobs: running and finished ones, and the activity of tables."""

from dataclasses import fields
from typing import Annotated

from fastapi import Query

from common.metadata.changes.days import DAYS_MAX, day_of
from common.metadata.store_values import HistoryEntry
from common.wire import RunningAttempt
from neve import api
from neve.gateway.access.callers import (
    COMPACT_LISTED,
    READ,
    READ_LISTED,
    begin_call,
    check_table,
    route,
    sees_table,
)
from neve.gateway.problems import UnknownJobError
from neve.gateway.services import LIST_MAX, Services, bounded_count, whole_id


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
        files=running.files,
    )


def finished_view(entry: HistoryEntry) -> api.Finished:
    """Return the wire model of a finished attempt."""
    values = {field.name: getattr(entry, field.name) for field in fields(api.Finished)}
    return api.Finished(**values | {"tablet": entry.tablet.text})


DAY_S = 86_400.0


class JobRoutes:
    """Routes of jobs."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/jobs", READ_LISTED)
    async def jobs(self) -> dict[str, list[api.Job]]:
        """Return the running jobs."""
        return {"jobs": [job_view(attempt) for attempt in await self._seen_running()]}

    async def _seen_running(self) -> list[RunningAttempt]:
        """Return the running attempts on tables that the caller may see."""
        running = await self._services.coordinator.running()
        return [attempt for attempt in running if sees_table(attempt.table_name)]

    @route("GET /v1/activity", READ_LISTED)
    async def activity(self) -> dict[str, list[api.TableActivity]]:
        """Return the tables with queued or running jobs, most bytes first."""
        tables = await self._services.coordinator.activity()
        return {"tables": [table for table in tables if sees_table(table.table)]}

    @route(
        "POST /v1/jobs/{attempt}/cancel",
        COMPACT_LISTED.noted("on the table of the job", late=True),
        status_code=202,
    )
    async def cancel(self, attempt: str) -> None:
        """Cancel a running job. Its files are not planned again for a while.

        If the job belongs to a request, the request leaves out this tablet. It goes on in the
        other tablets and ends `done_in_part`.
        """
        running = await self._seen_running()
        attempts = {name: job for job in running for name in (job.job_id, job.attempt)}
        whole = whole_id(attempt, attempts, "job")
        if whole is None:
            raise UnknownJobError(
                f"no running job has attempt {attempt[:64]!r} (any more); `neve jobs` lists them"
            )
        check_table(attempts[whole].table_name)
        await begin_call()
        await self._services.coordinator.cancel(attempts[whole].attempt)

    @route(
        "DELETE /v1/queue/{job}",
        COMPACT_LISTED.noted("on the table of the job", late=True),
        status_code=202,
    )
    async def cancel_queued(self, job: str) -> None:
        """Cancel a job that waits in a queue, or that is paused.

        Its files are not planned again until `coordinator.backoff_max_s` is over or one of them is
        replaced. Cancel the request of a job to end it for good.
        """
        await self._services.coordinator.cancel_queued(await self._begun_waiting(job))

    @route(
        "POST /v1/queue/{job}/pause",
        COMPACT_LISTED.noted("on the table of the job", late=True),
        status_code=202,
    )
    async def pause(self, job: str) -> None:
        """Pause a job that waits in a queue.

        The pause ends with a call of `resume`, when one of the job's files is replaced, and when
        the coordinator restarts. A planner that sees other files may plan other jobs on them.
        """
        await self._services.coordinator.pause_job(await self._begun_waiting(job))

    @route(
        "POST /v1/queue/{job}/resume",
        COMPACT_LISTED.noted("on the table of the job", late=True),
        status_code=202,
    )
    async def resume(self, job: str) -> None:
        """Queue a paused job again, as a new one."""
        await self._services.coordinator.resume_job(await self._begun_waiting(job))

    async def _begun_waiting(self, text: str) -> str:
        """Return the id of a waiting job that the caller may change; the call begins."""
        waiting = await self._services.coordinator.waiting(text)
        tables = {job.id: job.table_name for job in waiting if sees_table(job.table_name)}
        found = whole_id(text, tables, "job")
        if found is None:
            raise UnknownJobError(
                f"no queued job has id {text[:64]!r} (any more); `neve queue` lists them"
            )
        check_table(tables[found])
        await begin_call()
        return found

    @route("GET /v1/tables/{table}/days", READ)
    async def days(
        self,
        table: str,
        count: Annotated[int, Query(description="Number of days at most, up to today.")] = 7,
    ) -> api.TableDays:
        """Return daily sums of the finished attempts of a table: jobs, bytes, files, time, rows.

        Days are those of UTC. 400 days are kept. A day without attempts is missing.
        """
        services = self._services
        stored_table = await services.table(table)
        bounded_count(count, DAYS_MAX, "count")
        sums = await services.store.newest_days(
            stored_table.id, await services.store.days(stored_table.id)
        )
        now_s = await services.store.now_s()
        first = day_of(now_s - (count - 1) * DAY_S)
        settings = services.settings.gateway
        return api.TableDays(
            table=stored_table.name,
            now_s=now_s,
            since_s=sums.since_s,
            days=tuple(day for day in sums.days if day.day >= first),
            hour_price=settings.compactor_hour_price,
            currency=settings.currency,
            slots=services.settings.compactor.slots,
        )

    @route("GET /v1/tables/{table}/history", READ)
    async def history(
        self,
        table: str,
        count: Annotated[int, Query(description="Number of attempts at most.")] = 100,
    ) -> dict[str, list[api.Finished]]:
        """Return the finished attempts of a table, newest first."""
        stored_table = await self._services.table(table)
        entries = await self._services.store.history(
            stored_table.id, bounded_count(count, LIST_MAX, "count")
        )
        return {"attempts": [finished_view(entry) for entry in entries]}
