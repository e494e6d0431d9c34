"""`neve explain`, `analyze`, `lift-quarantine`, `lower-watermark`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding

from common.errors import RequestError
from common.units import format_bytes, parse_duration_s
from neve import api
from neve.api import Operation
from neve.cli.render import RIGHT, WHOLE, TabletKeys, grid, lines, reasons, shortened, time_text
from neve.cli.requests import Timeout, wait_max_s
from neve.cli.session import Name, OptionalTablet, Panel, Session, Verbose, WholeIds, verb
from neve.client.errors import CallerError


def render_explanations(
    explanations: Sequence[api.Explanation], keys: TabletKeys, *, verbose: bool = False
) -> RenderableType:
    """Render the state of tablets with reasons, one paragraph per tablet.

    Each paragraph begins with the keys of the tablet and the id that other commands accept.
    """
    parts: list[RenderableType | str] = []
    for explanation in explanations:
        where = shortened(keys(explanation.table, explanation.tablet))
        parts += [f"{explanation.table}, tablet {where} (id {explanation.tablet})"]
        parts += [f"  {sentence}" for sentence in explanation.sentences]
        if verbose:
            parts += [
                f"  attempt {attempt} compacts {', '.join(files)}"
                for attempt, files in zip(explanation.running, explanation.inputs, strict=False)
            ]
        if explanation.left:
            parts.append(Padding(reasons(explanation.left, verbose=verbose), (0, 0, 0, 2)))
    return lines(*(parts or ["none"]))


def render_story(story: api.Story, keys: TabletKeys) -> RenderableType:
    """Render the history of a tablet, one event per row. `keys` maps tablets to their keys."""
    where = shortened(keys(story.table, story.tablet))
    return lines(
        f"{story.table}, tablet {where} (id {story.tablet})",
        grid(
            [("TIME (UTC)", WHOLE), ("KIND", ""), ("WHAT HAPPENED", "")],
            [
                (
                    time_text(entry.at_s),
                    entry.kind,
                    entry.sentence,
                )
                for entry in story.entries
            ],
        ),
    )


def render_live_bytes(
    listed: Sequence[api.LiveBytes], table: str, keys: TabletKeys
) -> RenderableType:
    """Render the live bytes of tablets of a table."""
    return grid(
        [
            ("TABLET", ""),
            ("FILES", RIGHT),
            ("COUNTED", RIGHT),
            ("SIZE", RIGHT),
            ("LIVE", RIGHT),
            ("UPDATED", RIGHT),
            ("CHANGED", ""),
            ("MERGE", ""),
            ("READ", RIGHT),
            ("TOOK", RIGHT),
            ("SINCE", ""),
        ],
        [
            (
                shortened(keys(table, live.tablet)),
                live.files,
                "waits" if live.waiting else live.measured_files,
                format_bytes(live.size_bytes),
                f"{format_bytes(live.live_bytes)} of {format_bytes(live.measured_bytes)}",
                None if live.updated_share is None else f"{live.updated_share:.1%}",
                ", ".join(f"{name} {share:.0%}" for name, share in live.changed_shares.items()),
                ", ".join(f"{name} {share:.0%}" for name, share in live.merged_shares.items()),
                None if live.read_bytes is None else format_bytes(live.read_bytes),
                None if live.elapsed_s is None else f"{live.elapsed_s:.1f} s",
                None if live.since_s is None else time_text(live.since_s),
            )
            for live in listed
        ],
    )


@verb("explain", Panel.SEE, "neve explain users")
def explain(
    session: Session,
    name: Name,
    tablet: OptionalTablet = None,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Show the tablet's past events.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Explain for each tablet of a table why jobs run, wait or are not needed.

    --history shows the events of one tablet since the coordinator started.
    """
    if history:
        if tablet is None:
            raise RequestError(
                f"--history needs a tablet: `neve explain {name} TABLET --history`; `neve "
                f"table tablets {name}` lists the tablets"
            )
        session.show(
            session.client.story(name, tablet), lambda story: render_story(story, session.keys)
        )
        return
    explanations = session.client.explain(name, tablet)
    session.show(
        explanations,
        lambda explanations: render_explanations(explanations, session.keys, verbose=verbose),
    )


@verb("analyze", Panel.CONTROL, "neve analyze users --wait")
def analyze(
    session: Session,
    name: Name,
    tablet: OptionalTablet = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything is counted.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="Maximum time to wait, such as 30s or 10m.")
    ] = "1h",
) -> None:
    """Count the live bytes of files: rows that a reader sees or that a rewrite must keep.

    Compactors read only the necessary columns, after all other jobs. Nothing is rewritten.
    """
    timeout_s = parse_duration_s(timeout, "--timeout") if wait else None
    session.show(
        session.client.analyze(name, tablet, timeout_s=timeout_s),
        lambda analyzed: render_live_bytes(analyzed, name, session.keys),
    )


@verb("lift-quarantine", Panel.CONTROL, "neve lift-quarantine users")
def lift_quarantine(
    session: Session,
    name: Name,
    tablet: OptionalTablet = None,
) -> None:
    """Release tablets from quarantine so that they are planned again; `neve explain` lists them."""
    session.client.lift_quarantine(name, tablet)
    where = f"tablet {tablet} of {name}" if tablet is not None else f"every tablet of {name}"
    session.show({"lifted": name, "tablet": tablet}, f"{where} is planned again")


@verb("lower-watermark", Panel.CONTROL, "neve lower-watermark users last")
def lower_watermark(
    session: Session,
    name: Name,
    tablet: Annotated[
        str,
        typer.Argument(help="Id of the tablet; `neve table tablets` shows it.", metavar="TABLET"),
    ],
    to: Annotated[
        str | None,
        typer.Option(help="Newest version that stays refused. Default: no version is refused."),
    ] = None,
) -> None:
    """Lower the watermark of a tablet so that it accepts older rows again."""
    lowered = session.client.lower_watermark(name, tablet, to)
    session.show(
        lowered,
        f"watermark: {lowered.before or 'none'} → {lowered.after or 'none'}; {lowered.may_rise}",
    )


# -------------------------------------------------------------------------------------- Split merge
# `neve table split`, `merge` and `operations`: change the bounds of tablets.


def render_operations(
    under_way: Sequence[Operation], table: str, keys: TabletKeys, *, verbose: bool = False
) -> RenderableType:
    """Render the splits and merges of a table in progress; `verbose` prints whole ids."""
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
                ", ".join(shortened(keys(table, tablet)) for tablet in operation.tablets),
                time_text(operation.since_s),
                operation.step,
                operation.waits,
                operation.reason,
            )
            for operation in under_way
        ],
        whole_ids=verbose,
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
        progress=lambda started: session.say(f"split at {started.at} started"),
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
        progress=lambda started: session.say(f"merge at {started.at} started"),
    )
    _show_started(session, name, begun, wait=wait)


@verb("table operations", Panel.TABLES, "neve table operations users")
def operations(session: Session, name: Name, *, verbose: WholeIds = False) -> None:
    """List the splits and merges in progress with what they wait for."""
    session.show(
        session.client.operations(name),
        lambda under_way: render_operations(under_way, name, session.keys, verbose=verbose),
    )


def _abandon_operations(session: Session, name: str, kind: str, tablet: str | None) -> None:
    """Abandon all operations of a kind, or those of one tablet."""
    under_way = session.client.operations(name, tablet=tablet)
    given_up = [operation for operation in under_way if operation.kind == kind]
    for operation in given_up:
        session.client.abandon(name, operation.id)
    ended = ", ".join(f"{kind} at {operation.at}" for operation in given_up)
    session.show(given_up, f"abandoned: {ended}" if given_up else f"no {kind} is in progress")


def _show_started(session: Session, name: str, begun: api.StartedOperation, *, wait: bool) -> None:
    operation = begun.operation
    if operation is None:
        session.show(begun, "nothing to do: the tablets already have these bounds")
    elif wait:
        session.show(begun, f"{operation.kind} of {name} has ended")
    else:
        follow = f"`neve table operations {name}` shows what it waits for"
        session.show(begun, f"{operation.kind} at {operation.at} started; {follow}")
