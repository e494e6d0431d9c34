"""Files, jobs and planner parameters in few words, for tests of queue and planners."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Job, Kind
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, TabletId
from common.spi.planner import PlanParameters, RunningJob
from common.units import parse_size_bytes

TABLET = TabletId("t1", PLUS_INFINITY)


def job(name: str, priority: int = 0, **given: Any) -> Job:
    """Return a job called `name`; `files` is a number of files."""
    files = given.pop("files", 2)
    inputs = given.pop("inputs", tuple(f"{name}-{number}" for number in range(files)))
    facts: dict[str, Any] = {
        "tablet": TABLET,
        "table_name": "events",
        "kind": Kind.SYSTEM,
        "input_bytes": 100,
        "group": "default",
        "reason": "because",
    }
    return Job(id=name, priority=priority, inputs=inputs, **(facts | given))


def files_of(sizes: Mapping[str, int] | Iterable[tuple[str, int]]) -> dict[str, DataFile]:
    """Return files by path from names and sizes."""
    return {
        name: DataFile(path=name, size_bytes=size, rows=1) for name, size in dict(sizes).items()
    }


def parameters(
    files: Mapping[str, DataFile],
    *,
    kind: Kind = Kind.SYSTEM,
    candidates: Iterable[str] | None = None,
    running: Sequence[tuple[Kind, Sequence[str]]] = (),
    groups: Sequence[Group] = (Group(name="default"),),
    **settings: Any,
) -> PlanParameters:
    """Return what a planner is asked; `settings` are the table's."""
    chosen = files if candidates is None else candidates
    return PlanParameters(
        tablet=TABLET,
        table_name="events",
        kind=kind,
        settings=TableSettings(**settings),
        files=files,
        candidates=tuple(files[name] for name in chosen),
        running=tuple(
            RunningJob(kind=each, files=tuple(files[name] for name in names))
            for each, names in running
        ),
        groups=tuple(groups),
    )


def case_parameters(case: Mapping[str, Any]) -> PlanParameters:
    """Return what the planner is asked in a case of `tests/data/accumulo_plan.json`."""
    return parameters(
        files_of((name, size) for name, size in case["all"]),
        kind=Kind(case["kind"]),
        candidates=case.get("candidates"),
        running=[(Kind(each["kind"]), each["files"]) for each in case["running"]],
        groups=[
            Group(
                name=each["group"],
                max_bytes=parse_size_bytes(each["maxSize"]) if "maxSize" in each else None,
            )
            for each in case["groups"]
        ],
        **{name: case[name] for name in ("ratio", "max_files", "lowest_ratio", "file_limit")},
    )
