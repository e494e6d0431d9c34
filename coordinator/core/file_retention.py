"""How long replaced files stay, and when a table's manifest is published anew. Pure.

A replaced file may go once its grace is over, no reader has it pinned, and no manifest that is
still read lists it. So a manifest is published both when a table has changed and when replaced
files wait for one without them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.metadata.store_values import GarbageEntry, Manifest, PinEntry

# ----------------------------------------------------------------------------------- Replaced files


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageRules:
    """How long files are kept. Seconds."""

    grace_s: float
    clock_skew_max_s: float
    retired_s: float = 0.0
    """How long the name of a user's file that was deleted cannot be used again."""


def is_deletable(
    entry: GarbageEntry, pins: Sequence[PinEntry], now_s: float, rules: GarbageRules
) -> bool:
    """Return whether an entry's file may go, by its age and the pins of readers.

    Args:
        entry: Stamped entry.
        pins: Read after the entry.
        now_s: The store's time, read after the pins.
        rules: Grace and clock skew.
    """
    if entry.stamped_s <= 0 or now_s - entry.stamped_s < rules.grace_s:
        return False
    # A reader that began after the stamp has listed files without this one.
    newest = entry.stamped_s + rules.clock_skew_max_s
    return not any(pin.since_s < newest and pin.until_s > now_s for pin in pins)


# --------------------------------------------------------------------------------------- Manifests


GAPS_PER_GRACE = 16
"""Manifests are kept for the grace, so that many of them are stored at a time at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRules:
    """How often a table's manifest is published. Seconds."""

    interval_s: float
    """Between two manifests of a table that changes."""
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
        last: The last one; None: there is none.
        now_s: The store's time.
        rules: Of the table.
        changed: Whether the table has changed since, or nobody knows.
        awaited: Whether replaced files wait for a manifest without them.
    """
    if last is None:
        return True
    age_s = now_s - last.published_s
    if changed and age_s >= max(rules.interval_s, rules.gap_s):
        return True
    # Readers of an old manifest hold back deletions: an interval longer than the grace
    # is for those who change little, not for keeping what was replaced.
    return awaited and age_s >= max(min(rules.interval_s, rules.grace_s), rules.gap_s)
