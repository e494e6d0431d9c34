"""The size-tiered planner: which files are of about one size, and what is done about tombstones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind, Plan
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.plugins.planners.size_tiered import SizeTieredPlanner, TierOptions, buckets
from tests.support.planning import files_of, parameters

MIB, DAY_S = 1024**2, 86_400.0
NOW_S = 100 * DAY_S
CASES = json.loads((Path(__file__).parents[2] / "data" / "size_tiers.json").read_text("utf-8"))


def asked(files: dict[str, DataFile], **given: Any) -> PlanParameters:
    options = given.pop("options", {})
    settings = {"max_files": 32, "file_limit": 0}
    return replace(parameters(files, **settings | given), options=options, now_s=NOW_S)


def planned(given: PlanParameters) -> Plan:
    return SizeTieredPlanner().plan(given)


def sets(plan: Plan) -> list[list[str]]:
    return [sorted(job.files) for job in plan.jobs]


@pytest.mark.parametrize("case", CASES["stcs_interesting"], ids=lambda case: case["name"])
def test_tiers_are_those_of_the_family(case: dict[str, Any]) -> None:
    given = case["files"]
    if isinstance(given, dict):
        given = [[f"{at:03}", given["size"]] for at in range(given["count"])]
    files = files_of(given)
    if case["options"].get("recent_tiny"):
        files["a"] = replace(files["a"], added_at_s=NOW_S - 1)
    found = buckets(files.values(), TierOptions(), NOW_S)
    if case["buckets"] == "one bucket":
        assert len(found) == 1
    else:
        assert sorted(sorted(file.path for file in tier) for tier in found) == case["buckets"]


def test_a_tier_of_enough_files_becomes_one_file() -> None:
    sizes = dict.fromkeys("abcd", 100 * MIB) | {"big": 900 * MIB}
    plan = planned(asked(files_of(sizes)))
    assert sets(plan) == [["a", "b", "c", "d"]]
    assert plan.jobs[0].reason == (
        "4 files of similar size, 100.0 MiB on average (min_threshold 4)"
    )
    assert plan.left == {"big": "no other file is of similar size (900.0 MiB)"}


def test_fewer_files_only_when_nothing_else_is_wanted_or_under_way() -> None:
    pair = files_of({"a": 100 * MIB, "b": 110 * MIB, "big": 900 * MIB})
    assert sets(planned(asked(pair))) == [["a", "b"]]
    assert sets(planned(asked(pair, options={"enforce_min_threshold": "yes"}))) == []
    four = pair | files_of(dict.fromkeys("wxyz", 10000 * MIB))
    assert sets(planned(asked(four))) == [["w", "x", "y", "z"]]
    busy = asked(pair, candidates=["a", "b"], running=[(Kind.SYSTEM, ["big"])])
    plan = planned(busy)
    assert plan.jobs == ()
    assert "a tier is merged from 4 files on" in plan.left["a"]


def test_no_job_has_more_files_than_the_table_allows() -> None:
    files = files_of({f"{number:02}": 100 * MIB for number in range(23)})
    jobs = planned(asked(files, max_files=10)).jobs
    assert [len(job.files) for job in jobs] == [10, 10]
    assert [len(job.files) for job in planned(asked(files)).jobs] == [23]


def test_small_files_are_one_tier_once_none_is_young() -> None:
    files = files_of({name: 2**at * MIB // 4 for at, name in enumerate("abcdef")})
    old = {name: replace(file, added_at_s=NOW_S - 7200) for name, file in files.items()}
    assert sets(planned(asked(old))) == [[*"abcdef"]]
    young = old | {"a": replace(old["a"], added_at_s=NOW_S - 600)}
    plan = planned(asked(young))
    assert plan.jobs == ()
    assert plan.due_at_s == NOW_S + 3000
    assert "files below 50.0 MiB become one tier at" in plan.left["b"]


def test_jobs_fit_into_groups() -> None:
    groups = [Group(name="small", max_bytes=250 * MIB)]
    files = files_of(dict.fromkeys("abcde", 100 * MIB))
    plan = planned(asked(files, groups=groups))
    assert [job.files for job in plan.jobs] == [("a", "b")]
    alone = planned(asked(files, groups=[Group(name="small", max_bytes=150 * MIB)]))
    assert alone.jobs == ()
    assert "more than any group accepts (150.0 MiB)" in alone.left["a"]


def dead(name: str, share: float, **given: Any) -> DataFile:
    facts: dict[str, Any] = {
        "size_bytes": 100 * MIB, "rows": 100, "tombstones": int(100 * share),
        "tombstones_since_s": 1.0, "added_at_s": 1.0, "version_min": b"5", "version_max": b"9",
    }  # fmt: skip
    return DataFile(path=name, **facts | given)


def test_a_file_of_tombstones_is_rewritten_alone_when_they_can_go() -> None:
    plan = planned(asked({"a": dead("a", 0.5)}))
    assert sets(plan) == [["a"]]
    assert plan.jobs[0].reason == (
        "50% of its rows are tombstones, at least 20%, and they may be dropped"
    )
    few = planned(asked({"a": dead("a", 0.1)}))
    assert few.jobs == ()
    recent = planned(asked({"a": dead("a", 0.5, added_at_s=NOW_S - 10)}))
    assert (recent.jobs, recent.due_at_s) == ((), NOW_S - 10 + DAY_S)


def test_tombstones_stay_where_another_file_may_hold_what_they_hide() -> None:
    file, other = dead("a", 0.5), dead("b", 0, size_bytes=900 * MIB, version_min=b"1")
    plan = planned(asked({"a": file, "b": other}))
    assert plan.jobs == ()
    assert "b may hold older rows of their keys" in plan.left["a"]
    newer = replace(other, version_min=b"99")
    assert sets(planned(asked({"a": file, "b": newer}))) == [["a"]]
    unchecked = asked({"a": file, "b": other}, options={"unchecked_tombstone_compaction": "on"})
    assert sets(planned(unchecked)) == [["a"]]


def test_of_several_the_file_with_the_oldest_rows_comes_first() -> None:
    files = {
        "a": dead("a", 0.5, key_min=b"a", key_max=b"b"),
        "b": dead("b", 0.5, key_min=b"c", key_max=b"d", version_min=b"1", size_bytes=900 * MIB),
        "c": dead("c", 0.5, key_min=b"e", key_max=b"f", version_min=b"3", size_bytes=950 * MIB),
    }
    options = {"enforce_min_threshold": "yes"}
    assert sets(planned(asked(files, options=options))) == [["b"]]


def test_a_request_ends_in_one_file() -> None:
    files = files_of({name: 2**at * MIB for at, name in enumerate("abcdefg")})
    given = replace(asked(files, kind=Kind.USER, max_files=4), request=RequestFacts(request="r"))
    assert sets(planned(given)) == [[*"abcd"]]
    last = {"z": replace(files["a"], path="z", request="r")}
    done = planned(replace(given, files=last, candidates=tuple(last.values())))
    assert (done.jobs, done.left) == ((), {"z": "is the result of the request"})
    busy = replace(given, running=asked(files, running=[(Kind.USER, ["g"])]).running)
    assert planned(busy).jobs == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"min_threshold": 1}, "min_threshold is 1, expected at least 2"),
        ({"min_threshold": 40}, "min_threshold is 40, expected at most max_threshold, which is 32"),
        ({"bucket_low": "2"}, "bucket_low is 2, expected above 0 and at most 1"),
        ({"bucket": 1}, "option 'bucket' is unknown"),
    ],
)
def test_options_are_checked(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SizeTieredPlanner().check(options)
