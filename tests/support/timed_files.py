"""Files whose rows have times, for planners that cut at times: what a job makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.model.file import DataFile
from common.model.job import Job
from common.spi.planner import Planner, PlanParameters
from coordinator.core.planning import checked_jobs

Row = float | None
"""Its time in seconds."""
Weigh = Callable[[Sequence[Row]], int]
"""Rows of a file → its bytes."""


def cut(rows: Sequence[Row], job: Job) -> list[list[Row]]:
    """Return the rows of each output of a job, as a compactor writes them."""
    if not job.cuts_at_s:
        return _divided(list(rows), -(-len(rows) // max(1, job.outputs_expected)))
    parts: list[list[Row]] = [[] for _ in range(len(job.cuts_at_s) + 2)]
    for at in rows:
        parts[-1 if at is None else sum(end <= at for end in job.cuts_at_s)].append(at)
    outputs: list[list[Row]] = []
    for part in parts:
        count = math.ceil(len(part) / job.output_rows_max) if job.output_rows_max else 1
        outputs += _divided(part, -(-len(part) // max(1, count)))
    assert len(outputs) <= job.outputs_expected, job
    return outputs


def _divided(rows: list[Row], each: int) -> list[list[Row]]:
    return [rows[at : at + each] for at in range(0, len(rows), max(1, each))]


@dataclass(slots=True)
class TimedTablet:
    """A tablet of a table without a key: files, and the times of their rows."""

    weigh: Weigh
    rows: dict[str, list[Row]] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    jobs: int = 0
    names: int = 0

    def add(self, rows: Iterable[Row], **given: object) -> DataFile:
        """Add a file."""
        self.names += 1
        path, listed = f"{self.names:04}.parquet", list(rows)
        times = [at for at in listed if at is not None]
        file = DataFile(
            path=path,
            size_bytes=self.weigh(listed),
            rows=len(listed),
            time_min_s=min(times, default=None),
            time_max_s=max(times, default=None),
        )
        self.rows[path], self.files[path] = listed, replace(file, **given)  # type: ignore[arg-type]  # facts by name
        return self.files[path]

    def commit(self, job: Job) -> None:
        """Do a job."""
        rows = [at for path in job.inputs for at in self.rows.pop(path)]
        for path in job.inputs:
            del self.files[path]
        self.jobs += 1
        for output in cut(rows, job):
            self.add(output, tags=job.output_tags, job=f"job-{self.jobs}", request=job.request)

    def asked(self, given: PlanParameters) -> PlanParameters:
        """Return the question about this tablet: every file is a candidate."""
        return replace(given, files=dict(self.files), candidates=tuple(self.files.values()))

    def plan(
        self, planner: Planner, given: PlanParameters
    ) -> tuple[tuple[Job, ...], Mapping[str, str]]:
        """Return the jobs of a plan and why other files are left; assert that it is sound."""
        asked = self.asked(given)
        found = planner.plan(asked)
        assert planner.plan(asked) == found, "the same question has two answers"
        jobs = checked_jobs("time-chunk", found, asked)
        planned = {path for job in jobs for path in job.inputs}
        assert found.left.keys() == self.files.keys() - planned, found
        assert all(found.left.values()), found
        begun = [path for job in jobs if not job.depends_on for path in job.inputs]
        assert len(set(begun)) == len(begun), "two jobs that begin at once share a file"
        assert not jobs or begun, "every job waits for another"
        return jobs, found.left

    def rest(self, planner: Planner, given: PlanParameters, jobs_max: int) -> None:
        """Plan and commit what waits for nothing, again and again, until nothing is wanted."""
        while True:
            jobs, left = self.plan(planner, given)
            if not jobs:
                return
            for job in jobs:
                if not job.depends_on:
                    self.commit(job)
            assert self.jobs <= jobs_max, f"{self.jobs} jobs and no rest: {jobs}, {left}"
