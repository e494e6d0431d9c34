"""The event log: one JSON line per event, with the level that the table of events has."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from common.log_events import EVENTS_BY_PART, LogLevel, level_of
from common.telemetry import event_log


def test_a_line_begins_with_time_level_part_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.now(UTC)
    event_log("coordinator")("files deleted", files=3, paths=("a", "b"))

    line = json.loads(capsys.readouterr().err)
    assert list(line) == ["at", "level", "part", "event", "files", "paths"]
    assert before <= datetime.fromisoformat(line["at"]) <= datetime.now(UTC)
    assert (line["level"], line["part"], line["event"]) == ("info", "coordinator", "files deleted")
    assert (line["files"], line["paths"]) == (3, ["a", "b"])


def test_a_failed_job_is_a_warning_and_a_part_that_ends_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = event_log("coordinator")
    for event in ("attempt failed", "coordinator fails", "never heard of"):
        log(event)

    lines = map(json.loads, capsys.readouterr().err.splitlines())
    assert [line["level"] for line in lines] == ["warning", "error", "info"]


@pytest.mark.parametrize(
    ("least", "kept"),
    [
        (LogLevel.DEBUG, ["files deleted", "attempt failed", "coordinator fails"]),
        (LogLevel.INFO, ["files deleted", "attempt failed", "coordinator fails"]),
        (LogLevel.WARNING, ["attempt failed", "coordinator fails"]),
        (LogLevel.ERROR, ["coordinator fails"]),
    ],
)
def test_events_below_the_least_level_are_left_out(
    least: LogLevel, kept: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = event_log("coordinator", least)
    for event in ("files deleted", "attempt failed", "coordinator fails"):
        log(event)

    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == kept


def test_no_event_stands_twice() -> None:
    names = [event.name for events in EVENTS_BY_PART.values() for event in events]
    assert len(names) == len(set(names))
    assert all(level_of(each.name) is each.level for each in EVENTS_BY_PART["gateway"])


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    # What may not grow cannot be written, as on a full disk; on every system.
    code = (
        "import resource; from common.telemetry import event_log; log = event_log('gateway');"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        "log('gateway begins'); print('goes on')"
    )
    with (tmp_path / "log").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stderr=full,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.stdout == "goes on\n"
    assert (tmp_path / "log").read_text() == ""
