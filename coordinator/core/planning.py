"""Planning of a tablet: select candidates, call the planner, and validate its plan. Pure.

The scanner calls `plan_tablet` on the tablets that it has read. Planning reserves nothing, so a
plan may be stale when its jobs are taken; it is checked again at that time. A plan that breaks a
rule is rejected as a whole, because the rest of a faulty plan cannot be trusted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from common.errors import PluginError
from common.model.file import DataFile, may_cross
from common.model.group import Group, Service
from common.model.job import (
    INTERVALS_MAX,
    PLANNED_ACTIONS,
    TIME_CUTS_MAX,
    AttemptWork,
    Job,
    JobAction,
    Kind,
    Plan,
    PlannedInterval,
    PlannedJob,
    TabletPlan,
    cut_priority,
    job_id,
    time_outputs_max,
)
from common.model.key_values import KeyType, key_type_of
from common.model.keys import SPLIT_BYTES_MAX
from common.model.request import AUTOMATIC_PREFIX
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import (
    Operation,
    OperationKind,
    OperationStep,
    Reservation,
    Selection,
    Tablet,
    TabletId,
)
from common.primitives import earliest_s
from common.spi.planner import (
    NOTHING_KNOWN,
    Dispatcher,
    DispatchParameters,
    Planner,
    PlanParameters,
    RequestFacts,
    RunningJob,
    Surroundings,
)
from common.units import format_bytes, format_count, whole_number
from coordinator.core.triggers import (
    gate_sentence,
    is_gated,
    is_included,
    open_trigger_s,
    wants_analysis,
)
from neve.api.planning import Correction

# ------------------------------------- Jobs that cut files at the key where a tablet is being split
# No other jobs are planned for such a tablet. A file that crosses the key must be rewritten once,
# so a job merges as many crossing files as it may take. The other files are not compacted until the
# split has ended, which takes a short time only.


def is_cutting(operation: Operation | None) -> bool:
    """Return whether an operation is a split that waits until no file crosses its key."""
    return (
        operation is not None
        and operation.kind is OperationKind.SPLIT
        and operation.step is OperationStep.CUT
        and operation.at is not None
    )


def crossing_files(tablet: Tablet) -> tuple[DataFile, ...]:
    """Return the files that cross the split key of a tablet, ordered by size and path."""
    operation = tablet.operation
    if operation is None or operation.at is None or operation.kind is OperationKind.MERGE:
        return ()
    over = [file for file in tablet.files.values() if may_cross(file, operation.at)]
    return tuple(sorted(over, key=lambda file: (file.size_bytes, file.path)))


def cut_plan(tablet: Tablet, table: Table, service: Service) -> TabletPlan:
    """Return the jobs that cut the crossing files, and why each other file was left.

    The same files always form the same job, so that its failures can be counted.

    Args:
        tablet: A tablet whose operation `is_cutting`.
        table: Its table.
        service: Service with the groups, and optionally the option `max_files`.
    """
    operation = tablet.operation
    assert operation is not None and operation.at is not None, tablet.id  # noqa: PT018
    left = dict.fromkeys(tablet.files, "lies entirely on one side of the split key")
    crossing, held = crossing_files(tablet), tablet.reserved_files
    free = [file for file in crossing if not file.open and file.path not in held]
    for file in free:
        del left[file.path]
    open_paths = [file.path for file in crossing if file.open]
    left.update(dict.fromkeys(open_paths, "still being written, but crosses the split key"))
    for attempt, entry in tablet.running.items():
        left.update(dict.fromkeys(entry.inputs, f"being merged by {attempt}"))
    files_max = _files_max(service.options, table.settings)
    jobs = [
        _split_job(tablet, table, operation.at, chosen, service.groups)
        for chosen in _chunks(free, files_max, service.groups[-1].max_bytes)
    ]
    return TabletPlan(jobs=tuple(jobs), left=left)


def _chunks(
    files: Sequence[DataFile], files_max: int, bytes_max: int | None
) -> list[list[DataFile]]:
    """Return files in chunks of bounded count and bytes; a large file forms its own chunk."""
    chunks: list[list[DataFile]] = []
    size = 0
    for file in files:
        full = not chunks or len(chunks[-1]) >= files_max
        if full or (bytes_max is not None and size + file.size_bytes >= bytes_max):
            chunks.append([])
            size = 0
        chunks[-1].append(file)
        size += file.size_bytes
    return chunks


def _split_job(
    tablet: Tablet, table: Table, at: bytes, files: Sequence[DataFile], groups: Sequence[Group]
) -> Job:
    inputs = tuple(sorted(file.path for file in files))
    size = sum(file.size_bytes for file in files)
    fits = (group for group in groups if group.max_bytes is None or size < group.max_bytes)
    return Job(
        id=job_id(tablet.id, Kind.SYSTEM, None, inputs, (at,)),
        tablet=tablet.id,
        table_name=table.name,
        kind=Kind.SYSTEM,
        inputs=inputs,
        input_bytes=size,
        group=next(fits, groups[-1]).name,
        priority=cut_priority(len(files)),
        reason=f"cut at the split key: {format_count(len(files), 'file')} of {format_bytes(size)}",
        outputs_expected=2,
        cuts=(at,),
    )


OUTPUTS_MAX = 10_000
"""Maximum number of outputs of one job; its reservation lists each of them."""


# ------------------------------------------------ Sentences on requests in a tablet, for `explain`


def holds_of(tablet: Tablet) -> tuple[str, ...]:
    """Return a sentence for the selection of a tablet and one for each waiting request."""
    waits = sorted(tablet.waiting, key=lambda request: (tablet.waiting[request], request))
    sentences = [waiting_sentence(request) for request in waits]
    if tablet.selection is not None:
        sentences.insert(0, _selection_sentence(tablet.selection))
    return tuple(sentences)


def waiting_sentence(request: str) -> str:
    """Return a sentence that describes the waiting marker of a request."""
    return f"request {request} waits to select files; no system job starts until then"


def _selection_sentence(selection: Selection) -> str:
    origin = (
        " (made by the table's selector)" if selection.request.startswith(AUTOMATIC_PREFIX) else ""
    )
    results = len(selection.results)
    return (
        f"request {selection.request}{origin} holds {format_count(len(selection.files), 'file')}, "
        f"{results} of them made by its {format_count(selection.completed_jobs, 'completed job')}"
    )


# ------------------------------------------------------------------------------ Validation of plans


def checked_jobs(planner: str, plan: Plan, parameters: PlanParameters) -> tuple[Job, ...]:
    """Validate a plan and return its jobs.

    Args:
        planner: Name of the planner, for messages.
        plan: The plan that the planner returned.
        parameters: The parameters that the planner got.

    Raises:
        PluginError: The plan is invalid; the message names the planner, the tablet and the problem.
    """
    if not plan.jobs:
        return ()
    problem = _problem(plan.jobs, parameters)
    if problem is not None:
        raise PluginError(f"planner {planner}, tablet {parameters.tablet}: {problem}")
    request = None if parameters.request is None else parameters.request.request
    ids = [_id_of(job, parameters.tablet, request) for job in plan.jobs]
    return tuple(
        _job(job, own_id, tuple(ids[at] for at in job.depends_on), parameters, request)
        for own_id, job in zip(ids, plan.jobs, strict=True)
    )


def _id_of(job: PlannedJob, tablet: TabletId, request: str | None) -> str:
    moves = job.output_tags if job.action is JobAction.MOVE else ()
    return job_id(
        tablet, job.kind, request, job.files, job.cuts, cuts_at_s=job.cuts_at_s, moves=moves
    )


def _job(
    job: PlannedJob,
    own_id: str,
    depends_on: tuple[str, ...],
    parameters: PlanParameters,
    request: str | None,
) -> Job:
    files, correction = parameters.files, parameters.correction
    input_bytes = sum(files[path].size_bytes for path in job.files)
    boost = 0 if parameters.request is None else parameters.request.boost
    return Job(
        id=own_id,
        tablet=parameters.tablet,
        table_name=parameters.table_name,
        kind=job.kind,
        inputs=tuple(sorted(job.files)),
        input_bytes=input_bytes,
        group=job.group,
        priority=job.priority + boost,
        reason=job.reason,
        request=request if job.kind is Kind.USER else None,
        depends_on=depends_on,
        outputs_expected=job.outputs_expected,
        cuts=job.cuts,
        cuts_at_s=job.cuts_at_s,
        output_rows_max=job.output_rows_max,
        output_tags=job.output_tags,
        action=job.action.value,
        expected_bytes=round(input_bytes * correction.written) if correction.jobs else 0,
        expected_s=input_bytes / correction.bytes_s if correction.bytes_s else 0.0,
    )


def _problem(jobs: Sequence[PlannedJob], parameters: PlanParameters) -> str | None:
    """Return the problem of the first invalid job, or None."""
    candidates = {file.path for file in parameters.candidates}
    groups = [group.name for group in parameters.groups]
    files_max = _files_max(parameters.options, parameters.settings)
    for number, job in enumerate(jobs):
        problem = (
            _wrong_form(job, parameters.kind, groups)
            or _wrong_cuts(job, keyed=parameters.keyed)
            or _wrong_files(job, candidates, files_max)
            or _wrong_times(job, parameters)
            or _wrong_dependencies(job, number)
        )
        if problem is not None:
            return f"job {number} {problem}"
    return _overlap(jobs)


def _files_max(options: Mapping[str, object], settings: TableSettings) -> int:
    option = options.get("max_files")
    if isinstance(option, str) and (number := whole_number(option)) is not None:
        return number
    return option if isinstance(option, int) else settings.max_files


def _wrong_form(job: PlannedJob, kind: Kind, groups: Sequence[str]) -> str | None:
    if job.kind is not kind:
        return f"is of kind {job.kind}, expected {kind}"
    if job.group not in groups:
        return f"is for group {job.group!r}, expected one of {', '.join(groups)}"
    if not _is_whole(job.priority):
        return f"has priority {job.priority!r}, expected a whole number"
    if not job.reason:
        return "has no reason, expected a sentence"
    if not 0 <= job.outputs_expected <= OUTPUTS_MAX:
        return f"expects {job.outputs_expected} outputs, expected 0 to {OUTPUTS_MAX}"
    return _wrong_action(job)


def _wrong_action(job: PlannedJob) -> str | None:
    if job.action is JobAction.DROP and (job.cuts or job.cuts_at_s or job.outputs_expected > 1):
        return "drops its files, but expects outputs"
    if job.action is JobAction.MOVE:
        return _wrong_move(job)
    if not _is_action(job.action):
        return f"has action {job.action!r}, expected a JobAction: {', '.join(PLANNED_ACTIONS)}"
    return None


def _wrong_move(job: PlannedJob) -> str | None:
    """Return why a move is invalid, or None; a move must give the same result as a rewrite."""
    if job.kind is Kind.USER:
        return (
            "moves files of a request, expected a rewrite: the results of a request are files"
            " that it wrote"
        )
    if job.cuts or job.cuts_at_s or job.outputs_expected != 1:
        return "moves its files, but expects outputs"
    if not job.output_tags:
        return "moves its files, but has no output_tags for them"
    return None


def _wrong_cuts(job: PlannedJob, *, keyed: bool) -> str | None:
    if list(job.cuts) != sorted(set(job.cuts)):
        return "has cuts that are not in ascending order"
    if job.cuts and not keyed:
        return "has cuts, but the table has no key"
    if any(len(cut) > SPLIT_BYTES_MAX for cut in job.cuts):
        return f"has a cut of more than {SPLIT_BYTES_MAX} bytes"
    return None


def _wrong_times(job: PlannedJob, parameters: PlanParameters) -> str | None:
    """Return the problem with the time cuts of a job, or None."""
    times = job.cuts_at_s
    if not times:
        return "has output_rows_max, but no cuts_at_s" if job.output_rows_max else None
    if parameters.keyed:
        return "has cuts at times, but the table has a key and is cut at keys"
    if not parameters.timed:
        return "has cuts at times, but the table has no time column"
    if list(times) != sorted(set(times)) or not all(map(math.isfinite, times)):
        return "has cuts at times that are not in ascending order"
    if len(times) > TIME_CUTS_MAX:
        return f"has {len(times)} cuts at times, expected at most {TIME_CUTS_MAX}"
    if job.output_rows_max < 0:
        return f"has output_rows_max {job.output_rows_max}, expected at least 0"
    rows = sum(parameters.files[path].rows for path in job.files)
    least = time_outputs_max(len(times), rows, job.output_rows_max)
    if job.outputs_expected < least:
        return (
            f"expects {job.outputs_expected} outputs, expected at least {least} because of its"
            " cuts at times"
        )
    return None


def _is_action(value: object) -> bool:
    return isinstance(value, JobAction) and value in PLANNED_ACTIONS


def _is_whole(value: object) -> bool:
    # A plug-in may not be type-checked, and the queue applies bit shifts to this number.
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
    wrong = [other for other in job.depends_on if not 0 <= other < number]
    return f"depends on job {wrong[0]}, expected an earlier one" if wrong else None


def _overlap(jobs: Sequence[PlannedJob]) -> str | None:
    """Return a message on two independent jobs that share a file, or None."""
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


# ------------------------------------------------------------------ Candidates, dispatcher, planner


@dataclass(frozen=True, slots=True)
class _Policies:
    """The configured services, planners and dispatcher."""

    services: Mapping[str, Service]
    planners: Mapping[str, Planner]
    dispatcher: Dispatcher | None
    fallback: Planner | None


def plan_tablet(
    tablet: Tablet,
    table: Table,
    services: Mapping[str, Service],
    planners: Mapping[str, Planner],
    now_s: float,
    *,
    dispatcher: Dispatcher | None = None,
    fallback: Planner | None = None,
    requests: Mapping[str, RequestFacts] | None = None,
    only: Kind | None = None,
    around: Surroundings = NOTHING_KNOWN,
) -> TabletPlan:
    """Return the jobs wanted for a tablet, and why each other file was left.

    If the planner of one kind fails, this kind gets no jobs, and its files get the error as the
    reason. Jobs of the other kind are still planned.

    Args:
        tablet: A consistent snapshot.
        table: Its table.
        services: Services by name.
        planners: Planners by name.
        now_s: The store's time.
        dispatcher: Chooses the service; None means the service in the table's settings.
        fallback: Planner for a request whose own planner takes none of its files, or None.
        requests: Facts of ACTIVE requests by id; files selected by any other request are not
            planned. None means that every request counts as active and has no hints.
        only: If set, plan only jobs of this kind.
        around: Facts about the tablet that are not part of its metadata.

    Raises:
        PluginError: A planner or dispatcher failed, and there is no other job.
    """
    if (idle := _why_idle(tablet, table)) is not None:
        return TabletPlan(left=dict.fromkeys(tablet.files, idle), holds=holds_of(tablet))
    configured = _Policies(services, planners, dispatcher, fallback)
    if is_cutting(tablet.operation):
        return cut_plan(tablet, table, _service(table, Kind.SYSTEM, None, configured))
    left = _left_alone(tablet, table)
    jobs, answers, problems = list[Job](), list[Plan](), list[PluginError]()
    for kind, candidates in _candidates(tablet, table, now_s).items():
        facts = _facts(kind, tablet.selection, requests)
        if only not in {None, kind} or (kind is Kind.USER and facts is None):
            continue
        try:
            context = (configured, facts, now_s, around)
            wanted, reasons, answer = _plan_kind(tablet, table, kind, candidates, context)
            answers.append(answer)
        except PluginError as problem:
            problems.append(problem)
            wanted, reasons = (), {file.path: str(problem) for file in candidates}
        jobs += wanted
        left.update(reasons)
    if problems and not jobs:
        raise problems[0]
    plan = _tablet_plan(tablet, jobs, left, answers, around.correction)
    plan = within_space(plan, table.settings, around.free_bytes, now_s)
    return _completed(plan, tablet, table, configured)


def _tablet_plan(
    tablet: Tablet,
    jobs: Sequence[Job],
    left: Mapping[str, str],
    answers: Sequence[Plan],
    correction: Correction,
) -> TabletPlan:
    """Combine the answers of the planners into the plan of a tablet."""
    planned = {path for job in jobs for path in job.inputs}
    intervals: tuple[PlannedInterval, ...] = ()
    due_s: float | None = None
    for answer in answers:
        intervals += answer.intervals[-INTERVALS_MAX:]
        if answer.due_at_s is not None:
            due_s = earliest_s(due_s, answer.due_at_s)
    return TabletPlan(
        jobs=tuple(jobs),
        left={path: why for path, why in left.items() if path not in planned} if planned else left,
        holds=holds_of(tablet),
        due_at_s=due_s,
        intervals=intervals,
        chunks={number: found for answer in answers for number, found in answer.chunks.items()},
        correction=correction,
    )


def _completed(plan: TabletPlan, tablet: Tablet, table: Table, configured: _Policies) -> TabletPlan:
    """Return a plan with the analysis and the open trigger that it answers, if there is one."""
    if wants_analysis(tablet.files.values(), table.settings):
        group = _service(table, Kind.SYSTEM, None, configured).groups[-1].name
        plan = replace(plan, analysis_group=group)
    triggered_at_s = open_trigger_s(table, tablet.record)
    return replace(plan, triggered_at_s=triggered_at_s) if triggered_at_s else plan


SPACE_RETRY_S = 30.0
"""Time after which a tablet is replanned if its jobs do not fit into the free space."""


def within_space(
    plan: TabletPlan, settings: TableSettings, free_bytes: int | None, now_s: float
) -> TabletPlan:
    """Return a plan without the system jobs whose outputs do not fit into the free space.

    Outputs are assumed to be as large as the inputs, which stay for their grace period, or larger
    if recent jobs wrote more than they read. Jobs of one plan may run concurrently, so they share
    the space. User jobs are never held back.

    Args:
        plan: Plan of a tablet.
        settings: Settings of its table: `keep_free_bytes` must stay free; 0 disables the check.
        free_bytes: Free space; None means unknown or unlimited.
        now_s: The current time.
    """
    kept_bytes = settings.keep_free_bytes
    if not kept_bytes or free_bytes is None:
        return plan
    fitting, left, room = list[Job](), dict[str, str](), free_bytes - kept_bytes
    for job in plan.jobs:
        need = max(job.input_bytes, job.expected_bytes) if job.cost_bytes else 0
        if job.kind is Kind.USER or need <= room or not need:
            fitting.append(job)
            room -= need
        else:
            left.update(dict.fromkeys(job.inputs, _short_sentence(need, free_bytes, kept_bytes)))
    if not left:
        return plan
    due_s = earliest_s(plan.due_at_s, now_s + SPACE_RETRY_S)
    return replace(plan, jobs=tuple(fitting), left={**plan.left, **left}, due_at_s=due_s)


def _short_sentence(need: int, free_bytes: int, kept_bytes: int) -> str:
    return (
        f"a job would write up to {format_bytes(need)}: {format_bytes(free_bytes)} are free,"
        f" and keep_free_bytes reserves {format_bytes(kept_bytes)}"
    )


def planner_of_system(
    table: Table, services: Mapping[str, Service], dispatcher: Dispatcher | None
) -> tuple[str, Mapping[str, object]]:
    """Return the planner of a table's system jobs, and its options.

    Raises:
        PluginError: The dispatcher failed, or the service is not configured.
    """
    configured = _Policies(services, {}, dispatcher, None)
    return _planner_of(table, _service(table, Kind.SYSTEM, None, configured))


def _why_idle(tablet: Tablet, table: Table) -> str | None:
    """Return why no jobs are planned for a tablet, or None."""
    if table.state is not TableState.LIVE:
        return f"table {table.name} is {table.state}"
    if tablet.operation is not None and not is_cutting(tablet.operation):
        return f"the tablet is busy with a {tablet.operation.kind}"
    return None


def _left_alone(tablet: Tablet, table: Table) -> dict[str, str]:
    """Return why files are not candidates: they are held or in use, or wait for a trigger."""
    left: dict[str, str] = {}
    if is_gated(table.settings):
        triggered_s, why = open_trigger_s(table, tablet.record), gate_sentence(table.settings)
        waiting = (
            path for path, file in tablet.files.items() if not is_included(file, triggered_s)
        )
        left = dict.fromkeys(waiting, why)
    if tablet.waiting:
        left.update(dict.fromkeys(tablet.files, waiting_sentence(min(tablet.waiting))))
    if tablet.selection is not None:
        left.update(dict.fromkeys(tablet.selection.files, f"held by {tablet.selection.request}"))
    for attempt, entry in sorted(tablet.running.items()):
        left.update(dict.fromkeys(entry.inputs, f"being merged by {attempt}"))
    if opened := [path for path, file in tablet.files.items() if file.open]:
        left.update(dict.fromkeys(opened, "still being written"))
    return left


def _candidates(tablet: Tablet, table: Table, now_s: float) -> dict[Kind, tuple[DataFile, ...]]:
    """Return the candidates of each kind of jobs; a kind without candidates is omitted."""
    files, selection = tablet.files, tablet.selection
    taken = tablet.reserved_files if tablet.running else frozenset[str]()
    by_kind: dict[Kind, tuple[DataFile, ...]] = {}
    if not tablet.waiting:
        held = frozenset[str]()
        if selection is not None and not _expired(tablet, selection, table, now_s):
            held = frozenset(selection.files)
        out = taken | held
        system = [file for file in files.values() if not file.open and file.path not in out]
        if is_gated(table.settings):
            triggered_s = open_trigger_s(table, tablet.record)
            system = [file for file in system if is_included(file, triggered_s)]
        by_kind[Kind.SYSTEM] = tuple(system)
    if selection is not None and not _finished(selection):
        chosen = [files[path] for path in selection.files if path in files and path not in taken]
        by_kind[Kind.USER] = tuple([file for file in chosen if not file.open])
    return {kind: candidates for kind, candidates in by_kind.items() if candidates}


def _expired(tablet: Tablet, selection: Selection, table: Table, now_s: float) -> bool:
    """Return whether the hold of an unused selection has expired, so system jobs may take it."""
    if selection.completed_jobs or now_s - selection.since_s <= table.settings.hold_expiry_s:
        return False
    return all(entry.request != selection.request for entry in tablet.running.values())


def _finished(selection: Selection) -> bool:
    """Return whether only one file is left and it is a result: the request is then done."""
    return len(selection.files) == 1 and selection.files[0] in selection.results


def _facts(
    kind: Kind, selection: Selection | None, requests: Mapping[str, RequestFacts] | None
) -> RequestFacts | None:
    if kind is Kind.SYSTEM or selection is None:
        return None
    if requests is None:
        return RequestFacts(request=selection.request)
    return requests.get(selection.request)


def _plan_kind(
    tablet: Tablet,
    table: Table,
    kind: Kind,
    candidates: tuple[DataFile, ...],
    context: tuple[_Policies, RequestFacts | None, float, Surroundings],
) -> tuple[tuple[Job, ...], Mapping[str, str], Plan]:
    """Return the jobs of one kind, the reasons for files left out, and the planner's answer.

    Raises:
        PluginError: The planner or the dispatcher failed.
    """
    configured, facts, now_s, around = context
    service = _service(table, kind, facts, configured)
    planner, options = _planner_of(table, service)
    parameters = PlanParameters(
        tablet=tablet.id,
        table_name=table.name,
        kind=kind,
        settings=table.settings,
        options=options,
        files=tablet.files,
        candidates=candidates,
        running=_running(tablet, around),
        groups=service.groups,
        waiting=bool(tablet.waiting),
        request=facts,
        now_s=now_s,
        keyed=bool(table.key),
        timed=table.time_column is not None,
        key_types=_key_types(table),
        bounds=tablet.bounds,
        heat=around.heat,
        free_bytes=around.free_bytes,
        latest_s=around.latest_s,
        statistics=tablet.record.statistics,
        correction=around.correction,
    )
    plan = _ask(planner, configured.planners, parameters)
    if not plan.jobs and configured.fallback is not None and _is_stuck(tablet, parameters):
        plan = _fallen_back(planner, configured.fallback, parameters)
    partition = tablet.bounds.partition
    planned = checked_jobs(planner, plan, parameters)
    jobs = tuple(replace(job, partition=partition) for job in planned) if partition else planned
    without = [file.path for file in candidates if file.path not in plan.left]
    silent = dict.fromkeys(without, f"planner {planner} gave no reason")
    return jobs, {**silent, **plan.left} if silent else plan.left, plan


def _key_types(table: Table) -> tuple[KeyType, ...]:
    if not table.key:
        return ()
    named = {column.name: column.type for column in table.schema}
    return _families(tuple(named[name] for name in table.key if name in named))


@lru_cache(maxsize=1000)
def _families(types: tuple[str, ...]) -> tuple[KeyType, ...]:
    return tuple(key_type_of(type_) for type_ in types)


def _is_stuck(tablet: Tablet, parameters: PlanParameters) -> bool:
    """Return whether a request would fail if the planner took none of its files now."""
    if parameters.kind is not Kind.USER or tablet.selection is None:
        return False
    under_way = any(job.kind is Kind.USER for job in parameters.running)
    return not under_way and not set(tablet.selection.files) <= set(tablet.selection.results)


def _fallen_back(name: str, fallback: Planner, parameters: PlanParameters) -> Plan:
    """Return the plan of the fallback; the reasons of its jobs name the original planner."""
    # The configured options are for the original planner.
    plan = fallback.plan(replace(parameters, options={}))
    why = f"planner {name} takes no file of the request"
    jobs = tuple(replace(job, reason=f"{job.reason} ({why})") for job in plan.jobs)
    return replace(plan, jobs=jobs)


def _running(tablet: Tablet, around: Surroundings) -> tuple[RunningJob, ...]:
    """Return the running jobs; their inputs are files of the tablet until they commit."""
    return tuple(
        _running_job(tablet, entry, around.progress.get(attempt))
        for attempt, entry in sorted(tablet.running.items())
    )


def _running_job(tablet: Tablet, entry: Reservation, work: AttemptWork | None) -> RunningJob:
    files = tuple(tablet.files[path] for path in entry.inputs if path in tablet.files)
    if work is None:
        return RunningJob(kind=entry.kind, files=files)
    return RunningJob(
        kind=entry.kind,
        files=files,
        read_bytes={file.path: int(file.size_bytes * work.read_share) for file in files},
        written_bytes=work.written_bytes,
    )


def _service(
    table: Table, kind: Kind, facts: RequestFacts | None, configured: _Policies
) -> Service:
    name = table.settings.service
    if configured.dispatcher is not None:
        parameters = DispatchParameters(
            table=table,
            kind=kind,
            hints={} if facts is None else facts.hints,
            services=tuple(configured.services),
        )
        try:
            name = configured.dispatcher.dispatch(parameters)
        except Exception as error:
            message = f"table {table.name}: the dispatcher failed: {type(error).__name__}: {error}"
            raise PluginError(message) from error
    service = configured.services.get(name)
    if service is None:
        names = ", ".join(sorted(configured.services))
        message = f"table {table.name}: service {name!r} is not configured, expected one of {names}"
        raise PluginError(message)
    return service


def _planner_of(table: Table, service: Service) -> tuple[str, Mapping[str, object]]:
    """Return the planner of a table and its options; the table's settings take precedence."""
    planner = table.settings.planner
    if not planner or planner == service.planner:
        return service.planner, {**service.options, **table.settings.planner_options}
    return planner, table.settings.planner_options


def _ask(name: str, planners: Mapping[str, Planner], parameters: PlanParameters) -> Plan:
    planner = planners.get(name)
    if planner is None:
        names = ", ".join(sorted(planners))
        raise PluginError(f"planner {name!r} is not loaded, expected one of {names}")
    try:
        plan: object = planner.plan(parameters)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise PluginError(f"planner {name}, tablet {parameters.tablet}: {problem}") from error
    if not isinstance(plan, Plan):
        raise PluginError(
            f"planner {name}, tablet {parameters.tablet}: returned {type(plan).__name__}, expected"
            " a Plan"
        )
    return plan
