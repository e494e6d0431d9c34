"""The keys of each task, and the row groups to copy: pure, from footers and samples.

Ranges tile the keys: every key is in exactly one. They hold similar numbers of decoded bytes, as
far as statistics show. A row group that overlaps no other, in a file whose keys ascend and whose
rows are all alive, may be copied unchanged. The task that copies it checks its first and last key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from common.rows.row_facts import greatest, least
from compactor.rewrite.kernel.normalized_keys import MergeRange, RowGroup

CHUNK_BYTES = 2048
"""Memory of readers for the footer, per column of a row group."""
KeyPoints = list[tuple[bytes, float]]
"""Keys, and the number of bytes near each."""


def tile_ranges(
    groups: Sequence[RowGroup], points: KeyPoints, count: int, cuts: Sequence[bytes] = ()
) -> tuple[MergeRange, ...]:
    """Return ranges that tile all keys, in order, with the row groups that may be in each.

    Args:
        groups: Row groups of all inputs.
        points: Distribution of their bytes; see `key_points`.
        count: Wanted number of ranges, in addition to those from cuts.
        cuts: Keys that must be ends of ranges, ascending.
    """
    ends = sorted({*_quantiles(points, count), *cuts})
    bounds = [None, *ends, None]
    return tuple(
        MergeRange(
            groups=tuple(group for group in groups if _may_overlap(group, start, end)),
            start=start,
            end=end,
        )
        for start, end in pairwise(bounds)
    )


def parts_of_ranges(ranges: Iterable[MergeRange], cuts: Sequence[bytes]) -> list[int]:
    """Return the output number of each range."""
    return [sum(work.end is None or work.end > cut for cut in cuts) for work in ranges]


def key_points(
    groups: Iterable[RowGroup], samples: Mapping[tuple[int, int], Sequence[bytes]]
) -> KeyPoints:
    """Return the distribution of the bytes of row groups over keys.

    Args:
        groups: The row groups.
        samples: Evenly distributed keys of some of them, by input and number. The bytes of
            the others are attributed to their two ends, if these are known.
    """
    points: KeyPoints = []
    for group in groups:
        keys = samples.get((group.input, group.number))
        if keys is None:
            keys = [key for key in (group.low, group.high) if key is not None]
        points += [(key, group.size_bytes / len(keys)) for key in keys]
    return sorted(points)


def largest_row_groups(groups: Sequence[RowGroup], count: int) -> list[RowGroup]:
    """Return the row groups that are most useful to sample: the largest, of different inputs."""
    largest: dict[int, RowGroup] = {}
    for group in groups:
        so_far = largest.get(group.input)
        if so_far is None or group.size_bytes > so_far.size_bytes:
            largest[group.input] = group
    return sorted(largest.values(), key=lambda group: (-group.size_bytes, group.input))[:count]


def footers_as_row_groups(groups: Iterable[RowGroup], columns: int) -> list[RowGroup]:
    """Return the memory of files' footers as row groups, each over all keys of its file.

    Args:
        groups: Row groups of the files.
        columns: Number of columns of each file.
    """
    by_input: dict[int, list[RowGroup]] = {}
    for group in groups:
        by_input.setdefault(group.input, []).append(group)
    return [
        RowGroup(
            input=at,
            number=-1,
            start=0,
            rows=0,
            size_bytes=CHUNK_BYTES * columns * len(input_groups),
            low=_all_known(least, [each.low for each in input_groups]),
            high=_all_known(greatest, [each.high for each in input_groups]),
        )
        for at, input_groups in by_input.items()
    ]


def _all_known(
    end: Callable[[Sequence[bytes | None]], bytes | None], keys: Sequence[bytes | None]
) -> bytes | None:
    return None if None in keys else end(keys)


def overlap_bytes_max(groups: Iterable[RowGroup]) -> int:
    """Return the largest number of overlapping bytes."""
    changes: list[tuple[bytes, int, int]] = []
    always = 0
    for group in groups:
        if group.low is None or group.high is None:
            always += group.size_bytes
        else:
            changes += [(group.low, 0, group.size_bytes), (group.high, 1, group.size_bytes)]
    most = now = always
    for _, ends, size_bytes in sorted(changes):
        now += -size_bytes if ends else size_bytes
        most = max(most, now)
    return most


def bundles_of(groups: Sequence[RowGroup], bytes_max: int) -> list[tuple[RowGroup, ...]]:
    """Return row groups in bundles that can be held at once, neighbours together.

    A row group that is larger than that is a separate bundle.
    """
    bundles: list[tuple[RowGroup, ...]] = []
    bundle: list[RowGroup] = []
    size_bytes = 0
    for group in groups:
        if bundle and size_bytes + group.size_bytes > bytes_max:
            bundles.append(tuple(bundle))
            bundle, size_bytes = [], 0
        bundle.append(group)
        size_bytes += group.size_bytes
    return [*bundles, tuple(bundle)] if bundle else bundles


def key_quantiles(points: KeyPoints, count: int) -> list[bytes]:
    """Return keys that divide the bytes of some points into similar shares, ascending."""
    return sorted(_quantiles(points, count))


def _quantiles(points: KeyPoints, count: int) -> set[bytes]:
    """Return keys that divide the bytes into similar shares; fewer if keys repeat."""
    total, seen, keys = sum(weight for _, weight in points), 0.0, set()
    for key, weight in points:
        before, seen = seen, seen + weight
        if int(before * count / total) != int(seen * count / total) and seen < total:
            keys.add(key)
    return keys


def _may_overlap(group: RowGroup, start: bytes | None, end: bytes | None) -> bool:
    """Return whether a row group may hold keys in `(start, end]`."""
    above = start is None or group.high is None or group.high > start
    # A bound may be a prefix of a key, so equality is not conclusive.
    return above and (end is None or group.low is None or group.low <= end)


# ------------------------------------------------------------------------------ Disjoint row groups


RUN_BYTES_MIN = 16 * 1024**2
"""Smallest decoded size of consecutive row groups that justifies a seam in the output."""


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """Consecutive row groups in key order that overlap no others."""

    groups: tuple[RowGroup, ...]

    def stretches(self) -> list[tuple[RowGroup, ...]]:
        """Return them in stretches of consecutive row groups of one file."""
        numbered = groupby(
            enumerate(self.groups), lambda each: (each[1].input, each[1].number - each[0])
        )
        return [tuple(group for _, group in groups) for _, groups in numbered]


def copied_runs(
    groups: Sequence[RowGroup], copyable: frozenset[int], cuts: Sequence[bytes], run_bytes: int
) -> list[CopiedRun]:
    """Return runs of row groups that may be copied, by key.

    Args:
        groups: Row groups of all inputs; those that a transform may affect are not copied.
        copyable: Inputs with unique, live keys and the wanted format.
        cuts: Keys after which a new output begins.
        run_bytes: Smallest size of a run.
    """
    if any(group.low is None or group.high is None for group in groups):
        return []  # A row group with unknown bounds may overlap any other.
    ordered = sorted(groups, key=lambda group: (group.low or b"", group.high or b""))
    runs: list[list[RowGroup]] = [[]]
    reached = b""
    for at, group in enumerate(ordered):
        low, high = group.low or b"", group.high or b""
        following = ordered[at + 1].low if at + 1 < len(ordered) else None
        alone = (at == 0 or reached < low) and (following is None or high < following)
        cut = any(low <= each < high for each in cuts)
        if alone and not cut and group.input in copyable and not group.affected:
            if any(runs[-1] and (runs[-1][-1].high or b"") <= each < low for each in cuts):
                runs.append([])
            runs[-1].append(group)
        elif runs[-1]:
            runs.append([])
        reached = max(reached, high)
    sizes = [sum(group.size_bytes for group in run) for run in runs]
    return [
        CopiedRun(tuple(run))
        for run, size in zip(runs, sizes, strict=True)
        if size >= max(1, run_bytes)
    ]


def ends_of_copied_runs(copies: Sequence[CopiedRun]) -> list[bytes]:
    """Return keys that separate merged from copied row groups.

    A range may end with the least key of a copy, because no other row group holds that key.
    """
    groups = [(copy.groups[0].low, copy.groups[-1].high) for copy in copies]
    return [key for ends in groups for key in ends if key is not None]


def part_of_copied_run(copy: CopiedRun, cuts: Sequence[bytes]) -> int:
    """Return the output number of copied row groups."""
    return sum(cut < (copy.groups[-1].high or b"") for cut in cuts)


def split_row_groups(groups: Iterable[RowGroup], bytes_max: int) -> list[RowGroup]:
    """Return row groups divided by rows into pieces that can be held one at a time.

    Args:
        groups: Row groups from the footers.
        bytes_max: Decoded size of a piece, which has at least one row.
    """
    pieces: list[RowGroup] = []
    for group in groups:
        count = min(group.rows, -(-group.size_bytes // max(1, bytes_max)))
        if count <= 1:
            pieces.append(group)
            continue
        for at in range(count):
            begin, end = group.rows * at // count, group.rows * (at + 1) // count
            pieces.append(
                replace(
                    group,
                    start=group.start + begin,
                    skip=group.skip + begin,
                    rows=end - begin,
                    size_bytes=group.size_bytes * (end - begin) // group.rows,
                )
            )
    return pieces
