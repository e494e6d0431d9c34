"""`neve serve`: run a service on an existing Ray cluster and Redis."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.units import parse_duration_s
from neve.cli.session import Panel, Session, verb
from neve.cli.stack import ConfigFile, SetFlags, needs_server

if TYPE_CHECKING:
    from common.settings import Settings


@verb(
    "serve",
    Panel.RUN,
    "neve serve --address ray://neve-head-svc:10001 --config neve.toml",
    remote=False,
)
def serve(
    session: Session,
    *,
    address: Annotated[
        str | None,
        typer.Option(
            help=(
                "Ray cluster: ray://host:10001, or host:6379 on one of its machines. Default: "
                "RAY_ADDRESS."
            )
        ),
    ] = None,
    config: ConfigFile = None,
    settings: SetFlags = None,
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Maximum time to wait until the Ray cluster can be joined."
        ),
    ] = "60s",
    once: Annotated[
        bool,
        typer.Option("--once", help="Exit as soon as the service answers, without watching it."),
    ] = False,
    with_service: Annotated[
        bool,
        typer.Option(
            "--with-service",
            help=(
                "On SIGTERM or Ctrl-C, shut the service down; compactors finish their jobs "
                "first. Default: leave it running."
            ),
        ),
    ] = False,
    health_host: Annotated[str, typer.Option(help="Address for /live and /ready.")] = "127.0.0.1",
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port for /live and /ready. Default: none."),
    ] = None,
) -> None:
    """Start a service on an existing Ray cluster and Redis, and watch it.

    It uses the running coordinator and gateway or starts them. Several `neve serve` may run at
    once. With --json, it prints one document per line for each step, and the address of the
    service.
    """
    needs_server()
    # Imported here so that verbs of the client start without loading Ray.
    from neve.serve.watchdog import Orders, serve_until_stopped

    orders = Orders(
        address=address,
        wait_s=parse_duration_s(wait, "--wait"),
        once=once,
        with_service=with_service,
        health_host=health_host,
        health_port=health_port,
    )
    chosen = _settings(session, config, settings or [])
    serve_until_stopped(chosen, orders, session.step, partial(_show_answer, session))


def _show_answer(session: Session, answer: Mapping[str, Any]) -> None:
    """Print the address of the service on standard output, as the result of the start."""
    from neve.serve.watch import ServeStep

    text = f"Névé runs on {answer['ray']}, its gateway at {answer['url']}"
    if session.as_json:
        session.step(ServeStep.ANSWERS, text, **answer)
    else:
        session.write(f"{text}\n")


def _settings(session: Session, config: Path | None, flags: Sequence[str]) -> "Settings":
    """Return the settings. Print warnings about them and about their store."""
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
