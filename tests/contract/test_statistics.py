"""What an analysis writes: live bytes of files that are still there, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    Applied,
    CommitAttempt,
    ReserveFiles,
    WriteAnalyses,
    WriteAnalysis,
)
from common.model.job import Kind
from common.model.outcome import (
    AttemptEnd,
    FileStatistics,
    RefusalCode,
    RowCounts,
    Statistics,
    TabletStatistics,
)
from common.model.tablet import Analysis, TabletId
from tests.support.store_harness import (
    MIDDLE,
    Harness,
    applied,
    commit,
    file,
    refused,
    release,
    reserve,
)

pytestmark = pytest.mark.anyio


def reading(tablet: TabletId, attempt: str) -> ReserveFiles:
    """Return the reservation of an analysis: of no file, and without outputs."""
    return ReserveFiles(
        tablet=tablet,
        attempt=attempt,
        job="job-analysis",
        kind=Kind.SYSTEM,
        inputs=(),
        output_prefix=f"_neve/{attempt}",
        outputs_max=0,
        group="default",
        compactor="c-1",
    )


def counted(tablet: TabletId, attempt: str, **live: int) -> CommitAttempt:
    """Return the commit of an analysis that has counted live bytes of files of 100 bytes."""
    files = tuple(
        FileStatistics(path=path, size_bytes=100, live_bytes=found) for path, found in live.items()
    )
    statistics = Statistics(files=files, tablet_version=7, rows=30, read_bytes=12, elapsed_s=0.5)
    return CommitAttempt(
        tablet=tablet,
        attempt=attempt,
        outputs=(),
        counts=RowCounts(),
        statistics=statistics,
        reason="somebody asked",
    )


async def test_live_bytes_are_written_and_nothing_else_changes(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    before = await harness.store.tablet(tablet)
    assert before is not None
    now_s = await harness.store.now_s()
    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(counted(tablet, "t1", a=40, b=100)))
    after = await harness.store.tablet(tablet)
    assert after is not None
    live = {path: each.live_bytes for path, each in after.files.items()}
    assert live == {"a": 40, "b": 100}
    assert {each.measured_version for each in after.files.values()} == {7}
    assert all((each.measured_at_s or 0) >= now_s for each in after.files.values())
    unmeasured = {
        path: replace(each, live_bytes=None, measured_at_s=None, measured_version=None)
        for path, each in after.files.items()
    }
    assert unmeasured == before.files
    record = after.record
    assert not after.running
    assert (record.files, record.size_bytes, record.running) == (2, 200, 0)
    (entry,) = await harness.store.history(tablet.table)
    assert (entry.end, entry.inputs, entry.outputs) == (AttemptEnd.COMMITTED, (), ())
    assert (entry.bytes_in, entry.rows_in) == (12, 30)
    assert entry.reason == "somebody asked: 2 files, 140 B of 200 B live; 12 B read in 0.5 s"


async def test_what_still_fits_is_written_where_files_have_gone(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(reserve(tablet, "t2", "a", "b")))
    applied(await harness.apply(commit(tablet, "t2")))
    applied(await harness.apply(counted(tablet, "t1", a=1, b=2, c=3)))
    after = await harness.store.tablet(tablet)
    assert after is not None
    assert sorted(
        (each.live_bytes, each.size_bytes) for each in after.files.values() if each.live_bytes
    ) == [(3, 100)]
    assert len(after.files) == 2


async def test_a_file_of_another_size_is_another_file(harness: Harness) -> None:
    table = await harness.table()
    tablet = TabletId(table.id, MIDDLE)
    applied(await harness.add(tablet, file("a", size_bytes=50)))
    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(counted(tablet, "t1", a=40)))
    after = await harness.store.tablet(tablet)
    assert after is not None
    assert after.files["a"].live_bytes is None


async def test_an_analysis_hinders_no_job(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(reserve(tablet, "t2", "a", "b")))


async def test_an_analysis_that_was_released_writes_nothing(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(release(tablet, "t1")))
    late = await harness.apply(counted(tablet, "t1", a=40))
    refused(late, RefusalCode.FAILED)
    after = await harness.store.tablet(tablet)
    assert after is not None
    assert after.files["a"].live_bytes is None


async def test_statistics_are_no_way_to_end_a_rewrite(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    refused(await harness.apply(counted(tablet, "t1", a=40)), RefusalCode.OUTPUTS)


async def test_a_repeated_commit_is_recognised(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(counted(tablet, "t1", a=40)))
    again = await harness.apply(counted(tablet, "t1", a=60))
    assert isinstance(again, Applied)
    after = await harness.store.tablet(tablet)
    assert after is not None
    assert after.files["a"].live_bytes == 40


async def test_what_was_found_about_rows_is_written_with_the_version_that_was_read(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("a")
    found = TabletStatistics(
        tablet_version=0, measured_at_s=0.0, rows=30, updated_rows=6, key_quantiles=(b"c", b"m"),
        compared_rows=5, changed_shares=(("price", 0.8),), merged_share=0.25,
        merged_shares=(("price", 0.2),),
    )  # fmt: skip
    change = counted(tablet, "t1", a=40)
    assert change.statistics is not None
    change = replace(change, statistics=replace(change.statistics, tablet=found))
    now_s = await harness.store.now_s()
    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(change))
    after = await harness.store.tablet(tablet)
    assert after is not None
    kept = after.record.statistics
    assert kept is not None
    assert kept.measured_at_s >= now_s
    assert kept == replace(found, tablet_version=7, measured_at_s=kept.measured_at_s)
    # Another analysis, of a release that finds nothing about rows, leaves it as it is.
    applied(await harness.apply(reading(tablet, "t2")))
    applied(await harness.apply(counted(tablet, "t2", a=30)))
    again = await harness.store.tablet(tablet)
    assert again is not None
    assert again.record.statistics == kept


def wish(tablet: TabletId, group: str = "default") -> WriteAnalyses:
    """Return the change by which somebody asks for an analysis."""
    note = WriteAnalysis(
        tablet=tablet,
        analysis=Analysis.UNKNOWN,
        version=-1,
        settings_version=-1,
        analysis_group=group,
    )
    return WriteAnalyses(table=tablet.table, notes=(note,))


async def group_of(harness: Harness, tablet: TabletId) -> str:
    """Return the group that is to analyse a tablet, as its record says."""
    (record,) = await harness.store.records((tablet,))
    assert record is not None
    return record.analysis_group


async def test_an_analysis_is_wanted_until_one_is_committed(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    assert await group_of(harness, tablet) == ""
    (before,) = await harness.store.records((tablet,))
    applied(await harness.apply(wish(tablet, "night")))
    (after,) = await harness.store.records((tablet,))
    assert before is not None
    assert after == replace(before, analysis_group="night"), "no version is bumped"
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(commit(tablet, "t1")))
    applied(await harness.apply(reading(tablet, "t2")))
    applied(await harness.apply(release(tablet, "t2")))
    assert await group_of(harness, tablet) == "night", "neither a job nor a failure is an analysis"
    applied(await harness.apply(reading(tablet, "t3")))
    applied(await harness.apply(counted(tablet, "t3")))
    assert await group_of(harness, tablet) == ""


async def test_each_committed_job_counts_once_and_an_analysis_does_not(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")

    async def compactions() -> int:
        (record,) = await harness.store.records((tablet,))
        return 0 if record is None else record.compactions

    applied(await harness.apply(reading(tablet, "t1")))
    applied(await harness.apply(counted(tablet, "t1", a=1)))
    applied(await harness.apply(reserve(tablet, "t2", "a")))
    applied(await harness.apply(release(tablet, "t2")))
    assert await compactions() == 0
    applied(await harness.apply(reserve(tablet, "t3", "a", "b")))
    applied(await harness.apply(commit(tablet, "t3")))
    applied(await harness.apply(commit(tablet, "t3")))
    assert await compactions() == 1, "the repetition is recognised"
