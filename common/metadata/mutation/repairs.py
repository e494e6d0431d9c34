"""Which module answers for which repair."""

from typing import assert_never

from common.metadata import repair_changes as repair
from common.metadata.mutation import (
    repair_bounds,
    repair_entries,
    repair_files,
    repair_marks,
    repair_watermark,
)
from common.metadata.mutation.transaction import Transaction

_Files = repair.DiscardFiles | repair.ForgetFiles | repair.RescueFile | repair.DropDouble
_Bounds = repair.TrimTablet | repair.JoinTablets
_Entries = repair.RestateFile | repair.MoveFile | repair.PutFiles
_Marks = (
    repair.RecountRecord
    | repair.EndReservation
    | repair.ClearMarks
    | repair.FillHole
    | repair.AcceptGeneration
    | repair.LowerWatermark
)


def repair_transaction(change: repair.RepairChange) -> Transaction:
    """Return the transaction of a repair."""
    if isinstance(change, _Files):
        return _of_files(change)
    if isinstance(change, _Entries):
        return _of_entries(change)
    if isinstance(change, _Bounds):
        return _of_bounds(change)
    return _of_marks(change)


def _of_files(change: _Files) -> Transaction:
    match change:
        case repair.DiscardFiles():
            return repair_files.discard_files(change)
        case repair.ForgetFiles():
            return repair_files.forget_files(change)
        case repair.RescueFile():
            return repair_files.rescue_file(change)
        case repair.DropDouble():
            return repair_files.drop_double(change)
        case _:
            assert_never(change)


def _of_entries(change: _Entries) -> Transaction:
    match change:
        case repair.RestateFile():
            return repair_entries.restate_file(change)
        case repair.MoveFile():
            return repair_entries.move_file(change)
        case repair.PutFiles():
            return repair_entries.put_files(change)
        case _:
            assert_never(change)


def _of_bounds(change: _Bounds) -> Transaction:
    match change:
        case repair.TrimTablet():
            return repair_bounds.trim_tablet(change)
        case repair.JoinTablets():
            return repair_bounds.join_tablets(change)
        case _:
            assert_never(change)


def _of_marks(change: _Marks) -> Transaction:
    match change:
        case repair.RecountRecord():
            return repair_marks.recount_record(change)
        case repair.EndReservation():
            return repair_marks.end_reservation(change)
        case repair.ClearMarks():
            return repair_marks.clear_marks(change)
        case repair.FillHole():
            return repair_marks.fill_hole(change)
        case repair.AcceptGeneration():
            return repair_marks.accept_generation(change)
        case repair.LowerWatermark():
            return repair_watermark.lower_watermark(change)
        case _:
            assert_never(change)
