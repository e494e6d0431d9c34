"""What planners share that fill files up to a size: bins, jobs of bounded width, gain and cost.

Values only. The formulas of gain, cost, score and greedy choice are AutoComp's (SIGMOD 2025), with
its numbers: a file is small below 0.75 of the target, and a job costs memory for as long as it
reads at 2 MiB/s.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from common.model.file import DataFile, total_bytes
from common.spi.planner import PlanParameters

# ---------------------------------------------------------------------------- AutoComp's arithmetic


SMALL_SHARE = 0.75
"""A file of less than this share of the target is small."""
READ_BYTES_S = 2 * 1024**2
GAIN_WEIGHT = 0.7
COST_WEIGHT = 0.3


def small_bytes_below(target_bytes: float, share: float = SMALL_SHARE) -> float:
    """Return the size below which a file is small."""
    return share * target_bytes


def files_gained(
    sizes: Sequence[float], target_bytes: float, small_share: float = SMALL_SHARE
) -> int:
    """Return by how many files a merge of the small ones lowers their number; at least 0."""
    small = [size for size in sizes if size < small_bytes_below(target_bytes, small_share)]
    return max(0, len(small) - math.ceil(sum(small) / target_bytes))


def cost_gb_hours(size_bytes: float) -> float:
    """Return what a job costs that reads so many bytes: two units of memory and a start."""
    return size_bytes / READ_BYTES_S / 3600 * 2 + 0.5


def size_skew(sizes: Sequence[float], target_bytes: float) -> float:
    """Return the mean squared distance of sizes from the target; 0: all are as large as it."""
    return sum((target_bytes - size) ** 2 for size in sizes) / len(sizes) if sizes else 0.0


def autocomp_scores(candidates: Sequence[tuple[float, float]]) -> list[float]:
    """Return a score for each pair of gain and cost: 0.7 of the gain less 0.3 of the cost."""
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
    """Return which candidates run, best score first: while the cost so far is below the budget.

    Args:
        candidates: Pairs of gain and cost.
        budget: For all together; the last one may exceed it.
        count_max: Most candidates that run.
    """
    scores = autocomp_scores(candidates)
    best = sorted(range(len(candidates)), key=lambda place: (-scores[place], place))
    spent, chosen = 0.0, list[int]()
    for place in best:
        if spent >= budget or len(chosen) >= count_max:
            break
        chosen.append(place)
        spent += candidates[place][1]
    return chosen


# ------------------------------------------------------------------------------------ Bins and jobs


T = TypeVar("T")
Bin = list[DataFile]


def first_fit_decreasing(files: Sequence[DataFile], capacity_bytes: float) -> list[Bin]:
    """Return bins of at most `capacity_bytes`; a larger file has a bin of its own."""
    bins, room = list[Bin](), list[float]()
    for file in sorted(files, key=lambda each: (-each.size_bytes, each.path)):
        fits = (place for place, free in enumerate(room) if file.size_bytes <= free)
        place = next(fits, len(bins))
        if place == len(bins):
            bins.append([])
            room.append(capacity_bytes)
        bins[place].append(file)
        room[place] -= file.size_bytes
    return bins


def next_fit(files: Sequence[DataFile], capacity_bytes: float) -> list[Bin]:
    """Return bins of neighbours in the order that is given; a larger file has its own bin."""
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
    """Return the order of files whose neighbours have near ranges; None: they have no ranges.

    Args:
        files: All that are to be ordered.
        keyed: Whether the table has a key, which comes before times.
    """
    if keyed and all(file.key_min is not None and file.key_max is not None for file in files):
        return lambda file: (file.key_min or b"", file.key_max or b"")
    if all(file.time_min_s is not None and file.time_max_s is not None for file in files):
        return lambda file: (file.time_min_s or 0.0, file.time_max_s or 0.0)
    return None


def bins_of(files: Sequence[DataFile], capacity_bytes: float, *, keyed: bool) -> list[Bin]:
    """Return files in bins: neighbours in range where ranges are known, else first fit."""
    order = range_order(files, keyed=keyed)
    if order is None:
        return first_fit_decreasing(files, capacity_bytes)
    return next_fit(sorted(files, key=lambda file: (*order(file), file.path)), capacity_bytes)


def forced_merges(ordered: Sequence[T], max_files: int) -> list[Sequence[T]]:
    """Return the merges to begin with, so that files become one whatever their sizes.

    Full merges run side by side. With more than one but less than two jobs' worth, the smallest
    are merged until the rest fits into one job, so the largest are rewritten once.

    Args:
        ordered: Smallest first; all of them are to become one file in the end.
        max_files: Most inputs of a merge.
    """
    count = len(ordered)
    if count <= max_files:
        return [ordered]
    full = count // max_files - 1
    if full > 0:
        return [ordered[at * max_files : (at + 1) * max_files] for at in range(full)]
    return [ordered[: count - max_files + 1]]


def first_merges(files: Sequence[DataFile], max_files: int) -> list[Bin]:
    """Return the merges to begin with, so that files become one, the large ones rewritten once.

    No merge has more than `max_files` inputs. The smallest files are merged first, and only as many
    of them as it takes for one last merge to hold the rest.

    Args:
        files: All that are to become one file.
        max_files: Most inputs of a merge, at least 2.
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
    """Return into how many files about as large as the target a file is cut: Iceberg's rule.

    A rest that would be a small file goes into the others, as long as they stay below half the way
    from the target to the largest file, or a tenth above the target if that is less.

    Args:
        size_bytes: Of all rows.
        target_bytes: Wanted of each part.
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
"""Where a merge reads this many times the bytes that are new to it, its files wait longer."""


def patient_wait_s(wait_s: float, old_bytes: int, fresh_bytes: int) -> float:
    """Return how long files wait to be merged with a larger one: longer the larger that is.

    Args:
        wait_s: The wait where little is rewritten.
        old_bytes: What is rewritten though nothing is new to it.
        fresh_bytes: What is new.
    """
    return wait_s * max(1.0, old_bytes / (PATIENCE * max(1, fresh_bytes)))


# ---------------------------------------------------------------------------------- Outputs to come


def capacity_bytes(parameters: PlanParameters) -> float:
    """Return the most bytes of a job, infinite for any."""
    most = parameters.job_bytes_max
    return math.inf if most is None else float(most)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOutputs:
    """Files that jobs under way will have written: as large as their inputs at most."""

    files: tuple[DataFile, ...]
    paths: frozenset[str]
    """Names that stand for them; no path of a file begins like these."""


def running_outputs(parameters: PlanParameters) -> RunningOutputs:
    """Return what the jobs of the same kind will leave, so that plans look ahead."""
    mine = [job for job in parameters.running if job.kind is parameters.kind and job.files]
    files = tuple(_output_of(number, job.files) for number, job in enumerate(mine))
    return RunningOutputs(files=files, paths=frozenset(file.path for file in files))


def _output_of(number: int, inputs: tuple[DataFile, ...]) -> DataFile:
    key_mins = [file.key_min for file in inputs if file.key_min is not None]
    key_maxs = [file.key_max for file in inputs if file.key_max is not None]
    starts = [file.time_min_s for file in inputs if file.time_min_s is not None]
    ends = [file.time_max_s for file in inputs if file.time_max_s is not None]
    every = len(inputs)
    return DataFile(
        path=f"\0running-{number}",
        size_bytes=total_bytes(inputs),
        rows=sum(file.rows for file in inputs),
        key_min=min(key_mins) if len(key_mins) == every else None,
        key_max=max(key_maxs) if len(key_maxs) == every else None,
        time_min_s=min(starts) if len(starts) == every else None,
        time_max_s=max(ends) if len(ends) == every else None,
    )
