"""All verbs in one command, `neve`."""

import sys
from typing import Annotated

import typer

from neve.cli import doctor, recovery, requests, rows, stack, tables, work
from neve.cli.examples import add_examples, add_panels
from neve.release import __version__

EPILOG = "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 conflict or refused, 4 service unavailable."

VERBS = (
    stack.register,
    tables.register,
    rows.register,
    requests.register_compact,
    requests.register,
    work.register,
    work.register_limits,
    recovery.register,
    stack.register_config,
    doctor.register,
)
"""What adds the verbs, in the order of the help."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"neve {__version__}")
        raise typer.Exit


def build() -> typer.Typer:
    """Return the command with every verb."""
    app = typer.Typer(
        name="neve",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Keep tables of Parquet files in shape.",
        epilog=EPILOG,
    )
    app.callback()(_options)
    for register in VERBS:
        register(app)
    add_examples(app)
    add_panels(app)
    return app


def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the release.")
    ] = False,
) -> None:
    """Keep tables of Parquet files in shape."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    build()()
