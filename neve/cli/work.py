"""`neve status`, `jobs`, `queue`, `explain`, `plan`, `history`, and verbs about who works."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from common.clock import SystemClock
from common.errors import InputError, RequestError
from neve.cli import render_offline, render_work
from neve.cli.limits import limit_group
from neve.cli.session import Session, pairs, verb
from neve.cli.words import Name

Count = Annotated[int, typer.Option(help="At most so many.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, "status")(status)
    verb(app, "jobs")(jobs)
    verb(app, "queue")(queue)
    verb(app, "explain")(explain)
    verb(app, "plan")(plan)
    verb(app, "history")(history)
    verb(app, "lift-quarantine")(lift_quarantine)
    verb(app, "lower-watermark")(lower_watermark)
    compactor = typer.Typer(no_args_is_help=True, help="The compactors that run jobs.")
    app.add_typer(compactor, name="compactor")
    verb(compactor, "list")(compactors)
    verb(compactor, "drain")(drain)
    group = typer.Typer(no_args_is_help=True, help="Compaction groups: a queue and its compactors.")
    app.add_typer(group, name="group")
    verb(group, "pause")(pause_group)
    verb(group, "resume")(resume_group)
    verb(group, "limit")(limit_group)


def status(session: Session) -> None:
    """Show how the service as a whole is doing."""
    found = session.client.status()
    session.show(found, lambda: render_work.status(found))


def jobs(session: Session) -> None:
    """List the jobs that run; `neve job cancel` takes one back."""
    found = session.client.jobs()
    session.show(found, lambda: render_work.jobs(found, SystemClock().now_s()))


def queue(
    session: Session,
    group: Annotated[str | None, typer.Option(help="Of one compaction group.")] = None,
    count: Count = 100,
) -> None:
    """List the jobs that wait, best first."""
    found = session.client.queue(group, count)
    session.show(found, lambda: render_work.queue(found))


def explain(
    session: Session,
    name: Name,
    tablet: Annotated[str | None, typer.Argument(help="One tablet, by its end.")] = None,
) -> None:
    """Say why tablets are as they are: why jobs run, wait, or are not wanted."""
    found = session.client.explain(name, tablet)
    session.show(found, lambda: render_work.explanations(found))


def plan(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="Of the table.", metavar="[TABLE]")] = None,
    *,
    files: Annotated[
        Path | None, typer.Option(help="Plan this JSON description instead, without a service.")
    ] = None,
    planner: Annotated[str | None, typer.Option(help="With --files: its name.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="With --files: `name=value`; may be repeated.")
    ] = None,
    tablet: Annotated[
        str | None,
        typer.Option(help="With --files: of files of several tablets, those of this one."),
    ] = None,
) -> None:
    """Show what would be planned now; nothing is started.

    --files takes what `neve table files TABLE --json` prints, or a document with settings,
    groups and running jobs.
    """
    if (name is None) == (files is None):
        raise RequestError("give either the name of a table or --files")
    if files is not None:
        _plan_offline(session, files, planner, settings or [], tablet)
        return
    if planner is not None or settings or tablet is not None:
        raise RequestError("--planner, --set and --tablet go with --files; a table has its own")
    found = session.client.plan(str(name))
    session.show(found, lambda: render_work.plan(found))


def history(session: Session, name: Name, count: Count = 20) -> None:
    """List the newest finished attempts of a table."""
    found = session.client.history(name, count)
    session.show(found, lambda: render_work.history(found))


def lift_quarantine(
    session: Session,
    name: Name,
    tablet: Annotated[str | None, typer.Argument(help="One tablet, by its end.")] = None,
) -> None:
    """Try tablets again that were set aside because their jobs failed; `explain` names them."""
    session.client.lift_quarantine(name, tablet)
    where = f"tablet {tablet} of {name}" if tablet is not None else f"every tablet of {name}"
    session.show({"lifted": name, "tablet": tablet}, f"{where} is tried again")


def lower_watermark(
    session: Session,
    name: Name,
    tablet: Annotated[str, typer.Argument(help="By its end.")],
    to: Annotated[
        str | None, typer.Option(help="Rows up to this version stay refused; else none are.")
    ] = None,
) -> None:
    """Let a tablet take rows again that are older than tombstones it has dropped."""
    found = session.client.lower_watermark(name, tablet, to)
    after = "it has none" if found.after is None else f"it is {found.after}"
    session.show(
        found, f"the watermark was {found.before or 'none'}, now {after}; {found.may_rise}"
    )


def compactors(session: Session) -> None:
    """List the compactors."""
    found = session.client.compactors()
    session.show(found, lambda: render_work.compactors(found))


def drain(
    session: Session, name: Annotated[str, typer.Argument(metavar="COMPACTOR", help="Its name.")]
) -> None:
    """Let a compactor finish what it holds and take nothing new."""
    session.client.drain(name)
    session.show({"draining": name}, f"{name} drains")


def pause_group(
    session: Session, name: Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")]
) -> None:
    """Hand out no job of a group; running ones go on."""
    session.client.pause_group(name)
    session.show({"paused": name}, f"group {name} is paused")


def resume_group(
    session: Session, name: Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")]
) -> None:
    """End a pause of a group."""
    session.client.resume_group(name)
    session.show({"resumed": name}, f"group {name} is resumed")


def _plan_offline(
    session: Session, files: Path, planner: str | None, settings: list[str], tablet: str | None
) -> None:
    # Here, so that the client's verbs start without the planners.
    from neve.offline import plan_offline

    planned = plan_offline(_document(files), planner, pairs(settings, "setting"), tablet)
    session.show(planned, lambda: render_offline.offline(planned))


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"file {path} is not JSON: {error}") from error
