"""Which files may be merged, who is asked, and what is done about a bad answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from common.errors import PluginError
from common.model.group import Service
from common.model.job import (
    AttemptWork,
    JobAction,
    Kind,
    Plan,
    PlannedJob,
    TabletPlan,
    job_id,
)
from common.model.keys import SPLIT_BYTES_MAX
from common.model.outcome import TabletStatistics
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import (
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Record,
    Reservation,
    Selection,
    Tablet,
)
from common.spi.planner import (
    DispatchParameters,
    Heat,
    Planner,
    PlanParameters,
    RequestFacts,
    Surroundings,
)
from coordinator.core.planning import plan_tablet
from coordinator.plugins.dispatchers import SimpleDispatcher
from coordinator.plugins.planners.ratio import RatioPlanner
from tests.support.planning import TABLET, files_of

TABLE = Table(id="t1", name="events", location="file:///x", schema=())
SERVICES = {"default": Service()}
NOW_S = 1000.0
EQUAL = files_of(dict.fromkeys("abcdefgh", 10))


def tablet(**given: object) -> Tablet:
    facts = {"id": TABLET, "bounds": Bounds(None, TABLET.end), "files": EQUAL}
    return Tablet(**(facts | given))  # type: ignore[arg-type]  # facts by name


def running(
    attempt: str, *inputs: str, kind: Kind = Kind.SYSTEM, request: str | None = None
) -> Reservation:
    return Reservation(
        attempt=attempt, job="j", kind=kind, inputs=inputs, output_prefix="o", outputs_max=1,
        group="default", compactor="c", since_s=0, now_s=0, request=request,
    )  # fmt: skip


def planned(given: Tablet, table: Table = TABLE, **more: object) -> TabletPlan:
    planners = {"ratio": RatioPlanner()}
    return plan_tablet(given, table, SERVICES, planners, NOW_S, **more)  # type: ignore[arg-type]  # facts by name


def sets(plan: TabletPlan) -> list[tuple[str, str]]:
    return [(job.kind.value, "".join(job.inputs)) for job in plan.jobs]


def test_all_free_files_are_candidates() -> None:
    plan = planned(tablet())
    assert sets(plan) == [("SYSTEM", "abcdefgh")]
    assert plan.left == {}
    (job,) = plan.jobs
    assert (job.tablet, job.table_name, job.input_bytes, job.request) == (
        TABLET,
        "events",
        80,
        None,
    )
    assert planned(tablet()).jobs[0].id == job.id


@pytest.mark.parametrize(
    ("given", "table", "why"),
    [
        (tablet(), replace(TABLE, state=TableState.PAUSED), "table events is paused"),
        (tablet(), replace(TABLE, state=TableState.GOING), "table events is going"),
        (
            tablet(operation=Operation(OperationKind.SPLIT, "o1", OperationStep.DRAIN)),
            TABLE,
            "the tablet is busy with a split",
        ),
    ],
)
def test_nothing_is_planned_where_nothing_may_start(given: Tablet, table: Table, why: str) -> None:
    plan = planned(given, table)
    assert plan.jobs == ()
    assert plan.left == dict.fromkeys(EQUAL, why)


def test_running_and_open_files_are_left_out() -> None:
    files = EQUAL | {"h": replace(EQUAL["h"], open=True)}
    plan = planned(tablet(files=files, running={"at1": running("at1", "a", "b")}))
    assert not {"a", "b", "h"} & {path for job in plan.jobs for path in job.inputs}
    assert plan.left["a"] == plan.left["b"] == "being merged by at1"
    assert plan.left["h"] == "still being written"


def test_a_waiting_request_holds_system_jobs_back_but_not_another_requests() -> None:
    selection = Selection(request="r1", files=("a", "b"), since_s=NOW_S)
    plan = planned(tablet(waiting={"r2": 5.0}, selection=selection))
    assert sets(plan) == [("USER", "ab")]
    assert plan.left["c"] == "request r2 waits to select files; no system job starts until then"


def test_a_selection_divides_the_tablet() -> None:
    selection = Selection(request="r1", files=("a", "b"), since_s=NOW_S)
    plan = planned(tablet(selection=selection))
    assert sets(plan) == [("SYSTEM", "cdefgh"), ("USER", "ab")]
    assert [job.request for job in plan.jobs] == [None, "r1"]


@pytest.mark.parametrize(
    ("change", "system_may"),
    [
        ({}, True),
        ({"since_s": NOW_S - 120}, False),
        ({"completed_jobs": 1}, False),
    ],
)
def test_system_may_have_the_files_of_an_expired_hold(
    change: dict[str, float], system_may: bool
) -> None:
    selection = replace(Selection(request="r1", files=("a", "b"), since_s=NOW_S - 121), **change)  # type: ignore[arg-type]  # facts by name
    system = sets(planned(tablet(selection=selection)))[0]
    assert system == ("SYSTEM", "abcdefgh" if system_may else "cdefgh")


def test_a_hold_does_not_expire_while_a_job_of_it_runs() -> None:
    selection = Selection(request="r1", files=("a", "b", "c"), since_s=0)
    entry = running("at1", "c", kind=Kind.USER, request="r1")
    plan = planned(tablet(selection=selection, running={"at1": entry}))
    assert sets(plan) == [("SYSTEM", "defgh")]
    assert plan.left["c"] == "being merged by at1"
    assert plan.left["a"] == "is merged in a later step, after earlier jobs"


def test_one_result_is_not_merged_again() -> None:
    selection = Selection(request="r1", files=("a",), results=("a",), completed_jobs=1)
    plan = planned(tablet(files=files_of({"a": 5}), selection=selection))
    says = "request r1 holds 1 file, 1 of them made by its 1 completed job"
    assert plan == TabletPlan(left={"a": "held by r1"}, holds=(says,))
    fresh = replace(selection, results=())
    assert sets(planned(tablet(files=files_of({"a": 5}), selection=fresh))) == [("USER", "a")]


def test_hints_of_a_request_choose_the_service() -> None:
    services = {name: Service(name=name) for name in ("default", "default-user-big")}
    selection = Selection(request="r1", files=("a", "b"), since_s=NOW_S)
    facts = RequestFacts(request="r1", hints={"compaction_type": "big"})
    asked: list[str] = []

    @dataclass
    class Listening(SimpleDispatcher):
        def dispatch(self, parameters: DispatchParameters) -> str:
            asked.append(super().dispatch(parameters))
            return asked[-1]

    plan_tablet(
        tablet(selection=selection), TABLE, services, {"ratio": RatioPlanner()}, NOW_S,
        dispatcher=Listening(), requests={"r1": facts},
    )  # fmt: skip
    assert asked == ["default", "default-user-big"]


@dataclass
class Says:
    """A planner that gives one answer."""

    answer: Callable[[PlanParameters], object]

    def plan(self, parameters: PlanParameters) -> Plan:
        return self.answer(parameters)  # type: ignore[return-value]  # what a wrong one may return


LEVEL = (("level", "2"),)


def said(*jobs: PlannedJob) -> Says:
    return Says(lambda _: Plan(jobs=jobs))


def test_a_planner_is_told_heat_progress_free_space_and_statistics() -> None:
    asked: list[PlanParameters] = []

    def note(parameters: PlanParameters) -> Plan:
        asked.append(parameters)
        return Plan()

    found = TabletStatistics(tablet_version=3, measured_at_s=1.0, rows=9, updated_rows=2)
    given = tablet(
        running={"at1": running("at1", "a", "b"), "at2": running("at2", "c")},
        record=Record(statistics=found),
    )
    around = Surroundings(
        heat=Heat(scans_s=2.0, rows_s=3.0),
        progress={"at1": AttemptWork(read_share=0.5, written_bytes=7)},
        free_bytes=99,
    )
    plan_tablet(given, TABLE, SERVICES, {"ratio": Says(note)}, NOW_S, around=around)
    (parameters,) = asked
    assert (parameters.heat, parameters.free_bytes) == (around.heat, 99)
    assert parameters.statistics == found
    told, untold = parameters.running
    assert (told.read_bytes, told.written_bytes) == ({"a": 5, "b": 5}, 7)
    assert (untold.read_bytes, untold.written_bytes) == ({}, 0)


def wants(*files: str, **given: object) -> PlannedJob:
    facts = {"kind": Kind.SYSTEM, "group": "default", "priority": 1, "reason": "why not"}
    return PlannedJob(files=files, **(facts | given))  # type: ignore[arg-type]  # facts by name


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        (said(wants("a", "z")), "job 0 has 'z', which is not a candidate"),
        (said(wants("a", "b"), wants("b", "c")), "jobs 0 and 1 both have 'b'"),
        (said(wants("a", "a")), "job 0 names a file twice"),
        (said(wants()), "job 0 has no files"),
        (said(wants(*"abcd")), "job 0 has 4 files, expected at most 3"),
        (said(wants("a", group="none")), "job 0 is for group 'none', expected one of default"),
        (said(wants("a", kind=Kind.USER)), "job 0 is of kind USER, expected SYSTEM"),
        (said(wants("a", priority=1.5)), "job 0 has priority 1.5, expected a whole number"),
        (said(wants("a", reason="")), "job 0 has no reason, expected a sentence"),
        (
            said(wants("a", action=JobAction.DROP, outputs_expected=2)),
            "drops its files, but expects outputs",
        ),
        (said(wants("a", action="burn")), "has action 'burn', expected a JobAction: rewrite, drop"),
        (
            said(wants("a", action=JobAction.MOVE)),
            r"moves its files, but has no output_tags for them",
        ),
        (
            said(wants("a", action=JobAction.MOVE, outputs_expected=2, output_tags=LEVEL)),
            "moves its files, but expects outputs",
        ),
        (said(wants("a", outputs_expected=-1)), "expects -1 outputs, expected 0 to 10000"),
        (said(wants("a", cuts=(b"b", b"a"))), "job 0 has cuts that are not in ascending order"),
        (said(wants("a", depends_on=(0,))), "depends on job 0, expected an earlier one"),
        (Says(lambda _: 1 // 0), "ZeroDivisionError"),
        (Says(lambda _: None), "returned NoneType, expected a Plan"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(planner: Says, message: str) -> None:
    table = replace(TABLE, settings=TableSettings(max_files=3))
    with pytest.raises(PluginError, match=message) as raised:
        plan_tablet(tablet(), table, SERVICES, {"ratio": planner}, NOW_S)
    assert str(raised.value).startswith("planner ratio, tablet t1;last: ")


def test_only_tables_with_a_key_have_outputs_cut() -> None:
    planners = {"ratio": said(wants("a", "b", cuts=(b"m",)))}
    keyed = replace(
        TABLE, schema=(Column("id", "int64"), Column("v", "int64")), key=("id",), version_column="v"
    )
    (job,) = plan_tablet(tablet(), keyed, SERVICES, planners, NOW_S).jobs
    assert job.cuts == (b"m",)
    with pytest.raises(PluginError, match="job 0 has cuts, but the table has no key"):
        plan_tablet(tablet(), TABLE, SERVICES, planners, NOW_S)
    long = {"ratio": said(wants("a", "b", cuts=(b"m" * (SPLIT_BYTES_MAX + 1),)))}
    with pytest.raises(PluginError, match=f"has a cut of more than {SPLIT_BYTES_MAX} bytes"):
        plan_tablet(tablet(), keyed, SERVICES, long, NOW_S)


def test_a_tablet_with_many_unmeasured_bytes_is_to_be_analyzed() -> None:
    asking = replace(TABLE, settings=TableSettings(triggers=("analysis", "change")))
    planners = {"ratio": said()}
    assert plan_tablet(tablet(), asking, SERVICES, planners, NOW_S).analysis_group == "default"
    assert plan_tablet(tablet(), TABLE, SERVICES, planners, NOW_S).analysis_group == ""


TIMED = replace(TABLE, schema=(Column("at", "timestamp[us]"),), time_column="at")


def cut_at(*times_s: float, **given: object) -> PlannedJob:
    facts = {"outputs_expected": 4, "cuts_at_s": times_s}
    return wants("a", "b", **(facts | given))


def test_a_table_without_a_key_has_outputs_cut_at_times() -> None:
    planner = said(cut_at(10.0, 20.0, output_rows_max=3))
    (job,) = plan_tablet(tablet(), TIMED, SERVICES, {"ratio": planner}, NOW_S).jobs
    assert (job.cuts_at_s, job.output_rows_max, job.outputs_expected) == ((10.0, 20.0), 3, 4)
    other = said(cut_at(10.0, 21.0))
    (another,) = plan_tablet(tablet(), TIMED, SERVICES, {"ratio": other}, NOW_S).jobs
    uncut = said(wants("a", "b"))
    (plain,) = plan_tablet(tablet(), TIMED, SERVICES, {"ratio": uncut}, NOW_S).jobs
    assert len({job.id, another.id, plain.id}) == 3
    assert plain.id == job_id(TABLET, Kind.SYSTEM, None, ("a", "b"))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (cut_at(20.0, 10.0), "has cuts at times that are not in ascending order"),
        (cut_at(10.0, 10.0), "has cuts at times that are not in ascending order"),
        (cut_at(float("nan")), "has cuts at times that are not in ascending order"),
        (cut_at(float("inf")), "has cuts at times that are not in ascending order"),
        (cut_at(*map(float, range(33)), outputs_expected=99), "has 33 cuts at times, expected at"),
        (cut_at(1.0, output_rows_max=-1), "has output_rows_max -1, expected at least 0"),
        (cut_at(output_rows_max=5), "has output_rows_max, but no cuts_at_s"),
        (cut_at(1.0, 2.0, outputs_expected=3), "expects 3 outputs, expected at least 4 because of"),
        (cut_at(1.0, 2.0, output_rows_max=2), "expects 4 outputs, expected at least 5 because of"),
        (
            cut_at(1.0, outputs_expected=0, action=JobAction.DROP),
            "drops its files, but expects outputs",
        ),
    ],
)
def test_wrong_cuts_at_times_are_refused(job: PlannedJob, message: str) -> None:
    with pytest.raises(PluginError, match=f"job 0 {message}"):
        plan_tablet(tablet(), TIMED, SERVICES, {"ratio": said(job)}, NOW_S)


def test_only_tables_with_times_and_without_a_key_are_cut_at_times() -> None:
    planners: dict[str, Planner] = {"ratio": said(cut_at(10.0))}
    with pytest.raises(PluginError, match="cuts at times, but the table has no time column"):
        plan_tablet(tablet(), TABLE, SERVICES, planners, NOW_S)
    columns = (*TIMED.schema, Column("id", "int64"), Column("v", "int64"))
    keyed = replace(TIMED, schema=columns, key=("id",), version_column="v")
    with pytest.raises(PluginError, match="cuts at times, but the table has a key"):
        plan_tablet(tablet(), keyed, SERVICES, planners, NOW_S)


def test_jobs_in_a_row_may_share_files() -> None:
    first, second = wants("a", "b"), wants("b", "c", depends_on=(0,))
    third = wants("a", "c", depends_on=(1,))
    planners = {"ratio": said(first, second, third)}
    plan = plan_tablet(tablet(), TABLE, SERVICES, planners, NOW_S)
    assert [job.depends_on for job in plan.jobs] == [(), (plan.jobs[0].id,), (plan.jobs[1].id,)]
    assert plan.left["h"] == "planner ratio gave no reason"


def test_a_broken_planner_does_not_stop_the_other_kind() -> None:
    def only_user(parameters: PlanParameters) -> Plan:
        assert parameters.kind is Kind.USER, "no idea"
        return RatioPlanner().plan(parameters)

    selection = Selection(request="r1", files=("a", "b"), since_s=NOW_S)
    planners = {"ratio": Says(only_user)}
    plan = plan_tablet(tablet(selection=selection), TABLE, SERVICES, planners, NOW_S)
    assert sets(plan) == [("USER", "ab")]
    assert plan.left["c"].startswith("planner ratio, tablet t1;last: AssertionError: no idea")


def test_a_missing_service_or_planner_is_named() -> None:
    table = replace(TABLE, settings=TableSettings(service="gone"))
    with pytest.raises(
        PluginError, match="service 'gone' is not configured, expected one of default"
    ):
        planned(tablet(), table)
    services = {"default": Service(planner="magic")}
    with pytest.raises(PluginError, match="planner 'magic' is not loaded, expected one of ratio"):
        plan_tablet(tablet(), TABLE, services, {"ratio": RatioPlanner()}, NOW_S)

    class Broken:
        def dispatch(self, parameters: DispatchParameters) -> str:
            raise KeyError(parameters.kind)

    with pytest.raises(PluginError, match="table events: the dispatcher failed: KeyError"):
        planned(tablet(), dispatcher=Broken())


def test_a_plan_names_the_requests_that_hold_or_wait_for_files() -> None:
    chosen = Selection(request="auto-1-2", files=("a", "b"), results=("a",), completed_jobs=2)
    plan = planned(tablet(selection=chosen))
    assert sets(plan)[-1][0] == "USER"
    assert plan.holds == (
        "request auto-1-2 (made by the table's selector) holds 2 files, "
        "1 of them made by its 2 completed jobs",
    )
    waits = planned(tablet(waiting={"r2": NOW_S, "r1": NOW_S - 1}))
    assert [sentence.split()[1] for sentence in waits.holds] == ["r1", "r2"]
    assert set(waits.left.values()) == {waits.holds[0]}
    assert planned(tablet()).holds == ()


class OnlySystem:
    """A planner that was written without a thought of requests."""

    def plan(self, parameters: PlanParameters) -> Plan:
        return Plan(left={file.path: "is large" for file in parameters.candidates})


class Eager:
    """A planner that takes whatever it is shown."""

    def plan(self, parameters: PlanParameters) -> Plan:
        files = tuple(sorted(file.path for file in parameters.candidates))
        job = PlannedJob(
            kind=parameters.kind, files=files, group="default", priority=1, reason="all"
        )
        return Plan(jobs=(job,))


def test_the_fallback_plans_what_a_planner_leaves_of_a_request() -> None:
    selected = Selection(request="r1", files=("a", "b"), since_s=NOW_S)
    services = {"default": Service(planner="own", options={"small_bytes": 1})}

    def wanted(**more: object) -> TabletPlan:
        given = tablet(selection=replace(selected, **more))  # type: ignore[arg-type]  # facts by name
        planners = {"own": OnlySystem()}
        return plan_tablet(given, TABLE, services, planners, NOW_S, fallback=RatioPlanner())

    plan = wanted()
    assert sets(plan) == [("USER", "ab")]
    assert plan.jobs[0].reason.endswith("(planner own takes no file of the request)")
    assert wanted(results=("a", "b")).jobs == (), "nothing is left to rewrite"
    running_here = {"a1": running("a1", "a", kind=Kind.USER, request="r1")}
    several = replace(selected, files=tuple("abcdefgh"))
    given = tablet(selection=several, running=running_here)
    waits = plan_tablet(given, TABLE, services, {"own": OnlySystem()}, NOW_S, fallback=Eager())
    assert waits.jobs == (), "the planner may wait for the job that runs"


def test_the_planner_of_a_table_comes_before_that_of_its_service() -> None:
    asked: list[PlanParameters] = []

    def answer(parameters: PlanParameters) -> Plan:
        asked.append(parameters)
        return Plan()

    settings = TableSettings(planner="own", planner_options={"size": "2MB"})
    table = replace(TABLE, settings=settings, time_column="at")
    services = {"default": Service(options={"ratio": 2.0})}
    planners = {"own": Says(answer), "ratio": RatioPlanner()}
    plan = plan_tablet(tablet(), table, services, planners, NOW_S)
    (parameters,) = asked
    assert parameters.options == {"size": "2MB"}
    assert (parameters.timed, parameters.bounds) == (True, Bounds(None, TABLET.end))
    assert plan.left["a"] == "planner own gave no reason"


def test_options_of_a_table_come_before_those_of_its_service() -> None:
    services = {"default": Service(options={"ratio": 50.0, "max_files": 3})}
    table = replace(TABLE, settings=TableSettings(planner="ratio", planner_options={"ratio": "2"}))
    plan = plan_tablet(tablet(), table, services, {"ratio": RatioPlanner()}, NOW_S)
    assert sets(plan)[0] == ("SYSTEM", "abc")
    assert plan.jobs[0].reason.startswith("ratio 2:")


def test_a_planner_of_a_table_that_is_not_installed_is_named() -> None:
    table = replace(TABLE, settings=TableSettings(planner="gone"))
    with pytest.raises(PluginError, match="planner 'gone' is not loaded, expected one of ratio"):
        planned(tablet(), table)


def test_a_drop_costs_nothing_and_is_told_to_the_compactor() -> None:
    planner = said(wants("a", "b", action=JobAction.DROP, outputs_expected=0), wants("c"))
    table = replace(TABLE, settings=TableSettings(planner="own"))
    drop, rewrite = plan_tablet(tablet(), table, SERVICES, {"own": planner}, NOW_S).jobs
    assert (drop.action, drop.cost_bytes) == ("drop", 0)
    assert (rewrite.action, rewrite.cost_bytes) == ("rewrite", 2 * rewrite.input_bytes)


def test_a_move_costs_nothing_and_is_another_job_than_a_rewrite_of_the_same_files() -> None:
    jobs = (
        wants("a", action=JobAction.MOVE, output_tags=LEVEL),
        wants("a", output_tags=LEVEL),
        wants("a", action=JobAction.MOVE, output_tags=(("level", "3"),)),
    )
    table = replace(TABLE, settings=TableSettings(planner="own"))
    found = [
        plan_tablet(tablet(), table, SERVICES, {"own": said(job)}, NOW_S).jobs[0] for job in jobs
    ]
    assert [(job.action, job.cost_bytes > 0) for job in found] == [
        *(("move", False), ("rewrite", True), ("move", False))
    ]
    assert len({job.id for job in found}) == 3


def test_files_of_a_request_are_not_moved() -> None:
    mover = said(wants("a", kind=Kind.USER, action=JobAction.MOVE, output_tags=LEVEL))
    held = tablet(selection=Selection(request="r1", files=("a",), since_s=NOW_S))
    with pytest.raises(PluginError, match="moves files of a request, expected a rewrite"):
        plan_tablet(held, TABLE, SERVICES, {"ratio": mover}, NOW_S, only=Kind.USER)
