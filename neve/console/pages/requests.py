"""The views of compaction requests: the list, one request with its tablets, and a new one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.errors import CompactionError
from neve import api
from neve.console.frame import Crumb, Heading, Variables, View, address_of, listing, page
from neve.console.pages.jobs import recent_tables
from neve.console.pages.tables import table_crumbs

REQUESTS = "/console/requests"
REQUEST = "/console/tables/{table}/requests/{request}"
COMPACT = "/console/tables/{table}/compact"
REQUESTS_READ = 100
"""Requests that are read of each table, when the page shows several tables."""
REQUESTS_OF_TABLE_READ = 1000
TABLETS_SHOWN = 200
STATES = ("active", "cancelling", "done", "done_in_part", "cancelled", "failed")

HEADINGS = (
    Heading("submitted", "Submitted", lambda request: request.submitted_at_s),
    Heading("table", "Table", lambda request: request.table, number=False),
    Heading("state", "State", lambda request: request.state, number=False),
    Heading("took", "Took", lambda request: _elapsed_s(request)),
)


def _elapsed_s(request: api.Request) -> float | None:
    """Return the time from submission to end; None: the request has not ended."""
    return None if request.ended_at_s is None else request.ended_at_s - request.submitted_at_s


def request_matches(request: api.Request, state: str, text: str) -> bool:
    """Return whether a request passes the filter: its state, and the beginning of its id."""
    return state in ("", request.state) and request.id.startswith(text)


@page(REQUESTS, "requests.html", of="GET /v1/tables", title="Requests", nav="Requests")
async def requests_page(view: View) -> Variables:
    """Read the requests of one table, or the last ones of all tables."""
    chosen, state, text = view.text("table"), view.text("state"), view.text("q").strip()
    tables, left_out = await recent_tables(view, chosen)
    count = REQUESTS_OF_TABLE_READ if chosen else REQUESTS_READ
    requests: list[api.Request] = []
    for table in tables:
        route = "GET /v1/tables/{table}/compactions"
        answer = await view.maybe(route, table=table, count=count)
        requests += [] if answer is None else answer["requests"]
    shown = [request for request in requests if request_matches(request, state, text)]
    return {
        "listed": listing(view, HEADINGS, shown),
        "tables": tables,
        "table": chosen,
        "state": state,
        "states": STATES,
        "q": text,
        "left_out": left_out,
        "any": bool(requests),
        "elapsed_s": _elapsed_s,
    }


# ------------------------------------------------------------------------------------- One request


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressStep:
    """A part of the bar that shows in which states the tablets of a request are."""

    state: str
    tablets: int
    x: float
    """Left end, from 0 to 100."""
    width: float


def progress_steps(progress: api.Progress | None) -> tuple[ProgressStep, ...]:
    """Return the parts of the bar of a request's tablets, the finished ones first."""
    if progress is None or not progress.tablets:
        return ()
    counts = [
        ("done", progress.done),
        ("selected", progress.selected),
        ("waiting", progress.waiting),
        ("pending", progress.pending),
        ("cancelled", progress.cancelled),
    ]
    steps, left = [], 0.0
    for state, count in counts:
        width = 100 * count / progress.tablets
        if count:
            steps.append(
                ProgressStep(state=state, tablets=count, x=round(left, 2), width=round(width, 2))
            )
        left += width
    return tuple(steps)


def waits(tablets: Sequence[api.RequestTablet]) -> list[tuple[str, int]]:
    """Return what the tablets of a request wait for, with their number, the most frequent first."""
    counts: dict[str, int] = {}
    for tablet in tablets:
        if tablet.reason and tablet.state not in {"done", "cancelled"}:
            counts[tablet.reason] = counts.get(tablet.reason, 0) + 1
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def result_rows(result: api.Result | None) -> list[tuple[str, int | None, int, str]]:
    """Return the result of a request as rows: what, before, after, and unit.

    Rows that are dropped or changed have no value before.
    """
    if result is None:
        return []
    rows: list[tuple[str, int | None, int, str]] = [
        ("files", result.files_before, result.files_after, "count"),
        ("bytes", result.bytes_before, result.bytes_after, "bytes"),
        ("rows", result.rows_before, result.rows_after, "count"),
    ]
    changes = [
        ("rows changed", result.changed),
        ("rows deleted", result.deleted),
        ("rows expired", result.expired),
        ("older rows dropped", result.superseded),
        ("tombstones dropped", result.tombstones_dropped),
    ]
    return rows + [(what, None, count, "count") for what, count in changes if count]


@page(REQUEST, "request.html", of="GET /v1/tables/{table}/compactions/{request}", title="Request")
async def request_page(view: View) -> Variables:
    """Read a request with the tablets that are not done first."""
    request: api.Request = await view.read(
        "GET /v1/tables/{table}/compactions/{request}",
        table=view.path["table"],
        request=view.path["request"],
        tablets=TABLETS_SHOWN,
    )
    view.title = f"Request {request.id}"
    view.crumbs = [*table_crumbs(request.table), Crumb("Requests", address_of(REQUESTS))]
    return {
        "request": request,
        "steps": progress_steps(request.progress),
        "waits": waits(request.tablets),
        "results": result_rows(request.result),
        "elapsed_s": _elapsed_s(request),
        "tablets_shown": TABLETS_SHOWN,
    }


# ------------------------------------------------------------------------------------- New request


FIELDS = ("start", "end", "delete_where", "set", "selector", "boost", "deadline")
"""Fields of the form; those left empty are not sent."""
NUMBERS = frozenset({"boost"})


def request_body(form: Mapping[str, str]) -> dict[str, object]:
    """Return the body of a request from the fields of its form."""
    body: dict[str, object] = {}
    for name in FIELDS:
        text = form.get(name, "").strip()
        if not text:
            continue
        if name == "selector":
            body[name] = {"name": text}
        elif name in NUMBERS:
            body[name] = int(text) if text.lstrip("-").isdecimal() else text
        else:
            body[name] = text
    return body


@page(COMPACT, "compact.html", of="GET /v1/tables/{table}", title="New request", live=False)
async def compact_page(view: View) -> Variables:
    """Show the form of a request; the address may fill in its fields."""
    return await _compact(view, {name: view.text(name) for name in FIELDS}, None, "")


@page(
    COMPACT,
    "compact.html",
    of="POST /v1/tables/{table}/compactions",
    title="New request",
    method="POST",
)
async def compact_dry_run(view: View) -> Variables:
    """Report what the request of a form would select, and store nothing."""
    fields = {name: view.form.get(name, "") for name in FIELDS}
    run, problem = None, ""
    try:
        run = await view.calls.change(
            "POST /v1/tables/{table}/compactions",
            {"table": view.path["table"]},
            body={**request_body(fields), "dry_run": True},
        )
    except CompactionError as error:
        problem = str(error)
    return await _compact(view, fields, run, problem)


async def _compact(
    view: View, fields: Mapping[str, str], run: Mapping[str, object] | None, problem: str
) -> Variables:
    name = view.path["table"]
    table: api.Table = await view.read("GET /v1/tables/{table}", table=name, totals=False)
    view.title, view.crumbs = f"Compact {table.name}", table_crumbs(name)
    return {
        "table": table,
        "fields": fields,
        "run": run,
        "problem": problem,
        "body": request_body(fields),
        "changes_rows": bool(fields.get("delete_where") or fields.get("set")),
    }
