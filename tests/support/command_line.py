"""The command line in this process, made once: of a call by a test, making it is half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import typer
import typer.testing
from typer.testing import CliRunner, Result

from neve.cli.app import build

# A runner makes the tree of commands anew at each call, which no command's answer depends on.
vars(typer.testing)["_get_command"] = cache(typer.main.get_command)


@cache
def command_line() -> typer.Typer:
    """Return `neve` with every verb."""
    return build()


def invoke(words: Sequence[str], environ: Mapping[str, str | None]) -> Result:
    """Run `neve` with these words and this environment."""
    return CliRunner().invoke(command_line(), list(words), env=environ)
