"""Arrivals as they are gathered from a service, written down and read; files to begin with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from common.errors import RequestError
from neve.api import File, Finished
from neve.simulate.recording import (
    ArrivalRecorder,
    RecordedArrival,
    json_listing,
    key_fraction,
    read_recording,
    recording_document,
    simulated_key,
    start_files,
)
from tests.support.simulated import document, world

GOOD = {
    "table": "events",
    "tablets": 2,
    "length_s": 60,
    "arrivals": [{"at": 1.5, "tablet": 1, "size": 100, "rows": 3, "tombstones": 1}],
}


def file(path: str, added_at_s: float, **more: Any) -> File:
    facts = {"tablet": "last", "size_bytes": 1000, "rows": 10, "added_at_s": added_at_s}
    return File(path=path, **(facts | more))


def finished(attempt: str, inputs: tuple[str, ...], started_s: float) -> Finished:
    return Finished(
        attempt=attempt,
        job=f"job-{attempt}",
        tablet="last",
        kind="SYSTEM",
        end="committed",
        group="default",
        compactor="default-1",
        inputs=inputs,
        outputs=(f"_neve/{attempt}.parquet",),
        bytes_in=4000,
        bytes_out=4000,
        rows_in=40,
        rows_out=40,
        started_s=started_s,
        ended_s=started_s + 1,
    )


def test_a_file_counts_once_however_often_it_is_seen() -> None:
    recorder = ArrivalRecorder("events", since_s=100.0)
    recorder.note_files(
        [file("old", 50.0), file("a", 101.0, rows=7), file("b", 102.0, tablet="07")]
    )
    recorder.note_files([file("a", 101.0, rows=7), file("made", 103.0, job="job-1")])
    recorder.note_history([finished("1", ("a", "old", "unseen", "b"), 110.0)] * 2)
    recorder.note_history([finished("2", ("_neve/1.parquet", "c"), 120.0)])
    recording = recorder.recording(160.0)

    assert recording.length_s == 60.0
    assert recording.tablets == 2
    assert recording.estimated == 2
    assert list(recording.arrivals) == [
        RecordedArrival(1.0, 0, 1000, 7),
        RecordedArrival(2.0, 1, 1000, 10),
        RecordedArrival(10.0, 0, 1000, 10),
        RecordedArrival(20.0, 0, 2000, 20),
    ]


def test_jobs_from_before_the_recording_bring_nothing() -> None:
    recorder = ArrivalRecorder("events", since_s=100.0)
    recorder.note_history([finished("1", ("a", "b"), 90.0)])

    assert recorder.recording(160.0).arrivals == ()


def test_a_recording_is_read_as_it_was_written() -> None:
    recording = read_recording(GOOD, "it")

    assert recording.arrivals == (RecordedArrival(1.5, 1, 100, 3, 1),)
    written = json.loads(json.dumps(recording_document(recording)))
    assert read_recording(written, "it") == recording


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"arrivals": []}, "it.arrivals has 0 entries, expected 1 to"),
        ({"arrivals": None}, "it.arrivals is missing, expected a list"),
        ({"length_s": 0}, "it.length_s is 0, expected 1 to"),
        ({"length_s": 1e12}, "it.length_s is 1e+12, expected"),
        ({"tablets": -1}, "it.tablets is -1, expected at least 0"),
        ({"table": ""}, "it.table is '', expected at least 1 character"),
        ({"colour": 1}, "it: field 'colour' is unknown"),
        ({"arrivals": [{"at": -1, "size": 1}]}, "it.arrivals[0].at is -1, expected at least 0"),
        ({"arrivals": [{"at": 61, "size": 1}]}, "expected at most 60 and less than 2"),
        ({"arrivals": [{"at": 1, "tablet": 2, "size": 1}]}, "expected at most 60 and less than 2"),
        ({"arrivals": [{"at": 1, "size": -4}]}, "it.arrivals[0].size is -4"),
        ({"arrivals": [{"at": 1, "size": 1, "x": 1}]}, "field 'x' is unknown"),
        ({"arrivals": [5]}, "it.arrivals[0] is 5, expected an object"),
    ],
)
def test_a_wrong_recording_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(RequestError) as raised:
        read_recording({**GOOD, **change}, "it")
    assert expected in str(raised.value)


def test_keys_of_simulated_tablets_go_there_and_back() -> None:
    places = [0.0, 0.125, 0.5, 1.0]

    assert [key_fraction(simulated_key(place), 9.0) for place in places] == places
    assert [simulated_key(place) for place in places] == sorted(simulated_key(e) for e in places)
    assert key_fraction(None, 0.25) == 0.25


def test_files_of_a_service_are_where_a_run_begins() -> None:
    listed = [
        file("a", 1.0, key_min="1", key_max="50", tags={"level": "1"}),
        file("b", 2.0, key_min="50", key_max="90", tombstones=3),
        replace(file("c", 2.0, key_min="7", key_max="8"), tablet="0a"),
    ]
    found, tablets = start_files(json_listing(listed), "files")

    assert tablets == 2
    assert [number for number, _ in found] == [0, 0, 1]
    first, second, _ = (each for _, each in found)
    assert first.tags == (("level", "1"),)
    assert second.tombstones == 3
    assert key_fraction(first.key_min, 9) == 0.0
    assert key_fraction(first.key_max, 9) == key_fraction(second.key_min, 9) == 0.5
    assert key_fraction(second.key_max, 9) == 1.0


def test_a_run_begins_with_files_that_were_listed() -> None:
    listed = json_listing([file(f"f{at}", 1.0, key_min="1", key_max="9") for at in range(6)])
    made = world(document({"files": "files.json", "tablets": 2}), {"files.json": listed})
    made.check()

    assert made.outcome.initial_bytes == 6000
    assert [len(tablet.files) for tablet in made.tablets()] == [6, 0]
    made.run()
    made.check()


def test_files_that_are_none_are_refused() -> None:
    for wrong in ("text", [5], [{"path": "a"}], [{"path": "a", "size_bytes": -1}]):
        with pytest.raises(RequestError, match="files"):
            world(document({"files": "files.json"}), {"files.json": wrong})
