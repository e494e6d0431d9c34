"""Repairs: apply the conditional changes of findings, in an order without conflicts."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import CompactionError
from common.metadata.changes import Applied, Refused
from neve.recovery.fsck import TableCheck, fsck
from neve.recovery.scope import Finding, FindingCode, RepairedFinding, TableScope

ROUNDS_MAX = 3
"""Limit of repair rounds: a repair may reveal further damage, such as a wrong count."""
_FIRST = (
    FindingCode.OWNER,
    FindingCode.SHARED,
    FindingCode.GENERATION,
    FindingCode.HOLE,
    FindingCode.OVERLAP,
    FindingCode.DOUBLE,
    FindingCode.STALE_GARBAGE,
    FindingCode.STALE_RESERVATION,
)
_BARS = frozenset({FindingCode.OWNER, FindingCode.SHARED, FindingCode.GENERATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """Repairs that a check may make."""

    repair: bool = False
    deep: bool = False
    adopt: bool = False
    accept: bool = False
    forget_missing: bool = False

    def allow(self, finding: Finding) -> bool:
        """Return whether a finding may be repaired."""
        match finding.code:
            case FindingCode.OWNER:
                return self.adopt
            case FindingCode.GENERATION:
                return self.accept
            case FindingCode.MISSING:
                return self.forget_missing
            case _:
                return self.repair

    @property
    def writes(self) -> bool:
        """Whether any repair is allowed."""
        return self.repair or self.adopt or self.accept or self.forget_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Findings of a check, and the outcomes of their repairs."""

    checked: TableCheck
    settled: tuple[RepairedFinding, ...] = ()


async def check_and_repair(scope: TableScope, options: RepairOptions) -> RepairReport:
    """Check a table, and repair the findings that the options allow.

    Raises:
        MetadataError: The store gave an unexpected answer.
        UnavailableError: Store or storage does not answer.
    """
    checked = await fsck(scope, deep=options.deep)
    if not options.writes:
        return RepairReport(checked=checked)
    settled: list[RepairedFinding] = []
    findings: Sequence[Finding] = checked.findings
    for _ in range(ROUNDS_MAX):
        done = {repaired.finding for repaired in settled}
        fresh = [finding for finding in findings if finding not in done]
        work = [
            finding
            for finding in fresh
            if (finding.changes or finding.act is not None) and options.allow(finding)
        ]
        if not work:
            break
        settled += await _repair_all(scope, work, fresh, options)
        findings = (await fsck(scope, deep=options.deep)).findings
    return RepairReport(checked=checked, settled=tuple(settled))


async def _repair_all(
    scope: TableScope, work: Sequence[Finding], findings: Sequence[Finding], options: RepairOptions
) -> list[RepairedFinding]:
    """Repair findings; if owner or generation must be settled first, repair nothing else."""
    bars = [finding for finding in findings if finding.code in _BARS and not options.allow(finding)]
    scope.on_progress(f"repairing {len(work)} findings")
    generation = await scope.generation()
    settled = []
    for finding in sorted(work, key=_repair_order):
        if bars and finding.code not in _BARS:
            settled.append(
                RepairedFinding(finding=finding, done=False, outcome=f"first: {bars[0].repair}")
            )
        else:
            settled.append(await _repair(scope, finding, generation))
    return settled


def _repair_order(finding: Finding) -> tuple[int, str, str]:
    order = _FIRST.index(finding.code) if finding.code in _FIRST else len(_FIRST)
    return order, finding.code.value, finding.path or ""


async def _repair(scope: TableScope, finding: Finding, generation: int) -> RepairedFinding:
    try:
        if finding.act is not None:
            await scope.run(finding.act)
        for change in finding.changes_at(generation):
            outcome = await scope.store.apply(change)
            if not isinstance(outcome, Applied):
                code = f" ({outcome.code})" if isinstance(outcome, Refused) else ""
                return RepairedFinding(finding=finding, done=False, outcome=outcome.reason + code)
    except CompactionError as error:
        return RepairedFinding(finding=finding, done=False, outcome=str(error))
    return RepairedFinding(finding=finding, done=True)
