"""Results of an import for people. Values in, renderables out; nothing is printed here."""

from rich.console import RenderableType

from common.units import format_bytes
from neve.api_import import ImportReport
from neve.cli.render import RIGHT, facts, grid, lines

SHOWN_MAX = 20


def imported(report: ImportReport) -> RenderableType:
    """Return what an import came to, or would."""
    new = report.files - report.already
    head = facts(
        [
            ("table", report.table + (" (dry run: nothing was written)" if report.dry_run else "")),
            ("location", report.location),
            ("state", report.state or None),
            ("files", f"{report.files:,}, {report.already:,} of them there already"),
            ("new", f"{new:,} files, {report.rows:,} rows, {format_bytes(report.size_bytes)}"),
            ("left out", f"{report.misfits:,} do not fit, {report.ignored:,} hidden"),
            ("key", ", ".join(report.key) or None),
            ("partitions", _partitions(report)),
            ("columns", ", ".join(f"{each.name} {each.type}" for each in report.schema)),
        ]
    )
    parts: list[RenderableType | str] = [head]
    if report.per_partition:
        parts += ["", _per_partition(report)]
        parts += _more(len(report.per_partition), report.partitions, "partitions")
    if report.misfit_files:
        rows = [(each.path, each.why) for each in report.misfit_files[:SHOWN_MAX]]
        parts += ["", grid([("DOES NOT FIT", ""), ("BECAUSE", "")], rows)]
        parts += _more(len(report.misfit_files), report.misfits, "files")
    return lines(*parts, *(f"\nnote: {each}" for each in report.notes))


def _partitions(report: ImportReport) -> str | None:
    if not report.partition_by:
        return None
    return f"{report.partitions:,} by {', '.join(report.partition_by)}"


def _per_partition(report: ImportReport) -> RenderableType:
    rows = [
        (each.partition, f"{each.files:,}", f"{each.rows:,}", format_bytes(each.size_bytes))
        for each in report.per_partition[:SHOWN_MAX]
    ]
    heads = [("PARTITION", ""), ("FILES", RIGHT), ("ROWS", RIGHT), ("SIZE", RIGHT)]
    return grid(heads, rows)


def _more(listed: int, every: int, what: str) -> list[str]:
    hidden = every - min(listed, SHOWN_MAX)
    return [f"and {hidden:,} more {what}; --json lists them"] if hidden else []
