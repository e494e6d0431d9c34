"""`neve table …`, `neve pause`, `neve resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from neve import api
from neve.cli import render
from neve.cli.session import (
    Columns,
    Name,
    Panel,
    Session,
    Settings,
    absolute,
    name_values,
    names,
    to_dictionaries,
    verb,
)
from neve.setting_values import known_name


@verb(
    "table create",
    Panel.TABLES,
    "neve table create users --location /data/users"
    " --schema id:int64,at:int64 --key id --version at",
)
def create(
    session: Session,
    name: Name,
    *,
    location: Annotated[str, typer.Option(help="Folder of its files: a URI or absolute path.")],
    example: Annotated[
        str | None,
        typer.Option(
            help="Parquet file to take the schema from, on this machine or in the location."
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Columns, `id:int64,name:string`; instead of an example.")
    ] = None,
    key: Columns = None,
    version: Annotated[
        str | None, typer.Option(help="Column whose higher value marks the newer row.")
    ] = None,
    tombstone: Annotated[
        str | None, typer.Option(help="Bool column that marks deleted rows.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column for expiry and time windows.")] = None,
    partition_by: Columns = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Last key of a tablet; may be repeated in ascending order."),
    ] = None,
    settings: Settings = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create the table paused.")] = False,
) -> None:
    """Create a table."""
    from neve.cli.rows import read_schema

    given = read_schema(example, schema)
    created = session.client.create_table(
        name,
        absolute(location),
        schema=given,
        example=None if given is not None else example,
        key=names(key),
        splits=split or (),
        settings=name_values(settings or [], "setting"),
        version_column=version,
        tombstone_column=tombstone,
        time_column=time,
        partition_by=names(partition_by),
        paused=paused,
    )
    _say_unread(session, created, settings or [])
    for note in created.notes:
        session.say(f"note: {note}")
    session.show(created, render.render_table)


@verb("attach", Panel.TABLES, "neve attach sales --delta /data/sales --dry-run")
def attach(
    session: Session,
    name: Name,
    *,
    delta: Annotated[
        str | None, typer.Option("--delta", help="Delta table: URI or absolute path of its folder.")
    ] = None,
    iceberg: Annotated[
        str | None,
        typer.Option("--iceberg", help="Iceberg table: `CATALOG:NAMESPACE.TABLE`."),
    ] = None,
    settings: Settings = None,
    paused: Annotated[bool, typer.Option("--paused", help="Attach the table paused.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be planned or refused.")
    ] = False,
) -> None:
    """Attach a table that other engines write, and compact it in place.

    Its own log stays the truth; `neve detach` ends the maintenance and leaves every file.
    """
    if (delta is None) == (iceberg is None):
        raise typer.BadParameter("give either --delta or --iceberg")
    attached = session.client.attach(
        name,
        delta="" if delta is None else absolute(delta),
        iceberg=iceberg or "",
        settings=name_values(settings or [], "setting"),
        paused=paused,
        dry_run=dry_run,
    )
    session.show(attached, render.render_attached)


@verb("detach", Panel.TABLES, "neve detach sales --yes")
def detach(
    session: Session,
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Detach a table that was attached. Its files and its log stay."""
    if not yes and not session.as_json:
        typer.confirm(f"Detach table {name} (its files stay)?", abort=True, err=True)
    dropped = session.client.detach(name)
    session.show({"detached": name, **to_dictionaries(dropped)}, render.detach_sentence(dropped))


@verb("table list", Panel.TABLES, "neve table list")
def list_tables(session: Session) -> None:
    """List the tables."""
    session.show(session.client.tables(), render.render_tables)


@verb("table describe", Panel.TABLES, "neve table describe users")
def describe(session: Session, name: Name) -> None:
    """Show a table, its columns, totals and settings."""
    session.show(session.client.describe(name), render.render_table)


@verb("table tablets", Panel.TABLES, "neve table tablets users")
def tablets(session: Session, name: Name) -> None:
    """List the tablets of a table."""
    session.show(session.client.tablets(name), render.render_tablets)


@verb("table files", Panel.TABLES, "neve table files users")
def files(session: Session, name: Name) -> None:
    """List the files of a table."""
    session.show(
        session.client.files(name), lambda listed: render.render_files(listed, name, session.keys)
    )


@verb("table set", Panel.TABLES, "neve table set users ttl=30d codec_level=6")
def set_settings(
    session: Session,
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(help="`name=value` …", metavar="[SETTING...]")
    ] = None,
    add_column: Annotated[
        list[str] | None,
        typer.Option("--add-column", help="`name:type`; null in existing rows."),
    ] = None,
    widen_column: Annotated[
        list[str] | None,
        typer.Option(
            "--widen-column", help="`name:type`; the new type must hold all values of the old type."
        ),
    ] = None,
) -> None:
    """Change settings or columns of a table. Either all changes apply or none."""
    if not (settings or add_column or widen_column):
        raise typer.BadParameter("give a setting, --add-column or --widen-column")
    before = session.client.describe(name)
    changed = session.client.set(
        name,
        name_values(settings or [], "setting"),
        add_columns=_columns(add_column),
        widen_columns=_columns(widen_column),
    )
    _say_unread(session, changed, settings or [])
    session.show(changed, lambda _: render.render_changes(before, changed))


@verb("table drop", Panel.TABLES, "neve table drop users --yes")
def drop(
    session: Session,
    name: Name,
    *,
    delete_files: Annotated[
        bool, typer.Option("--delete-files", help="Also delete its files.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Drop a table. Its files stay unless `--delete-files` is given."""
    what = "and delete its files" if delete_files else "(its files stay)"
    if not yes and not session.as_json:
        typer.confirm(f"Drop table {name} {what}?", abort=True, err=True)
    dropped = session.client.drop(name, delete_files=delete_files)
    session.show({"dropped": name, **to_dictionaries(dropped)}, render.drop_sentence(dropped))


@verb("pause", Panel.COMPACTIONS, "neve pause users")
def pause(session: Session, name: Name) -> None:
    """Pause a table: no new job starts; running jobs continue."""
    session.show(session.client.pause(name), lambda table: f"{name} is {table.state}")


@verb("resume", Panel.COMPACTIONS, "neve resume users")
def resume(session: Session, name: Name) -> None:
    """Resume a paused table."""
    session.show(session.client.resume(name), lambda table: f"{name} is {table.state}")


def _say_unread(session: Session, table: api.Table, settings: list[str]) -> None:
    """Print a note for each given setting that has no effect."""
    for text in settings:
        name = known_name(text.partition("=")[0].strip()) or ""
        if name in table.without_effect:
            session.say(f"note: {name} {table.without_effect[name]}")


def _columns(texts: list[str] | None) -> dict[str, str]:
    """Return the types of columns written as `name:type`, by name. A type may contain colons."""
    columns: dict[str, str] = {}
    for text in texts or []:
        name, colon, kind = text.partition(":")
        if not (name and colon and kind):
            raise typer.BadParameter(f"{text!r} is not a column, expected `name:type`")
        if name in columns:
            raise typer.BadParameter(f"column {name!r} is given twice")
        columns[name] = kind
    return columns
