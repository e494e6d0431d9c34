"""Tablets: explanations, stories, live bytes, reads, quarantine and watermarks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query

from common.errors import (
    BrokenValueError,
    RequestError,
)
from common.metadata import recent_adds
from common.metadata.changes import LowerWatermark
from common.metadata.store_values import HistoryEntry
from common.model.job import analysis_id
from common.model.keys import format_key, parse_key
from common.model.outcome import AttemptEnd, TabletStatistics
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.rows.rules import RowRules
from neve import api
from neve.gateway.access.route_rights import (
    ADMIN,
    COMPACT,
    READ,
    route,
)
from neve.gateway.problems import require_applied
from neve.gateway.services import (
    LIST_MAX,
    Services,
    bounded_count,
    check_writable,
    parsed_tablet,
)
from neve.gateway.story_views import story_view


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


ANALYZED_TABLETS_MAX = 10_000
"""Limit of tablets in one call that requests or reads live bytes."""


EXPLAINED_MAX = 100


SCANS_MAX = 1_000_000


class TabletRoutes:
    """Routes of tablets."""

    def __init__(self, services: Services) -> None:
        self._services = services

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
