"""The builder of each change's transaction.

A test ensures that the mapping has an entry for each member of `changes.Change`.
"""

from collections.abc import Callable, Mapping
from typing import Any

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

BUILDERS: Mapping[type[Any], Callable[[Any], Transaction]] = {
    changes.ReserveFiles: attempts.reserve,
    changes.CommitAttempt: attempts.commit,
    changes.RetagFiles: attempts.retag,
    changes.ReleaseAttempt: attempts.release,
    changes.DropHold: attempts.drop_hold,
    changes.CreateTable: tables.create_table,
    changes.ResumeFilling: tables.resume_filling,
    changes.FinishFilling: tables.finish_filling,
    changes.ChangeTable: tables.change_table,
    changes.TriggerTable: tables.trigger_table,
    changes.DropTable: tables.drop_table,
    changes.RestoreName: tables.restore_name,
    changes.AddFiles: files.add_files,
    changes.StampGarbage: files.stamp_garbage,
    changes.KeepGarbage: files.keep_garbage,
    changes.ForgetGarbage: files.forget_garbage,
    changes.PinFiles: files.pin,
    changes.UnpinFiles: files.unpin,
    changes.WriteAnalysis: control.write_analysis,
    changes.WriteAnalyses: control.write_analyses,
    changes.ClaimCoordination: control.claim_coordination,
    changes.SetLimit: control.set_limit,
    changes.SetScale: control.set_scale,
    changes.BumpGeneration: control.bump_generation,
    changes.PublishManifest: control.publish_manifest,
    changes.SubmitRequest: requests.submit_request,
    changes.MoveRequest: requests.move_request,
    changes.CancelRange: requests.cancel_range,
    changes.CloseRequest: requests.close_request,
    changes.MarkWaiting: selections.mark_waiting,
    changes.SelectFiles: selections.select,
    changes.CompleteHere: selections.complete_here,
    changes.CancelHere: selections.cancel_here,
    changes.FinishHere: selections.finish_here,
    changes.BeginOperation: split_merge.begin_operation,
    changes.StepOperation: split_merge.step_operation,
    changes.EndOperation: split_merge.end_operation,
    changes.AbandonOperation: split_merge.abandon_operation,
    changes.DiscardFiles: repair_files.discard_files,
    changes.ForgetFiles: repair_files.forget_files,
    changes.RescueFile: repair_files.rescue_file,
    changes.DropDuplicate: repair_files.drop_double,
    changes.CorrectFile: repair_files.restate_file,
    changes.MoveFile: repair_files.move_file,
    changes.RestoreFiles: repair_files.put_files,
    changes.TrimTablet: repair_records.trim_tablet,
    changes.JoinTablets: repair_records.join_tablets,
    changes.RecountRecord: repair_records.recount_record,
    changes.EndReservation: repair_records.end_reservation,
    changes.ClearMarks: repair_records.clear_marks,
    changes.FillHole: repair_records.fill_hole,
    changes.AcceptGeneration: repair_records.accept_generation,
    changes.LowerWatermark: repair_records.lower_watermark,
}
"""Type of a change → function that returns its first transaction."""


def transaction_for(change: changes.Change) -> Transaction:
    """Return the first transaction of a change."""
    transaction = BUILDERS[type(change)](change)
    if isinstance(change, changes.Guarded) and change.generation:
        return at_generation(changes.table_of(change), change.generation, transaction)
    return transaction
