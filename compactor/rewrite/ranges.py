"""Cuts the keys of a job into ranges for tasks: pure, from what footers and samples say.

Ranges tile the keys: every key is in exactly one. They hold about the same number of
decoded bytes each, as far as statistics tell; a task holds what overlaps at one place
of its range, and if that is too much, row groups are first merged into longer runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from common.rows.row_facts import greatest, least
from compactor.rewrite.kernel.bounds import Group, Range

CHUNK_BYTES = 2048
"""What readers keep in memory of a footer, for each column of a row group."""
Points = list[tuple[bytes, float]]
"""Keys, and how many bytes lie about each."""


def ranges_of(
    groups: Sequence[Group], points: Points, count: int, cuts: Sequence[bytes] = ()
) -> tuple[Range, ...]:
    """Return ranges that tile all keys, in order, with the row groups that may be in each.

    Args:
        groups: Row groups of all inputs.
        points: Where their bytes lie; see `points_of`.
        count: How many ranges are wanted, besides those that cuts make.
        cuts: Keys that must be ends of ranges, ascending.
    """
    ends = sorted({*_quantiles(points, count), *cuts})
    bounds = [None, *ends, None]
    return tuple(
        Range(
            groups=tuple(group for group in groups if _may_meet(group, start, end)),
            start=start,
            end=end,
        )
        for start, end in pairwise(bounds)
    )


def parts_of(ranges: Iterable[Range], cuts: Sequence[bytes]) -> list[int]:
    """Return the number of the output that each range belongs to."""
    return [sum(work.end is None or work.end > cut for cut in cuts) for work in ranges]


def points_of(
    groups: Iterable[Group], samples: Mapping[tuple[int, int], Sequence[bytes]]
) -> Points:
    """Return where the bytes of row groups lie.

    Args:
        groups: The row groups.
        samples: Keys at even distances of some of them, by input and number. The bytes of
            the others lie at their two ends, where these are known.
    """
    points: Points = []
    for group in groups:
        keys = samples.get((group.input, group.number))
        if keys is None:
            keys = [key for key in (group.low, group.high) if key is not None]
        points += [(key, group.size_bytes / len(keys)) for key in keys]
    return sorted(points)


def widest(groups: Sequence[Group], count: int) -> list[Group]:
    """Return the row groups of which samples tell most: the largest, of different inputs."""
    largest: dict[int, Group] = {}
    for group in groups:
        known = largest.get(group.input)
        if known is None or group.size_bytes > known.size_bytes:
            largest[group.input] = group
    return sorted(largest.values(), key=lambda group: (-group.size_bytes, group.input))[:count]


def footers_of(groups: Iterable[Group], columns: int) -> list[Group]:
    """Return what holds the footers of files: as row groups, each over all keys of its file.

    Args:
        groups: Row groups of the files.
        columns: Of each file.
    """
    by_input: dict[int, list[Group]] = {}
    for group in groups:
        by_input.setdefault(group.input, []).append(group)
    return [
        Group(
            input=at,
            number=-1,
            start=0,
            rows=0,
            size_bytes=CHUNK_BYTES * columns * len(found),
            low=_all_known(least, [each.low for each in found]),
            high=_all_known(greatest, [each.high for each in found]),
        )
        for at, found in by_input.items()
    ]


def _all_known(
    end: Callable[[Sequence[bytes | None]], bytes | None], keys: Sequence[bytes | None]
) -> bytes | None:
    return None if None in keys else end(keys)


def held_bytes(groups: Iterable[Group]) -> int:
    """Return how many bytes overlap at most at one place."""
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


def bundles_of(groups: Sequence[Group], bytes_max: int) -> list[tuple[Group, ...]]:
    """Return row groups in bundles that can be held at once, neighbours together.

    A row group that is larger than that is a bundle of its own.
    """
    bundles: list[tuple[Group, ...]] = []
    bundle: list[Group] = []
    size_bytes = 0
    for group in groups:
        if bundle and size_bytes + group.size_bytes > bytes_max:
            bundles.append(tuple(bundle))
            bundle, size_bytes = [], 0
        bundle.append(group)
        size_bytes += group.size_bytes
    return [*bundles, tuple(bundle)] if bundle else bundles


def _quantiles(points: Points, count: int) -> set[bytes]:
    """Return keys that cut the bytes into about equal shares; fewer if keys are too alike."""
    total, seen, keys = sum(weight for _, weight in points), 0.0, set()
    for key, weight in points:
        before, seen = seen, seen + weight
        if int(before * count / total) != int(seen * count / total) and seen < total:
            keys.add(key)
    return keys


def _may_meet(group: Group, start: bytes | None, end: bytes | None) -> bool:
    """Return whether a row group may hold keys in `(start, end]`."""
    above = start is None or group.high is None or group.high > start
    # A bound may be the beginning of a key, so equality says nothing.
    return above and (end is None or group.low is None or group.low <= end)
