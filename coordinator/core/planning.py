"""From a tablet to its plan: which files may be merged, whom to ask, is the answer sound?

Pure. The scanner calls it on what it has read; nothing here reserves anything, so a
plan may be stale when its jobs are taken, and is checked again then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.errors import PluginError
from common.model.file import DataFile
from common.model.group import Service
from common.model.job import Job, Kind, Plan, TabletPlan
from common.model.table import Table, TableState
from common.model.tablet import Selection, Tablet
from common.spi.dispatcher import Dispatcher, DispatchParameters
from common.spi.planner import Planner, PlanParameters, RequestFacts, RunningJob
from coordinator.core.cutting import cut_plan, is_cutting
from coordinator.core.due import earliest
from coordinator.core.holds import holds_of, waiting_sentence
from coordinator.core.plan_check import checked_jobs


@dataclass(frozen=True, slots=True)
class _Configured:
    """Everything that is configured about configured."""

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
) -> TabletPlan:
    """Return the jobs wanted for a tablet, and why each other file was left.

    A kind whose planner misbehaves gets no jobs, and its files are left with what it
    did; jobs of the other kind are wanted all the same.

    Args:
        tablet: As it was read, at one moment.
        table: Its table.
        services: By name.
        planners: By name.
        now_s: The time now, by the store.
        dispatcher: Chooses the service; None: the one in the table's settings.
        fallback: Plans a request whose own planner wants none of its files; None: nobody.
        requests: Facts of ACTIVE requests by id: the files of another's selection are
            left alone. None: any request may be at work, and has no hints.
        only: Plan jobs of this kind alone.

    Raises:
        PluginError: A planner or dispatcher misbehaved, and there is no other job.
    """
    if (idle := _why_idle(tablet, table)) is not None:
        return TabletPlan(left=dict.fromkeys(tablet.files, idle), holds=holds_of(tablet))
    configured = _Configured(services, planners, dispatcher, fallback)
    if is_cutting(tablet.operation):
        return cut_plan(tablet, table, _service(table, Kind.SYSTEM, None, configured))
    left = _left_by_hold(tablet)
    jobs: list[Job] = []
    due_s: float | None = None
    problems: list[PluginError] = []
    for kind, candidates in _candidates(tablet, table, now_s).items():
        facts = _facts(kind, tablet.selection, requests)
        if only not in {None, kind} or (kind is Kind.USER and facts is None):
            continue
        try:
            wanted, reasons, again_s = _plan_kind(
                tablet, table, kind, candidates, (configured, facts, now_s)
            )
            due_s = earliest(due_s, again_s)
        except PluginError as problem:
            problems.append(problem)
            wanted, reasons = (), {file.path: str(problem) for file in candidates}
        jobs += wanted
        left.update(reasons)
    if problems and not jobs:
        raise problems[0]
    planned = {path for job in jobs for path in job.inputs}
    left = {path: why for path, why in left.items() if path not in planned}
    return TabletPlan(jobs=tuple(jobs), left=left, holds=holds_of(tablet), due_at_s=due_s)


def _why_idle(tablet: Tablet, table: Table) -> str | None:
    """Return why nothing at all is planned here, or None."""
    if table.state is not TableState.LIVE:
        return f"table {table.name} is {table.state}"
    if tablet.operation is not None and not is_cutting(tablet.operation):
        return f"the tablet is busy with a {tablet.operation.kind}"
    return None


def _left_by_hold(tablet: Tablet) -> dict[str, str]:
    """Return why files are no candidates, as far as somebody holds them."""
    left: dict[str, str] = {}
    if tablet.waiting:
        left = dict.fromkeys(tablet.files, waiting_sentence(min(tablet.waiting)))
    if tablet.selection is not None:
        left.update(dict.fromkeys(tablet.selection.files, f"held by {tablet.selection.request}"))
    for attempt, entry in sorted(tablet.running.items()):
        left.update(dict.fromkeys(entry.inputs, f"being merged by {attempt}"))
    left.update((path, "still being written") for path, file in tablet.files.items() if file.open)
    return left


def _candidates(tablet: Tablet, table: Table, now_s: float) -> dict[Kind, tuple[DataFile, ...]]:
    """Return the files that jobs of each kind may use now; a kind without any is left out."""
    files, selection = tablet.files, tablet.selection
    taken = tablet.reserved_files if tablet.running else frozenset[str]()
    found: dict[Kind, tuple[DataFile, ...]] = {}
    if not tablet.waiting:
        held = frozenset[str]()
        if selection is not None and not _expired(tablet, selection, table, now_s):
            held = frozenset(selection.files)
        out = taken | held
        found[Kind.SYSTEM] = tuple(
            [file for file in files.values() if not file.open and file.path not in out]
        )
    if selection is not None and not _finished(selection):
        chosen = [files[path] for path in selection.files if path in files and path not in taken]
        found[Kind.USER] = tuple([file for file in chosen if not file.open])
    return {kind: candidates for kind, candidates in found.items() if candidates}


def _expired(tablet: Tablet, selection: Selection, table: Table, now_s: float) -> bool:
    """Return whether system jobs may have the files of a selection that nobody works on."""
    if selection.completed_jobs or now_s - selection.since_s <= table.settings.hold_expiry_s:
        return False
    return all(entry.request != selection.request for entry in tablet.running.values())


def _finished(selection: Selection) -> bool:
    """Return whether one file is left and it is a result: the request is done here."""
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
    context: tuple[_Configured, RequestFacts | None, float],
) -> tuple[tuple[Job, ...], dict[str, str], float | None]:
    """Return the jobs of one kind, why its other candidates were left, and when to ask again.

    Raises:
        PluginError: The planner or the dispatcher misbehaved.
    """
    configured, facts, now_s = context
    service = _service(table, kind, facts, configured)
    parameters = PlanParameters(
        tablet=tablet.id,
        table_name=table.name,
        kind=kind,
        settings=table.settings,
        options=service.options,
        files=tablet.files,
        candidates=candidates,
        running=_running(tablet),
        groups=service.groups,
        waiting=bool(tablet.waiting),
        request=facts,
        now_s=now_s,
        keyed=bool(table.key),
    )
    plan = _ask(service.planner, configured.planners, parameters)
    if not plan.jobs and configured.fallback is not None and _is_stuck(tablet, parameters):
        plan = _fallen_back(service.planner, configured.fallback, parameters)
    partition = tablet.bounds.partition
    planned = checked_jobs(service.planner, plan, parameters)
    jobs = tuple(replace(job, partition=partition) for job in planned) if partition else planned
    left = dict.fromkeys(
        [file.path for file in candidates if file.path not in plan.left],
        f"planner {service.planner} gave no reason",
    )
    left.update(plan.left)
    return jobs, left, plan.due_at_s


def _is_stuck(tablet: Tablet, parameters: PlanParameters) -> bool:
    """Return whether a request would fail if none of its files were taken now."""
    if parameters.kind is not Kind.USER or tablet.selection is None:
        return False
    under_way = any(job.kind is Kind.USER for job in parameters.running)
    return not under_way and not set(tablet.selection.files) <= set(tablet.selection.results)


def _fallen_back(name: str, fallback: Planner, parameters: PlanParameters) -> Plan:
    """Return what the fallback wants; reasons say that it was asked, and for whom."""
    # The options are those of the service's own planner.
    plan = fallback.plan(replace(parameters, options={}))
    why = f"planner {name} takes no file of the request"
    jobs = tuple(replace(job, reason=f"{job.reason} ({why})") for job in plan.jobs)
    return replace(plan, jobs=jobs)


def _running(tablet: Tablet) -> tuple[RunningJob, ...]:
    """Return the jobs under way; inputs are files of the tablet until they commit."""
    return tuple(
        RunningJob(
            kind=entry.kind,
            files=tuple(tablet.files[path] for path in entry.inputs if path in tablet.files),
        )
        for _, entry in sorted(tablet.running.items())
    )


def _service(
    table: Table, kind: Kind, facts: RequestFacts | None, configured: _Configured
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
        known = ", ".join(sorted(configured.services))
        message = f"table {table.name}: service {name!r} is not configured; there is {known}"
        raise PluginError(message)
    return service


def _ask(name: str, planners: Mapping[str, Planner], parameters: PlanParameters) -> Plan:
    planner = planners.get(name)
    if planner is None:
        known = ", ".join(sorted(planners))
        raise PluginError(f"planner {name!r} is not loaded; there is {known}")
    where = f"planner {name}, tablet {parameters.tablet}"
    try:
        plan: object = planner.plan(parameters)
    except Exception as error:
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(plan, Plan):
        raise PluginError(f"{where}: returned {type(plan).__name__}, expected a Plan")
    return plan
