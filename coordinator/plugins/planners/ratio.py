"""The ratio planner: merge sets of files that are large compared with their largest.

Accumulo's rule with its look-ahead, so that a table behaves as its users know, minus
three faults: priorities go by the real file limit, no job has more than `max_files`
inputs, and `max_files` below 2 is refused.

Fixed point: a SYSTEM job has at least two inputs and at most one output, so a tablet
of n files is at rest after at most n - 1 jobs, whatever the outputs weigh. A request
is at rest after as many, plus one where a single file has to be rewritten.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.model.group import Group
from common.model.job import Kind, Plan, PlannedJob, job_priority
from common.model.table import TableSettings
from common.spi.planner import PlanParameters
from common.units import format_bytes
from coordinator.plugins.planners.ratio_rule import NAMES, RatioRule, rule_of
from coordinator.plugins.planners.ratio_sets import (
    Sized,
    best_of_any_ratio,
    find_set,
    forced_sets,
    within,
)

_FORCED = "a request brings all to one file"


@dataclass(slots=True)
class _Found:
    """Sets for jobs, why they were chosen, and files that wait for another job's output."""

    sets: list[Sequence[Sized]] = field(default_factory=list)
    why: str = ""
    waiting: set[str] = field(default_factory=set)
    beside: str = ""
    """What else is to be said of files in no set."""


class RatioPlanner:
    """Plans by ratio; see the module. Holds nothing between plans."""

    option_names = frozenset(NAMES)
    """Settings that a service's options may override."""
    setting_names = frozenset(NAMES)

    def check(self, options: Mapping[str, object]) -> None:
        """Refuse options by which no plan can be made.

        Raises:
            ConfigError: Names the option, its value and what is expected.
        """
        rule_of(TableSettings(), options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs wanted now and why each other candidate was left.

        Raises:
            ConfigError: A setting is refused.
        """
        rule = rule_of(parameters.settings, parameters.options)
        files = sorted([(file.size_bytes, 0, file.path) for file in parameters.candidates])
        if not files:
            return Plan()
        cap_bytes = _cap_bytes(parameters)
        found = _by_ratio(files, parameters, rule, cap_bytes)
        if parameters.kind is Kind.USER:
            _bring_to_one(found, files, parameters, rule)
        elif not found.sets:
            _relieve(found, files, parameters, rule, cap_bytes)
        jobs = tuple(_job(chosen, found.why, parameters, rule) for chosen in found.sets)
        return Plan(jobs=jobs, left=_left(found, files, parameters, rule, cap_bytes))


def _cap_bytes(parameters: PlanParameters) -> int | None:
    """Return the most bytes of a job: a user's may be of any size."""
    return None if parameters.kind is Kind.USER else parameters.groups[-1].max_bytes


def _by_ratio(
    files: list[Sized], parameters: PlanParameters, rule: RatioRule, cap_bytes: int | None
) -> _Found:
    """Find sets until none qualifies, looking ahead over what runs and what is planned.

    The output of every job under way or just planned takes part as a projected file.
    A set with such a file in it must wait for it, but what it would give takes part in
    turn: files that will be wanted soon for a larger merge are not spent on a worse one.
    """
    found = _Found(why=f"ratio {rule.ratio:g}")
    pool = list(files)
    projected = 0
    for job in parameters.running:
        if job.kind is parameters.kind:
            projected += 1
            insort(pool, (job.size_bytes, projected, ""))
    while chosen := find_set(within(pool, cap_bytes), rule.ratio, rule.max_files):
        if any(number for _, number, _ in chosen):
            found.waiting.update(path for _, number, path in chosen if not number)
        else:
            found.sets.append(chosen)
        start = bisect_left(pool, chosen[0])
        del pool[start : start + len(chosen)]
        projected += 1
        insort(pool, (_total(chosen), projected, ""))
        if len(chosen) < rule.max_files and found.sets:
            # What is left is larger: it is better merged with the outputs to come.
            break
    return found


def _bring_to_one(
    found: _Found, files: list[Sized], parameters: PlanParameters, rule: RatioRule
) -> None:
    """Make sure that a user's files end as one, the largest rewritten as seldom as possible."""
    if not found.sets:
        if not any(job.kind is Kind.USER for job in parameters.running):
            found.sets, found.why = forced_sets(files, rule.max_files), _FORCED
            found.waiting.clear()
        return
    if len(found.sets) > 1 or len(found.sets[0]) == len(files):
        return
    (first,) = found.sets
    chosen = {path for _, _, path in first}
    rest = [file for file in files if file[2] not in chosen]
    insort(rest, (_total(first), 1, ""))
    if not find_set(rest, rule.ratio, rule.max_files):
        # The step after this one would be forced, and would rewrite what this one wrote.
        found.sets, found.why = forced_sets(files, rule.max_files), _FORCED


def _relieve(
    found: _Found,
    files: list[Sized],
    parameters: PlanParameters,
    rule: RatioRule,
    cap_bytes: int | None,
) -> None:
    """Find a set by a lower ratio in a tablet of too many files where nothing else helps."""
    count = len(parameters.files)
    if not 0 < rule.file_limit < count:
        return
    found.beside = f"; the tablet has {count} files, over its limit of {rule.file_limit}, "
    if parameters.running or count != len(files):
        found.beside += "and a lower ratio is tried when no file is in use"
        return
    usable = within(files, cap_bytes)
    chosen, ratio = best_of_any_ratio(usable, rule.max_files, rule.lowest_ratio)
    if chosen:
        found.sets = [chosen]
        found.why = f"{count} files, limit {rule.file_limit}: ratio lowered to {ratio:.3g}"
    found.beside += f"and the best set has ratio {ratio:.3g}, lowest_ratio is {rule.lowest_ratio:g}"


def _job(
    chosen: Sequence[Sized], why: str, parameters: PlanParameters, rule: RatioRule
) -> PlannedJob:
    total, count, largest = _total(chosen), len(chosen), chosen[-1][0]
    size, top = format_bytes(total), format_bytes(largest)
    what = f"{count} files of {size}, the largest {top}" if count > 1 else f"1 file of {size}"
    return PlannedJob(
        kind=parameters.kind,
        files=tuple([path for _, _, path in chosen]),
        group=_group(total, parameters.groups).name,
        priority=job_priority(
            parameters.kind,
            files_in_tablet=len(parameters.files),
            files_in_job=count,
            file_limit=rule.file_limit,
        ),
        reason=f"{why}: {what}",
    )


def _group(total: int, groups: tuple[Group, ...]) -> Group:
    """Return the first group that takes jobs of this size, or the last."""
    for group in groups:
        if group.max_bytes is None or total < group.max_bytes:
            return group
    return groups[-1]


def _left(
    found: _Found,
    files: list[Sized],
    parameters: PlanParameters,
    rule: RatioRule,
    cap_bytes: int | None,
) -> dict[str, str]:
    """Say of every candidate that is in no job, why."""
    left = dict.fromkeys(
        [path for _, _, path in files], _nothing(parameters.kind, rule) + found.beside
    )
    if cap_bytes is not None and len(usable := within(files, cap_bytes)) < len(files):
        cap = format_bytes(cap_bytes)
        beyond = f"together with the smaller files it is more than any group takes ({cap})"
        left.update((path, beyond) for _, _, path in files[len(usable) :])
    for path in found.waiting:
        left[path] = "waits for the output of a job under way, to be merged with it"
    for chosen in found.sets:
        for _, _, path in chosen:
            left.pop(path, None)
    return left


def _nothing(kind: Kind, rule: RatioRule) -> str:
    if kind is Kind.USER:
        return "is merged in a later step, when the jobs before it are done"
    return (
        f"is in no set of up to {rule.max_files} files, neighbours in size, that is more than "
        f"{rule.ratio:g} times its largest file"
    )


def _total(files: Sequence[Sized]) -> int:
    return sum(size for size, _, _ in files)
