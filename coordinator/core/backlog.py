"""The backlog: bytes that are still to be rewritten, less what running attempts have done.

    a tablet is planned → its tracker measures the backlog without running attempts, and once per
    running attempt as if that attempt were done → the core stores these numbers → a reader of a
    tablet with running attempts asks the tracker again, with the progress of each attempt

The cost of a read therefore grows with the number of running attempts, and files are examined only
when they change. Only tablets with running attempts keep their tracker. A tablet without a backlog
is not stored. Bytes are integers, so sums are exact.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import islice
from typing import Final

from common.model.file import DataFile
from common.model.job import AttemptWork, Job, TabletBacklog
from common.model.table import TableSettings
from common.model.tablet import Tablet, TabletId
from common.spi.controller import (
    LEVEL_TAG,
    BacklogTracker,
    PartialOutput,
    TrackerPlugin,
    WorkUnderWay,
)
from common.units import whole_number
from neve.api.planning import (
    RECORDED_TABLETS_MAX,
    Backlog,
    BacklogPoint,
    OwedTablet,
    TabletBacklogHistory,
)

PLANNED_JOBS = "planned jobs"
"""Measure of a planner without a tracker: the inputs of its planned and running jobs."""
FIXED = "fixed"
"""Measure of a planner without a tracker if the operator has set a fixed backlog."""
TABLET_BYTES_MAX: Final = 1 << 60
"""A tracker that reports more for one tablet has failed."""
PROBLEM_MAX: Final = 300
"""Length to which the message of a failed tracker is cut, in characters."""


# --------------------------------------------------------------------------------- Measuring


def measured(
    tablet: Tablet,
    settings: TableSettings,
    tracker: tuple[str, TrackerPlugin] | None,
    options: Mapping[str, object],
    *,
    jobs: Sequence[Job],
    now_s: float,
    untracked_bytes: int = 0,
) -> TabletBacklog:
    """Return the backlog of a tablet.

    Args:
        tablet: The version that was planned.
        settings: The settings of its table.
        tracker: Name and plug-in of the planner's tracker; None if the planner has none.
        options: Options of the planner; the tracker gets those that it supports.
        jobs: Jobs of the plan.
        now_s: The current time.
        untracked_bytes: Backlog to report without a tracker; 0 means the inputs of the jobs.
    """
    group = _group_of(tablet, jobs)
    if tracker is None:
        return _untracked(tablet, jobs, group, untracked_bytes)
    name, plugin = tracker
    try:
        own_options = {
            name: value for name, value in options.items() if name in plugin.option_names
        }
        made = plugin.tracker(settings, own_options)
        for file in tablet.files.values():
            if not file.open:
                made.add(file)
        inputs = {
            attempt: [tablet.files[path] for path in entry.inputs if path in tablet.files]
            for attempt, entry in tablet.running.items()
            if entry.inputs
        }
        tracked = Tracked(made, inputs, now_s)
        size_bytes = tracked.left_bytes({})
        return TabletBacklog(
            strategy=name,
            size_bytes=size_bytes,
            falls={at: max(0, size_bytes - tracked.left_after(at)) for at in inputs},
            group=group,
            tracked=tracked if inputs else None,
        )
    except Exception as error:  # A faulty plug-in must not stop planning or corrupt a sum.
        problem = f"tracker {name}: {type(error).__name__}: {error}"[:PROBLEM_MAX]
        return _untracked(tablet, jobs, group, untracked_bytes, problem)


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tracker with the files of a tablet, and the inputs of its running attempts."""

    tracker: BacklogTracker
    inputs: Mapping[str, Sequence[DataFile]]
    """Attempt → its inputs."""
    now_s: float
    """The store's time of the measurement."""

    def left_bytes(self, done: Mapping[str, AttemptWork]) -> int:
        """Return the backlog after attempts have done some work; see `TrackedWork`."""
        read: dict[str, int] = {}
        outputs: list[PartialOutput] = []
        for attempt, work in done.items():
            files = self.inputs.get(attempt, ())
            read.update({file.path: int(file.size_bytes * work.read_share) for file in files})
            if work.written_bytes and files:
                outputs.append(_partial_output(files, work))
        under_way = WorkUnderWay(read_bytes=read, outputs=tuple(outputs), now_s=self.now_s)
        return _checked(round(self.tracker.backlog_bytes(under_way)))

    def left_after(self, attempt: str) -> int:
        """Return the backlog after an attempt whose output is as large as its inputs."""
        written_bytes = sum(file.size_bytes for file in self.inputs[attempt])
        return self.left_bytes({attempt: AttemptWork(read_share=1.0, written_bytes=written_bytes)})


def _partial_output(files: Sequence[DataFile], work: AttemptWork) -> PartialOutput:
    """Return what an attempt has written, as one file; without its job, its level is estimated."""
    levels = [whole_number(dict(file.tags).get(LEVEL_TAG, "")) or 0 for file in files]
    of_job = whole_number(dict(work.output_tags).get(LEVEL_TAG, ""))
    return PartialOutput(
        size_bytes=work.written_bytes,
        time_max_s=max((file.time_max_s or 0.0 for file in files), default=0.0),
        level=max(levels) if of_job is None else of_job,
    )


def _checked(size_bytes: int) -> int:
    """Return the measurement of a tracker, at least 0.

    Raises:
        ValueError: The measurement exceeds `TABLET_BYTES_MAX`.
    """
    if size_bytes > TABLET_BYTES_MAX:
        raise ValueError(f"{float(size_bytes):.3g} bytes, expected at most {TABLET_BYTES_MAX}")
    return max(0, size_bytes)


def _group_of(tablet: Tablet, jobs: Sequence[Job]) -> str:
    groups = [job.group for job in jobs]
    groups += [entry.group for _, entry in sorted(tablet.running.items())]
    return next(iter(groups), "")


def _untracked(
    tablet: Tablet, jobs: Iterable[Job], group: str, untracked_bytes: int, problem: str = ""
) -> TabletBacklog:
    if untracked_bytes:
        return TabletBacklog(
            strategy=FIXED, size_bytes=untracked_bytes, problem=problem, group=group
        )
    falls = {
        attempt: sum(_sizes(tablet, entry.inputs).values())
        for attempt, entry in tablet.running.items()
        if entry.inputs
    }
    wanted = sum(job.input_bytes for job in jobs if not job.depends_on)
    return TabletBacklog(
        strategy=PLANNED_JOBS,
        size_bytes=wanted + sum(falls.values()),
        falls=falls,
        problem=problem,
        group=group,
    )


def _sizes(tablet: Tablet, paths: Iterable[str]) -> dict[str, int]:
    files: dict[str, DataFile | None] = {path: tablet.files.get(path) for path in paths}
    return {path: file.size_bytes for path, file in files.items() if file is not None}


# ------------------------------------------------------------------------------ Storing and reading


Progress = tuple[TabletId, str, AttemptWork]
"""Tablet and id of a running attempt, and its work so far."""


@dataclass(slots=True)
class _OfTable:
    """The tablets of a table that have a backlog."""

    tablets: dict[TabletId, TabletBacklog] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    """Group → bytes; groups without bytes are removed."""
    failed: dict[TabletId, str] = field(default_factory=dict)
    """Tablet → why its tracker failed."""

    def put(self, tablet: TabletId, backlog: TabletBacklog) -> None:
        self.tablets[tablet] = backlog
        if backlog.size_bytes:
            self.groups[backlog.group] += backlog.size_bytes
        if backlog.problem:
            self.failed[tablet] = backlog.problem

    def discard(self, tablet: TabletId) -> None:
        before = self.tablets.pop(tablet, None)
        self.failed.pop(tablet, None)
        if before is not None and before.size_bytes:
            self.groups[before.group] -= before.size_bytes
            if not self.groups[before.group]:
                del self.groups[before.group]


class Backlogs:
    """The backlogs of all tablets that have one.

    Invariant: the sums of a table, by group, equal the sums over its tablets.
    """

    def __init__(self) -> None:
        self._tables: dict[str, _OfTable] = {}

    def put(self, tablet: TabletId, backlog: TabletBacklog | None) -> None:
        """Store the backlog of a tablet.

        None, or an empty backlog without running attempts, removes the tablet.
        """
        self.discard(tablet)
        if backlog is not None and (backlog.size_bytes or backlog.falls):
            self._tables.setdefault(tablet.table, _OfTable()).put(tablet, backlog)

    def settle(self, tablet: TabletId, attempt: str, *, committed: bool) -> None:
        """Remove an ended attempt; if it committed, reduce the backlog by its work.

        The tablet is replanned and measured again some milliseconds later. Without this step its
        backlog would rise until then.
        """
        of_table = self._tables.get(tablet.table)
        backlog = None if of_table is None else of_table.tablets.get(tablet)
        if backlog is not None and attempt in backlog.falls:
            falls = {other: fall for other, fall in backlog.falls.items() if other != attempt}
            settled = replace(backlog, falls=falls)
            if committed:  # The tracker still has the inputs.
                left_bytes = max(0, backlog.size_bytes - backlog.falls[attempt])
                settled = replace(settled, size_bytes=left_bytes, tracked=None)
            self.put(tablet, settled)

    def discard(self, tablet: TabletId) -> None:
        """Forget a tablet."""
        of_table = self._tables.get(tablet.table)
        if of_table is not None:
            of_table.discard(tablet)
            if not of_table.tablets:
                del self._tables[tablet.table]

    def forget_table(self, table: str) -> None:
        """Forget all tablets of a table."""
        self._tables.pop(table, None)

    def top(
        self,
        name_of: Callable[[str], str],
        progress: Iterable[Progress],
        count: int,
    ) -> tuple[Backlog, ...]:
        """Return the backlogs of tables, the largest first.

        Args:
            name_of: Maps the id of a table to its name.
            progress: Progress of the running attempts, from `work_done`.
            count: Maximum number of entries; the last one sums up all further tables.
        """
        fallen: dict[str, Counter[str]] = {}
        for tablet, fall in self._falls(progress).items():
            backlog = self._tables[tablet.table].tablets[tablet]
            fallen.setdefault(tablet.table, Counter())[backlog.group] += round(fall)
        lines = sorted(
            (
                _line(name_of(table), of_table, fallen.get(table, Counter()))
                for table, of_table in self._tables.items()
            ),
            key=lambda line: (-line.size_bytes, line.table),
        )
        if len(lines) <= count:
            return tuple(lines)
        rest = lines[count - 1 :]
        others = Backlog(
            table="",
            strategy="",
            size_bytes=sum(line.size_bytes for line in rest),
            tablets=sum(line.tablets for line in rest),
            tables=len(rest),
            groups=dict(sum((Counter(line.groups) for line in rest), Counter[str]())),
        )
        return (*lines[: count - 1], others)

    def sums(self, progress: Iterable[Progress]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the bytes left of each table, by its id, and of each group.

        Args:
            progress: Progress of the running attempts, from `work_done`.
        """
        tables = {table: sum(own.groups.values()) for table, own in self._tables.items()}
        groups = Counter[str]()
        for own in self._tables.values():
            for group, size_bytes in own.groups.items():
                groups[group] += size_bytes
        for tablet, fall in self._falls(progress).items():
            fallen = round(fall)
            tables[tablet.table] = max(0, tables[tablet.table] - fallen)
            groups[self._tables[tablet.table].tablets[tablet].group] -= fallen
        return tables, {group: max(0, size_bytes) for group, size_bytes in groups.items()}

    def of_table(
        self, table: str, progress: Iterable[Progress]
    ) -> tuple[Mapping[TabletId, TabletBacklog], Mapping[TabletId, float]]:
        """Return the tablets of a table that have a backlog, and the bytes done so far of each.

        The results are copies, so that `largest_tablets` can read them while tablets change.
        Copying a dictionary takes milliseconds even with a million entries.

        Args:
            table: The id of the table.
            progress: Progress of the running attempts, from `work_done`.
        """
        own = self._tables.get(table)
        falls = self._falls(key for key in progress if key[0].table == table)
        return ({} if own is None else own.tablets.copy()), falls

    def largest(self, table: str, seen_max: int, count: int) -> list[TabletId]:
        """Return tablets of a table with large backlogs, the progress of attempts left aside.

        Args:
            table: The id of the table.
            seen_max: Tablets that are compared; beyond it, the result is not exact.
            count: Maximum number of tablets.
        """
        own = self._tables.get(table)
        if own is None:
            return []
        sizes = own.tablets
        return nlargest(count, islice(sizes, seen_max), key=lambda id_: sizes[id_].size_bytes)

    def sizes(
        self, tablets: Iterable[TabletId], progress: Iterable[Progress]
    ) -> dict[TabletId, int]:
        """Return the bytes left of each given tablet; 0 if it has no backlog.

        Args:
            tablets: Any tablets.
            progress: Progress of the running attempts, from `work_done`.
        """
        falls, sizes = self._falls(progress), dict[TabletId, int]()
        for tablet in tablets:
            of_table = self._tables.get(tablet.table)
            backlog = None if of_table is None else of_table.tablets.get(tablet)
            size_bytes = 0 if backlog is None else backlog.size_bytes
            sizes[tablet] = max(0, size_bytes - round(falls.get(tablet, 0.0)))
        return sizes

    def _falls(self, progress: Iterable[Progress]) -> dict[TabletId, float]:
        """Return by how much running attempts have lowered each backlog so far.

        Mode `seed` counts outputs that are being written, so attempts can also raise a backlog.
        """
        done: dict[TabletId, dict[str, AttemptWork]] = {}
        for tablet, attempt, work in progress:
            done.setdefault(tablet, {})[attempt] = work
        falls: dict[TabletId, float] = {}
        for tablet, works in done.items():
            of_table = self._tables.get(tablet.table)
            backlog = None if of_table is None else of_table.tablets.get(tablet)
            if backlog is not None:
                counted = {name: work for name, work in works.items() if name in backlog.falls}
                falls[tablet] = _fall(backlog, counted)
        return falls

    def check(self) -> None:
        """Assert the invariants; for tests."""
        for of_table in self._tables.values():
            assert of_table.tablets
            sums: Counter[str] = Counter()
            for backlog in of_table.tablets.values():
                sums[backlog.group] += backlog.size_bytes
            assert of_table.groups == +sums
            assert of_table.failed == {
                id_: backlog.problem for id_, backlog in of_table.tablets.items() if backlog.problem
            }


def _fall(backlog: TabletBacklog, done: Mapping[str, AttemptWork]) -> float:
    if backlog.tracked is not None:
        try:
            return backlog.size_bytes - backlog.tracked.left_bytes(done)
        except Exception:  # A faulty plug-in must not stop a turn; its plan has measured before.
            return 0.0
    return sum(backlog.falls[attempt] * work.read_share for attempt, work in done.items())


def _line(name: str, of_table: _OfTable, fallen: Mapping[str, int]) -> Backlog:
    groups = {group: max(0, size - fallen.get(group, 0)) for group, size in of_table.groups.items()}
    return Backlog(
        table=name,
        strategy=next(reversed(of_table.tablets.values())).strategy,
        size_bytes=sum(groups.values()),
        tablets=len(of_table.tablets),
        problem=next(iter(of_table.failed.values()), ""),
        groups=groups,
    )


def largest_tablets(
    tablets: Mapping[TabletId, TabletBacklog], done: Mapping[TabletId, float], count: int
) -> list[OwedTablet]:
    """Return the tablets with the largest backlogs, largest first; ties keep their order.

    Args:
        tablets: Tablets of one table, from `Backlogs.of_table`.
        done: Bytes done so far, by tablet.
        count: Maximum number of tablets.
    """

    def left_bytes(tablet: TabletId) -> int:
        return max(0, tablets[tablet].size_bytes - round(done.get(tablet, 0.0)))

    return [
        OwedTablet(
            tablet=tablet.text,
            strategy=tablets[tablet].strategy,
            size_bytes=left_bytes(tablet),
            group=tablets[tablet].group,
            problem=tablets[tablet].problem,
        )
        for tablet in nlargest(count, tablets, key=left_bytes)
    ]


# --------------------------------------------------------------------------- History of tablets


HISTORY_EVERY_S: Final = 10.0
HISTORY_COUNT_MAX: Final = 360
"""Points of one hour."""
RECORDED_S: Final = 3600.0
"""Time after which a tablet that no caller has asked for again is not recorded any more."""


@dataclass(slots=True)
class _Recorded:
    """The points of a tablet, and when a caller last asked for it."""

    asked_s: float
    points: deque[BacklogPoint] = field(default_factory=lambda: deque(maxlen=HISTORY_COUNT_MAX))


class TabletHistories:
    """Recent backlogs of tablets that callers have asked for.

    Invariant: at most `RECORDED_TABLETS_MAX` tablets are recorded, in the order in which callers
    last asked for them.
    """

    def __init__(self) -> None:
        self._recorded: dict[TabletId, _Recorded] = {}

    def ask(self, sizes: Mapping[TabletId, int], now_s: float) -> None:
        """Record tablets from now on.

        Args:
            sizes: Bytes left of each tablet; the first point of those that were not recorded.
            now_s: The current time.
        """
        for tablet, size_bytes in sizes.items():
            recorded = self._recorded.pop(tablet, None)
            if recorded is None:
                recorded = _Recorded(now_s)
                recorded.points.append(BacklogPoint(at_s=now_s, size_bytes=size_bytes))
            recorded.asked_s = now_s
            self._recorded[tablet] = recorded
            if len(self._recorded) > RECORDED_TABLETS_MAX:
                del self._recorded[next(iter(self._recorded))]

    def tablets(self, now_s: float) -> list[TabletId]:
        """Forget the tablets that no caller has asked for lately, and return the others."""
        self._recorded = {
            tablet: recorded
            for tablet, recorded in self._recorded.items()
            if now_s - recorded.asked_s < RECORDED_S
        }
        return list(self._recorded)

    def note(self, sizes: Mapping[TabletId, int], now_s: float) -> None:
        """Add a point to each tablet that is recorded.

        Args:
            sizes: Bytes left of tablets, from `Backlogs.sizes`.
            now_s: The current time.
        """
        for tablet in sizes.keys() & self._recorded.keys():
            point = BacklogPoint(at_s=now_s, size_bytes=sizes[tablet])
            self._recorded[tablet].points.append(point)

    def of_table(self, table: str) -> list[TabletBacklogHistory]:
        """Return the history of each recorded tablet of a table, the largest backlog first."""
        histories = [
            TabletBacklogHistory(tablet=tablet.text, history=tuple(recorded.points))
            for tablet, recorded in self._recorded.items()
            if tablet.table == table
        ]
        return sorted(histories, key=lambda recorded: -recorded.history[-1].size_bytes)
