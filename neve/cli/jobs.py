"""`neve jobs`, `neve job …`, `neve activity`, `neve history`, `neve report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from common.errors import RequestError
from common.runtime import SystemClock
from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.cli.render import RIGHT, WHOLE, TabletKeys, grid, shortened, time_text
from neve.cli.session import Count, Every, Name, Panel, Session, Watch, verb

QUIET_MIN_S = 5.0
"""Shorter silences are normal, because heartbeats arrive every few seconds."""


def render_jobs(
    running: Sequence[api.Job], now_s: float, keys: TabletKeys, *, verbose: bool = False
) -> RenderableType:
    """Render a list of running jobs; `verbose` prints whole ids and the inputs of each job."""
    inputs = [("INPUTS", "")] if verbose else []
    return grid(
        [
            ("ATTEMPT", WHOLE),
            ("TABLE", ""),
            ("TABLET", ""),
            ("KIND", ""),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("COMPACTOR", ""),
            ("SINCE", RIGHT),
            ("STATE", ""),
            *inputs,
        ],
        [
            (
                job.attempt,
                shortened(job.table),
                shortened(keys(job.table, job.tablet)),
                job.kind,
                job.inputs,
                format_bytes(job.input_bytes),
                job.compactor,
                format_duration(max(now_s - job.since_s, 0)),
                _job_state(job),
                *((" ".join(job.files),) if verbose else ()),
            )
            for job in running
        ],
        whole_ids=verbose,
    )


def render_activity(tables: Sequence[api.TableActivity]) -> RenderableType:
    """Render the queued and running jobs of each table."""
    return grid(
        [
            ("TABLE", ""),
            ("QUEUED", RIGHT),
            ("SIZE", RIGHT),
            ("OLDEST", RIGHT),
            ("RUNNING", RIGHT),
            ("SIZE", RIGHT),
            ("COMPACTORS", RIGHT),
        ],
        [
            (
                shortened(table.table),
                table.queued,
                format_bytes(table.queued_bytes),
                format_duration(table.oldest_s) if table.queued else None,
                table.running,
                format_bytes(table.running_bytes),
                table.compactors,
            )
            for table in tables
        ],
    )


def render_history(
    attempts: Sequence[api.Finished], table: str, keys: TabletKeys
) -> RenderableType:
    """Render the finished attempts of a table. `keys` maps tablets to their keys."""
    estimated = any(finished.expected_files for finished in attempts)
    return grid(
        [
            ("ENDED (UTC)", WHOLE),
            ("TABLET", ""),
            ("END", ""),
            ("FILES", RIGHT),
            ("SIZE", ""),
            ("ROWS", ""),
            ("TOOK", RIGHT),
            *([("EXPECTED", "")] if estimated else []),
            ("WHY", ""),
        ],
        [
            (
                time_text(finished.ended_s),
                shortened(keys(table, finished.tablet)),
                finished.end,
                f"{len(finished.inputs)} → {len(finished.outputs)}",
                f"{format_bytes(finished.bytes_in)} → {format_bytes(finished.bytes_out)}",
                f"{finished.rows_in:,} → {finished.rows_out:,}",
                format_duration(max(finished.ended_s - finished.started_s, 0)),
                *([_estimates(finished)] if estimated else []),
                finished.cause or finished.reason,
            )
            for finished in attempts
        ],
    )


def _estimates(finished: api.Finished) -> str | None:
    """Return the estimates of a finished job; None: it has none."""
    if not finished.expected_files:
        return None
    took = [format_duration(finished.expected_s)] if finished.expected_s else []
    files = format_count(finished.expected_files, "file")
    return ", ".join([files, format_bytes(finished.expected_bytes), *took])


def _job_state(job: api.Job) -> str:
    parts = [f"{job.state} {job.fraction:.0%}" if job.state else "assigned"]
    if job.throttled and job.granted_bytes_s is not None:
        parts.append(f"throttled to {format_bytes(job.granted_bytes_s)}/s")
    if job.quiet_s >= QUIET_MIN_S:
        parts.append(f"no progress for {format_duration(job.quiet_s)}")
    return ", ".join(parts)


@verb("jobs", Panel.SEE, "neve jobs")
def jobs(
    session: Session,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show whole ids, and the names of the inputs.")
    ] = False,
) -> None:
    """List the running jobs."""
    now_s = SystemClock().now_s()
    session.show(
        session.client.jobs(),
        lambda running: render_jobs(running, now_s, session.keys, verbose=verbose),
    )


@verb("activity", Panel.SEE, "neve activity --watch")
def activity(session: Session, *, watch: Watch = False, every: Every = 5.0) -> None:
    """List the tables with queued or running jobs, most bytes first."""
    session.show_or_watch(session.client.activity, render_activity, watch=watch, every_s=every)


@verb("history", Panel.SEE, "neve history users --count 5")
def history(session: Session, name: Name, count: Count = 20) -> None:
    """List the newest finished attempts of a table."""
    session.show(
        session.client.history(name, count),
        lambda attempts: render_history(attempts, name, session.keys),
    )


# ----------------------------------------------------------------------------------- neve report


@verb("report", Panel.SEE, "neve report users --days 30 --output users.html")
def report(
    session: Session,
    name: Name,
    *,
    days: Annotated[
        int, typer.Option(help="Days up to today, in UTC; 400 are kept.", min=1, max=400)
    ] = 7,
    output: Annotated[
        Path | None, typer.Option(help="File to write; by default NAME-report.html.")
    ] = None,
) -> None:
    """Write what compaction did for a table, what it cost and what reads gained, as one HTML file.

    The page needs no network and no scripts. It names the days that it covers, and settings that
    may be worth a change. With gateway.compactor_hour_price it has prices. --json prints the daily
    sums instead.
    """
    client = session.client
    sums = client.days(name, days)
    if session.as_json and output is None:
        session.show(sums, str)
        return
    # Imported here so that other verbs start without the charts.
    from neve.table_report import ReportFacts, as_page, span_text

    facts = ReportFacts(table=client.describe(name), days=sums, count=days)
    path = output or Path(f"{name}-report.html")
    try:
        path.write_text(as_page(facts), "utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error}") from error
    session.show({"written": str(path)}, f"wrote {path}: {span_text(facts)}")


# -------------------------------------------------------------------------------------- neve job …


JobId = Annotated[str, typer.Argument(help="Id of the job; `neve queue` shows it.", metavar="JOB")]


@verb("job cancel", Panel.COMPACTIONS, "neve job cancel att-9af9e225e9ccdbb05650")
def cancel_job(
    session: Session,
    job: Annotated[
        str,
        typer.Argument(
            help="Id of the attempt (`neve jobs` shows it) or of the queued job (`neve queue`).",
            metavar="JOB",
        ),
    ],
) -> None:
    """Cancel a running or queued job. Its files are not planned again for a while.

    If a running job belongs to a request, the request skips its tablet and ends as `done_in_part`.
    A queued job of a request is planned again later.
    """
    client = session.client
    running = [
        entry
        for entry in client.jobs()
        if entry.attempt.startswith(job) or entry.id.startswith(job)
    ]
    if not running and job.startswith("job-"):
        client.cancel_queued_job(job)
        session.show({"cancelled": job}, f"cancelled {job}")
        return
    client.cancel_job(job)
    of_request = any(entry.kind == "USER" for entry in running)
    text = "; its request skips this tablet and will end as done_in_part" if of_request else ""
    session.show({"cancelled": job}, f"cancelling {job}{text}")


@verb("job pause", Panel.COMPACTIONS, "neve job pause job-1c9f0be2f3d4a5b6c7d8")
def pause_job(session: Session, job: JobId) -> None:
    """Pause a queued job, until it is resumed or one of its files is replaced."""
    session.client.pause_job(job)
    session.show({"paused": job}, f"paused {job}; `neve job resume {job}` queues it again")


@verb("job resume", Panel.COMPACTIONS, "neve job resume job-1c9f0be2f3d4a5b6c7d8")
def resume_job(session: Session, job: JobId) -> None:
    """Queue a paused job again."""
    session.client.resume_job(job)
    session.show({"resumed": job}, f"resumed {job}")
