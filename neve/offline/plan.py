"""`neve plan --files`: ask a planner about a tablet that exists only on paper."""

from collections.abc import Mapping
from typing import Any

from common.errors import ConfigError, RequestError
from common.model.job import Kind, Plan
from common.model.tablet import PLUS_INFINITY, TabletId
from common.spi.planner import Planner, PlanParameters, RequestFacts
from coordinator.core.planning import checked_jobs
from coordinator.registry import load_planner
from neve.offline.document import TabletDocument, read_document
from neve.offline.settings import read_settings

DEFAULT_PLANNER = "ratio"
_TABLET = TabletId("offline", PLUS_INFINITY)


def plan_offline(
    document: object,
    planner: str | None = None,
    overrides: Mapping[str, object] | None = None,
    tablet: str | None = None,
) -> dict[str, Any]:
    """Return the jobs that a planner wants and why it leaves the other files.

    Args:
        document: The tablet: `table`, `kind`, `files`, `candidates`, `running`, `groups`.
            A list of files, as `neve table files --json` gives it, will do.
        planner: Name of the planner; None: `ratio`.
        overrides: Settings that win over those in `table`; values may be texts.
        tablet: Whose files are meant, if they are of several tablets.

    Returns:
        `{"jobs": [{"files", "group", "priority", "kind", "reason"}], "left": {path: why}}`.

    Raises:
        RequestError: The document, a setting or the planner's name is refused.
        PluginError: The planner misbehaved.
    """
    name = planner or DEFAULT_PLANNER
    described = read_document(document, tablet)
    loaded = _loaded(name)
    parameters = _parameters(described, loaded, overrides or {})
    plan = _plan(loaded, parameters)
    jobs = checked_jobs(name, plan, parameters)
    planned = {path for job in jobs for path in job.inputs}
    left = {path: why for path, why in _left(described).items() if path not in planned}
    left.update(plan.left)
    return {
        "jobs": [
            {
                "files": list(job.inputs),
                "group": job.group,
                "priority": job.priority,
                "kind": job.kind.value,
                "reason": job.reason,
            }
            for job in jobs
        ],
        "left": left,
    }


def _loaded(name: str) -> Planner:
    try:
        return load_planner(name)
    except ConfigError as error:
        raise RequestError(f"planner {name!r} is unknown: {error}") from error


def _parameters(
    described: TabletDocument, planner: Planner, overrides: Mapping[str, object]
) -> PlanParameters:
    written = {**described.settings, **overrides}
    settings, options = read_settings(written, getattr(planner, "option_names", None))
    user = described.kind is Kind.USER
    return PlanParameters(
        tablet=_TABLET,
        table_name="offline",
        kind=described.kind,
        settings=settings,
        options=options,
        files=described.files,
        candidates=described.candidates,
        running=described.running,
        groups=described.groups,
        request=RequestFacts(request="offline") if user else None,
    )


def _plan(planner: Planner, parameters: PlanParameters) -> Plan:
    try:
        return planner.plan(parameters)
    except ConfigError as error:
        # Here the caller is the operator.
        raise RequestError(str(error)) from error


def _left(described: TabletDocument) -> dict[str, str]:
    """Return why files are left that the planner may not use at all."""
    left = dict.fromkeys(described.files, "is no candidate")
    left.update(dict.fromkeys((file.path for file in described.candidates), "no reason was given"))
    for job in described.running:
        left.update(dict.fromkeys((file.path for file in job.files), "is in a running job"))
    left.update(
        (path, "is still being written") for path, file in described.files.items() if file.open
    )
    return left
