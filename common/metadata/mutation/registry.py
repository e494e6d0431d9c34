"""Which function builds the transaction of which change. A forgotten change fails type checking."""

from typing import assert_never

from common.metadata import changes
from common.metadata.mutation import (
    attempts,
    control,
    files,
    repair_files,
    repair_records,
    requests,
    selections,
    split_merge,
    tables,
)
from common.metadata.mutation.needs import at_generation
from common.metadata.mutation.transaction import Transaction

# ---------------------------------------------------------------------- Requests, splits and merges


_Here = (
    changes.MarkWaiting
    | changes.SelectFiles
    | changes.CompleteHere
    | changes.CancelHere
    | changes.FinishHere
)
_SplitMerge = (
    changes.BeginOperation | changes.StepOperation | changes.EndOperation | changes.AbandonOperation
)
_Whole = changes.SubmitRequest | changes.MoveRequest | changes.CancelRange | changes.CloseRequest


def _of_request(change: changes.RequestChange) -> Transaction:
    """Return the first transaction of a change of requests or bounds."""
    if isinstance(change, _Here):
        return _here(change)
    if isinstance(change, _Whole):
        return _whole(change)
    return _of_split_merge(change)


def _here(change: _Here) -> Transaction:
    match change:
        case changes.MarkWaiting():
            return selections.mark_waiting(change)
        case changes.SelectFiles():
            return selections.select(change)
        case changes.CompleteHere():
            return selections.complete_here(change)
        case changes.CancelHere():
            return selections.cancel_here(change)
        case changes.FinishHere():
            return selections.finish_here(change)
        case _:
            assert_never(change)


def _whole(change: _Whole) -> Transaction:
    match change:
        case changes.SubmitRequest():
            return requests.submit_request(change)
        case changes.MoveRequest():
            return requests.move_request(change)
        case changes.CancelRange():
            return requests.cancel_range(change)
        case changes.CloseRequest():
            return requests.close_request(change)
        case _:
            assert_never(change)


def _of_split_merge(change: _SplitMerge) -> Transaction:
    match change:
        case changes.BeginOperation():
            return split_merge.begin_operation(change)
        case changes.StepOperation():
            return split_merge.step_operation(change)
        case changes.EndOperation():
            return split_merge.end_operation(change)
        case changes.AbandonOperation():
            return split_merge.abandon_operation(change)
        case _:
            assert_never(change)


# ------------------------------------------------------------------------------------------ Repairs


_Files = changes.DiscardFiles | changes.ForgetFiles | changes.RescueFile | changes.DropDuplicate
_OverlapRepairs = changes.TrimTablet | changes.JoinTablets
_Entries = changes.CorrectFile | changes.MoveFile | changes.RestoreFiles
_Marks = (
    changes.RecountRecord
    | changes.EndReservation
    | changes.ClearMarks
    | changes.FillHole
    | changes.AcceptGeneration
    | changes.LowerWatermark
)


def _of_repair(change: changes.RepairChange) -> Transaction:
    """Return the transaction of a repair."""
    if isinstance(change, _Files):
        return _of_files(change)
    if isinstance(change, _Entries):
        return _of_entries(change)
    if isinstance(change, _OverlapRepairs):
        return _of_overlap(change)
    return _of_marks(change)


def _of_files(change: _Files) -> Transaction:
    match change:
        case changes.DiscardFiles():
            return repair_files.discard_files(change)
        case changes.ForgetFiles():
            return repair_files.forget_files(change)
        case changes.RescueFile():
            return repair_files.rescue_file(change)
        case changes.DropDuplicate():
            return repair_files.drop_double(change)
        case _:
            assert_never(change)


def _of_entries(change: _Entries) -> Transaction:
    match change:
        case changes.CorrectFile():
            return repair_files.restate_file(change)
        case changes.MoveFile():
            return repair_files.move_file(change)
        case changes.RestoreFiles():
            return repair_files.put_files(change)
        case _:
            assert_never(change)


def _of_overlap(change: _OverlapRepairs) -> Transaction:
    match change:
        case changes.TrimTablet():
            return repair_records.trim_tablet(change)
        case changes.JoinTablets():
            return repair_records.join_tablets(change)
        case _:
            assert_never(change)


def _of_marks(change: _Marks) -> Transaction:
    match change:
        case changes.RecountRecord():
            return repair_records.recount_record(change)
        case changes.EndReservation():
            return repair_records.end_reservation(change)
        case changes.ClearMarks():
            return repair_records.clear_marks(change)
        case changes.FillHole():
            return repair_records.fill_hole(change)
        case changes.AcceptGeneration():
            return repair_records.accept_generation(change)
        case changes.LowerWatermark():
            return repair_records.lower_watermark(change)
        case _:
            assert_never(change)


# -------------------------------------------------------------------------------------- All changes


_Attempts = changes.ReserveFiles | changes.CommitAttempt | changes.ReleaseAttempt | changes.DropHold
_Tables = changes.CreateTable | changes.ChangeTable | changes.DropTable | changes.AddFiles
_Garbage = (
    changes.StampGarbage
    | changes.KeepGarbage
    | changes.ForgetGarbage
    | changes.PinFiles
    | changes.UnpinFiles
)
_Notes = (
    changes.WriteAnalysis
    | changes.WriteAnalyses
    | changes.ClaimCoordination
    | changes.SetLimit
    | changes.BumpGeneration
    | changes.PublishManifest
)


def transaction_for(change: changes.Change) -> Transaction:
    """Return the first transaction of a change."""
    transaction = _transaction(change)
    if isinstance(change, changes.Guarded) and change.generation:
        return at_generation(changes.table_of(change), change.generation, transaction)
    return transaction


def _transaction(change: changes.Change) -> Transaction:
    if isinstance(change, _Attempts):
        return _of_attempt(change)
    if isinstance(change, _Tables):
        return _of_table(change)
    if isinstance(change, _Garbage):
        return _of_garbage(change)
    if isinstance(change, changes.RepairChange):
        return _of_repair(change)
    if isinstance(change, changes.RequestChange):
        return _of_request(change)
    return _of_note(change)


def _of_attempt(change: _Attempts) -> Transaction:
    match change:
        case changes.ReserveFiles():
            return attempts.reserve(change)
        case changes.CommitAttempt():
            return attempts.commit(change)
        case changes.ReleaseAttempt():
            return attempts.release(change)
        case changes.DropHold():
            return attempts.drop_hold(change)
        case _:
            assert_never(change)


def _of_table(change: _Tables) -> Transaction:
    match change:
        case changes.AddFiles():
            return files.add_files(change)
        case changes.CreateTable():
            return tables.create_table(change)
        case changes.ChangeTable():
            return tables.change_table(change)
        case changes.DropTable():
            return tables.drop_table(change)
        case _:
            assert_never(change)


def _of_garbage(change: _Garbage) -> Transaction:
    match change:
        case changes.StampGarbage():
            return files.stamp_garbage(change)
        case changes.KeepGarbage():
            return files.keep_garbage(change)
        case changes.ForgetGarbage():
            return files.forget_garbage(change)
        case changes.PinFiles():
            return files.pin(change)
        case changes.UnpinFiles():
            return files.unpin(change)
        case _:
            assert_never(change)


def _of_note(change: _Notes) -> Transaction:
    match change:
        case changes.WriteAnalysis():
            return control.write_analysis(change)
        case changes.WriteAnalyses():
            return control.write_analyses(change)
        case changes.ClaimCoordination():
            return control.claim_coordination(change)
        case changes.SetLimit():
            return control.set_limit(change)
        case changes.BumpGeneration():
            return control.bump_generation(change)
        case changes.PublishManifest():
            return control.publish_manifest(change)
        case _:
            assert_never(change)
