"""`neve serve`: a service on a Ray cluster and a Redis that run already."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.units import parse_duration_s
from neve.cli.session import Session, verb
from neve.cli.stack import ConfigFile, SetFlags, needs_server

if TYPE_CHECKING:
    from common.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, "serve", remote=False)(serve)


def serve(
    session: Session,
    *,
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster: ray://host:10001, or host:6379 on one of its machines."
            " Default: RAY_ADDRESS."
        ),
    ] = None,
    config: ConfigFile = None,
    settings: SetFlags = None,
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Longest wait for a Ray cluster that cannot be joined yet."
        ),
    ] = "60s",
    once: Annotated[
        bool, typer.Option("--once", help="End when the service answers; nobody watches it then.")
    ] = False,
    with_service: Annotated[
        bool,
        typer.Option(
            "--with-service",
            help="On SIGTERM or Ctrl-C, take the service down: compactors end their jobs first."
            " Default: it stays.",
        ),
    ] = False,
    health_host: Annotated[str, typer.Option(help="Address of /live and /ready.")] = "127.0.0.1",
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port of /live and /ready. Default: none."),
    ] = None,
) -> None:
    """Start a service on a Ray cluster and a Redis that run already, and watch over it.

    It finds or starts the coordinator and the gateway. Several may run at the same time.
    With --json it prints one document a line: a step each, and where the service is.
    """
    needs_server()
    # Here, so that the client's verbs start without Ray.
    from neve.serve.watchdog import Orders, serve_until_told

    orders = Orders(
        address=address,
        wait_s=parse_duration_s(wait, "--wait"),
        once=once,
        with_service=with_service,
        health_host=health_host,
        health_port=health_port,
    )
    chosen = _settings(session, config, settings or [])
    serve_until_told(chosen, orders, session.step, partial(_tell_answer, session))


def _tell_answer(session: Session, told: Mapping[str, Any]) -> None:
    """Say where the service is: the result of the start, so on standard output."""
    from neve.serve.watch import ServeStep

    text = f"Névé runs on {told['ray']}, its gateway at {told['url']}"
    if session.as_json:
        session.step(ServeStep.ANSWERS, text, **told)
    else:
        session.write(f"{text}\n")


def _settings(session: Session, config: Path | None, flags: Sequence[str]) -> "Settings":
    """Return the settings; say what is odd about them, and about the store that they name."""
    from neve.gateway.actor import require_token
    from neve.serve.preflight import require_store, secret_remarks
    from neve.serve.watch import ServeStep
    from neve.service_settings import load_service_settings, setting_remarks

    chosen = load_service_settings(config, flags=flags)
    require_token(chosen)
    remarks = (*setting_remarks(chosen), *secret_remarks(chosen), *require_store(chosen.store))
    for remark in remarks:
        session.step(ServeStep.NOTE, remark)
    return chosen
