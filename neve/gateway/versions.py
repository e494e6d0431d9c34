"""Versions that lie in the future: refused at the door, before a tablet's watermark meets one.

Of a version that is a point in time it can be told that a clock is wrong. Of others it
cannot; there only the adds beside it keep the watermark down (`common.metadata.recent_adds`).
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from common.errors import RequestError
from common.model.key_values import KeyType
from common.model.keys import encode_value, format_key
from common.model.table import Table
from common.rows.rules import RowRules

_POINTS = (KeyType.TIMESTAMP, KeyType.DATE)


def refuse_ahead(
    table: Table, versions: Iterable[tuple[str, bytes | None]], now_s: float, ahead_max_s: float
) -> None:
    """Refuse versions that nobody can have written at their time.

    Args:
        table: Whose version column counts.
        versions: What holds it, for the message, and its highest version.
        now_s: The store's time.
        ahead_max_s: `gateway.version_ahead_max_s`.

    Raises:
        RequestError: Names what holds it, the version, and how far it may lie ahead.
    """
    if table.version_column is None or not ahead_max_s:
        return
    kind = RowRules.of(table).version_type
    if kind not in _POINTS:
        return
    latest = datetime.fromtimestamp(now_s, UTC) + timedelta(seconds=ahead_max_s)
    highest = encode_value(latest.date() if kind is KeyType.DATE else latest, kind)
    for what, version in versions:
        if version is not None and version > highest:
            raise RequestError(
                f"{what} has version {format_key(version, (kind,))} in column"
                f" {table.version_column}, later than {latest:%Y-%m-%d %H:%M} UTC: is a clock"
                " wrong? Setting gateway.version_ahead_max_s says how far ahead is taken"
            )
