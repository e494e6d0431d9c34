"""The budgeted planner: spend a fixed number of bytes where it lowers the most overlap.

Kudu's rule. Data is laid out on a line from 0 to 1 by the key CDF: equal lengths hold equal bytes.
The width of a file is the length that it covers. The height at a point is the number of files
there, which is what a reader of a key has to look at. A merge of files whose widths sum to V and
that together cover U lowers the average height by V - U. The planner looks for the set with the
largest difference whose bytes are within the budget: a knapsack for each left end.

Two passes: the first bounds every knapsack by its fractional solution, and often that is enough.
The second solves exactly those whose bound promises more. Three changes to Kudu's: no set has more
than `max_files` files, a scan ends where no set over so wide a range can win, and a single file is
never chosen.

Fixed point: a SYSTEM job has at least two inputs and at most one output, so a tablet of n files
rests after at most n - 1 jobs, whatever the outputs weigh. A request ends in one file.

There is one job per plan: the best. With it under way the planner is asked again, and its files
take no part then. Merges of deltas have no place here: a file has no deltas of its own.
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
from coordinator.plugins.planners.key_cuts import number_after, shared_length
from coordinator.plugins.planners.packing import (
    capacity_bytes,
    first_merges,
    running_outputs,
)

MIB = 1024**2
CHUNK = 32
"""Files that a scan looks at before it leaves out those of too little worth; doubled each time."""
NARROWER = 0.95
"""A range that narrows by less is scanned."""
SPREAD = 64
ROUNDING = 1e-9
"""Bounds of sums are this much wider, since sums of the same numbers differ by their order."""
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
    found = read_options(BudgetedOptions, "planner budgeted", options, settings)
    if 0 < found.gamma >= found.min_quality:
        raise ConfigError(
            f"planner budgeted: option gamma is {found.gamma:g}, expected below min_quality"
            f" {found.min_quality:g}: otherwise a single small file justifies a rewrite"
        )
    return found


# ------------------------------------------------------------------------------------- The key line


@dataclass(frozen=True, slots=True)
class RowSet:
    """A file on the line of keys, between 0 and 1."""

    name: str
    size_bytes: int
    start: float
    end: float

    @property
    def width(self) -> float:
        """The part of all data that lies in its range of keys."""
        return self.end - self.start


def row_sets(files: Sequence[tuple[str, bytes, bytes, int]]) -> list[RowSet]:
    """Lay files out by the key CDF, each taken to be spread evenly over its range of keys.

    Args:
        files: Name, first key, last key and bytes of each.

    Returns:
        One for each file, by name.
    """
    # In one order, whatever came first: sums of floating-point numbers depend on it.
    files = sorted(files)
    points = sorted({key for _, low, high, _ in files for key in (low, high)})
    place = {key: number for number, key in enumerate(points)}
    mass = _mass_between(points, place, files)
    sums = np.concatenate(([0.0], np.cumsum(mass)))
    total = float(sums[-1])
    line = [float(each) / total if total > 0 else 0.0 for each in sums]
    return [
        RowSet(name, size_bytes, line[place[low]], line[place[high]])
        for name, low, high, size_bytes in files
    ]


def _mass_between(
    points: Sequence[bytes],
    place: Mapping[bytes, int],
    files: Sequence[tuple[str, bytes, bytes, int]],
) -> Numbers:
    """Return the bytes between each two neighbouring points."""
    mass = np.zeros(max(0, len(points) - 1))
    numbers: dict[int, npt.NDArray[np.uint64]] = {}
    for _, low, high, size_bytes in files:
        skipped = shared_length(low, high)
        if skipped not in numbers:
            # Within a range all keys share its prefix, so one reading serves all ranges of it.
            numbers[skipped] = np.array([number_after(key, skipped) for key in points], np.uint64)
        first, last = place[low], place[high]
        values = numbers[skipped][first : last + 1]
        if first < last and values[-1] > values[0]:
            mass[first:last] += size_bytes * (np.diff(values) / float(values[-1] - values[0]))
    return mass


def average_height(sets: Sequence[RowSet]) -> float:
    """Return how many files a reader of one key looks at, on average over the data."""
    covered, end = 0.0, 0.0
    for set_ in sorted(sets, key=lambda one: (one.start, one.end)):
        covered += max(0.0, set_.end - max(end, set_.start))
        end = max(end, set_.end)
    return sum(set_.width for set_ in sets) / covered if covered else 0.0


# ------------------------------------------------------------------------------- The best set in it


@dataclass(frozen=True, slots=True)
class Choice:
    """The best set of files, and by how much its merge lowers the average height."""

    names: tuple[str, ...] = ()
    quality: float = 0.0
    stage: str = "approx"
    """`approx` or `exact`: the pass that found it."""


@dataclass(frozen=True, slots=True, order=True)
class _Item:
    """What a file is worth; ordered by worth per weight."""

    density: float
    place: int
    value: float
    units: int
    row_set: RowSet


@dataclass(slots=True)
class _Search:
    """A search under way."""

    options: BudgetedOptions
    items: list[_Item]
    """Ascending by the end of their ranges."""
    budget: int
    best: Choice
    value_max: float
    """No set is worth more, wherever it lies."""
    quality_min: float
    """Sets of a lower quality need not be found."""
    starts: Numbers
    ends: Numbers
    densities: Numbers
    values: Numbers
    weights: Numbers
    by_density: npt.NDArray[np.int64]
    """Places, those worth most per weight first."""

    def score(self, value: float, union: float) -> float:
        """Return the quality of a set: less than `value - union` where files overlap."""
        return value - union * (1.0 if value <= union else self.options.width_penalty)

    def offer(self, items: Sequence[_Item], quality: float, stage: str) -> None:
        """Keep a set of at least two files if it is the best so far."""
        if quality > self.best.quality and len(items) > 1:
            names = tuple(sorted(item.row_set.name for item in items))
            self.best = Choice(names, quality, stage)


TOLD_MAX = 500
"""Of more files a quality that is too low for a job need not be exact: it would take long."""


def best_choice(
    sets: Sequence[RowSet], options: BudgetedOptions, cap_bytes: float = math.inf
) -> Choice:
    """Return the best set within the budget; without names if none is above `min_quality`.

    The quality is that of the best set in either case, if there are at most `TOLD_MAX` files.

    Args:
        sets: Of one tablet.
        options: The budget, and what a set is worth.
        cap_bytes: Most bytes of a job, kept to the byte. The budget counts whole MiB, as Kudu does.
    """
    if len(sets) < 2:
        return Choice()
    least = options.min_quality
    budget, weights = _weights(sets, options, cap_bytes)
    pairs = sorted(
        zip(sets, weights, strict=True),
        key=lambda pair: (pair[0].end, pair[0].start, pair[0].name),
    )
    items = [_item(number, each, weight, options) for number, (each, weight) in enumerate(pairs)]
    densities = np.array([item.density for item in items])
    search = _Search(
        options=options,
        items=items,
        budget=budget,
        best=Choice(),
        value_max=_value_max(items, budget),
        quality_min=least if len(sets) > TOLD_MAX else 0.0,
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
"""Parts of a cap that is below the budget: sizes are rounded up to one."""


def _weights(
    sets: Sequence[RowSet], options: BudgetedOptions, cap_bytes: float
) -> tuple[int, list[int]]:
    """Return the budget and the weight of each file, in MiB or in parts of a lower cap."""
    if cap_bytes < options.budget_bytes:
        unit = max(1, min(MIB, int(cap_bytes) // UNITS_MIN))
        budget = int(cap_bytes) // unit
        weights = [max(1, -(-set_.size_bytes // unit)) for set_ in sets]
    else:
        budget = options.budget_bytes // MIB
        weights = [max(1, set_.size_bytes // MIB) for set_ in sets]
    if len(sets) > options.max_files:
        # No more than `max_files` of such a weight are within the budget.
        least = budget // (options.max_files + 1) + 1
        weights = [max(least, weight) for weight in weights]
    return budget, weights


def _item(place: int, row_set: RowSet, weight: int, options: BudgetedOptions) -> _Item:
    small = max(0.0, 1 - row_set.size_bytes / options.target_file_bytes)
    value = row_set.width + options.gamma * small
    return _Item(value / weight, place, value, weight, row_set)


def _value_max(items: Sequence[_Item], budget: int) -> float:
    """Return the value of the best fractional choice among all."""
    value, room = 0.0, budget
    for item in sorted(items, reverse=True):
        if item.units >= room:
            return value + item.density * room
        value, room = value + item.value, room - item.units
    return value


@dataclass(frozen=True, slots=True)
class _Promise:
    """What the sets of one left end can be worth at most, and where the last good one may end."""

    left: _Item
    upper: float
    last: int


def _approximate(search: _Search) -> list[_Promise]:
    """Find the best set by fractional knapsacks; return what each left end promises at most."""
    by_start = sorted(search.items, key=lambda item: (item.row_set.start, item.place))
    # Some from everywhere first: a good set among them spares most of the others.
    spread = [each for first in range(SPREAD) for each in by_start[first::SPREAD]]
    return [_scan(search, left) for left in spread]


def _window(search: _Search, left: _Item) -> list[int]:
    """Return the places, by end, of the files that better sets from a left end may have.

    A better set over a range is worth more than the best so far and the range together. What any
    set in the range is worth at most bounds the range, and a narrower range bounds that again.
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
    """Return what a part of the budget's size of some files is worth, the best of them first."""
    filled = np.cumsum(search.weights[places])
    whole = int(np.searchsorted(filled, search.budget, "right"))
    value = float(search.values[places[:whole]].sum())
    if whole < len(places):
        room = search.budget - (float(filled[whole - 1]) if whole else 0.0)
        value += room * float(search.densities[places[whole]])
    return value + ROUNDING


def _scan(search: _Search, left: _Item) -> _Promise:
    """Scan files by the end of their range, from one left end; return the best upper bound."""
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
            # A file of less worth than the least would fall out at once, and only adds width.
            chunk = chunk[search.densities[chunk] >= heap[0].density]
        for place in chunk.tolist():
            item = search.items[place]
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
                last = place
    return _Promise(left, best_upper, last)


def _solve_exactly(search: _Search, promises: Sequence[_Promise]) -> None:
    """Solve the knapsacks whose bound promises more than the best by the approximation."""
    for promise in sorted(promises, key=lambda each: (-each.upper, each.left.place)):
        if promise.upper <= search.best.quality * search.options.approximation:
            return
        _knapsack(search, promise)


def _knapsack(search: _Search, promise: _Promise) -> None:
    """Solve one knapsack: a table of the best value by weight, a row for each file scanned."""
    start, end = promise.left.row_set.start, promise.left.row_set.end
    values = np.zeros(search.budget + 1)
    scanned, taken = list[_Item](), list[Flags]()
    for place in _window(search, promise.left):
        item = search.items[place]
        if place > promise.last or item.units > search.budget:
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
    """Options that it knows."""
    setting_names = settings_of(BudgetedOptions)

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made.

        Raises:
            ConfigError: Names the option, its value and what is expected.
        """
        _options(None, options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the job wanted now and why each other candidate was left.

        Raises:
            ConfigError: A setting is invalid.
        """
        options = _options(parameters.settings, parameters.options)
        if parameters.kind is Kind.USER:
            return _request_plan(parameters, options)
        return _best_plan(parameters, options)


def _best_plan(parameters: PlanParameters, options: BudgetedOptions) -> Plan:
    """Return the job that lowers the average height most within the budget."""
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
    said = f"quality {choice.quality:.6g}, {choice.stage}: reduces {height} by that"
    return Plan(jobs=(_job(parameters, options, choice.names, said),), left=left)


def _request_plan(parameters: PlanParameters, options: BudgetedOptions) -> Plan:
    """Bring the files of a request to one, smallest first."""
    coming = running_outputs(parameters)
    pool = [*parameters.candidates, *coming.files]
    own = None if parameters.request is None else parameters.request.request
    if len(pool) == 1 and pool[0].request == own:
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
