"""The command `neve` with all its verbs, their groups in the help, and an example for each.

A run of one verb loads only the modules that have verbs with the same first word, and builds only
these verbs.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Annotated, Any

import typer

from neve.cli.session import Panel, Verb, declared_verbs

EPILOG = "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 conflict or refused, 4 service unavailable."

FIRST_WORDS = {
    "service": "status up down logs demo config serve notify",
    "tables": "table attach detach pause resume",
    "imports": "table",
    "tablets": "explain analyze lift-quarantine lower-watermark table",
    "rows": "add append flush call scan",
    "requests": "compact request",
    "jobs": "jobs job activity history report",
    "planning": "queue plan backlog trigger ops maintain",
    "control": "control",
    "simulate": "simulate record",
    "compactors": "compactor group limits volume",
    "recovery": "fsck gc rebuild backup restore",
    "access": "token audit console redis-acl",
    "doctor": "doctor",
    "top": "top",
}
"""Modules with verbs, in the order of the help, and the first words of their verbs."""
GROUPS = {
    "table": "Create, show, change and drop tables.",
    "request": "Compaction requests.",
    "job": "Single jobs; `neve jobs` and `neve queue` list them.",
    "compactor": "Compactors, the processes that run jobs.",
    "group": "Compaction groups: a queue and its compactors.",
    "volume": "Volumes, the storage that tables share.",
    "token": "Named tokens and their rights.",
    "config": "The settings of a service.",
}
"""First words that precede other verbs, and their help."""


def _version(is_wanted: bool) -> None:
    if is_wanted:
        from neve import __version__

        typer.echo(f"neve {__version__}")
        raise typer.Exit


def modules(words: Sequence[str] = ()) -> list[ModuleType]:
    """Return the modules with the verb that `words` begin with; all modules if there is none."""
    names = [name for name, first in FIRST_WORDS.items() if {*words[:1]} & {*first.split()}]
    return [importlib.import_module(f"neve.cli.{name}") for name in names or FIRST_WORDS]


def verbs(words: Sequence[str] = ()) -> list[Verb]:
    """Return the verbs with the first word of `words`, or all verbs, in the order of the help."""
    order = list(Panel)
    every = [verb for module in modules(words) for verb in declared_verbs(module)]
    alike = [verb for verb in every if verb.words.split()[:1] == [*words[:1]]]
    return sorted(alike or every, key=lambda verb: order.index(verb.panel))


def build(words: Sequence[str] = ()) -> typer.Typer:
    """Build the command.

    Args:
        words: Arguments of the run. Without a known verb, the command has every verb.
    """
    app = typer.Typer(
        name="neve",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Keep tables of Parquet files in shape.",
        epilog=EPILOG,
    )
    app.callback()(_options)
    groups: dict[str, typer.Typer] = {}
    for verb in verbs(words):
        *group, name = verb.words.split()
        parent = app
        if group:
            if group[0] not in groups:
                parent = typer.Typer(no_args_is_help=True, help=GROUPS[group[0]])
                app.add_typer(parent, name=group[0], rich_help_panel=verb.panel)
                groups[group[0]] = parent
            parent = groups[group[0]]
        panel = None if group else verb.panel
        parent.command(name, epilog=f"Example: {verb.example}", rich_help_panel=panel)(
            verb.with_signature()
        )
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
    command = typer.main.get_command(build(sys.argv[1:]))
    _skip_validation(command)
    command()


def _skip_validation(command: Any) -> None:
    """Skip typer's validation of texts and of options that are not given: it loads pydantic."""
    command.get_params = partial(_parameters, command.get_params)
    for part in getattr(command, "commands", {}).values():
        _skip_validation(part)


def _parameters(of_command: Callable[[Any], list[Any]], context: Any) -> list[Any]:
    name = of_command(context)
    for parameter in name:
        if not (parameter.multiple or isinstance(parameter.process_value, partial)):
            parameter.process_value = partial(_value, parameter, parameter.process_value)
    return name


def _value(parameter: Any, validated: Callable[..., Any], context: Any, value: Any) -> Any:
    descriptor = getattr(parameter, "type_descriptor", None)
    is_text = isinstance(value, str) and getattr(descriptor, "annotation", None) is str
    if is_text or (value is None and not parameter.required):
        return parameter.callback(context, parameter, value) if parameter.callback else value
    return validated(context, value)
