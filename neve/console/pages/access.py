"""The views of audit and rights, and the search for tables, tablets, jobs and requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import CompactionError
from neve import api
from neve.console.frame import Heading, Variables, View, address_of, listing, page
from neve.console.pages.jobs import HISTORY, QUEUED_READ, finished_attempts, recent_tables
from neve.console.pages.requests import REQUEST
from neve.console.pages.tables import TABLE
from neve.console.pages.tablet import TABLET

# -------------------------------------------------------------------------------------------- Audit

AUDIT_READ = 1000
OUTCOMES = ("done", "refused", "failed", "begun")
HEADINGS = (
    Heading("at", "Time", lambda entry: entry.at_s),
    Heading("caller", "Caller", lambda entry: entry.caller, number=False),
    Heading("action", "Action", lambda entry: entry.action, number=False),
    Heading("table", "Table", lambda entry: entry.table or None, number=False),
    Heading("outcome", "Outcome", lambda entry: entry.outcome, number=False),
)


@page("/console/audit", "audit.html", of="GET /v1/audit", title="Audit", nav="Audit")
async def audit_page(view: View) -> Variables:
    """Read who did what; refused calls are included."""
    caller, table, outcome = view.text("caller"), view.text("table"), view.text("outcome")
    chosen = {"caller": caller or None, "table": table or None}
    answer = await view.maybe("GET /v1/audit", count=AUDIT_READ, **chosen)
    entries: Sequence[api.AuditEntry] = () if answer is None else answer["entries"]
    shown = [entry for entry in entries if outcome in ("", entry.outcome)]
    return {
        "listed": listing(view, HEADINGS, shown),
        "caller": caller,
        "table": table,
        "outcome": outcome,
        "outcomes": OUTCOMES,
        "answered": answer is not None,
    }


# ------------------------------------------------------------------------------------------- Rights

DEEDS: Sequence[tuple[str, str]] = (
    ("GET /v1/tables/{table}", "see the table and its files"),
    ("POST /v1/tables/{table}/append", "add rows and files"),
    ("POST /v1/tables/{table}/compactions", "request compactions, plan and pause"),
    ("PATCH /v1/tables/{table}", "change settings and drop the table"),
)
SERVICE_DEEDS: Sequence[tuple[str, str]] = (
    ("GET /v1/status", "see the whole service"),
    ("PUT /v1/groups/{group}/scale", "scale, drain and limit compactors"),
    ("POST /v1/tables", "create tables"),
    ("GET /v1/audit", "read the audit"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRights:
    """What a caller may do with a table, in the order of `DEEDS`."""

    table: str
    may: tuple[bool, ...]


TABLES_SHOWN_MAX = 200


@page("/console/rights", "rights.html", of="GET /v1/tables", title="Your rights", live=False)
async def rights_page(view: View) -> Variables:
    """List what the signed-in caller may do."""
    tables = [table.name for table in (await view.read("GET /v1/tables"))["tables"]]
    return {
        "deeds": [text for _, text in DEEDS],
        "rows": [
            TableRights(table=name, may=tuple(view.may(route, name) for route, _ in DEEDS))
            for name in tables[:TABLES_SHOWN_MAX]
        ],
        "left_out": max(0, len(tables) - TABLES_SHOWN_MAX),
        "service": [(text, view.may(route)) for route, text in SERVICE_DEEDS],
    }


# ------------------------------------------------------------------------------------------- Search


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Something that a search has found."""

    kind: str
    name: str
    href: str
    detail: str = ""


SEARCH_MIN = 2
"""Characters that a search for ids needs."""
HITS_MAX = 50
IDS_READ = 200
"""Attempts and requests that are searched in each table."""


def table_hits(text: str, tables: Sequence[api.Table]) -> list[Hit]:
    """Return the tables whose name contains a text, those that begin with it first."""
    names = [table for table in tables if text in table.name or text == table.id]
    ordered = sorted(names, key=lambda table: (not table.name.startswith(text), table.name))
    return [
        Hit(
            kind="table",
            name=table.name,
            href=address_of(TABLE, {"table": table.name}),
            detail=table.location,
        )
        for table in ordered
    ]


def job_hits(text: str, jobs: Sequence[api.Job], queued: Sequence[api.PlannedJob]) -> list[Hit]:
    """Return the running and queued jobs whose id, attempt or tablet begins with a text."""
    hits = [
        Hit(
            kind="running job",
            name=job.id,
            href=address_of(TABLET, {"table": job.table, "tablet": job.tablet}),
            detail=f"attempt {job.attempt} on {job.compactor}, table {job.table}",
        )
        for job in jobs
        if _begins(text, job.id, job.attempt, job.tablet)
    ]
    return hits + [
        Hit(
            kind="queued job",
            name=job.id or "",
            href=address_of(TABLET, {"table": job.table, "tablet": job.tablet}),
            detail=f"group {job.group}, table {job.table}",
        )
        for job in queued
        if _begins(text, job.id or "", job.tablet)
    ]


def attempt_hits(text: str, table: str, attempts: Sequence[api.Finished]) -> list[Hit]:
    """Return the finished attempts of a table whose id or job begins with a text."""
    return [
        Hit(
            kind="finished attempt",
            name=attempt.attempt,
            href=address_of(HISTORY, query={"table": table, "attempt": attempt.attempt}),
            detail=f"{attempt.end} in table {table}",
        )
        for attempt in attempts
        if _begins(text, attempt.attempt, attempt.job)
    ]


def _begins(text: str, *names: str) -> bool:
    return any(name.startswith(text) for name in names)


@page("/console/search", "search.html", of="GET /v1/tables", title="Search", live=False)
async def search_page(view: View) -> Variables:
    """Find tables, tablets, jobs, attempts and requests by name or by the beginning of an id."""
    text = view.text("q").strip()
    if not text:
        return {"q": "", "hits": (), "left_out": 0}
    tables = (await view.read("GET /v1/tables"))["tables"]
    hits = table_hits(text, tables)
    left_out = 0
    if len(text) >= SEARCH_MIN:
        jobs = await view.maybe("GET /v1/jobs")
        queued = await view.maybe("GET /v1/queue", count=QUEUED_READ)
        hits += job_hits(
            text, () if jobs is None else jobs["jobs"], () if queued is None else queued["jobs"]
        )
        names, left_out = await recent_tables(view)
        for name in names:
            hits += await _hits_of_table(view, name, text)
    return {"q": text, "hits": hits[:HITS_MAX], "left_out": left_out}


async def _hits_of_table(view: View, table: str, text: str) -> list[Hit]:
    """Return the tablets, requests and finished attempts of a table."""
    hits = []
    listed = await view.maybe("GET /v1/tables/{table}/compactions", table=table, count=IDS_READ)
    for request in () if listed is None else listed["requests"]:
        if request.id.startswith(text):
            path = {"table": table, "request": request.id}
            href = address_of(REQUEST, path)
            detail = f"{request.state} in table {table}"
            hits.append(Hit(kind="request", name=request.id, href=href, detail=detail))
    hits += attempt_hits(text, table, await finished_attempts(view, table, IDS_READ) or ())
    tablet = await _tablet(view, table, text)
    if tablet:
        href = address_of(TABLET, {"table": table, "tablet": tablet})
        hits.append(Hit(kind="tablet", name=tablet, href=href, detail=f"table {table}"))
    return hits


async def _tablet(view: View, table: str, text: str) -> str:
    """Return the only tablet of a table whose id begins with a text; empty: there is none."""
    if text != "last" and not set(text.lower()) <= set("0123456789abcdef"):
        return ""
    try:
        page_of_one: api.TabletPage = await view.read(
            "GET /v1/tables/{table}/tablets", table=table, tablet=text
        )
    except CompactionError:  # None, or several begin with the text.
        return ""
    return next((tablet.tablet for tablet in page_of_one.tablets), "")
