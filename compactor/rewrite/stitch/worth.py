"""Whether row groups are worth copying: small ones are better written anew."""

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.rewrite.output_settings import OutputSettings

SHARE_MIN = 4
"""A row group may be smaller than wanted by this factor, on average."""
WORTH_BYTES = 4 * 1024**2
"""A decoded row group of this size is never too small: readers no longer feel its overhead."""
SHARE_MAX = 4
"""No row group may be larger than wanted by this factor: it bounds the memory of readers."""


@dataclass(frozen=True, slots=True)
class GroupSize:
    """A row group, as far as its worth goes."""

    rows: int
    decoded_bytes: int


def worth_copying(row_groups: Sequence[GroupSize], settings: OutputSettings) -> bool:
    """Return whether row groups are copied as they are, rather than written anew.

    The average counts: every file ends with a row group that is not full, and as long as
    the average is large enough, no number of compactions leaves a file in splinters.

    Args:
        row_groups: All that would follow each other in one output.
        settings: How the output is wanted.
    """
    known = [group for group in row_groups if group.rows]
    if not known:
        return True
    wanted = settings.row_group_bytes
    average = sum(group.decoded_bytes for group in known) / len(known)
    largest = max(group.decoded_bytes for group in known)
    return average >= min(wanted / SHARE_MIN, WORTH_BYTES) and largest <= wanted * SHARE_MAX
