"""Requests that the service creates for tables with a selector. Pure.

The selector is called whenever files or settings have changed since its last call: the tablet's
record stores a digest of both, which is also part of the request's id. An answer that depends on
time includes the times at which it changes. The record stores the next of these times, and the
selector is called again at that time.

Files that such a request has written do not cause a new request, so that a selector that chooses
all files does not loop. The exception is a file that time has made eligible since it was written.
"""

from common.digests import digest
from common.model.file import DataFile
from common.model.request import Request, SelectorSpec, key_range_of
from common.model.table import Table
from common.model.tablet import Tablet
from common.spi.selector import Chosen

AUTOMATIC_PREFIX = "auto-"


def table_selector(table: Table) -> SelectorSpec | None:
    """Return the selector that a table has, or None."""
    settings = table.settings
    if not settings.selector:
        return None
    return SelectorSpec(name=settings.selector, options=settings.selector_options)


def selector_hash(tablet: Tablet, table: Table, spec: SelectorSpec) -> str:
    """Return the digest of everything except time that a selector's answer depends on."""
    closed = sorted(path for path, file in tablet.files.items() if not file.open)
    settings = table.settings
    limits = (repr(settings.ttl_s), repr(settings.tombstone_retention_s), repr(table.schema_id))
    return f"{_spec_digest(spec)}-{digest([*limits, *closed])}"


def must_ask_selector(tablet: Tablet, table: Table, spec: SelectorSpec, now_s: float) -> bool:
    """Return whether the table's selector must be called for a tablet now.

    The call waits while the tablet has a selection, a split or a merge; the end of each is a
    change, which leads to a new check.
    """
    if tablet.selection is not None or tablet.operation is not None:
        return False
    known = tablet.record.selector_hash == selector_hash(tablet, table, spec)
    return not known or _time_has_come(tablet, now_s)


def ask_again_at_s(chosen: Chosen, now_s: float) -> float | None:
    """Return when a selector must be called again even if nothing has changed, or None."""
    return min((time_s for time_s in chosen.times_s.values() if time_s >= now_s), default=None)


def automatic_request(
    tablet: Tablet, table: Table, spec: SelectorSpec, chosen: Chosen, now_s: float
) -> Request | None:
    """Return the request for the choice of a table's selector, or None if no request is needed.

    Args:
        tablet: The version that the selector was called with.
        table: Its table.
        spec: The table's selector.
        chosen: The answer of the selector.
        now_s: Time of the call.
    """
    ours = AUTOMATIC_PREFIX + _spec_digest(spec)
    if not any(_is_news(tablet.files.get(path), chosen, ours, now_s) for path in chosen.files):
        return None
    parts: list[str | bytes] = [tablet.id.table, tablet.id.end, selector_hash(tablet, table, spec)]
    if _time_has_come(tablet, now_s):
        # A request with the same digest may exist; the due time makes the id unique.
        parts.append(repr(tablet.record.selector_due_s))
    return Request(
        id=f"{ours}-{digest(parts)}",
        table=tablet.id.table,
        range=key_range_of(tablet.bounds),
        selector=spec,
        automatic=True,
    )


def _time_has_come(tablet: Tablet, now_s: float) -> bool:
    due_s = tablet.record.selector_due_s
    return due_s is not None and due_s <= now_s


def _is_news(file: DataFile | None, chosen: Chosen, prefix: str, now_s: float) -> bool:
    if file is None or not (file.request or "").startswith(prefix):
        return True
    came_s = chosen.times_s.get(file.path)
    return came_s is not None and file.added_at_s < came_s <= now_s


def _spec_digest(spec: SelectorSpec) -> str:
    options = [text for pair in sorted(spec.options.items()) for text in pair]
    return digest([spec.name, *options], length=8)
