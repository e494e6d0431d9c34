"""Lower a tablet's watermark. Mark: it is there."""

from common.metadata.codec_tablet import PURGED, SETTLED
from common.metadata.commands import Command, delete, get, hdel, set_string
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation import requirements as need
from common.metadata.mutation.effects import changed
from common.metadata.mutation.transaction import Decision, Done, Needs, Seen, Transaction, Write
from common.metadata.repair_changes import LowerWatermark
from common.model.outcome import Refusal


def lower_watermark(change: LowerWatermark) -> Transaction:
    """Return the transaction that lowers it, and begins its marks anew: they may be as high."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"bounds": get(keys.bounds), "purge": get(keys.purge)}

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is None:
            return need.gone(change.tablet)
        present = seen["purge"]
        if present == change.to:
            return Done()
        if present is None or (change.to is not None and change.to > present):
            return Refusal(
                "watermark",
                f"tablet {change.tablet}: its watermark is not above that; it only rises by itself",
            )
        write: Command = (
            delete(keys.purge) if change.to is None else set_string(keys.purge, change.to)
        )
        flags = {PURGED: int(change.to is not None)}
        return Write(
            (write, hdel(keys.record, SETTLED), *changed(change.tablet, "watermark", flags=flags)),
            durable=True,
        )

    return Transaction(need.table_state(table) | Needs((keys.bounds, keys.purge), reads), decide)
