"""Whose is a location, and has the store gone back in time? And taking both on."""

from functools import partial

from common.metadata.repair_changes import AcceptGeneration
from common.parquet.generation import UNREADABLE, behind, write_generation, written_generation
from common.parquet.location import Location
from common.parquet.owner import OWNER_PATH
from common.parquet.small_files import write_small
from neve.recovery.findings import Code, Finding
from neve.recovery.scope import Scope


async def check_owner(scope: Scope) -> list[Finding]:
    """Return a finding if the location does not belong to this store."""
    ours, found = await scope.store.store_id(), await scope.owner()
    if found == ours:
        return []
    whose = f"the store {found}" if found else f"nobody ({OWNER_PATH} is missing)"
    return [
        Finding(
            code=Code.OWNER,
            path=OWNER_PATH,
            sentence=f"the location belongs to {whose}, this store is {ours}",
            repair="--adopt writes this store's id into it: only if no other store lives there",
            act=partial(adopt, scope.location, ours),
        )
    ]


def adopt(location: Location, store: str) -> None:
    """Make a location this store's, whoever's it was.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    write_small(location, OWNER_PATH, store.encode() + b"\n")


async def check_generation(scope: Scope) -> list[Finding]:
    """Return a finding if the store is older than the location."""
    written = await scope.threads.run(written_generation, scope.location)
    stored = await scope.store.generation(scope.table.id)
    reason = behind(scope.table.name, stored, written)
    if reason is None:
        return []
    scribbled = written == UNREADABLE
    accept = AcceptGeneration(table=scope.table.id, generation=written + 1)
    return [
        Finding(
            code=Code.GENERATION,
            sentence=reason,
            repair="--accept takes the table as the store has it, and lets it be written again",
            changes=() if scribbled else (accept,),
            act=partial(write_generation, scope.location, stored) if scribbled else None,
        )
    ]
