"""Composable needs, and the values read for them.

A change watches only what its decision uses. In a busy tablet, further watches would cause
endless conflicts.
"""

from collections.abc import Iterable

from common.metadata.codec import table as codec_table
from common.metadata.codec import tablet as codec_tablet
from common.metadata.codec.layout import broken_value_error, stored_name, whole_number
from common.metadata.codec.tablet import unpack_files
from common.metadata.commands import get, hget, hgetall, hmget, smembers
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.transaction import (
    Decision,
    More,
    Needs,
    Seen,
    Transaction,
    Write,
)
from common.metadata.predicates import may_change
from common.metadata.store_values import AttemptOutcome, CoordinatorClaim
from common.model.outcome import Refusal, RefusalCode
from common.model.table import Table, TableState
from common.model.tablet import Bounds, Operation, Selection, Tablet, TabletId


def table_state(keys: TableKeys, *, watch: bool = True) -> Needs:
    """Need the table's state only."""
    return Needs((keys.table,) if watch else (), {"state": hget(keys.table, codec_table.STATE)})


def state_seen(keys: TableKeys, seen: Seen) -> TableState | None:
    """Return the table's state, or None if there is no such table."""
    stored = seen["state"]
    return None if stored is None else codec_table.unpack_state(keys.table, stored)


def refused_by_table(keys: TableKeys, seen: Seen) -> Refusal | None:
    """Return why rule 5 refuses a change: the table is neither live nor paused."""
    return may_change(keys.id, state_seen(keys, seen))


def at_generation(table: str, generation: int, inner: Transaction) -> Transaction:
    """Return a transaction that a store with a lower generation refuses.

    The key is not watched, because a server does not lose changes during a connection.

    Args:
        table: Id of the table.
        generation: The generation that the store must have reached.
        inner: The transaction after that. Its own refusals keep their reasons.
    """
    keys = TableKeys(table)

    def decide(seen: Seen) -> Decision:
        decision = inner.decide(seen)
        present = whole_number(keys.generation, seen["present-generation"])
        if present >= generation or not isinstance(decision, Write | More):
            return decision
        return Refusal(
            RefusalCode.GENERATION,
            f"table {table} is read-only: its store is at generation {present}, but was at "
            f"{generation} before, so the store has lost changes",
        )

    reads = {"present-generation": get(keys.generation)}
    return Transaction(inner.needs | Needs((), reads), decide)


def whole_table(keys: TableKeys, *, watch: bool = True) -> Needs:
    """Need the whole table: schema, settings, state."""
    return Needs((keys.table,) if watch else (), {"table": hgetall(keys.table)})


def table_seen(keys: TableKeys, seen: Seen) -> Table | None:
    """Return the table, or None."""
    stored = seen["table"]
    return codec_table.unpack_table(keys.table, keys.id, stored) if stored else None


def whole_tablet(keys: TabletKeys, watch: Iterable[str]) -> Needs:
    """Need everything of a tablet, and watch only the given keys."""
    return tablet_without_files(keys, watch) | Needs((), {"files": hgetall(keys.files)})


def tablet_without_files(keys: TabletKeys, watch: Iterable[str]) -> Needs:
    """Need everything of a tablet but its files, and watch only the given keys."""
    return Needs(
        tuple(watch),
        {
            "bounds": get(keys.bounds),
            "running": hgetall(keys.running),
            "selection": get(keys.selection),
            "waiting": hgetall(keys.waiting),
            "done": smembers(keys.done),
            "operation": get(keys.operation),
            "purge": get(keys.purge),
            "record": hgetall(keys.record),
        },
    )


def _waiting_seen(keys: TabletKeys, seen: Seen) -> dict[str, float]:
    try:
        return {
            stored_name(keys.waiting, name): float(since) for name, since in seen["waiting"].items()
        }
    except ValueError as error:
        raise broken_value_error(keys.waiting, f"has a malformed time ({error})") from error


def tablet_seen(tablet: TabletId, keys: TabletKeys, seen: Seen) -> Tablet | None:
    """Return the tablet, or None if its bounds do not exist."""
    bounds = bounds_seen(keys, seen["bounds"])
    if bounds is None:
        return None
    return Tablet(
        id=tablet,
        bounds=bounds,
        files=unpack_files(keys.files, seen.replies.get("files", {})),
        running=codec_tablet.unpack_running(keys.running, seen["running"]),
        selection=selection_seen(keys, seen["selection"]),
        waiting=_waiting_seen(keys, seen),
        done=frozenset(stored_name(keys.done, name) for name in seen["done"]),
        operation=operation_seen(keys, seen["operation"]),
        purge=seen["purge"],
        record=codec_tablet.unpack_record(keys.record, seen["record"]),
    )


def bounds_seen(keys: TabletKeys, stored: bytes | None) -> Bounds | None:
    """Return the bounds; None means that the tablet does not exist."""
    return None if stored is None else codec_tablet.BOUNDS.unpack(keys.bounds, stored)


def operation_seen(keys: TabletKeys, stored: bytes | None) -> Operation | None:
    """Return the running split or merge."""
    return None if stored is None else codec_tablet.OPERATION.unpack(keys.operation, stored)


def selection_seen(keys: TabletKeys, stored: bytes | None) -> Selection | None:
    """Return the selection."""
    return None if stored is None else codec_tablet.SELECTION.unpack(keys.selection, stored)


def tablet_gone(tablet: TabletId) -> Refusal:
    """Return the refusal for a missing tablet."""
    return Refusal(RefusalCode.TABLET, f"tablet {tablet} does not exist, look it up again")


def attempt_entry(keys: TableKeys, tablet: TabletKeys, attempt_id: str) -> Needs:
    """Need one watched reservation, and its attempt's outcome if it is gone."""
    return Needs(
        (tablet.running,),
        {
            "entry": hget(tablet.running, attempt_id),
            "outcome": get(keys.outcome(attempt_id)),
        },
    )


def outcome_seen(keys: TableKeys, attempt_id: str, seen: Seen) -> AttemptOutcome | None:
    """Return how the attempt ended, if it has a mark."""
    stored = seen["outcome"]
    if stored is None:
        return None
    return codec_table.OUTCOME.unpack(keys.outcome(attempt_id), stored, attempt=attempt_id)


def claim_seen(stored: bytes | None) -> CoordinatorClaim | None:
    """Return the leading coordinator's claim, or None if there is none."""
    return None if stored is None else codec_table.unpack_claim(stored)


def some_files(tablet: TabletKeys, paths: tuple[str, ...]) -> Needs:
    """Need some files of a tablet, not watched."""
    return Needs((), {"some": hmget(tablet.files, paths)})
