"""When a table's manifest is published anew. Pure."""

from dataclasses import dataclass

from common.metadata.store_values import Manifest

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
