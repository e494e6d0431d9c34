"""Requests as tables for people."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import RenderableType

from common.units import format_bytes, format_duration
from neve import api_requests
from neve.cli.render import RIGHT, facts, grid, lines, short
from neve.client_progress import sentence

NOT_COUNTED = "not counted"


def requests(found: Sequence[api_requests.Request]) -> RenderableType:
    """Return a listing of requests."""
    return grid(
        [
            ("REQUEST", ""),
            ("TABLE", ""),
            ("ASKED (UTC)", ""),
            ("STATE", ""),
            ("TOOK", RIGHT),
            ("KEYS", ""),
            ("WHAT", ""),
        ],
        [
            (
                each.id,
                each.table,
                _time(each.submitted_at_s),
                each.state + (f": {each.cause}" if each.cause else ""),
                None if each.ended_at_s is None else _took(each.submitted_at_s, each.ended_at_s),
                _keys(each.keys),
                each.transform or "compact",
            )
            for each in found
        ],
    )


def request(found: api_requests.Request) -> RenderableType:
    """Return a request with how far it is."""
    told = facts(
        [
            ("request", found.id),
            ("table", found.table),
            ("state", found.state + (f": {found.cause}" if found.cause else "")),
            ("keys", _keys(found.keys)),
            ("selector", _plugin(found.selector)),
            ("transform", found.transform or None),
            *_asked(found),
            *((("cancelled"), each.text) for each in found.cancelled),
            ("asked", f"{_time(found.submitted_at_s)} UTC"),
            *_progress(found),
            *_result(found.result),
            *(("note", note) for note in found.notes),
        ]
    )
    if not found.tablets:
        return told
    return lines(told, "", _tablets(found.tablets))


def dry_run(found: api_requests.DryRun) -> RenderableType:
    """Return what a request would take."""
    transform = [("transform", found.transform), ("rows touched", NOT_COUNTED)]
    touched = transform if found.transform else []
    told = facts(
        [
            ("table", found.table),
            ("tablets", f"{found.tablets:,}"),
            ("files", f"{found.files:,}"),
            ("size", format_bytes(found.size_bytes)),
            ("rows", f"{found.rows:,}"),
            ("rows in range", _rows(found.rows_in_range)),
            *touched,
            *(("note", note) for note in found.notes),
        ]
    )
    if not found.per_tablet:
        return told
    columns = [
        ("TABLET", ""),
        ("LAST KEY", ""),
        ("FILES", RIGHT),
        ("SIZE", RIGHT),
        ("ROWS", RIGHT),
        ("IN RANGE", RIGHT),
        ("NOW", ""),
    ]
    rows = [
        (
            short(each.tablet),
            each.partition or each.end,
            each.files,
            format_bytes(each.size_bytes),
            f"{each.rows:,}",
            _rows(each.rows_in_range),
            "busy, it would wait" if each.held else "free",
        )
        for each in found.per_tablet
    ]
    return lines(told, "", grid(columns, rows))


def _tablets(found: Sequence[api_requests.RequestTablet]) -> RenderableType:
    return grid(
        [
            ("TABLET", ""),
            ("LAST KEY", ""),
            ("STATE", ""),
            ("FILES LEFT", RIGHT),
            ("BYTES LEFT", RIGHT),
            ("RUNNING", RIGHT),
            ("WHY", ""),
        ],
        [
            (
                short(each.tablet),
                each.partition or each.end,
                each.state,
                each.files_left,
                format_bytes(each.bytes_left),
                each.running,
                each.reason,
            )
            for each in found
        ],
    )


def _asked(found: api_requests.Request) -> list[tuple[str, str]]:
    output = found.output or api_requests.Output()
    wanted = {
        "codec": output.codec,
        "codec_level": output.codec_level,
        "row groups": None
        if not isinstance(output.row_group_bytes, int)
        else format_bytes(output.row_group_bytes),
        "hints": ", ".join(f"{name}={value}" for name, value in found.hints.items()) or None,
        "boost": found.boost or None,
        "deadline": None if found.deadline_at_s is None else f"{_time(found.deadline_at_s)} UTC",
    }
    return [(name, str(value)) for name, value in wanted.items() if value is not None]


def _progress(found: api_requests.Request) -> list[tuple[str, str]]:
    told = found.progress
    if found.ended_at_s is not None:
        return [("took", _took(found.submitted_at_s, found.ended_at_s))]
    if told is None:
        return []
    left = f"{format_bytes(told.bytes_left)} in {told.files_left:,} selected files"
    return [("progress", f"{told.fraction:.0%} · {sentence(found)}"), ("left", left)]


def _result(found: api_requests.Result | None) -> list[tuple[str, str]]:
    """Return what a request has done, a line each; nothing if no job of it is known."""
    if found is None or not found.jobs:
        return []
    part = "" if found.complete else " (the history does not go back to its first job)"
    dropped = {
        "changed": found.changed,
        "superseded": found.superseded,
        "expired": found.expired,
        "deleted": found.deleted,
        "tombstones dropped": found.tombstones_dropped,
    }
    words = ", ".join(f"{count:,} {what}" for what, count in dropped.items() if count)
    sizes = f"{format_bytes(found.bytes_before)} → {format_bytes(found.bytes_after)}"
    rows = f"{found.rows_before:,} → {found.rows_after:,}"
    return [
        ("jobs", f"{found.jobs:,}{part}"),
        ("files", f"{found.files_before:,} → {found.files_after:,}"),
        ("size", sizes),
        ("rows", rows + (f": {words}" if words else "")),
    ]


def _keys(keys: api_requests.Keys | None) -> str:
    return "all" if keys is None else keys.text


def _plugin(plugin: api_requests.Plugin | None) -> str | None:
    if plugin is None:
        return None
    options = ", ".join(f"{name}={value}" for name, value in plugin.options.items())
    return plugin.name + (f" ({options})" if options else "")


def _rows(count: int | None) -> str:
    return NOT_COUNTED if count is None else f"{count:,}"


def _took(start_s: float, end_s: float) -> str:
    return format_duration(max(end_s - start_s, 0.0))


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
