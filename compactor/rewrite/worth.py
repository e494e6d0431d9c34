"""Whether row groups are worth copying: small ones are better written anew."""

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.rewrite.output_settings import OutputSettings

SHARE_MIN = 4
"""A row group may be smaller than wanted by this factor, on average."""
WORTH_BYTES = 2 * 1024**2
"""A row group of this size is never too small: readers no longer feel its overhead."""
WORTH_ROWS = 1 << 17
"""Nor is one of so many rows, however well they are packed."""
SHARE_MAX = 4
"""No row group may be larger than wanted by this factor: it bounds the memory of readers."""


@dataclass(frozen=True, slots=True)
class GroupSize:
    """A row group, as far as its worth goes."""

    rows: int
    decoded_bytes: int
    """Before compression, by its footer."""


def worth_copying(row_groups: Sequence[GroupSize], settings: OutputSettings) -> bool:
    """Return whether row groups are copied as they are, rather than written anew.

    Args:
        row_groups: All that would follow each other in one output.
        settings: How the output is wanted.
    """
    known = [group for group in row_groups if group.rows]
    largest = max((group.decoded_bytes for group in known), default=0)
    if largest > SHARE_MAX * settings.row_group_bytes:
        return False
    rows = sum(group.rows for group in known)
    decoded_bytes = sum(group.decoded_bytes for group in known)
    return not splinters(len(known), GroupSize(rows, decoded_bytes), settings)


def splinters(count: int, together: GroupSize, settings: OutputSettings) -> bool:
    """Return whether so many row groups (or more) of this size together are too small.

    The average counts: every file ends with a row group that is not full, and as long as
    the average is large enough, no number of compactions leaves a file in splinters.

    Args:
        count: How many there are.
        together: Rows and bytes of all of them.
        settings: How the output is wanted.
    """
    small_bytes = min(settings.row_group_bytes / SHARE_MIN, WORTH_BYTES)
    return together.rows < count * WORTH_ROWS and together.decoded_bytes < count * small_bytes
