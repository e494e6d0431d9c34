"""The views of jobs: queues in the order of starts, running jobs, and the history."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.model.job import CLASS_WIDTH, PriorityClass, class_of
from common.model.outcome import AttemptEnd
from common.units import format_bytes, format_duration
from neve import api
from neve.console.frame import Heading, Variables, View, address_of, listing, page
from neve.console.pages.figures import TimelineSpan, timeline

QUEUED_READ = 1000
TABLES_READ_MAX = 20
"""Tables whose history is read for one page."""
HOUR_S = 3600.0
ATTEMPTS_READ, ATTEMPTS_OF_TABLE_MIN = 1000, 50
"""Attempts that are read for one page, and at least of each of its tables."""

# ------------------------------------------------------------------------------------------- Queues

CLASS_WORDS: Mapping[PriorityClass, str] = {
    PriorityClass.SYSTEM: "maintenance",
    PriorityClass.USER: "request",
    PriorityClass.OVER_LIMIT: "tablet over its limit of files",
    PriorityClass.URGENT: "urgent request",
}


def why_priority(job: api.PlannedJob) -> str:
    """Return in words where the priority of a job comes from."""
    if job.action == "analyze":
        return "a count of live bytes: after all other jobs"
    class_ = class_of(job.priority)
    points = job.priority - class_ * CLASS_WIDTH
    return f"{CLASS_WORDS[class_]}, {points:,} points in its class: {job.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """A group with its jobs in the order in which they will start; paused jobs follow."""

    group: str
    counts: api.Group | None
    """None: the caller may not see the group's counts."""
    jobs: tuple[api.PlannedJob, ...]


def group_queues(
    jobs: Sequence[api.PlannedJob], groups: Sequence[api.Group] | None, chosen: str
) -> list[GroupQueue]:
    """Return the queues of all groups, or of one, in alphabetical order.

    Args:
        jobs: Queued jobs of each group in their order of starts, then paused ones.
        groups: Counts of the groups; None: the caller may not see them.
        chosen: Name of the only group to return; empty: all.
    """
    counts = {group.group: group for group in groups or ()}
    names = sorted({*counts, *(job.group for job in jobs)})
    return [
        GroupQueue(
            group=name,
            counts=counts.get(name),
            jobs=tuple(job for job in jobs if job.group == name),
        )
        for name in names
        if chosen in ("", name)
    ]


def with_text(text: str, jobs: Iterable[api.PlannedJob]) -> list[api.PlannedJob]:
    """Return the jobs whose table, tablet or id begins with or contains a text."""
    return [
        job
        for job in jobs
        if text in job.table or job.tablet.startswith(text) or (job.id or "").startswith(text)
    ]


@page("/console/queues", "queue.html", of="GET /v1/queue", title="Queues", nav="Queues")
async def queue_page(view: View) -> Variables:
    """Read the queues."""
    group, text = view.text("group"), view.text("q").strip()
    listed = await view.maybe("GET /v1/queue", count=QUEUED_READ)
    groups = await view.maybe("GET /v1/groups")
    jobs = () if listed is None else with_text(text, listed["jobs"])
    return {
        "queues": group_queues(jobs, None if groups is None else groups["groups"], group),
        "group": group,
        "q": text,
        "read_max": QUEUED_READ,
        "why_priority": why_priority,
        "answered": listed is not None,
    }


# ------------------------------------------------------------------------------------- Running jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRow:
    """A running job with its rate and its estimated end."""

    job: api.Job
    elapsed_s: float
    rate_bytes_s: float | None
    """Bytes read and written per second; None: the job has moved none."""
    eta_s: float | None
    """Estimated time left; None: there is no estimate."""
    node: str
    memory: str
    throttle: str
    """How the job is throttled, in words; empty: it is not."""


FRACTION_MIN = 0.02
"""Progress below which an estimate of the end would say little."""


def running_row(job: api.Job, compactors: Mapping[str, api.Compactor], now_s: float) -> RunningRow:
    """Return the row of a running job.

    Args:
        job: The job.
        compactors: Compactors by name; empty: the caller may not see them.
        now_s: The current time.
    """
    elapsed_s = max(0.0, now_s - job.since_s)
    compactor = compactors.get(job.compactor)
    left = (1 - job.fraction) / job.fraction if job.fraction >= FRACTION_MIN else None
    throttle = ""
    if job.granted_bytes_s is not None:
        throttle = f"granted {format_bytes(job.granted_bytes_s)}/s"
        if job.waited_s:
            throttle += f", waited {format_duration(job.waited_s)}"
    return RunningRow(
        job=job,
        elapsed_s=elapsed_s,
        rate_bytes_s=job.moved_bytes / elapsed_s if job.moved_bytes and elapsed_s else None,
        eta_s=None if left is None else elapsed_s * left,
        node="" if compactor is None else compactor.node,
        memory="" if compactor is None else compactor.task_memory,
        throttle=throttle,
    )


async def compactors_by_name(view: View) -> dict[str, api.Compactor]:
    """Return the compactors that the caller may see, by name."""
    listed = await view.maybe("GET /v1/compactors")
    return {} if listed is None else {entry.compactor: entry for entry in listed["compactors"]}


HISTORY = "/console/history"


def job_spans(
    jobs: Sequence[api.Job], finished: Mapping[str, Sequence[api.Finished]], now_s: float
) -> list[TimelineSpan]:
    """Return the spans of running jobs and of finished attempts, in a lane for each compactor.

    Args:
        jobs: The running jobs.
        finished: Table → finished attempts.
        now_s: The current time.
    """
    spans = [
        TimelineSpan(
            lane=job.compactor,
            start_s=job.since_s,
            end_s=now_s,
            kind="running",
            title=f"{job.table}: {job.inputs} files, {job.state or 'running'}, {job.fraction:.0%}",
            href=address_of(HISTORY, query={"table": job.table}),
        )
        for job in jobs
    ]
    for table, attempts in finished.items():
        spans += [
            TimelineSpan(
                lane=attempt.compactor or "no compactor",
                start_s=attempt.started_s,
                end_s=attempt.ended_s,
                kind=attempt.end,
                title=(
                    f"{table}: {attempt.end} after"
                    f" {format_duration(max(0.0, attempt.ended_s - attempt.started_s))},"
                    f" {format_bytes(attempt.bytes_in)} to {format_bytes(attempt.bytes_out)}"
                ),
                href=address_of(HISTORY, query={"table": table, "attempt": attempt.attempt}),
            )
            for attempt in attempts
        ]
    return spans


async def recent_tables(view: View, chosen: str = "") -> tuple[list[str], int]:
    """Return the tables whose history a page reads, busy ones first, and how many it leaves out.

    Args:
        view: The visit.
        chosen: Name of the only table; empty: all that the caller may see.
    """
    if chosen:
        return [chosen], 0
    tables = [table.name for table in (await view.read("GET /v1/tables"))["tables"]]
    activity = await view.maybe("GET /v1/activity")
    busy = [] if activity is None else [entry.table for entry in activity["tables"]]
    names = list(dict.fromkeys([name for name in busy if name in set(tables)] + tables))
    return names[:TABLES_READ_MAX], max(0, len(names) - TABLES_READ_MAX)


@page("/console/running", "running.html", of="GET /v1/jobs", title="Running jobs", nav="Running")
async def running_page(view: View) -> Variables:
    """Read the running jobs, and the attempts of the last hour."""
    listed = await view.maybe("GET /v1/jobs")
    jobs: Sequence[api.Job] = () if listed is None else listed["jobs"]
    compactors = await compactors_by_name(view)
    tables, left_out = await recent_tables(view)
    count = attempts_of_table(tables)
    finished = {table: await finished_attempts(view, table, count) or () for table in tables}
    spans = job_spans(jobs, finished, view.now_s)
    return {
        "answered": listed is not None,
        "rows": [running_row(job, compactors, view.now_s) for job in jobs],
        "timeline": timeline(spans, view.now_s - HOUR_S, view.now_s),
        "left_out": left_out,
    }


def attempts_of_table(tables: Sequence[str]) -> int:
    """Return how many attempts are read of each of some tables."""
    return max(ATTEMPTS_OF_TABLE_MIN, ATTEMPTS_READ // max(1, len(tables)))


async def finished_attempts(view: View, table: str, count: int) -> Sequence[api.Finished] | None:
    """Return the newest finished attempts of a table; None: the store is silent."""
    history = await view.maybe("GET /v1/tables/{table}/history", table=table, count=count)
    return None if history is None else history["attempts"]


# ------------------------------------------------------------------------------------------ History


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRow:
    """A finished attempt of a table."""

    table: str
    attempt: api.Finished
    elapsed_s: float
    node: str
    """Node of its compactor, if the compactor still runs."""
    logs: tuple[str, ...]
    """Names of the log files of its compactor."""
    estimates: tuple[tuple[str, str, str], ...]
    """What was estimated, the estimate, and the result."""


def log_names(compactor: str) -> tuple[str, ...]:
    """Return the log files in which a compactor and its Spark driver write."""
    return (f"compactor-{compactor}.log", f"driver-{compactor}.log") if compactor else ()


def finished_row(
    table: str, attempt: api.Finished, compactors: Mapping[str, api.Compactor]
) -> FinishedRow:
    """Return the row of a finished attempt."""
    compactor = compactors.get(attempt.compactor)
    elapsed_s = max(0.0, attempt.ended_s - attempt.started_s)
    estimates = []
    is_committed = attempt.end == AttemptEnd.COMMITTED
    if is_committed and attempt.expected_files:
        estimates.append(
            ("bytes", format_bytes(attempt.expected_bytes), format_bytes(attempt.bytes_out))
        )
        estimates.append(("files", f"{attempt.expected_files:,}", f"{len(attempt.outputs):,}"))
        estimates.append(("files fewer to read", f"{attempt.expected_gain:,}", f"{attempt.gain:,}"))
    if is_committed and attempt.expected_s:
        estimates.append(("time", format_duration(attempt.expected_s), format_duration(elapsed_s)))
    return FinishedRow(
        table=table,
        attempt=attempt,
        elapsed_s=elapsed_s,
        node="" if compactor is None else compactor.node,
        logs=log_names(attempt.compactor),
        estimates=tuple(estimates),
    )


HEADINGS = (
    Heading("ended", "Ended", lambda row: row.attempt.ended_s),
    Heading("table", "Table", lambda row: row.table, number=False),
    Heading("result", "Result", lambda row: row.attempt.end, number=False),
    Heading("in", "Read", lambda row: row.attempt.bytes_in),
    Heading("out", "Written", lambda row: row.attempt.bytes_out),
    Heading("took", "Took", lambda row: row.elapsed_s),
)
ENDS = tuple(end.value for end in AttemptEnd)


def matches(row: FinishedRow, end: str, text: str) -> bool:
    """Return whether a row passes the filter of the history."""
    attempt = row.attempt
    if end and attempt.end != end:
        return False
    ids = (attempt.attempt, attempt.job, attempt.tablet, attempt.compactor)
    return not text or any(value.startswith(text) for value in ids)


@page(HISTORY, "history.html", of="GET /v1/tables", title="History", nav="History")
async def history_page(view: View) -> Variables:
    """Read finished attempts of one table, or the last ones of all tables."""
    chosen, end, text = view.text("table"), view.text("end"), view.text("q").strip()
    only = view.text("attempt")
    tables, left_out = await recent_tables(view, chosen)
    compactors = await compactors_by_name(view)
    count = attempts_of_table(tables)
    rows = [
        finished_row(table, attempt, compactors)
        for table in tables
        for attempt in await finished_attempts(view, table, count) or ()
    ]
    shown = [row for row in rows if matches(row, end, text or only)]
    return {
        "listed": listing(view, HEADINGS, shown),
        "table": chosen,
        "end": end,
        "ends": ENDS,
        "q": text,
        "attempt": only,
        "left_out": left_out,
        "any": bool(rows),
    }
