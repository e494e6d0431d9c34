"""The history of each tablet with reasons, to explain an incident afterwards.

`CoordinatorState.handle` passes every event and the resulting actions to a `Story`. `_ADDERS` has
the events that belong to a tablet, and converts each into an entry. An entry holds facts; the
gateway creates the sentences for users.

The story affects no decision and is not stored: a new coordinator starts a new one. The cost of
adding an event does not depend on the size of the history. Three bounds apply: entries per tablet,
tablets, and total bytes. Beyond the last two, the tablet without events for the longest time is
evicted as a whole. Consecutive equal events form one entry with a count.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from common.errors import redacted
from common.metadata.changes import WriteAnalysis
from common.model.outcome import AttemptEnd
from common.model.table import TableState
from common.model.tablet import Analysis, TabletId
from common.primitives import BoundedMap
from common.wire import StoryEntry, StoryKind, TabletStory
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.attempts import Attempt, AttemptState
from coordinator.core.cluster_state import ClusterState, LastPlan
from coordinator.core.retry import is_group_queue

# ----------------------------------------------------------------------------- Bounds of an entry

REASON_CHARS_MAX = 300
"""Maximum length of a reason."""
RAW_REASON_CHARS_MAX = 4096
"""Length to which a reason is cut before redaction, whose cost grows with the length."""
FILES_MAX = 8
"""Maximum number of paths in an entry."""
PATH_CHARS_MAX = 300
ENTRY_BYTES = 480
"""Memory of an entry without its reason and paths: ids, the time, the tuple itself."""
TABLET_BYTES = 560
"""Memory of a tablet's story without its entries."""
SHARED_ENTRIES_MAX = 16
"""Entries of a table or group, which are shared by all of its tablets."""
SHARED_STORIES_MAX = 10_000
UNREPORTED_MAX = 1_000
"""Commits whose outputs the compactor has still to report."""


def short_reason(text: str) -> str:
    """Return a reason without secrets, cut to its maximum length."""
    if len(text) > RAW_REASON_CHARS_MAX:
        # The last word may be part of a secret, which redaction would not recognise.
        text = text[:RAW_REASON_CHARS_MAX].rpartition(" ")[0]
    text = redacted(text)
    return text if len(text) <= REASON_CHARS_MAX else f"{text[: REASON_CHARS_MAX - 1]}…"


def short_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the first paths, each cut to its maximum length."""
    return tuple([path[:PATH_CHARS_MAX] for path in paths[:FILES_MAX]]) if paths else ()


_row: Callable[[tuple[object, ...]], StoryEntry] = partial(tuple.__new__, StoryEntry)
"""Creates an entry from all fields in order, several times faster than its constructor."""
_PLANNED, _ASSIGNED, _COMMITTED = StoryKind.PLANNED, StoryKind.ASSIGNED, StoryKind.COMMITTED


def entry_bytes(entry: StoryEntry) -> int:
    """Return the approximate memory of an entry."""
    size_bytes = ENTRY_BYTES + len(entry[3])
    if entry[10]:
        size_bytes += sum(map(sys.getsizeof, entry[10]))
    return size_bytes


def is_repetition(entry: StoryEntry, last: StoryEntry) -> bool:
    """Return whether an entry repeats the previous one.

    Plans are equal if their outcomes are equal. Otherwise the frequent plans of a tablet under
    constant writes would evict all other entries.
    """
    if entry[1] is not last[1] or entry[2] != last[2]:
        return False
    return entry[1] is _PLANNED or entry[3:10] == last[3:10]


# -------------------------------------------------------------------------------------- All stories


class _Entries:
    """The entries of one tablet, oldest first."""

    __slots__ = ("entries", "forgotten", "gap_until_s", "size_bytes")

    def __init__(self, gap_until_s: float | None = None) -> None:
        self.entries: list[StoryEntry] = []
        self.forgotten = 0
        self.size_bytes = TABLET_BYTES
        self.gap_until_s = gap_until_s

    def add(self, entry: StoryEntry, count_max: int) -> int:
        """Add an entry, evict the oldest one beyond `count_max`, and return the growth in bytes."""
        entries = self.entries
        grown_bytes = entry_bytes(entry)
        if entries and is_repetition(entry, last := entries[-1]):
            grown_bytes -= entry_bytes(last)
            entries[-1] = entry._replace(at_s=last.at_s, times=last.times + 1, last_s=entry.at_s)
        else:
            entries.append(entry)
            if len(entries) > count_max:
                grown_bytes -= entry_bytes(entries.pop(0))
                self.forgotten += 1
        self.size_bytes += grown_bytes
        return grown_bytes


class Stories:
    """The entries of all tablets, ordered by the time of the last event, oldest first.

    Invariant: no tablet has more than `entries_max` entries, there are at most `tablets_max`
    tablets, and together they take at most `bytes_max`, measured by `entry_bytes`.
    """

    def __init__(self, entries_max: int, tablets_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._tablets_max = tablets_max
        self._bytes_max = bytes_max
        # Keyed by (table, end), because a tuple lookup is several times faster than a TabletId.
        self._tablets: OrderedDict[tuple[str, bytes], _Entries] = OrderedDict()
        self._gap_until_s: float | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._tablets)

    def add(self, tablet: TabletId, entry: StoryEntry, *, begins: bool = True) -> None:
        """Add an entry to the story of a tablet.

        Args:
            tablet: The affected tablet.
            entry: The entry.
            begins: Whether the entry starts a story if the tablet has none.
        """
        key = (tablet.table, tablet.end)
        entries = self._tablets.get(key)
        if entries is not None:
            self._tablets.move_to_end(key)
        elif not begins:
            return
        else:
            entries = self._tablets[key] = _Entries(self._gap_until_s)
            self.size_bytes += TABLET_BYTES
        self.size_bytes += entries.add(entry, self._entries_max)
        while self.size_bytes > self._bytes_max or len(self._tablets) > self._tablets_max:
            self._forget_one()

    def complete(self, tablet: TabletId, attempt: str, outputs: Sequence[str]) -> None:
        """Add the outputs of a commit to its entry, if the entry still exists."""
        entries = self._tablets.get((tablet.table, tablet.end))
        if entries is None:
            return
        for at, entry in enumerate(entries.entries):
            if entry.attempt == attempt and entry.kind is StoryKind.COMMITTED:
                completed = entry._replace(files=short_paths(outputs), number=len(outputs))
                entries.entries[at] = completed
                grown_bytes = entry_bytes(completed) - entry_bytes(entry)
                entries.size_bytes += grown_bytes
                self.size_bytes += grown_bytes

    def entries(self, tablet: TabletId) -> Sequence[StoryEntry]:
        """Return the entries of a tablet, oldest first."""
        tablet_entries = self._tablets.get((tablet.table, tablet.end))
        return () if tablet_entries is None else tablet_entries.entries

    def forgotten(self, tablet: TabletId) -> tuple[int, float | None]:
        """Return the gap before the first entry of a tablet.

        Returns:
            The number of dropped entries, and the time up to which further entries may have been
            evicted; None if none were.
        """
        entries = self._tablets.get((tablet.table, tablet.end))
        return (
            (0, self._gap_until_s) if entries is None else (entries.forgotten, entries.gap_until_s)
        )

    def check(self) -> None:
        """Assert the invariants; for tests."""
        for entries in self._tablets.values():
            assert 0 < len(entries.entries) <= self._entries_max
            size_bytes = TABLET_BYTES + sum(map(entry_bytes, entries.entries))
            assert entries.size_bytes == size_bytes, (entries.size_bytes, size_bytes)
        assert self.size_bytes == sum(tablet.size_bytes for tablet in self._tablets.values())
        assert len(self._tablets) <= self._tablets_max
        assert self.size_bytes <= self._bytes_max

    def _forget_one(self) -> None:
        _, entries = self._tablets.popitem(last=False)
        self.size_bytes -= entries.size_bytes
        last = entries.entries[-1]
        self._gap_until_s = last.at_s if last.last_s is None else last.last_s


# --------------------------------------------------------------------------- The story of a cluster


class Story:
    """Converts events and actions into entries."""

    def __init__(self, cluster: ClusterState) -> None:
        """Create an empty story of a cluster, whose state is only read."""
        limits = cluster.limits
        self.cluster = cluster
        self.stories = Stories(
            limits.story_entries_max, limits.story_tablets_max, limits.story_bytes_max
        )
        self._tables: BoundedMap[str, _Entries] = BoundedMap(SHARED_STORIES_MAX)
        self._groups: BoundedMap[str, _Entries] = BoundedMap(SHARED_STORIES_MAX)
        self.unreported: BoundedMap[str, TabletId] = BoundedMap(UNREPORTED_MAX)
        """Attempts that the store shows as committed and whose report has not arrived."""

    def before(self, event: on.Event) -> Sequence[Attempt]:
        """Return the attempts that an event refers to, because its turn may end them."""
        of_event = _ABOUT.get(type(event))
        return () if of_event is None else of_event(self.cluster, event)

    def add(
        self, event: on.Event, before: Sequence[Attempt], actions: Sequence[Action], now_s: float
    ) -> None:
        """Add the entries of a turn.

        Args:
            event: The event of the turn.
            before: The result of `before`.
            actions: The actions of the turn.
            now_s: The time of the turn.
        """
        adder = _ADDERS.get(type(event))
        if adder is not None:
            adder(self, event, before, actions, now_s)
        for action in actions:
            if type(action) is do.Release:
                self._add_release(action, event, now_s)

    def add_step(self, event: on.StepAnswered, now_s: float) -> None:
        """Add a step of a request, split or merge."""
        entry = StoryEntry(
            at_s=now_s,
            kind=StoryKind.STEP_REFUSED if event.code else StoryKind.STEP,
            code=event.code,
            reason=short_reason(event.reason),
            request=event.of,
            step=event.step,
            number=event.chosen,
        )
        for tablet in event.tablets:
            self.stories.add(tablet, entry)

    def add_to_table(self, table: str, entry: StoryEntry) -> None:
        """Add an entry of a table, unless it repeats the last one."""
        _add_shared(self._tables, table, entry)

    def add_to_group(self, group: str, entry: StoryEntry) -> None:
        """Add an entry of a group, unless it repeats the last one."""
        _add_shared(self._groups, group, entry)

    def add_end(
        self, attempt: Attempt, kind: StoryKind, code: str, cause: str, now_s: float
    ) -> None:
        """Add the end of an attempt without a commit, and the resulting pause of its inputs."""
        pause = self.cluster.retry.last_pause(attempt.tablet, attempt.inputs)
        if pause is not None and not pause.holds(now_s):
            pause = None
        entry = StoryEntry(
            at_s=now_s,
            kind=kind,
            code=code,
            reason=short_reason(cause),
            job=attempt.job_id,
            attempt=attempt.id,
            compactor=attempt.compactor,
            request=attempt.request or "",
            until_s=None if pause is None else pause.until_s,
            quarantined=pause is not None and pause.until_s is None,
        )
        self.stories.add(attempt.tablet, entry)

    def of(self, tablet: TabletId, coordinator: str, now_s: float) -> TabletStory:
        """Return the story of a tablet, including the entries of its table and groups."""
        entries = self.stories.entries(tablet)
        shared = [*_shared(self._tables.get(tablet.table))]
        for group in dict.fromkeys(entry.group for entry in entries if entry.group):
            shared += _shared(self._groups.get(group))
        started_s = self.cluster.started_s
        forgotten, gap_until_s = self.stories.forgotten(tablet)
        return TabletStory(
            tablet=tablet.text,
            coordinator=coordinator,
            started_s=now_s if started_s is None else started_s,
            forgotten=forgotten,
            gap_until_s=gap_until_s,
            entries=tuple(sorted([*entries, *shared], key=lambda entry: entry.at_s)),
        )

    def _add_release(self, action: do.Release, event: on.Event, now_s: float) -> None:
        """Add the release of an attempt, unless a report of its compactor caused the release."""
        attempt = self.cluster.attempts.get(action.attempt)
        if attempt is None or (
            isinstance(event, on.AttemptReported) and event.report.attempt == action.attempt
        ):
            return
        self.add_end(attempt, StoryKind.RELEASING, action.end.value, action.cause, now_s)


def _add_shared(entries_of: BoundedMap[str, _Entries], name: str, entry: StoryEntry) -> None:
    entries = entries_of.get(name) or _Entries()
    if not (entries.entries and is_repetition(entry, entries.entries[-1])):
        entries.add(entry, SHARED_ENTRIES_MAX)
    entries_of.put(name, entries)


def _shared(shared: _Entries | None) -> Sequence[StoryEntry]:
    """Return the entries of a table or group, without a first entry that it is live."""
    entries = [] if shared is None else shared.entries
    usual = bool(entries) and entries[0].code == TableState.LIVE
    return entries[usual:]


# ------------------------------------------------------------------ Conversion of events to entries


Attempts = Sequence[Attempt]
Actions = Sequence[Action]


def _attempt_of_report(cluster: ClusterState, event: on.AttemptReported) -> Attempts:
    attempt = cluster.attempts.get(event.report.attempt)
    return () if attempt is None else (attempt,)


def _attempt_settled(cluster: ClusterState, event: on.AttemptSettled) -> Attempts:
    attempt = cluster.attempts.get(event.attempt)
    return () if attempt is None else (attempt,)


def _attempts_of_scan(cluster: ClusterState, event: on.ReservationsFound) -> Attempts:
    return cluster.attempts.of_tablet(event.tablet)


def _add_plan(
    story: Story, event: on.TabletPlanned, _: Attempts, actions: Actions, now_s: float
) -> None:
    """Add the outcome of a plan. A plan without jobs or reasons does not start a story."""
    newest = story.cluster.last_plans.newest()
    if newest is None or newest[0] is not event.tablet:
        return  # The plan was stale and was ignored.
    last_plan = newest[1]
    code, reason, job, group = _outcome(story.cluster, event, last_plan, actions)
    number = len(event.plan.jobs)
    facts = (code, reason, job, "", "", "", "", group, (), number, None, False, 1, None)
    entry = _row((now_s, _PLANNED, *facts))
    story.stories.add(event.tablet, entry, begins=bool(number or reason))
    for action in actions:
        if type(action) is WriteAnalysis and action.analysis is Analysis.DEFERRED:
            _add_shed(story, event, action, now_s)


def _outcome(
    cluster: ClusterState, event: on.TabletPlanned, last_plan: LastPlan, actions: Actions
) -> tuple[str, str, str, str]:
    """Return the outcome of a plan, its reason, its first job and its group."""
    jobs = event.plan.jobs
    if not jobs:
        return "nothing", short_reason("; ".join(last_plan.holds)), "", ""
    if len(cluster.deferrals):
        wait_queue = cluster.deferrals.wait_queue_of(event.tablet)
        if wait_queue is not None and is_group_queue(wait_queue):
            return "deferred", "", "", wait_queue
    if last_plan.held and not _has_queued(cluster, event.tablet, actions):
        return "held", short_reason("; ".join(last_plan.held)), "", ""
    return "queued", short_reason(jobs[0].reason), jobs[0].id, jobs[0].group


def _has_queued(cluster: ClusterState, tablet: TabletId, actions: Actions) -> bool:
    """Return whether a job of a tablet is queued or was just taken from its queue."""
    reserved = (action.job.tablet for action in actions if type(action) is do.Reserve)
    return tablet in reserved or bool(cluster.queues.jobs_of(tablet))


def _add_shed(story: Story, event: on.TabletPlanned, action: WriteAnalysis, now_s: float) -> None:
    """Add an entry to another tablet whose jobs were evicted to make room for this one."""
    if action.tablet != event.tablet:
        wait_queue = story.cluster.deferrals.wait_queue_of(action.tablet) or ""
        story.stories.add(action.tablet, StoryEntry(now_s, StoryKind.SHED, group=wait_queue))


def _add_planning_failed(
    story: Story, event: on.PlanningFailed, _: Attempts, __: Actions, now_s: float
) -> None:
    reason = short_reason(event.cause)
    story.stories.add(event.tablet, StoryEntry(now_s, StoryKind.PLANNING_FAILED, "", reason))


def _add_fatal_file(
    story: Story, event: on.FileFatal, _: Attempts, __: Actions, now_s: float
) -> None:
    entry = StoryEntry(
        at_s=now_s,
        kind=StoryKind.FILE_QUARANTINED,
        reason=short_reason(event.cause),
        files=short_paths((event.path,)),
    )
    story.stories.add(event.tablet, entry)


def _add_gone(story: Story, event: on.TabletGone, _: Attempts, __: Actions, now_s: float) -> None:
    story.stories.add(event.tablet, StoryEntry(now_s, StoryKind.GONE), begins=False)


def _add_table(story: Story, event: on.TableSeen, _: Attempts, __: Actions, now_s: float) -> None:
    table = event.table
    entry = StoryEntry(now_s, StoryKind.TABLE, table.state.value, step=str(table.settings_version))
    story.add_to_table(table.id, entry)


def _add_reserved(
    story: Story, event: on.JobReserved, _: Attempts, actions: Actions, now_s: float
) -> None:
    """Add the assignment of a job; if its take has left, `Story.add` adds the release."""
    for action in actions:
        if type(action) is do.Assign:
            job, reservation = event.assignment.job, event.assignment.reservation
            who = (job.id, reservation.attempt, reservation.compactor, job.request or "", "")
            facts = (job.group, (), len(job.inputs), None, False, 1, None)
            entry = _row((now_s, _ASSIGNED, "", short_reason(job.reason), *who, *facts))
            story.stories.add(job.tablet, entry)
            return


def _add_refused(
    story: Story, event: on.JobRefused, _: Attempts, __: Actions, now_s: float
) -> None:
    job, reason = event.job, short_reason(event.reason)
    entry = StoryEntry(
        now_s, StoryKind.REFUSED, event.code, reason, job.id, request=job.request or ""
    )
    story.stories.add(job.tablet, entry)


def _add_unknown(
    story: Story, event: on.JobReserveUnknown, _: Attempts, __: Actions, now_s: float
) -> None:
    job = event.job
    entry = StoryEntry(
        now_s, StoryKind.UNKNOWN, job=job.id, attempt=event.attempt, request=job.request or ""
    )
    story.stories.add(job.tablet, entry)


def _add_report(
    story: Story, event: on.AttemptReported, before: Attempts, _: Actions, now_s: float
) -> None:
    """Add the report of a compactor, unless the attempt was already being released."""
    report = event.report
    if not before:
        tablet = story.unreported.pop(report.attempt)
        if tablet is not None:
            story.stories.complete(tablet, report.attempt, report.outputs)
        return
    (attempt,) = before
    if attempt.state is AttemptState.RELEASING:
        return
    if report.end is AttemptEnd.COMMITTED:
        _add_commit(story, attempt, report.outputs, now_s)
    elif report.end is AttemptEnd.FAILED:
        story.add_end(attempt, StoryKind.FAILED, report.error_class, report.cause, now_s)
    else:
        story.add_end(attempt, StoryKind.GIVEN_BACK, report.end.value, report.cause, now_s)


def _add_settled(
    story: Story, event: on.AttemptSettled, before: Attempts, _: Actions, now_s: float
) -> None:
    """Add an end that the store shows; the outputs of a commit are added by its report."""
    for attempt in before:
        if event.end is AttemptEnd.COMMITTED:
            _add_commit(story, attempt, (), now_s)
            story.unreported.put(attempt.id, attempt.tablet)
        else:
            _add_released(story, attempt, now_s)


def _add_commit(story: Story, attempt: Attempt, outputs: Sequence[str], now_s: float) -> None:
    who = (attempt.job_id, attempt.id, attempt.compactor, attempt.request or "", "")
    facts = (attempt.group, short_paths(outputs), len(outputs), None, False, 1, None)
    entry = _row((now_s, _COMMITTED, "", "", *who, *facts))
    story.stories.add(attempt.tablet, entry)


def _add_released(story: Story, attempt: Attempt, now_s: float) -> None:
    entry = StoryEntry(
        now_s, StoryKind.RELEASED, "", "", attempt.job_id, attempt.id, attempt.compactor
    )
    story.stories.add(attempt.tablet, entry)


def _add_found(
    story: Story, event: on.ReservationsFound, before: Attempts, _: Actions, now_s: float
) -> None:
    """Add reservations that only the store knew, and attempts that it no longer holds."""
    if not before and not event.reservations:
        return
    attempts, before_ids = story.cluster.attempts, {attempt.id for attempt in before}
    for attempt in before:
        if attempts.get(attempt.id) is None:
            _add_released(story, attempt, now_s)
    for entry in event.reservations:
        if entry.attempt not in before_ids and attempts.get(entry.attempt) is not None:
            story_entry = StoryEntry(
                at_s=now_s,
                kind=StoryKind.FOUND,
                job=entry.job,
                attempt=entry.attempt,
                compactor=entry.compactor,
                request=entry.request or "",
                group=entry.group,
                number=len(entry.inputs),
            )
            story.stories.add(event.tablet, story_entry)


def _add_lifted(
    story: Story, _: on.QuarantineLifted, __: Attempts, actions: Actions, now_s: float
) -> None:
    for action in actions:
        if type(action) is do.Replan:
            story.stories.add(action.tablet, StoryEntry(now_s, StoryKind.LIFTED))


def _add_paused(
    story: Story, event: on.GroupPaused, _: Attempts, __: Actions, now_s: float
) -> None:
    entry = StoryEntry(now_s, StoryKind.GROUP_PAUSED, group=event.group)
    story.add_to_group(event.group, entry)


def _add_resumed(
    story: Story, event: on.GroupResumed, _: Attempts, __: Actions, now_s: float
) -> None:
    entry = StoryEntry(now_s, StoryKind.GROUP_RESUMED, group=event.group)
    story.add_to_group(event.group, entry)


_ABOUT: Mapping[type[on.Event], Callable[..., Attempts]] = {
    on.AttemptReported: _attempt_of_report,
    on.AttemptSettled: _attempt_settled,
    on.ReservationsFound: _attempts_of_scan,
}

_ADDERS: Mapping[type[on.Event], Callable[..., None]] = {
    on.TableSeen: _add_table,
    on.TabletPlanned: _add_plan,
    on.PlanningFailed: _add_planning_failed,
    on.TabletGone: _add_gone,
    on.FileFatal: _add_fatal_file,
    on.JobReserved: _add_reserved,
    on.JobRefused: _add_refused,
    on.JobReserveUnknown: _add_unknown,
    on.AttemptReported: _add_report,
    on.AttemptSettled: _add_settled,
    on.ReservationsFound: _add_found,
    on.GroupPaused: _add_paused,
    on.GroupResumed: _add_resumed,
    on.QuarantineLifted: _add_lifted,
}

SILENT = frozenset(
    {
        on.TableGone,
        on.TakeAsked,
        on.TakeLate,
        on.TakeLeft,
        on.CompactorHeard,
        on.CompactorGone,
        on.AttemptCancelAsked,
        on.QueuedJobCancelled,
        on.QueuedJobPaused,
        on.QueuedJobResumed,
        on.DrainAsked,
        on.LimitsSeen,
        on.WindowUsesSeen,
        on.ReadsReported,
        on.LatencyReported,
        on.ForegroundReported,
        on.Ticked,
    }
)
"""Events that belong to no tablet; their consequences for a tablet are added with the actions."""
RECORDED = frozenset(_ADDERS) | {on.StepAnswered}
