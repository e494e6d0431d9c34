"""Settled versions: the version up to which late writes to a tablet are no longer expected.

A tombstone may be dropped only if the tablet reached its version at least one retention ago
(protocol, tombstones): the retention is the maximum delay of a writer. The coordinator stores a
few watermarks (time, highest version at that time) in the tablet's record. The settled version is
the version of the newest watermark that is at least one retention old. Watermarks are sparse, so
the settled version may lag by up to `1 / WATERMARKS_PER_RETENTION` of a retention, which only
keeps a tombstone a little longer.
"""

from datetime import UTC, datetime

from common.metadata.changes.files import recent_adds_bound
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.table import Table
from common.model.tablet import Record
from common.rows.rules import RowRules

Watermarks = tuple[tuple[float, bytes], ...]
"""(time in seconds, highest version of the files at that time), ascending in both."""

WATERMARKS_PER_RETENTION = 6
WATERMARKS_MAX = WATERMARKS_PER_RETENTION + 2
"""The watermarks of one retention, the settled one, and the newest."""


def next_watermarks(
    watermarks: Watermarks, now_s: float, highest: bytes, retention_s: float
) -> Watermarks:
    """Return the watermarks to keep after an observation of versions up to `highest`.

    If there is nothing to add, the function returns `watermarks` itself, so that the caller need
    not write the record.

    Args:
        watermarks: The watermarks in the record.
        now_s: The store's time; if it lies before the last watermark, as after a fail-over,
            nothing is added.
        highest: Highest version of the tablet's files.
        retention_s: The table's tombstone retention.
    """
    if not watermarks:
        return ((now_s, highest),)
    last_s, last_version = watermarks[-1]
    if highest <= last_version or now_s - last_s < retention_s / WATERMARKS_PER_RETENTION:
        return watermarks
    if now_s <= last_s:
        return watermarks
    kept = _needed_watermarks(watermarks, now_s - retention_s)
    return (*kept[-(WATERMARKS_MAX - 1) :], (now_s, highest))


def settled_version(watermarks: Watermarks, now_s: float, retention_s: float) -> bytes | None:
    """Return the highest version at which tombstones may be dropped, or None if none may.

    Args:
        watermarks: The watermarks in the record.
        now_s: The store's time.
        retention_s: The table's tombstone retention.
    """
    old = [version for time_s, version in watermarks if time_s <= now_s - retention_s]
    return max(old, default=None)


def droppable_version(table: Table, record: Record, now_s: float) -> bytes | None:
    """Return the highest version at which dead rows may be dropped, or None if none may.

    The result is the settled version, with two upper bounds: the version that recent adds have
    reached, and, if versions are times, the time one retention ago. Without these bounds a single
    row from a wrong clock would raise the watermark above all later writes.

    Args:
        table: The table, for its version column and retention.
        record: The record of the tablet.
        now_s: The store's time.
    """
    retention_s = table.settings.tombstone_retention_s
    settled = settled_version(record.settled, now_s, retention_s)
    if settled is None:
        return None
    limits = [settled, recent_adds_bound(record.recent_adds, now_s)]
    limits.append(_version_at(table, now_s - retention_s))
    return min(limit for limit in limits if limit is not None)


def _version_at(table: Table, at_s: float) -> bytes | None:
    """Return the version for a point in time; None if the table's versions are not times."""
    kind = RowRules.of(table).version_type if table.version_column is not None else None
    if kind not in {KeyType.TIMESTAMP, KeyType.DATE}:
        return None
    at = datetime.fromtimestamp(max(at_s, 0.0), UTC)
    return encode_value(at.date() if kind is KeyType.DATE else at, kind)


def _needed_watermarks(watermarks: Watermarks, before_s: float) -> Watermarks:
    """Drop watermarks that a later, equally old enough watermark replaces."""
    overtaken = sum(1 for time_s, _ in watermarks[1:] if time_s <= before_s)
    return watermarks[overtaken:]
