"""Repairs: findings become conditional changes, in an order in which none spoils another."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import CompactionError
from common.metadata.changes import Applied, Refused
from neve.recovery.findings import Code, Finding, Settled
from neve.recovery.fsck import Checked, fsck
from neve.recovery.scope import Scope

ROUNDS_MAX = 3
"""A tablet that was made may have to be counted: what is mended may show more."""
_FIRST = (
    Code.OWNER,
    Code.SHARED,
    Code.GENERATION,
    Code.HOLE,
    Code.OVERLAP,
    Code.DOUBLE,
    Code.STALE_GARBAGE,
    Code.STALE_RESERVATION,
)
_BARS = frozenset({Code.OWNER, Code.SHARED, Code.GENERATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a check may do."""

    repair: bool = False
    deep: bool = False
    adopt: bool = False
    accept: bool = False
    forget_missing: bool = False

    def allow(self, finding: Finding) -> bool:
        """Return whether a finding may be repaired."""
        match finding.code:
            case Code.OWNER:
                return self.adopt
            case Code.GENERATION:
                return self.accept
            case Code.MISSING:
                return self.forget_missing
            case _:
                return self.repair

    @property
    def writes(self) -> bool:
        """Whether anything may be written at all."""
        return self.repair or self.adopt or self.accept or self.forget_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found, and what was done about it."""

    checked: Checked
    settled: tuple[Settled, ...] = ()


async def check_and_repair(scope: Scope, options: Options) -> Report:
    """Check a table and repair what the options allow.

    Raises:
        MetadataError: The store did not answer as it should.
        UnavailableError: Store or storage do not answer.
    """
    checked = await fsck(scope, deep=options.deep)
    if not options.writes:
        return Report(checked=checked)
    settled: list[Settled] = []
    found: Sequence[Finding] = checked.findings
    for _ in range(ROUNDS_MAX):
        fresh = [each for each in found if each not in [done.finding for done in settled]]
        work = [each for each in fresh if _can(each) and options.allow(each)]
        if not work:
            break
        settled += await _repair_all(scope, work, fresh, options)
        found = (await fsck(scope, deep=options.deep)).findings
    return Report(checked=checked, settled=tuple(settled))


def _can(finding: Finding) -> bool:
    return bool(finding.changes) or finding.act is not None


async def _repair_all(
    scope: Scope, work: Sequence[Finding], found: Sequence[Finding], options: Options
) -> list[Settled]:
    """Repair findings, unless the table may not be touched at all."""
    bars = [each for each in found if each.code in _BARS and not options.allow(each)]
    scope.tell(f"repairing {len(work)} findings")
    generation = await scope.generation()
    settled = []
    for each in sorted(work, key=_place):
        if bars and each.code not in _BARS:
            settled.append(Settled(finding=each, done=False, outcome=f"first: {bars[0].repair}"))
        else:
            settled.append(await _repair(scope, each, generation))
    return settled


def _place(finding: Finding) -> tuple[int, str, str]:
    place = _FIRST.index(finding.code) if finding.code in _FIRST else len(_FIRST)
    return place, finding.code.value, finding.path or ""


async def _repair(scope: Scope, finding: Finding, generation: int) -> Settled:
    try:
        if finding.act is not None:
            await scope.run(finding.act)
        for change in finding.changes_at(generation):
            outcome = await scope.store.apply(change)
            if not isinstance(outcome, Applied):
                code = f" ({outcome.code})" if isinstance(outcome, Refused) else ""
                return Settled(finding=finding, done=False, outcome=outcome.reason + code)
    except CompactionError as error:
        return Settled(finding=finding, done=False, outcome=str(error))
    return Settled(finding=finding, done=True)
