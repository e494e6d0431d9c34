"""Whose is a location, and has the store gone back in time? And taking both on."""

from functools import partial

from common.metadata.changes import AcceptGeneration
from common.metadata.mutation.tables import location_overlap
from common.model.location_identity import overlap_test
from common.parquet.resolved_locations import resolve_location
from common.parquet.service_files import (
    OWNER_PATH,
    UNREADABLE_GENERATION,
    LocationOwner,
    generation_fault,
    write_generation,
    write_owner,
    written_generation,
)
from neve.recovery.findings import Finding, FindingCode
from neve.recovery.scope import TableScope, identities_now


async def check_location_owner(scope: TableScope) -> list[Finding]:
    """Return a finding if the location does not belong to this store, or to another table."""
    ours, found = await scope.store.store_id(), await scope.owner()
    if found is None:
        whose = f"nobody ({OWNER_PATH} is missing)"
    elif found.store != ours:
        whose = f"the store {found.store}"
    elif found.is_another(scope.table.id):
        whose = f"the table with id {found.table}, and this one's is {scope.table.id}"
    else:
        return []
    mine = LocationOwner(ours, scope.table.id)
    return [
        Finding(
            code=FindingCode.OWNER,
            path=OWNER_PATH,
            sentence=f"the location belongs to {whose}; this store is {ours}",
            repair="--adopt writes this store's and table's id into it: only if nobody else "
            "works there",
            act=partial(write_owner, scope.location, mine),
        )
    ]


async def check_shared_files(scope: TableScope) -> list[Finding]:
    """Return a finding for each table that shares files with this one, whatever it is called."""
    named = [each for each in await scope.store.named_tables() if each.id != scope.table.id]
    known = await identities_now(scope.threads, named)
    mine = overlap_test((await scope.run(resolve_location, scope.table.location)).identity)
    return [
        Finding(
            code=FindingCode.SHARED,
            path=OWNER_PATH,
            sentence=location_overlap(scope.table.location, each.location, each.name),
            repair="nothing: copy one table's files to a place of their own "
            "(`neve backup --copy-to`), restore it there and drop it here",
        )
        for each in named
        if mine(known[each.id])
    ]


async def check_generation(scope: TableScope) -> list[Finding]:
    """Return a finding if the store is older than the location."""
    written = await scope.run(written_generation, scope.location)
    stored = await scope.store.generation(scope.table.id)
    reason = generation_fault(scope.table.name, stored, written)
    if reason is None:
        return []
    scribbled = written == UNREADABLE_GENERATION
    beyond = 1 + (stored if scribbled else written)
    accept = AcceptGeneration(table=scope.table.id, generation=beyond, lost=True)
    return [
        Finding(
            code=FindingCode.GENERATION,
            sentence=reason,
            repair="--accept takes the table as the store has it, and lets it be written again",
            changes=(accept,),
            act=partial(write_generation, scope.location, stored) if scribbled else None,
        )
    ]
