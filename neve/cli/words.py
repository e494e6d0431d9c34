"""Arguments and options that many verbs have, and how they are read."""

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="Of the table.", metavar="TABLE", show_default=False)]
Columns = Annotated[str | None, typer.Option(help="Column names, with commas between them.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, `name=value`; may be repeated.")
]


def names(written: str | None) -> tuple[str, ...]:
    """Return column names from a text with commas."""
    return tuple(part.strip() for part in (written or "").split(",") if part.strip())


def absolute(location: str) -> str:
    """Return a location; a relative path is meant from here."""
    return location if "://" in location else str(Path(location).expanduser().resolve())
