"""Which row groups are copied, and which are better written anew."""

from __future__ import annotations

import pytest

from compactor.rewrite.plan.inputs import (
    OutputSettings,
    RowGroupSize,
    too_fragmented,
    worth_copying,
)

MIB = 1024**2


def settings(row_group_bytes: int) -> OutputSettings:
    return OutputSettings("zstd", 3, row_group_bytes)


@pytest.mark.parametrize(
    ("sizes", "wanted", "worth"),
    [
        ([128 * MIB, 128 * MIB, 1], 128 * MIB, True),  # the last one is never full
        ([2 * MIB] * 9, 128 * MIB, True),  # large enough for any reader
        ([MIB] * 9, 128 * MIB, False),
        ([MIB] * 9, 4 * MIB, True),  # a quarter of what is wanted
        ([MIB - 1] * 9, 4 * MIB, False),
        ([16 * MIB], 4 * MIB, True),
        ([16 * MIB + 1], 4 * MIB, False),  # more than four times as much
        ([1, 1, 100 * MIB], 128 * MIB, True),
        ([1] * 60 + [100 * MIB], 128 * MIB, False),
        ([], 128 * MIB, True),
    ],
)
def test_row_groups_are_copied_from_the_wanted_size_on(
    sizes: list[int], wanted: int, worth: bool
) -> None:
    groups = [RowGroupSize(1000, size) for size in sizes]
    assert worth_copying(groups, settings(wanted)) is worth


def test_many_rows_that_pack_well_are_enough() -> None:
    assert worth_copying([RowGroupSize(1 << 17, 100)] * 3, settings(128 * MIB))
    assert not worth_copying([RowGroupSize((1 << 17) - 1, 100)] * 3, settings(128 * MIB))


def test_row_groups_without_rows_do_not_count() -> None:
    groups = [RowGroupSize(0, 0)] * 50 + [RowGroupSize(1000, 4 * MIB)]
    assert worth_copying(groups, settings(128 * MIB))


def test_more_row_groups_than_are_known_of_are_smaller_still() -> None:
    together = RowGroupSize(10_000, 10 * MIB)
    known = [
        count for count in range(1, 20) if too_fragmented(count, together, settings(128 * MIB))
    ]
    assert known == list(range(6, 20))
