"""Results of recovery for people. Values in, renderables out; nothing is printed here."""

from collections.abc import Mapping

from rich.console import RenderableType

from common.units import format_bytes
from neve.api_recovery import Finding, FsckReport, GcReport, RebuildReport, RestoreReport
from neve.cli.render import facts, grid, lines, short


def fsck(report: FsckReport) -> RenderableType:
    """Return what a check came to."""
    looked = (
        f"{report.table}: {report.tablets:,} tablets, {report.files:,} files, "
        f"{format_bytes(report.size_bytes)}; {'sound' if report.sound else 'DAMAGED'}"
    )
    if not report.findings:
        return lines(looked)
    more = [f"and {report.more:,} more"] if report.more else []
    rows = [
        (each.code, each.path or short(each.tablet or "-"), each.sentence, _mending(each))
        for each in report.findings
    ]
    heads = [("CODE", ""), ("WHERE", ""), ("FOUND", ""), ("REPAIR", "")]
    return lines(looked, "", grid(heads, rows), *more)


def _mending(finding: Finding) -> str | None:
    if finding.done:
        return f"done: {finding.repair}"
    if finding.done is False:
        return f"not done: {finding.outcome}"
    return finding.repair or None


def gc(report: GcReport) -> RenderableType:
    """Return what a sweep came to."""
    what = "given to the collector" if report.given else "would go (--delete has them deleted)"
    count = report.given or report.files
    summary = (
        f"{report.table}: {count:,} files {what}, {format_bytes(report.size_bytes)}; "
        f"{report.young:,} too young, {report.marks:,} marks kept"
    )
    stays = (
        [f"{report.evidence:,} files stay: they may hold the only copy of rows (docs/recovery.md)"]
        if report.evidence
        else []
    )
    rows = [(each.path, each.sentence, each.repair or None) for each in report.orphans]
    return lines(grid([("PATH", ""), ("FOUND", ""), ("REPAIR", "")], rows), summary, *stays)


def rebuilt(report: RebuildReport) -> RenderableType:
    """Return what a rebuild came to."""
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
                ("files", f"{report.files:,}, {report.user_files:,} of them of users"),
                ("rows", f"{report.rows:,}"),
                ("size", format_bytes(report.size_bytes)),
            ]
        ),
        *_listed("lost, or perhaps lost", report.lost),
        *_listed("files that do not count", report.left),
        "",
        "not recovered:",
        *(f"  {each}" for each in report.not_recovered),
    )


def _listed(what: str, named: Mapping[str, str]) -> list[RenderableType | str]:
    if not named:
        return []
    return ["", f"{what}:", grid([("PATH", ""), ("WHY", "")], sorted(named.items()))]


def restored(report: RestoreReport) -> RenderableType:
    """Return what a restore came to."""
    heads = [("TABLE", ""), ("STATE", ""), ("TABLETS", ""), ("FILES", ""), ("LOCATION", "")]
    rows = [
        (each.table, each.state, each.tablets, each.files, each.location) for each in report.tables
    ]
    gone = [
        f"{each.table}: storage lacks {len(each.missing):,} files, the first is {each.missing[0]}"
        for each in report.tables
        if each.missing
    ]
    head = ["dry run: nothing was written"] if report.dry_run else []
    return lines(*head, grid(heads, rows), *gone)
