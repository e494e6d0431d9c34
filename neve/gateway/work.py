"""The work: status, jobs, queue, plan, explain, history, compactors, groups, watermarks, limits."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter, Query

from common.errors import BrokenValueError, PluginError, RequestError
from common.metadata import recent_adds
from common.metadata.changes import LowerWatermark
from common.model.group import (
    LimitScope,
    LimitScopeKind,
    checked_limit,
)
from common.model.job import TabletPlan
from common.model.keys import format_key, parse_key
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.rows.rules import RowRules
from common.units import parse_size_bytes
from neve.api import work as api
from neve.client.http import decode
from neve.gateway.problems import UnknownCompactorError, UnknownJobError, require_applied
from neve.gateway.services import (
    Services,
    bounded_count,
    check_writable,
    checked_label,
    known_group,
    parsed_tablet,
)
from neve.gateway.story_views import story_view
from neve.gateway.views import (
    compactor_view,
    explanation_view,
    finished_view,
    job_view,
    plan_view,
    queued_view,
    status_view,
)
from neve.service_settings import as_document, shown_settings

# --------------------------------------------------------------------------------------- Watermarks


async def watermark_sentences(
    services: Services, table: Table, tablets: Sequence[TabletId]
) -> Mapping[str, Sequence[str]]:
    """Return what is to be said of the watermarks of tablets, by the text of their ends."""
    now_s, said = await services.store.now_s(), dict[str, Sequence[str]]()
    if table.version_column is None:
        return dict.fromkeys((tablet.text for tablet in tablets), ())
    for tablet in tablets:
        try:
            known = await services.store.tablet(tablet)
        except BrokenValueError:
            known = None  # Who plans it says so.
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
    """Lower a tablet's watermark and return which rows may come back.

    Raises:
        RequestError: The table knows no versions, or `to` is none.
        RefusedError: The watermark is not above that.
    """
    if table.version_column is None:
        raise RequestError(f"table {table.name!r} has no versions, so its tablets no watermark")
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


# ------------------------------------------------------------------------------------------- Routes


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
        router.get("/tables/{table}/story")(self.story)
        router.get("/tables/{table}/plan")(self.plan)
        router.get("/tables/{table}/history")(self.history)
        router.post("/tables/{table}/replan", status_code=202)(self.replan)
        router.post("/tables/{table}/lift-quarantine", status_code=202)(self.lift_quarantine)
        router.post("/tables/{table}/lower-watermark")(self.lower_watermark)
        return router

    async def status(self) -> api.Status:
        """Return how the service as a whole is doing."""
        found = await self._services.coordinator.status()
        silence = self._services.store_watch.warning
        errors = (silence, *found.errors) if silence else found.errors
        return status_view(replace(found, errors=errors))

    async def config(self) -> dict[str, list[api.Setting]]:
        """Return every setting with its value and where that comes from; secrets are hidden."""
        shown = shown_settings(self._services.settings)
        return {"settings": [api.Setting(**each) for each in as_document(shown)]}

    async def jobs(self) -> dict[str, list[api.Job]]:
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
    ) -> dict[str, list[api.PlannedJob]]:
        """Return the jobs that wait, best first."""
        if group is not None:
            checked_label(group, "group name")
        count = bounded_count(count, LIST_MAX, "count")
        queued = await self._services.coordinator.queue(group, count)
        return {"jobs": [queued_view(each) for each in queued]}

    async def compactors(self) -> dict[str, list[api.Compactor]]:
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
    ) -> dict[str, list[api.Explanation]]:
        """Return why tablets are as they are."""
        services = self._services
        found = await services.table(table)
        if tablet is None:
            ids = await services.store.tablet_ids(found.id, None, EXPLAINED_MAX)
        else:
            ids = [await services.tablet(found, tablet)]
        told = [await services.coordinator.explain(found.id, each.text) for each in ids]
        marks = await watermark_sentences(services, found, ids)
        shown = [replace(each, sentences=(*each.sentences, *marks[each.tablet])) for each in told]
        return {"tablets": [explanation_view(each, found) for each in shown]}

    async def story(
        self, table: str, tablet: Annotated[str, Query(description="The end of the tablet.")]
    ) -> api.Story:
        """Return what has happened to a tablet since the coordinator started, oldest first.

        A tablet that is gone by now has a story as long as it is remembered.
        """
        services = self._services
        found = await services.table(table)
        told = await services.coordinator.story(found.id, parsed_tablet(found, tablet).text)
        if not told.entries:
            await services.tablet(found, tablet)
        return story_view(told, found)

    async def plan(self, table: str) -> api.Plan:
        """Return what would be planned for a table now; nothing is started."""
        services = self._services
        found = await services.table(table)
        now_s = await services.store.now_s()
        plans: list[TabletPlan] = []
        running = 0
        async for page in services.pages(found):
            running += sum(len(each.running) for each in page)
            plans += await services.rows.run(found.location, self._planned, found, page, now_s)
            bounded_count(len(plans) or 1, PLANNED_TABLETS_MAX, "number of tablets to plan")
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
    ) -> dict[str, list[api.Finished]]:
        """Return the newest finished attempts, newest first."""
        found = await self._services.table(table)
        entries = await self._services.store.history(
            found.id, bounded_count(count, LIST_MAX, "count")
        )
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
    ) -> api.LoweredWatermark:
        """Let a tablet take rows again of versions at which tombstones were dropped.

        The answer says which deleted rows may come back.
        """
        services = self._services
        found = await services.table(table)
        return await lower_tablet_watermark(
            services, found, await services.tablet(found, tablet), to
        )

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


# --------------------------------------------------------------------------------- Routes of limits


class LimitRoutes:
    """The routes that limit what rewrites read and write."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1", tags=["limits"])
        router.get("/limits")(self.limits)
        router.put("/groups/{group}/limit", status_code=202)(self.limit_group)
        router.delete("/groups/{group}/limit", status_code=202)(self.unlimit_group)
        router.put("/volumes/{volume}/limit", status_code=202)(self.limit_volume)
        router.delete("/volumes/{volume}/limit", status_code=202)(self.unlimit_volume)
        return router

    async def limits(self) -> dict[str, list[api.Limit]]:
        """Return groups and volumes with their limits, and what moves under them."""
        status = await self._services.coordinator.status()
        return {"limits": [decode(api.Limit, asdict(each)) for each in status.scopes]}

    async def limit_group(self, group: str, body: api.LimitWish) -> None:
        """Limit what the rewrites of a compaction group read and write together, per second."""
        await self._set(LimitScopeKind.GROUP, group, body.limit)

    async def unlimit_group(self, group: str) -> None:
        """Let the settings say again what a group may move."""
        await self._set(LimitScopeKind.GROUP, group, None)

    async def limit_volume(self, volume: str, body: api.LimitWish) -> None:
        """Limit what all rewrites on a volume read and write together, per second."""
        await self._set(LimitScopeKind.VOLUME, volume, body.limit)

    async def unlimit_volume(self, volume: str) -> None:
        """Let the settings say again what a volume's rewrites may move."""
        await self._set(LimitScopeKind.VOLUME, volume, None)

    async def _set(self, kind: LimitScopeKind, name: str, limit: int | str | None) -> None:
        if kind is LimitScopeKind.GROUP:
            await known_group(self._services, name)
        scope = LimitScope(kind, checked_label(name, f"{kind.value} name"))
        what = f"limit of {kind.value} {name}"
        bytes_s = None if limit is None else parse_size_bytes(limit, what)
        checked_limit(bytes_s or 0, f"{kind.value} {name}")
        await self._services.coordinator.set_limit(scope.text, bytes_s)
