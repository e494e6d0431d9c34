"""The ratio planner: merge sets of files that are large compared to their largest file.

This is Accumulo's rule with its look-ahead, so that a table behaves as Accumulo's users expect.
Three faults are fixed: priorities use the real file limit, no job has more than `max_files` inputs,
and `max_files` below 2 is rejected.

A set qualifies if its largest file times the ratio is less than the size of the whole set.
Rewritten files then grow by at least this factor, so the number of rewrites of a byte is
logarithmic in the size of the tablet.

Fixed point: a SYSTEM job has at least two inputs and at most one output, so a tablet of n files has
no work left after at most n - 1 jobs, regardless of the output sizes. A request needs at most one
job more, if a single file has to be rewritten.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from common.model.job import Kind, Plan, PlannedJob, job_priority
from common.model.table import BACKLOG_MODES, TableSettings
from common.spi.options import of_table, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count
from coordinator.plugins.planners.packing import forced_merges

# ------------------------------------------------------------------ Settings, checked once per plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRule:
    """Options and settings of the planner. Rejects values that would cause endless jobs."""

    ratio: float = of_table("ratio", at_least=1)
    max_files: int = of_table("max_files", at_least=2)  # One file is no merge.
    lowest_ratio: float = of_table("lowest_ratio", at_least=1)
    file_limit: int = of_table("file_limit", at_least=0)
    backlog_mode: str = of_table("backlog_mode", one_of=BACKLOG_MODES)
    """Read by the tracker."""


def rule_of(settings: TableSettings, options: Mapping[str, object]) -> RatioRule:
    """Return the rule for a table; options override the table's settings.

    Raises:
        ConfigError: An option is unknown or a value is invalid.
    """
    if options:
        return read_options(RatioRule, "planner ratio", options, settings)
    # Cached, because a scan calls this for every tablet.
    return _rule(
        settings.ratio,
        settings.max_files,
        settings.lowest_ratio,
        settings.file_limit,
        settings.backlog_mode,
    )


@lru_cache(maxsize=1024)
def _rule(
    ratio: float, max_files: int, lowest_ratio: float, file_limit: int, backlog_mode: str
) -> RatioRule:
    given = {
        "ratio": ratio,
        "max_files": max_files,
        "lowest_ratio": lowest_ratio,
        "file_limit": file_limit,
        "backlog_mode": backlog_mode,
    }
    return read_options(RatioRule, "planner ratio", given)


# ------------------------------------------------------- Choice of sets, on numbers and tuples only


SizedFile = tuple[int, int, str]
"""Bytes; 0 for a real file, or the number of a projected file (from 1); path.

In this order, projected files sort after real files of equal size.
"""


def files_within(files: Sequence[SizedFile], cap_bytes: int | None) -> Sequence[SizedFile]:
    """Return the smallest files whose total is within the cap; `files` are sorted."""
    if cap_bytes is None or sum(file[0] for file in files) <= cap_bytes:
        return files
    sums = accumulate(file[0] for file in files)
    fits = next(count for count, total in enumerate(sums) if total > cap_bytes)
    return files[:fits]


def find_set(files: Sequence[SizedFile], ratio: float, max_files: int) -> Sequence[SizedFile]:
    """Return the set to merge first, smallest files first; empty if no set qualifies.

    A window of `max_files` files moves over the sorted files by one. The first window is searched
    completely. A later window is its predecessor without the smallest file, which only lowers the
    sums, plus a new last file. Only the whole window can therefore qualify. This makes the search
    linear.

    Args:
        files: Sorted files.
        ratio: The ratio that must be exceeded.
        max_files: Maximum number of files in a set.
    """
    width = min(len(files), max_files)
    if width < 2:
        return ()
    best = _best_prefix(files, width, ratio)
    if best:
        return files[: best + 1]
    if width == len(files):
        return ()
    total = sum(file[0] for file in files[:width])
    for last in range(width, len(files)):
        size = files[last][0]
        total += size - files[last - width][0]
        if size * ratio < total:
            return files[last - width + 1 : last + 1]
    return ()


def _best_prefix(files: Sequence[SizedFile], width: int, ratio: float) -> int:
    """Return the index of the last file of the best prefix of a window, or 0.

    The first run of qualifying prefixes wins, unless its output would be larger than the last file
    of the next run. In that case the small merge would block the larger merge, so the larger merge
    is done directly.
    """
    best = good = 0
    best_sum = 0
    total = files[0][0]
    for index in range(1, width):
        size = files[index][0]
        total += size
        if size * ratio < total:
            good = index
        elif good and good == index - 1:
            if best and best_sum <= files[good][0]:
                return best
            best, best_sum = good, total - size
    if good == width - 1 and (not best or best_sum > files[good][0]):
        best = good
    return best


def best_of_any_ratio(
    files: Sequence[SizedFile], max_files: int, lowest_ratio: float
) -> tuple[Sequence[SizedFile], float]:
    """Return the set with the highest ratio above `lowest_ratio`, if any, and the best ratio.

    Used for a tablet of too many files in which no set qualifies. Of all sets of files adjacent in
    size, this is the set with the fewest rewritten bytes per merged byte. Among equal ratios the
    last set wins, which has the most files.

    Args:
        files: Sorted files.
        max_files: Maximum number of files in a set.
        lowest_ratio: The ratio of a set must be higher.
    """
    width = min(len(files), max_files)
    best_set: Sequence[SizedFile] = ()
    best = 0.0
    for start in range(len(files) - width + 1 if files else 0):
        total = files[start][0]
        for last in range(start + 1, start + width):
            size = files[last][0]
            total += size
            if size > 0 and total / size >= best:
                best = total / size
                best_set = files[start : last + 1]
    return (best_set, best) if best > lowest_ratio else ((), best)


# -------------------------------------------------------------------------------------- The planner


_FORCED_REASON = "a request merges all files into one"


@dataclass(slots=True)
class _PlannedSets:
    """Chosen sets, the reason, and files that wait for another job's output."""

    sets: list[Sequence[SizedFile]] = field(default_factory=list)
    why: str = ""
    waiting: set[str] = field(default_factory=set)
    remark: str = ""
    """Additional reason for files in no set."""


class RatioPlanner:
    """Plans by ratio; see the module. Keeps no state between plans."""

    option_names = option_names(RatioRule)
    """Settings that options may override."""
    setting_names = settings_of(RatioRule)

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        rule_of(TableSettings(), options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        rule = rule_of(parameters.settings, parameters.options)
        files = sorted([(file.size_bytes, 0, file.path) for file in parameters.candidates])
        if not files:
            return Plan()
        cap_bytes = parameters.job_bytes_max
        planned = _by_ratio(files, parameters, rule, cap_bytes)
        if parameters.kind is Kind.USER:
            _bring_to_one(planned, files, parameters, rule)
        elif not planned.sets:
            _relieve(planned, files, parameters, rule, cap_bytes)
        jobs = tuple([_job(chosen, planned.why, parameters, rule) for chosen in planned.sets])
        if not parameters.explains:
            return Plan(jobs=jobs)
        return Plan(jobs=jobs, left=_left(planned, files, parameters, rule, cap_bytes))


def _by_ratio(
    files: list[SizedFile], parameters: PlanParameters, rule: RatioRule, cap_bytes: int | None
) -> _PlannedSets:
    """Find sets until none qualifies; include the outputs of running and planned jobs.

    The output of every running or planned job takes part as a projected file. A set with a
    projected file must wait for it, but the output of that set takes part in turn. Files that a
    larger merge needs soon are therefore not spent on a worse merge.
    """
    planned = _PlannedSets(why=f"ratio {rule.ratio:g}")
    pool = list(files)
    projected = 0
    for job in parameters.running:
        if job.kind is parameters.kind:
            projected += 1
            insort(pool, (job.size_bytes, projected, ""))
    while chosen := find_set(files_within(pool, cap_bytes), rule.ratio, rule.max_files):
        if any(number for _, number, _ in chosen):
            planned.waiting.update(path for _, number, path in chosen if not number)
        else:
            planned.sets.append(chosen)
        start = bisect_left(pool, chosen[0])
        del pool[start : start + len(chosen)]
        projected += 1
        insort(pool, (_total(chosen), projected, ""))
        if len(chosen) < rule.max_files and planned.sets:
            # The remaining files are larger; it is better to merge them with future outputs.
            break
    return planned


def _bring_to_one(
    planned: _PlannedSets, files: list[SizedFile], parameters: PlanParameters, rule: RatioRule
) -> None:
    """Ensure that a user's files become one; rewrite the largest files as rarely as possible."""
    if not planned.sets:
        if not any(job.kind is Kind.USER for job in parameters.running):
            planned.sets, planned.why = forced_merges(files, rule.max_files), _FORCED_REASON
            planned.waiting.clear()
        return
    if len(planned.sets) > 1 or len(planned.sets[0]) == len(files):
        return
    (first,) = planned.sets
    chosen = {path for _, _, path in first}
    rest = [file for file in files if file[2] not in chosen]
    insort(rest, (_total(first), 1, ""))
    if not find_set(rest, rule.ratio, rule.max_files):
        # The next step would be forced, and would rewrite the output of this step.
        planned.sets, planned.why = forced_merges(files, rule.max_files), _FORCED_REASON


def _relieve(
    planned: _PlannedSets,
    files: list[SizedFile],
    parameters: PlanParameters,
    rule: RatioRule,
    cap_bytes: int | None,
) -> None:
    """Find a set by a lower ratio, if a tablet has too many files and no other job."""
    count = len(parameters.files)
    if not 0 < rule.file_limit < count:
        return
    planned.remark = (
        f"; the tablet has {format_count(count, 'file')}, over its limit of {rule.file_limit}, "
    )
    if parameters.running or count != len(files):
        planned.remark += "and a lower ratio is tried when no file is in use"
        return
    usable = files_within(files, cap_bytes)
    chosen, ratio = best_of_any_ratio(usable, rule.max_files, rule.lowest_ratio)
    if chosen:
        planned.sets = [chosen]
        planned.why = (
            f"{format_count(count, 'file')}, limit {rule.file_limit}: ratio lowered to {ratio:.3g}"
        )
    planned.remark += (
        f"and the best set has ratio {ratio:.3g}, lowest_ratio is {rule.lowest_ratio:g}"
    )


def _job(
    chosen: Sequence[SizedFile], why: str, parameters: PlanParameters, rule: RatioRule
) -> PlannedJob:
    total, count, largest = _total(chosen), len(chosen), chosen[-1][0]
    size, top = format_bytes(total), format_bytes(largest)
    what = f"{count} files of {size}, the largest {top}" if count > 1 else f"1 file of {size}"
    return PlannedJob(
        kind=parameters.kind,
        files=tuple([path for _, _, path in chosen]),
        group=parameters.group_for(total),
        priority=job_priority(
            parameters.kind,
            files_in_tablet=len(parameters.files),
            files_in_job=count,
            file_limit=rule.file_limit,
        ),
        reason=f"{why}: {what}",
    )


def _left(
    planned: _PlannedSets,
    files: list[SizedFile],
    parameters: PlanParameters,
    rule: RatioRule,
    cap_bytes: int | None,
) -> dict[str, str]:
    """Return a reason for every candidate that is in no job."""
    left = dict.fromkeys(
        [path for _, _, path in files], _nothing(parameters.kind, rule) + planned.remark
    )
    if cap_bytes is not None and len(usable := files_within(files, cap_bytes)) < len(files):
        cap = format_bytes(cap_bytes)
        beyond = f"together with the smaller files it is more than any group accepts ({cap})"
        left.update((path, beyond) for _, _, path in files[len(usable) :])
    for path in planned.waiting:
        left[path] = "waits for the output of a running job, to be merged with it"
    for chosen in planned.sets:
        for _, _, path in chosen:
            left.pop(path, None)
    return left


def _nothing(kind: Kind, rule: RatioRule) -> str:
    if kind is Kind.USER:
        return "is merged in a later step, after earlier jobs"
    return (
        f"no set of at most {format_count(rule.max_files, 'file')} of similar size reaches"
        f" {rule.ratio:g} times its largest file"
    )


def _total(files: Sequence[SizedFile]) -> int:
    return sum(size for size, _, _ in files)
