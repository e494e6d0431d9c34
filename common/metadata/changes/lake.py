"""Lake tables: the mirror follows the table's log; attempts publish there, and end here.

    mirror files       difference between two versions of the log: files in, files out. Only the
                       coordinator's follower makes it (`coordinator/lake.py`)
    note a problem     the log cannot be read, or its table may not be compacted
    mark publishing    an attempt is about to send a version to the log; it holds its reservation
    end an attempt     the reservation goes, history and outcome come. Files of the mirror stay
    forget outputs     outputs that were deleted, or that the log names after all

The log or catalog of the table is the truth, and the store has a mirror. So an input never becomes
garbage here: older versions of the table name it, and only the table's own vacuum deletes it. An
output of an attempt becomes garbage unless the log is known to name it. If the attempt was marked,
its mark stays, because what it sent may still arrive (`docs/lake-tables.md` has the rules).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.metadata.changes.attempts import attempt_entry, end_seen, entry_seen
from common.metadata.changes.protocol import (
    FAILURE_CHARS_MAX,
    Decision,
    Guarded,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    attempt_ended,
    bounds_seen,
    chunk_head,
    chunks_changed,
    file_counts,
    files_written,
    history_of,
    into_garbage,
    is_in_chunks,
    make_tablet,
    mirror_needs,
    mirror_seen,
    refused_by_table,
    selection_seen,
    table_changed,
    table_state,
    tablet_changed,
    tablet_gone,
    take_files_out,
    transaction_of,
)
from common.metadata.codec.table import COMMITTED, HEAD, MIRROR_HEAD, PUBLISHING
from common.metadata.codec.tablet import (
    COMPACTIONS,
    DONE,
    FAILURE,
    FAILURES,
    RUNNING,
    SELECTED,
    SELECTION,
    unpack_file,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import Command, Word, delete, get, hdel, hmget, hset, sadd, set_string
from common.metadata.store_values import (
    AttemptOutcome,
    HistoryEntry,
    MirrorHead,
    PublishingMark,
    with_estimates,
)
from common.model.file import MIRRORED_MAX, DataFile, MirroredFiles
from common.model.outcome import AttemptEnd, Refusal, RefusalCode, RowCounts
from common.model.tablet import Bounds, Reservation, Selection, TabletId
from common.primitives import PUBLISH_LIFE_S

# ------------------------------------------------------------------------------------------- Mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFiles(Guarded):
    """Move the mirror of a lake table on. Refused unless the mirror is where it was read.

    A large difference needs several changes. Only the last one sets the version, so a follower that
    stops in between leaves a mirror that the next one compares with the log again.
    """

    table: str
    after: str
    """Token of the mirror's head as it was read; empty: nothing was mirrored so far."""
    token: str
    """Random id of this change. Mark: the head has it."""
    version: int
    """Version of the log that the mirror has after this change; -1: more changes follow."""
    files: Mapping[bytes, MirroredFiles] = field(default_factory=dict)
    """Tablet end → its files. An unpartitioned table has the last tablet only."""


@transaction_of.register
def mirror_files(change: MirrorFiles) -> Transaction:
    """Return the transaction that moves a mirror on. Mark: the token of its head.

    A file that leaves may be an input of a running attempt. Its reservation stays: the follower has
    looked whether the attempt committed, and ends it otherwise.
    """
    keys = TableKeys(change.table)
    count = sum(len(files.came) + len(files.went) for files in change.files.values())
    assert count <= MIRRORED_MAX, count
    needs = table_state(keys) | mirror_needs(keys)
    for end, files in change.files.items():
        needs |= _mirrored_needs(TabletId(change.table, end), files)

    def decide(seen: Seen) -> Decision:
        mirror = mirror_seen(keys, seen)
        head = mirror.head
        if head is not None and head.token == change.token:
            return NoWrite()
        if refusal := refused_by_table(keys, seen):
            return refusal
        if (head.token if head else "") != change.after:
            return Refusal(
                RefusalCode.MIRROR,
                f"table {change.table}: its mirror was moved by another change, read it again",
            )
        effects: list[Command] = []
        for end, files in change.files.items():
            done = _mirrored(TabletId(change.table, end), files, seen)
            if isinstance(done, Refusal):
                return done
            effects += done
        moved = _moved(change, head, seen.now_s)
        effects.append(hset(keys.mirror, {HEAD: MIRROR_HEAD.pack(moved)}))
        return Write((*effects, table_changed(change.table, "mirror")))

    return Transaction(needs, decide)


def _moved(change: MirrorFiles, head: MirrorHead | None, now_s: float) -> MirrorHead:
    """Return the new head; until the last change, version and problem stay."""
    if change.version >= 0:
        return MirrorHead(token=change.token, version=change.version, moved_s=now_s)
    before = head or MirrorHead(token="", version=-1)
    return replace(before, token=change.token, moved_s=now_s)


def _mirrored_needs(tablet: TabletId, files: MirroredFiles) -> Needs:
    keys = TabletKeys.of(tablet)
    reads = {
        f"{tablet.text}/bounds": get(keys.bounds),
        f"{tablet.text}/selection": get(keys.selection),
    }
    if paths := _paths(files):
        reads[f"{tablet.text}/files"] = hmget(keys.files, paths)
    if files.went or any(map(is_in_chunks, files.came)):
        reads |= chunk_head(keys, f"{tablet.text}/chunks").reads
    return Needs((keys.bounds, keys.files, keys.selection), reads)


def _paths(files: MirroredFiles) -> list[str]:
    return [*(file.path for file in files.came), *files.went]


def _mirrored(tablet: TabletId, files: MirroredFiles, seen: Seen) -> list[Command] | Refusal:
    """Return the effects in one tablet. Files that are there already are replaced."""
    keys = TabletKeys.of(tablet)
    effects: list[Command] = []
    if bounds_seen(keys, seen[f"{tablet.text}/bounds"]) is None:
        if files.partition is None:
            return tablet_gone(tablet)
        effects += make_tablet(tablet, Bounds(None, tablet.end, files.partition))
    stored = dict(zip(_paths(files), seen.replies.get(f"{tablet.text}/files", ()), strict=True))
    before = {
        path: unpack_file(f"{keys.files} {path}", path.encode(), data)
        for path, data in stored.items()
        if data is not None
    }
    went = [path for path in files.went if path in before]
    if went:
        effects += take_files_out(keys, went)
    effects += files_written(keys, files.came)
    head = seen.replies.get(f"{tablet.text}/chunks")
    effects += chunks_changed(keys, head, files.came, before.values())
    selection = selection_seen(keys, seen[f"{tablet.text}/selection"])
    counts, flags = file_counts(files.came, before.values()), dict[str, Word]()
    if selection is not None and not {*went}.isdisjoint(selection.files):
        left = _without(selection, went)
        if left is None:
            effects += [delete(keys.selection), sadd(keys.done, selection.request)]
            counts[DONE], flags[SELECTED] = 1, 0
        else:
            effects.append(set_string(keys.selection, SELECTION.pack(left)))
    return [*effects, *tablet_changed(tablet, "mirror", counts=counts, flags=flags)]


def _without(selection: Selection, went: Iterable[str]) -> Selection | None:
    """Return a selection without vanished files; None: its request is done in the tablet.

    A selected file of a lake table was rewritten when the log no longer names it. Outputs do not
    join the selection: the log may name them later than the attempt has ended.
    """
    gone = {*went}
    files = tuple(path for path in selection.files if path not in gone)
    return replace(selection, files=files) if files else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteMirrorProblem(Guarded):
    """Note why the log of a lake table is not followed, or that nothing is wrong any more."""

    table: str
    problem: str
    """A sentence for operators; empty: nothing is wrong."""


PROBLEM_CHARS_MAX = 500
"""Longest text of a problem."""


@transaction_of.register
def note_mirror_problem(change: NoteMirrorProblem) -> Transaction:
    """Return the transaction that notes a problem. Mark: it is there."""
    keys = TableKeys(change.table)
    problem = change.problem[:PROBLEM_CHARS_MAX]

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(keys, seen):
            return refusal
        head = mirror_seen(keys, seen).head or MirrorHead(token="", version=-1)
        if head.problem == problem:
            return NoWrite()
        noted = replace(head, problem=problem, problem_s=seen.now_s if problem else 0.0)
        effects = (hset(keys.mirror, {HEAD: MIRROR_HEAD.pack(noted)}),)
        return Write((*effects, table_changed(change.table, "mirror")))

    return Transaction(table_state(keys) | mirror_needs(keys), decide)


# --------------------------------------------------------------------------------------- Publishing


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPublishing(Guarded):
    """Let an attempt send a version to the log. It must hold its reservation, and be young enough.

    Written before each try to send. An attempt without a mark has sent nothing.
    """

    tablet: TabletId
    attempt: str
    planned: int
    """Version that the attempt has read: what it sent is looked for in later ones."""
    base: int
    """Version that this try was validated against; it sends the next one."""
    outputs: tuple[str, ...]
    """Paths of everything that the attempt has written, relative to the table's folder."""


@transaction_of.register
def mark_publishing(change: MarkPublishing) -> Transaction:
    """Return the transaction of a mark. A repetition writes it again, which is harmless."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)

    def decide(seen: Seen) -> Decision:
        entry = entry_seen(keys, change.attempt, seen)
        if entry is None:
            return Refusal(
                RefusalCode.RELEASED,
                f"tablet {change.tablet}: attempt {change.attempt} holds no reservation, so it may "
                "not publish",
            )
        age_s = seen.now_s - entry.since_s
        if age_s > PUBLISH_LIFE_S:
            return Refusal(
                RefusalCode.OVERDUE,
                f"attempt {change.attempt} reserved its files {age_s / 3600:.0f} hours ago, it may "
                f"publish for {PUBLISH_LIFE_S / 3600:.0f} hours",
            )
        mark = PublishingMark(
            attempt=change.attempt,
            tablet_end=change.tablet.end,
            planned=change.planned,
            base=change.base,
            outputs=change.outputs,
            marked_s=seen.now_s,
        )
        fields: dict[Word, Word] = {change.attempt: PUBLISHING.pack(mark)}
        return Write((hset(table.publishing, fields),), durable=True)

    return Transaction(attempt_entry(table, keys, change.attempt), decide)


# -------------------------------------------------------------------------------- End of an attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLakeAttempt(Guarded):
    """End an attempt at a lake table, whatever came of it. The files of the mirror stay."""

    tablet: TabletId
    attempt: str
    end: AttemptEnd
    """COMMITTED: the log names at least one output. FAILED counts as a failure of the tablet."""
    cause: str = ""
    """For other ends than COMMITTED: why."""
    version: int = -1
    """For COMMITTED: the version that names its outputs. The tablet's files are reserved again only
    after the mirror has reached it."""
    outputs: tuple[DataFile, ...] = ()
    """For COMMITTED: the outputs that the log names."""
    inputs: tuple[DataFile, ...] = ()
    """For COMMITTED: the inputs that these replaced, as they were assigned."""
    further: tuple[str, ...] = ()
    """Paths that it wrote beside its reserved outputs, and that the log does not name."""
    counts: RowCounts = field(default_factory=RowCounts)
    reason: str = ""
    """The job's reason, for the history."""
    expected_bytes: int = 0
    """Estimates, for the history: bytes of the outputs."""
    expected_files: int = 0
    """Number of outputs; 0: the job has no estimates."""
    expected_s: float = 0.0
    """Time that the attempt takes; 0: unknown."""


@transaction_of.register
def end_lake_attempt(change: EndLakeAttempt) -> Transaction:
    """Return the transaction that ends an attempt. Mark: its outcome, and no reservation.

    Inputs never become garbage. Reserved outputs that the log does not name do; the mark of an
    attempt that has such outputs stays, because what it sent may still arrive.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    is_commit = change.end is AttemptEnd.COMMITTED
    assert is_commit == (change.version >= 0), change
    assert is_commit or not change.outputs, change

    def decide(seen: Seen) -> Decision:
        entry = entry_seen(keys, change.attempt, seen)
        if entry is None:
            return end_seen(table, change.attempt, change.end, seen)
        effects = _ended(change, entry, seen)
        if is_commit:
            newest = max(change.version, mirror_seen(table, seen).committed)
            effects.append(hset(table.mirror, {COMMITTED: newest}))
            selection = selection_seen(keys, seen["selection"])
            if selection is not None and selection.request == entry.request:
                done = replace(selection, completed_jobs=selection.completed_jobs + 1)
                effects.append(set_string(keys.selection, SELECTION.pack(done)))
        return Write(tuple(effects))

    needs = attempt_entry(table, keys, change.attempt)
    if is_commit:
        needs |= mirror_needs(table) | Needs((keys.selection,), {"selection": get(keys.selection)})
    return Transaction(needs, decide)


def _ended(change: EndLakeAttempt, entry: Reservation, seen: Seen) -> list[Command]:
    """Return the effects but those on mirror and selection."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    is_commit = change.end is AttemptEnd.COMMITTED
    named = {file.path for file in change.outputs}
    paths = (*entry.output_paths, *change.further)
    waste: dict[str, bytes | None] = {path: None for path in paths if path not in named}
    history = _history(change, entry, seen.now_s)
    mark = AttemptOutcome(attempt=entry.attempt, end=change.end, cause=change.cause)
    effects = [
        *into_garbage(table, change.tablet.end, waste),
        *attempt_ended(table, keys, entry, mark, history),
    ]
    if not waste:
        effects.append(hdel(table.publishing, entry.attempt))
    failed = change.end is AttemptEnd.FAILED
    flags: dict[str, Word] = {FAILURE: change.cause[:FAILURE_CHARS_MAX]} if failed else {}
    if is_commit:
        effects.append(hdel(keys.record, FAILURES, FAILURE))
    counts = {RUNNING: -1, COMPACTIONS: int(is_commit), FAILURES: int(failed)}
    what = "commit" if is_commit else "release"
    effects += tablet_changed(
        change.tablet, what, attempt=entry.attempt, counts=counts, flags=flags
    )
    return effects


def _history(change: EndLakeAttempt, entry: Reservation, now_s: float) -> HistoryEntry:
    history = history_of(change.tablet, entry, change.end, now_s)
    if change.end is not AttemptEnd.COMMITTED:
        return replace(history, cause=change.cause)
    history = replace(
        history,
        outputs=tuple(file.path for file in change.outputs),
        bytes_in=sum(file.size_bytes for file in change.inputs),
        bytes_out=sum(file.size_bytes for file in change.outputs),
        rows_in=change.counts.rows_in,
        rows_out=change.counts.rows_out,
        tombstones_dropped=change.counts.tombstones_dropped,
        reason=change.reason,
        cause=change.cause,
    )
    if not change.expected_files:
        return history
    estimates = (change.expected_bytes, change.expected_files, change.expected_s)
    return with_estimates(history, estimates, change.inputs, change.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOutputs(Guarded):
    """Forget outputs of ended attempts: they are deleted, or the log names them after all."""

    table: str
    paths: tuple[str, ...]
    attempts: tuple[str, ...]
    """Attempts of which no output waits for deletion any more; their marks go."""


@transaction_of.register
def forget_outputs(change: ForgetOutputs) -> Transaction:
    """Return the transaction that forgets outputs. Mark: they are not there."""
    keys = TableKeys(change.table)

    def decide(_seen: Seen) -> Decision:
        effects: list[Command] = []
        if change.paths:
            effects.append(hdel(keys.garbage, *change.paths))
        if change.attempts:
            effects.append(hdel(keys.publishing, *change.attempts))
            effects.append(hdel(keys.uncommitted, *change.attempts))
        return Write(tuple(effects)) if effects else NoWrite()

    return Transaction(table_state(keys, watch=False), decide)
