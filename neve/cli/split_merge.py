"""`neve table split`, `merge` and `operations`: change the bounds of tablets."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from neve import api
from neve.api import Operation
from neve.cli.render import WHOLE, grid, shortened, time_text
from neve.cli.requests import Timeout, wait_max_s
from neve.cli.session import Name, Panel, Session, verb
from neve.cli.tablet_keys import KnownTables, TabletKeys
from neve.client.errors import CallerError


def render_operations(found: Sequence[Operation], table: str, keys: TabletKeys) -> RenderableType:
    """Render a list of splits and merges.

    Args:
        found: Operations in progress.
        table: The table that they belong to.
        keys: Keys of tablets.
    """
    return grid(
        [
            ("OPERATION", WHOLE),
            ("KIND", ""),
            ("AT", ""),
            ("TABLETS", ""),
            ("SINCE (UTC)", ""),
            ("STEP", ""),
            ("WAITS FOR", ""),
            ("REASON", ""),
        ],
        [
            (
                operation.id,
                operation.kind,
                None if operation.at is None else shortened(operation.at),
                ", ".join(shortened(keys(table, one)) for one in operation.tablets),
                time_text(operation.since_s),
                operation.step,
                operation.waits,
                operation.reason,
            )
            for operation in found
        ],
    )


# -------------------------------------------------------------------------------------------- Verbs


Wait = Annotated[bool, typer.Option("--wait", help="Wait until the operation has ended.")]
Abandon = Annotated[
    bool,
    typer.Option(
        "--abandon",
        help="Abandon all operations of this kind, or with --tablet only that tablet's.",
    ),
]


@verb("table split", Panel.TABLES, "neve table split users --at 5000")
def split(
    session: Session,
    name: Name,
    *,
    at: Annotated[str | None, typer.Option(help="Last key of the left half.")] = None,
    tablet: Annotated[
        str | None,
        typer.Option(help="Id of the tablet to split by bytes; `neve table tablets` shows it."),
    ] = None,
    into: Annotated[
        int | None,
        typer.Option(
            help=(
                "With --tablet: number of parts; with more than 2, the command waits until the "
                "split has ended."
            )
        ),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    abandon: Abandon = False,
) -> None:
    """Split a tablet into two or more, or abandon splits in progress."""
    if abandon:
        if at is not None or into is not None or wait:
            raise CallerError("--abandon accepts only --tablet")
        _abandon_operations(session, name, "split", tablet)
        return
    if into is not None and tablet is None:
        raise CallerError("--into needs --tablet")
    parts = into or 2
    wait = wait or parts > 2
    timeout_s = wait_max_s(timeout, wait=wait)
    begun = session.client.split(
        name,
        at=at,
        tablet=tablet,
        into=parts,
        wait=wait,
        timeout_s=timeout_s,
        progress=lambda each: session.say(f"split at {each.at} started"),
    )
    _show_started(session, name, begun, wait=wait)


@verb("table merge", Panel.TABLES, "neve table merge users --from 100 --to 900 --wait")
def merge(
    session: Session,
    name: Name,
    *,
    tablet: Annotated[
        str | None,
        typer.Option(
            help="Id of the tablet to merge with the next; `neve table tablets` shows it."
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="A key of the first tablet to merge.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            help=(
                "A key of the last tablet; with more than two tablets, the command waits until "
                "the merge has ended."
            ),
        ),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    abandon: Abandon = False,
) -> None:
    """Merge neighbouring tablets, or abandon merges in progress."""
    if abandon:
        if start is not None or end is not None or wait:
            raise CallerError("--abandon accepts only --tablet")
        _abandon_operations(session, name, "merge", tablet)
        return
    if tablet is None and start is None and end is None:
        raise CallerError("give --tablet, or --from and --to")
    timeout_s = wait_max_s(timeout, wait=wait)
    begun = session.client.merge(
        name,
        tablet=tablet,
        start=start,
        end=end,
        wait=wait,
        timeout_s=timeout_s,
        progress=lambda each: session.say(f"merge at {each.at} started"),
    )
    _show_started(session, name, begun, wait=wait)


@verb("table operations", Panel.TABLES, "neve table operations users")
def operations(session: Session, name: Name) -> None:
    """List the splits and merges in progress with what they wait for."""
    found = session.client.operations(name)
    session.show(found, lambda: render_operations(found, name, KnownTables(session.client.tables)))


def _abandon_operations(session: Session, name: str, kind: str, tablet: str | None) -> None:
    """Abandon all operations of a kind, or those of one tablet."""
    found = session.client.operations(name, tablet=tablet)
    given_up = [operation for operation in found if operation.kind == kind]
    for operation in given_up:
        session.client.abandon(name, operation.id)
    told = ", ".join(f"{kind} at {operation.at}" for operation in given_up)
    session.show(given_up, f"abandoned: {told}" if given_up else f"no {kind} is in progress")


def _show_started(session: Session, name: str, begun: api.StartedOperation, *, wait: bool) -> None:
    operation = begun.operation
    if operation is None:
        session.show(begun, "nothing to do: the tablets already have these bounds")
    elif wait:
        session.show(begun, f"{operation.kind} of {name} has ended")
    else:
        follow = f"`neve table operations {name}` shows what it waits for"
        session.show(begun, f"{operation.kind} at {operation.at} started; {follow}")
