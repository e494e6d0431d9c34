"""Tables: all that the caller may read, sorted, filtered and paged here; the view of one table."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import CompactionError
from common.model.fields import as_plain
from common.model.table import TableSettings
from neve import api
from neve.console.frame import Crumb, Heading, Variables, View, address_of, listing, page
from neve.console.pages.control import last_hour, recorded_lines, times_of
from neve.console.pages.figures import SCALES, heat_figure, size_histogram
from neve.setting_values import setting_text

STATES = ("", "live", "paused", "filling", "going")


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table with its work."""

    table: api.Table
    backlog: api.Backlog | None = None
    activity: api.TableActivity | None = None

    @property
    def planner(self) -> str:
        """Name of its planner."""
        return str(self.table.settings.get("planner") or "")

    @property
    def group(self) -> str:
        """Names of the groups whose compactors owe it work, or its service."""
        if self.backlog is not None and self.backlog.groups:
            return ", ".join(sorted(self.backlog.groups))
        return str(self.table.settings.get("service") or "")

    @property
    def owed_bytes(self) -> int:
        """Bytes that are still to be rewritten; 0 for a table that is not among the largest."""
        return self.backlog.size_bytes if self.backlog else 0

    @property
    def queued(self) -> int:
        """Queued jobs."""
        return self.activity.queued if self.activity else 0

    @property
    def running(self) -> int:
        """Running jobs."""
        return self.activity.running if self.activity else 0

    def matches(self, words: str, state: str) -> bool:
        """Return whether all words are in its name, planner or group, and it has the state."""
        text = f"{self.table.name} {self.planner} {self.group}".lower()
        return all(word in text for word in words.lower().split()) and (
            not state or self.table.state == state
        )


HEADINGS = (
    Heading("name", "Table", lambda row: row.table.name, number=False),
    Heading("state", "State", lambda row: row.table.state, number=False),
    Heading(
        "backlog",
        "Backlog",
        lambda row: row.owed_bytes,
        hint="Bytes that are still to be rewritten",
    ),
    Heading(
        "tablets",
        "Busy",
        lambda row: row.backlog.tablets if row.backlog else 0,
        hint="Tablets that are not at rest",
    ),
    Heading("queued", "Queued", lambda row: row.queued, hint="Queued jobs"),
    Heading("running", "Running", lambda row: row.running, hint="Running jobs"),
    Heading("planner", "Planner", lambda row: row.planner, number=False),
    Heading("group", "Group", lambda row: row.group, number=False),
)
"""Columns that all tables have, and by which they are sorted."""
SAMPLED = (
    ("Tablets", "Number of tablets"),
    ("Files/tablet", "Average of some tablets, and the most of one: what a read has to merge"),
    ("Small", "Files smaller than a quarter of target_bytes, in some tablets"),
    ("Garbage", "Bytes that no reader sees, in files that an analysis has counted"),
    ("Tombstones", "Rows that mark a key as deleted, in some tablets"),
    (
        "Writes",
        "Bytes that jobs have written per byte that arrived, from some tablets",
    ),
    ("Last commit", "End of the last committed job"),
)
"""Further columns, read for the shown tables only: heading and hint."""


@page("/console/tables", "tables.html", of="GET /v1/tables", title="Tables", nav="Tables")
async def tables(view: View) -> Variables:
    """Return the rows of the page that the address names."""
    words, state = view.text("filter"), view.choice("state", STATES)
    listed = (await view.read("GET /v1/tables"))["tables"]
    backlog = _by_table(await view.maybe("GET /v1/backlog"), "backlog")
    activity = _by_table(await view.maybe("GET /v1/activity"), "tables")
    rows = [
        ListedTable(table, backlog.get(table.name), activity.get(table.name)) for table in listed
    ]
    chosen = listing(view, HEADINGS, [row for row in rows if row.matches(words, state)])
    names = [row.table.name for row in chosen.rows]
    reads = (view.maybe("GET /v1/tables/{table}/summary", table=name) for name in names)
    return {
        "listed": chosen,
        "summaries": dict(zip(names, await asyncio.gather(*reads), strict=True)),
        "sampled": SAMPLED,
        "words": words,
        "state": state,
        "states": STATES,
        "all_tables": len(listed),
    }


def _by_table(answer: dict[str, Any] | None, name: str) -> dict[str, Any]:
    return {line.table: line for line in (answer or {}).get(name, ())}


# ---------------------------------------------------------------------------------------- One table
# The view of a table: heat map, sizes of files, the last day, tablets; and its settings.
#
# A table of a million tablets opens as fast as a small one: the page reads the map, which is
# bounded, one page of tablets and the end of the history, and never every tablet.


TABLE = "/console/tables/{table}"
TABLETS_A_PAGE = 25
ATTEMPTS_READ = 500
"""Attempts of the history that the last day is summed from."""
OWED_TABLETS_MAX = 100_000
"""Largest table of which the page lists the tablets with the most to do."""
OWED_SHOWN = 10
DAY_S = 86_400.0


def table_crumbs(name: str | None = None) -> list[Crumb]:
    """Return the path to the pages of a table."""
    crumbs = [Crumb("Tables", "/console/tables")]
    return crumbs if name is None else [*crumbs, Crumb(name, address_of(TABLE, {"table": name}))]


def map_values(drawn: api.TabletMap, measure: str) -> Sequence[float]:
    """Return the value of each cell, by a name of `SCALES`."""
    columns: Mapping[str, Sequence[float]] = {
        "files": drawn.files,
        "overlap": drawn.overlapping_files,
        "backlog": drawn.backlog_bytes,
        "garbage": drawn.garbage_shares,
        "reads": drawn.scans_s,
    }
    return columns[measure]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTotals:
    """Totals of a table from its map; estimates if a cell stands for several tablets."""

    tablets: int
    files: int
    size_bytes: int
    exact: bool


def map_totals(drawn: api.TabletMap) -> MapTotals:
    """Return the totals of a table from its map."""
    return MapTotals(
        tablets=drawn.tablets,
        files=sum(files * count for files, count in zip(drawn.files, drawn.counts, strict=True)),
        size_bytes=sum(
            size * count for size, count in zip(drawn.size_bytes, drawn.counts, strict=True)
        ),
        exact=len(drawn.ends) == drawn.tablets and not drawn.unreadable,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTotals:
    """What the compactions of the last day did. Files between two jobs count neither side."""

    jobs: int
    failed: int
    files_before: int
    files_after: int
    read_bytes: int
    written_bytes: int
    rows_dropped: int
    busy_s: float
    """Time of all attempts together."""
    since_s: float
    """The totals cover the time from here on: a day, or less if the history begins later."""


def last_day(attempts: Sequence[api.Finished], now_s: float) -> DayTotals:
    """Sum up the attempts that ended within a day.

    Args:
        attempts: History of a table, newest first, at most `ATTEMPTS_READ` attempts.
        now_s: The current time.
    """
    recent = [attempt for attempt in attempts if attempt.ended_s > now_s - DAY_S]
    commits = [attempt for attempt in recent if attempt.end == "committed"]
    read = {path for attempt in commits for path in attempt.inputs}
    written = {path for attempt in commits for path in attempt.outputs}
    cut = len(recent) == len(attempts) == ATTEMPTS_READ
    return DayTotals(
        jobs=len(commits),
        failed=sum(attempt.end == "failed" for attempt in recent),
        files_before=len(read - written),
        files_after=len(written - read),
        read_bytes=sum(attempt.bytes_in for attempt in commits),
        written_bytes=sum(attempt.bytes_out for attempt in commits),
        rows_dropped=sum(
            attempt.superseded + attempt.tombstones_dropped + attempt.expired_dropped
            for attempt in commits
        ),
        busy_s=sum(attempt.ended_s - attempt.started_s for attempt in recent),
        since_s=recent[-1].ended_s if cut else now_s - DAY_S,
    )


@page(TABLE, "table.html", of="GET /v1/tables/{table}", title="Table")
async def table_page(view: View) -> Variables:
    """Read a table for its page."""
    name = view.path["table"]
    table: api.Table = await view.read("GET /v1/tables/{table}", table=name, totals=False)
    view.title, view.crumbs = table.name, table_crumbs()
    measure = view.choice("colour", tuple(SCALES))
    after = view.text("after") or None
    drawn: api.TabletMap | None = await view.maybe("GET /v1/tables/{table}/map", table=name)
    tablets: api.TabletPage | None = await view.maybe(
        "GET /v1/tables/{table}/tablets", table=name, after=after, count=TABLETS_A_PAGE
    )
    history = await view.maybe("GET /v1/tables/{table}/history", table=name, count=ATTEMPTS_READ)
    return {
        "table": table,
        "measure": measure,
        "scales": tuple(SCALES.values()),
        "map": drawn,
        "totals": None if drawn is None else map_totals(drawn),
        "heat": None if drawn is None else _heat(drawn, measure),
        "histogram": () if drawn is None else size_histogram(drawn.sizes),
        "tablets": tablets,
        "after": after,
        "owed": await _owed(view, name, drawn),
        "day": None if history is None else last_day(history["attempts"], view.now_s),
        **await _activity(view, name),
        **await _hour(view, name),
    }


def _heat(drawn: api.TabletMap, measure: str) -> Any:
    return heat_figure(SCALES[measure], map_values(drawn, measure), drawn.counts, drawn.ends)


HOUR: Sequence[tuple[str, str, str]] = (
    ("backlog_bytes", "Backlog, last hour", "bytes"),
    ("rewritten_bytes_s", "Rewritten, last hour", "bytes/s"),
)
"""Plots of a table: measure, title, unit."""


async def _hour(view: View, table: str) -> Variables:
    """Return the plots of a table's last hour; of a table that is not recorded there are none."""
    series = await last_hour(view, [measure for measure, _, _ in HOUR], table=[table])
    line = None if series is None else next(iter(series.tables), None)
    plots = [
        (measure, title, unit, recorded_lines(line, {measure.partition("_")[0]: measure}))
        for measure, title, unit in HOUR
    ]
    return {
        "times": [] if series is None else times_of(series),
        "hour": [drawn for drawn in plots if drawn[-1]],
    }


async def _owed(
    view: View, table: str, drawn: api.TabletMap | None
) -> Sequence[api.OwedTablet] | None:
    """Return the tablets with the largest backlogs; None: unknown, or the table is too large."""
    if drawn is None or drawn.tablets > OWED_TABLETS_MAX:
        return None
    owed = await view.maybe("GET /v1/tables/{table}/backlog", table=table, count=OWED_SHOWN)
    return None if owed is None else owed["tablets"]


async def _activity(view: View, table: str) -> Variables:
    """Return backlog, queued and running jobs of a table."""
    backlog = await view.maybe("GET /v1/backlog", table=table)
    activity = await view.maybe("GET /v1/activity")
    return {
        "backlog": None if backlog is None else next(iter(backlog["backlog"]), None),
        "activity": None
        if activity is None
        else next(
            (entry for entry in activity["tables"] if entry.table == table),
            api.TableActivity(table=table),
        ),
    }


# ----------------------------------------------------------------------------------------- Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettingRow:
    """A setting of a table."""

    name: str
    text: str
    """Its value as users write it; the text of the form during a dry run."""
    default: str
    source: str
    """`set for the table`, `default`, or `edited`."""
    without_effect: str = ""
    """Why the setting has no effect in this service; empty: it has."""


def written_setting(name: str, value: Any) -> str:
    """Return the value of a setting as users write it in `neve table set`."""
    if isinstance(value, Mapping):
        return ",".join(f"{option}={text}" for option, text in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return setting_text(name, value)


def setting_rows(table: api.Table, edited: Mapping[str, str]) -> list[TableSettingRow]:
    """Return the settings of a table: the planner and its options first, then as declared.

    Args:
        table: The table.
        edited: Name → text of the settings that a form has changed.
    """
    defaults = as_plain(TableSettings())
    rows = []
    for name in sorted(table.settings, key=lambda name: not name.startswith("planner")):
        text = written_setting(name, table.settings[name])
        default = written_setting(name, defaults.get(name))
        source = "default" if text == default else "set for the table"
        rows.append(
            TableSettingRow(
                name=name,
                text=edited.get(name, text),
                default=default,
                source="edited" if name in edited else source,
                without_effect=table.without_effect.get(name, ""),
            )
        )
    return rows


def edited_settings(table: api.Table, form: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a form that differ from those of the table.

    Args:
        table: The table.
        form: Fields, named `set.NAME`.
    """
    return {
        name: text
        for name, value in table.settings.items()
        if (text := form.get(f"set.{name}", "").strip()) != written_setting(name, value)
        and f"set.{name}" in form
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """How a plan differs with other settings."""

    tablets: int
    jobs_before: int
    jobs_after: int
    bytes_before: int
    """Bytes that the jobs read."""
    bytes_after: int
    left_before: int
    """Files that no job takes."""
    left_after: int
    gone: tuple[api.PlannedJob, ...]
    """Jobs that are planned only with the present settings."""
    new: tuple[api.PlannedJob, ...]
    """Jobs that are planned only with the edited settings."""
    reasons: tuple[tuple[str, str, str], ...]
    """Files that are left out either way, with another reason: path, reason before, and after."""


JOBS_SHOWN = 20


def plan_change(before: api.Plan, after: api.Plan, tablets: int) -> PlanChange:
    """Compare the plans of the same tablets with present and edited settings.

    Args:
        before: Plan with the present settings.
        after: Plan with the edited settings.
        tablets: Number of planned tablets.
    """
    old = {(job.tablet, frozenset(job.files)): job for job in before.jobs}
    new = {(job.tablet, frozenset(job.files)): job for job in after.jobs}
    reasons = [
        (path, why, after.left[path])
        for path, why in sorted(before.left.items())
        if path in after.left and after.left[path] != why
    ]
    return PlanChange(
        tablets=tablets,
        jobs_before=before.job_count,
        jobs_after=after.job_count,
        bytes_before=before.input_bytes,
        bytes_after=after.input_bytes,
        left_before=before.left_count,
        left_after=after.left_count,
        gone=tuple(job for key, job in old.items() if key not in new)[:JOBS_SHOWN],
        new=tuple(job for key, job in new.items() if key not in old)[:JOBS_SHOWN],
        reasons=tuple(reasons[:JOBS_SHOWN]),
    )


TRIED_TABLETS = 20
COMPARED_MAX = 10_000
"""Jobs of a plan, and files that it leaves out, that are compared."""


def tried_tablets(drawn: api.TabletMap) -> list[str]:
    """Return the tablets that a dry run plans: those with the most to do, and some of the others.

    A cell of several tablets names its last one, so the largest backlog may belong to another.
    """
    cells = range(len(drawn.ends))
    busiest = sorted(cells, key=lambda cell: (-drawn.backlog_bytes[cell], -drawn.files[cell], cell))
    chosen, others = busiest[: TRIED_TABLETS // 2], sorted(busiest[TRIED_TABLETS // 2 :])
    chosen += others[:: max(1, 2 * len(others) // TRIED_TABLETS)][: TRIED_TABLETS // 2]
    return [drawn.ends[cell] for cell in sorted(chosen)]


SETTINGS = TABLE + "/settings"


@page(SETTINGS, "settings.html", of="GET /v1/tables/{table}", title="Settings", live=False)
async def settings_page(view: View) -> Variables:
    """Read the settings of a table."""
    return await _settings(view, {})


@page(SETTINGS, "settings.html", of="PATCH /v1/tables/{table}", title="Settings", method="POST")
async def settings_dry_run(view: View) -> Variables:
    """Plan some tablets with the settings of a form, and store nothing."""
    return await _settings(view, view.form)


async def _settings(view: View, form: Mapping[str, str]) -> Variables:
    name = view.path["table"]
    table: api.Table = await view.read("GET /v1/tables/{table}", table=name, totals=False)
    view.title, view.crumbs = f"Settings of {table.name}", table_crumbs(name)
    edited = edited_settings(table, form)
    change, problem = None, ""
    if edited:
        try:
            change = await _dry_run(view, name, edited)
        except CompactionError as error:
            problem = str(error)
    return {
        "table": table,
        "rows": setting_rows(table, edited),
        "edited": edited,
        "asked": bool(form),
        "change": change,
        "problem": problem,
    }


async def _dry_run(view: View, table: str, edited: Mapping[str, str]) -> PlanChange:
    drawn: api.TabletMap = await view.read("GET /v1/tables/{table}/map", table=table)
    tablets = tried_tablets(drawn)
    plan = "GET /v1/tables/{table}/plan"
    before = await view.read(plan, table=table, tablet=tablets, count=COMPARED_MAX)
    texts = [f"{name}={text}" for name, text in edited.items()]
    after = await view.read(plan, table=table, tablet=tablets, setting=texts, count=COMPARED_MAX)
    return plan_change(before, after, len(tablets))
