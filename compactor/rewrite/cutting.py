"""How the keys of a job are cut into ranges: by footers, samples, and how many merges may run."""

from collections.abc import Sequence

import pyarrow as pa

from common.parquet.location import open_location
from common.parquet.row_batches import rows_at
from common.rows.conform import conform
from common.rows.key_encoding import encode_keys
from compactor.rewrite.apart import Copy, ends_of
from compactor.rewrite.files import opened_input
from compactor.rewrite.kernel.bounds import Group, Range
from compactor.rewrite.native import Sources
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.ranges import points_of, ranges_of, widest

RANGE_BYTES = 512 * 1024**2
"""Decoded bytes of a range, about."""
REPEATED_MAX = 1.25
"""Ranges may decode so many times the bytes that there are: row groups at their ends come again."""
SAMPLED_GROUPS, SAMPLED_KEYS = 6, 64


def cut_ranges(
    plan: RewritePlan,
    sources: Sources,
    groups: Sequence[Group],
    copies: Sequence[Copy],
    lanes: int,
) -> list[Range]:
    """Return the ranges that are merged, each with the row groups that may be in it.

    Args:
        plan: Of the job.
        sources: All files, by number.
        groups: Row groups that are merged.
        copies: Row groups that are copied.
        lanes: How many merges run at a time.
    """
    total_bytes = sum(group.size_bytes for group in groups)
    count = max(lanes, -(-total_bytes // RANGE_BYTES)) if lanes > 1 else 1
    points = points_of(groups, _samples(plan, sources, widest(groups, SAMPLED_GROUPS)))
    while True:
        found = ranges_of(groups, points, count, [*plan.cuts, *ends_of(copies)])
        ranges = [work for work in found if work.groups]
        decoded_bytes = sum(group.size_bytes for work in ranges for group in work.groups)
        if count == 1 or decoded_bytes <= REPEATED_MAX * total_bytes:
            return ranges
        count //= 2


def _samples(
    plan: RewritePlan, sources: Sources, groups: Sequence[Group]
) -> dict[tuple[int, int], list[bytes]]:
    """Return keys at even distances of some row groups."""
    rules, samples = plan.rules, {}
    location = open_location(plan.location)
    schema = pa.schema([plan.schema.field(name) for name in rules.key])
    for group in groups:
        source = sources[group.input]
        if source.blocks is not None:
            continue  # They are small, and their ends tell enough.
        with opened_input(location, source.path) as parquet:
            if any(name not in parquet.schema_arrow.names for name in rules.key):
                continue  # Its folders tell them.
            stride = max(1, group.rows // SAMPLED_KEYS)
            places = range(stride // 2, group.rows, stride)
            picked = rows_at(parquet, group.number, rules.key, places)
        known = conform(picked, schema, f"file {source.path}")
        samples[group.input, group.number] = encode_keys(
            known, rules.key, rules.key_types
        ).to_pylist()
    return samples
