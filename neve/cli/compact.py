"""`neve compact`: ask for a compaction, wait for it if wanted."""

from typing import Annotated, Any

import typer

from neve.cli import render_requests
from neve.cli.session import Session, pairs, verb
from neve.cli.words import Name
from neve.client_errors import CallerError
from neve.client_requests import PLUGIN_FORM as PLUGIN
from neve.client_requests import Request

Timeout = Annotated[float | None, typer.Option(help="With --wait: longest wait in seconds.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show its progress until it ends.")]
Start = Annotated[str | None, typer.Option(help="First key, included; may be a prefix.")]
End = Annotated[str | None, typer.Option(help="Last key, included; may be a prefix.")]
Selector = Annotated[
    str | None, typer.Option(help="Chooses the files of each tablet.", metavar=PLUGIN)
]
Assignments = Annotated[
    str | None, typer.Option("--set", help="Change columns: `a = a + 1, b = null`.")
]
Boost = Annotated[
    int, typer.Option(help="Added to the priority of its jobs; 20000: before all others.")
]
Transform = Annotated[str | None, typer.Option(help="Change rows by a transform.", metavar=PLUGIN)]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, "compact")(compact)


def compact(
    session: Session,
    name: Name,
    *,
    start: Start = None,
    end: End = None,
    selector: Selector = None,
    delete_where: Annotated[
        str | None, typer.Option(help="Delete the rows of the range for which this is true.")
    ] = None,
    assignments: Assignments = None,
    transform: Transform = None,
    codec: Annotated[str | None, typer.Option(help="Of the outputs.")] = None,
    codec_level: Annotated[int | None, typer.Option(help="Of the outputs.")] = None,
    row_group: Annotated[
        str | None, typer.Option(help="Size of the outputs' row groups: `64MB`.")
    ] = None,
    hint: Annotated[
        list[str] | None, typer.Option(help="For plug-ins, `name=value`; may be repeated.")
    ] = None,
    boost: Boost = 0,
    deadline: Annotated[
        str | None, typer.Option(help="It fails if it takes longer: `10m`.")
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what it would take.")
    ] = False,
    call: Annotated[str | None, typer.Option(help="Id of the call, to repeat one.")] = None,
) -> None:
    """Compact a table, or a range of its keys; rows may be deleted or changed on the way."""
    wanted: dict[str, Any] = {
        "start": start,
        "end": end,
        "selector": selector,
        "delete_where": delete_where,
        "set": assignments,
        "transform": transform,
        "codec": codec,
        "codec_level": codec_level,
        "row_group_bytes": row_group,
        "hints": pairs(hint or [], "hint"),
        "boost": boost,
        "deadline": deadline,
    }
    if timeout is not None and not wait:
        raise CallerError("--timeout goes with --wait")
    if dry_run:
        found = session.client.dry_run(name, **wanted)
        session.show(found, lambda: render_requests.dry_run(found))
        return
    request = session.client.compact(name, call=call, **wanted)
    if wait:
        session.say(f"asked for {request.id}")
        wait_for(session, request, timeout)
        return
    asked = request.status(tablets=0)
    told = f"asked for {request.id}; `neve request show {name} {request.id}` tells how far it is"
    session.show(asked, told)


def wait_for(session: Session, request: Request, timeout_s: float | None) -> None:
    """Show a request's progress until it has ended, then show it.

    Args:
        session: The run of the verb.
        request: Which.
        timeout_s: Longest wait; None: as long as it takes.
    """
    try:
        found = request.wait(progress=not session.as_json, timeout_s=timeout_s)
    except KeyboardInterrupt:
        session.say(f"{request.id} goes on; `neve request cancel {request.table} {request.id}`")
        raise
    session.show(found, lambda: render_requests.request(found))
