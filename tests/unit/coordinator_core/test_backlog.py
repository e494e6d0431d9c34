"""Backlogs of a running service: measured with each plan, told with what runs taken off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.file import DataFile
from common.model.job import (
    AttemptWork,
    Job,
    Kind,
    TabletBacklog,
    TabletPlan,
    TabletPressure,
)
from common.model.outcome import AttemptEnd
from common.model.table import Table, TableSettings
from common.model.tablet import Record, Tablet, TabletId
from common.plugins import load_tracker
from common.settings import CoordinatorSettings
from common.spi.controller import BacklogTracker, TrackerPlugin, WorkUnderWay
from common.wire import AttemptProgress, AttemptReport, Heartbeat, TakeRequest
from coordinator.core import events as on
from coordinator.core.assignment import cluster_facts
from coordinator.core.backlog import (
    HISTORY_COUNT_MAX,
    RECORDED_S,
    Backlogs,
    Progress,
    TabletHistories,
    largest_tablets,
)
from coordinator.core.cluster_state import ClusterState
from coordinator.core.limits import Limits
from coordinator.core.state import CoordinatorState
from coordinator.core.views import tablet_loads
from coordinator.registry import with_backlog
from coordinator.wiring import backlog_figures
from neve import api
from tests.support.planning import files_of
from tests.support.planning import job as queued_job
from tests.support.reservations import assignment_of
from tests.unit.coordinator.test_planning import (
    EQUAL,
    NOW_S,
    SERVICES,
    TABLE,
    planned,
    running,
    tablet,
)

TRACKERS: Mapping[str, TrackerPlugin] = {"ratio": load_tracker("ratio")}


class Broken:
    """A tracker that fails when it is made."""

    option_names: frozenset[str] = frozenset()
    setting_names: frozenset[str] = frozenset()

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        raise ZeroDivisionError("by the number of files")


def measured(
    given: Tablet, table: Table = TABLE, trackers: Mapping[str, TrackerPlugin] = TRACKERS
) -> TabletBacklog | None:
    plan = planned(given, table)
    return with_backlog(plan, given, table, trackers, NOW_S, services=SERVICES).backlog


def test_the_planner_s_own_tracker_measures() -> None:
    found = measured(tablet())
    assert found == TabletBacklog(strategy="ratio", size_bytes=80, group="default")


def test_an_attempt_takes_off_what_it_will_have_done() -> None:
    busy = tablet(running={"at1": running("at1", *"abcdefgh")})
    assert measured(busy) == TabletBacklog(
        strategy="ratio", size_bytes=80, falls={"at1": 80}, group="default"
    )


def test_a_tablet_at_rest_is_not_measured() -> None:
    alone = tablet(files={"a": EQUAL["a"]})
    assert measured(alone) is None
    assert measured(replace(alone, running={"at1": running("at1")})) is None, (
        "a count of live bytes"
    )


def test_files_that_are_still_written_owe_nothing() -> None:
    files = EQUAL | {name: replace(EQUAL[name], open=True) for name in "gh"}
    assert measured(tablet(files=files)) == TabletBacklog(
        strategy="ratio", size_bytes=60, group="default"
    )


def test_without_a_tracker_the_wanted_jobs_count() -> None:
    expected = TabletBacklog(strategy="planned jobs", size_bytes=80, group="default")
    assert measured(tablet(), trackers={}) == expected
    # The planner waits for what comes out of these two.
    found = measured(tablet(running={"at1": running("at1", "a", "b")}), trackers={})
    assert found == replace(expected, size_bytes=20, falls={"at1": 20})


def test_a_planner_without_a_tracker_owes_what_the_operator_has_set() -> None:
    busy = tablet(running={"at1": running("at1", "a", "b")})
    plan = planned(busy, TABLE)

    def found(trackers: Mapping[str, TrackerPlugin]) -> TabletBacklog:
        with_it = with_backlog(
            plan, busy, TABLE, trackers, NOW_S, services=SERVICES, untracked_bytes=1000
        )
        assert with_it.backlog is not None
        return with_it.backlog

    fixed = TabletBacklog(strategy="fixed", size_bytes=1000, group="default")
    assert replace(found({}), group="default") == fixed
    broken = found({"ratio": Broken()})
    assert (broken.strategy, broken.size_bytes, broken.falls) == ("fixed", 1000, {})
    assert broken.problem.startswith("tracker ratio: ")
    assert found(TRACKERS).strategy == "ratio"


def test_why_a_tracker_failed_is_kept_short() -> None:
    class Talks(Broken):
        def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
            raise ValueError("x" * 100_000)

    found = measured(tablet(), trackers={"ratio": Talks()})
    assert found is not None
    assert len(found.problem) == 300


def test_a_tracker_that_fails_spoils_no_sum_and_says_why() -> None:
    found = measured(tablet(), trackers={"ratio": Broken()})
    assert found == TabletBacklog(
        strategy="planned jobs",
        size_bytes=80,
        problem="tracker ratio: ZeroDivisionError: by the number of files",
        group="default",
    )


@pytest.mark.parametrize("told_bytes", [nan, inf, 1e300, 2.0**61])
def test_what_no_tablet_can_owe_is_a_failure_of_its_tracker(told_bytes: float) -> None:
    class Wild(Broken):
        """Tells something."""

        def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
            return self

        def add(self, file: DataFile) -> None:
            pass

        def remove(self, path: str) -> None:
            pass

        def backlog_bytes(self, work: WorkUnderWay) -> float:
            return told_bytes

    found = measured(tablet(), trackers={"ratio": Wild()})
    assert found is not None
    assert (found.strategy, found.size_bytes) == ("planned jobs", 80)
    assert found.problem.startswith("tracker ratio: ")


def test_a_tracker_that_failed_is_made_anew_with_the_next_plan() -> None:
    class Flaky:
        """Fails once."""

        option_names: frozenset[str] = frozenset()
        setting_names: frozenset[str] = frozenset()
        made = 0

        def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
            self.made += 1
            if self.made == 1:
                raise ValueError("a bad day")
            return TRACKERS["ratio"].tracker(settings, options)

    flaky = {"ratio": Flaky()}
    backlogs = Backlogs()
    for name, size_bytes in (("planned jobs", 80), ("ratio", 80)):
        found = measured(tablet(), trackers=flaky)
        assert found is not None
        assert (found.strategy, found.size_bytes) == (name, size_bytes)
        backlogs.put(at("a", 1), found)
        backlogs.check()
    (line,) = told(backlogs)
    assert (line.size_bytes, line.problem) == (80, "")


def test_what_no_tracker_measures_is_counted_by_cause() -> None:
    lines = [
        api.Backlog(table="a", strategy="ratio", size_bytes=7, tablets=1),
        api.Backlog(table="b", strategy="planned jobs", size_bytes=5, tablets=1),
        api.Backlog(
            table="c",
            strategy="planned jobs",
            size_bytes=3,
            tablets=1,
            problem="oh",
            groups={"large": 3},
        ),
        api.Backlog(table="", strategy="", size_bytes=2, tablets=4, tables=4),
    ]
    found = {
        (backlog_figure.metric, *backlog_figure.labels): backlog_figure.value
        for backlog_figure in backlog_figures(lines)
    }
    assert found == {
        ("neve_backlog_bytes", "a"): 7,
        ("neve_backlog_bytes", "b"): 5,
        ("neve_backlog_bytes", "c"): 3,
        ("neve_backlog_bytes", "(others)"): 2,
        ("neve_backlog_group_bytes", "large"): 3,
        ("neve_backlog_untracked_tables", "none"): 1,
        ("neve_backlog_untracked_tables", "failed"): 1,
    }


def test_the_options_of_a_table_reach_its_tracker() -> None:
    own = replace(
        TABLE, settings=TableSettings(planner="ratio", planner_options={"max_files": "2"})
    )
    # Pairs of equal files qualify by no ratio above 2, and by 1.5.
    assert measured(tablet(), own) is None
    pairs = replace(own.settings, planner_options={"max_files": "2", "ratio": "1.5"})
    found = measured(tablet(), replace(own, settings=pairs))
    assert found == TabletBacklog(strategy="ratio", size_bytes=80 * 3, group="default")


# --------------------------------------------------------------------------------- Kept in the core


def at(table: str, number: int) -> TabletId:
    return TabletId(table, bytes([number]))


def done(read_share: float, written_bytes: int = 0) -> AttemptWork:
    return AttemptWork(read_share=read_share, written_bytes=written_bytes)


def owed(size_bytes: int, group: str = "", **falls: int) -> TabletBacklog:
    return TabletBacklog(strategy="ratio", size_bytes=size_bytes, falls=falls, group=group)


def test_groups_are_told_apart_in_each_table() -> None:
    backlogs = Backlogs()
    backlogs.put(at("a", 1), owed(100, "small", at1=80))
    backlogs.put(at("a", 2), owed(50, "large"))
    backlogs.put(at("a", 3), owed(7, "large", at2=7))
    backlogs.put(at("b", 1), owed(130, "small"))
    half = [(at("a", 1), "at1", done(0.5)), (at("a", 3), "at2", done(1.0))]
    assert [each.groups for each in told(backlogs, half)] == [
        {"small": 130},
        {"small": 60, "large": 50},
    ]
    assert told(backlogs, half, count=1)[0].groups == {"small": 190, "large": 50}
    backlogs.put(at("a", 2), owed(50, "small"))
    backlogs.discard(at("a", 3))
    backlogs.check()
    assert told(backlogs)[0].groups == {"small": 150}


def test_one_tracker_that_fails_is_named_whatever_the_other_tablets_say() -> None:
    backlogs = Backlogs()
    backlogs.put(at("a", 1), replace(owed(5), strategy="planned jobs", problem="oh"))
    backlogs.put(at("a", 2), owed(50))
    (line,) = told(backlogs)
    assert (line.size_bytes, line.problem) == (55, "oh")
    failed = {
        backlog_figure.labels: backlog_figure.value for backlog_figure in backlog_figures([line])
    }
    assert (failed[("failed",)], failed[("none",)]) == (1, 0)
    backlogs.put(at("a", 1), owed(5))
    assert told(backlogs)[0].problem == ""


def test_what_was_committed_is_off_before_the_tablet_is_planned_again() -> None:
    backlogs = Backlogs()
    backlogs.put(at("a", 1), owed(100, at1=80, at2=15))
    backlogs.settle(at("a", 1), "at1", committed=True)
    assert told(backlogs)[0].size_bytes == 20
    backlogs.settle(at("a", 1), "at1", committed=True)
    backlogs.settle(at("a", 1), "unknown", committed=True)
    backlogs.settle(at("b", 1), "at2", committed=True)
    assert told(backlogs, [(at("a", 1), "at2", done(1.0))])[0].size_bytes == 5
    backlogs.check()


def test_the_tablets_that_owe_most_come_first() -> None:
    backlogs = Backlogs()
    for number in range(9):
        backlogs.put(at("a", number), owed(10 * number, "large", at1=5))
    backlogs.put(at("b", 1), owed(1000))
    progress = [(at("a", 8), "at1", done(1.0)), (at("b", 1), "at1", done(1.0))]
    found = largest_tablets(*backlogs.of_table("a", progress), 3)
    assert [(each.tablet, each.size_bytes, each.group) for each in found] == [
        ("08", 75, "large"),
        ("07", 70, "large"),
        ("06", 60, "large"),
    ]
    assert largest_tablets(*backlogs.of_table("c", progress), 3) == []


def test_tables_are_told_largest_first_with_progress_taken_off() -> None:
    backlogs = Backlogs()
    backlogs.put(at("a", 1), owed(100, at1=80))
    backlogs.put(at("a", 2), owed(50))
    backlogs.put(at("b", 1), owed(130))
    half = [
        (at("a", 1), "at1", done(0.5)),
        (at("a", 1), "unknown", done(1.0)),
        (at("c", 1), "at9", done(1.0)),
    ]
    assert [(each.table, each.size_bytes, each.tablets) for each in told(backlogs, half)] == [
        ("B", 130, 1),
        ("A", 110, 2),
    ]
    backlogs.put(at("b", 1), None)
    backlogs.discard(at("a", 7))
    assert [each.table for each in told(backlogs)] == ["A"]
    backlogs.forget_table("a")
    assert told(backlogs) == ()


def told(
    backlogs: Backlogs, progress: list[Progress] | None = None, count: int = 9
) -> tuple[api.Backlog, ...]:
    return backlogs.top(str.upper, progress or [], count)


def test_of_many_tables_the_last_line_stands_for_all_others() -> None:
    backlogs = Backlogs()
    for number in range(5):
        backlogs.put(at(f"t{number}", 1), owed(10 + number))
    *first, others = told(backlogs, count=3)
    assert [each.table for each in first] == ["T4", "T3"]
    assert (others.table, others.size_bytes, others.tablets, others.tables) == ("", 33, 3, 3)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 5), st.one_of(st.none(), st.integers(0, 10**15))
        ),
        max_size=60,
    )
)
def test_a_table_s_sum_is_that_of_its_tablets(steps: list[tuple[str, int, int | None]]) -> None:
    backlogs, model = Backlogs(), dict[TabletId, int]()
    for table, number, size_bytes in steps:
        tablet_id = at(table, number)
        model.pop(tablet_id, None)
        if size_bytes:
            model[tablet_id] = size_bytes
        backlogs.put(tablet_id, None if size_bytes is None else owed(size_bytes))
        backlogs.check()
    assert sum(each.size_bytes for each in told(backlogs)) == sum(model.values())


def test_a_plan_replaces_the_backlog_of_its_tablet() -> None:
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.TableSeen(table=Table(id="t", name="trips", location="x", schema=())), 0.0)

    def planned_with(version: int, backlog: TabletBacklog | None) -> tuple[api.Backlog, ...]:
        event = on.TabletPlanned(
            tablet=at("t", 1),
            plan=TabletPlan(backlog=backlog),
            record=Record(version=version),
            settings_version=0,
        )
        state.handle(event, 1.0)
        return state.status(1.0).backlogs

    (line,) = planned_with(1, owed(70))
    assert (line.table, line.strategy, line.size_bytes) == ("trips", "ratio", 70)
    assert planned_with(2, None) == ()
    planned_with(3, owed(70))
    state.handle(on.TabletGone(tablet=at("t", 1)), 2.0)
    assert state.status(2.0).backlogs == ()
    planned_with(4, owed(70))
    state.handle(on.TableGone(table="t"), 3.0)
    assert state.status(3.0).backlogs == ()


def test_what_the_queue_holds_of_requests_is_told_by_itself() -> None:
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.TableSeen(table=Table(id="t", name="trips", location="x", schema=())), 0.0)
    asked = {"kind": Kind.USER, "request": "r1", "table_name": "trips", "input_bytes": 197}

    def planned_with(version: int, backlog: TabletBacklog | None, *jobs: Job) -> api.Backlog:
        plan = TabletPlan(jobs=jobs, backlog=backlog)
        event = on.TabletPlanned(
            tablet=at("t", 1), plan=plan, record=Record(version=version), settings_version=0
        )
        state.handle(event, 1.0)
        (line,) = state.status(1.0).backlogs
        return line

    wished = queued_job("j1", tablet=at("t", 1), **asked)
    line = planned_with(1, owed(70), wished)
    assert (line.table, line.size_bytes, line.requested_bytes) == ("trips", 70, 197)
    line = planned_with(2, None, wished)
    assert (line.table, line.size_bytes, line.requested_bytes) == ("trips", 0, 197)
    planned = queued_job("j2", tablet=at("t", 1), table_name="trips")
    assert planned_with(3, owed(70), planned).requested_bytes == 0


ENDS = ["it commits", "its compactor dies", "it fails", "it is handed back"]


class Life:
    """A tablet whose files are all in one attempt, which reports its progress and ends."""

    def __init__(self, backlog: TabletBacklog | None) -> None:
        self.state = state = CoordinatorState(CoordinatorSettings())
        state.handle(on.TableSeen(table=TABLE), 0.0)
        job = planned(tablet()).jobs[0]
        take = TakeRequest(take="k1", compactor="c1", incarnation="1", group=job.group)
        self.beat = Heartbeat(compactor="c1", incarnation="1", group=job.group, node="n", slots=1)
        state.handle(on.CompactorHeard(beat=self.beat), 1.0)
        state.handle(on.TakeAsked(request=take), 1.0)
        for version, plan in ((1, TabletPlan(jobs=(job,))), (2, TabletPlan(backlog=backlog))):
            seen = on.TabletPlanned(
                tablet=job.tablet, plan=plan, record=Record(version=version), settings_version=1
            )
            state.handle(seen, 1.0)
            if version == 1:
                assignment = assignment_of(job, "at1", "c1", 1.0)
                state.handle(on.JobReserved(take="k1", assignment=assignment), 1.0)

    @property
    def backlog_bytes(self) -> int:
        return sum(line.size_bytes for line in self.state.status(3.0).backlogs)

    def report(self, **progress: int) -> None:
        listed = AttemptProgress(attempt="at1", state="rewriting", bytes_total=80, **progress)
        self.state.handle(on.CompactorHeard(beat=replace(self.beat, attempts=(listed,))), 2.0)

    def end(self, end: str) -> None:
        event: on.Event = on.CompactorGone(compactor="c1", cause="killed", incarnation="1")
        if end != "its compactor dies":
            how = {"it fails": AttemptEnd.FAILED, "it commits": AttemptEnd.COMMITTED}.get(end)
            report = AttemptReport(compactor="c1", attempt="at1", end=how or AttemptEnd.DRAINED)
            event = on.AttemptReported(report=report)
        self.state.handle(event, 3.0)


@pytest.mark.parametrize("end", ENDS)
def test_what_an_attempt_has_done_counts_for_good_only_if_it_commits(end: str) -> None:
    life = Life(owed(100, at1=80))
    for bytes_done, left in ((20, 80), (60, 40)):
        life.report(bytes_done=bytes_done)
        assert life.backlog_bytes == left
    life.end(end)
    left_bytes = 20 if end == "it commits" else 100
    assert life.backlog_bytes == left_bytes
    assert cluster_facts(life.state._cluster).backlog_bytes == left_bytes, "as controllers read it"


# ------------------------------------------------------------------- Outputs that are being written


def seed_bytes(files: Mapping[str, int], read: Mapping[str, int], written: list[int]) -> float:
    """Return the backlog by formula (4) of the note on ScyllaDB's controller, term by term."""
    total = sum(files.values())
    owing = sum((size - read.get(path, 0)) * log(total / size, 4) for path, size in files.items())
    return owing + sum(size * log(total / size, 4) for size in written if size)


SEED = replace(TABLE, settings=TableSettings(backlog_mode="seed"))
HALVES = files_of(dict.fromkeys("abcdefgh", 10_000))


def test_a_table_in_mode_seed_owes_what_the_formula_says() -> None:
    found = measured(tablet(files=HALVES), SEED)
    assert found is not None
    assert found.size_bytes == round(seed_bytes(dict.fromkeys("abcdefgh", 10_000), {}, []))
    alone = tablet(files={"a": EQUAL["a"]})
    assert measured(alone, SEED) is None, "a tablet at rest owes nothing"


@pytest.mark.parametrize("end", ENDS)
def test_in_mode_seed_an_output_counts_as_a_file_until_its_attempt_ends(end: str) -> None:
    life = Life(measured(tablet(files=HALVES, running={"at1": running("at1", *"abcd")}), SEED))
    sizes = dict.fromkeys("abcdefgh", 10_000)
    whole_bytes = round(seed_bytes(sizes, {}, []))
    assert life.backlog_bytes == whole_bytes
    for bytes_done, written_bytes in ((20, 0), (40, 9_000), (80, 31_000)):
        life.report(bytes_done=bytes_done, written_bytes=written_bytes)
        read = dict.fromkeys("abcd", 10_000 * bytes_done // 80)
        assert life.backlog_bytes == round(seed_bytes(sizes, read, [written_bytes]))
    life.end(end)
    if end == "it commits":  # The output is taken as a file as large as the inputs.
        read = dict.fromkeys("abcd", 10_000)
        assert life.backlog_bytes == round(seed_bytes(sizes, read, [40_000]))
    else:
        assert life.backlog_bytes == whole_bytes


def test_in_mode_interesting_outputs_do_not_count() -> None:
    table = replace(TABLE, settings=TableSettings(planner="size-tiered"))
    busy = tablet(files=HALVES, running={"at1": running("at1", *"abcd")})
    trackers = {"size-tiered": load_tracker("size-tiered")}
    plan = TabletPlan()
    backlog = with_backlog(plan, busy, table, trackers, NOW_S, services=SERVICES).backlog
    assert backlog is not None
    life = Life(backlog)
    life.report(bytes_done=40)
    without_output = life.backlog_bytes
    assert 0 < without_output < backlog.size_bytes
    life.report(bytes_done=40, written_bytes=9_000)
    assert life.backlog_bytes == without_output


def test_an_output_counts_on_the_level_that_its_job_gives_it() -> None:
    files = files_of(dict.fromkeys("abcdefgh", 10_000))
    busy = tablet(files=files, running={"at1": running("at1", *"abcd")})
    table = replace(TABLE, settings=TableSettings(planner="leveled", target_bytes=1024))
    trackers = {"leveled": load_tracker("leveled")}
    backlog = with_backlog(TabletPlan(), busy, table, trackers, NOW_S, services=SERVICES).backlog
    assert backlog is not None
    assert backlog.tracked is not None
    work = AttemptWork(read_share=1.0, written_bytes=40_000)
    kept, moved = (
        backlog.tracked.left_bytes({"at1": replace(work, output_tags=tags)})
        for tags in ((), (("level", "1"),))
    )
    assert (
        moved
        != kept
        == backlog.tracked.left_bytes({"at1": replace(work, output_tags=(("level", "0"),))})
    )


def test_a_tracker_that_fails_while_attempts_run_leaves_the_measured_backlog() -> None:
    class Fails:
        def left_bytes(self, done: Mapping[str, AttemptWork]) -> int:
            raise ZeroDivisionError("by the progress")

    backlogs = Backlogs()
    backlogs.put(at("a", 1), replace(owed(100, at1=80), tracked=Fails()))
    assert told(backlogs, [(at("a", 1), "at1", done(0.5))])[0].size_bytes == 100


def test_the_history_of_a_tablet_begins_when_a_caller_asks_for_it() -> None:
    state, histories = CoordinatorState(CoordinatorSettings()), TabletHistories()
    state.handle(on.TableSeen(table=Table(id="t", name="trips", location="x", schema=())), 0.0)

    def plan(number: int, size_bytes: int | None, now_s: float) -> None:
        plan = TabletPlan(backlog=None if size_bytes is None else owed(size_bytes))
        record = Record(version=int(now_s) + 1)
        event = on.TabletPlanned(
            tablet=at("t", number), plan=plan, record=record, settings_version=0
        )
        state.handle(event, now_s)

    def ask(number: int, now_s: float) -> list[list[tuple[float, int]]]:
        histories.ask(state.backlog_sizes([at("t", number)]), now_s)
        assert histories.of_table("other") == []
        found = histories.of_table("t")
        return [[(point.at_s, point.size_bytes) for point in each.history] for each in found]

    def note(now_s: float) -> None:
        histories.note(state.backlog_sizes(histories.tablets(now_s)), now_s)

    plan(1, 70, 0.0)
    plan(2, 90, 0.0)
    note(10.0)
    assert ask(1, 21.0) == [[(21.0, 70)]], "nothing was recorded before"
    assert ask(1, 22.0) == [[(21.0, 70)]], "a second call adds no point"
    plan(1, 30, 25.0)
    note(30.0)
    plan(1, None, 35.0)
    note(40.0)
    assert ask(2, 41.0) == [[(41.0, 90)], [(21.0, 70), (30.0, 30), (40.0, 0)]]
    assert histories.tablets(22.0 + RECORDED_S) == [at("t", 2)], "the other was not asked for again"
    assert histories.tablets(41.0 + RECORDED_S) == []


def test_work_that_runs_is_taken_off_the_points_of_a_tablet() -> None:
    backlogs = Backlogs()
    backlogs.put(at("t", 1), TabletBacklog(strategy="ratio", size_bytes=100, falls={"at1": 80}))
    progress = [(at("t", 1), "at1", done(0.25))]
    assert backlogs.sizes([at("t", 1), at("t", 2)], progress) == {at("t", 1): 80, at("t", 2): 0}


def test_a_hundred_tablets_are_recorded_those_asked_for_last() -> None:
    histories = TabletHistories()
    tablets = [at("t", number) for number in range(api.RECORDED_TABLETS_MAX + 20)]
    histories.ask(dict.fromkeys(tablets[:100], 1), 1.0)
    histories.ask({tablets[0]: 1}, 2.0)
    histories.ask(dict.fromkeys(tablets[100:], 1), 3.0)
    assert histories.tablets(3.0) == [*tablets[21:100], tablets[0], *tablets[100:]]
    for second in range(HISTORY_COUNT_MAX + 50):
        histories.note(dict.fromkeys(tablets, 7), float(second))
    found = histories.of_table("t")
    assert len(found) == api.RECORDED_TABLETS_MAX
    assert {len(each.history) for each in found} == {HISTORY_COUNT_MAX}


def test_a_service_that_is_not_configured_is_no_reason_to_fail_here() -> None:
    """The planning says so."""
    busy = tablet(running={"at1": running("at1", "a")})
    elsewhere = replace(TABLE, settings=TableSettings(service="night"))
    plan = TabletPlan(left={"a": "as it was"})
    assert with_backlog(plan, busy, elsewhere, TRACKERS, NOW_S, services=SERVICES) is plan


def test_loads_of_tablets_begin_with_the_given_ones_and_add_the_largest() -> None:
    cluster = ClusterState(Limits())
    for number, size_bytes in ((1, 70), (2, 90), (3, 80)):
        cluster.backlogs.put(at("t1", number), owed(size_bytes))
    cluster.backlogs.put(at("t2", 4), owed(500))
    pressure = TabletPressure(overlapping_files=6, stored_bytes=400, garbage_bytes=100)
    cluster.pressures.put(at("t1", 2), pressure)
    cluster.heat.note_scans(at("t1", 9), 60, NOW_S)

    loads = tablet_loads(cluster, "t1", ["09", "03"], NOW_S)

    assert loads.tablets == ("09", "03", "02", "03", "01")
    assert loads.backlog_bytes == (0, 80, 90, 80, 70)
    assert loads.overlapping_files == (0, 0, 6, 0, 0)
    assert loads.garbage_shares == (0.0, 0.0, 0.25, 0.0, 0.0)
    assert loads.scans_s[0] > 0.0 == loads.scans_s[1]


def test_the_largest_backlogs_are_sought_among_a_bounded_number_of_tablets() -> None:
    backlogs = Backlogs()
    for number, size_bytes in ((1, 10), (2, 30), (3, 20), (4, 99)):
        backlogs.put(at("t1", number), owed(size_bytes))

    assert backlogs.largest("t1", 3, 2) == [at("t1", 2), at("t1", 3)]
    assert backlogs.largest("t2", 3, 2) == []
