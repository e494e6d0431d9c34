"""`neve plan --files`: the answer, and every way to ask wrongly."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from common.errors import RequestError
from common.model.job import JobAction, Kind, Plan, PlannedJob
from common.model.table import TableSettings
from common.spi.planner import PlanParameters
from neve import api
from neve.offline import backlog_offline, plan_offline, read_groups
from neve.setting_values import read_settings

CASES = json.loads((Path(__file__).parents[2] / "data" / "accumulo_plan.json").read_text("utf-8"))
FOUR = [{"path": name, "size": 10} for name in "abcd"]


def test_an_offline_plan_lists_jobs_and_what_is_left() -> None:
    document = {"files": [*FOUR, {"path": "big", "size": "1G"}], "groups": [{"group": "all"}]}
    assert plan_offline(document) == {
        "jobs": [
            {
                "files": ["a", "b", "c", "d"],
                "group": "all",
                "priority": 9,
                "kind": "SYSTEM",
                "reason": "ratio 3: 4 files of 40 B, the largest 10 B",
            }
        ],
        "left": {
            "big": "no set of at most 10 files of similar size reaches 3 times its largest file"
        },
    }


@pytest.mark.parametrize("case", CASES["plan"], ids=lambda case: case["id"])
def test_offline_plans_match_the_recorded_ones(case: dict[str, Any]) -> None:
    document = {
        "table": {
            name: case[name] for name in ("ratio", "max_files", "lowest_ratio", "file_limit")
        },
        "kind": case["kind"],
        "files": [{"path": name, "size": size} for name, size in case["all"]],
        "candidates": case.get("candidates"),
        "running": case["running"],
        "groups": case["groups"],
    }
    found = plan_offline(json.loads(json.dumps(document)), "ratio", {})
    assert {(job["group"], frozenset(job["files"])) for job in found["jobs"]} == {
        (each["group"], frozenset(each["files"])) for each in case["expect"]
    }
    planned = {path for job in found["jobs"] for path in job["files"]}
    assert found["left"].keys() | planned == {name for name, _ in case["all"]}


@pytest.mark.parametrize("case", CASES["find"], ids=lambda case: case["id"])
def test_offline_plans_find_the_recorded_sets(case: dict[str, Any]) -> None:
    group = {"group": "only", "max_size": case["max_size"]}
    document = {
        "table": {"ratio": case["ratio"], "max_files": case["max_files"], "file_limit": 0},
        "files": [{"path": name, "size": size} for name, size in case["files"]],
        "groups": [{name: value for name, value in group.items() if value is not None}],
    }
    jobs = plan_offline(document)["jobs"]
    assert (jobs[0]["files"] if jobs else []) == sorted(case["expect"])


def test_overrides_win_and_may_be_texts() -> None:
    document = {"table": {"ratio": 5}, "files": FOUR}
    assert not plan_offline(document)["jobs"]
    assert plan_offline(document, None, {"ratio": "3.5", "target": "32MB", "ttl": "7d"})["jobs"]


def test_files_that_may_not_be_used_say_why() -> None:
    files = [*FOUR, {"path": "open", "size": 1, "open": True}, {"path": "r", "size": 1}]
    running = [{"kind": "USER", "files": ["r"]}]
    found = plan_offline({"files": files, "running": running, "candidates": ["a", "open"]})
    assert found["left"]["open"] == "is still being written"
    assert found["left"]["r"] == "is in a running job"
    assert found["left"]["b"] == "is no candidate"


def test_facts_of_a_file_are_read() -> None:
    file = {
        "path": "a", "size": "1K", "rows": 5, "tombstones": 1, "live": "512", "level": 2,
        "key_min": "a", "key_max": 7, "time_min": 1.5, "time_max": None, "clean": True,
        "tags": {"run": "x"}, "added_at": 3,
    }  # fmt: skip
    assert plan_offline({"files": [file], "partial": [], "compacted": {}})["jobs"] == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("files", r"the document is .files., expected an object"),
        ({"file": []}, "field 'file' is unknown; did you mean 'files'"),
        ({}, "files is missing, expected a list"),
        ({"files": [3]}, r"files\[0\] is 3, expected an object"),
        ({"files": [{"size": 3}]}, r"files\[0\].path is missing, expected a text"),
        ({"files": [{"path": "a"}]}, r"files\[0\].size is missing, expected bytes or a size"),
        ({"files": [{"path": "a", "size": -1}]}, r"files\[0\].size -1 is not a size"),
        ({"files": [{"path": "a", "size": "M"}]}, r"files\[0\].size 'M' is not a size"),
        ({"files": [{"path": "../a", "size": 1}]}, r"files\[0\]: file path '../a' must be"),
        ({"files": [{"path": "a", "size": 1, "sizes": 1}]}, "did you mean 'size'"),
        ({"files": [*FOUR, FOUR[0]]}, r"files\[4\].path 'a' is listed twice"),
        ({"files": [FOUR[0] | {"rows": 1.5}]}, r"files\[0\].rows is 1.5, expected a whole"),
        ({"files": [FOUR[0] | {"rows": "x"}]}, r"files\[0\].rows is 'x', expected a whole"),
        ({"files": [FOUR[0] | {"open": 1}]}, r"files\[0\].open is 1, expected true or false"),
        ({"files": [FOUR[0] | {"key_min": 0.5}]}, r"key_min is 0.5, expected a text or a whole"),
        (
            {"files": [FOUR[0] | {"key_min": 16**5000}]},
            "too many digits, expected a text or a whol",
        ),
        (
            {"files": [FOUR[0] | {"rows": 16**5000}]},
            "a number of too many digits, expected a whole",
        ),
        ({"files": [FOUR[0] | {"rows": "9" * 5000}]}, "rows is '9.*, expected a whole number"),
        ({"files": [FOUR[0] | {"tags": "x"}]}, r"files\[0\] is 'x', expected an object"),
        ({"files": FOUR, "kind": "user"}, "kind is 'user', expected SYSTEM or USER"),
        ({"files": FOUR, "candidates": ["z"]}, r"candidates\[0\] is 'z', expected the path"),
        ({"files": FOUR, "candidates": ["a", "a"]}, "candidates names 'a' twice"),
        ({"files": FOUR, "running": [{"files": ["a"]}]}, r"running\[0\].kind is missing"),
        (
            {"files": FOUR, "running": [{"kind": "USER", "files": ["q"]}]},
            r"running\[0\].files\[0\] is 'q'",
        ),
        (
            {"files": FOUR, "table": {"ratoi": 3}},
            "'ratoi' is unknown; did you mean 'ratio'",
        ),
        ({"files": FOUR, "table": {"ratio": "x"}}, "setting ratio is 'x', expected a number"),
        ({"files": FOUR, "table": {"ratio": True}}, "setting ratio is True, expected a number"),
        ({"files": FOUR, "table": {"max_files": 2.5}}, "max_files is 2.5, expected a whole"),
        ({"files": FOUR, "table": {"max_files": 1}}, "max_files is 1, expected at least 2"),
        ({"files": FOUR, "table": {"ttl": "soon"}}, "setting ttl_s 'soon' is not a duration"),
        ({"files": FOUR, "table": {"codec": 5}}, "setting codec is 5, expected a text"),
        ({"files": FOUR, "table": {"allow_late_data": 5}}, "expected true or false"),
        ({"files": FOUR, "table": 5}, "table is 5, expected an object"),
        ({"files": FOUR, "heat": {"reads": 1}}, "heat: field 'reads' is unknown"),
        ({"files": FOUR, "heat": {"scans": -1}}, "heat.scans is -1, expected at least 0"),
        ({"files": FOUR, "free_bytes": "much"}, "free_bytes 'much' is not a size"),
        ({"files": FOUR, "statistics": {"changed": {"x": 2}}}, "changed.x is 2, expected 0 to 1"),
        (
            {"files": FOUR, "statistics": {"merged": "x"}},
            "statistics.merged is 'x', expected a num",
        ),
        (
            {"files": FOUR, "statistics": {"updated_rows": -1}},
            "updated_rows is -1, expected at least 0",
        ),
    ],
)
def test_a_wrong_plan_document_is_refused(document: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        plan_offline(document)


def test_an_unknown_planner_is_named() -> None:
    with pytest.raises(RequestError, match=r"planner 'magic' is unknown: .*installed: .*ratio"):
        plan_offline({"files": FOUR}, "magic")


@pytest.mark.parametrize("case", CASES["config_validation"], ids=lambda case: case["note"])
def test_group_lists_are_accepted_or_refused_as_recorded(case: dict[str, Any]) -> None:
    try:
        groups = json.loads(case["groups"])
    except ValueError:
        groups = case["groups"]
    assert not case["accepted"]
    with pytest.raises(RequestError):
        read_groups(groups)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no groups"),
        ([{"group": "a", "max_size": 0}], "max_size 0 is not positive"),
        ([{"group": "a"}, {"group": "b"}], "2 groups have no max_size"),
        ([{"group": "a", "max_size": "x"}], "max_size 'x' is not a size"),
        ([{"group": "1abc"}], "group name '1abc' must begin with a letter"),
        ([{"group": 5}], "group name 5 must be a DNS label"),
    ],
)
def test_group_lists_that_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_groups(groups)


def test_groups_are_ordered_by_size() -> None:
    written = [{"group": "rest"}, {"group": "m", "max_size": "128M"}, {"group": "s", "maxSize": 5}]
    assert [(group.name, group.max_bytes) for group in read_groups(written)] == [
        ("s", 5),
        ("m", 128 * 1024**2),
        ("rest", None),
    ]
    assert [group.name for group in read_groups(None)] == ["default"]


def test_settings_without_an_end_may_be_off() -> None:
    document = {"files": FOUR, "table": {"ttl": "none", "volume": "disk-1"}}
    assert plan_offline(document, None, {"allow_late_data": "true"})["jobs"]


def test_a_setting_is_given_once_in_the_document_and_an_override_wins() -> None:
    settings, _ = read_settings({"ttl": "7d"}, frozenset(), {"ttl_s": "1d"})
    assert settings.ttl_s == 86_400
    for table, overrides in (({"ttl": "1d", "ttl_s": "2d"}, {}), ({}, {"ttl": 1, "ttl-s": 2})):
        document = {"files": FOUR, "table": table}
        with pytest.raises(RequestError, match="setting ttl_s is given twice, also as 'ttl"):
            plan_offline(document, None, overrides)


@pytest.mark.parametrize(
    ("written", "read"),
    [("5", 5), ("2.5", 2.5), ("fast", "fast"), (7, 7), (None, None)],
)
def test_a_planners_own_options_are_read(written: object, read: object) -> None:
    for names in (None, frozenset({"speed"})):
        assert read_settings({"speed": written}, names) == (TableSettings(), {"speed": read})
    with pytest.raises(RequestError, match="setting 'sped' is unknown; did you mean 'speed'"):
        read_settings({"sped": written}, frozenset({"speed"}))


def listed(path: str, tablet: str) -> dict[str, Any]:
    """Return a file as `neve table files --json` prints it."""
    return asdict(api.File(path=path, tablet=tablet, size_bytes=10, rows=1, added_at_s=5.0))


def test_files_may_be_as_a_table_lists_them() -> None:
    files = [*(listed(name, "+inf") for name in "abcd"), *(listed(name, "0100") for name in "xyz")]
    plan = plan_offline(files, tablet="+inf")
    assert [job["files"] for job in plan["jobs"]] == [["a", "b", "c", "d"]]
    assert plan_offline({"files": files[:4]}) == plan
    with pytest.raises(RequestError, match=r"of 2 tablets.*\(--tablet\); there are: \+inf, 0100"):
        plan_offline(files)
    with pytest.raises(RequestError, match=r"no file is of tablet 'last'; there are: \+inf, 0100"):
        plan_offline(files, tablet="last")
    with pytest.raises(RequestError, match=r"files\[0\] has size and size_bytes"):
        plan_offline([{**files[0], "size": 10}])


def test_a_document_may_say_all_that_planners_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PlanParameters] = []

    class Listening:
        def plan(self, parameters: PlanParameters) -> Plan:
            asked.append(parameters)
            first, *_ = parameters.candidates
            job = PlannedJob(
                kind=Kind.SYSTEM, files=(first.path,), group="default", priority=1, reason="why",
                action=JobAction.DROP, outputs_expected=0, output_tags=(("level", "2"),),
            )  # fmt: skip
            return Plan(jobs=(job,))

    monkeypatch.setattr("neve.offline.load_planner", lambda _: Listening())
    file = {
        "path": "a", "size": "1MB", "level": 1, "run": 2, "window": 3, "segment": 4,
        "min_key": 5, "max_key": "z", "time_min": 6, "time_max": 7, "rows": 8, "tombstones": 2,
        "live_bytes": "512KB",
    }  # fmt: skip
    running = {"kind": "USER", "files": ["b"], "progress": {"b": "1KB"}, "written": 100}
    found = plan_offline(
        {"files": [file, {"path": "b", "size": 2048}], "candidates": ["a"], "running": [running],
         "keyed": False, "now": 99}
    )  # fmt: skip
    (parameters,) = asked
    read = parameters.files["a"]
    assert dict(read.tags) == {"level": "1", "run": "2", "window": "3", "segment": "4"}
    assert (read.live_bytes, read.time_max_s, read.key_max) == (512 * 1024, 7, b"z")
    assert read.key_min is not None
    assert (parameters.now_s, parameters.keyed, parameters.timed) == (99, False, True)
    (under_way,) = parameters.running
    assert (under_way.read_bytes, under_way.written_bytes) == ({"b": 1024}, 100)
    (job,) = found["jobs"]
    assert (job["action"], job["outputs"], job["tags"]) == ("drop", 0, {"level": "2"})


BASE_AND_DELTA = [
    {"path": "base", "size": "100MB", "rows": 1000, "min_key": 0, "max_key": 99},
    {"path": "delta", "size": "5MB", "rows": 60, "min_key": 0, "max_key": 99},
]


def test_heat_and_statistics_of_a_document_reach_the_planner() -> None:
    document: dict[str, Any] = {"files": BASE_AND_DELTA}
    assert not plan_offline(document, "delta")["jobs"], "6 % of the rows are updated"
    read = document | {"heat": {"scans": 1.5, "rows": 0}}
    assert plan_offline(read, "delta")["jobs"][0]["tags"] == {"delta": "major"}
    known = read | {"statistics": {"changed": {"name": 0.1, "price": 0.9}}}
    options = {"columns": "name"}
    assert not plan_offline(known, "delta", options)["jobs"]
    assert plan_offline(known, "delta", {"columns": "price"})["jobs"]


HOURS: dict[str, Any] = {"skip_offset": 0, "granularity": "1h", "origin": "1h"}


def timed(path: str, start_h: float, end_h: float, **given: Any) -> dict[str, Any]:
    """Return a file of 10 MB with rows from an hour to the last second before another."""
    times = {"time_min": 3600 * start_h, "time_max": 3600 * end_h - 1}
    return {"path": path, "size": "10MB", "rows": 10, **times, **given}


def by_hours(*files: dict[str, Any], **given: Any) -> dict[str, Any]:
    document = {"files": [*files], "keyed": False, "now": 10**6, **given}
    return plan_offline(document, "time-chunk", HOURS)


def test_each_interval_has_its_place_its_neighbours_and_what_it_shares_with_them() -> None:
    found = by_hours(timed("c", 9, 10), timed("a", 1, 2), timed("b", 1.5, 4), timed("z", 0, 1))
    names = ("start_s", "index", "previous", "next", "overlaps_previous", "overlaps_next")
    assert [tuple(interval[name] for name in names) for interval in found["intervals"]] == [
        (0, -1, None, 0, False, False),
        (3600, 0, -1, 1, False, True),
        (7200, 1, 0, 2, True, True),
        (10800, 2, 1, 8, True, False),
        (32400, 8, 2, None, False, False),
    ]


BY_VERSION = "is hidden: versions above {} cover its range of time"


def test_files_of_greater_versions_hide_what_they_cover() -> None:
    old = [timed("old-1", 0, 2), timed("old-2", 0, 2), timed("old-3", 1, 3)]
    new = [timed("new-1", 0, 1, version=2), timed("new-2", 1, 2, version=1)]
    found = by_hours(*old, *new)
    assert {path: why for path, why in found["left"].items() if "hidden" in why} == {
        "old-1": BY_VERSION.format(0),
        "old-2": BY_VERSION.format(0),
    }
    assert [(at["index"], at["files"]) for at in found["intervals"]] == [(-1, 1), (0, 2), (1, 1)]
    assert {path for job in found["jobs"] for path in job["files"]} == {"old-3", "new-2"}
    assert found["left"]["new-1"].startswith("its chunk from 1970-01-01 00:00 UTC has 1 file")
    whole = by_hours(*old, timed("whole", 0, 4, version=1 << 60), candidates=["old-1", "whole"])
    assert whole["left"]["old-1"] == BY_VERSION.format(0)
    assert {at["files"] for at in whole["intervals"]} == {1}


def test_a_minor_version_hides_the_part_that_it_was_made_of() -> None:
    parts = [timed(f"p{at}", 0, 1, version=3, partitions=[at, at + 1]) for at in range(3)]
    minor = timed("minor", 0, 1, version=3, minor_version=1, partitions=[0, 2])
    found = by_hours(*parts, minor)
    why = "is hidden by minor, of minor version 1 over 0"
    assert {path: reason for path, reason in found["left"].items() if "hidden" in reason} == {
        "p0": why,
        "p1": why,
    }
    assert [job["files"] for job in found["jobs"]] == [["minor", "p2"]]
    simple = by_hours(timed("a", 0, 1), timed("b", 0, 1, minor_version=1))
    assert simple["left"]["a"] == "is hidden by b, of minor version 1 over 0"


def test_a_hidden_file_owes_nothing_and_a_running_job_keeps_its_files() -> None:
    same = {"table": {"min_threshold": 2}}
    new = [timed("new", 0, 1, version=1)]
    document = {"files": [timed("old", 0, 1), *new], "compacted": {"old": 1}, **same}
    assert backlog_offline(document) == backlog_offline({"files": new, **same})
    running = [{"kind": "SYSTEM", "files": ["old"]}]
    found = by_hours(*document["files"], running=running)
    assert found["left"]["old"] == "is in a running job"
    assert [interval["state"] for interval in found["intervals"]] == ["running"]


def test_chunks_that_repeat_files_give_the_plan_of_the_list() -> None:
    chance = random.Random(7)
    for _ in range(50):
        files: list[dict[str, Any]] = []
        for number in range(chance.randrange(12)):
            start = chance.randrange(8)
            versions = {"version": chance.randrange(3), "minor_version": chance.randrange(2)}
            end = start + chance.choice([0.5, 1, 2, 3])
            files.append(timed(f"f{number}", start, end, **versions))
        hours = [
            [each for each in files if each["time_min"] // 3600 <= at <= each["time_max"] // 3600]
            for at in range(11)
        ]
        chunks = [{"start": 3600 * at, "files": hours[at]} for at in range(11) if hours[at]]
        chance.shuffle(chunks)
        document = {"chunks": chunks, "keyed": False, "now": 10**6}
        assert plan_offline(document, "time-chunk", HOURS) == by_hours(*files)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "v2"}, r"files\[1\].version is 'v2', expected a whole number"),
        ({"version": -1}, r"files\[1\].version is -1, expected at least 0"),
        ({"version": 1.5}, r"files\[1\].version is 1.5, expected a whole number"),
        ({"version": 16**5000}, "version is a number of too many digits, expected a whole"),
        ({"minor_version": True}, r"files\[1\].minor_version is True, expected a whole number"),
        ({"partitions": 2}, r"files\[1\].partitions is 2, expected a list"),
        ({"partitions": [0]}, r"partitions is \[0\], expected two whole numbers, the first"),
        ({"partitions": [2, 2]}, r"partitions is \[2, 2\], expected two whole numbers"),
        ({"partitions": [0, "x"]}, "partitions is 'x', expected a whole number"),
        (
            {"version": 2, "time_max": None},
            r"files\[1\] has version and lacks time_min or time_max, expected both: a file hides",
        ),
    ],
)
def test_wrong_versions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        by_hours(timed("a", 0, 1), timed("b", 0, 1) | changes)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"chunks": [], "files": []}, "the document has files and chunks, expected one of them"),
        ({"chunks": 3}, "chunks is 3, expected a list"),
        ({"chunks": [3]}, r"chunks\[0\] is 3, expected an object"),
        ({"chunks": [{}]}, r"chunks\[0\].files is missing, expected a list"),
        ({"chunks": [{"start": "x", "files": []}]}, r"chunks\[0\].start is 'x', expected a number"),
        ({"chunks": [{"files": [{"path": "a"}]}]}, r"chunks\[0\].files\[0\].size is missing"),
        (
            {"chunks": [{"files": [FOUR[0]]}, {"files": [FOUR[0] | {"size": 11}]}]},
            r"chunks\[1\].files\[0\].path 'a' is listed with other fields in another chunk",
        ),
    ],
)
def test_wrong_chunks_are_refused(document: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        plan_offline(document)


def test_jobs_that_do_not_fit_into_the_free_space_are_left_with_the_reason() -> None:
    document = {"files": FOUR, "free_bytes": 69, "table": {"keep_free": 30}}
    found = plan_offline(document)
    assert not found["jobs"]
    assert set(found["left"].values()) == {
        "a job would write up to 40 B: 69 B are free, and keep_free_bytes reserves 30 B"
    }
    assert plan_offline(document | {"free_bytes": 70})["jobs"]
    assert plan_offline(document | {"kind": "USER"})["jobs"], "what a user asks for is done"
