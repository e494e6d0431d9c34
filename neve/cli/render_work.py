"""Jobs, plans, compactors and the service as tables for people."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import RenderableType

from common.units import format_bytes, format_duration
from neve import api_work
from neve.cli.render import RIGHT, facts, grid, lines, short

NOW_MAX_S = 5.0
"""Heartbeats come every few seconds: progress seen at the last one is as new as can be."""


def status(found: api_work.Status) -> RenderableType:
    """Return the service as a whole."""
    return lines(
        facts(
            [
                ("coordinator", f"up for {format_duration(max(found.now_s - found.started_s, 0))}"),
                ("tables", found.tables),
                ("tablets", f"{found.tablets_known:,}"),
                ("committed", f"{found.committed:,} jobs"),
                ("failed", f"{found.failed:,} jobs"),
                ("released", f"{found.released:,} reservations"),
                ("quarantined", f"{found.quarantined:,} tablets"),
                *(("error", each) for each in found.errors),
                *(("note", each) for each in found.warnings),
                *(("store", each) for each in found.store_warnings),
            ]
        ),
        "",
        groups(found.groups),
        "",
        compactors(found.compactors),
    )


def groups(found: Sequence[api_work.Group]) -> RenderableType:
    """Return a listing of compaction groups."""
    return grid(
        [
            ("GROUP", ""),
            ("QUEUED", RIGHT),
            ("BYTES", RIGHT),
            ("OLDEST", RIGHT),
            ("RUNNING", RIGHT),
            ("COMPACTORS", RIGHT),
            ("SHED", RIGHT),
            ("STATE", ""),
        ],
        [
            (
                each.group,
                each.queued,
                format_bytes(each.queued_cost_bytes),
                format_duration(each.oldest_age_s) if each.queued else None,
                each.running,
                each.compactors,
                each.rejected + each.evicted,
                _group_state(each),
            )
            for each in found
        ],
    )


def compactors(found: Sequence[api_work.Compactor]) -> RenderableType:
    """Return a listing of compactors."""
    return grid(
        [
            ("COMPACTOR", ""),
            ("GROUP", ""),
            ("NODE", ""),
            ("BUSY", RIGHT),
            ("HEARD", RIGHT),
            ("STATE", ""),
        ],
        [
            (
                each.compactor,
                each.group,
                short(each.node),
                f"{each.busy}/{each.slots}",
                f"{format_duration(each.heard_ago_s)} ago",
                _compactor_state(each),
            )
            for each in found
        ],
    )


def jobs(found: Sequence[api_work.Job], now_s: float) -> RenderableType:
    """Return a listing of running jobs."""
    return grid(
        [
            ("ATTEMPT", ""),
            ("TABLE", ""),
            ("TABLET", ""),
            ("KIND", ""),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("COMPACTOR", ""),
            ("SINCE", RIGHT),
            ("PROGRESS", RIGHT),
            ("STATE", ""),
        ],
        [
            (
                each.attempt,
                each.table,
                short(each.tablet),
                each.kind,
                each.inputs,
                format_bytes(each.input_bytes),
                each.compactor,
                format_duration(max(now_s - each.since_s, 0)),
                _ago(each.quiet_s),
                _job_state(each),
            )
            for each in found
        ],
    )


def queue(found: Sequence[api_work.PlannedJob]) -> RenderableType:
    """Return a listing of queued jobs."""
    return grid(
        [
            ("PLACE", RIGHT),
            ("TABLE", ""),
            ("TABLET", ""),
            ("GROUP", ""),
            ("PRIORITY", RIGHT),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("AGE", RIGHT),
            ("REASON", ""),
        ],
        [
            (
                each.place,
                each.table,
                short(each.tablet),
                each.group,
                each.priority,
                len(each.files),
                format_bytes(each.input_bytes),
                None if each.age_s is None else format_duration(each.age_s),
                each.reason,
            )
            for each in found
        ],
    )


def plan(found: api_work.Plan) -> RenderableType:
    """Return what would be planned, and why files are left."""
    planned = grid(
        [
            ("TABLET", ""),
            ("KIND", ""),
            ("GROUP", ""),
            ("PRIORITY", RIGHT),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("REASON", ""),
        ],
        [
            (
                short(each.tablet),
                each.kind,
                each.group,
                each.priority,
                len(each.files),
                format_bytes(each.input_bytes),
                each.reason,
            )
            for each in found.jobs
        ],
    )
    if not found.left:
        return planned
    left = grid([("LEFT", ""), ("WHY", "")], sorted(found.left.items()))
    return lines(planned, "", left)


def explanations(found: Sequence[api_work.Explanation]) -> RenderableType:
    """Return why tablets are as they are, one paragraph a tablet."""
    parts: list[RenderableType | str] = []
    for each in found:
        parts += [f"tablet {each.tablet} of {each.table}"]
        parts += [f"  {sentence}" for sentence in each.sentences]
        parts += [f"  left: {path}: {why}" for path, why in sorted(each.left.items())]
    return lines(*(parts or ["none"]))


def history(found: Sequence[api_work.Finished]) -> RenderableType:
    """Return a listing of finished attempts."""
    return grid(
        [
            ("ENDED (UTC)", ""),
            ("TABLET", ""),
            ("END", ""),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("ROWS", RIGHT),
            ("TOOK", RIGHT),
            ("WHY", ""),
        ],
        [
            (
                datetime.fromtimestamp(each.ended_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                short(each.tablet),
                each.end,
                f"{len(each.inputs)} → {len(each.outputs)}",
                f"{format_bytes(each.bytes_in)} → {format_bytes(each.bytes_out)}",
                f"{each.rows_in:,} → {each.rows_out:,}",
                format_duration(max(each.ended_s - each.started_s, 0)),
                each.cause or each.reason,
            )
            for each in found
        ],
    )


def _group_state(group: api_work.Group) -> str:
    if group.paused:
        return "paused"
    if not group.compactors:
        return "no compactor"
    return "working" if group.running else "idle"


def _ago(quiet_s: float) -> str:
    return "now" if quiet_s < NOW_MAX_S else f"{format_duration(quiet_s)} ago"


def _job_state(job: api_work.Job) -> str:
    if not job.state:
        return "assigned"
    throttled = ""
    if job.throttled and job.granted_bytes_s is not None:
        throttled = f", throttled to {format_bytes(job.granted_bytes_s)}/s"
    return f"{job.state} {job.fraction:.0%}{throttled}"


def _compactor_state(compactor: api_work.Compactor) -> str:
    if compactor.draining:
        return "draining"
    if compactor.backing_off_s > 0:
        return f"backing off for {format_duration(compactor.backing_off_s)}"
    return "working" if compactor.busy else "idle"
