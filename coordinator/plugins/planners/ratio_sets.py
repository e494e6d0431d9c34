"""The searches of the ratio planner: which sets of files are worth merging together?

A set qualifies if its largest file times the ratio is less than the whole set: what
is rewritten then at least multiplies in size, so every byte is rewritten a number of
times that is logarithmic in the size of the tablet. Numbers and tuples only in here.
"""

from collections.abc import Sequence
from itertools import accumulate

Sized = tuple[int, int, str]
"""Bytes, 0 for a file and the number of a projected one (from 1), path.

Sorted by these: at equal size projected files come behind files.
"""


def within(files: Sequence[Sized], cap_bytes: int | None) -> Sequence[Sized]:
    """Return the smallest files whose sum stays within the cap; `files` are sorted."""
    if cap_bytes is None or sum(file[0] for file in files) <= cap_bytes:
        return files
    sums = accumulate(file[0] for file in files)
    fits = next(place for place, total in enumerate(sums) if total > cap_bytes)
    return files[:fits]


def find_set(files: Sequence[Sized], ratio: float, max_files: int) -> Sequence[Sized]:
    """Return the set to merge first, smallest files first; empty if none qualifies.

    Windows of `max_files` move over the sorted files by one. All of the first one is
    searched. A later window repeats its predecessor without the smallest file, which
    only lowers sums, so of it nothing but the set that ends in its new last file can
    qualify: the whole window. That makes the search linear.

    Args:
        files: Sorted.
        ratio: The ratio that must be exceeded.
        max_files: Most files in a set.
    """
    width = min(len(files), max_files)
    if width < 2:
        return ()
    best = _best_prefix(files, width, ratio)
    if best:
        return files[: best + 1]
    total = sum(file[0] for file in files[:width])
    for last in range(width, len(files)):
        size = files[last][0]
        total += size - files[last - width][0]
        if size * ratio < total:
            return files[last - width + 1 : last + 1]
    return ()


def _best_prefix(files: Sequence[Sized], width: int, ratio: float) -> int:
    """Return the place of the last file of the best prefix of a window, or 0.

    The shortest run of qualifying prefixes wins, unless its output would be larger
    than the last file of the next one: then the small merge would have stood in the
    way of the larger one, which is better done at once.
    """
    best = good = 0
    best_sum = 0
    total = files[0][0]
    for place in range(1, width):
        size = files[place][0]
        total += size
        if size * ratio < total:
            good = place
        elif good and good == place - 1:
            if best and best_sum <= files[good][0]:
                return best
            best, best_sum = good, total - size
    if good == width - 1 and (not best or best_sum > files[good][0]):
        best = good
    return best


def best_of_any_ratio(
    files: Sequence[Sized], max_files: int, lowest_ratio: float
) -> tuple[Sequence[Sized], float]:
    """Return the set with the highest ratio and that ratio, above `lowest_ratio`, or none.

    For a tablet of too many files in which nothing qualifies: of all sets that are
    neighbours in size, the one that rewrites least for what it merges. Among equals
    the last wins, which has the most files.

    Args:
        files: Sorted.
        max_files: Most files in a set.
        lowest_ratio: A set must do better than this.
    """
    width = min(len(files), max_files)
    found: Sequence[Sized] = ()
    best = 0.0
    for start in range(len(files) - width + 1 if files else 0):
        total = files[start][0]
        for place in range(start + 1, start + width):
            size = files[place][0]
            total += size
            if size > 0 and total / size >= best:
                best = total / size
                found = files[start : place + 1]
    return (found, best) if best > lowest_ratio else ((), best)


def forced_sets(files: Sequence[Sized], max_files: int) -> list[Sequence[Sized]]:
    """Return sets that bring files that do not qualify towards one file.

    The last two steps are arranged so that the largest files are rewritten once: with
    more than one but less than two jobs' worth, the smallest are merged until the rest
    fits into one job.

    Args:
        files: Sorted; all of them are to become one file in the end.
        max_files: Most files in a set.
    """
    count = len(files)
    if count <= max_files:
        return [files]
    full = count // max_files - 1
    if full > 0:
        return [files[at * max_files : (at + 1) * max_files] for at in range(full)]
    return [files[: count - max_files + 1]]
