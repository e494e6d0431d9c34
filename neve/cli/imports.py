"""`neve table import` and `neve table export`."""

import codecs
import sys
from pathlib import Path
from typing import Annotated, Literal, Self

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from common.units import format_bytes, format_count
from neve.api import ImportProgress, ImportReport
from neve.cli.render import RIGHT, facts, grid, lines
from neve.cli.session import (
    Columns,
    Name,
    Panel,
    Session,
    Settings,
    TerminalConsole,
    absolute,
    name_values,
    names,
    verb,
)

# ------------------------------------------------------------------------------- Results for people


SHOWN_MAX = 20


def render_import(report: ImportReport) -> RenderableType:
    """Render the result of an import or of its dry run."""
    new = report.files - report.already
    head = facts(
        [
            ("table", report.table + (" (dry run: nothing was written)" if report.dry_run else "")),
            ("location", report.location),
            ("state", report.state or None),
            ("files", f"{report.files:,}, {report.already:,} of them imported earlier"),
            (
                "new",
                f"{format_count(new, 'file')}, {format_count(report.rows, 'row')}, "
                f"{format_bytes(report.size_bytes)}",
            ),
            ("left out", f"{report.misfits:,} do not fit, {report.ignored:,} hidden"),
            ("key", ", ".join(report.key) or None),
            ("partitions", _partitions(report)),
            ("columns", ", ".join(f"{column.name} {column.type}" for column in report.schema)),
        ]
    )
    parts: list[RenderableType | str] = [head]
    if report.per_partition:
        parts += ["", _per_partition(report)]
        parts += _more(len(report.per_partition), report.partitions, "partitions")
    if report.misfit_files:
        rows = [
            (misfit_file.path, misfit_file.why) for misfit_file in report.misfit_files[:SHOWN_MAX]
        ]
        parts += ["", grid([("DOES NOT FIT", ""), ("BECAUSE", "")], rows)]
        parts += _more(len(report.misfit_files), report.misfits, "files")
    return lines(*parts, *(f"\nnote: {note}" for note in report.notes))


def _partitions(report: ImportReport) -> str | None:
    if not report.partition_by:
        return None
    return f"{report.partitions:,} by {', '.join(report.partition_by)}"


def _per_partition(report: ImportReport) -> RenderableType:
    rows = [
        (totals.partition, f"{totals.files:,}", f"{totals.rows:,}", format_bytes(totals.size_bytes))
        for totals in report.per_partition[:SHOWN_MAX]
    ]
    heads = [("PARTITION", ""), ("FILES", RIGHT), ("ROWS", RIGHT), ("SIZE", RIGHT)]
    return grid(heads, rows)


def _more(listed: int, every: int, what: str) -> list[str]:
    hidden = every - min(listed, SHOWN_MAX)
    return [f"and {hidden:,} more {what}; --json lists them"] if hidden else []


# -------------------------------------------------------------------------------------------- Verbs


EXIT_MISFITS = 1

VersionColumn = Annotated[
    str | None,
    typer.Option(
        "--version-column", "--version", help="Version column: the row with the higher value wins."
    ),
]
TombstoneColumn = Annotated[
    str | None,
    typer.Option("--tombstone-column", "--tombstone", help="Bool column that marks deleted rows."),
]


LeaveMisfits = Annotated[
    bool, typer.Option("--leave-misfits", help="Import the files that fit and skip the others.")
]
ReadersUseManifest = Annotated[
    bool,
    typer.Option(
        "--readers-use-manifest",
        help=(
            "Start compacting at once, because every reader uses the manifest. Default: the table "
            "is paused."
        ),
    ),
]
Timestamps = Annotated[
    Literal["us", "us-truncated"] | None,
    typer.Option(
        help="Copy files with nanoseconds in microseconds. `us` refuses a value with more "
        "digits, `us-truncated` cuts them off."
    ),
]


@verb(
    "table import",
    Panel.TABLES,
    "neve table import s3://lake/users --name users --key id --dry-run",
)
def import_(
    session: Session,
    location: Annotated[
        str, typer.Argument(help="Directory to import: a URI or path.", metavar="LOCATION")
    ],
    *,
    name: Annotated[str, typer.Option(help="Name of the new table.")],
    key: Columns = None,
    version_column: VersionColumn = None,
    tombstone_column: TombstoneColumn = None,
    time_column: Annotated[
        str | None,
        typer.Option("--time-column", "--time", help="Column for expiry and time windows."),
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(help="Partition columns. Default: those named by the folders.")
    ] = None,
    partition_type: Annotated[
        list[str] | None,
        typer.Option(help="Type of a partition column, `column=type`; may be repeated."),
    ] = None,
    settings: Settings = None,
    timestamps: Timestamps = None,
    leave_misfits: LeaveMisfits = False,
    readers_use_manifest: ReadersUseManifest = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
) -> None:
    """Create a table from a directory of Parquet files. Run it again to continue after a failure.

    With --dry-run, the exit code is 1 if files do not fit.
    """
    with _Bar(session) as bar:
        report = session.client.import_table(
            absolute(location),
            name,
            progress=bar.show,
            key=names(key),
            version_column=version_column,
            tombstone_column=tombstone_column,
            time_column=time_column,
            partition_by=None if partition_by is None else names(partition_by),
            partition_types=name_values(partition_type or [], "partition type"),
            settings=name_values(settings or [], "setting"),
            timestamps=timestamps,
            leave_misfits=leave_misfits,
            readers_use_manifest=readers_use_manifest,
            dry_run=dry_run,
        )
    session.show(report, render_import)
    if report.misfits and not leave_misfits:
        raise typer.Exit(EXIT_MISFITS)


@verb("table export", Panel.TABLES, "neve table export users --to files.txt")
def export(
    session: Session,
    name: Name,
    to: Annotated[Path | None, typer.Option("--to", help="File to write.")] = None,
) -> None:
    """Write the names of the table's current files, one per line, or with --json the manifest."""
    as_names = not session.as_json
    if to is None:
        text = codecs.getincrementaldecoder("utf-8")()  # A chunk may end inside a character.
        session.client.export(
            name, names=as_names, write=lambda data: session.write(text.decode(data))
        )
        return
    size_bytes = session.client.export(name, to, names=as_names)
    session.show(
        {"output": str(to), "size_bytes": size_bytes}, f"wrote {size_bytes:,} bytes to {to}"
    )


class _Bar:
    """Progress output on standard error: a bar on a terminal, else a line per phase."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._shown = ""
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not session.as_json:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[progress]}"),
                DownloadColumn(binary_units=True),
                TimeRemainingColumn(),
                console=TerminalConsole(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("begun", total=None, progress="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: ImportProgress) -> None:
        """Show the progress of the import."""
        if self._bar is None:
            if progress.files and progress.text != self._shown:
                self._shown = progress.text
                self._session.say(f"{progress.text}: {format_count(progress.files, 'file')}")
            return
        if not progress.files:
            self._bar.update(self._task, description=progress.text)
            return
        if progress.text != self._shown:
            self._shown = progress.text
            self._bar.reset(self._task)
        self._bar.update(
            self._task,
            description=progress.text,
            progress=f"{progress.files_done:,} of {format_count(progress.files, 'file')}, "
            f"{format_count(progress.rows, 'row')}",
            completed=progress.bytes_done,
            total=max(1, progress.size_bytes),
        )
