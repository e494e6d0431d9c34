"""How long replaced files are kept, and when a table's manifest is published. Pure.

A replaced file may be deleted when its grace period is over, no reader pins it, and no manifest in
use lists it. A manifest is therefore published when a table has changed, and also when replaced
files wait for a manifest that no longer lists them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.metadata.store_values import GarbageEntry, Manifest, PinEntry

# ----------------------------------------------------------------------------------- Replaced files


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageRules:
    """How long files are kept, in seconds."""

    grace_s: float
    clock_skew_max_s: float
    retired_s: float = 0.0
    """How long the name of a deleted user file cannot be reused."""


def is_deletable(
    entry: GarbageEntry, pins: Sequence[PinEntry], now_s: float, rules: GarbageRules
) -> bool:
    """Return whether age and reader pins allow the deletion of a file.

    Args:
        entry: The garbage entry of the file; an entry without a time stamp is not deletable.
        pins: The pins, read after the entry.
        now_s: The store's time, read after the pins.
        rules: Grace period and clock skew.
    """
    if entry.stamped_s <= 0 or now_s - entry.stamped_s < rules.grace_s:
        return False
    # A reader that began after the stamp does not have this file in its listing.
    newest = entry.stamped_s + rules.clock_skew_max_s
    return not any(pin.since_s < newest and pin.until_s > now_s for pin in pins)


# --------------------------------------------------------------------------------------- Manifests


GAPS_PER_GRACE = 16
"""Manifests are kept for the grace period, so at most this many exist at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRules:
    """How often a table's manifest is published, in seconds."""

    interval_s: float
    """Interval between two manifests of a table that changes."""
    grace_s: float
    """How long replaced files, and replaced manifests, are kept."""

    @property
    def gap_s(self) -> float:
        """The shortest time between two manifests."""
        return self.grace_s / GAPS_PER_GRACE


def is_publish_due(
    last: Manifest | None, now_s: float, rules: PublishRules, *, changed: bool, awaited: bool
) -> bool:
    """Return whether a manifest should be published now.

    Args:
        last: The last manifest, or None if there is none.
        now_s: The store's time.
        rules: The rules of the table.
        changed: Whether the table has changed or may have changed since the last manifest.
        awaited: Whether replaced files wait for a manifest that no longer lists them.
    """
    if last is None:
        return True
    age_s = now_s - last.published_s
    if changed and age_s >= max(rules.interval_s, rules.gap_s):
        return True
    # An old manifest delays deletions. An interval longer than the grace period is meant for
    # tables that rarely change, and shall not keep replaced files.
    return awaited and age_s >= max(min(rules.interval_s, rules.grace_s), rules.gap_s)
