"""The demo's second act: what a user asks for while files keep arriving.

Two compactions over the same spring: one deletes a carrier's flights, one corrects a
column, miles to kilometres. A correction that were made twice to a row, or to a row out
of the range, would show in the proof.
"""

from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from neve.client import Client
from neve.client_requests import Request

FIRST, LAST = date(2013, 3, 1), date(2013, 5, 31)
CARRIER = "YV"
KM_PER_MILE = 1.609344
DELETE_WHERE = f"carrier = '{CARRIER}'"
SET = f"distance = cast(round(distance * {KM_PER_MILE}e0) as int)"


def wish(client: Client, table: str) -> list[Request]:
    """Ask for both compactions; they take turns on each tablet.

    Args:
        client: Connected.
        table: The demo's.
    """
    first, last = FIRST.isoformat(), LAST.isoformat()
    return [
        client.compact(table, start=first, end=last, delete_where=DELETE_WHERE),
        client.compact(table, start=first, end=last, set=SET),
    ]


def fulfilled(expected: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that must be visible after both wishes, and the rows deleted by them.

    Args:
        expected: The visible rows without the wishes.
    """
    days = expected["flight_date"]
    spring = pc.and_(pc.greater_equal(days, FIRST), pc.less_equal(days, LAST))
    gone = pc.and_(spring, pc.equal(expected["carrier"], CARRIER))
    miles = expected["distance"].cast(pa.float64())
    km = pc.round(pc.multiply(miles, KM_PER_MILE), round_mode="half_towards_infinity")
    distance = pc.if_else(spring, km, miles).cast(expected.schema.field("distance").type)
    place = expected.schema.get_field_index("distance")
    changed = expected.set_column(place, expected.schema.field(place), distance)
    return changed.filter(pc.invert(gone)), expected.filter(gone)
