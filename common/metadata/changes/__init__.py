"""Every change of metadata: the value, what it requires, its decision and its effects.

Pure: no Redis, no event loop, no clock, no randomness.

  protocol        what all changes share: Transaction, Needs, Write, refusals, reads, effects
  tables          create, fill, change, trigger and drop a table; restore its name
  files           add files; the mark of a call; replaced windows; versions that adds have reached
  buffers         append rows to a table's buffer, of one call or of a group; close a segment of it
  attempts        reserve, commit, retag, release
  lake            lake tables: their mirror, publishing, the end of an attempt
  days            daily sums of finished attempts
  requests        submit, cancel a range, move on, close
  selections      a request in one tablet: wait, select, complete, drop the hold, cancel, finish
  split_merge     begin, step, abandon, end
  upkeep          analyses, garbage, pins, generations, manifests; limits, scales, series, who leads
  repair_files    repairs of files and their entries; a restore
  repair_tablets  repairs of counts, reservations, markers, watermarks, bounds

How a change becomes effects:

    1. The function with the change's name in snake case builds its first transaction. It registers
       itself with `transaction_of`.
    2. It names its needs: keys to watch, and reads.
    3. Its decision looks for its own mark, then asks the predicates, which stand next to it.
    4. It returns effects and the mark, or a refusal.
"""

from common.metadata.changes.attempts import CommitAttempt, ReleaseAttempt, ReserveFiles, RetagFiles
from common.metadata.changes.buffers import AppendGroup, AppendRows, CloseSegment, RowSpan
from common.metadata.changes.days import DailySums, StoreDays
from common.metadata.changes.files import AddFiles, Window
from common.metadata.changes.lake import (
    EndLakeAttempt,
    ForgetOutputs,
    MarkPublishing,
    MirrorFiles,
    NoteMirrorProblem,
)
from common.metadata.changes.protocol import (
    Applied,
    Change,
    Confirm,
    Guarded,
    Outcome,
    Refused,
    Unknown,
    table_of,
    transaction_for,
)
from common.metadata.changes.repair_files import (
    CorrectFile,
    DiscardFiles,
    DropDuplicate,
    ForgetFiles,
    MoveFile,
    RescueFile,
    RestoreFiles,
)
from common.metadata.changes.repair_tablets import (
    ClearMarks,
    EndReservation,
    FillHole,
    JoinTablets,
    LowerWatermark,
    RecountRecord,
    TrimTablet,
)
from common.metadata.changes.requests import CancelRange, CloseRequest, MoveRequest, SubmitRequest
from common.metadata.changes.selections import (
    CancelHere,
    CompleteHere,
    DropHold,
    FinishHere,
    MarkWaiting,
    SelectFiles,
)
from common.metadata.changes.split_merge import (
    AbandonOperation,
    BeginOperation,
    EndOperation,
    StepOperation,
)
from common.metadata.changes.tables import (
    ChangeTable,
    CreateTable,
    DropTable,
    FinishFilling,
    RestoreName,
    ResumeFilling,
    TriggerTable,
)
from common.metadata.changes.upkeep import (
    AcceptGeneration,
    BumpGeneration,
    ClaimCoordination,
    ForgetGarbage,
    KeepGarbage,
    PinFiles,
    PublishManifest,
    SaveSeries,
    SetLimit,
    SetScale,
    StampGarbage,
    UnpinFiles,
    WriteAnalyses,
    WriteAnalysis,
)
from common.model.file import MirroredFiles

__all__ = [
    "AbandonOperation",
    "AcceptGeneration",
    "AddFiles",
    "AppendGroup",
    "AppendRows",
    "Applied",
    "BeginOperation",
    "BumpGeneration",
    "CancelHere",
    "CancelRange",
    "Change",
    "ChangeTable",
    "ClaimCoordination",
    "ClearMarks",
    "CloseRequest",
    "CloseSegment",
    "CommitAttempt",
    "CompleteHere",
    "Confirm",
    "CorrectFile",
    "CreateTable",
    "DailySums",
    "DiscardFiles",
    "DropDuplicate",
    "DropHold",
    "DropTable",
    "EndLakeAttempt",
    "EndOperation",
    "EndReservation",
    "FillHole",
    "FinishFilling",
    "FinishHere",
    "ForgetFiles",
    "ForgetGarbage",
    "ForgetOutputs",
    "Guarded",
    "JoinTablets",
    "KeepGarbage",
    "LowerWatermark",
    "MarkPublishing",
    "MarkWaiting",
    "MirrorFiles",
    "MirroredFiles",
    "MoveFile",
    "MoveRequest",
    "NoteMirrorProblem",
    "Outcome",
    "PinFiles",
    "PublishManifest",
    "RecountRecord",
    "Refused",
    "ReleaseAttempt",
    "RescueFile",
    "ReserveFiles",
    "RestoreFiles",
    "RestoreName",
    "ResumeFilling",
    "RetagFiles",
    "RowSpan",
    "SaveSeries",
    "SelectFiles",
    "SetLimit",
    "SetScale",
    "StampGarbage",
    "StepOperation",
    "StoreDays",
    "SubmitRequest",
    "TriggerTable",
    "TrimTablet",
    "Unknown",
    "UnpinFiles",
    "Window",
    "WriteAnalyses",
    "WriteAnalysis",
    "table_of",
    "transaction_for",
]
