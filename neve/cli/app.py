"""The command `neve` with all its verbs, their groups in the help, and an example for each."""

import sys
from typing import Annotated

import typer

from neve.cli import (
    access,
    compactors,
    control,
    doctor,
    imports,
    jobs,
    planning,
    recovery,
    requests,
    rows,
    service,
    simulate,
    tables,
    tablets,
)
from neve.cli.session import Panel, Verb, declared_verbs
from neve.release import __version__

EPILOG = "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 conflict or refused, 4 service unavailable."

MODULES = (
    service,
    service,
    tables,
    imports,
    tablets,
    rows,
    requests,
    service,
    jobs,
    planning,
    control,
    simulate,
    compactors,
    recovery,
    access,
    doctor,
)
"""Modules with verbs, in the order of the help."""
GROUPS = {
    "table": "Create, show, change and drop tables.",
    "request": "Compaction requests.",
    "job": "Individual jobs; `neve jobs` lists them.",
    "compactor": "Compactors, the processes that run jobs.",
    "group": "Compaction groups: a queue and its compactors.",
    "volume": "Volumes, the storage that tables share.",
    "token": "Named tokens and their rights.",
    "config": "The settings of a service.",
}
"""First words that precede other verbs, and their help."""


def _version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"neve {__version__}")
        raise typer.Exit


def verbs() -> list[Verb]:
    """Return all verbs, in the order of the help."""
    order = list(Panel)
    every = [verb for module in MODULES for verb in declared_verbs(module)]
    return sorted(every, key=lambda verb: order.index(verb.panel))


def build() -> typer.Typer:
    """Build the command with every verb."""
    app = typer.Typer(
        name="neve",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Keep tables of Parquet files in shape.",
        epilog=EPILOG,
    )
    app.callback()(_options)
    groups: dict[str, typer.Typer] = {}
    for verb in verbs():
        *group, name = verb.words.split()
        parent = app
        if group:
            if group[0] not in groups:
                parent = typer.Typer(no_args_is_help=True, help=GROUPS[group[0]])
                app.add_typer(parent, name=group[0], rich_help_panel=verb.panel)
                groups[group[0]] = parent
            parent = groups[group[0]]
        panel = None if group else verb.panel
        parent.command(name, epilog=f"Example: {verb.example}", rich_help_panel=panel)(verb.run)
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
