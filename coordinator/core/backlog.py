"""How much is still to be rewritten: measured with each plan, told with what runs taken off.

    a tablet is planned → its tracker is asked once, as if nothing ran, and once for each attempt
    under way, as if that were done → the core keeps these numbers → when somebody asks, each
    attempt's part falls with its progress

So a read costs as much as attempts are under way, and files are looked at only when they change.
A tablet at rest owes nothing and is not kept. Bytes are whole, so that sums are exact.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Final

from common.model.file import DataFile
from common.model.job import Job, TabletBacklog
from common.model.table import TableSettings
from common.model.tablet import Tablet, TabletId
from common.spi.tracker import TrackerPlugin, WorkUnderWay
from common.wire import BacklogSample
from neve import api

PLANNED_JOBS = "planned jobs"
"""What is measured where a planner has no tracker: inputs of the jobs that it wants and has."""
FIXED = "fixed"
"""What stands where a planner has no tracker and the operator has set a number."""
TABLET_BYTES_MAX: Final = 1 << 60
"""A tracker that tells more of one tablet has failed."""
PROBLEM_MAX: Final = 300
"""Characters that are kept of why a tracker failed."""


# ----------------------------------------------------------------------------- Measured with a plan


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
        tablet: As it was read with the plan.
        settings: Of its table.
        tracker: The one of its planner, with its name; None: the planner has none.
        options: The planner's; a tracker gets those that it knows.
        jobs: That the plan wants.
        now_s: The time now.
        untracked_bytes: Backlog where no tracker measures it; 0: inputs of the jobs.
    """
    group = _group_of(tablet, jobs)
    if tracker is None:
        return _untracked(tablet, jobs, group, untracked_bytes)
    name, plugin = tracker
    try:
        known = {each: value for each, value in options.items() if each in plugin.option_names}
        made = plugin.tracker(settings, known)
        for file in tablet.files.values():
            if not file.open:
                made.add(file)
        whole = made.backlog_bytes(WorkUnderWay(now_s=now_s))
        left = {
            attempt: made.backlog_bytes(
                WorkUnderWay(read_bytes=_sizes(tablet, entry.inputs), now_s=now_s)
            )
            for attempt, entry in tablet.running.items()
            if entry.inputs
        }
        falls = {attempt: max(0, round(whole - rest)) for attempt, rest in left.items()}
        size_bytes = _checked(round(whole))
        return TabletBacklog(strategy=name, size_bytes=size_bytes, falls=falls, group=group)
    except Exception as error:  # A plug-in must not stop the planning, or spoil a sum.
        problem = f"tracker {name}: {type(error).__name__}: {error}"[:PROBLEM_MAX]
        return _untracked(tablet, jobs, group, untracked_bytes, problem)


def _checked(size_bytes: int) -> int:
    """Return what a tracker has told, at least 0.

    Raises:
        ValueError: No tablet can owe so much.
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
    found: dict[str, DataFile | None] = {path: tablet.files.get(path) for path in paths}
    return {path: file.size_bytes for path, file in found.items() if file is not None}


# ----------------------------------------------------------------------------------- Kept and told


@dataclass(slots=True)
class _OfTable:
    """The tablets of a table that owe anything."""

    tablets: dict[TabletId, TabletBacklog] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    """Group → bytes; none is at 0."""
    failed: dict[TabletId, str] = field(default_factory=dict)
    """Tablet → why its tracker did not measure it."""

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
    """The backlogs of all tablets that are not at rest.

    Always true: a table's sums, by group, are those of its tablets.
    """

    def __init__(self) -> None:
        self._tables: dict[str, _OfTable] = {}

    def put(self, tablet: TabletId, backlog: TabletBacklog | None) -> None:
        """Note the backlog of a tablet; None, or nothing owed and nothing under way: forget it."""
        self.discard(tablet)
        if backlog is not None and (backlog.size_bytes or backlog.falls):
            self._tables.setdefault(tablet.table, _OfTable()).put(tablet, backlog)

    def settle(self, tablet: TabletId, attempt: str, *, committed: bool) -> None:
        """Forget an attempt that is over; take off for good what it has done if it committed.

        The tablet is planned again, and measured anew, some milliseconds later. Without this its
        backlog would rise until then.
        """
        own = self._tables.get(tablet.table)
        known = None if own is None else own.tablets.get(tablet)
        if known is not None and attempt in known.falls:
            falls = {each: fall for each, fall in known.falls.items() if each != attempt}
            done_bytes = known.falls[attempt] if committed else 0
            left_bytes = max(0, known.size_bytes - done_bytes)
            self.put(tablet, replace(known, size_bytes=left_bytes, falls=falls))

    def discard(self, tablet: TabletId) -> None:
        """Forget a tablet."""
        own = self._tables.get(tablet.table)
        if own is not None:
            own.discard(tablet)
            if not own.tablets:
                del self._tables[tablet.table]

    def forget_table(self, table: str) -> None:
        """Forget all tablets of a table."""
        self._tables.pop(table, None)

    def told(
        self,
        name_of: Callable[[str], str],
        progress: Iterable[tuple[TabletId, str, float]],
        count: int,
    ) -> tuple[api.Backlog, ...]:
        """Return the backlogs of tables, the largest first.

        Args:
            name_of: Id of a table → its name.
            progress: What is under way, as `done_shares` tells it.
            count: At most so many; the last one stands for all further tables.
        """
        fallen: dict[str, Counter[str]] = {}
        for tablet, fall in self._falls(progress).items():
            own = self._tables[tablet.table].tablets[tablet]
            fallen.setdefault(tablet.table, Counter())[own.group] += round(fall)
        lines = sorted(
            (
                _line(name_of(table), own, fallen.get(table, Counter()))
                for table, own in self._tables.items()
            ),
            key=lambda line: (-line.size_bytes, line.table),
        )
        if len(lines) <= count:
            return tuple(lines)
        rest = lines[count - 1 :]
        others = api.Backlog(
            table="",
            strategy="",
            size_bytes=sum(line.size_bytes for line in rest),
            tablets=sum(line.tablets for line in rest),
            tables=len(rest),
            groups=dict(sum((Counter(line.groups) for line in rest), Counter[str]())),
        )
        return (*lines[: count - 1], others)

    def of_table(
        self, table: str, progress: Iterable[tuple[TabletId, str, float]]
    ) -> tuple[Mapping[TabletId, TabletBacklog], Mapping[TabletId, float]]:
        """Return the tablets of a table that owe anything, and the bytes of that done by now.

        Copies, so that `largest_tablets` may look at them while tablets change. Copying a
        dictionary takes milliseconds even if it has a million entries.

        Args:
            table: Its id.
            progress: What is under way, as `done_shares` tells it.
        """
        own = self._tables.get(table)
        falls = self._falls(each for each in progress if each[0].table == table)
        return ({} if own is None else own.tablets.copy()), falls

    def _falls(self, progress: Iterable[tuple[TabletId, str, float]]) -> dict[TabletId, float]:
        """Return how many bytes of tablets are done by now."""
        falls: dict[TabletId, float] = {}
        for tablet, attempt, share in progress:
            own = self._tables.get(tablet.table)
            known = None if own is None else own.tablets.get(tablet)
            if known is not None:
                fall = known.falls.get(attempt, 0) * min(max(share, 0.0), 1.0)
                falls[tablet] = falls.get(tablet, 0.0) + fall
        return falls

    def check(self) -> None:
        """Assert what is always true; for tests."""
        for own in self._tables.values():
            assert own.tablets
            sums: Counter[str] = Counter()
            for each in own.tablets.values():
                sums[each.group] += each.size_bytes
            assert own.groups == +sums
            assert own.failed == {
                id_: each.problem for id_, each in own.tablets.items() if each.problem
            }


def _line(name: str, own: _OfTable, fallen: Mapping[str, int]) -> api.Backlog:
    groups = {group: max(0, size - fallen.get(group, 0)) for group, size in own.groups.items()}
    return api.Backlog(
        table=name,
        strategy=next(reversed(own.tablets.values())).strategy,
        size_bytes=sum(groups.values()),
        tablets=len(own.tablets),
        problem=next(iter(own.failed.values()), ""),
        groups=groups,
    )


def largest_tablets(
    tablets: Mapping[TabletId, TabletBacklog], done: Mapping[TabletId, float], count: int
) -> list[api.OwedTablet]:
    """Return the tablets that owe most, the largest first; of equal ones the first.

    Args:
        tablets: Of one table, as `Backlogs.of_table` tells them.
        done: Bytes of them that are done by now.
        count: At most so many.
    """

    def left_bytes(tablet: TabletId) -> int:
        return max(0, tablets[tablet].size_bytes - round(done.get(tablet, 0.0)))

    return [
        api.OwedTablet(
            tablet=tablet.text,
            strategy=tablets[tablet].strategy,
            size_bytes=left_bytes(tablet),
            group=tablets[tablet].group,
            problem=tablets[tablet].problem,
        )
        for tablet in nlargest(count, tablets, key=left_bytes)
    ]


# ----------------------------------------------------------------------------------- Looked back at


HISTORY_EVERY_S: Final = 10.0
HISTORY_COUNT_MAX: Final = 360
"""An hour, from all of which a line can be drawn."""
HISTORY_TABLES_MAX: Final = 20
"""Tables of a sample that are kept by name."""


class BacklogHistory:
    """What was still to be rewritten lately. It ends with the coordinator's process."""

    def __init__(self) -> None:
        self._samples: deque[BacklogSample] = deque(maxlen=HISTORY_COUNT_MAX)

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for another sample."""
        return not self._samples or now_s - self._samples[-1].at_s >= HISTORY_EVERY_S

    def note(self, backlogs: Sequence[api.Backlog], now_s: float) -> None:
        """Add a sample.

        Args:
            backlogs: Of all tables, the largest first.
            now_s: The time now.
        """
        named = [backlog for backlog in backlogs if backlog.table][:HISTORY_TABLES_MAX]
        self._samples.append(
            BacklogSample(
                at_s=now_s,
                size_bytes=sum(backlog.size_bytes for backlog in backlogs),
                tables={backlog.table: backlog.size_bytes for backlog in named},
            )
        )

    def samples(self) -> list[BacklogSample]:
        """Return what is remembered, oldest first."""
        return list(self._samples)
