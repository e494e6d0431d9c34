"""Code of planners with a target size: bins, jobs of bounded width, gain and cost.

Pure functions. The formulas of gain, cost, score and greedy choice are AutoComp's (SIGMOD 2025),
with its constants: a file is small below 0.75 of the target, and a job uses memory while it reads
at 2 MiB/s.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate
from typing import Any, TypeVar

from common.model.file import DataFile, total_bytes
from common.model.key_values import KeyType
from common.model.keys import SPLIT_BYTES_MAX, decode_key, encode_key
from common.spi.planner import PlanParameters

# ---------------------------------------------------------------------------- AutoComp's arithmetic


SMALL_SHARE = 0.75
"""A file below this fraction of the target is small."""
READ_BYTES_S = 2 * 1024**2
GAIN_WEIGHT = 0.7
COST_WEIGHT = 0.3


def small_bytes_below(target_bytes: float, share: float = SMALL_SHARE) -> float:
    """Return the size below which a file is small."""
    return share * target_bytes


def files_gained(
    sizes: Sequence[float], target_bytes: float, small_share: float = SMALL_SHARE
) -> int:
    """Return by how many files a merge of the small files reduces their number; at least 0."""
    small = [size for size in sizes if size < small_bytes_below(target_bytes, small_share)]
    return max(0, len(small) - math.ceil(sum(small) / target_bytes))


def cost_gb_hours(size_bytes: float) -> float:
    """Return the cost of a job in GB-hours: two units of memory while it reads, and a start."""
    return size_bytes / READ_BYTES_S / 3600 * 2 + 0.5


def size_skew(sizes: Sequence[float], target_bytes: float) -> float:
    """Return the mean squared distance of sizes from the target; 0 if all match it."""
    return sum((target_bytes - size) ** 2 for size in sizes) / len(sizes) if sizes else 0.0


def autocomp_scores(candidates: Sequence[tuple[float, float]]) -> list[float]:
    """Return a score for each pair of gain and cost: 0.7 · gain - 0.3 · cost, both scaled."""
    gains = _scaled([gain for gain, _ in candidates])
    costs = _scaled([cost for _, cost in candidates])
    return [
        GAIN_WEIGHT * gain - COST_WEIGHT * cost for gain, cost in zip(gains, costs, strict=True)
    ]


def _scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def autocomp_choice(
    candidates: Sequence[tuple[float, float]], budget: float, count_max: int
) -> list[int]:
    """Return the candidates to run, best score first, until the budget is spent.

    Args:
        candidates: Pairs of gain and cost.
        budget: Limit of the total cost; the last candidate may exceed it.
        count_max: Maximum number of candidates to run.
    """
    scores = autocomp_scores(candidates)
    best = sorted(range(len(candidates)), key=lambda number: (-scores[number], number))
    spent, chosen = 0.0, list[int]()
    for number in best:
        if spent >= budget or len(chosen) >= count_max:
            break
        chosen.append(number)
        spent += candidates[number][1]
    return chosen


# ------------------------------------------------------------------------------------ Bins and jobs


T = TypeVar("T")
Bin = list[DataFile]
SORTED_AT_ONCE = 2_000


def in_order(files: Sequence[DataFile], key: Callable[[DataFile], Any]) -> Iterator[DataFile]:
    """Yield files in the order of a key.

    They are sorted in runs that are merged. A sort of 100,000 files as a whole takes a tenth of a
    second, and no other thread runs meanwhile.
    """
    firsts = range(0, len(files), SORTED_AT_ONCE)
    runs = (sorted(files[first : first + SORTED_AT_ONCE], key=key) for first in firsts)
    return merge(*runs, key=key)


def first_fit_decreasing(files: Sequence[DataFile], capacity_bytes: float) -> list[Bin]:
    """Return bins of at most `capacity_bytes`; a larger file gets its own bin."""
    large = sum(file.size_bytes > capacity_bytes for file in files)
    # Of the other bins, at most one is half empty: its files would have fitted into another.
    count = min(len(files), large + 1 + math.ceil(2 * total_bytes(files) / max(1, capacity_bytes)))
    bins, rooms = list[Bin](), _Rooms(count, capacity_bytes)
    for file in in_order(files, lambda file: (-file.size_bytes, file.path)):
        fits = file.size_bytes <= capacity_bytes
        bin_index = rooms.first_with(file.size_bytes) if fits else len(bins)
        if bin_index == len(bins):
            bins.append([])
        bins[bin_index].append(file)
        rooms.take(bin_index, file.size_bytes)
    return bins


class _Rooms:
    """Free bytes of bins, as a tree in which each node has the most of its two children.

    The first bin with enough room is found in a few steps among 100,000 bins.
    """

    def __init__(self, count: int, capacity_bytes: float) -> None:
        self._leaves = 1 << max(0, count - 1).bit_length()
        self._most = [capacity_bytes] * (2 * self._leaves)

    def first_with(self, size_bytes: int) -> int:
        """Return the index of the first bin with this room; bins without files have all theirs."""
        most, node = self._most, 1
        while node < self._leaves:
            node *= 2
            if most[node] < size_bytes:
                node += 1
        return node - self._leaves

    def take(self, index: int, size_bytes: int) -> None:
        """Reduce the room of a bin."""
        most, node = self._most, index + self._leaves
        most[node] -= size_bytes
        while node > 1:
            node //= 2
            largest = max(most[2 * node], most[2 * node + 1])
            if most[node] == largest:
                return
            most[node] = largest


def next_fit(files: Sequence[DataFile], capacity_bytes: float) -> list[Bin]:
    """Return bins of adjacent files in the given order; a larger file gets its own bin."""
    bins, room = list[Bin](), 0.0
    for file in files:
        if not bins or file.size_bytes > room:
            bins.append([])
            room = capacity_bytes
        bins[-1].append(file)
        room -= file.size_bytes
    return bins


def range_order(
    files: Sequence[DataFile], *, keyed: bool
) -> Callable[[DataFile], tuple[bytes | float, ...]] | None:
    """Return a sort key that puts files with near ranges together; None without ranges.

    Args:
        files: All files to sort.
        keyed: Whether the table has a key, which takes precedence over times.
    """
    if keyed and all(file.key_min is not None and file.key_max is not None for file in files):
        return lambda file: (file.key_min or b"", file.key_max or b"")
    if all(file.time_min_s is not None and file.time_max_s is not None for file in files):
        return lambda file: (file.time_min_s or 0.0, file.time_max_s or 0.0)
    return None


def bins_of(files: Sequence[DataFile], capacity_bytes: float, *, keyed: bool) -> list[Bin]:
    """Return files in bins: by adjacent ranges if ranges are known, else by first fit."""
    order = range_order(files, keyed=keyed)
    if order is None:
        return first_fit_decreasing(files, capacity_bytes)
    ordered = list(in_order(files, lambda file: (*order(file), file.path)))
    return next_fit(ordered, capacity_bytes)


def forced_merges(ordered: Sequence[T], max_files: int) -> list[Sequence[T]]:
    """Return the first merges of files that must become one, regardless of their sizes.

    Full merges run concurrently. If the files fill more than one but less than two jobs, the
    smallest files are merged until the rest fits into one job. The largest files are then rewritten
    once.

    Args:
        ordered: All files to merge, smallest first.
        max_files: Maximum number of inputs of a merge.
    """
    count = len(ordered)
    if count <= max_files:
        return [ordered]
    full = count // max_files - 1
    if full > 0:
        return [ordered[at * max_files : (at + 1) * max_files] for at in range(full)]
    return [ordered[: count - max_files + 1]]


def first_merges(files: Sequence[DataFile], max_files: int) -> list[Bin]:
    """Return the first merges of files that must become one; large files are rewritten once.

    No merge has more than `max_files` inputs. The smallest files are merged first, and only as many
    as needed for one last merge to hold the rest.

    Args:
        files: All files to merge.
        max_files: Maximum number of inputs of a merge, at least 2.
    """
    ordered = sorted(files, key=lambda file: (file.size_bytes, file.path))
    excess = len(ordered) - max_files
    if excess <= 0:
        return [ordered]
    merges = math.ceil(excess / (max_files - 1))
    taken = excess + merges
    if taken > len(ordered):
        merges = len(ordered) // max_files
        taken = merges * max_files
    ends = [taken * number // merges for number in range(merges + 1)]
    return [ordered[ends[at] : ends[at + 1]] for at in range(merges)]


def parts_of(
    size_bytes: int, target_bytes: int, lower_share: float = SMALL_SHARE, upper_share: float = 1.8
) -> int:
    """Return into how many files of about the target size a file is cut: Iceberg's rule.

    A remainder that would be a small file is distributed to the other files. Their size must stay
    below the midpoint of target and upper limit, and below 1.1 times the target.

    Args:
        size_bytes: Size of all rows.
        target_bytes: Target size of a part.
        lower_share: Share of the target below which a part is small.
        upper_share: Share of the target above which a file is too large.
    """
    whole, rest = divmod(size_bytes, target_bytes)
    if whole == 0 or rest == 0:
        return max(1, whole)
    most = min(1.1, 1 + (upper_share - 1) / 2) * target_bytes
    if rest > lower_share * target_bytes or size_bytes / whole >= most:
        return whole + 1
    return whole


PATIENCE = 10.0
"""If a merge reads more than this many times its new bytes, its files wait longer."""


def patient_wait_s(wait_s: float, old_bytes: int, fresh_bytes: int) -> float:
    """Return how long files wait to be merged with a larger file; a larger file means longer.

    Args:
        wait_s: The wait if few old bytes are rewritten.
        old_bytes: Bytes that the merge rewrites again.
        fresh_bytes: New bytes.
    """
    return wait_s * max(1.0, old_bytes / (PATIENCE * max(1, fresh_bytes)))


# ----------------------------------------------------------------------------------- Future outputs


def capacity_bytes(parameters: PlanParameters) -> float:
    """Return the maximum bytes of a job; infinite without a limit."""
    most = parameters.job_bytes_max
    return math.inf if most is None else float(most)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOutputs:
    """Projected outputs of running jobs, each as large as the sum of its inputs."""

    files: tuple[DataFile, ...]
    paths: frozenset[str]
    """Placeholder paths of the outputs; real paths never start like these."""


def running_outputs(parameters: PlanParameters) -> RunningOutputs:
    """Return the outputs of running jobs of the same kind, so that plans can look ahead."""
    same_kind = [job for job in parameters.running if job.kind is parameters.kind and job.files]
    files = tuple(_output_of(number, job.files) for number, job in enumerate(same_kind))
    return RunningOutputs(files=files, paths=frozenset(file.path for file in files))


def _output_of(number: int, inputs: tuple[DataFile, ...]) -> DataFile:
    key_mins = [file.key_min for file in inputs if file.key_min is not None]
    key_maxs = [file.key_max for file in inputs if file.key_max is not None]
    starts = [file.time_min_s for file in inputs if file.time_min_s is not None]
    ends = [file.time_max_s for file in inputs if file.time_max_s is not None]
    count = len(inputs)
    return DataFile(
        path=f"\0running-{number}",
        size_bytes=total_bytes(inputs),
        rows=sum(file.rows for file in inputs),
        key_min=min(key_mins) if len(key_mins) == count else None,
        key_max=max(key_maxs) if len(key_maxs) == count else None,
        time_min_s=min(starts) if len(starts) == count else None,
        time_max_s=max(ends) if len(ends) == count else None,
    )


# ----------------------------------------------------------------------------------------- Key cuts
# Keys at which outputs are cut into parts of similar size.
#
# Only the smallest and the greatest key of a file are known, so its bytes are assumed to be evenly
# spread between them. A cut is a nearby bound of a file if there is one. Otherwise a cut is a value
# between two bounds, which requires the types of the key columns.


SLACK = 0.1
"""Maximum distance of a file's bound from the ideal cut, as a fraction of an output's bytes."""
CUT_BYTES_MAX = 64
"""Limit of a computed key, because the merge kernel can compare longer keys only by reading them.
"""
_DIGITS = 8


def shared_length(low: Sequence[int], high: Sequence[int]) -> int:
    """Return the length of the common prefix of two keys, in bytes or characters."""
    pairs = enumerate(zip(low, high, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(low), len(high)))


def number_after(key: bytes, skipped: int) -> int:
    """Return the eight bytes after a common prefix as a number that sorts like the key."""
    return int.from_bytes(key[skipped : skipped + _DIGITS].ljust(_DIGITS, b"\0"), "big")


def cut_keys(
    files: Sequence[DataFile], parts: int, key_types: Sequence[KeyType] = ()
) -> tuple[bytes, ...]:
    """Return keys that cut the merge of some files into parts of similar size.

    Args:
        files: Inputs of one job; files without known keys are ignored.
        parts: Wanted number of outputs.
        key_types: Types of the table's key columns; empty: cut at bounds of files only.

    Returns:
        At most `parts` - 1 keys, ascending; fewer if no key is near enough to an ideal cut.
    """
    density = _density(files)
    points = density.points
    if parts < 2 or len(points) < 2 or not density.filled[-1]:
        return ()
    share = density.filled[-1] / parts
    cuts: list[bytes] = []
    for number in range(1, parts):
        cut = _cut_at(share * number, share, density, key_types)
        if cut is None or len(cut) > SPLIT_BYTES_MAX or not points[0] <= cut < points[-1]:
            continue
        if not cuts or cut > cuts[-1]:
            cuts.append(cut)
    return tuple(cuts)


@dataclass(frozen=True, slots=True)
class _Density:
    """Distribution of the bytes of some files over keys."""

    points: Sequence[bytes]
    """All bounds of files, ascending."""
    filled: Sequence[float]
    """Cumulative bytes up to each point, inclusive."""
    single: Sequence[float]
    """Bytes of files with only this key."""


def _density(files: Sequence[DataFile]) -> _Density:
    spans = [
        (file.key_min, file.key_max, float(file.size_bytes))
        for file in files
        if file.key_min is not None and file.key_max is not None
    ]
    points = sorted({key for low, high, _ in spans for key in (low, high)})
    index_of = {key: number for number, key in enumerate(points)}
    between, single = [0.0] * len(points), [0.0] * len(points)
    for low, high, size in spans:
        skipped = shared_length(low, high)
        before = number_after(low, skipped)
        width = number_after(high, skipped) - before
        if width <= 0:
            between[index_of[high]] += size
            single[index_of[high]] += size
            continue
        for at in range(index_of[low] + 1, index_of[high] + 1):
            number = number_after(points[at], skipped)
            between[at] += size * (number - before) / width
            before = number
    return _Density(points, list(accumulate(between)), single)


def _cut_at(
    aim: float, share: float, density: _Density, key_types: Sequence[KeyType]
) -> bytes | None:
    """Return the key with about `aim` bytes up to it; None if no key is near."""
    points, filled = density.points, density.filled
    high = min(bisect_left(filled, aim), len(points) - 1)
    low = max(0, high - 1)
    nearest = min((low, high), key=lambda at: abs(filled[at] - aim))
    spread = filled[high] - density.single[high] - filled[low]
    if abs(filled[nearest] - aim) > SLACK * share and filled[low] < aim < filled[low] + spread:
        made = key_between(points[low], points[high], (aim - filled[low]) / spread, key_types)
        if made is not None:
            return made
    return points[nearest] if abs(filled[nearest] - aim) <= share / 2 else None


def key_between(
    low: bytes, high: bytes, share: float, key_types: Sequence[KeyType]
) -> bytes | None:
    """Return a key, or a prefix of one, between two keys.

    Args:
        low: The smaller key.
        high: The greater one.
        share: Position between them, 0 to 1.
        key_types: Types of the key columns.

    Returns:
        None if the keys cannot be decoded, or their types have no value between the two.
    """
    try:
        pairs = zip(decode_key(low, key_types), decode_key(high, key_types), strict=False)
        values: list[object] = []
        for kind, (one, other) in zip(key_types, pairs, strict=False):
            if one != other:
                values.append(_value_between(one, other, share, kind))
                break
            values.append(one)
        key = encode_key(values, key_types[: len(values)])
    except (ValueError, OverflowError):
        return None
    return key if low < key < high and len(key) <= CUT_BYTES_MAX else None


_WHOLE = (KeyType.INT, KeyType.DATE, KeyType.TIME, KeyType.TIMESTAMP)


def _value_between(low: object, high: object, share: float, kind: KeyType) -> object:
    match low, high:
        case (int(), int()) if kind in _WHOLE:
            return low + int((high - low) * share)
        case (float(), float()):
            return low + (high - low) * share
        case (str(), str()):
            digits = _digits_between([*map(ord, low)], [*map(ord, high)], share, 128)
            return "".join(map(chr, digits))
        case (bytes(), bytes()):
            return bytes(_digits_between([*low], [*high], share, 256))
        case _:
            raise ValueError(kind)


def _digits_between(low: list[int], high: list[int], share: float, base: int) -> list[int]:
    """Return digits between those of two texts: their common prefix, and a few more digits.

    Texts are assumed to be ASCII after the prefix; the caller checks the result for other texts.
    """
    same = shared_length(low, high)
    first, last = (_value(bound[same : same + _PLACES], base) for bound in (low, high))
    number, digits = first + int((last - first) * share), list[int]()
    for _ in range(_PLACES):
        number, digit = divmod(number, base)
        digits.insert(0, digit)
    return [*low[:same], *digits]


_PLACES = 4


def _value(digits: list[int], base: int) -> int:
    padded = [*digits, *[0] * _PLACES][:_PLACES]
    return sum(min(digit, base - 1) * base ** (_PLACES - 1 - at) for at, digit in enumerate(padded))
