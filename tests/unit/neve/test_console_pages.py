"""From the API's answers to what the console's pages show: values in, values out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neve import api
from neve.cli import top
from neve.console.pages import access, control, jobs, requests, tablet
from neve.console.pages.figures import SCALES
from neve.console.pages.overview import headline, needs
from neve.console.pages.tables import (
    ATTEMPTS_READ,
    TRIED_TABLETS,
    MapTotals,
    edited_settings,
    last_day,
    map_totals,
    map_values,
    plan_change,
    setting_rows,
    tried_tablets,
)
from neve.gateway.table_summaries import write_amplification
from tests.support.gateway import COMPACTOR, CONTROL, GROUP

pytestmark = pytest.mark.unit
NOW_S = 1_000_000.0
EVENTS = api.Table(
    id="t-1",
    name="events",
    location="file:///data/events",
    state="live",
    schema=(api.Column(name="x", type="int64"),),
    key=("x",),
    settings={"planner": "", "ratio": 3.0, "ttl_s": None, "planner_options": {"a": "1"}},
    without_effect={"ratio": "the planner does not read it"},
)


def finished(attempt: str = "att-1", **changed: Any) -> api.Finished:
    done = api.Finished(
        attempt=attempt,
        job="job-1",
        tablet="last",
        kind="SYSTEM",
        end="committed",
        group="default",
        compactor="local-1",
        inputs=("a", "b"),
        outputs=("c",),
        bytes_in=300,
        bytes_out=200,
        rows_in=30,
        rows_out=20,
        started_s=NOW_S - 100,
        ended_s=NOW_S - 90,
    )
    return replace(done, **changed)


def planned(*files: str, **changed: Any) -> api.PlannedJob:
    job = api.PlannedJob(
        tablet="last",
        files=files,
        input_bytes=10 * len(files),
        group="default",
        priority=len(files),
        kind="SYSTEM",
        reason=f"{len(files)} files",
        table="events",
        id="job-9",
    )
    return replace(job, **changed)


# -------------------------------------------------------------------------------------------- Table


MAP = api.TabletMap(
    table="events",
    tablets=5,
    ends=("01", "02", "last"),
    counts=(2, 2, 1),
    files=(3, 0, 7),
    size_bytes=(30, 0, 70),
    backlog_bytes=(0, 9, 4),
    overlapping_files=(1, 2, 3),
    garbage_shares=(0.0, 0.5, 0.0),
    scans_s=(0.0, 0.0, 2.0),
)


def test_totals_of_cells_of_several_tablets_are_estimates() -> None:
    assert map_totals(MAP) == MapTotals(tablets=5, files=13, size_bytes=130, exact=False)
    whole = replace(MAP, tablets=3, counts=(1, 1, 1))
    assert map_totals(whole).exact
    assert not map_totals(replace(whole, unreadable=1)).exact


def test_each_colour_of_the_map_has_its_column() -> None:
    assert [list(map_values(MAP, name)) for name in SCALES] == [
        [3, 0, 7],
        [1, 2, 3],
        [0, 9, 4],
        [0.0, 0.5, 0.0],
        [0.0, 0.0, 2.0],
    ]


def test_files_between_two_jobs_of_the_last_day_count_on_neither_side() -> None:
    day = last_day(
        [
            finished("att-3", inputs=("c", "d"), outputs=("e",), superseded=4, expired_dropped=1),
            finished("att-2", end="failed", outputs=(), bytes_out=0),
            finished("att-1"),
            finished("att-0", inputs=("z",), ended_s=NOW_S - 90_000, started_s=NOW_S - 90_010),
        ],
        NOW_S,
    )

    assert (day.jobs, day.failed, day.files_before, day.files_after) == (2, 1, 3, 1)
    assert (day.read_bytes, day.written_bytes, day.rows_dropped) == (600, 400, 5)
    assert (day.busy_s, day.since_s) == (30.0, NOW_S - 86_400)


def test_a_day_with_more_attempts_than_are_read_says_since_when() -> None:
    many = [finished(ended_s=NOW_S - 1 - n / 100) for n in range(ATTEMPTS_READ)]
    assert last_day(many, NOW_S).since_s == many[-1].ended_s


def test_settings_have_a_source_and_the_planner_comes_first() -> None:
    rows = setting_rows(EVENTS, {"ratio": "2"})

    assert [(row.name, row.text, row.source) for row in rows] == [
        ("planner", "", "default"),
        ("planner_options", "a=1", "set for the table"),
        ("ratio", "2", "edited"),
        ("ttl_s", "none", "default"),
    ]
    assert rows[2].without_effect == "the planner does not read it"


def test_only_settings_that_differ_are_edited() -> None:
    form = {"set.ratio": "3.0", "set.ttl_s": " 7d ", "set.planner_options": "", "other": "x"}
    assert edited_settings(EVENTS, form) == {"ttl_s": "7d", "planner_options": ""}


def test_plans_are_compared_by_their_files() -> None:
    before = api.Plan(
        jobs=(planned("a", "b"), planned("c", "d")),
        left={"e": "too large"},
        job_count=2,
        input_bytes=40,
        left_count=1,
    )
    after = replace(
        before,
        jobs=(planned("d", "c"), planned("a", "b", "f")),
        left={"e": "too new"},
        input_bytes=50,
    )
    change = plan_change(before, after, 4)

    assert [job.files for job in change.gone] == [("a", "b")]
    assert [job.files for job in change.new] == [("a", "b", "f")]
    assert change.reasons == (("e", "too large", "too new"),)
    assert (change.tablets, change.bytes_before, change.bytes_after) == (4, 40, 50)
    assert (change.jobs_before, change.left_before) == (2, 1)


def test_a_dry_run_plans_the_busiest_tablets_and_some_others() -> None:
    assert tried_tablets(MAP) == ["01", "02", "last"]
    count = 1000
    wide = replace(
        MAP,
        tablets=count,
        ends=tuple(f"{n:04x}" for n in range(count)),
        files=(1,) * count,
        backlog_bytes=tuple(n if n > 990 else 0 for n in range(count)),
    )
    tried = tried_tablets(wide)
    assert len(tried) == TRIED_TABLETS
    assert tried == sorted(tried)
    assert {f"{n:04x}" for n in range(991, 1000)} <= set(tried)


# ------------------------------------------------------------------------------------------- Tablet


def file(path: str, low: str | None, high: str | None, **changed: Any) -> api.File:
    made = api.File(path=path, tablet="last", size_bytes=10, rows=1, key_min=low, key_max=high)
    return replace(made, **changed)


def test_files_lie_over_their_keys_by_rank_not_by_text() -> None:
    files = [file("b", "9", "100"), file("a", "-5", "9"), file("c", "100", "100")]
    figure = tablet.file_figure(EVENTS, files, {"a": ("queued", "queued: 2 files")})

    assert (figure.axis, figure.start, figure.end) == ("keys, spaced by rank", "-5", "100")
    assert [(bar.file.path, bar.x, bar.width, bar.state) for bar in figure.bars] == [
        ("a", 0, 500, "queued"),
        ("b", 500, 500, "left"),
        ("c", 997, 3, "left"),
    ]
    assert figure.bars[0].words == "queued: 2 files"


def test_files_are_grouped_by_level() -> None:
    files = [file("a", "1", "9", tags={"level": "1"}), file("b", "5", "7", tags={"level": "0"})]
    figure = tablet.file_figure(EVENTS, files, {})
    assert [(bar.file.path, bar.group) for bar in figure.bars] == [
        ("b", "level 0"),
        ("a", "level 1"),
    ]


def test_files_without_keys_lie_over_time_or_show_their_size() -> None:
    bag = replace(EVENTS, key=())
    timed = [
        file("a", None, None, time_min_s=0.0, time_max_s=50.0),
        file("b", None, None, time_min_s=50.0, time_max_s=100.0),
    ]
    figure = tablet.file_figure(bag, timed, {})
    assert (figure.axis, figure.start) == ("time", "1970-01-01 00:00:00")
    assert [(bar.x, bar.width) for bar in figure.bars] == [(0, 500), (500, 500)]

    sized = [file("a", None, None, size_bytes=25), file("b", None, None, size_bytes=100)]
    figure = tablet.file_figure(bag, sized, {})
    assert (figure.axis, [(bar.x, bar.width) for bar in figure.bars]) == (
        "size",
        [(0, 250), (0, 1000)],
    )


def test_of_very_many_files_the_largest_are_drawn() -> None:
    files = [file(f"{n:04}", "1", "2", size_bytes=n) for n in range(tablet.FILES_DRAWN_MAX + 5)]
    figure = tablet.file_figure(EVENTS, files, {})

    assert (len(figure.bars), figure.hidden) == (tablet.FILES_DRAWN_MAX, 5)
    assert "0004" not in {bar.file.path for bar in figure.bars}


def test_a_running_job_says_more_of_a_file_than_a_queued_one() -> None:
    explanation = api.Explanation(
        tablet="last",
        table="events",
        sentences=(),
        left={"a": "too large", "b": "too new"},
        running=("att-1",),
        inputs=(("c",),),
    )
    assert tablet.file_states(explanation, [planned("b", "c")]) == {
        "a": ("left", "too large"),
        "b": ("queued", "queued: 2 files"),
        "c": ("running", "reserved by attempt att-1"),
    }


@pytest.mark.parametrize(
    ("bounds", "fields"),
    [
        ({"start": "10", "end": "20"}, {"start": "11", "end": "20"}),
        ({"start": "10", "end": "+inf"}, {"start": "11"}),
        ({"start": None, "end": "20"}, {"end": "20"}),
        ({"partition": "day=1"}, {"start": "day=1", "end": "day=1"}),
    ],
)
def test_a_request_for_a_tablet_begins_after_the_tablet_before_it(
    bounds: dict[str, Any], fields: dict[str, str]
) -> None:
    entry = api.Tablet(tablet="last", files=0, size_bytes=0, rows=0, **bounds)
    files = [file("b", "100", "120"), file("a", "11", "13")]
    assert tablet.compact_range(EVENTS, entry, files) == fields


# --------------------------------------------------------------------------------------------- Jobs


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        (12, "maintenance, 12 points in its class: 2 files"),
        (10_004, "request, 4 points in its class: 2 files"),
        (20_500, "tablet over its limit of files, 500 points in its class: 2 files"),
        (30_002, "urgent request, 2 points in its class: 2 files"),
    ],
)
def test_a_priority_is_explained(priority: int, words: str) -> None:
    assert jobs.why_priority(planned("a", "b", priority=priority)) == words


def test_queues_keep_the_order_of_starts_and_groups_without_jobs() -> None:
    listed = [
        planned("a", group="small"),
        planned("b", group="default"),
        planned("c", group="small"),
    ]
    queues = jobs.group_queues(listed, [GROUP, replace(GROUP, group="idle")], "")

    assert [(queue.group, [job.files for job in queue.jobs]) for queue in queues] == [
        ("default", [("b",)]),
        ("idle", []),
        ("small", [("a",), ("c",)]),
    ]
    assert [queue.counts is None for queue in queues] == [False, False, True]
    assert [queue.group for queue in jobs.group_queues(listed, None, "small")] == ["small"]


def test_queued_jobs_are_found_by_table_tablet_and_id() -> None:
    listed = [planned("a"), planned("b", table="orders", tablet="0a", id="job-5")]
    assert jobs.with_text("vent", listed) == listed[:1]
    assert jobs.with_text("0a", listed) == listed[1:]
    assert jobs.with_text("job-5", listed) == listed[1:]


RUNNING = api.Job(
    id="job-0",
    attempt="att-1",
    table="events",
    tablet="last",
    kind="SYSTEM",
    group="default",
    compactor="local-1",
    inputs=3,
    input_bytes=300,
    since_s=NOW_S - 60,
    state="rewriting",
    fraction=0.25,
    moved_bytes=6000,
    granted_bytes_s=1024.0,
    waited_s=2.0,
)


def test_a_running_job_has_a_rate_and_an_estimated_end() -> None:
    row = jobs.running_row(RUNNING, {"local-1": COMPACTOR}, NOW_S)

    assert (row.elapsed_s, row.rate_bytes_s, row.eta_s, row.node) == (60, 100, 180, "node-a")
    assert row.throttle == "granted 1.0 KiB/s, waited 2.0 s"
    young = jobs.running_row(replace(RUNNING, fraction=0.001, moved_bytes=0), {}, NOW_S)
    assert (young.rate_bytes_s, young.eta_s, young.node) == (None, None, "")


def test_the_last_hour_has_running_and_finished_jobs_by_compactor() -> None:
    spans = jobs.job_spans([RUNNING], {"orders": [finished(compactor="", end="failed")]}, NOW_S)

    assert [(span.lane, span.kind) for span in spans] == [
        ("local-1", "running"),
        ("no compactor", "failed"),
    ]
    assert spans[1].title == "orders: failed after 10.0 s, 300 B to 200 B"
    assert spans[1].href == "/console/history?table=orders&attempt=att-1"


def test_a_finished_attempt_has_estimates_node_and_logs() -> None:
    attempt = finished(expected_files=1, expected_bytes=150, expected_s=5.0, gain=2)
    row = jobs.finished_row("events", attempt, {"local-1": COMPACTOR})

    assert row.estimates == (
        ("bytes", "150 B", "200 B"),
        ("files", "1", "1"),
        ("files fewer to read", "0", "2"),
        ("time", "5.0 s", "10.0 s"),
    )
    assert (row.node, row.logs) == ("node-a", ("compactor-local-1.log", "driver-local-1.log"))
    failed = jobs.finished_row("events", replace(attempt, end="failed"), {})
    assert failed.estimates == ()
    gone = jobs.finished_row("events", finished(compactor=""), {})
    assert (gone.node, gone.logs, gone.estimates) == ("", (), ())


def test_the_history_is_filtered_by_result_and_by_the_beginning_of_ids() -> None:
    row = jobs.finished_row("events", finished(), {})
    assert jobs.matches(row, "", "")
    assert jobs.matches(row, "committed", "job-")
    assert not jobs.matches(row, "failed", "")
    assert not jobs.matches(row, "", "ob-1")


# ----------------------------------------------------------------------------------------- Requests


def test_the_bar_of_a_request_adds_up() -> None:
    progress = api.Progress(tablets=8, done=2, waiting=1, pending=4, cancelled=1)
    assert [(step.state, step.x, step.width) for step in requests.progress_steps(progress)] == [
        ("done", 0.0, 25.0),
        ("waiting", 25.0, 12.5),
        ("pending", 37.5, 50.0),
        ("cancelled", 87.5, 12.5),
    ]
    assert requests.progress_steps(None) == ()


def test_reasons_of_waiting_tablets_are_counted() -> None:
    entries = [
        api.RequestTablet(tablet="01", state="waiting", reason="a job runs"),
        api.RequestTablet(tablet="02", state="done", reason="a job runs"),
        api.RequestTablet(tablet="03", state="waiting", reason="a job runs"),
        api.RequestTablet(tablet="04", state="pending", reason="a split is under way"),
    ]
    assert requests.waits(entries) == [("a job runs", 2), ("a split is under way", 1)]


def test_a_result_lists_only_changes_that_were_made() -> None:
    result = api.Result(files_before=9, files_after=1, rows_before=90, rows_after=80, deleted=10)
    assert requests.result_rows(result) == [
        ("files", 9, 1, "count"),
        ("bytes", 0, 0, "bytes"),
        ("rows", 90, 80, "count"),
        ("rows deleted", None, 10, "count"),
    ]
    assert requests.result_rows(None) == []


def test_a_form_becomes_the_body_of_a_request() -> None:
    form = {
        "start": " a ",
        "end": "",
        "selector": "small",
        "boost": "-5",
        "set": "x = 1",
        "csrf": "t",
    }
    assert requests.request_body(form) == {
        "start": "a",
        "set": "x = 1",
        "selector": {"name": "small"},
        "boost": -5,
    }
    assert requests.request_body({"boost": "much"}) == {"boost": "much"}


# ------------------------------------------------------------------ Compactors, control, access


def decision(at_s: float, desired: int) -> api.ScalingDecision:
    return api.ScalingDecision(at_s=at_s, desired=desired, reason="")


def test_a_group_counts_its_compactors_by_state() -> None:
    scaling = api.GroupScaling(
        least=0,
        most=4,
        set_to=None,
        desired=3,
        starting=1,
        draining=0,
        reason="",
        decisions=(decision(1.0, 1), decision(2.0, 3)),
    )
    heard = [
        COMPACTOR,
        replace(COMPACTOR, compactor="local-2", ready=False),
        replace(COMPACTOR, compactor="local-3", draining=True),
        replace(COMPACTOR, compactor="other-1", group="other"),
    ]
    (entry,) = control.group_compactors([replace(GROUP, scaling=scaling)], heard)

    assert (entry.wanted, entry.starting, entry.running, entry.draining) == (3, 2, 1, 1)
    assert [change.desired for change in entry.decisions] == [3, 1]
    assert control.group_compactors([GROUP], [])[0].wanted is None


def series_of(groups: tuple[api.SeriesLine, ...] = (), **total: list[float | None]) -> api.Series:
    line = api.SeriesLine(values=total)
    return api.Series(
        now_s=NOW_S, start_s=NOW_S - 20, step_s=10.0, count=2, total=line, groups=groups
    )


def test_a_group_has_a_plot_of_what_was_recorded() -> None:
    values: dict[str, list[float | None]] = {
        "compactors_desired": [1.0, 3.0],
        "compactors": [None, 1.0],
        "compactors_draining": [None, None],
    }
    groups = (api.SeriesLine(name="default", values=values), api.SeriesLine(name="x", values={}))
    plots = control.group_plots(series_of(groups))

    assert {
        group: [(line.label, line.values) for line in lines] for group, lines in plots.items()
    } == {"default": [("wanted", [1.0, 3.0]), ("running", [None, 1.0])]}
    assert control.group_plots(None) == {}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"busy": 0}, "idle"),
        ({}, "busy"),
        ({"draining": True}, "draining"),
        ({"ready": False}, "starting"),
        ({"ready": False, "start_problem": "no Java"}, "does not start"),
        ({"backing_off_s": 3.0}, "backing off"),
    ],
)
def test_a_compactor_has_a_state(changed: dict[str, Any], word: str) -> None:
    assert control.slot_words(replace(COMPACTOR, **changed)) == word


def test_the_curve_shows_the_last_hour_and_now() -> None:
    backlog = 31.0 * 1024**3
    series = series_of(backlog_bytes=[backlog, backlog], shares_system=[240.0, None])
    figure = control.curve_figure(CONTROL, series)

    assert figure.backlog_max == backlog * 1.5
    assert figure.marks == ((667, 38),)
    assert figure.now == (645, 27)
    assert figure.now_text == "30.0 GiB, 250 shares"
    assert figure.line == ""
    assert control.curve_figure(CONTROL, None).marks == ()


def test_the_line_of_the_controller_ends_at_the_edge_of_the_figure() -> None:
    line = control.curve_line("points=0:50 1.5:100 30:1000,max_shares=0", 100)
    assert line == [(0.0, 50.0), (150.0, 100.0), (3000.0, 1000.0)]
    assert control.clipped(line, 150.0 + 2850.0 / 2) == [
        (0.0, 50.0),
        (150.0, 100.0),
        (1575.0, 550.0),
    ]
    assert control.clipped(line, 9000.0)[-1] == (9000.0, 1000.0)
    assert control.clipped([], 10.0) == []
    assert control.curve_line("points=a:b", 100) == []


def test_plots_of_the_controller_leave_out_what_was_not_recorded() -> None:
    series = series_of(backlog_bytes=[1.0, 2.0], shares_user=[None, 1000.0], used_user=[None, None])
    plots = control.control_plots(CONTROL, series)
    assert [(plot.name, [line.label for line in plot.lines]) for plot in plots] == [
        ("backlog", ["backlog"]),
        ("shares", ["user"]),
    ]
    (waits,) = control.control_plots(CONTROL, series_of(reader_wait_s=[0.2, None]))
    assert [(line.label, line.values) for line in waits.lines] == [
        ("average", [0.2, None]),
        ("target", [0.1, 0.1]),
    ]
    assert control.control_plots(CONTROL, None) == []
    assert control.times_of(series) == [NOW_S - 20, NOW_S - 10]


def test_a_search_finds_tables_by_part_and_ids_by_beginning() -> None:
    tables = [replace(EVENTS, name=name, id=name) for name in ("old-events", "events", "orders")]
    assert [hit.name for hit in access.table_hits("event", tables)] == ["events", "old-events"]

    hits = access.job_hits("job", [RUNNING], [planned("a"), planned("b", id="x")])
    assert [(hit.kind, hit.name) for hit in hits] == [
        ("running job", "job-0"),
        ("queued job", "job-9"),
    ]
    assert access.job_hits("ob", [RUNNING], [planned("a")]) == []
    (hit,) = access.attempt_hits("att-", "events", [finished(), finished("other", job="x")])
    assert hit.href == "/console/history?table=events&attempt=att-1"


def test_what_is_a_warning_and_of_a_group_or_compactor_is_said_once() -> None:
    full = "group default is overloaded: its queue (9 jobs) has been full for 5 m 00 s"
    broken = "compactor local-1 of group default cannot start: no Java"
    status = api.Status(
        coordinator="c",
        started_s=0.0,
        now_s=NOW_S,
        groups=(replace(GROUP, overloaded=True, full_s=300.0, problems=(full,)),),
        compactors=(replace(COMPACTOR, start_problem="no Java", problems=(broken,)),),
        tables=1,
        tablets_known=1,
        committed=0,
        failed=0,
        released=0,
        conflicts=0,
        quarantined=0,
        warnings=(full, broken, "something else"),
    )
    listed = needs(status, ())

    assert [(need.text, need.is_grave, need.link) for need in listed] == [
        (full, True, "group default"),
        (broken, True, "compactor local-1"),
        ("something else", False, ""),
    ]
    assert listed[0].href == "/console/queues?group=default"
    assert headline(listed, status, (), (), ()) == "2 things need you"
    assert top.needs(status) == [full, broken, "something else"]


def test_write_amplification_is_what_jobs_write_for_what_has_arrived() -> None:
    days = (
        api.TableDay(day="2026-11-27", bytes_in=300, bytes_out=200),
        api.TableDay(day="2026-11-28", bytes_in=500, bytes_out=400),
    )
    assert write_amplification(days, 600.0) == 600 / 800
    assert write_amplification((), 600.0) is None
    assert write_amplification(days, -300.0) is None
