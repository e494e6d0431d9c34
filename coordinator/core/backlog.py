"""How much is still to be rewritten: measured with each plan, told with what runs taken off.

    a tablet is planned → its tracker is asked once, as if nothing ran, and once for each attempt
    under way, as if that were done → the core keeps these numbers → when somebody asks, each
    attempt's part falls with its progress

So a read costs as much as attempts are under way, and files are looked at only when they change.
A tablet at rest owes nothing and is not kept. Bytes are whole, so that sums are exact.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from common.model.file import DataFile
from common.model.job import Job, TabletBacklog
from common.model.table import TableSettings
from common.model.tablet import Tablet, TabletId
from common.spi.tracker import TrackerPlugin, WorkUnderWay
from common.wire import BacklogSample, TableBacklog

PLANNED_JOBS = "planned jobs"
"""What is measured where a planner has no tracker: inputs of the jobs that it wants and has."""


# ----------------------------------------------------------------------------- Measured with a plan


def measured(
    tablet: Tablet,
    settings: TableSettings,
    tracker: tuple[str, TrackerPlugin] | None,
    options: Mapping[str, object],
    *,
    jobs: Iterable[Job],
    now_s: float,
) -> TabletBacklog:
    """Return the backlog of a tablet.

    Args:
        tablet: As it was read with the plan.
        settings: Of its table.
        tracker: The one of its planner, with its name; None: the planner has none.
        options: The planner's; a tracker gets those that it knows.
        jobs: That the plan wants.
        now_s: The time now.
    """
    if tracker is None:
        return _planned(tablet, jobs)
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
        return TabletBacklog(strategy=name, size_bytes=max(0, round(whole)), falls=falls)
    except Exception as error:  # A plug-in must not stop the planning, or spoil a sum.
        problem = f"tracker {name}: {type(error).__name__}: {error}"
        return _planned(tablet, jobs, problem)


def _planned(tablet: Tablet, jobs: Iterable[Job], problem: str = "") -> TabletBacklog:
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
    )


def _sizes(tablet: Tablet, paths: Iterable[str]) -> dict[str, int]:
    found: dict[str, DataFile | None] = {path: tablet.files.get(path) for path in paths}
    return {path: file.size_bytes for path, file in found.items() if file is not None}


# ----------------------------------------------------------------------------------- Kept and told


@dataclass(slots=True)
class _OfTable:
    """The tablets of a table that owe anything."""

    tablets: dict[TabletId, TabletBacklog] = field(default_factory=dict)
    size_bytes: int = 0


class Backlogs:
    """The backlogs of all tablets that are not at rest.

    Always true: a table's sum is that of its tablets.
    """

    def __init__(self) -> None:
        self._tables: dict[str, _OfTable] = {}

    def put(self, tablet: TabletId, backlog: TabletBacklog | None) -> None:
        """Note the backlog of a tablet; None, or nothing owed and nothing under way: forget it."""
        self.discard(tablet)
        if backlog is not None and (backlog.size_bytes or backlog.falls):
            own = self._tables.setdefault(tablet.table, _OfTable())
            own.tablets[tablet] = backlog
            own.size_bytes += backlog.size_bytes

    def discard(self, tablet: TabletId) -> None:
        """Forget a tablet."""
        own = self._tables.get(tablet.table)
        before = None if own is None else own.tablets.pop(tablet, None)
        if own is not None and before is not None:
            own.size_bytes -= before.size_bytes
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
    ) -> tuple[TableBacklog, ...]:
        """Return the backlogs of tables, the largest first.

        Args:
            name_of: Id of a table → its name.
            progress: Tablet, attempt and done share (0 to 1) of what is under way.
            count: At most so many; the last one stands for all further tables.
        """
        fallen: dict[str, float] = {}
        for tablet, attempt, share in progress:
            own = self._tables.get(tablet.table)
            known = None if own is None else own.tablets.get(tablet)
            if known is not None:
                fall = known.falls.get(attempt, 0) * min(max(share, 0.0), 1.0)
                fallen[tablet.table] = fallen.get(tablet.table, 0.0) + fall
        lines = sorted(
            (
                _line(name_of(table), own, fallen.get(table, 0.0))
                for table, own in self._tables.items()
            ),
            key=lambda line: (-line.size_bytes, line.table),
        )
        if len(lines) <= count:
            return tuple(lines)
        rest = lines[count - 1 :]
        others = TableBacklog(
            table="",
            strategy="",
            size_bytes=sum(line.size_bytes for line in rest),
            tablets=sum(line.tablets for line in rest),
            tables=len(rest),
        )
        return (*lines[: count - 1], others)

    def check(self) -> None:
        """Assert what is always true; for tests."""
        for own in self._tables.values():
            assert own.tablets
            assert own.size_bytes == sum(each.size_bytes for each in own.tablets.values())


def _line(name: str, own: _OfTable, fallen: float) -> TableBacklog:
    last = next(reversed(own.tablets.values()))
    return TableBacklog(
        table=name,
        strategy=last.strategy,
        size_bytes=max(0, own.size_bytes - round(fallen)),
        tablets=len(own.tablets),
        problem=last.problem,
    )


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

    def note(self, backlogs: Sequence[TableBacklog], now_s: float) -> None:
        """Add a sample.

        Args:
            backlogs: Of all tables, the largest first.
            now_s: The time now.
        """
        named = [each for each in backlogs if each.table][:HISTORY_TABLES_MAX]
        self._samples.append(
            BacklogSample(
                at_s=now_s,
                size_bytes=sum(each.size_bytes for each in backlogs),
                tables={each.table: each.size_bytes for each in named},
            )
        )

    def samples(self) -> list[BacklogSample]:
        """Return what is remembered, oldest first."""
        return list(self._samples)
