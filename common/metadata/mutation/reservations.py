"""Reserve and drop hold: who may replace files, and who gives way."""

from common.metadata.changes import Applied, DropHold, Reserve
from common.metadata.codec_table import SETTINGS, unpack_settings
from common.metadata.codec_tablet import RESERVATION, RUNNING, SELECTED
from common.metadata.commands import delete, hget, hset
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.effects import changed
from common.metadata.mutation.requirements import (
    gone,
    refused_by_table,
    state_seen,
    table_state,
    tablet_seen,
    whole_tablet,
)
from common.metadata.mutation.transaction import (
    Decision,
    Done,
    Needs,
    Seen,
    Transaction,
    Unresolved,
    Write,
)
from common.metadata.predicates import may_drop_hold, may_reserve
from common.model.job import Kind
from common.model.tablet import Reservation


def reserve(change: Reserve) -> Transaction:
    """Return the transaction of a reservation. Mark: `running[attempt]`.

    `files` is read but never watched: an appender to a hot tablet must not make
    reservations fail. Inputs cannot leave while `running` stands as it was read.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = [keys.operation, keys.running, keys.selection]
    if change.kind is Kind.SYSTEM:
        watch.append(keys.waiting)

    def decide(seen: Seen) -> Decision:
        tablet = tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return gone(change.tablet)
        if (mine := tablet.running.get(change.attempt)) is not None:
            return Done(Applied(reservation=mine, tablet=tablet))
        if seen.sent:
            return Unresolved(f"attempt {change.attempt} may still be reserved; use a new one")
        refusal = may_reserve(
            tablet,
            state=state_seen(table, seen),
            kind=change.kind,
            inputs=change.inputs,
            request=change.request,
            cuts_at=change.cuts_at,
        )
        if refusal is not None:
            return refusal
        entry = reservation_of(change, seen.now_s)
        effects = (
            hset(keys.running, {change.attempt: RESERVATION.pack(entry)}),
            *changed(change.tablet, "reserve", attempt=change.attempt, counts={RUNNING: 1}),
        )
        return Write(effects, Applied(reservation=entry, tablet=tablet))

    return Transaction(table_state(table) | whole_tablet(keys, watch), decide)


def reservation_of(change: Reserve, now_s: float) -> Reservation:
    """Return the reservation that a change asks for.

    Args:
        change: Who wants what.
        now_s: The store's time: when it began, and the `now` of the row rules.
    """
    return Reservation(
        attempt=change.attempt,
        job=change.job,
        kind=change.kind,
        inputs=change.inputs,
        output_prefix=change.output_prefix,
        outputs_max=change.outputs_max,
        group=change.group,
        compactor=change.compactor,
        since_s=now_s,
        now_s=now_s,
        request=change.request,
    )


def drop_hold(change: DropHold) -> Transaction:
    """Return the transaction that drops an expired hold. Mark: no selection."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    settings = Needs((), {"settings": hget(table.table, SETTINGS)})
    needs = (
        table_state(table, watch=False)
        | settings
        | whole_tablet(keys, (keys.running, keys.selection))
    )

    def decide(seen: Seen) -> Decision:
        tablet = tablet_seen(change.tablet, keys, seen)
        if refusal := refused_by_table(table, seen):
            return refusal
        if tablet is None:
            return gone(change.tablet)
        if tablet.selection is None:
            return Done()
        expiry_s = unpack_settings(table.table, seen["settings"]).hold_expiry_s
        if refusal := may_drop_hold(tablet, now_s=seen.now_s, expiry_s=expiry_s):
            return refusal
        effects = (
            delete(keys.selection),
            *changed(change.tablet, "hold", flags={SELECTED: 0}),
        )
        return Write(effects)

    return Transaction(needs, decide)
