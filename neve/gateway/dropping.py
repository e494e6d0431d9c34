"""Drop a table, and tell what its name still waits for.

The name of a dropped table is free when the collector has deleted what was replaced in it, and
with `delete_files` all of its files. Until then the table is `going`.
"""

from datetime import UTC, datetime

from common.metadata.changes import DropTable
from common.model.table import Table, TableState
from neve import api
from neve.gateway.problems import ChangeRefusedError, applied
from neve.gateway.services import Services


async def drop_table(services: Services, table: Table, *, delete_files: bool) -> api.Dropped:
    """Drop a table, or go on with a drop that was broken off.

    Raises:
        RefusedError: It was dropped before, and its name waits for the collector.
    """
    applied(await services.store.apply(DropTable(table=table.id, delete_files=delete_files)))
    left = await left_of(services, table)
    if left.files_left and table.state is TableState.GOING:
        raise going(left)
    return left


async def refuse_going(services: Services, name: str) -> None:
    """Refuse a name that a dropped table still has.

    Raises:
        RefusedError: It does; says until when.
    """
    present = await services.store.table_named(name)
    if present is not None and present.state is TableState.GOING:
        raise going(await left_of(services, present))


async def left_of(services: Services, table: Table) -> api.Dropped:
    """Return what the name of a dropped table waits for."""
    if await services.store.table(table.id) is None:
        return api.Dropped(table=table.name)
    entries = await services.store.garbage(table.id)
    rules, now_s = services.settings.coordinator, await services.store.now_s()
    begun_s = max((entry.stamped_s or now_s for entry in entries), default=now_s)
    free_s = max(begun_s + rules.garbage_grace_s, now_s) + rules.collect_interval_s
    return api.Dropped(table=table.name, files_left=len(entries), name_free_at_s=free_s)


def going(left: api.Dropped) -> ChangeRefusedError:
    """Return the refusal of a table that is dropped already."""
    files = "1 file" if left.files_left == 1 else f"{left.files_left} files"
    until = "" if left.name_free_at_s is None else f", at about {_time(left.name_free_at_s)}"
    return ChangeRefusedError(
        f"table {left.table!r} is being dropped: its name is free when the collector has deleted "
        f"{files}{until}, or later if readers still hold them",
        "going",
    )


def _time(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"
