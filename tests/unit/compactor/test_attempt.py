"""The life of an attempt, step by step: these events, exactly these actions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import CommitAttempt, RetagFiles
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import AttemptEnd, DroppedRows, RefusalCode, RowCounts
from common.wire import AttemptReport, OutsideFile
from compactor import core as do
from compactor import core as on
from compactor.core import (
    CONFLICTS_MAX,
    RESOLVE_MAX_S,
    AttemptStateMachine,
    RewriteProgress,
    RewriteResult,
)
from tests.support.assignments import an_assignment

OUTPUT = DataFile(path="_neve/last/out-0.parquet", size_bytes=70, rows=4)
RESULT = RewriteResult(
    outputs=(OUTPUT,),
    counts=RowCounts(rows_in=5, rows_out=4, superseded=1),
    dropped=DroppedRows(spans=((b"a", b"b"),), version_max=b"v"),
)
OUTSIDE = OutsideFile(path="c.parquet", key_min=None, key_max=None, version_min=None)


def started() -> AttemptStateMachine:
    attempt = AttemptStateMachine(an_assignment(outside=(OUTSIDE,)), now_s=10.0)
    assert attempt.handle(on.AttemptStarted(), 10.0) == [do.Rewrite()]
    return attempt


def committing() -> tuple[AttemptStateMachine, do.SendCommit]:
    attempt = started()
    (action,) = attempt.handle(on.RewriteDone(RESULT), 15.0)
    assert isinstance(action, do.SendCommit)
    return attempt, action


def reported(attempt: AttemptStateMachine, event: on.Event, now_s: float = 20.0) -> AttemptReport:
    (action,) = attempt.handle(event, now_s)
    assert isinstance(action, do.SendReport), action
    return action.report


def after_deleting(
    attempt: AttemptStateMachine, event: on.Event, now_s: float = 20.0
) -> tuple[tuple[str, ...], AttemptReport]:
    (action,) = attempt.handle(event, now_s)
    assert isinstance(action, do.DeleteOutputs), action
    return action.paths, reported(attempt, on.OutputsDeleted(), now_s)


def test_a_good_life_commits_and_reports_what_was_written() -> None:
    attempt, action = committing()

    commit = action.commit
    assert isinstance(commit, CommitAttempt)
    assert (commit.tablet, commit.attempt) == (attempt.assignment.job.tablet, "attempt-1")
    assert (commit.outputs, commit.counts, commit.dropped) == (
        (OUTPUT,),
        RESULT.counts,
        RESULT.dropped,
    )
    assert commit.outside == ("c.parquet",)
    assert (commit.elapsed_s, commit.reason, action.delay_s) == (5.0, "a test wants it", 0.0)

    report = reported(attempt, on.CommitApplied())
    assert (report.end, report.outputs, report.counts) == (
        AttemptEnd.COMMITTED,
        (OUTPUT.path,),
        RESULT.counts,
    )
    assert report.elapsed_s == 10.0
    assert not attempt.over
    assert attempt.handle(on.ReportDelivered(), 21.0) == []
    assert attempt.over
    with pytest.raises(AssertionError):
        attempt.handle(on.CommitApplied(), 22.0)


def test_an_attempt_at_a_lake_table_reports_the_outputs_that_its_log_has() -> None:
    attempt = started()
    more = replace(OUTPUT, path="more.parquet")
    both = replace(RESULT, outputs=(OUTPUT, more), lake=b"packed")
    (action,) = attempt.handle(on.RewriteDone(both), 15.0)
    assert isinstance(action, do.SendCommit)
    assert action.lake == b"packed"
    report = reported(attempt, on.CommitApplied((more,)))
    assert (report.end, report.outputs) == (AttemptEnd.COMMITTED, (more.path,))
    assert attempt.committed_bytes[1] == more.size_bytes


def test_progress_only_grows() -> None:
    attempt = started()
    tell = [
        RewriteProgress(fraction=0.5, bytes_done=60, rows_done=3, written_bytes=40),
        RewriteProgress(fraction=0.9, bytes_done=1000, rows_done=5, state="verifying"),
        RewriteProgress(fraction=0.1, bytes_done=1, rows_done=1, state="rewriting"),
        RewriteProgress(fraction=7.0, state="dreaming"),
        RewriteProgress(fraction=1.0, state="committing"),
    ]
    seen = []
    for news in tell:
        assert attempt.handle(on.RewriteProgressed(news), 11.0) == []
        message = attempt.progress.message()
        seen.append((message.state, message.fraction, message.bytes_done, message.rows_done))
    assert seen == [
        ("rewriting", 0.5, 60, 3),
        ("verifying", 0.9, 100, 5),
        ("verifying", 0.9, 100, 5),
        ("verifying", 1.0, 100, 5),
        ("verifying", 1.0, 100, 5),
    ]
    assert attempt.progress.message().bytes_total == 100
    assert attempt.progress.message().written_bytes == 40


def test_a_failed_rewrite_deletes_all_it_may_have_written_and_reports() -> None:
    attempt = started()
    failure = on.RewriteFailed(error_class="InputError", cause="file a.parquet is missing")
    paths, report = after_deleting(attempt, failure)
    assert paths == attempt.assignment.reservation.output_paths
    assert (report.end, report.error_class) == (AttemptEnd.FAILED, "InputError")
    assert report.cause == "file a.parquet is missing"
    assert (report.outputs, report.counts) == ((), RowCounts())


def test_a_report_says_with_how_little_memory_it_was_tried() -> None:
    attempt = AttemptStateMachine(replace(an_assignment(), halvings=2), now_s=10.0)
    attempt.handle(on.AttemptStarted(), 10.0)
    failure = on.RewriteFailed(error_class="MemoryShortError", cause="too much")
    _, report = after_deleting(attempt, failure)
    assert (report.error_class, report.halvings) == ("MemoryShortError", 2)


def test_a_rewrite_that_ends_by_cancel_is_cancelled() -> None:
    failure = on.RewriteFailed(
        error_class="AttemptCancelledError", cause="killed", end=AttemptEnd.CANCELLED
    )
    _, report = after_deleting(started(), failure)
    assert report.end is AttemptEnd.CANCELLED


@pytest.mark.parametrize("end", [AttemptEnd.CANCELLED, AttemptEnd.DRAINED])
@pytest.mark.parametrize(
    "answer",
    [on.RewriteDone(RESULT), on.RewriteFailed(error_class="EngineDiedError", cause="it died")],
)
def test_cancel_wins_over_whatever_the_engine_says(end: AttemptEnd, answer: on.Event) -> None:
    attempt = started()
    asked = on.CancelRequested(cause="the user wants it back", end=end)
    assert not attempt.cancel_asked
    assert attempt.handle(asked, 11.0) == [do.CancelRewrite()]
    assert attempt.cancel_asked
    again = on.CancelRequested(cause="second thoughts")
    assert attempt.handle(again, 12.0) == [do.CancelRewrite()], "the engine may have missed it"

    paths, report = after_deleting(attempt, answer)
    assert paths == attempt.assignment.reservation.output_paths
    assert (report.end, report.cause) == (end, "the user wants it back")
    assert report.error_class == "AttemptCancelledError"


def test_cancel_comes_too_late_once_the_commit_is_sent() -> None:
    attempt, _ = committing()
    assert attempt.handle(on.CancelRequested(cause="late"), 16.0) == []
    assert reported(attempt, on.CommitApplied()).end is AttemptEnd.COMMITTED


def test_cancel_after_the_end_changes_nothing() -> None:
    attempt = started()
    attempt.handle(on.RewriteFailed(error_class="InputError", cause="gone"), 12.0)
    assert attempt.handle(on.CancelRequested(cause="late"), 16.0) == []
    assert reported(attempt, on.OutputsDeleted()).end is AttemptEnd.FAILED


def test_refused_before_anything_was_sent_deletes_and_reports_the_mark() -> None:
    attempt, _ = committing()
    refused = on.CommitRefused(code=RefusalCode.GONE, reason="no reservation")
    assert attempt.handle(refused, 16.0) == [do.ReadOutcome()]
    mark = on.OutcomeRead(end=AttemptEnd.LOST, cause="silence")
    paths, report = after_deleting(attempt, mark)
    assert paths == attempt.assignment.reservation.output_paths
    assert report.end is AttemptEnd.LOST
    assert report.cause == "commit refused (gone): no reservation; silence"


@pytest.mark.parametrize("answer", [on.OutcomeRead(end=None), on.OutcomeReadFailed("timeout")])
def test_refused_without_a_mark_is_a_failure(answer: on.Event) -> None:
    attempt, _ = committing()
    attempt.handle(on.CommitRefused(code=RefusalCode.PURGED, reason="c.parquet is older"), 16.0)
    paths, report = after_deleting(attempt, answer)
    assert paths
    assert (report.end, report.error_class) == (AttemptEnd.FAILED, "ConflictError")


def test_released_without_a_mark_is_lost_and_nobodys_failure() -> None:
    attempt, _ = committing()
    attempt.handle(on.CommitRefused(code=RefusalCode.RELEASED, reason="no reservation"), 16.0)
    _, report = after_deleting(attempt, on.OutcomeRead(end=None))
    assert report.end is AttemptEnd.LOST


def test_a_refusal_with_the_code_of_a_newer_release_is_a_failure() -> None:
    attempt, _ = committing()
    newer = RefusalCode("moon-phase")
    attempt.handle(on.CommitRefused(code=newer, reason="the moon is full"), 16.0)
    _, report = after_deleting(attempt, on.OutcomeRead(end=None))
    assert report.end is AttemptEnd.FAILED
    assert report.cause == "commit refused (moon-phase): the moon is full"


def test_ended_by_others_is_told_so_though_the_mark_cannot_be_read() -> None:
    attempt, _ = committing()
    attempt.handle(on.CommitRefused(code=RefusalCode.CANCELLED, reason="has ended already"), 16.0)
    _, report = after_deleting(attempt, on.OutcomeReadFailed("the store starts"))
    assert report.end is AttemptEnd.CANCELLED


def test_a_file_that_came_meanwhile_is_nobodys_failure() -> None:
    attempt, _ = committing()
    attempt.handle(
        on.CommitRefused(code=RefusalCode.RESURFACE, reason="c.parquet came later"), 16.0
    )
    paths, report = after_deleting(attempt, on.OutcomeRead(end=None))
    assert paths
    assert (report.end, report.error_class) == (AttemptEnd.CONFLICTED, "ConflictError")
    assert "c.parquet came later" in report.cause


def test_refused_after_something_was_sent_never_deletes() -> None:
    attempt, _ = committing()
    attempt.handle(
        on.CommitRefused(code=RefusalCode.GONE, reason="no reservation", sent=True), 16.0
    )
    paths, report = after_deleting(attempt, on.OutcomeRead(end=None))
    assert paths == ()
    assert report.end is AttemptEnd.FAILED


def test_refused_although_an_earlier_try_was_applied_is_committed() -> None:
    attempt, _ = committing()
    attempt.handle(
        on.CommitRefused(code=RefusalCode.GONE, reason="no reservation", sent=True), 16.0
    )
    report = reported(attempt, on.OutcomeRead(end=AttemptEnd.COMMITTED))
    assert (report.end, report.cause) == (AttemptEnd.COMMITTED, "")


def test_an_unknown_commit_is_looked_for_then_sent_again() -> None:
    attempt, sent = committing()
    (look,) = attempt.handle(on.CommitUnknown("connection lost"), 16.0)
    assert isinstance(look, do.ReadOutcome)
    assert look.delay_s > 0
    (later,) = attempt.handle(on.OutcomeReadFailed("still away"), 17.0)
    assert isinstance(later, do.ReadOutcome)
    assert later.delay_s > look.delay_s
    assert attempt.handle(on.OutcomeRead(end=None), 18.0) == [do.SendCommit(sent.commit)]

    attempt.handle(on.CommitRefused(code=RefusalCode.GONE, reason="no reservation"), 19.0)
    paths, report = after_deleting(attempt, on.OutcomeRead(end=AttemptEnd.LOST))
    assert paths == (), "the first try may have been executed"
    assert report.end is AttemptEnd.LOST


def test_an_unknown_commit_whose_mark_says_otherwise_ends_like_it() -> None:
    attempt, _ = committing()
    attempt.handle(on.CommitUnknown("connection lost"), 16.0)
    paths, report = after_deleting(attempt, on.OutcomeRead(end=AttemptEnd.CANCELLED, cause="user"))
    assert (paths, report.end, report.cause) == ((), AttemptEnd.CANCELLED, "user")


def test_an_unknown_commit_is_given_up_in_the_end() -> None:
    attempt, _ = committing()
    attempt.handle(on.CommitUnknown("connection lost"), 16.0)
    late_s = 16.0 + RESOLVE_MAX_S
    paths, report = after_deleting(attempt, on.OutcomeReadFailed("away"), late_s)
    assert (paths, report.end) == ((), AttemptEnd.LOST)
    assert report.error_class == "UnknownOutcomeError"


def test_conflicts_are_tried_again_within_bounds() -> None:
    attempt, sent = committing()
    delays = []
    for _ in range(CONFLICTS_MAX):
        (again,) = attempt.handle(on.CommitConflicted("busy"), 16.0)
        assert isinstance(again, do.SendCommit)
        assert again.commit == sent.commit
        delays.append(again.delay_s)
    assert delays == sorted(delays)
    paths, report = after_deleting(attempt, on.CommitConflicted("busy"))
    assert paths, "nothing was ever sent"
    assert (report.end, report.error_class) == (AttemptEnd.FAILED, "ConflictError")


def test_an_unbalanced_result_is_a_broken_invariant() -> None:
    wrong = RewriteResult(outputs=(), counts=RowCounts(rows_in=1))
    with pytest.raises(AssertionError):
        started().handle(on.RewriteDone(wrong), 11.0)


# --------------------------------------------------------- Jobs that only change the tags of files


TAGS = (("level", "2"),)


def moving(kind: Kind = Kind.SYSTEM) -> AttemptStateMachine:
    """Return an attempt at a move, before anybody has begun it."""
    assignment = an_assignment()
    job = replace(assignment.job, action="move", output_tags=TAGS, kind=kind)
    return AttemptStateMachine(replace(assignment, job=job), now_s=10.0)


def test_a_move_commits_at_once_and_reads_nothing() -> None:
    attempt = moving()
    (action,) = attempt.handle(on.AttemptStarted(), 11.0)
    assert isinstance(action, do.SendCommit)
    job, reservation = attempt.assignment.job, attempt.assignment.reservation
    assert action.commit == RetagFiles(
        tablet=job.tablet, attempt=attempt.id, tags=TAGS, elapsed_s=1.0, reason=job.reason,
        inputs=reservation.inputs,
    )  # fmt: skip
    assert not attempt.rewriting
    report = reported(attempt, on.CommitApplied())
    assert (report.end, report.outputs, report.counts) == (AttemptEnd.COMMITTED, (), RowCounts())
    assert attempt.committed_bytes == (0, 0)


def test_a_move_of_unknown_outcome_is_looked_for_and_sent_again() -> None:
    attempt = moving()
    (first,) = attempt.handle(on.AttemptStarted(), 11.0)
    (ask,) = attempt.handle(on.CommitUnknown("connection lost"), 12.0)
    assert isinstance(ask, do.ReadOutcome)
    assert attempt.handle(on.OutcomeRead(end=None), 13.0) == [first]
    (ask,) = attempt.handle(on.CommitUnknown("connection lost"), 14.0)
    assert reported(attempt, on.OutcomeRead(end=AttemptEnd.COMMITTED)).end is AttemptEnd.COMMITTED


def test_a_move_that_is_cancelled_before_it_begins_ends_so() -> None:
    attempt = moving()
    attempt.handle(on.CancelRequested(end=AttemptEnd.CANCELLED, cause="drained"), 10.0)
    _, report = after_deleting(attempt, on.AttemptStarted())
    assert (report.end, report.cause) == (AttemptEnd.CANCELLED, "drained")


@pytest.mark.parametrize("action", ["rewrite", "drop", "teleport"])
def test_an_action_that_is_no_move_is_a_rewrite(action: str) -> None:
    assignment = an_assignment()
    job = replace(assignment.job, action=action, output_tags=TAGS)
    attempt = AttemptStateMachine(replace(assignment, job=job), now_s=10.0)
    assert attempt.handle(on.AttemptStarted(), 10.0) == [do.Rewrite()]
    assert moving(Kind.USER).handle(on.AttemptStarted(), 10.0) == [do.Rewrite()]
