"""Requests that the service makes by itself, for a selector that a table has. Pure.

The selector is asked whenever files or settings have changed since it was asked last:
a digest of both is kept in the tablet's record, and names the request. An answer that
depends on time comes with the times at which it changes; the next of them is kept in the
record, too, and the selector is asked again when it has come, not before.

A choice among files that such a request has already made is no news, so that an answer
like "all" ends; but a file that came to be chosen by time since it was made is.
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
    """Return the digest of everything that a selector's answer depends on, but the time."""
    closed = sorted(path for path, file in tablet.files.items() if not file.open)
    settings = table.settings
    limits = (repr(settings.ttl_s), repr(settings.tombstone_retention_s), repr(table.schema_id))
    return f"{_spec_digest(spec)}-{digest([*limits, *closed])}"


def must_ask_selector(tablet: Tablet, table: Table, spec: SelectorSpec, now_s: float) -> bool:
    """Return whether the table's selector has to be asked about a tablet now.

    While a selection stands, or something changes the tablet's bounds, it waits: the end
    of either is a change.
    """
    if tablet.selection is not None or tablet.operation is not None:
        return False
    known = tablet.record.selector_hash == selector_hash(tablet, table, spec)
    return not known or _time_has_come(tablet, now_s)


def ask_again_at_s(chosen: Chosen, now_s: float) -> float | None:
    """Return when a selector has to be asked again though nothing has changed, or None."""
    return min((time_s for time_s in chosen.times_s.values() if time_s >= now_s), default=None)


def automatic_request(
    tablet: Tablet, table: Table, spec: SelectorSpec, chosen: Chosen, now_s: float
) -> Request | None:
    """Return the request for what a table's selector has chosen; None: it is no news.

    Args:
        tablet: As it was when the selector was asked.
        table: Its table.
        spec: The table's selector.
        chosen: Its answer.
        now_s: When it was asked.
    """
    ours = AUTOMATIC_PREFIX + _spec_digest(spec)
    if not any(_is_news(tablet.files.get(path), chosen, ours, now_s) for path in chosen.files):
        return None
    parts: list[str | bytes] = [tablet.id.table, tablet.id.end, selector_hash(tablet, table, spec)]
    if _time_has_come(tablet, now_s):
        # The same files were asked about before; what became of that is another request.
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
