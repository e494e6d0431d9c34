"""`neve gc`: the listing sweep, and giving what it finds to the collector."""

from dataclasses import dataclass

from common.errors import RefusedError
from common.metadata.changes import Applied
from neve.recovery.check_place import check_generation, check_owner
from neve.recovery.findings import Code, Finding
from neve.recovery.scope import Scope
from neve.recovery.sweep import find_orphans


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a sweep came to."""

    found: tuple[Finding, ...]
    """Orphans only."""
    orphans: int
    orphan_bytes: int
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
    bars = [*await check_owner(scope), *await check_generation(scope)] if delete else []
    if bars:
        raise RefusedError(bars[0].sentence)
    swept = await find_orphans(scope)
    found = tuple(each for each in swept.findings if each.code is Code.ORPHANED)
    given = 0
    for finding in found if delete else ():
        for change in finding.changes:
            # Refused: somebody has added or reserved it since. So it is no orphan.
            given += isinstance(await scope.store.apply(change), Applied)
    return Collected(
        found=found,
        orphans=len(found),
        orphan_bytes=swept.orphan_bytes,
        given=given,
        young=swept.young,
        marks=swept.marks,
    )
