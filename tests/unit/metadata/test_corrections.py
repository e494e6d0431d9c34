"""Estimates and results of jobs in the history, and the correction that follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.codec.table import HISTORY
from common.metadata.store_values import CORRECTED_JOBS_MAX, HistoryEntry, correction_of
from common.model.file import DataFile, overlapping_files
from common.model.tablet import PLUS_INFINITY, TabletId
from neve.api import Correction

pytestmark = pytest.mark.unit

ENTRY = HistoryEntry(
    position="1-0",
    attempt="a1",
    job="job-1",
    tablet=TabletId("t1", PLUS_INFINITY),
    kind="SYSTEM",
    end="committed",
    group="default",
    compactor="c1",
    inputs=("a", "b", "c", "d"),
    outputs=("e",),
    bytes_in=4096,
    bytes_out=1024,
    rows_in=8,
    rows_out=2,
    started_s=10.0,
    ended_s=12.0,
    expected_bytes=4096,
    expected_files=1,
    expected_s=1.5,
    expected_gain=3,
    gain=3,
)


def test_without_results_nothing_is_corrected() -> None:
    assert correction_of([]) == Correction()
    assert "not corrected" in Correction().sentence


def test_one_job_moves_factors_by_an_eighth_of_the_way() -> None:
    found = correction_of([replace(ENTRY, outputs=("e", "f", "g"), gain=0)])
    assert found.jobs == 1
    assert found.written == pytest.approx(1 - 0.75 / 8)
    assert found.files == pytest.approx(1 + 2 / 8)
    assert found.gain == pytest.approx(1 - 0.75 / 8), "0 counts as a quarter"
    assert found.bytes_s == 2048.0


def test_factors_approach_results_and_stay_within_bounds() -> None:
    found = correction_of([ENTRY] * 100)
    assert found.jobs == CORRECTED_JOBS_MAX
    assert found.written == pytest.approx(0.25, abs=0.02)
    extreme = replace(ENTRY, bytes_out=10**12, gain=-5)
    found = correction_of([extreme] * 100)
    assert 3.9 < found.written <= 4.0
    assert 0.25 <= found.gain < 0.27


def test_the_newest_job_counts_most() -> None:
    small, large = replace(ENTRY, bytes_out=1024), replace(ENTRY, bytes_out=8192)
    newest_small = correction_of([small, large]).written
    newest_large = correction_of([large, small]).written
    assert newest_small < newest_large


@pytest.mark.parametrize("other", [{"expected_files": 0}, {"request": "r1"}])
def test_jobs_without_estimates_and_of_requests_do_not_count(other: dict[str, object]) -> None:
    assert correction_of([replace(ENTRY, **other)]) == Correction()  # type: ignore[arg-type]  # by name


def test_an_entry_of_an_earlier_release_has_no_estimates() -> None:
    row = HISTORY.row(replace(ENTRY, expected_bytes=0, expected_files=0, expected_s=0.0,
                              expected_gain=0, gain=0))  # fmt: skip
    assert len(row) < len(HISTORY.row(ENTRY))
    packed = HISTORY.pack(ENTRY)
    given = {"position": ENTRY.position, "tablet": ENTRY.tablet}
    assert HISTORY.unpack("history", packed, **given) == ENTRY


def test_files_without_keys_overlap_all_others() -> None:
    bare = [DataFile(path=name, size_bytes=1, rows=1) for name in "abc"]
    assert overlapping_files(bare) == 3
    assert overlapping_files(bare, {"a"}) == 1
