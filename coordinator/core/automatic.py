"""Requests that the service makes by itself, for a selector that a table has. Pure.

The selector is asked whenever files or settings have changed since it was asked last:
a digest of both is kept in the tablet's record, and names the request. A choice among
files that such a request has already made is no news, so that an answer like "all" ends.
"""

from common.digests import digest
from common.model.request import Request, SelectorSpec
from common.model.table import Table
from common.model.tablet import Tablet
from common.spi.selector import Chosen
from coordinator.core.request_facts import range_of

PREFIX = "auto-"


def spec_of(table: Table) -> SelectorSpec | None:
    """Return the selector that a table has, or None."""
    settings = table.settings
    if not settings.selector:
        return None
    return SelectorSpec(name=settings.selector, options=settings.selector_options)


def selector_hash(tablet: Tablet, spec: SelectorSpec) -> str:
    """Return the digest of everything that a selector's answer depends on, but the time."""
    closed = sorted(path for path, file in tablet.files.items() if not file.open)
    return f"{_spec_digest(spec)}-{digest(closed)}"


def wants_answer(tablet: Tablet, spec: SelectorSpec) -> bool:
    """Return whether the table's selector has to be asked about a tablet now.

    While a selection stands, or something changes the tablet's bounds, it waits: the end
    of either is a change.
    """
    busy = tablet.selection is not None or tablet.operation is not None
    return not busy and tablet.record.selector_hash != selector_hash(tablet, spec)


def automatic_request(tablet: Tablet, spec: SelectorSpec, chosen: Chosen) -> Request | None:
    """Return the request for what a table's selector has chosen; None: it is no news.

    Args:
        tablet: As it was when the selector was asked.
        spec: The table's selector.
        chosen: Its answer.
    """
    ours = PREFIX + _spec_digest(spec)
    news = [path for path in chosen.files if not _made_by(tablet, path, ours)]
    if not news:
        return None
    name = digest([tablet.id.table, tablet.id.end, selector_hash(tablet, spec)])
    return Request(
        id=f"{ours}-{name}",
        table=tablet.id.table,
        range=range_of(tablet.bounds),
        selector=spec,
        automatic=True,
    )


def _made_by(tablet: Tablet, path: str, prefix: str) -> bool:
    file = tablet.files.get(path)
    return file is not None and (file.request or "").startswith(prefix)


def _spec_digest(spec: SelectorSpec) -> str:
    options = [text for pair in sorted(spec.options.items()) for text in pair]
    return digest([spec.name, *options], length=8)
