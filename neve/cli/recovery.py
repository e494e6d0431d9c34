"""`neve fsck`, `gc`, `rebuild`, `backup`, `restore`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from neve.cli import render_recovery as render
from neve.cli.session import Session, pairs, verb
from neve.cli.words import Columns, Name, absolute, names

Pairs = Annotated[list[str] | None, typer.Option(help="`TABLE=VALUE`; may be repeated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Take over a location that belongs to another store.")
]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, "fsck")(fsck)
    verb(app, "gc")(gc)
    verb(app, "rebuild")(rebuild)
    verb(app, "backup")(backup)
    verb(app, "restore")(restore)


def fsck(
    session: Session,
    name: Name,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every file.")] = False,
    adopt: Adopt = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept that the store has gone back in time.")
    ] = False,
    forget_missing: Annotated[
        bool, typer.Option("--forget-missing", help="Give up files that storage has lost.")
    ] = False,
) -> None:
    """Check a table: metadata against itself and its files. Writes nothing unless told to."""
    report = session.client.fsck(
        name,
        progress=session.say,
        repair=repair,
        deep=deep,
        adopt=adopt,
        accept=accept,
        forget_missing=forget_missing,
    )
    session.show(report, lambda: render.fsck(report))
    if not report.sound:
        raise typer.Exit(1)


def gc(
    session: Session,
    name: Name,
    delete: Annotated[
        bool, typer.Option("--delete", help="Have the files deleted, after the grace.")
    ] = False,
) -> None:
    """Find files of the service that nothing refers to any more. Writes nothing unless told to."""
    report = session.client.gc(name, delete=delete, progress=session.say)
    session.show(report, lambda: render.gc(report))


def rebuild(
    session: Session,
    location: Annotated[str, typer.Argument(help="Folder of the table's files.")],
    *,
    name: Annotated[str, typer.Option(help="Of the new table.")],
    key: Columns = None,
    version: Annotated[str | None, typer.Option(help="Version column.")] = None,
    tombstone: Annotated[str | None, typer.Option(help="Tombstone column.")] = None,
    time: Annotated[str | None, typer.Option(help="Time column.")] = None,
    partition_by: Columns = None,
    append_only: Annotated[bool, typer.Option("--append-only", help="It has no key.")] = False,
    user_files: Annotated[
        bool, typer.Option(help="Whether Parquet files of users count as added.")
    ] = True,
    adopt: Adopt = False,
    dry_run: DryRun = False,
) -> None:
    """Make a table out of its files, after its metadata was lost.

    Key and columns are needed only where `_neve/table.json` is lost, too.
    """
    given: dict[str, Any] = {
        "key": names(key),
        "version_column": version,
        "tombstone_column": tombstone,
        "time_column": time,
        "partition_by": names(partition_by),
        "append_only": append_only,
    }
    report = session.client.rebuild(
        absolute(location),
        name,
        progress=session.say,
        user_files=user_files,
        adopt=adopt,
        dry_run=dry_run,
        **given,
    )
    session.show(report, lambda: render.rebuilt(report))


def backup(
    session: Session,
    table: Annotated[str, typer.Argument(help="Of the table, or `all`.", show_default=False)],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write.")],
    hold: Annotated[
        str, typer.Option(help="Keep replaced files so long, for whoever copies them: `1h`.")
    ] = "0s",
    copy_to: Annotated[
        str | None, typer.Option(help="Also copy the files below this location.")
    ] = None,
) -> None:
    """Write the metadata of a table, or of all, into an archive."""
    size = session.client.backup(
        output,
        () if table == "all" else (table,),
        hold=hold,
        copy_to=None if copy_to is None else absolute(copy_to),
        progress=session.say,
    )
    session.show({"output": str(output), "size_bytes": size}, f"wrote {size:,} bytes to {output}")


def restore(
    session: Session,
    archive: Annotated[Path, typer.Argument(help="That `backup` wrote.", exists=True)],
    *,
    location: Pairs = None,
    rename: Pairs = None,
    table: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    adopt: Adopt = False,
    dry_run: DryRun = False,
) -> None:
    """Make tables out of an archive. Their files must lie in their locations."""
    places = pairs(location or [], "location")
    report = session.client.restore(
        archive,
        names=pairs(rename or [], "name"),
        locations={name: absolute(place) for name, place in places.items()},
        only=table or (),
        adopt=adopt,
        dry_run=dry_run,
        progress=session.say,
    )
    session.show(report, lambda: render.restored(report))
