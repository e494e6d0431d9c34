"""`neve gc`: the listing sweep, and giving what it finds to the collector."""

from dataclasses import dataclass

from common.errors import RefusedError
from common.metadata.changes import Applied
from neve.recovery.check_place import check_generation, check_neighbours, check_owner
from neve.recovery.findings import Code, Finding
from neve.recovery.scope import Scope
from neve.recovery.sweep import find_orphans

LISTED = frozenset({Code.ORPHANED, Code.EVIDENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a sweep came to."""

    found: tuple[Finding, ...]
    """Orphans and evidence only."""
    orphans: int
    orphan_bytes: int
    evidence: int
    """Files that stay because they may hold the only copy of rows; found with the orphans."""
    given: int
    """Files that are garbage now; the collector deletes them after the grace."""
    young: int
    marks: int


async def collect_orphans(scope: Scope, *, delete: bool) -> Collected:
    """Find files that no key knows, and give them to the collector if asked to.

    Args:
        scope: The table.
        delete: Without it nothing is written.

    Raises:
        RefusedError: The location is another store's, or the store has gone back in time:
            what it does not know may be acknowledged rows.
    """
    for check in (check_owner, check_neighbours, check_generation) if delete else ():
        if bars := await check(scope):
            raise RefusedError(bars[0].sentence)
    generation = await scope.generation()
    swept = await find_orphans(scope)
    found = tuple(each for each in swept.findings if each.code in LISTED)
    given = 0
    for finding in found if delete else ():
        for change in finding.changes_at(generation):
            # Refused: somebody has added or reserved it since, so it is no orphan; or the
            # store has gone back since the look.
            given += isinstance(await scope.store.apply(change), Applied)
    return Collected(
        found=found,
        orphans=sum(each.code is Code.ORPHANED for each in found),
        orphan_bytes=swept.orphan_bytes,
        evidence=sum(each.code is Code.EVIDENCE for each in found),
        given=given,
        young=swept.young,
        marks=swept.marks,
    )
