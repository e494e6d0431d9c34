"""`neve fsck`, `gc`, `rebuild`, `backup` and `restore`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from common.units import format_bytes, format_count
from neve.api import Finding, FsckReport, GcReport, RebuildReport, RestoreReport
from neve.cli.render import TabletKeys, facts, grid, lines, shortened
from neve.cli.session import Columns, Name, Panel, Session, absolute, name_values, names, verb

# ------------------------------------------------------------------------------- Results for people


def render_fsck(report: FsckReport, keys: TabletKeys) -> RenderableType:
    """Render the findings of a check. `keys` maps tablets to their keys."""
    summary = (
        f"{report.table}: {format_count(report.tablets, 'tablet')}, "
        f"{format_count(report.files, 'file')}, "
        f"{format_bytes(report.size_bytes)}; {'sound' if report.sound else 'DAMAGED'}"
    )
    if not report.findings:
        return lines(summary)
    more = [f"and {report.more:,} more"] if report.more else []
    rows = [
        (
            finding.code,
            _place_text(finding, report.table, keys),
            finding.sentence,
            _repair_lines(finding),
        )
        for finding in report.findings
    ]
    heads = [("CODE", ""), ("WHERE", ""), ("FOUND", ""), ("REPAIR", "")]
    return lines(summary, "", grid(heads, rows), *more)


def _place_text(finding: Finding, table: str, keys: TabletKeys) -> str:
    if finding.path:
        return finding.path
    return shortened(keys(table, finding.tablet)) if finding.tablet else "-"


def _repair_lines(finding: Finding) -> str | None:
    if finding.done:
        return f"done: {finding.repair}"
    if finding.done is False:
        return f"not done: {finding.outcome}"
    return finding.repair or None


def render_gc(report: GcReport) -> RenderableType:
    """Render the result of a listing sweep."""
    what = (
        "will be deleted after the grace period"
        if report.given
        else "can be deleted (--delete deletes them)"
    )
    count = report.given or report.files
    summary = (
        f"{report.table}: {format_count(count, 'file')} {what}, {format_bytes(report.size_bytes)}; "
        f"{report.young:,} too young, {format_count(report.marks, 'mark')} kept"
    )
    stays = (
        [
            f"{format_count(report.evidence, 'file stays', 'files stay')}: these may hold "
            "the only copy of rows (docs/recovery.md)"
        ]
        if report.evidence
        else []
    )
    rows = [(orphan.path, orphan.sentence, orphan.repair or None) for orphan in report.orphans]
    return lines(grid([("PATH", ""), ("FOUND", ""), ("REPAIR", "")], rows), summary, *stays)


def render_rebuild(report: RebuildReport) -> RenderableType:
    """Render the result of a rebuild."""
    return lines(
        facts(
            [
                ("table", report.table + (" (dry run)" if report.dry_run else "")),
                ("location", report.location),
                ("state", report.state),
                (
                    "begun with",
                    "footers" if report.manifest is None else f"manifest {report.manifest}",
                ),
                ("tablets", f"{report.tablets:,}"),
                ("files", f"{report.files:,}, {report.user_files:,} of them added by users"),
                ("rows", f"{report.rows:,}"),
                ("size", format_bytes(report.size_bytes)),
            ]
        ),
        *_limited_list("lost, or possibly lost", report.lost),
        *_limited_list("files that were not used", report.left),
        "",
        "not recovered:",
        *(f"  {sentence}" for sentence in report.not_recovered),
    )


def _limited_list(what: str, named: Mapping[str, str]) -> list[RenderableType | str]:
    if not named:
        return []
    return ["", f"{what}:", grid([("PATH", ""), ("WHY", "")], sorted(named.items()))]


def render_restore(report: RestoreReport) -> RenderableType:
    """Render the result of a restore."""
    heads = [("TABLE", ""), ("STATE", ""), ("TABLETS", ""), ("FILES", ""), ("LOCATION", "")]
    rows = [
        (table.table, table.state, table.tablets, table.files, table.location)
        for table in report.tables
    ]
    gone = [
        f"{table.table}: storage lacks {format_count(len(table.missing), 'file')}, the first "
        f"is {table.missing[0]}"
        for table in report.tables
        if table.missing
    ]
    gone += [
        f"{table.table}: {format_count(len(table.unused), 'file')} in the location are not in "
        f"the archive and were not recovered; the first is {table.unused[0]}"
        for table in report.tables
        if table.unused
    ]
    head = ["dry run: nothing was written"] if report.dry_run else []
    rest = ["", "not restored:", *(f"  {sentence}" for sentence in report.not_recovered)]
    return lines(*head, grid(heads, rows), *gone, *(rest if report.not_recovered else ()))


# -------------------------------------------------------------------------------------------- Verbs


Pairs = Annotated[list[str] | None, typer.Option(help="`TABLE=VALUE`; may be repeated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing.")]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Take over a location that belongs to another store.")
]


@verb("fsck", Panel.REPAIR, "neve fsck users --repair")
def fsck(
    session: Session,
    name: Name,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every file.")] = False,
    adopt: Adopt = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept that the store has lost recent changes.")
    ] = False,
    forget_missing: Annotated[
        bool,
        typer.Option(
            "--forget-missing", help="Remove files from the metadata that storage has lost."
        ),
    ] = False,
) -> None:
    """Check the metadata and files of a table. Nothing is written without --repair."""
    report = session.client.fsck(
        name,
        progress=session.say,
        repair=repair,
        deep=deep,
        adopt=adopt,
        accept=accept,
        forget_missing=forget_missing,
    )
    session.show(report, lambda report: render_fsck(report, session.keys))
    if not report.sound:
        raise typer.Exit(1)


@verb("gc", Panel.REPAIR, "neve gc users --delete")
def gc(
    session: Session,
    name: Name,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the files after the grace period.")
    ] = False,
) -> None:
    """Find files that no metadata refers to. Nothing is deleted without --delete."""
    session.show(session.client.gc(name, delete=delete, progress=session.say), render_gc)


@verb("rebuild", Panel.REPAIR, "neve rebuild s3://lake/users --name users --dry-run")
def rebuild(
    session: Session,
    location: Annotated[
        str, typer.Argument(help="Location of the table's files.", metavar="LOCATION")
    ],
    *,
    name: Annotated[str, typer.Option(help="Name of the new table.")],
    key: Columns = None,
    version: Annotated[str | None, typer.Option(help="Version column.")] = None,
    tombstone: Annotated[str | None, typer.Option(help="Tombstone column.")] = None,
    time: Annotated[str | None, typer.Option(help="Time column.")] = None,
    partition_by: Columns = None,
    append_only: Annotated[
        bool, typer.Option("--append-only", help="The table has no key.")
    ] = False,
    user_files: Annotated[
        bool, typer.Option(help="Whether to treat Parquet files of users as added.")
    ] = True,
    adopt: Adopt = False,
    dry_run: DryRun = False,
) -> None:
    """Recreate a table from its files after its metadata was lost.

    Key and columns are needed only if `_neve/table.json` is lost as well.
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
    session.show(report, render_rebuild)


@verb("backup", Panel.REPAIR, "neve backup all --output backup.neve")
def backup(
    session: Session,
    table: Annotated[
        str,
        typer.Argument(help="Name of the table, or `all`.", metavar="TABLE", show_default=False),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write.")],
    hold: Annotated[
        str,
        typer.Option(
            help="Keep replaced files for this time so that they can be copied, such as `1h`."
        ),
    ] = "0s",
    copy_to: Annotated[
        str | None, typer.Option(help="Also copy the files to this location.")
    ] = None,
) -> None:
    """Write the metadata of a table, or of all tables, into an archive."""
    size = session.client.backup(
        output,
        () if table == "all" else (table,),
        hold=hold,
        copy_to=None if copy_to is None else absolute(copy_to),
        progress=session.say,
    )
    session.show({"output": str(output), "size_bytes": size}, f"wrote {size:,} bytes to {output}")


@verb("restore", Panel.REPAIR, "neve restore backup.neve --rename users=old_users")
def restore(
    session: Session,
    archive: Annotated[
        Path, typer.Argument(help="Archive written by `backup`.", metavar="ARCHIVE", exists=True)
    ],
    *,
    location: Pairs = None,
    rename: Pairs = None,
    table: Annotated[
        list[str] | None,
        typer.Option(help="Table to restore; may be repeated. Default: all tables."),
    ] = None,
    adopt: Adopt = False,
    dry_run: DryRun = False,
) -> None:
    """Recreate the tables of an archive. Their files must exist in their locations."""
    locations = name_values(location or [], "location")
    report = session.client.restore(
        archive,
        names=name_values(rename or [], "name"),
        locations={name: absolute(location) for name, location in locations.items()},
        only=table or (),
        adopt=adopt,
        dry_run=dry_run,
        progress=session.say,
    )
    session.show(report, render_restore)
