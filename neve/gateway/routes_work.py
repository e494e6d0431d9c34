"""Routes about the work: status, jobs, queue, plan, explain, history, compactors, groups."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from common.errors import PluginError
from common.model.job import TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet
from neve import api_work
from neve.gateway.problems import UnknownCompactorError, UnknownJobError
from neve.gateway.services import Services, bounded, checked_label, known_group
from neve.gateway.views import (
    compactor_view,
    explanation_view,
    finished_view,
    job_view,
    plan_view,
    queued_view,
    status_view,
)
from neve.gateway.watermarks import lowered, watermarks
from neve.service_settings import as_document, shown_settings

LIST_MAX = 10_000
EXPLAINED_MAX = 100
PLANNED_TABLETS_MAX = 100_000


class WorkRoutes:
    """The routes that concern jobs and those who run them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1", tags=["work"])
        router.get("/status")(self.status)
        router.get("/config")(self.config)
        router.get("/jobs")(self.jobs)
        router.post("/jobs/{attempt}/cancel", status_code=202)(self.cancel)
        router.get("/queue")(self.queue)
        router.get("/compactors")(self.compactors)
        router.post("/compactors/{compactor}/drain", status_code=202)(self.drain)
        router.post("/groups/{group}/pause", status_code=202)(self.pause_group)
        router.post("/groups/{group}/resume", status_code=202)(self.resume_group)
        router.get("/tables/{table}/explain")(self.explain)
        router.get("/tables/{table}/plan")(self.plan)
        router.get("/tables/{table}/history")(self.history)
        router.post("/tables/{table}/replan", status_code=202)(self.replan)
        router.post("/tables/{table}/lift-quarantine", status_code=202)(self.lift_quarantine)
        router.post("/tables/{table}/lower-watermark")(self.lower_watermark)
        return router

    async def status(self) -> api_work.Status:
        """Return how the service as a whole is doing."""
        found = await self._services.coordinator.status()
        silence = self._services.store_watch.warning
        errors = (silence, *found.errors) if silence else found.errors
        return status_view(replace(found, errors=errors))

    async def config(self) -> dict[str, list[api_work.Setting]]:
        """Return every setting with its value and where that comes from; secrets are hidden."""
        shown = shown_settings(self._services.settings)
        return {"settings": [api_work.Setting(**each) for each in as_document(shown)]}

    async def jobs(self) -> dict[str, list[api_work.Job]]:
        """Return the jobs that run."""
        return {"jobs": [job_view(each) for each in await self._services.coordinator.running()]}

    async def cancel(self, attempt: str) -> None:
        """Take a running job back; the same files are not planned again for a while.

        A job of a request takes the key range of its tablet out of the request, which goes on
        elsewhere and ends `done_in_part`.
        """
        running = await self._services.coordinator.running()
        if all(each.attempt != attempt for each in running):
            raise UnknownJobError(
                f"no job runs under attempt {attempt[:64]!r} (any more); "
                "`neve jobs` tells which there are"
            )
        await self._services.coordinator.cancel(attempt)

    async def queue(
        self,
        group: Annotated[str | None, Query(description="Of one group; else of all.")] = None,
        count: Annotated[int, Query(description="At most so many.")] = 100,
    ) -> dict[str, list[api_work.PlannedJob]]:
        """Return the jobs that wait, best first."""
        if group is not None:
            checked_label(group, "group name")
        count = bounded(count, LIST_MAX, "count")
        queued = await self._services.coordinator.queue(group, count)
        return {"jobs": [queued_view(each) for each in queued]}

    async def compactors(self) -> dict[str, list[api_work.Compactor]]:
        """Return the compactors that are heard of."""
        heard = await self._services.coordinator.compactors()
        return {"compactors": [compactor_view(each) for each in heard]}

    async def drain(self, compactor: str) -> None:
        """Let a compactor finish what it holds and take nothing new."""
        heard = [each.compactor for each in await self._services.coordinator.compactors()]
        if compactor not in heard:
            known = ", ".join(heard) or "none"
            raise UnknownCompactorError(
                f"no compactor {compactor[:64]!r} is heard of; there are: {known}"
            )
        await self._services.coordinator.drain(compactor)

    async def pause_group(self, group: str) -> None:
        """Hand out no job of a compaction group; running ones go on."""
        await self._services.coordinator.pause_group(await known_group(self._services, group))

    async def resume_group(self, group: str) -> None:
        """End a pause of a compaction group."""
        await self._services.coordinator.resume_group(await known_group(self._services, group))

    async def explain(
        self,
        table: str,
        tablet: Annotated[str | None, Query(description="One; else the first hundred.")] = None,
    ) -> dict[str, list[api_work.Explanation]]:
        """Return why tablets are as they are."""
        services = self._services
        found = await services.table(table)
        if tablet is None:
            ids = await services.store.tablet_ids(found.id, None, EXPLAINED_MAX)
        else:
            ids = [await services.tablet(found, tablet)]
        told = [await services.coordinator.explain(found.id, each.text) for each in ids]
        marks = await watermarks(services, found, ids)
        shown = [replace(each, sentences=(*each.sentences, *marks[each.tablet])) for each in told]
        return {"tablets": [explanation_view(each, found) for each in shown]}

    async def plan(self, table: str) -> api_work.Plan:
        """Return what would be planned for a table now; nothing is started."""
        services = self._services
        found = await services.table(table)
        now_s = await services.store.now_s()
        plans: list[TabletPlan] = []
        running = 0
        async for page in services.pages(found):
            running += sum(len(each.running) for each in page)
            plans += await services.rows.run(found.location, self._planned, found, page, now_s)
            bounded(len(plans) or 1, PLANNED_TABLETS_MAX, "number of tablets to plan")
        return plan_view(found, plans, running)

    def _planned(self, table: Table, tablets: list[Tablet], now_s: float) -> list[TabletPlan]:
        try:
            return [self._services.plan(each, table, now_s) for each in tablets]
        except PluginError as error:
            raise PluginError(f"table {table.name!r} cannot be planned: {error}") from error

    async def history(
        self,
        table: str,
        count: Annotated[int, Query(description="At most so many.")] = 100,
    ) -> dict[str, list[api_work.Finished]]:
        """Return the newest finished attempts, newest first."""
        found = await self._services.table(table)
        entries = await self._services.store.history(found.id, bounded(count, LIST_MAX, "count"))
        return {"attempts": [finished_view(each) for each in entries]}

    async def replan(self, table: str) -> None:
        """Look at every tablet of a table anew, at once."""
        await self._services.coordinator.replan((await self._services.table(table)).id)

    async def lower_watermark(
        self,
        table: str,
        tablet: Annotated[str, Query(description="The end of the tablet.")],
        to: Annotated[
            str | None, Query(description="A version, as in listings; else no watermark is left.")
        ] = None,
    ) -> api_work.LoweredWatermark:
        """Let a tablet take rows again of versions at which tombstones were dropped.

        The answer says which deleted rows may come back.
        """
        services = self._services
        found = await services.table(table)
        return await lowered(services, found, await services.tablet(found, tablet), to)

    async def lift_quarantine(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="The end of the tablet; else every one of the table.")
        ] = None,
    ) -> None:
        """Plan tablets again that were set aside after repeated failures."""
        services = self._services
        found = await services.table(table)
        chosen = None if tablet is None else (await services.tablet(found, tablet)).text
        await services.coordinator.lift_quarantine(found.id, chosen)
