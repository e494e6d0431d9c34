"""`neve compact`, `neve request …`: start compactions and follow them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from common.units import format_bytes, format_count, format_duration, parse_duration_s
from neve import api
from neve.cli.render import RIGHT, WHOLE, facts, grid, lines, range_text, shortened, time_text
from neve.cli.session import Name, Panel, Session, WholeIds, name_values, verb
from neve.client.errors import CallerError
from neve.client.requests import PLUGIN_FORM as PLUGIN
from neve.client.requests import Request, sentence

# ------------------------------------------------------------------------------ Requests for people


NOT_COUNTED = "not counted"


def render_requests(listed: Sequence[api.Request], *, verbose: bool = False) -> RenderableType:
    """Render a list of requests; `verbose` prints whole ids."""
    return grid(
        [
            ("REQUEST", WHOLE),
            ("TABLE", ""),
            ("ASKED (UTC)", ""),
            ("STATE", ""),
            ("TOOK", RIGHT),
            ("KEYS", ""),
            ("WHAT", ""),
        ],
        [
            (
                request.id,
                request.table,
                time_text(request.submitted_at_s),
                request.state + (f": {request.cause}" if request.cause else ""),
                None
                if request.ended_at_s is None
                else _duration_text(request.submitted_at_s, request.ended_at_s),
                _keys_text(request.keys),
                request.transform or "compact",
            )
            for request in listed
        ],
        whole_ids=verbose,
    )


def render_request(request: api.Request) -> RenderableType:
    """Render a request with its progress."""
    rows = facts(
        [
            ("request", request.id),
            ("table", request.table),
            ("state", request.state + (f": {request.cause}" if request.cause else "")),
            ("keys", _keys_text(request.keys)),
            ("selector", _plugin_text(request.selector)),
            ("transform", request.transform or None),
            *_wanted_facts(request),
            *((("cancelled"), keys.text) for keys in request.cancelled),
            ("requested", f"{time_text(request.submitted_at_s)} UTC"),
            *_progress_facts(request),
            *_result_facts(request),
            *(("note", note) for note in request.notes),
        ]
    )
    if not request.tablets:
        return rows
    return lines(rows, "", _tablet_grid(request.tablets))


def render_dry_run(run: api.DryRun) -> RenderableType:
    """Render the files that a request would compact."""
    transform = [("transform", run.transform), ("rows touched", NOT_COUNTED)]
    touched = transform if run.transform else []
    summary = facts(
        [
            ("table", run.table),
            ("tablets", f"{run.tablets:,}"),
            ("files", f"{run.files:,}"),
            ("size", format_bytes(run.size_bytes)),
            ("rows", f"{run.rows:,}"),
            ("rows in range", _row_count_text(run.rows_in_range)),
            *touched,
            *(("note", note) for note in run.notes),
        ]
    )
    if not run.per_tablet:
        return summary
    columns = [
        ("TABLET", ""),
        ("FILES", RIGHT),
        ("SIZE", RIGHT),
        ("ROWS", RIGHT),
        ("IN RANGE", RIGHT),
        ("NOW", ""),
    ]
    rows = [
        (
            _tablet_text(tablet),
            tablet.files,
            format_bytes(tablet.size_bytes),
            f"{tablet.rows:,}",
            _row_count_text(tablet.rows_in_range),
            "busy: the request would wait" if tablet.held else "free",
        )
        for tablet in run.per_tablet
    ]
    return lines(summary, "", grid(columns, rows))


def _tablet_grid(tablets: Sequence[api.RequestTablet]) -> RenderableType:
    return grid(
        [
            ("TABLET", ""),
            ("STATE", ""),
            ("FILES LEFT", RIGHT),
            ("BYTES LEFT", RIGHT),
            ("RUNNING", RIGHT),
            ("WHY", ""),
        ],
        [
            (
                _tablet_text(tablet),
                tablet.state,
                tablet.files_left,
                format_bytes(tablet.bytes_left),
                tablet.running,
                tablet.reason,
            )
            for tablet in tablets
        ],
    )


def _tablet_text(tablet: api.RequestTablet | api.DryTablet) -> str:
    end = None if tablet.end is None else shortened(tablet.end)
    return range_text(None, end, tablet.partition)


def _wanted_facts(request: api.Request) -> list[tuple[str, str]]:
    output = request.output or api.Output()
    output_facts = {
        "codec": output.codec,
        "codec_level": output.codec_level,
        "row groups": None
        if not isinstance(output.row_group_bytes, int)
        else format_bytes(output.row_group_bytes),
        "hints": ", ".join(f"{name}={value}" for name, value in request.hints.items()) or None,
        "boost": request.boost or None,
        "deadline": None
        if request.deadline_at_s is None
        else f"{time_text(request.deadline_at_s)} UTC",
    }
    return [(name, str(value)) for name, value in output_facts.items() if value is not None]


def _progress_facts(request: api.Request) -> list[tuple[str, str]]:
    progress = request.progress
    if request.ended_at_s is not None:
        return [("took", _duration_text(request.submitted_at_s, request.ended_at_s))]
    if progress is None:
        return []
    files = format_count(progress.files_left, "selected file")
    left = f"{format_bytes(progress.bytes_left)} in {files}"
    return [("progress", f"{progress.fraction:.0%} · {sentence(request)}"), ("left", left)]


def _result_facts(request: api.Request) -> list[tuple[str, str]]:
    """Return the results of a request, or nothing if the history has none of its jobs."""
    result = request.result
    if result is not None and not result.jobs and result.complete and request.state == "done":
        return [("result", "nothing to do: no file needs rewriting")]
    if result is None or not result.jobs:
        return []
    part = "" if result.complete else " (the history does not reach back to its first job)"
    dropped = {
        "changed": result.changed,
        "superseded": result.superseded,
        "expired": result.expired,
        "deleted": result.deleted,
        "tombstones dropped": result.tombstones_dropped,
    }
    words = ", ".join(f"{count:,} {what}" for what, count in dropped.items() if count)
    sizes = f"{format_bytes(result.bytes_before)} → {format_bytes(result.bytes_after)}"
    rows = f"{result.rows_before:,} → {result.rows_after:,}"
    return [
        ("jobs", f"{result.jobs:,}{part}"),
        ("files", f"{result.files_before:,} → {result.files_after:,}"),
        ("size", sizes),
        ("rows", rows + (f": {words}" if words else "")),
    ]


def _keys_text(keys: api.Keys | None) -> str:
    return "all" if keys is None else keys.text


def _plugin_text(plugin: api.Plugin | None) -> str | None:
    if plugin is None:
        return None
    options = ", ".join(f"{name}={value}" for name, value in plugin.options.items())
    return plugin.name + (f" ({options})" if options else "")


def _row_count_text(count: int | None) -> str:
    return NOT_COUNTED if count is None else f"{count:,}"


def _duration_text(start_s: float, end_s: float) -> str:
    return format_duration(max(end_s - start_s, 0.0))


# ------------------------------------------------------------------------------------- neve compact


KEYS_PANEL, ROWS_PANEL, OUTPUT_PANEL = "What to compact", "Rows to change", "Files to write"

Timeout = Annotated[
    str | None, typer.Option(help="With --wait: maximum time to wait, such as 30s or 10m.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Show progress until the request ends.")]
Start = Annotated[
    str | None,
    typer.Option(help="First key, inclusive; may be a prefix.", rich_help_panel=KEYS_PANEL),
]
End = Annotated[
    str | None,
    typer.Option(help="Last key, inclusive; may be a prefix.", rich_help_panel=KEYS_PANEL),
]
Selector = Annotated[
    str | None,
    typer.Option(
        help="Selector that chooses the files of each tablet.",
        metavar=PLUGIN,
        rich_help_panel=KEYS_PANEL,
    ),
]
Assignments = Annotated[
    str | None,
    typer.Option(
        "--set", help="Update columns: `a = a + 1, b = null`.", rich_help_panel=ROWS_PANEL
    ),
]
DeleteWhere = Annotated[
    str | None,
    typer.Option(help="Delete the rows that match this condition.", rich_help_panel=ROWS_PANEL),
]
RowGroup = Annotated[
    str | None,
    typer.Option(help="Size of the outputs' row groups: `64MB`.", rich_help_panel=OUTPUT_PANEL),
]
Boost = Annotated[
    int, typer.Option(help="Added to the priority of the jobs; 20000 puts them first.")
]
Transform = Annotated[
    str | None,
    typer.Option(
        help="Change rows with a transform plug-in.", metavar=PLUGIN, rich_help_panel=ROWS_PANEL
    ),
]


Deadline = Annotated[
    str | None, typer.Option(help="The request fails after this time, such as `10m`.")
]
CallId = Annotated[
    str | None, typer.Option(help="Id of the call; a retry with the same id has no further effect.")
]


@verb("compact", Panel.COMPACTIONS, "neve compact users --delete-where \"status = 'test'\" --wait")
def compact(
    session: Session,
    name: Name,
    *,
    start: Start = None,
    end: End = None,
    selector: Selector = None,
    delete_where: DeleteWhere = None,
    assignments: Assignments = None,
    transform: Transform = None,
    codec: Annotated[
        str | None, typer.Option(help="Codec of the outputs.", rich_help_panel=OUTPUT_PANEL)
    ] = None,
    codec_level: Annotated[
        int | None, typer.Option(help="Level of the codec.", rich_help_panel=OUTPUT_PANEL)
    ] = None,
    row_group: RowGroup = None,
    hint: Annotated[
        list[str] | None, typer.Option(help="Options of a plug-in, `name=value`; may be repeated.")
    ] = None,
    boost: Boost = 0,
    deadline: Deadline = None,
    wait: Wait = False,
    timeout: Timeout = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the files and start nothing.")
    ] = False,
    call: CallId = None,
) -> None:
    """Compact a table or a key range, optionally deleting or changing rows."""
    body: dict[str, Any] = {
        "start": start,
        "end": end,
        "selector": selector,
        "delete_where": delete_where,
        "set": assignments,
        "transform": transform,
        "codec": codec,
        "codec_level": codec_level,
        "row_group_bytes": row_group,
        "hints": name_values(hint or [], "hint"),
        "boost": boost,
        "deadline": deadline,
    }
    timeout_s = wait_max_s(timeout, wait=wait)
    if dry_run:
        session.show(session.client.dry_run(name, **body), render_dry_run)
        return
    request = session.client.compact(name, call=call, **body)
    if wait:
        session.say(f"requested as {request.id}")
        wait_for(session, request, timeout_s)
        return
    submitted = request.status(tablets=0)
    text = f"requested as {request.id}; `neve request show {name} {request.id}` shows its progress"
    session.show(submitted, text)


def wait_max_s(timeout: str | None, *, wait: bool) -> float | None:
    """Return the value of `--timeout` in seconds; None means no limit.

    Raises:
        CallerError: `--wait` is missing.
        RequestError: The value is not a duration.
    """
    if timeout is None:
        return None
    if not wait:
        raise CallerError("--timeout needs --wait")
    return parse_duration_s(timeout, "--timeout")


def wait_for(session: Session, request: Request, timeout_s: float | None) -> None:
    """Show the progress of a request until it ends, then its result.

    Args:
        session: The run of the verb.
        request: The request to wait for.
        timeout_s: Maximum time to wait; None means no limit.
    """
    try:
        ended = request.wait(progress=not session.as_json, timeout_s=timeout_s)
    except KeyboardInterrupt:
        session.say(
            f"{request.id} continues; `neve request cancel {request.table} {request.id}` cancels it"
        )
        raise
    session.show(ended, render_request)


# ------------------------------------------------------------------------------------ neve request


RequestId = Annotated[str, typer.Argument(help="Id of the request.", metavar="REQUEST")]


@verb("request list", Panel.COMPACTIONS, "neve request list users")
def list_requests(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(help="Name of the table. Default: all.", metavar="[TABLE]")
    ] = None,
    count: Annotated[int, typer.Option(help="Maximum number of requests per table.")] = 20,
    *,
    verbose: WholeIds = False,
) -> None:
    """List the requests, newest first."""
    client = session.client
    names = [table.name for table in client.tables()] if name is None else [name]
    listed = [request for table in names for request in client.requests(table, count)]
    listed.sort(key=lambda request: request.submitted_at_s, reverse=True)
    session.show(listed, lambda listed: render_requests(listed, verbose=verbose))


@verb("request show", Panel.COMPACTIONS, "neve request show users req-cc565346271b7be7 --wait")
def show_request(
    session: Session,
    name: Name,
    request: RequestId,
    *,
    tablets: Annotated[int, typer.Option(help="Maximum number of tablets.")] = 100,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Show the progress of a request, in total and per tablet."""
    handle = session.client.request(name, request)
    if wait:
        wait_for(session, handle, wait_max_s(timeout, wait=wait))
        return
    session.show(handle.status(tablets=tablets), render_request)


@verb("request cancel", Panel.COMPACTIONS, "neve request cancel users req-cc565346271b7be7")
def cancel_request(
    session: Session,
    name: Name,
    request: RequestId,
    *,
    start: Annotated[str | None, typer.Option(help="Only tablets from this key on.")] = None,
    end: Annotated[str | None, typer.Option(help="Only tablets up to this key.")] = None,
    tablet: Annotated[
        str | None, typer.Option(help="Only this tablet; `neve table tablets` shows its id.")
    ] = None,
) -> None:
    """Cancel a request, or its part in some tablets. Committed work stays."""
    cancelled = session.client.request(name, request).cancel(start=start, end=end, tablet=tablet)
    whole = start is None and end is None and tablet is None
    text = f"{request} is being cancelled" if whole else f"part of {request} is cancelled"
    session.show(cancelled, text)
