"""`neve request …`, `neve job cancel`: what was asked for, and taking it back."""

from typing import Annotated

import typer

from neve.cli import render_requests
from neve.cli.compact import Timeout, Wait, wait_for
from neve.cli.session import Session, verb
from neve.cli.words import Name

RequestId = Annotated[
    str, typer.Argument(help="As `compact` and `request list` tell it.", metavar="REQUEST")
]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    request = typer.Typer(no_args_is_help=True, help="Compactions that were asked for.")
    app.add_typer(request, name="request")
    verb(request, "list")(list_requests)
    verb(request, "show")(show)
    verb(request, "cancel")(cancel)
    job = typer.Typer(no_args_is_help=True, help="Single jobs; `neve jobs` lists them.")
    app.add_typer(job, name="job")
    verb(job, "cancel")(cancel_job)


def list_requests(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(help="Of one table; else of all.", metavar="[TABLE]")
    ] = None,
    count: Annotated[int, typer.Option(help="At most so many of a table.")] = 20,
) -> None:
    """List the compactions that were asked for, newest first."""
    client = session.client
    names = [table.name for table in client.tables()] if name is None else [name]
    found = [request for each in names for request in client.requests(each, count)]
    found.sort(key=lambda each: each.submitted_at_s, reverse=True)
    session.show(found, lambda: render_requests.requests(found))


def show(
    session: Session,
    name: Name,
    request: RequestId,
    *,
    tablets: Annotated[int, typer.Option(help="Of how many tablets to tell.")] = 100,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Show how far a request is, over all and per tablet."""
    asked = session.client.request(name, request)
    if wait:
        wait_for(session, asked, timeout)
        return
    found = asked.status(tablets=tablets)
    session.show(found, lambda: render_requests.request(found))


def cancel(
    session: Session,
    name: Name,
    request: RequestId,
    *,
    start: Annotated[str | None, typer.Option(help="Only tablets from this key on.")] = None,
    end: Annotated[str | None, typer.Option(help="Only tablets up to this key.")] = None,
    tablet: Annotated[str | None, typer.Option(help="Only one tablet, by its end.")] = None,
) -> None:
    """Cancel a request, or its part in some tablets; what is committed stays."""
    found = session.client.request(name, request).cancel(start=start, end=end, tablet=tablet)
    whole = start is None and end is None and tablet is None
    told = f"{request} is being cancelled" if whole else f"a part of {request} is cancelled"
    session.show(found, told)


def cancel_job(
    session: Session,
    attempt: Annotated[str, typer.Argument(help="As `jobs` tells it.", metavar="ATTEMPT")],
) -> None:
    """Take a running job back; the same files are not planned again for a while.

    A job of a request takes its tablet out of the request, which ends `done_in_part`.
    """
    jobs = [each for each in session.client.jobs() if each.attempt == attempt]
    session.client.cancel_job(attempt)
    of_request = any(each.kind == "USER" for each in jobs)
    told = "; its request leaves this tablet out, and ends done in part" if of_request else ""
    session.show({"cancelled": attempt}, f"asked to cancel {attempt}{told}")
