"""Compares the planner of a table with its shadow planner, whose jobs are never started. Pure.

    files that users add ──► each side: its files ──► its planner ──► jobs, which end at once

Both sides begin with the files of a tablet and get the files that users add. Each planner sees only
the results of its own jobs, so the figures of a side are what its planner would have done alone.
Outputs have the sizes that the corrected estimates give. No row is read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from math import inf

from common.errors import PluginError
from common.model.file import DataFile, overlapping_files, total_bytes, with_tags
from common.model.group import Service
from common.model.job import Job, JobAction, TabletPlan
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import Bounds, Record, Tablet, TabletId
from common.primitives import earliest_s
from neve import api

ROUNDS_MAX = 16
"""Plans of a tablet after a change; a planner that wants more jobs goes on after the next one."""
COMPARED_TABLETS_MAX = 1000
"""Tablets of all comparisons."""
COMPARED_FILES_MAX = 100_000
"""Files of both sides of all comparisons."""

PlanSide = Callable[[Tablet, Table, float], TabletPlan]
"""Returns the plan of system jobs for a tablet."""


@dataclass(slots=True)
class _Side:
    """What one planner has done, and what it has left."""

    planner: str
    settings: TableSettings
    files: dict[TabletId, dict[str, DataFile]] = field(default_factory=dict)
    jobs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    problems: dict[TabletId, str] = field(default_factory=dict)

    def end(self, job: Job, outputs: Sequence[DataFile]) -> None:
        """Replace the inputs of a job by its outputs."""
        files = self.files[job.tablet]
        for path in job.inputs:
            del files[path]
        files.update((file.path, file) for file in outputs)
        self.jobs += 1
        if job.cost_bytes:
            self.read_bytes += job.input_bytes
            self.written_bytes += total_bytes(outputs)

    def forget(self, tablet: TabletId) -> None:
        """Remove a tablet."""
        self.files.pop(tablet, None)
        self.problems.pop(tablet, None)

    def figures(self) -> api.PlannerFigures:
        """Return the figures for people."""
        depths = (overlapping_files(files.values()) for files in self.files.values())
        return api.PlannerFigures(
            planner=self.planner,
            jobs=self.jobs,
            read_bytes=self.read_bytes,
            written_bytes=self.written_bytes,
            files_left=sum(map(len, self.files.values())),
            overlapping_files=max(depths, default=0),
            problem=next(iter(self.problems.values()), ""),
        )


@dataclass(slots=True)
class _SeenTablet:
    """What both sides know of a tablet."""

    bounds: Bounds
    record: Record
    added: set[str]
    """Paths of files that users added and that the tablet had when it was last read."""
    files: int
    """Number of its files when it was last read."""
    due_s: float = 0.0
    """When to plan it again; infinite: after its next change."""
    rounds: int = 0
    """Plans since its last change."""


@dataclass(slots=True)
class _Comparison:
    """Both sides of a table."""

    table: Table
    since_s: float
    first: _Side
    shadow: _Side
    tablets: dict[TabletId, _SeenTablet] = field(default_factory=dict)
    begin_files: int = 0
    added_files: int = 0
    partial: bool = False

    @property
    def sides(self) -> tuple[_Side, _Side]:
        return self.first, self.shadow

    @property
    def held_files(self) -> int:
        return sum(len(files) for side in self.sides for files in side.files.values())

    def forget(self, tablet: TabletId) -> None:
        """Remove a tablet; what was done in it still counts."""
        self.tablets.pop(tablet, None)
        for side in self.sides:
            side.forget(tablet)


class ShadowPlans:
    """The comparisons of all tables with a shadow planner. Bounded by tablets and files."""

    def __init__(self, plan: PlanSide, services: Mapping[str, Service]) -> None:
        """Create an instance without comparisons.

        Args:
            plan: Plans a tablet by the settings of the table that it gets.
            services: Services by name, for the names of planners.
        """
        self._plan = plan
        self._services = services
        self._comparisons: dict[str, _Comparison] = {}
        self._new: dict[str, None] = {}
        self._numbers = count()

    def tablet_read(self, tablet: Tablet, table: Table, now_s: float) -> None:
        """Note the files of a tablet, if its table has a shadow planner."""
        if not table.settings.shadow_planner:
            return
        comparison = self._comparison(table, now_s)
        comparison.table = table
        seen = comparison.tablets.get(tablet.id)
        if seen is None or seen.bounds != tablet.bounds:
            self._begin(comparison, tablet)
        else:
            self._add(comparison, seen, tablet)

    def table_seen(self, table: Table) -> None:
        """Note a table with a shadow planner, whose comparison may have to begin."""
        found = self._comparisons.get(table.id)
        if found is None or _planners(found) != self._wanted(table):
            self._new[table.id] = None
        else:
            found.table = table

    def take_new(self) -> list[str]:
        """Return the tables whose comparison has to begin, once."""
        new, self._new = list(self._new), {}
        return new

    def forget(self, table: str) -> None:
        """End the comparison of a table, if there is one."""
        self._comparisons.pop(table, None)

    def take(self, now_s: float) -> TabletId | None:
        """Return a tablet to plan, once: it has changed, or its planners asked for this time.

        Those of a paused table wait.
        """
        for comparison in self._comparisons.values():
            if comparison.table.state is not TableState.LIVE:
                continue
            for tablet, seen in comparison.tablets.items():
                if seen.due_s <= now_s:
                    seen.due_s = inf
                    return tablet
        return None

    def plan(self, tablet: TabletId, now_s: float) -> None:
        """Let both planners plan a tablet once; if one wants jobs, the tablet is due again."""
        comparison = self._comparisons[tablet.table]
        seen = comparison.tablets[tablet]
        for side in comparison.sides:
            due_s = self._plan_side(comparison.table, side, seen, tablet, now_s)
            seen.due_s = min(seen.due_s, due_s)
        seen.rounds += 1
        if not seen.due_s and seen.rounds >= ROUNDS_MAX:
            seen.due_s = inf

    def comparison(self, table: Table) -> api.ShadowPlan:
        """Return the comparison of a table."""
        found = self._comparisons.get(table.id)
        if found is None:
            return api.ShadowPlan(table=table.name)
        return api.ShadowPlan(
            table=table.name,
            since_s=found.since_s,
            tablets=len(found.tablets),
            waiting=sum(not seen.due_s for seen in found.tablets.values()),
            begin_files=found.begin_files,
            added_files=found.added_files,
            files=sum(seen.files for seen in found.tablets.values()),
            partial=found.partial,
            first=found.first.figures(),
            shadow=found.shadow.figures(),
        )

    # -------------------------------------------------------------------------------------- Inside

    def _comparison(self, table: Table, now_s: float) -> _Comparison:
        """Return the comparison of a table; other planners or options begin a new one."""
        found = self._comparisons.get(table.id)
        if found is None or _planners(found) != self._wanted(table):
            own, first, shadow = self._wanted(table)
            found = _Comparison(table, now_s, _Side(own, first), _Side(shadow.planner, shadow))
            self._comparisons[table.id] = found
        return found

    def _wanted(self, table: Table) -> tuple[str, TableSettings, TableSettings]:
        """Return the name of the table's own planner, and the settings of both sides."""
        settings = table.settings
        service = self._services.get(settings.service)
        own = settings.planner or (service.planner if service else "")
        shadow = replace(
            settings,
            planner=settings.shadow_planner,
            planner_options=settings.shadow_planner_options,
        )
        return own, settings, shadow

    def _begin(self, comparison: _Comparison, tablet: Tablet) -> None:
        """Begin with the files of a tablet; also after a split or merge, which moves files."""
        if tablet.id in comparison.tablets:
            comparison.forget(tablet.id)
            for other in [other for other in comparison.tablets if _is_inside(other, tablet)]:
                comparison.forget(other)
        tablets = sum(len(other.tablets) for other in self._comparisons.values())
        if tablets >= COMPARED_TABLETS_MAX or not self._has_room(len(tablet.files)):
            comparison.partial = True
            return
        files = {path: file for path, file in tablet.files.items() if not file.open}
        added = set(_added_files(tablet))
        comparison.begin_files += len(files)
        comparison.tablets[tablet.id] = _SeenTablet(tablet.bounds, tablet.record, added, len(files))
        for side in comparison.sides:
            side.files[tablet.id] = dict(files)

    def _add(self, comparison: _Comparison, seen: _SeenTablet, tablet: Tablet) -> None:
        """Give both sides the files that users have added to a tablet."""
        added = _added_files(tablet)
        news = {path: file for path, file in added.items() if path not in seen.added}
        if news and not self._has_room(len(news)):
            comparison.partial = True
            return
        seen.record, seen.added, seen.files = tablet.record, set(added), len(tablet.files)
        if news:
            comparison.added_files += len(news)
            seen.due_s, seen.rounds = 0.0, 0
            for side in comparison.sides:
                side.files[tablet.id].update(news)

    def _has_room(self, files: int) -> bool:
        held = sum(comparison.held_files for comparison in self._comparisons.values())
        return held + 2 * files <= COMPARED_FILES_MAX

    def _plan_side(
        self, table: Table, side: _Side, seen: _SeenTablet, tablet: TabletId, now_s: float
    ) -> float:
        """Plan a tablet and end the jobs; return when to plan it again: 0 after jobs."""
        files = dict(side.files[tablet])
        current = Tablet(id=tablet, bounds=seen.bounds, files=files, record=seen.record)
        side.problems.pop(tablet, None)
        table = replace(table, settings=side.settings)
        try:
            plan = self._plan(current, table, now_s)
        except PluginError as error:
            side.problems[tablet] = str(error)
            return inf
        # Other jobs are planned again after the jobs that they wait for.
        jobs = [job for job in plan.jobs if not job.depends_on]
        for job in jobs:
            inputs = [files[path] for path in job.inputs]
            side.end(job, self._outputs(job, inputs, table, plan.correction, now_s))
        if jobs:
            return 0.0
        return inf if plan.due_at_s is None else max(plan.due_at_s, now_s + 1.0)

    def _outputs(
        self,
        job: Job,
        inputs: Sequence[DataFile],
        table: Table,
        correction: api.Correction,
        now_s: float,
    ) -> list[DataFile]:
        """Return the files that a job would write."""
        if job.action == JobAction.DROP:
            return []
        if job.action == JobAction.MOVE:
            return [with_tags(file, job.output_tags) for file in inputs]
        parts = _parts(inputs, job, correction.written)
        tombstones = _tombstones(inputs, table.settings, now_s)
        whole = _merged(inputs, job, now_s)
        return [
            replace(
                whole,
                path=f"shadow-{next(self._numbers)}",
                size_bytes=max(1, round(part.size_bytes)),
                rows=max(1, round(part.rows)),
                key_min=part.key_min,
                key_max=part.key_max,
                time_min_s=part.from_s,
                time_max_s=part.to_s,
                tombstones=tombstones // len(parts),
                tombstones_since_s=whole.tombstones_since_s if tombstones else None,
                clean=bool(table.key) and not tombstones,
            )
            for part in parts
        ]


def _planners(comparison: _Comparison) -> tuple[str, TableSettings, TableSettings]:
    return comparison.first.planner, comparison.first.settings, comparison.shadow.settings


def _added_files(tablet: Tablet) -> dict[str, DataFile]:
    """Return the files of a tablet that users added and that are complete."""
    files = tablet.files.items()
    return {path: file for path, file in files if file.job is None and not file.open}


def _is_inside(other: TabletId, tablet: Tablet) -> bool:
    """Return whether another tablet has become part of a tablet."""
    bounds = tablet.bounds
    if bounds.partition is not None or other.end >= tablet.id.end:
        return False
    return bounds.start is None or bounds.start < other.end


# ------------------------------------------------------------------------------- Outputs of jobs


@dataclass(frozen=True, slots=True)
class _Part:
    """One output: its share of the rows."""

    size_bytes: float
    rows: float
    key_min: bytes | None = None
    key_max: bytes | None = None
    from_s: float | None = None
    to_s: float | None = None


def _tombstones(inputs: Sequence[DataFile], settings: TableSettings, now_s: float) -> int:
    """Return the tombstones that a job keeps: all, or none if every one is old enough."""
    newest_s = max((file.added_at_s for file in inputs if file.tombstones), default=-inf)
    if newest_s < now_s - settings.tombstone_retention_s:
        return 0
    return sum(file.tombstones for file in inputs)


def _merged(inputs: Sequence[DataFile], job: Job, now_s: float) -> DataFile:
    """Return the first input with what all outputs of a job have in common."""
    versions_min = [file.version_min for file in inputs if file.version_min is not None]
    versions_max = [file.version_max for file in inputs if file.version_max is not None]
    return replace(
        inputs[0],
        version_min=min(versions_min, default=None),
        version_max=max(versions_max, default=None),
        tombstones_since_s=earliest_s(*(file.tombstones_since_s for file in inputs)),
        live_bytes=None,
        added_at_s=now_s,
        tags=job.output_tags,
        job=job.id,
        request=None,
        measured_at_s=None,
        measured_version=None,
    )


def _parts(inputs: Sequence[DataFile], job: Job, written: float) -> list[_Part]:
    """Return the outputs of a rewrite.

    Args:
        inputs: Its inputs.
        job: The job.
        written: Bytes written per byte read, of files whose live bytes are not counted.
    """
    live = [
        file.size_bytes * written if file.live_bytes is None else float(file.live_bytes)
        for file in inputs
    ]
    lows = [file.key_min for file in inputs if file.key_min is not None]
    highs = [file.key_max for file in inputs if file.key_max is not None]
    if len(lows) == len(highs) == len(inputs):
        rows = sum(file.rows for file in inputs) * sum(live) / max(1, total_bytes(inputs))
        return _keyed_parts(job, (min(lows), max(highs)), sum(live), rows)
    timed = [
        (file.time_min_s or 0.0, file.time_max_s or 0.0, size, float(file.rows))
        for file, size in zip(inputs, live, strict=True)
    ]
    known = all(file.time_min_s is not None for file in inputs)
    return [
        _Part(size, rows, None, None, from_s if known else None, to_s if known else None)
        for from_s, to_s, size, rows in timed_outputs(timed, job)
    ]


def _keyed_parts(
    job: Job, span: tuple[bytes, bytes], size_bytes: float, rows: float
) -> list[_Part]:
    """Return the outputs of a job with keys, of equal sizes, cut where the job says."""
    low, high = span
    cuts = [cut for cut in job.cuts if low <= cut < high]
    starts = [low, *(cut + b"\x00" for cut in cuts)]
    number = len(starts)
    return [
        _Part(size_bytes / number, rows / number, start, end)
        for start, end in zip(starts, [*cuts, high], strict=True)
    ]


# ---- Rows spread evenly over time; also used by simulations


CUT_STEP_S = 0.001
"""Distance of the last row before a cut from the cut."""
TimedPart = tuple[float, float, float, float]
"""First time, last time, bytes and rows of the live part of a file, or of an output."""


def timed_outputs(alive: Sequence[TimedPart], job: Job) -> Iterator[TimedPart]:
    """Yield the outputs of a job on a table without a key."""
    from_s, to_s = min(part[0] for part in alive), max(part[1] for part in alive)
    if not job.cuts_at_s:
        number = max(1, job.outputs_expected)
        size, rows = sum(part[2] for part in alive), sum(part[3] for part in alive)
        yield from [(from_s, to_s, size / number, rows / number)] * number
        return
    for begin_s, end_s in pairwise([-inf, *job.cuts_at_s, inf]):
        parts = [part for whole in alive if (part := _between(whole, begin_s, end_s)) is not None]
        if parts:
            yield from _divided(parts, job.output_rows_max)


def _between(part: TimedPart, begin_s: float, end_s: float) -> TimedPart | None:
    """Return the subset of a part from `begin_s` to before `end_s`; None if it is empty."""
    from_s, to_s, size, rows = part
    if to_s <= from_s:
        return part if begin_s <= from_s < end_s else None
    low_s, high_s = max(from_s, begin_s), min(to_s, end_s)
    if high_s <= low_s:
        return None
    share = (high_s - low_s) / (to_s - from_s)
    # A row with exactly the time of a cut belongs to the output that begins there.
    last_s = high_s if to_s < end_s else max(low_s, high_s - CUT_STEP_S)
    return low_s, last_s, size * share, rows * share


def _divided(parts: Sequence[TimedPart], rows_max: int) -> Iterable[TimedPart]:
    """Yield one output, or several outputs with equal numbers of rows if there is a limit."""
    size, rows = sum(part[2] for part in parts), sum(part[3] for part in parts)
    number = max(1, -(-int(rows) // rows_max)) if rows_max else 1
    from_s, to_s = min(part[0] for part in parts), max(part[1] for part in parts)
    yield from [(from_s, to_s, size / number, rows / number)] * number
