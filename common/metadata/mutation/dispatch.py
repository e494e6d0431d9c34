"""Which module answers for which change. A forgotten change fails type checking."""

from typing import assert_never

from common.metadata import changes, repair_changes, request_changes, upkeep_changes
from common.metadata.mutation import (
    adds,
    attempts,
    drops,
    garbage,
    notes,
    repairs,
    reservations,
    tables,
)
from common.metadata.mutation.request_dispatch import request_transaction
from common.metadata.mutation.requirements import at_generation
from common.metadata.mutation.transaction import Transaction

_Attempts = changes.Reserve | changes.Commit | changes.Release | changes.DropHold
_Tables = changes.CreateTable | changes.ChangeTable | changes.DropTable | changes.AddFiles
_Garbage = (
    upkeep_changes.StampGarbage
    | upkeep_changes.KeepGarbage
    | upkeep_changes.ForgetGarbage
    | upkeep_changes.Pin
    | upkeep_changes.Unpin
)
_Notes = (
    upkeep_changes.WriteAnalysis
    | upkeep_changes.WriteAnalyses
    | upkeep_changes.ClaimCoordination
    | upkeep_changes.SetLimit
    | upkeep_changes.BumpGeneration
    | upkeep_changes.PublishManifest
)


def transaction_for(change: changes.Change) -> Transaction:
    """Return the first transaction of a change."""
    transaction = _transaction(change)
    if isinstance(change, upkeep_changes.Guarded) and change.generation:
        return at_generation(changes.table_of(change), change.generation, transaction)
    return transaction


def _transaction(change: changes.Change) -> Transaction:
    if isinstance(change, _Attempts):
        return _of_attempt(change)
    if isinstance(change, _Tables):
        return _of_table(change)
    if isinstance(change, _Garbage):
        return _of_garbage(change)
    if isinstance(change, repair_changes.RepairChange):
        return repairs.repair_transaction(change)
    if isinstance(change, request_changes.RequestChange):
        return request_transaction(change)
    return _of_note(change)


def _of_attempt(change: _Attempts) -> Transaction:
    match change:
        case changes.Reserve():
            return reservations.reserve(change)
        case changes.Commit():
            return attempts.commit(change)
        case changes.Release():
            return attempts.release(change)
        case changes.DropHold():
            return reservations.drop_hold(change)
        case _:
            assert_never(change)


def _of_table(change: _Tables) -> Transaction:
    match change:
        case changes.AddFiles():
            return adds.add_files(change)
        case changes.CreateTable():
            return tables.create_table(change)
        case changes.ChangeTable():
            return tables.change_table(change)
        case changes.DropTable():
            return drops.drop_table(change)
        case _:
            assert_never(change)


def _of_garbage(change: _Garbage) -> Transaction:
    match change:
        case upkeep_changes.StampGarbage():
            return garbage.stamp_garbage(change)
        case upkeep_changes.KeepGarbage():
            return garbage.keep_garbage(change)
        case upkeep_changes.ForgetGarbage():
            return garbage.forget_garbage(change)
        case upkeep_changes.Pin():
            return garbage.pin(change)
        case upkeep_changes.Unpin():
            return garbage.unpin(change)
        case _:
            assert_never(change)


def _of_note(change: _Notes) -> Transaction:
    match change:
        case upkeep_changes.WriteAnalysis():
            return notes.write_analysis(change)
        case upkeep_changes.WriteAnalyses():
            return notes.write_analyses(change)
        case upkeep_changes.ClaimCoordination():
            return notes.claim_coordination(change)
        case upkeep_changes.SetLimit():
            return notes.set_limit(change)
        case upkeep_changes.BumpGeneration():
            return notes.bump_generation(change)
        case upkeep_changes.PublishManifest():
            return notes.publish_manifest(change)
        case _:
            assert_never(change)
