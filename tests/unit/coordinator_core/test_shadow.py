"""A shadow planner is compared with the table's own, on files of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from common.model.file import DataFile
from common.model.group import Service
from common.model.job import Job, JobAction, Kind, TabletPlan
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import Bounds, Record, Tablet, TabletId
from common.settings import Settings
from coordinator.core import shadow
from coordinator.core.shadow import ShadowPlans
from coordinator.registry import planner_for
from tests.support.planning import TABLET, job

pytestmark = pytest.mark.unit

OPTIONS = {"min_file": "0", "enforce_min_threshold": "yes"}
SETTINGS = TableSettings(ratio=1.5, shadow_planner="size-tiered", shadow_planner_options=OPTIONS)
TABLE = Table(id="t1", name="events", location="file:///x", schema=(), settings=SETTINGS)
SERVICES = {"default": Service()}


def files(*names: str, size: int = 1000, **more: object) -> dict[str, DataFile]:
    return {
        name: DataFile(path=name, size_bytes=size, rows=size, **more)  # type: ignore[arg-type]  # checked by the class
        for name in names
    }


def tablet(
    held: Mapping[str, DataFile], end: bytes = TABLET.end, start: bytes | None = None
) -> Tablet:
    return Tablet(id=TabletId("t1", end), bounds=Bounds(start, end), files=held)


def settled(plans: ShadowPlans, now_s: float = 0.0) -> int:
    """Plan until nothing is due; return the number of plans."""
    planned = 0
    while (due := plans.take(now_s)) is not None:
        plans.plan(due, now_s)
        planned += 1
    return planned


def real() -> ShadowPlans:
    return ShadowPlans(partial(planner_for(Settings()), only=Kind.SYSTEM), SERVICES)


def test_each_planner_works_on_the_results_of_its_own_jobs() -> None:
    plans, held = real(), dict[str, DataFile]()
    for number in range(12):
        held |= files(f"f{number:02}")
        plans.tablet_read(tablet(held), TABLE, 5.0)
        settled(plans, 5.0)
        # The service merges what it has; the shadow must not lose what it has not merged.
        if number == 5:
            held = files("merged", size=6000, job="job-1")
    found = plans.comparison(TABLE)
    assert (found.since_s, found.tablets, found.waiting) == (5.0, 1, 0)
    assert (found.begin_files, found.added_files, found.files) == (1, 11, 7)
    # Two equal files are merged by the one, four by the other, whatever the service has merged.
    assert found.first.planner == "ratio"
    assert (found.shadow.planner, found.shadow.jobs, found.shadow.files_left) == (
        "size-tiered", 3, 3,
    )  # fmt: skip
    assert found.first.jobs > found.shadow.jobs
    assert found.first.written_bytes > found.shadow.written_bytes == 12_000
    assert found.first.files_left <= found.shadow.files_left == found.shadow.overlapping_files


def test_a_table_without_a_shadow_planner_costs_nothing_and_is_not_compared() -> None:
    plans = ShadowPlans(fail_to_plan, SERVICES)
    plans.tablet_read(tablet(files("a", "b")), replace(TABLE, settings=TableSettings()), 0.0)
    assert plans.take(1e9) is None
    assert plans.comparison(TABLE).since_s == 0.0


def fail_to_plan(tablet: Tablet, table: Table, now_s: float) -> TabletPlan:
    raise AssertionError(f"{tablet} of {table} is planned at {now_s}")


def test_other_options_begin_anew_and_a_dropped_table_is_forgotten() -> None:
    plans = real()
    plans.tablet_read(tablet(files("a")), TABLE, 1.0)
    plans.table_seen(TABLE)
    assert plans.take_new() == []
    other = replace(TABLE, settings=replace(SETTINGS, shadow_planner_options={}))
    plans.table_seen(other)
    assert plans.take_new() == ["t1"]
    plans.tablet_read(tablet(files("a", "b")), other, 2.0)
    found = plans.comparison(other)
    assert (found.since_s, found.begin_files, found.added_files) == (2.0, 2, 0)
    plans.forget("t1")
    assert plans.take(2.0) is None


def test_a_paused_table_is_compared_when_it_is_resumed() -> None:
    plans, paused = real(), replace(TABLE, state=TableState.PAUSED)
    plans.tablet_read(tablet(files(*"abcd")), paused, 0.0)
    assert settled(plans) == 0
    assert plans.comparison(paused).waiting == 1
    plans.table_seen(TABLE)
    assert settled(plans) > 0
    found = plans.comparison(TABLE)
    assert found.first.jobs == found.shadow.jobs == 1


def test_a_planner_that_fails_is_shown_and_the_other_goes_on() -> None:
    broken = replace(SETTINGS, shadow_planner="nope", shadow_planner_options={})
    plans, table = real(), replace(TABLE, settings=broken)
    plans.tablet_read(tablet(files(*"abcd")), table, 0.0)
    settled(plans)
    found = plans.comparison(table)
    assert found.first.jobs == 1
    assert found.shadow.jobs == 0
    assert "planner 'nope' is not loaded" in found.shadow.problem


def test_a_planner_that_never_rests_is_asked_a_bounded_number_of_times() -> None:
    def again(current: Tablet, _table: Table, _now_s: float) -> TabletPlan:
        inputs = tuple(current.files)
        return TabletPlan(jobs=(job("again", inputs=inputs, input_bytes=10),))

    plans = ShadowPlans(again, SERVICES)
    plans.tablet_read(tablet(files("a")), TABLE, 0.0)
    assert settled(plans) == shadow.ROUNDS_MAX
    assert plans.comparison(TABLE).first.jobs == shadow.ROUNDS_MAX


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "COMPARED_FILES_MAX", 10)
    monkeypatch.setattr(shadow, "COMPARED_TABLETS_MAX", 2)
    plans = real()
    ends = [bytes([number]) for number in range(4)]
    for end in ends:
        plans.tablet_read(tablet(files("a"), end), TABLE, 0.0)
    found = plans.comparison(TABLE)
    assert (found.tablets, found.partial) == (2, True)
    plans.tablet_read(tablet(files(*"abcdefgh"), ends[0]), TABLE, 0.0)
    assert plans.comparison(TABLE).added_files == 0, "they would be more than the bound"
    plans.tablet_read(tablet(files("a", "b", "c"), ends[0]), TABLE, 0.0)
    assert plans.comparison(TABLE).added_files == 2


def test_a_merged_tablet_begins_again_without_its_parts() -> None:
    plans, left, right = real(), b"\x40", b"\x80"
    plans.tablet_read(tablet(files("a"), left), TABLE, 0.0)
    plans.tablet_read(tablet(files("b"), right, left), TABLE, 0.0)
    assert plans.comparison(TABLE).tablets == 2
    plans.tablet_read(tablet(files("a", "b"), right), TABLE, 0.0)
    found = plans.comparison(TABLE)
    assert (found.tablets, found.first.files_left) == (1, 2)


def test_a_merge_forgets_no_tablet_that_it_does_not_hold() -> None:
    plans, ends = real(), (b"\x40", b"\x80", b"\xc0")
    for start, end in zip((None, *ends), ends, strict=False):
        plans.tablet_read(tablet(files(f"f{end!r}"), end, start), TABLE, 0.0)
    plans.tablet_read(tablet(files("a", "b"), ends[1]), TABLE, 0.0)
    assert plans.comparison(TABLE).tablets == 2, "the last one has other keys"


def test_a_job_of_the_service_begins_no_new_round() -> None:
    plans = real()
    plans.tablet_read(tablet(files("a", "b")), TABLE, 0.0)
    settled(plans)
    merged = tablet(files("out", size=2000, job="job-1"))
    plans.tablet_read(replace(merged, record=Record(version=9)), TABLE, 1.0)
    assert settled(plans, 1.0) == 0
    assert plans.comparison(TABLE).added_files == 0


def outputs(of: Job, held: dict[str, DataFile], **settings: object) -> list[DataFile]:
    """Return the files that a job leaves, from one plan that has it."""
    table = replace(TABLE, settings=replace(SETTINGS, **settings))  # type: ignore[arg-type]  # by name
    jobs = [of]
    plans = ShadowPlans(lambda *_: TabletPlan(jobs=(jobs.pop(),) if jobs else ()), SERVICES)
    plans.tablet_read(tablet(held), table, 0.0)
    settled(plans)
    return list(plans._comparisons["t1"].first.files[TABLET].values())


def test_outputs_are_cut_at_the_keys_of_the_job() -> None:
    held = files("a", "b", key_min=b"\x01", key_max=b"\x09", version_max=b"\x05")
    left = outputs(job("j", inputs=("a", "b"), input_bytes=2000, cuts=(b"\x04", b"\x20")), held)
    assert [(file.key_min, file.key_max, file.size_bytes) for file in left] == [
        (b"\x01", b"\x04", 1000),
        (b"\x04\x00", b"\x09", 1000),
    ]
    assert {file.version_max for file in left} == {b"\x05"}


def test_outputs_without_keys_are_cut_at_times() -> None:
    held = files("a", "b", time_min_s=0.0, time_max_s=100.0)
    left = outputs(job("j", inputs=("a", "b"), input_bytes=2000, cuts_at_s=(25.0,)), held)
    assert [(file.time_min_s, file.time_max_s, file.size_bytes) for file in left] == [
        (0.0, 24.999, 500),
        (25.0, 100.0, 1500),
    ]


def test_a_file_of_one_moment_is_in_one_output() -> None:
    held = files("a", time_min_s=25.0, time_max_s=25.0) | files(
        "b", time_min_s=0.0, time_max_s=20.0
    )
    left = outputs(job("j", inputs=("a", "b"), input_bytes=2000, cuts_at_s=(25.0,)), held)
    assert [(file.time_min_s, file.time_max_s, file.size_bytes) for file in left] == [
        (0.0, 20.0, 1000),
        (25.0, 25.0, 1000),
    ]


def test_drops_and_moves_write_nothing() -> None:
    held = files("a", tags=(("level", "0"), ("run", "7")))
    moved = job("j", inputs=("a",), action=JobAction.MOVE.value, output_tags=(("level", "1"),))
    (left,) = outputs(moved, held)
    assert left.tags == (("run", "7"), ("level", "1"))
    assert outputs(job("j", inputs=("a",), action=JobAction.DROP.value), held) == []


def test_counted_live_bytes_are_what_a_rewrite_leaves() -> None:
    held = files("a", "b", live_bytes=300)
    (left,) = outputs(job("j", inputs=("a", "b"), input_bytes=2000), held)
    assert (left.size_bytes, left.live_bytes) == (600, None)


def test_old_tombstones_are_dropped() -> None:
    old = files("a", "b", key_min=b"\x01", key_max=b"\x02", tombstones=5, added_at_s=-100.0)
    merge = job("j", inputs=("a", "b"), input_bytes=2000)
    (kept,) = outputs(merge, old, tombstone_retention_s=200.0)
    assert kept.tombstones == 10
    (dropped,) = outputs(merge, old, tombstone_retention_s=50.0)
    assert dropped.tombstones == 0
