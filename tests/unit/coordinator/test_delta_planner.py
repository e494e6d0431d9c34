"""The delta planner: what is base, what is delta, and which of the two compactions is worth it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind, Plan, PlannedJob
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.outcome import TabletStatistics
from common.spi.deltas import delta_sets
from common.spi.planner import Heat, RequestFacts
from coordinator.plugins.planners.delta import DeltaPlanner
from tests.support.planning import parameters

MIB = 1024**2
INT = (KeyType.INT,)


def key(number: int) -> bytes:
    return encode_key([number], INT)


def file(path: str, keys: tuple[int, int], rows: int, size: int = 0, **given: Any) -> DataFile:
    low, high = keys
    return DataFile(
        path=path,
        size_bytes=size or rows * 1000,
        rows=rows,
        key_min=key(low),
        key_max=key(high),
        added_at_s=float(path[1:] or 0) if path[1:].isdecimal() else 0.0,
        **given,
    )


BASE = file("b1", (0, 999), 1000)
DELTAS = tuple(file(f"d{at}", (10 * at, 10 * at + 400), 10) for at in range(1, 5))


def plan(*files: DataFile, **given: Any) -> Plan:
    more = {
        name: given.pop(name)
        for name in ("heat", "statistics", "options", "request")
        if name in given
    }
    asked = parameters({each.path: each for each in files}, **given)
    return DeltaPlanner().plan(replace(asked, key_types=INT, **more))


def only(found: Plan) -> PlannedJob:
    (job,) = found.jobs
    return job


def test_the_largest_files_that_are_apart_are_the_base() -> None:
    other = file("b2", (2000, 2999), 900)
    across = file("d9", (900, 2100), 30)
    alone = file("b3", (5000, 5001), 1)
    unknown = replace(file("u1", (0, 0), 5), key_min=None, key_max=None)
    first, second = delta_sets([across, *DELTAS, other, BASE, alone])
    assert (first.base, second.base) == ((BASE, other), (alone,))
    assert first.deltas == (*DELTAS, across)
    (all_keys,) = delta_sets([BASE, other, alone, unknown])
    assert all_keys.deltas == (unknown,), "its keys may be anywhere"


def test_deltas_are_merged_with_each_other_while_few_rows_are_updated() -> None:
    job = only(plan(BASE, *DELTAS))
    assert set(job.files) == {each.path for each in DELTAS}
    assert job.output_tags == (("delta", "minor"),)
    assert job.reason == (
        "minor: 4 deltas of 39.1 KiB; 4 % of the rows of 1 base file are updated by 4 deltas "
        "(major from 10 %)"
    )
    few = plan(BASE, *DELTAS[:3])
    assert not few.jobs
    assert "deltas are merged from 4 files on" in few.left["d1"]
    assert few.left["b1"].startswith("3 % of the rows"), few.left


def test_a_base_is_merged_with_its_deltas_when_enough_rows_are_updated() -> None:
    large = file("d5", (0, 999), 60)
    job = only(plan(BASE, *DELTAS, large))
    assert set(job.files) == {"b1", "d1", "d2", "d3", "d4", "d5"}
    assert job.output_tags == (("delta", "major"),)
    assert job.reason.startswith("major: 10 % of the rows"), job.reason
    assert only(plan(BASE, *DELTAS, large, options={"major_ratio": "0.11"})).files != job.files
    cut = only(plan(BASE, *DELTAS, large, target_bytes=300_000))
    assert len(cut.cuts) == 3, "outputs have about the target size"


def test_what_an_analysis_has_counted_comes_before_the_rows_of_footers() -> None:
    counted = {"measured_version": 7, "measured_at_s": 1.0}
    base = replace(BASE, live_bytes=BASE.size_bytes * 99 // 100, **counted)
    seen = replace(file("d5", (0, 999), 500), live_bytes=500_000, **counted)
    (only_inserts,) = delta_sets([base, seen])
    assert only_inserts.updated_share() == pytest.approx(0.01), "most of its rows are new keys"
    assert not plan(base, seen).jobs
    later = file("d6", (0, 999), 100)
    (with_later,) = delta_sets([base, seen, later])
    assert with_later.updated_share() == pytest.approx(0.11), "what came later counts in full"
    assert only(plan(base, seen, later)).output_tags == (("delta", "major"),)


def test_updates_of_columns_that_nobody_reads_do_not_count() -> None:
    heavy = file("d5", (0, 999), 200)
    statistics = TabletStatistics(
        tablet_version=1, measured_at_s=1.0, rows=1200, compared_rows=10,
        changed_shares=(("price", 0.6), ("seen_at", 1.0), ("name", 0.1)),
    )  # fmt: skip
    known: dict[str, Any] = {"statistics": statistics}
    assert only(plan(BASE, heavy, **known)).reason.startswith("major: 20 %")
    assert not plan(BASE, heavy, **known, options={"columns": "name"}).jobs
    both = only(plan(BASE, heavy, **known, options={"columns": "name+price"}))
    assert both.reason.startswith("major: 12 %"), both.reason
    unknown = only(plan(BASE, heavy, **known, options={"columns": "name+other"}))
    assert unknown.reason.startswith("major: 20 %"), "of a column that was not read"


def test_tablets_that_are_scanned_much_are_merged_into_their_base_sooner() -> None:
    delta = file("d5", (0, 999), 60)
    assert not plan(BASE, delta).jobs
    assert only(plan(BASE, delta, heat=Heat(scans_s=1.0))).reason.startswith("major: 6 %")
    assert not plan(BASE, delta, heat=Heat(rows_s=1e6)).jobs, "writes alone do not"
    weight = {"scan_weight": "0"}
    assert not plan(BASE, delta, heat=Heat(scans_s=9.0), options=weight).jobs


def test_a_set_that_is_more_than_one_job_takes_is_cut_at_ends_of_base_files() -> None:
    base = [file(f"b{at}", (100 * at, 100 * at + 99), 100) for at in range(6)]
    delta = file("d9", (0, 599), 90)
    job = only(plan(*base, delta, max_files=4))
    assert job.files == ("d9",)
    assert job.cuts == (key(299),), "three base files and the part fit into one job"
    parts = [file("d10", (0, 299), 45), file("d11", (300, 599), 45)]
    majors = plan(*base, *parts, max_files=4).jobs
    assert [set(major.files) for major in majors] == [
        {"b0", "b1", "b2", "d10"},
        {"b3", "b4", "b5", "d11"},
    ]
    small = (Group(name="only", max_bytes=150_000),)
    stays = plan(base[0], file("d9", (0, 99), 90), groups=small)
    assert not stays.jobs
    assert "more than any group accepts" in stays.left["d9"]


def test_deltas_come_first_where_one_job_cannot_have_them_and_their_base() -> None:
    base = [file(f"b{at}", (100 * at, 100 * at + 99), 100) for at in range(6)]
    deltas = [file(f"d{at}", (0, 599), 45) for at in (8, 9)]
    job = only(plan(*base, *deltas, max_files=4))
    assert set(job.files) == {"d8", "d9"}
    assert "more than one job accepts, so deltas come first" in job.reason


def test_deltas_that_no_group_accepts_two_of_are_left() -> None:
    groups = (Group(name="small", max_bytes=80_000),)
    found = plan(BASE, *(file(f"d{at}", (0, 999), 60) for at in (1, 2)), groups=groups)
    assert not found.jobs
    assert found.left["d1"].endswith("2 of the deltas are more than any group accepts")


def test_a_delta_in_use_is_not_cut() -> None:
    base = [file(f"b{at}", (100 * at, 100 * at + 99), 100) for at in range(6)]
    free = [file.path for file in base]
    found = plan(*base, file("d9", (0, 599), 90), max_files=4, candidates=free)
    assert not found.jobs
    assert found.left["b0"].endswith("the delta is in use")


def test_small_neighbours_that_nothing_overlaps_are_merged() -> None:
    files = [file(f"b{at}", (100 * at, 100 * at + 99), 10) for at in range(5)]
    assert set(only(plan(*files)).files) == {each.path for each in files}
    assert not plan(*files[:3]).jobs
    large = file("b2", (200, 299), 10, size=600 * MIB)
    apart = plan(*files[:2], large, *files[3:])
    assert not apart.jobs, "the one between them is not small, and two are too few"


def test_a_request_ends_in_one_file_that_is_its_own() -> None:
    request = RequestFacts(request="r1")
    job = only(plan(BASE, *DELTAS, kind=Kind.USER, request=request))
    assert set(job.files) == {"b1", "d1", "d2", "d3", "d4"}
    result = replace(BASE, request="r1")
    assert not plan(result, kind=Kind.USER, request=request).jobs
    later = plan(BASE, *DELTAS, kind=Kind.USER, request=request, running=[(Kind.USER, ["b1"])])
    assert not later.jobs
    assert later.left["d1"] == "waits for the running jobs of the request"


def test_tombstones_that_nothing_needs_any_more_are_dropped_from_the_base() -> None:
    old = replace(BASE, tombstones=300, tombstones_since_s=1.0, version_max=b"\1")
    asked = parameters({"b1": old}, tombstone_retention_s=60.0)
    at_once = DeltaPlanner().plan(replace(asked, now_s=10.0))
    assert not at_once.jobs
    assert at_once.due_at_s is not None
    job = only(DeltaPlanner().plan(replace(asked, now_s=at_once.due_at_s)))
    assert job.files == ("b1",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minor_files": "1"}, "option minor_files is '?1'?, expected at least 2"),
        ({"major_ratio": 0}, "option major_ratio is 0, expected above 0"),
        ({"small_share": "2"}, "option small_share is '?2.*'?, expected above 0 and at most 1"),
        ({"scan_weight": -1}, "option scan_weight is -1, expected 0 to 100"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeltaPlanner().check(given)


def test_a_table_without_a_key_is_refused_and_left() -> None:
    DeltaPlanner().check_table(keyed=True, timed=False)
    with pytest.raises(
        ConfigError, match="needs a table with a key; choose bin-pack, size-tiered or"
    ):
        DeltaPlanner().check_table(keyed=False, timed=True)
    asked = replace(parameters({"b1": BASE}), keyed=False)
    assert DeltaPlanner().plan(asked).left == {"b1": "has no key, which planner delta needs"}
