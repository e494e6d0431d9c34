"""Add files that lie in a table's location: look into each, route it, one change for all.

Nothing is written before every file was found to fit, and then all in one transaction.
The mark of the call makes a repetition harmless.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from common.errors import RefusedError
from common.metadata.changes import AddFiles, Applied, Refused
from common.metadata.ports import TabletStore
from common.model.table import Table
from common.parquet.inspect import FileFacts, inspect_file
from common.parquet.location import Location, open_location
from common.rows.evolution import schema_id_of
from common.rows.partitions import partition_of_path
from common.rows.rules import RowRules
from neve import api
from neve.gateway.columns import refuse_unknown
from neve.gateway.moving import Moving
from neve.gateway.problems import ChangeRefusedError, applied
from neve.gateway.route import Routed, checked_call, distinct, tablet_of
from neve.gateway.services import Services, check_writable

FILES_MAX = 10_000


async def add_files(
    services: Services, table: Table, paths: Sequence[str], call: str | None
) -> api.Added:
    """Add files to a table: all of them, or none.

    Args:
        services: Ports.
        table: Where.
        paths: As the user wrote them.
        call: The caller's id of this call.

    Raises:
        RequestError: A file is not below the location, unreadable, does not fit the schema
            or crosses tablets; the message names it.
        RefusedError: The table or a tablet does not take it now.
    """
    call = checked_call(call, await services.store.now_s())
    await check_writable(services, table)
    location = open_location(table.location)
    plain = distinct([location.relative(path.strip()) for path in paths], FILES_MAX)
    grace_s = services.settings.coordinator.garbage_grace_s
    moving = Moving()
    while not moving.tired:
        began_s = await services.store.now_s()
        await _refuse_garbage(services, table, plain, call)
        facts = await _inspect(services, location, table, plain)
        refuse_unknown(table, [(f"file {each.path}", each.schema) for each in facts])
        routed = await _route(services, table, facts, began_s)
        if await services.store.now_s() - began_s > grace_s:
            # Within so long a collector may have deleted a file that we saw.
            moving.took_too_long()
            continue
        outcome = await services.store.apply(routed_change(table, call, routed))
        if await moving.again(outcome, cuts=False):
            continue
        applied(outcome)
        return routed.view(table, call)
    raise RefusedError(f"table {table.name!r}: its tablets keep changing; try again")


def routed_change(table: Table, call: str, routed: Routed) -> AddFiles:
    """Return the one change that adds all files."""
    files = {end: tuple(each) for end, each in routed.files.items()}
    return AddFiles(table=table.id, call=call, files=files, partitions=routed.partitions)


async def _inspect(
    services: Services, location: Location, table: Table, paths: Sequence[str]
) -> list[FileFacts]:
    rules = RowRules.of(table)
    work = [services.footers.run(inspect_file, location, path, rules) for path in paths]
    # All are awaited, so that none goes on behind a refusal's back; the first refusal tells.
    results = await asyncio.gather(*work, return_exceptions=True)
    facts: list[FileFacts] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        facts.append(result)
    return facts


async def _route(
    services: Services, table: Table, facts: Sequence[FileFacts], now_s: float
) -> Routed:
    routed = Routed()
    for each in facts:
        schema_id = schema_id_of(table, each.schema)
        file = replace(each.data_file(added_at_s=now_s), schema_id=schema_id)
        if table.partition_by:
            partition = partition_of_path(table, file.path)
            routed.put(partition.end, file, partition)
        else:
            routed.put(await tablet_of(services, table, file), file)
    return routed


async def _refuse_garbage(
    services: Services, table: Table, paths: Sequence[str], call: str
) -> None:
    """Refuse files that a collector may be deleting at this moment.

    Looked at before the footers, because afterwards the entry may be gone, and the file
    with it. A call that was made before is let through: its mark answers it.
    """
    garbage = {entry.path for entry in await services.store.garbage(table.id)}
    taken = [path for path in paths if path in garbage]
    if taken and not await _was_made(services.store, table, call):
        raise ChangeRefusedError(
            f"file {taken[0]} was replaced by a compaction and is being deleted; "
            "add it under another name",
            "exists",
        )


async def _was_made(store: TabletStore, table: Table, call: str) -> bool:
    """Return whether a call has its mark: a call without files is told so before all else."""
    outcome = await store.apply(AddFiles(table=table.id, call=call, files={}))
    return isinstance(outcome, Applied) or (isinstance(outcome, Refused) and outcome.code == "call")
