"""What recovery found, as wire models. Lists are bounded; what is left out is counted."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from common.model.table import Table
from neve import api_recovery as api
from neve.recovery.findings import NOTES, UNDER_WAY, Finding, Settled
from neve.recovery.founding import Founded
from neve.recovery.gc import Collected
from neve.recovery.rebuild import Rebuilt
from neve.recovery.repair import Report

LISTED_MAX = 10_000


def fsck_view(table: Table, report: Report) -> api.FsckReport:
    """Return what a check came to."""
    settled = {id(each.finding): each for each in report.settled}
    known = [each.finding for each in report.settled]
    first = report.checked.findings
    findings = [*first, *(each for each in known if each not in first)]
    views = [finding_view(each, _settled(each, report.settled, settled)) for each in findings]
    pairs = list(zip(views, findings, strict=True))
    wrong = [view for view, each in pairs if each.code not in NOTES]
    return api.FsckReport(
        table=table.name,
        sound=all(view.done and view.code not in UNDER_WAY for view in wrong),
        findings=tuple(views[:LISTED_MAX]),
        more=max(0, len(views) - LISTED_MAX),
        tablets=report.checked.tablets,
        files=report.checked.files,
        size_bytes=report.checked.size_bytes,
    )


def _settled(
    finding: Finding, all_settled: Sequence[Settled], by_id: Mapping[int, Settled]
) -> Settled | None:
    if id(finding) in by_id:
        return by_id[id(finding)]
    return next((each for each in all_settled if each.finding == finding), None)


def finding_view(finding: Finding, settled: Settled | None = None) -> api.Finding:
    """Return a finding, and what became of it."""
    return api.Finding(
        code=finding.code.value,
        sentence=finding.sentence,
        repair=finding.repair,
        path=finding.path,
        tablet=None if finding.tablet is None else finding.tablet.text,
        done=None if settled is None else settled.done,
        outcome="" if settled is None else settled.outcome,
    )


def gc_view(table: Table, done: Collected) -> api.GcReport:
    """Return what a sweep came to."""
    return api.GcReport(
        table=table.name,
        orphans=tuple(finding_view(each) for each in done.found[:LISTED_MAX]),
        files=done.orphans,
        size_bytes=done.orphan_bytes,
        given=done.given,
        young=done.young,
        evidence=done.evidence,
        marks=done.marks,
    )


def rebuilt_view(done: Rebuilt, *, dry_run: bool) -> api.RebuildReport:
    """Return what a rebuild came to."""
    return api.RebuildReport(
        table=done.table.name,
        location=done.table.location,
        state=done.table.state.value,
        tablets=done.tablets,
        files=len(done.files),
        rows=sum(file.rows for file in done.files),
        size_bytes=sum(file.size_bytes for file in done.files),
        user_files=done.user_files,
        left=_bounded(done.left),
        lost=_bounded(done.lost),
        not_recovered=done.not_recovered,
        manifest=done.manifest,
        dry_run=dry_run,
    )


def restored_view(done: Iterable[Founded], *, dry_run: bool) -> api.RestoreReport:
    """Return what a restore came to."""
    tables = (
        api.Restored(
            table=each.table.name,
            location=each.table.location,
            state=each.table.state.value,
            tablets=each.tablets,
            files=each.files,
            missing=each.missing[:LISTED_MAX],
        )
        for each in done
    )
    return api.RestoreReport(tables=tuple(tables), dry_run=dry_run)


def _bounded(named: Mapping[str, str]) -> dict[str, str]:
    return dict(islice(sorted(named.items()), LISTED_MAX))
