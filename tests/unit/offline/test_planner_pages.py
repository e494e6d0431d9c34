"""The worked examples of planners' pages are what `neve plan --files` answers."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench_segments import GB, simulate
from coordinator.plugins.planners.bin_pack import BinPackOptions
from coordinator.plugins.planners.budgeted import BudgetedOptions
from coordinator.plugins.planners.delta import DeltaOptions
from coordinator.plugins.planners.leveled import LeveledOptions
from coordinator.plugins.planners.log_segment import LogSegmentOptions
from coordinator.plugins.planners.size_tiered import TierOptions
from coordinator.plugins.planners.time_chunk import TimeChunkOptions
from coordinator.plugins.planners.time_window import TimeWindowOptions
from coordinator.plugins.planners.unified import UnifiedOptions
from scripts import chunk_picture, delta_picture
from tests.support.shell import Shell

PAGES = Path(__file__).parents[3] / "docs" / "planners"
BLOCK = re.compile(r"```json\n(.*?)```", re.DOTALL)
OPTIONS: dict[str, Any] = {
    "bin-pack": BinPackOptions,
    "budgeted": BudgetedOptions,
    "delta": DeltaOptions,
    "log-segment": LogSegmentOptions,
    "leveled": LeveledOptions,
    "size-tiered": TierOptions,
    "time-window": TimeWindowOptions,
    "time-chunk": TimeChunkOptions,
    "unified": UnifiedOptions,
}
SETTINGS = {
    "budgeted": ["--set", "budget=50MB"],
    "time-chunk": ["--set", "skip_offset=1h"],
    "time-window": ["--set", "window=1h"],
    "unified": ["--set", "flush_size=10MB"],
}


@pytest.mark.parametrize("planner", OPTIONS)
def test_the_example_of_a_page_is_what_the_planner_answers(planner: str, tmp_path: Path) -> None:
    page = (PAGES / f"{planner}.md").read_text("utf-8")
    given, answer = BLOCK.findall(page)
    files = tmp_path / "files.json"
    files.write_text(given)
    shell = Shell(tmp_path / "home")
    found = shell.run(
        "plan", "--files", str(files), "--planner", planner, *SETTINGS.get(planner, ()), "--json"
    ).output
    assert json.loads(found) == json.loads(answer)


@pytest.mark.parametrize("planner", OPTIONS)
def test_a_page_lists_every_option(planner: str) -> None:
    page = (PAGES / f"{planner}.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert listed == [field.name for field in fields(OPTIONS[planner])]


def test_the_picture_of_chunks_shows_the_example() -> None:
    assert chunk_picture.PICTURE.read_text("utf-8") == chunk_picture.picture(), (
        "write it anew: python -m scripts.chunk_picture"
    )


def test_the_picture_of_deltas_shows_the_example() -> None:
    assert delta_picture.PICTURE.read_text("utf-8") == delta_picture.picture(), (
        "write it anew: python -m scripts.delta_picture"
    )


@pytest.mark.parametrize(
    ("policy", "at_day", "added_day", "expected"),
    [
        ("hybrid", 100, 1, ["s1", "s2", "s3", "s4"]),
        ("hybrid", 100, 99.999, ["s2", "s3"]),
        ("hybrid", 106, 99.999, ["s1", "s2", "s3", "s4"]),
        ("stats-based", 100, 1, ["s2", "s3"]),
        ("compact-all", 100, 99.999, []),
    ],
)
def test_hybrid_takes_everything_once_in_a_period_and_goes_by_statistics_in_between(
    policy: str, at_day: float, added_day: float, expected: list[str], tmp_path: Path
) -> None:
    live = ("90MB", "10MB", "20MB", "100MB", "100MB")
    listed = [
        {"path": f"s{at}", "size": "100MB", "live": bytes_, "segment": at, "added_at": day}
        for at, bytes_ in enumerate(live, 1)
        for day in [added_day * 86_400]
    ]
    document = {"keyed": False, "now": at_day * 86_400, "files": listed}
    files = tmp_path / "files.json"
    files.write_text(json.dumps(document))
    words = ["plan", "--files", str(files), "--planner", "log-segment", "--json"]
    options = ["--set", f"policy={policy}", "--set", "segment=100MB"]
    plan = Shell(tmp_path / "home").json(*words, *options)
    assert [job["files"] for job in plan["jobs"]] == ([expected] if expected else [])
    everything = policy == "hybrid" and len(expected) == 4
    assert all(
        job["reason"].startswith("hybrid: every 144 h 00 m all closed segments") is everything
        for job in plan["jobs"]
    )


def test_smaller_segments_free_space_sooner_and_are_more_files() -> None:
    small_files, small_first, _, _ = simulate(GB, 182)
    large_files, large_first, _, _ = simulate(8 * GB, 182)
    assert (small_files, large_files) == (120, 15)
    assert small_first is not None
    assert large_first is not None
    assert small_first < large_first


@pytest.mark.parametrize(
    ("strategy", "settings", "expected"),
    [
        ("size-tiered", ["backlog_mode=seed"], 4000.0),  # 4 x 1000 x log4(4000 / 1000)
        ("time-window", ["backlog_mode=seed", "window_s=3600"], 2000.0),  # 2 x that of two files
        ("date-tiered", ["backlog_mode=seed", "base_s=3600", "now=3800"], 2000.0),
        ("leveled", ["backlog_mode=seed", "max_file_bytes=1000"], 4000.0),  # all in level 0
        ("fixed", ["backlog_bytes=7"], 7.0),
        ("none", [], 0.0),
    ],
)
def test_the_command_line_measures_by_each_strategy(
    strategy: str, settings: list[str], expected: float, tmp_path: Path
) -> None:
    times = {"a": 100, "b": 200, "c": 3700, "d": 3750}
    files = [
        {"path": path, "size": 1000, "time_min": time, "time_max": time}
        for path, time in times.items()
    ]
    document = tmp_path / "files.json"
    document.write_text(json.dumps({"files": files}))
    options = [word for setting in settings for word in ("--set", setting)]
    shell = Shell(tmp_path / "home")
    found = shell.json("backlog", "--files", str(document), "--strategy", strategy, *options)
    assert found == {"backlog": pytest.approx(expected)}
