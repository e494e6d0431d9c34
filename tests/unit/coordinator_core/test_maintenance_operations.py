"""The rows of a tablet's maintenance operations: each says what the deciding code says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.model.file import DataFile
from common.model.group import Service
from common.model.job import CLASS_WIDTH, JobAction, Kind, TabletPlan
from common.model.table import LAKE_OPERATIONS, Column, Table, TableSettings
from common.model.tablet import (
    PLUS_INFINITY,
    Analysis,
    Bounds,
    Record,
    Reservation,
    Tablet,
    TabletId,
)
from common.plugins import load_planner
from common.spi.planner import COLD, Heat, Surroundings
from coordinator.core.maintenance import (
    KINDS,
    GarbageCounts,
    JobNeeds,
    OperationName,
    TabletFacts,
    queue_priority,
    ranked,
    tablet_operations,
)
from coordinator.core.planning import plan_tablet
from neve import api
from tests.support.planning import job

pytestmark = pytest.mark.unit

MIB = 1024**2
TABLE = Table(
    id="t1", name="events", location="file:///e", schema=(Column("x", "int64"),), key=("x",)
)  # fmt: skip
LAST = TabletId("t1", PLUS_INFINITY)


PLANNERS = {name: load_planner(name) for name in ("ratio", "delta")}


def tablet_of(*sizes: int, **given: Any) -> Tablet:
    files = {
        f"f{n}": DataFile(path=f"f{n}", size_bytes=size, rows=1) for n, size in enumerate(sizes)
    }
    return Tablet(id=LAST, bounds=Bounds(None, PLUS_INFINITY), files=files, **given)


def planned(tablet: Tablet, table: Table = TABLE) -> TabletPlan:
    services = {"default": Service()}
    return plan_tablet(tablet, table, services, PLANNERS, 0.0)


def rows_of(
    tablet: Tablet, table: Table = TABLE, **given: Any
) -> dict[str, api.MaintenanceOperation]:
    facts = TabletFacts(
        **{"tablet": tablet, "table": table, "plan": planned(tablet, table)} | given
    )
    return {row.kind: row for row in tablet_operations(facts)}


def with_settings(**settings: Any) -> Table:
    return replace(TABLE, settings=TableSettings(**settings))


def test_each_kind_is_registered_and_each_row_has_its_estimates() -> None:
    of_tables = {OperationName.MANIFEST, OperationName.FLUSH, *LAKE_OPERATIONS}
    assert set(KINDS) == set(OperationName) - of_tables
    rows = rows_of(tablet_of(MIB, MIB, MIB, MIB))
    assert list(rows) == [name.value for name in KINDS]
    for row in rows.values():
        assert row.why, row
        assert row.state, row
    without_key = rows_of(tablet_of(MIB), replace(TABLE, key=()))
    for kind in ("minor-delta", "major-delta"):
        assert rows[kind].state == "idle"
        assert without_key[kind].state == "not-applicable"


def test_a_merge_has_the_figures_of_the_planner_s_job() -> None:
    tablet = tablet_of(MIB, MIB, MIB, MIB, 1000 * MIB)
    (wanted,) = planned(tablet).jobs
    needs = JobNeeds(memory_bytes=77, slot_bytes_s=2 * MIB)
    row = rows_of(tablet, needs=lambda _group: needs)["merging"]
    assert (row.state, row.why, row.jobs, row.files) == ("runnable", wanted.reason, 1, 4)
    assert (row.gain, row.gain_unit, row.cost_bytes) == (3.0, "files fewer", 8 * MIB)
    assert (row.memory_bytes, row.cpu_s, row.group) == (77, 2.0, "default")
    assert (row.score, row.priority) == (3.0, wanted.priority), "small jobs cost one unit"
    large = rows_of(tablet_of(*[64 * MIB] * 4))["merging"]
    assert large.score == 3.0 / 8, "gain per 64 MiB read and written"


def test_a_merge_that_is_not_wanted_or_may_not_begin_says_why() -> None:
    idle = rows_of(tablet_of(1000 * MIB, MIB))
    assert idle["merging"].state == "idle"
    (why,) = set(planned(tablet_of(1000 * MIB, MIB)).left.values())
    assert idle["merging"].why == f"2 files: {why}"
    held = rows_of(tablet_of(MIB, MIB, MIB, MIB), why_held=lambda _job: "failed once: out of luck")
    assert (held["merging"].state, held["merging"].why) == ("waiting", "failed once: out of luck")
    failed = rows_of(tablet_of(MIB, MIB, MIB), plan=TabletPlan(), failure="planner x: boom")
    assert (failed["merging"].state, failed["merging"].why) == ("waiting", "planner x: boom")
    waiting = rows_of(tablet_of(MIB, MIB, MIB, waiting={"r1": 0.0}))["merging"]
    assert waiting.state == "waiting"
    assert waiting.why == "request r1 waits to select files; no system job starts until then"


def test_what_runs_is_not_begun_a_second_time() -> None:
    entry = Reservation(
        attempt="a", job="j", kind=Kind.SYSTEM, inputs=("f0", "f1", "f2", "f3"), output_prefix="o",
        outputs_max=1, group="default", compactor="c", since_s=0.0, now_s=0.0,
    )  # fmt: skip
    row = rows_of(tablet_of(MIB, MIB, MIB, MIB, running={"a": entry}))["merging"]
    assert (row.state, row.running, row.jobs) == ("running", 1, 0)


def test_a_drop_frees_space_and_costs_nothing() -> None:
    drop = job("d", inputs=("f0", "f1"), input_bytes=9, action=JobAction.DROP.value, tablet=LAST)
    rows = rows_of(tablet_of(4, 5), plan=TabletPlan(jobs=(drop,)))
    assert (rows["drops"].state, rows["drops"].freed_bytes) == ("runnable", 9)
    assert (rows["drops"].cost_bytes, rows["drops"].memory_bytes) == (0, 0)
    assert rows["merging"].state == "idle"
    first = ranked(tuple(rows.values()))
    ranks = {row.kind: (row.rank, row.step) for row in first if row.rank}
    assert ranks == {"drops": (1, "space"), "analysis": (2, "score")}
    assert rows["drops"].priority == CLASS_WIDTH - 1, "it is the first of its class in the queue"


def overlapping(*sizes: int) -> Tablet:
    """Return a tablet of files over the same keys, the first one the largest."""
    tablet = tablet_of(*sizes)
    files = {
        path: replace(file, key_min=b"a", key_max=b"b", rows=max(1, file.size_bytes // 1000))
        for path, file in tablet.files.items()
    }
    return replace(tablet, files=files)


def by_delta(tablet: Tablet, heat: Heat = COLD) -> dict[str, api.MaintenanceOperation]:
    table = with_settings(planner="delta")
    around = Surroundings(heat=heat)
    plan = plan_tablet(tablet, table, {"default": Service()}, PLANNERS, 0.0, around=around)
    return rows_of(tablet, table, plan=plan, heat=heat)


def test_delta_compactions_have_kudus_scores_and_the_figures_of_their_jobs() -> None:
    few = by_delta(overlapping(100 * MIB, *[MIB] * 5))
    assert (few["minor-delta"].state, few["minor-delta"].score) == ("runnable", 5 / 1000)
    assert (few["minor-delta"].files, few["minor-delta"].gain) == (5, 4.0)
    assert few["minor-delta"].cost_bytes == 10 * MIB
    assert (few["major-delta"].state, few["major-delta"].score) == ("idle", 0.0)
    assert few["merging"].state == "idle"
    much = by_delta(overlapping(100 * MIB, *[11 * MIB] * 5))
    assert (much["major-delta"].state, much["major-delta"].score) == ("runnable", 0.55)
    assert much["major-delta"].why.startswith("major: 55 % of the rows")
    assert much["minor-delta"].state == "idle"
    none = by_delta(overlapping(100 * MIB))
    assert none["minor-delta"].why == "no deltas: no file overlaps a larger one"
    other = rows_of(overlapping(100 * MIB, MIB))["major-delta"]
    assert (other.state, other.why.split(":")[0]) == (
        "idle",
        "its planner has no separate delta jobs",
    )


def test_scans_raise_a_major_delta_compaction_and_writes_do_not() -> None:
    tablet = overlapping(100 * MIB, 30 * MIB)
    adjusted = {
        name: by_delta(tablet, heat)["major-delta"].adjusted
        for name, heat in (
            ("cold", COLD), ("read", Heat(scans_s=1.0)), ("written", Heat(rows_s=1000.0))
        )
    }  # fmt: skip
    assert adjusted == {"cold": 0.3, "read": 1.3, "written": 0.3}


def test_no_merge_can_run_whose_output_does_not_fit_into_the_free_space() -> None:
    tablet, table = tablet_of(MIB, MIB, MIB, MIB), with_settings(keep_free_bytes=10 * MIB)

    def row(free_bytes: int | None) -> api.MaintenanceOperation:
        around = Surroundings(free_bytes=free_bytes)
        plan = plan_tablet(tablet, table, {"default": Service()}, PLANNERS, 5.0, around=around)
        if free_bytes == 14 * MIB - 1:
            assert plan.due_at_s == 35.0, "it is looked at again"
            assert set(plan.left) == set(tablet.files)
        return rows_of(tablet, table, plan=plan)["merging"]

    assert row(14 * MIB).state == "runnable"
    assert row(None).state == "runnable", "nobody has measured"
    short = row(14 * MIB - 1)
    assert (short.state, short.rank) == ("idle", None)
    assert "a job would write up to 4.0 MiB: 14.0 MiB are free" in short.why


def test_splits_and_merges_say_what_their_rules_say() -> None:
    large = rows_of(tablet_of(3 * MIB), with_settings(split_bytes=2 * MIB))["split"]
    assert (large.state, large.gain) == ("runnable", 0.5)
    assert large.why == "its files have 3.0 MiB, more than split_bytes 2.0 MiB"
    small = rows_of(tablet_of(MIB), with_settings(split_bytes=2 * MIB))["split"]
    assert (small.state, small.why) == (
        "idle", "its files have 1.0 MiB, not more than split_bytes 2.0 MiB"
    )  # fmt: skip
    assert (
        rows_of(tablet_of(MIB))["split"].why
        == "the table's setting split_bytes is 0, which disables splits"
    )
    table = with_settings(merge_bytes=4 * MIB)
    right = replace(tablet_of(MIB), bounds=Bounds(b"m", PLUS_INFINITY))
    left = replace(tablet_of(MIB), id=TabletId("t1", b"m"), bounds=Bounds(None, b"m"))
    merged = rows_of(left, table, right=right)["merge"]
    assert (merged.state, merged.score, merged.cost_bytes) == ("runnable", 0.5, 0)
    busy = replace(right, waiting={"r1": 0.0})
    assert rows_of(left, table, right=busy)["merge"].why == (
        "a request, a split or a merge is active in tablet last"
    )
    assert rows_of(right, table)["merge"].state == "idle"


def test_garbage_and_looks_say_what_collector_and_scan_say() -> None:
    counts = GarbageCounts(waiting=5, deletable=2)
    some = rows_of(tablet_of(1), garbage=counts)["garbage"]
    assert (some.state, some.files, some.gain) == ("runnable", 5, 2.0)
    kept = rows_of(tablet_of(1), garbage=GarbageCounts(waiting=5))["garbage"]
    assert kept.state == "waiting"
    assert rows_of(tablet_of(1))["garbage"].state == "idle"
    assert rows_of(tablet_of(1))["analysis"].state == "runnable"
    known = Record(version=3, analysis=Analysis.STABLE, analysis_version=3, analysis_settings=1)
    rests = rows_of(tablet_of(1, record=known))["analysis"]
    assert (rests.state, rests.why) == (
        "idle", "its record states stable for these files and settings"
    )  # fmt: skip


def test_of_equal_operations_workload_and_priority_decide() -> None:
    tablet = tablet_of(MIB, MIB, MIB, MIB)
    cold, hot = rows_of(tablet), rows_of(tablet, heat=Heat(scans_s=0.5, rows_s=100.0))
    assert (cold["merging"].adjusted, hot["merging"].adjusted) == (3.0, 3.6)
    dear = rows_of(tablet, with_settings(maintenance_priority=2))["merging"]
    assert dear.adjusted == pytest.approx(3.0 * 1.1**2)


def test_jobs_rank_as_in_the_queue_and_space_is_freed_first() -> None:
    tablet, busy = tablet_of(MIB, MIB, MIB, MIB), with_settings(workload_points=10)
    cold = rows_of(tablet, busy, garbage=GarbageCounts(waiting=3, deletable=3))
    hot = replace(rows_of(tablet, busy, heat=Heat(scans_s=0.5))["merging"], tablet="00")
    assert (cold["merging"].priority, hot.priority) == (8, 13)
    rows = ranked((cold["merging"], cold["analysis"], hot, cold["garbage"]))
    assert [(row.kind, row.rank, row.step) for row in rows] == [
        ("merging", 3, "score"), ("analysis", 4, "score"),
        ("merging", 2, "score"), ("garbage", 1, "space"),
    ]  # fmt: skip


def test_with_gain_points_the_score_is_the_rank_of_a_job() -> None:
    small = job("s", 10, inputs=("a", "b", "c"), input_bytes=MIB)
    large = job("l", 4000, inputs=tuple("abcdefghi"), input_bytes=1024 * MIB)
    table = with_settings(gain_points=100, maintenance_priority=1)
    ranks = {each.id: queue_priority(each, table, COLD) for each in (small, large)}
    assert ranks == {"s": round(200 * 1.1), "l": round(25 * 1.1)}, "2, and 8 per 32 times 64 MiB"
    over = replace(small, priority=2 * CLASS_WIDTH + 7)
    assert queue_priority(over, table, COLD) == 2 * CLASS_WIDTH + 220, "it stays in its class"
    urgent = replace(small, priority=3 * CLASS_WIDTH + 7)
    assert queue_priority(urgent, table, COLD) == urgent.priority
    tablet = tablet_of(MIB, MIB, MIB, MIB)
    row = rows_of(tablet, with_settings(gain_points=100))["merging"]
    assert (row.score, row.priority) == (3.0, 300)


def test_an_analysis_of_live_bytes_is_listed_when_somebody_asks() -> None:
    tablet = tablet_of(MIB)
    idle = rows_of(tablet)["statistics"]
    assert (idle.state, idle.why) == (
        "idle", "100% of its bytes are not counted; `neve analyze events` asks for it"
    )  # fmt: skip
    triggered = rows_of(tablet, with_settings(triggers=("analysis",)), plan=TabletPlan())
    assert triggered["statistics"].why.endswith("the trigger analysis asks from 50% on")
    asked = replace(tablet, record=Record(files=1, analysis_group="small"))
    row = rows_of(asked)["statistics"]
    assert (row.state, row.group, row.priority, row.cost_bytes) == ("runnable", "small", 0, MIB)
    assert rows_of(asked, why_held=lambda _job: "paused")["statistics"].state == "waiting"


def test_only_system_jobs_of_tables_that_ask_for_it_get_another_priority() -> None:
    hot, system = Heat(scans_s=9.0, rows_s=0.0), job("j", 10)
    table = with_settings(workload_points=7, maintenance_priority=1)
    assert queue_priority(system, TABLE, hot) == 10
    assert queue_priority(system, table, hot) == round(17 * 1.1)
    assert queue_priority(replace(system, kind=Kind.USER), table, hot) == 10
