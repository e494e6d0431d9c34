"""The ratio planner on known cases, and in conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.group import Group
from common.model.job import Kind, PriorityClass, class_of
from common.spi.planner import PlanParameters
from common.units import parse_size_bytes
from coordinator.plugins.planners.ratio import RatioPlanner, files_within, find_set
from tests.support.datadriven import Answer, Step
from tests.support.planning import case_parameters, files_of, parameters

HERE = Path(__file__).parent
CASES = json.loads((HERE.parents[1] / "data" / "accumulo_plan.json").read_text("utf-8"))
Golden = Callable[[Path, Answer], None]


@pytest.mark.parametrize("case", CASES["find"], ids=lambda case: case["id"])
def test_the_planner_finds_the_known_set_of_files(case: dict[str, Any]) -> None:
    files = sorted((size, 0, name) for name, size in case["files"])
    found = find_set(files_within(files, case["max_size"]), case["ratio"], case["max_files"])
    assert {name for _, _, name in found} == set(case["expect"])


@pytest.mark.parametrize("case", CASES["plan"], ids=lambda case: case["id"])
def test_one_planning_pass_gives_the_known_jobs(case: dict[str, Any]) -> None:
    asked = case_parameters(case)
    plan = RatioPlanner().plan(asked)
    assert {(job.group, frozenset(job.files)) for job in plan.jobs} == {
        (each["group"], frozenset(each["files"])) for each in case["expect"]
    }
    planned = {path for job in plan.jobs for path in job.files}
    assert plan.left.keys() == {file.path for file in asked.candidates} - planned


def test_the_planner_answers_as_recorded(golden: Golden) -> None:
    golden(HERE / "testdata" / "ratio.txt", answer)


def answer(step: Step) -> str:
    """Answer `plan`: lines are `name size [running|out]`."""
    assert step.command == "plan"
    given = dict(step.args)
    rows = [line.split() for line in step.lines]
    kind = Kind(given.pop("kind", "SYSTEM").upper())
    running_kind = Kind(given.pop("running", "SYSTEM").upper())
    groups = given.pop("groups", "default")
    plan = RatioPlanner().plan(
        parameters(
            files_of((row[0], parse_size_bytes(row[1])) for row in rows),
            kind=kind,
            candidates=[row[0] for row in rows if len(row) == 2],
            running=[(running_kind, [row[0] for row in rows if row[2:] == ["running"]])]
            if any(row[2:] == ["running"] for row in rows)
            else [],
            groups=[group(text) for text in groups.split(",")],
            **{
                name: float(value) if "ratio" in name else int(value)
                for name, value in given.items()
            },
        )
    )
    jobs = [
        f"{class_of(job.priority).name} {job.group}: {' '.join(job.files)}  ({job.reason})"
        for job in plan.jobs
    ]
    return "\n".join([*jobs, *(f"left {path}: {why}" for path, why in sorted(plan.left.items()))])


def group(text: str) -> Group:
    name, _, size = text.partition(":")
    return Group(name=name, max_bytes=parse_size_bytes(size) if size else None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_files": 1}, "max_files is 1, expected at least 2"),
        ({"max_files": 0}, "max_files is 0, expected at least 2"),
        ({"ratio": 0.5}, "ratio is 0.5, expected at least 1"),
        ({"lowest_ratio": 0.9}, "lowest_ratio is 0.9, expected at least 1"),
        ({"file_limit": -1}, "file_limit is -1, expected at least 0"),
    ],
)
def test_settings_that_would_run_in_circles_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RatioPlanner().plan(parameters(files_of({"a": 1}), **settings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_file": 4}, "option 'max_file' is unknown; did you mean 'max_files'"),
        ({"ratio": "three"}, "ratio is 'three', expected a number"),
        ({"max_files": 2.5}, "max_files is 2.5, expected a whole number"),
        ({"max_files": True}, "max_files is True, expected a whole number"),
        ({"ratio": False}, "ratio is False, expected a number"),
    ],
)
def test_options_of_a_service_are_checked(options: dict[str, object], message: str) -> None:
    asked = with_options(parameters(files_of({"a": 1})), options)
    with pytest.raises(ConfigError, match=message):
        RatioPlanner().plan(asked)


def test_options_win_over_settings() -> None:
    asked = parameters(files_of(dict.fromkeys("abcd", 10)), ratio=3.0)
    assert len(RatioPlanner().plan(asked).jobs) == 1
    assert not RatioPlanner().plan(with_options(asked, {"ratio": 5})).jobs


def with_options(asked: PlanParameters, options: dict[str, object]) -> PlanParameters:
    return replace(asked, options=options)


def test_without_candidates_no_job_is_planned() -> None:
    assert not RatioPlanner().plan(parameters({})).jobs


def test_ordinary_work_has_the_real_limit_in_its_priority() -> None:
    """Accumulo passes a limit of 0 here, and ordinary work outranks users'."""
    files = files_of(dict.fromkeys("abcde", 10))
    (system,) = RatioPlanner().plan(parameters(files)).jobs
    (user,) = RatioPlanner().plan(parameters(files, kind=Kind.USER)).jobs
    assert class_of(system.priority) is PriorityClass.SYSTEM
    assert user.priority > system.priority


def test_no_job_has_more_than_max_files_even_where_a_user_waits() -> None:
    """Accumulo takes all sixteen at once here."""
    files = files_of({f"f{number:02}": 1 for number in range(4)} | {
        f"g{number:02}": 100 * 4**number for number in range(12)
    })  # fmt: skip
    plan = RatioPlanner().plan(parameters(files, kind=Kind.USER, ratio=2.0, max_files=10))
    assert [len(job.files) for job in plan.jobs] == [7]
