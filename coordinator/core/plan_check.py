"""Is a planner's plan sound? Then ids and names are written on its jobs.

A plan that breaks a rule is refused whole: half a plan of a planner that is wrong
about the other half is not worth the risk.
"""

from collections.abc import Sequence

from common.errors import PluginError
from common.model.job import Job, Kind, Plan, PlannedJob, job_id
from common.model.keys import SPLIT_BYTES_MAX
from common.spi.planner import PlanParameters


def checked_jobs(planner: str, plan: Plan, parameters: PlanParameters) -> tuple[Job, ...]:
    """Return the jobs of a sound plan.

    Args:
        planner: Its name, for messages.
        plan: What it returned.
        parameters: What it was asked.

    Raises:
        PluginError: Names the planner, the tablet and what it did.
    """
    if not plan.jobs:
        return ()
    problem = _problem(plan.jobs, parameters)
    if problem is not None:
        raise PluginError(f"planner {planner}, tablet {parameters.tablet}: {problem}")
    request = None if parameters.request is None else parameters.request.request
    ids = [job_id(parameters.tablet, job.kind, request, job.files, job.cuts) for job in plan.jobs]
    return tuple(
        _job(job, own, tuple(ids[at] for at in job.depends_on), parameters, request)
        for own, job in zip(ids, plan.jobs, strict=True)
    )


def _job(
    job: PlannedJob,
    own_id: str,
    depends_on: tuple[str, ...],
    parameters: PlanParameters,
    request: str | None,
) -> Job:
    files = parameters.files
    boost = 0 if parameters.request is None else parameters.request.boost
    return Job(
        id=own_id,
        tablet=parameters.tablet,
        table_name=parameters.table_name,
        kind=job.kind,
        inputs=tuple(sorted(job.files)),
        input_bytes=sum(files[path].size_bytes for path in job.files),
        group=job.group,
        priority=job.priority + boost,
        reason=job.reason,
        request=request if job.kind is Kind.USER else None,
        depends_on=depends_on,
        outputs_expected=job.outputs_expected,
        cuts=job.cuts,
        output_tags=job.output_tags,
    )


def _problem(jobs: Sequence[PlannedJob], parameters: PlanParameters) -> str | None:
    """Return what is wrong with the first unsound job, or None."""
    candidates = {file.path for file in parameters.candidates}
    groups = [group.name for group in parameters.groups]
    files_max = _files_max(parameters)
    for number, job in enumerate(jobs):
        found = (
            _wrong_form(job, parameters.kind, groups)
            or _wrong_cuts(job, keyed=parameters.keyed)
            or _wrong_files(job, candidates, files_max)
            or _wrong_dependencies(job, number)
        )
        if found is not None:
            return f"job {number} {found}"
    return _overlap(jobs)


def _files_max(parameters: PlanParameters) -> int:
    option = parameters.options.get("max_files")
    return option if isinstance(option, int) else parameters.settings.max_files


def _wrong_form(job: PlannedJob, kind: Kind, groups: Sequence[str]) -> str | None:
    if job.kind is not kind:
        return f"is of kind {job.kind}, expected {kind}"
    if job.group not in groups:
        return f"is for group {job.group!r}, expected one of {', '.join(groups)}"
    if not _is_whole(job.priority):
        return f"has priority {job.priority!r}, expected a whole number"
    if not job.reason:
        return "has no reason, expected a sentence"
    if job.outputs_expected < 0:
        return f"expects {job.outputs_expected} outputs, expected at least 0"
    return None


def _wrong_cuts(job: PlannedJob, *, keyed: bool) -> str | None:
    if list(job.cuts) != sorted(set(job.cuts)):
        return "has cuts that do not ascend"
    if job.cuts and not keyed:
        return "has cuts, but the table has no key"
    if any(len(cut) > SPLIT_BYTES_MAX for cut in job.cuts):
        return f"has a cut of more than {SPLIT_BYTES_MAX} bytes"
    return None


def _is_whole(value: object) -> bool:
    # A plug-in need not be type-checked, and a queue shifts bits of this number.
    return isinstance(value, int)


def _wrong_files(job: PlannedJob, candidates: set[str], files_max: int) -> str | None:
    if not job.files:
        return "has no files"
    if len(job.files) > files_max:
        return f"has {len(job.files)} files, expected at most {files_max}"
    if len(set(job.files)) < len(job.files):
        return "names a file twice"
    if strangers := sorted(set(job.files) - candidates):
        return f"has {strangers[0]!r}, which is not a candidate"
    return None


def _wrong_dependencies(job: PlannedJob, number: int) -> str | None:
    for other in job.depends_on:
        if not 0 <= other < number:
            return f"depends on job {other}, expected an earlier one"
    return None


def _overlap(jobs: Sequence[PlannedJob]) -> str | None:
    """Return which two jobs want one file, neither waiting for the other; or None."""
    behind: list[set[int]] = []
    owners: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        before = set(job.depends_on).union(*(behind[other] for other in job.depends_on))
        behind.append(before)
        for path in job.files:
            for other in owners.setdefault(path, []):
                if other not in before:
                    return f"jobs {other} and {number} both have {path!r}"
            owners[path].append(number)
    return None
