"""The budgeted planner: spend a fixed byte budget where it reduces overlap most.

This is Kudu's rule. Data is mapped to a line from 0 to 1 by the key CDF: equal lengths hold equal
bytes. The width of a file is the length that it covers. The height at a point is the number of
files there, which a reader of a key has to check. A merge of files whose widths sum to V and that
together cover U reduces the average height by V - U. The planner searches the set with the largest
difference whose bytes are within the budget: a knapsack problem for each left end.

There are two passes. The first bounds every knapsack by its fractional solution, which is often
enough. The second solves the knapsacks with better bounds exactly. Three things differ from Kudu:
no set has more than `max_files` files, a scan ends when no set over such a wide range can win, and
a single file is never chosen.

Fixed point: a SYSTEM job has at least two inputs and at most one output, so a tablet of n files has
no work left after at most n - 1 jobs, regardless of the output sizes. A request ends in one file.

A plan has one job: the best one. The planner is asked again while that job is running, without the
job's files. Merges of deltas do not apply, because a file has no deltas of its own.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import ConfigError
from common.model.file import total_bytes
from common.model.job import Kind, Plan, PlannedJob, job_priority
from common.model.table import TableSettings
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count
from coordinator.plugins.planners.packing import (
    capacity_bytes,
    first_merges,
    number_after,
    running_outputs,
    shared_length,
)

MIB = 1024**2
CHUNK = 32
"""Files that a scan reads before it skips files of too low value; doubled each time."""
NARROWER = 0.95
"""A range is scanned when a step narrows it by less than this factor."""
SPREAD = 64
ROUNDING = 1e-9
"""Margin of bounds, because floating-point sums depend on the order of their terms."""
Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# ------------------------------------------------------------------------------------------ Options


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedOptions:
    """Options and settings of the planner."""

    budget_bytes: int = option(256 * MIB, at_least=MIB)
    target_file_bytes: int = option(32 * MIB, at_least=1)
    gamma: float = option(0.009, at_least=0)
    width_penalty: float = option(1.003, at_least=1)
    min_quality: float = option(0.01, at_least=0)
    approximation: float = option(1.05, at_least=1)
    exact: bool = option(True)
    max_files: int = of_table("max_files", at_least=2)  # One file is no merge.
    file_limit: int = of_table("file_limit", at_least=0)


def _options(settings: TableSettings | None, options: Mapping[str, object]) -> BudgetedOptions:
    parsed = read_options(BudgetedOptions, "planner budgeted", options, settings)
    if 0 < parsed.gamma >= parsed.min_quality:
        raise ConfigError(
            f"planner budgeted: option gamma is {parsed.gamma:g}, expected below min_quality"
            f" {parsed.min_quality:g}: otherwise a single small file justifies a rewrite"
        )
    return parsed


# ------------------------------------------------------------------------------------- The key line


@dataclass(frozen=True, slots=True)
class RowSet:
    """A file on the key line, between 0 and 1."""

    name: str
    size_bytes: int
    start: float
    end: float

    @property
    def width(self) -> float:
        """The fraction of all data in its key range."""
        return self.end - self.start


def row_sets(files: Sequence[tuple[str, bytes, bytes, int]]) -> list[RowSet]:
    """Map files to the key CDF; each file is assumed to be evenly spread over its key range.

    Args:
        files: Name, first key, last key and bytes of each file.

    Returns:
        One row set per file, sorted by name.
    """
    # Sorted, because floating-point sums depend on the order of their terms.
    files = sorted(files)
    points = sorted({key for _, low, high, _ in files for key in (low, high)})
    index_of = {key: number for number, key in enumerate(points)}
    mass = _mass_between(points, index_of, files)
    sums = np.concatenate(([0.0], np.cumsum(mass)))
    total = float(sums[-1])
    line = [float(mass_up_to) / total if total > 0 else 0.0 for mass_up_to in sums]
    return [
        RowSet(name, size_bytes, line[index_of[low]], line[index_of[high]])
        for name, low, high, size_bytes in files
    ]


def _mass_between(
    points: Sequence[bytes],
    index_of: Mapping[bytes, int],
    files: Sequence[tuple[str, bytes, bytes, int]],
) -> Numbers:
    """Return the bytes between adjacent points."""
    mass = np.zeros(max(0, len(points) - 1))
    numbers: dict[int, npt.NDArray[np.uint64]] = {}
    for _, low, high, size_bytes in files:
        skipped = shared_length(low, high)
        if skipped not in numbers:
            # All keys in a range share its prefix, so one array serves all ranges with this prefix
            # length.
            numbers[skipped] = np.array([number_after(key, skipped) for key in points], np.uint64)
        first, last = index_of[low], index_of[high]
        values = numbers[skipped][first : last + 1]
        if first < last and values[-1] > values[0]:
            mass[first:last] += size_bytes * (np.diff(values) / float(values[-1] - values[0]))
    return mass


def average_height(sets: Sequence[RowSet]) -> float:
    """Return how many files a reader of one key checks, averaged over the data."""
    covered, end = 0.0, 0.0
    for set_ in sorted(sets, key=lambda row_set: (row_set.start, row_set.end)):
        covered += max(0.0, set_.end - max(end, set_.start))
        end = max(end, set_.end)
    return sum(set_.width for set_ in sets) / covered if covered else 0.0


# ------------------------------------------------------------------------------------- The best set


@dataclass(frozen=True, slots=True)
class Choice:
    """The best set of files, and by how much its merge reduces the average height."""

    names: tuple[str, ...] = ()
    quality: float = 0.0
    stage: str = "approx"
    """`approx` or `exact`: the pass that found it."""


@dataclass(frozen=True, slots=True, order=True)
class _Item:
    """Value of a file, ordered by value per weight."""

    density: float
    place: int
    value: float
    units: int
    row_set: RowSet


@dataclass(slots=True)
class _Search:
    """State of a search."""

    options: BudgetedOptions
    items: list[_Item]
    """Sorted by the end of their ranges."""
    budget: int
    best: Choice
    value_max: float
    """Upper bound of the value of any set."""
    quality_min: float
    """Sets of a lower quality may be missed."""
    starts: Numbers
    ends: Numbers
    densities: Numbers
    values: Numbers
    weights: Numbers
    by_density: npt.NDArray[np.int64]
    """Indexes, highest value per weight first."""

    def score(self, value: float, union: float) -> float:
        """Return the quality of a set: lower than `value - union` if files overlap."""
        return value - union * (1.0 if value <= union else self.options.width_penalty)

    def offer(self, items: Sequence[_Item], quality: float, stage: str) -> None:
        """Store a set of at least two files if it is the best so far."""
        if quality > self.best.quality and len(items) > 1:
            names = tuple(sorted(item.row_set.name for item in items))
            self.best = Choice(names, quality, stage)


DETAILED_MAX = 500
"""With more files, a quality too low for a job may be inexact, which saves time."""


def best_choice(
    sets: Sequence[RowSet], options: BudgetedOptions, cap_bytes: float = math.inf
) -> Choice:
    """Return the best set within the budget; without names if no set exceeds `min_quality`.

    With at most `DETAILED_MAX` files, the quality is that of the best set in either case.

    Args:
        sets: Files of one tablet.
        options: The budget, and the valuation of sets.
        cap_bytes: Maximum bytes of a job, never exceeded. The budget counts whole MiB, as in Kudu.
    """
    if len(sets) < 2:
        return Choice()
    least = options.min_quality
    budget, weights = _weights(sets, options, cap_bytes)
    pairs = sorted(
        zip(sets, weights, strict=True),
        key=lambda pair: (pair[0].end, pair[0].start, pair[0].name),
    )
    items = [
        _item(number, row_set, weight, options) for number, (row_set, weight) in enumerate(pairs)
    ]
    densities = np.array([item.density for item in items])
    search = _Search(
        options=options,
        items=items,
        budget=budget,
        best=Choice(),
        value_max=_value_max(items, budget),
        quality_min=least if len(sets) > DETAILED_MAX else 0.0,
        starts=np.array([item.row_set.start for item in items]),
        ends=np.array([item.row_set.end for item in items]),
        densities=densities,
        values=np.array([item.value for item in items]),
        weights=np.array([float(item.units) for item in items]),
        by_density=np.argsort(-densities, kind="stable"),
    )
    promises = _approximate(search)
    upper = max(promise.upper for promise in promises)
    if options.exact and upper > least and 2 * search.best.quality > least:
        _solve_exactly(search, promises)
    best = search.best
    return best if best.quality > least else Choice((), best.quality, best.stage)


UNITS_MIN = 1024
"""Minimum number of units of a cap below the budget; sizes are rounded up to units."""


def _weights(
    sets: Sequence[RowSet], options: BudgetedOptions, cap_bytes: float
) -> tuple[int, list[int]]:
    """Return the budget and the weight of each file, in MiB or in units of a lower cap."""
    if cap_bytes < options.budget_bytes:
        unit = max(1, min(MIB, int(cap_bytes) // UNITS_MIN))
        budget = int(cap_bytes) // unit
        weights = [max(1, -(-set_.size_bytes // unit)) for set_ in sets]
    else:
        budget = options.budget_bytes // MIB
        weights = [max(1, set_.size_bytes // MIB) for set_ in sets]
    if len(sets) > options.max_files:
        # At most `max_files` files of this weight fit into the budget.
        least = budget // (options.max_files + 1) + 1
        weights = [max(least, weight) for weight in weights]
    return budget, weights


def _item(number: int, row_set: RowSet, weight: int, options: BudgetedOptions) -> _Item:
    small = max(0.0, 1 - row_set.size_bytes / options.target_file_bytes)
    value = row_set.width + options.gamma * small
    return _Item(value / weight, number, value, weight, row_set)


def _value_max(items: Sequence[_Item], budget: int) -> float:
    """Return the value of the best fractional choice of all files."""
    value, room = 0.0, budget
    for item in sorted(items, reverse=True):
        if item.units >= room:
            return value + item.density * room
        value, room = value + item.value, room - item.units
    return value


@dataclass(frozen=True, slots=True)
class _Promise:
    """Upper bound of the sets of one left end, and the index at which the last good set may end."""

    left: _Item
    upper: float
    last: int


def _approximate(search: _Search) -> list[_Promise]:
    """Find the best set by fractional knapsacks; return the upper bound of each left end."""
    by_start = sorted(search.items, key=lambda item: (item.row_set.start, item.place))
    # Start with a sample of the whole line; a good set in it prunes most other left ends.
    spread = [left for first in range(SPREAD) for left in by_start[first::SPREAD]]
    return [_scan(search, left) for left in spread]


def _window(search: _Search, left: _Item) -> list[int]:
    """Return the indexes, by end, of files that a better set from a left end may contain.

    The value of a better set exceeds the sum of the best quality so far and the set's range. The
    maximum value in a range therefore limits the range, and the narrower range again limits the
    value.
    """
    start, best = left.row_set.start, max(search.best.quality, search.quality_min)
    reach, places = search.value_max - best, search.by_density
    places = places[search.starts[places] >= start]
    while reach > left.row_set.width:
        places = places[search.ends[places] <= start + reach]
        narrower = _fractional(search, places) - best
        if narrower > reach * NARROWER:
            return sorted(places.tolist())
        reach = narrower
    return []


def _fractional(search: _Search, places: npt.NDArray[np.int64]) -> float:
    """Return the fractional knapsack value of some files, given by descending density."""
    filled = np.cumsum(search.weights[places])
    whole = int(np.searchsorted(filled, search.budget, "right"))
    value = float(search.values[places[:whole]].sum())
    if whole < len(places):
        room = search.budget - (float(filled[whole - 1]) if whole else 0.0)
        value += room * float(search.densities[places[whole]])
    return value + ROUNDING


def _scan(search: _Search, left: _Item) -> _Promise:
    """Scan files from one left end, sorted by the end of their range; return the upper bound."""
    start, end = left.row_set.start, left.row_set.end
    budget, approximation = search.budget, search.options.approximation
    heap = list[_Item]()
    value, weight, best_upper, last = 0.0, 0, 0.0, -1
    places = _window(search, left)
    done, step = 0, CHUNK
    while done < len(places):
        chunk = np.array(places[done : done + step])
        done, step = done + step, step * 2
        if weight > budget:
            # A file of lower density than the lowest would drop out at once, and only adds width.
            chunk = chunk[search.densities[chunk] >= heap[0].density]
        for number in chunk.tolist():
            item = search.items[number]
            union = max(end, item.row_set.end) - start
            heapq.heappush(heap, item)
            value, weight = value + item.value, weight + item.units
            while weight - heap[0].units > budget:
                gone = heapq.heappop(heap)
                value, weight = value - gone.value, weight - gone.units
            lower = upper = value
            if weight > budget:
                lower = value - heap[0].value
                upper = value - (weight - budget) * heap[0].density
            best_upper = max(best_upper, upper_score := search.score(upper, union))
            if (quality := search.score(lower, union)) > search.best.quality:
                search.offer(heap if weight <= budget else heap[1:], quality, "approx")
            if upper_score > search.best.quality * approximation:
                last = number
    return _Promise(left, best_upper, last)


def _solve_exactly(search: _Search, promises: Sequence[_Promise]) -> None:
    """Solve the knapsacks whose bound exceeds the best quality times the approximation."""
    for promise in sorted(promises, key=lambda promise: (-promise.upper, promise.left.place)):
        if promise.upper <= search.best.quality * search.options.approximation:
            return
        _knapsack(search, promise)


def _knapsack(search: _Search, promise: _Promise) -> None:
    """Solve one knapsack with a table of the best value by weight, one row per scanned file."""
    start, end = promise.left.row_set.start, promise.left.row_set.end
    values = np.zeros(search.budget + 1)
    scanned, taken = list[_Item](), list[Flags]()
    for number in _window(search, promise.left):
        item = search.items[number]
        if number > promise.last or item.units > search.budget:
            continue
        with_it = values[: -item.units] + item.value
        better = with_it > values[item.units :]
        values[item.units :][better] = with_it[better]
        scanned.append(item)
        taken.append(better)
        union = max(end, item.row_set.end) - start
        quality = search.score(float(values[-1]), union)
        if quality > search.best.quality:
            search.offer(_chosen(scanned, taken, search.budget), quality, "exact")


def _chosen(scanned: Sequence[_Item], taken: Sequence[Flags], budget: int) -> list[_Item]:
    chosen, room = list[_Item](), budget
    for item, better in zip(reversed(scanned), reversed(taken), strict=True):
        if room >= item.units and better[room - item.units]:
            chosen.append(item)
            room -= item.units
    return chosen


# -------------------------------------------------------------------------------------- The planner


class BudgetedPlanner:
    """Plans by budget; see the module. Keeps no state between plans."""

    option_names = option_names(BudgetedOptions)
    """Names of the planner's options."""
    setting_names = settings_of(BudgetedOptions)

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        _options(None, options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the job to run now, and why each other candidate is left.

        Raises:
            ConfigError: A setting is invalid.
        """
        options = _options(parameters.settings, parameters.options)
        if parameters.kind is Kind.USER:
            return _request_plan(parameters, options)
        return _best_plan(parameters, options)


def _best_plan(parameters: PlanParameters, options: BudgetedOptions) -> Plan:
    """Return the job that reduces the average height most within the budget."""
    placed = [
        (file.path, file.key_min, file.key_max, file.size_bytes)
        for file in parameters.candidates
        if file.key_min is not None and file.key_max is not None
    ]
    sets = row_sets(placed)
    choice = best_choice(sets, options, cap_bytes=capacity_bytes(parameters))
    height = f"average height {average_height(sets):.3g}"
    why = f"quality {choice.quality:.6g}, not above min_quality {options.min_quality:g}; {height}"
    if choice.names:
        why = f"quality {choice.quality:.6g}; the file is planned again after that job"
    left = {
        file.path: "has no range of keys, which this planner needs"
        if file.key_min is None or file.key_max is None
        else f"is left: the best set has {why}"
        for file in parameters.candidates
        if file.path not in choice.names
    }
    if not choice.names:
        return Plan(left=left)
    reason = f"quality {choice.quality:.6g}, {choice.stage}: reduces {height} by that"
    return Plan(jobs=(_job(parameters, options, choice.names, reason),), left=left)


def _request_plan(parameters: PlanParameters, options: BudgetedOptions) -> Plan:
    """Merge the files of a request into one, smallest first."""
    coming = running_outputs(parameters)
    pool = [*parameters.candidates, *coming.files]
    request = None if parameters.request is None else parameters.request.request
    if len(pool) == 1 and pool[0].request == request:
        return Plan(left={pool[0].path: "is the result of the request"})
    merges = [[file.path for file in merge] for merge in first_merges(pool, options.max_files)]
    jobs = tuple(
        _job(parameters, options, tuple(sorted(merge)), "a request merges all files into one")
        for merge in merges
        if not coming.paths & set(merge)
    )
    planned = {path for job in jobs for path in job.files}
    why = "is merged in a later step, after earlier jobs"
    return Plan(
        jobs=jobs,
        left={file.path: why for file in parameters.candidates if file.path not in planned},
    )


def _job(
    parameters: PlanParameters, options: BudgetedOptions, paths: tuple[str, ...], why: str
) -> PlannedJob:
    files = tuple(parameters.files[path] for path in paths)
    size_bytes = total_bytes(files)
    return PlannedJob(
        kind=parameters.kind,
        files=paths,
        group=parameters.group_for(size_bytes),
        priority=job_priority(
            parameters.kind,
            files_in_tablet=len(parameters.files),
            files_in_job=len(files),
            file_limit=options.file_limit,
        ),
        reason=f"{why}; {format_count(len(files), 'file')} of {format_bytes(size_bytes)}",
    )
