"""`neve add`, `neve append`, `neve call`, `neve scan`: rows in and out."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from neve.cli import render, row_files
from neve.cli.session import Session, verb
from neve.cli.words import Name, names

LIMIT_DEFAULT = 20

Start = Annotated[
    str | None,
    typer.Option(help="First key, included; with partitions: the first of them, `2025,4`."),
]
End = Annotated[
    str | None, typer.Option(help="Last key, included; with partitions: the last of them.")
]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, "add")(add)
    verb(app, "append")(append)
    verb(app, "call")(call)
    verb(app, "scan")(scan)


def add(
    session: Session,
    name: Name,
    paths: Annotated[
        list[str], typer.Argument(help="Below the table's location.", metavar="FILE...")
    ],
    call: Annotated[str | None, typer.Option(help="Id of the call, to repeat one.")] = None,
) -> None:
    """Add Parquet files that lie in the table's location: all or none, at most 10,000."""
    added = session.client.add_files(name, [_meant(path) for path in paths], call=call)
    session.show(added, render.added(added))


def append(
    session: Session,
    name: Name,
    file: Annotated[Path, typer.Argument(help="Parquet, CSV or Arrow; `-` is an Arrow stream.")],
    call: Annotated[str | None, typer.Option(help="Id of the call, to repeat one.")] = None,
) -> None:
    """Append the rows of a file that lies anywhere on this machine."""
    rows = row_files.read(file, lambda: session.client.describe(name).schema)
    added = session.client.append(name, rows, call=call)
    session.show(added, render.added(added))


def call(
    session: Session,
    name: Name,
    call: Annotated[
        str, typer.Argument(help="Id of the call, as it was sent or answered.", metavar="CALL")
    ],
) -> None:
    """Show what became of a call: accepted with what, unknown, or too old to tell."""
    found = session.client.call(name, call)
    session.show(found, lambda: render.call(found))


def scan(
    session: Session,
    name: Name,
    *,
    columns: Annotated[str | None, typer.Option(help="Names, with commas between them.")] = None,
    start: Start = None,
    end: End = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a file: .parquet, .csv or .arrow.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows shown; 0: all.")] = LIMIT_DEFAULT,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
) -> None:
    """Read a table as it is now: per key the newest row, without the deleted."""
    if count:
        rows = session.client.count(name, start, end)
        session.show({"rows": rows}, f"{rows:,}")
        return
    wanted = names(columns) or None
    reader = session.client.scan(name, wanted, start, end, batches=True)
    if output is not None:
        rows = row_files.write(output, reader)
        session.show({"rows": rows, "output": str(output)}, f"wrote {rows:,} rows to {output}")
        return
    found = (row for batch in reader for row in batch.to_pylist())
    shown = list(found if limit <= 0 else islice(found, limit))
    cells = [[_cell(value) for value in row.values()] for row in shown]
    session.show(shown, lambda: render.grid([(each, "") for each in reader.schema.names], cells))
    if limit > 0 and next(found, None) is not None:
        session.say(f"the first {limit} rows; --limit 0 shows all, --output writes a file")


def _meant(path: str) -> str:
    """Return a path as the service understands it: what exists here is meant as it is here."""
    if "://" in path or not Path(path).exists():
        return path
    return str(Path(path).resolve())


def _cell(value: object) -> str | None:
    return None if value is None else str(value)
