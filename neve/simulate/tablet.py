"""A tablet of a simulation: its files, what comes, and what a commit leaves.

Files have the metadata that planners see. What is in them is a `Content` where the table has a key;
where it has none, rows lie evenly between the first and the last time of a file.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from common.model.file import DataFile
from common.model.job import Job, JobAction
from common.model.tablet import PLUS_INFINITY, TabletId
from common.spi.planner import RunningJob
from neve.simulate.arrivals import ArrivingFile, Flush
from neve.simulate.recording import key_behind, place_of_key, simulated_key
from neve.simulate.rows import Content, merged, rows_in
from neve.simulate.specification import TableRule

CUT_STEP_S = 0.001
"""The last row before a cut is so much earlier."""
FIRST_KEY, LAST_KEY = simulated_key(0.0), simulated_key(1.0)


@dataclass(slots=True, eq=False)
class SimulatedTable:
    """A table with what does not change from plan to plan."""

    rule: TableRule
    id: str
    tablets: "list[SimulatedTablet]"
    coming: Iterator[Flush]
    volume: str
    interval_s: float
    """Between two flushes of a tablet, on average."""
    parameters: dict[str, Any]
    """Of the planner, as far as they are those of the table."""


class SimulatedTablet:
    """Always true: `stored_bytes` and `spans` are those of its files."""

    __slots__ = (
        "contents", "due_s", "files", "id", "keys", "names", "planned_bytes", "queued", "reserved",
        "rule", "running", "spans", "stored_bytes", "table",
    )  # fmt: skip

    def __init__(self, table: SimulatedTable, number: int) -> None:
        """Begin without files.

        Args:
            table: Whose tablet it is.
            number: Of the tablet, from 0.
        """
        rule = table.rule
        last = number == rule.tablets - 1
        self.id = TabletId(table.id, PLUS_INFINITY if last else number.to_bytes(4, "big"))
        self.rule, self.table = rule, table
        self.files: dict[str, DataFile] = {}
        self.contents: dict[str, Content] = {}
        self.running: dict[str, RunningJob] = {}
        """Jobs under way, by id."""
        self.reserved: set[str] = set()
        self.keys = float(rule.population.keys)
        """Keys that there are, or that updates may bring."""
        self.names = 0
        self.spans = 0.0
        """How many files hold a key, on average: the sum of their shares of the keys."""
        self.stored_bytes = 0
        self.planned_bytes = 0
        """Inputs of the jobs that the last plan wants."""
        self.queued = 0
        """Jobs of it that are in a queue."""
        self.due_s = inf
        """When it has to be planned though nothing has changed."""

    # --------------------------------------------------------------------------------- What comes

    def begin_with(self, file: DataFile, number: int) -> None:
        """Take a file that is there when the run begins."""
        start = place_of_key(file.key_min, 0.0)
        end = place_of_key(file.key_max, 1.0)
        content = Content(
            inserts=float(file.rows),
            start=start,
            end=max(end, start + 1e-9),
            first=number,
            last=number,
        )
        self._put(file, content)

    def begin_with_bytes(self, size_bytes: int, begin_s: float) -> None:
        """Take one file that holds each of the keys once."""
        rows = max(1, size_bytes // self.rule.row_bytes)
        content = Content(inserts=float(min(rows, self.keys)))
        time_s = begin_s if not self.rule.keyed else None
        self._put(self._file(size_bytes, rows, content, begin_s, (time_s, time_s)), content)

    def arrive(self, coming: ArrivingFile, number: int, now_s: float, interval_s: float) -> int:
        """Take a file that a writer brings; return its bytes.

        Args:
            coming: The file.
            number: Of the arrival; later ones have newer rows.
            now_s: The time now, since the epoch.
            interval_s: Time that the rows of a flush take to gather.
        """
        if not self.rule.keyed:
            to_s = now_s - coming.late_s
            content = Content(coming.rows, first=number, last=number)
            times = (to_s - interval_s, to_s)
            return self._put(
                self._file(coming.size_bytes, coming.rows, content, now_s, times), content
            )
        draws = coming.updates + coming.deletes
        inserts = max(0.0, coming.rows - draws)
        self.keys += inserts
        content = Content(
            inserts,
            draws,
            coming.deletes,
            first=number,
            last=number,
            deleted_from_s=now_s if coming.deletes else inf,
            deleted_to_s=now_s if coming.deletes else -inf,
        )
        size_bytes, rows, dead = coming.size_bytes, coming.rows, coming.deletes
        if draws:
            rows, dead = rows_in(inserts, draws, coming.deletes, self.keys, self.rule.population)
            size_bytes = max(1, round(size_bytes * rows / coming.rows))
        return self._put(self._file(size_bytes, rows, content, now_s, dead=dead), content)

    # ---------------------------------------------------------------------------------- What leaves

    def reserve(self, job: Job) -> None:
        """Let a job begin. No other job has any of its inputs."""
        assert self.reserved.isdisjoint(job.inputs), job
        self.reserved.update(job.inputs)
        files = tuple(self.files[path] for path in job.inputs)
        self.running[job.id] = RunningJob(kind=job.kind, files=files)

    def release(self, job: Job) -> None:
        """Let a job end of which nothing is left: its files are as they were."""
        del self.running[job.id]
        self.reserved.difference_update(job.inputs)

    def commit(self, job: Job, now_s: float) -> int:
        """Replace the inputs of a job by its outputs; return the bytes that were written."""
        self.release(job)
        if job.action == JobAction.MOVE:
            for path in job.inputs:
                self.files[path] = replace(self.files[path], tags=job.output_tags)
            return 0
        inputs = [self.files[path] for path in job.inputs]
        contents = [self.contents[path] for path in job.inputs]
        for file in inputs:
            self._remove(file.path)
        if self.rule.keyed:
            return self._write_keyed(job, inputs, contents, now_s)
        return self._write_timed(job, inputs, contents, now_s)

    def _write_keyed(
        self, job: Job, inputs: Sequence[DataFile], contents: Sequence[Content], now_s: float
    ) -> int:
        size_bytes, rows = sum(file.size_bytes for file in inputs), sum(f.rows for f in inputs)
        cuts = [place_of_key(cut, 0.0) for cut in job.cuts]
        purged = self._purged_share(contents, now_s)
        outputs = merged(contents, self.keys, self.rule.population, cuts=cuts, purged=purged)
        # Rows of files are whole numbers, and keys have become more: never more than came in.
        left = sum(output[1] for output in outputs)
        row_bytes = size_bytes / max(1.0, rows, left)
        written = 0
        for content, count, dead in outputs:
            size = max(1, round(count * row_bytes))
            written += self._put(
                self._file(size, count, content, now_s, dead=dead, job=job), content
            )
        return written

    def _purged_share(self, contents: Sequence[Content], now_s: float) -> float:
        """Return which part of the tombstones may go: nothing older outside, and old enough.

        Tombstones are taken to be spread evenly between the oldest and the newest one.
        """
        since_s = min(content.deleted_from_s for content in contents)
        if since_s == inf:
            return 0.0
        newest = max(content.last for content in contents)
        if any(content.first <= newest for content in self.contents.values()):
            return 0.0
        to_s = max(content.deleted_to_s for content in contents)
        old_s = now_s - self.rule.settings.tombstone_retention_s
        if old_s <= since_s:
            return 0.0
        return 1.0 if to_s <= old_s else (old_s - since_s) / (to_s - since_s)

    def _write_timed(
        self, job: Job, inputs: Sequence[DataFile], contents: Sequence[Content], now_s: float
    ) -> int:
        ttl_s = self.rule.settings.ttl_s
        expiry_s = -inf if ttl_s is None else now_s - ttl_s
        parts = (alive_part(file, expiry_s) for file in inputs)
        alive = [part for part in parts if part is not None]
        if not alive:
            return 0
        first, last = min(each.first for each in contents), max(each.last for each in contents)
        written = 0
        for from_s, to_s, size, rows in _timed_outputs(alive, job):
            content = Content(rows, first=first, last=last)
            file = self._file(max(1, round(size)), rows, content, now_s, (from_s, to_s), job=job)
            written += self._put(file, content)
        return written

    # -------------------------------------------------------------------------------------- Inside

    def _file(
        self,
        size_bytes: int,
        rows: float,
        content: Content,
        now_s: float,
        times: tuple[float | None, float | None] = (None, None),
        *,
        dead: float = 0.0,
        job: Job | None = None,
    ) -> DataFile:
        self.names += 1
        keyed = self.rule.keyed
        key_min = key_max = None
        if keyed:
            # A cut is the last key of the output before it.
            key_min = key_behind(content.start) if content.start else FIRST_KEY
            key_max = simulated_key(content.end) if content.end < 1.0 else LAST_KEY
        return DataFile(
            path=f"{self.names:09x}",
            size_bytes=size_bytes,
            rows=max(1, round(rows)),
            key_min=key_min,
            key_max=key_max,
            time_min_s=times[0],
            time_max_s=times[1],
            tombstones=round(dead),
            tombstones_since_s=content.deleted_from_s if dead >= 0.5 else None,
            clean=keyed and dead < 0.5,
            added_at_s=now_s,
            job=None if job is None else job.id,
            request=None if job is None else job.request,
            tags=() if job is None else job.output_tags,
        )

    def _put(self, file: DataFile, content: Content) -> int:
        self.files[file.path] = file
        self.contents[file.path] = content
        self.stored_bytes += file.size_bytes
        self.spans += content.end - content.start
        return file.size_bytes

    def _remove(self, path: str) -> None:
        file, content = self.files.pop(path), self.contents.pop(path)
        self.stored_bytes -= file.size_bytes
        self.spans -= content.end - content.start

    def check(self) -> None:
        """Assert what is always true; for tests."""
        assert self.files.keys() == self.contents.keys()
        assert self.stored_bytes == sum(file.size_bytes for file in self.files.values())
        held = [file.path for job in self.running.values() for file in job.files]
        assert len(held) == len(set(held)), "a file is an input of two jobs"
        assert set(held) == self.reserved <= self.files.keys()

    def live_bytes(self, now_s: float) -> float:
        """Return the bytes that would be left if everything were merged into one file."""
        if not self.rule.keyed:
            ttl_s = self.rule.settings.ttl_s
            if ttl_s is None:
                return float(self.stored_bytes)
            parts = (alive_part(file, now_s - ttl_s) for file in self.files.values())
            return sum(part[2] for part in parts if part is not None)
        contents = self.contents.values()
        draws = sum(content.draws for content in contents)
        rows = sum(file.rows for file in self.files.values())
        if not draws or not rows:
            return float(self.stored_bytes)
        left, dead = rows_in(
            sum(content.inserts for content in contents),
            draws,
            sum(content.deletes for content in contents),
            self.keys,
            self.rule.population,
        )
        return self.stored_bytes * min(1.0, max(0.0, left - dead) / rows)


# ---------------------------------------------------------------------------- Rows spread over time


TimedPart = tuple[float, float, float, float]
"""First and last time, bytes and rows of what is alive of a file, or of an output."""


def alive_part(file: DataFile, expiry_s: float) -> TimedPart | None:
    """Return what of a file has not expired; None: nothing."""
    from_s, to_s = file.time_min_s or 0.0, file.time_max_s or 0.0
    if expiry_s <= from_s:
        return from_s, to_s, float(file.size_bytes), float(file.rows)
    if to_s <= expiry_s:
        return None
    share = (to_s - expiry_s) / (to_s - from_s)
    return expiry_s, to_s, file.size_bytes * share, file.rows * share


def _timed_outputs(alive: Sequence[TimedPart], job: Job) -> Iterable[TimedPart]:
    """Yield the outputs of a job on a table without a key."""
    from_s, to_s = min(part[0] for part in alive), max(part[1] for part in alive)
    if not job.cuts_at_s:
        count = max(1, job.outputs_expected)
        size, rows = sum(part[2] for part in alive), sum(part[3] for part in alive)
        yield from [(from_s, to_s, size / count, rows / count)] * count
        return
    for begin_s, end_s in pairwise([-inf, *job.cuts_at_s, inf]):
        parts = [part for each in alive if (part := _between(each, begin_s, end_s)) is not None]
        if parts:
            yield from _divided(parts, job.output_rows_max)


def _between(part: TimedPart, begin_s: float, end_s: float) -> TimedPart | None:
    """Return what of a part has times from `begin_s` to before `end_s`; None: nothing."""
    from_s, to_s, size, rows = part
    if to_s <= from_s:
        return part if begin_s <= from_s < end_s else None
    low_s, high_s = max(from_s, begin_s), min(to_s, end_s)
    if high_s <= low_s:
        return None
    share = (high_s - low_s) / (to_s - from_s)
    # A row of exactly the time of a cut is in the output that begins there.
    last_s = high_s if to_s < end_s else max(low_s, high_s - CUT_STEP_S)
    return low_s, last_s, size * share, rows * share


def _divided(parts: Sequence[TimedPart], rows_max: int) -> Iterable[TimedPart]:
    """Yield one output, or several of about the same number of rows where one has a limit."""
    size, rows = sum(part[2] for part in parts), sum(part[3] for part in parts)
    count = max(1, -(-int(rows) // rows_max)) if rows_max else 1
    from_s, to_s = min(part[0] for part in parts), max(part[1] for part in parts)
    yield from [(from_s, to_s, size / count, rows / count)] * count
