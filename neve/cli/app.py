"""All verbs in one command, `neve`."""

import sys

import typer

from neve.cli import compact, config, doctor, limits, recovery, requests, rows, stack, tables, work

EPILOG = "Exit codes: 0 ok, 1 failed, 2 usage, 3 conflict or refused, 4 unavailable."


def build() -> typer.Typer:
    """Return the command with every verb."""
    app = typer.Typer(
        name="neve",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Keep tables of Parquet files in shape.",
        epilog=EPILOG,
    )
    for part in (stack, tables, rows, compact, requests, work, limits, recovery, config, doctor):
        part.register(app)
    return app


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    build()()
