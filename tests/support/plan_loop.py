"""Plan and commit on values until a planner wants nothing, for properties of its fixed point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.model.file import DataFile, with_tags
from common.model.job import Job, JobAction, Kind
from common.spi.planner import Planner, PlanParameters, RunningJob
from coordinator.core.planning import checked_jobs

Shrink = Callable[[int], int]
SHRINKS: Sequence[Shrink] = (
    lambda size: size,
    lambda size: size * 2 // 5,
    lambda size: size * 6 // 5,
    lambda _: 0,
    lambda size: size * 3,
)
"""How large outputs may come out, whatever a planner had thought."""


@dataclass(slots=True)
class Life:
    """A tablet after a while: its files, and what was done to it."""

    files: dict[str, DataFile]
    jobs: int = 0
    rewritten_bytes: int = 0
    left: Mapping[str, str] = field(default_factory=dict)
    now_s: float = 0.0


def live(
    name: str,
    planner: Planner,
    given: PlanParameters,
    *,
    shrink: Shrink = lambda size: size,
    jobs_max: int,
    until_s: float | None = None,
    drops_prove_right: bool = False,
    moves_are_rewrites: bool = False,
) -> Life:
    """Plan and commit until nothing is wanted; assert that every plan is sound.

    Args:
        name: The planner's, for messages.
        planner: Asked again after all jobs of a plan are committed.
        given: Where it begins: all files are candidates.
        shrink: Bytes of inputs → bytes of the output.
        jobs_max: More are a planner that runs in circles.
        until_s: Let time pass until then, whenever the planner asks for it.
        drops_prove_right: Let drops leave nothing; otherwise each ends as a rewrite of all rows.
        moves_are_rewrites: Let compactors be of a release that does not know moves.
    """
    life = Life(files=dict(given.files), now_s=given.now_s)
    while True:
        asked = replace(
            given, files=life.files, candidates=tuple(life.files.values()), now_s=life.now_s
        )
        found = planner.plan(asked)
        jobs = checked_jobs(name, found, asked)
        planned = [path for job in jobs for path in job.inputs]
        assert len(set(planned)) == len(planned), found
        assert found.left.keys() == life.files.keys() - set(planned), found
        assert all(found.left.values()), found
        assert planner.plan(asked) == found, "the same question has two answers"
        if not jobs or _request_is_done(asked):
            due_s = found.due_at_s
            if jobs or until_s is None or due_s is None or due_s > until_s:
                life.left = found.left
                return life
            assert due_s > life.now_s, "asked again for a time that is over"
            life.now_s = due_s
            continue
        for job in jobs:
            inputs = [life.files.pop(path) for path in job.inputs]
            if job.action == JobAction.MOVE and not moves_are_rewrites:
                life.files.update((file.path, with_tags(file, job.output_tags)) for file in inputs)
            elif not (drops_prove_right and job.action == JobAction.DROP):
                outputs = _outputs(f"out-{life.jobs:04}", inputs, shrink, asked, job)
                life.files.update((file.path, file) for file in outputs)
            life.jobs += 1
            life.rewritten_bytes += sum(file.size_bytes for file in inputs)
        assert life.jobs <= jobs_max, f"{life.jobs} jobs and no rest: {found}"


def _request_is_done(asked: PlanParameters) -> bool:
    """Return whether the coordinator would ask no more: one file, a result of the request."""
    own = None if asked.request is None else asked.request.request
    files = [*asked.files.values()]
    return asked.kind is Kind.USER and len(files) == 1 and files[0].request == own


def _outputs(
    path: str, inputs: Sequence[DataFile], shrink: Shrink, asked: PlanParameters, job: Job
) -> list[DataFile]:
    """Return what a job leaves that drops no row: the worst case for every rule.

    Rows and bytes are divided evenly among the outputs, which have keys or are of a table without.
    """
    whole = _output(path, inputs, shrink, asked, job.output_tags)
    if not asked.keyed:
        return _parts(whole, job)
    spans = _spans(whole, job.cuts)
    if len(spans) < 2:
        return [whole]
    share = 1 / len(spans)
    return [
        replace(
            whole,
            path=f"{path}-{number:03}",
            size_bytes=int(whole.size_bytes * share),
            rows=max(1, int(whole.rows * share)),
            key_min=low,
            key_max=high,
        )
        for number, (low, high) in enumerate(spans)
    ]


def _parts(whole: DataFile, job: Job) -> list[DataFile]:
    """Return outputs of a table without a key: the same number of rows each."""
    count = min(max(1, job.outputs_expected), max(1, whole.rows))
    if count == 1:
        return [whole]
    return [
        replace(
            whole,
            path=f"{whole.path}-{number}",
            size_bytes=whole.size_bytes // count,
            rows=max(1, whole.rows // count),
            tombstones=0,
        )
        for number in range(count)
    ]


def _spans(whole: DataFile, cuts: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the ranges of keys of the outputs."""
    low, high = whole.key_min, whole.key_max
    if low is None or high is None:
        return []
    found = []
    for cut in cuts:
        if low <= cut < high:
            found.append((low, cut))
            low = cut + b"\0"
    return [*found, (low, high)]


def _output(
    path: str,
    inputs: Sequence[DataFile],
    shrink: Shrink,
    asked: PlanParameters,
    tags: tuple[tuple[str, str], ...],
) -> DataFile:
    """Return all that a job leaves as one file. What is rewritten has known keys."""
    keys = [key for file in inputs for key in (file.key_min, file.key_max) if key is not None]
    if asked.keyed and len(keys) < 2 * len(inputs):
        keys += [b"\0", b"\xfe"]
    times = [at for file in inputs for at in (file.time_min_s, file.time_max_s) if at is not None]
    since = [file.tombstones_since_s for file in inputs if file.tombstones_since_s is not None]
    versions = [file.version_min for file in inputs if file.version_min is not None]
    return DataFile(
        path=path,
        size_bytes=shrink(sum(file.size_bytes for file in inputs)),
        rows=sum(file.rows for file in inputs),
        key_min=min(keys, default=None),
        key_max=max(keys, default=None),
        version_min=min(versions) if len(versions) == len(inputs) else None,
        version_max=max((file.version_max or b"" for file in inputs), default=b"") or None,
        time_min_s=min(times, default=None),
        time_max_s=max(times, default=None),
        tombstones=sum(file.tombstones for file in inputs),
        tombstones_since_s=min(since, default=None),
        added_at_s=asked.now_s,
        tags=tags,
        job="job",
        request=asked.request.request if asked.request is not None else None,
    )


def check_busy_files_are_left(
    name: str, planner: Planner, asked: PlanParameters, busy: Iterable[str]
) -> None:
    """Plan beside a job under way; assert that its files are in no other and all others told.

    Args:
        name: The planner's, for messages.
        planner: Any.
        asked: All of its files are candidates.
        busy: Inputs of the job, those that are files of `asked`.
    """
    inputs = tuple(asked.files[path] for path in busy if path in asked.files)
    free = tuple(file for file in asked.candidates if file not in inputs)
    running = (RunningJob(kind=asked.kind, files=inputs),) if inputs else ()
    given = replace(asked, candidates=free, running=running)
    found = planner.plan(given)
    checked_jobs(name, found, given)
    planned = {path for job in found.jobs for path in job.files}
    assert found.left.keys() == {file.path for file in free} - planned
