"""Reserve, commit, retag and release: the right of one attempt to replace files, and its end.

Commit, retag and release all watch `running`; the attempt's entry in it is the fencing token. Each
predicate is evaluated twice: by the coordinator, so that a stale decision costs nothing, and after
`WATCH` inside the conditional write, where it is binding. The order of its tests is the order in
which an operator wants to read the reasons.
"""

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, replace

from common.metadata.changes.files import recent_adds_bound
from common.metadata.changes.protocol import (
    FAILURE_CHARS_MAX,
    Applied,
    Change,
    Decision,
    Guarded,
    More,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Unresolved,
    Write,
    attempt_ended,
    buffer_segments,
    chunk_head,
    chunks_changed,
    claim_seen,
    file_counts,
    files_written,
    history_of,
    into_garbage,
    is_in_chunks,
    may_change,
    mirror_needs,
    refused_by_floor,
    refused_by_mirror,
    selection_seen,
    some_files,
    some_names,
    state_seen,
    table_state,
    tablet_changed,
    tablet_gone,
    tablet_seen,
    transaction_of,
    uncommitted_outputs,
    whole_tablet,
)
from common.metadata.codec import table as codec_table
from common.metadata.codec.layout import pack
from common.metadata.codec.tablet import (
    ANALYSIS_GROUP,
    COMPACTIONS,
    DONE,
    FAILURE,
    FAILURES,
    HALVED,
    PURGED,
    RECENT_ADDS,
    RESERVATION,
    RUNNING,
    SELECTED,
    SELECTION,
    STATISTICS,
    pack_statistics,
    unpack_file,
    unpack_files,
    unpack_recent,
)
from common.metadata.keys import COORDINATOR, TableKeys, TabletKeys
from common.metadata.keyspace import (
    Command,
    Word,
    delete,
    get,
    hdel,
    hget,
    hgetall,
    hincrby,
    hset,
    sadd,
    set_string,
)
from common.metadata.store_values import AttemptOutcome, with_estimates
from common.model.file import DataFile, with_data_version, with_tags
from common.model.job import Kind
from common.model.outcome import (
    AttemptEnd,
    DroppedRows,
    Refusal,
    RefusalCode,
    RowCounts,
    Statistics,
)
from common.model.table import TableState
from common.model.tablet import Bounds, OperationStep, Reservation, Selection, Tablet, TabletId
from common.units import format_bytes, format_count

# ------------------------------------------------------------------------------------------ Reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveFiles(Guarded):
    """Let one attempt alone replace these files."""

    tablet: TabletId
    attempt: str
    job: str
    kind: Kind
    inputs: tuple[str, ...]
    output_prefix: str
    outputs_max: int
    group: str
    compactor: str
    request: str | None = None
    cuts_at: bytes | None = None
    """The key at which this job cuts, for a tablet whose operation is at the step `cut`."""


def may_reserve(
    tablet: Tablet,
    *,
    state: TableState | None,
    kind: Kind,
    inputs: Collection[str],
    request: str | None,
    cuts_at: bytes | None = None,
) -> Refusal | None:
    """Return why a job may not reserve its inputs now, or None if it may.

    Args:
        tablet: The current tablet; inside the conditional write: as read after `WATCH`.
        state: The table's state.
        kind: USER jobs use files of their request's selection, SYSTEM jobs all others.
        inputs: Paths; empty for an analysis, which only reads.
        request: The request of a USER job; None for a SYSTEM job.
        cuts_at: The key at which the job cuts, for a tablet that will be split there.
    """
    assert isinstance(tablet, Tablet), tablet
    assert (kind is Kind.USER) == (request is not None), (kind, request)
    if state is TableState.PAUSED:
        return Refusal(RefusalCode.PAUSED, f"table {tablet.id.table} is paused")
    refusal = may_change(tablet.id.table, state) or _refused_by_operation(tablet, cuts_at)
    if refusal is None:
        refusal = _refused_by_files(tablet, inputs)
    if refusal is None and request is None:
        return _refused_to_system(tablet, inputs)
    if refusal is None and request is not None:
        return _refused_to_user(tablet, inputs, request)
    return refusal


def _refused_by_operation(tablet: Tablet, cuts_at: bytes | None) -> Refusal | None:
    operation = tablet.operation
    if operation is None:
        return None
    cuts = operation.step is OperationStep.CUT and operation.at is not None
    if cuts and operation.at == cuts_at:
        return None
    return Refusal(
        RefusalCode.OPERATION,
        f"tablet {tablet.id}: a {operation.kind.value} is under way ({operation.step.value})",
    )


def _refused_by_files(tablet: Tablet, inputs: Collection[str]) -> Refusal | None:
    if missing := sorted(path for path in inputs if path not in tablet.files):
        return Refusal(
            RefusalCode.GONE, f"tablet {tablet.id}: files are gone: {some_names(missing)}"
        )
    input_paths = set(inputs)
    for attempt, entry in sorted(tablet.running.items()):
        if reserved := sorted(input_paths.intersection(entry.inputs)):
            return Refusal(
                RefusalCode.RESERVED,
                f"tablet {tablet.id}: files are reserved by attempt {attempt}: "
                f"{some_names(reserved)}",
            )
    return None


def _refused_to_system(tablet: Tablet, inputs: Collection[str]) -> Refusal | None:
    if tablet.waiting:
        waiting = some_names(sorted(tablet.waiting))
        return Refusal(
            RefusalCode.WAITING, f"tablet {tablet.id}: requests wait to select files: {waiting}"
        )
    if tablet.selection is None:
        return None
    if selected := sorted(set(inputs).intersection(tablet.selection.files)):
        return Refusal(
            RefusalCode.SELECTED,
            f"tablet {tablet.id}: files are selected by request "
            f"{tablet.selection.request}: {some_names(selected)}",
        )
    return None


def _refused_to_user(tablet: Tablet, inputs: Collection[str], request: str) -> Refusal | None:
    selection = tablet.selection
    if selection is None or selection.request != request:
        return Refusal(
            RefusalCode.SELECTED, f"tablet {tablet.id}: request {request} has no selection here"
        )
    if missing := sorted(set(inputs).difference(selection.files)):
        return Refusal(
            RefusalCode.SELECTED,
            f"tablet {tablet.id}: not in the selection of request {request}: {some_names(missing)}",
        )
    return None


@transaction_of.register
def reserve_files(change: ReserveFiles) -> Transaction:
    """Return the transaction of a reservation. Mark: `running[attempt]`.

    `files` is read but not watched, because appends to a busy tablet must not make reservations
    fail. Inputs cannot leave while `running` is unchanged.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = [keys.operation, keys.running, keys.selection]
    if change.kind is Kind.SYSTEM:
        watch.append(keys.waiting)

    def decide(seen: Seen) -> Decision:
        tablet = tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return tablet_gone(change.tablet)
        if (reservation := tablet.running.get(change.attempt)) is not None:
            return NoWrite(Applied(reservation=reservation, tablet=tablet))
        if seen.sent:
            return Unresolved(f"attempt {change.attempt} may still be reserved; use a new one")
        refusal = refused_by_mirror(table, seen) or may_reserve(
            tablet,
            state=state_seen(table, seen),
            kind=change.kind,
            inputs=change.inputs,
            request=change.request,
            cuts_at=change.cuts_at,
        )
        if refusal is not None:
            return refusal
        entry = reservation_of(change, seen.now_s)
        effects = (
            hset(keys.running, {change.attempt: RESERVATION.pack(entry)}),
            *tablet_changed(change.tablet, "reserve", attempt=change.attempt, counts={RUNNING: 1}),
        )
        return Write(effects, Applied(reservation=entry, tablet=tablet))

    needs = table_state(table) | mirror_needs(table, watch=False) | whole_tablet(keys, watch)
    return Transaction(needs, decide)


def reservation_of(change: ReserveFiles, now_s: float) -> Reservation:
    """Return the reservation for a change.

    Args:
        change: The change.
        now_s: The store's time: the start of the attempt, and the `now` of the row rules.
    """
    return Reservation(
        attempt=change.attempt,
        job=change.job,
        kind=change.kind,
        inputs=change.inputs,
        output_prefix=change.output_prefix,
        outputs_max=change.outputs_max,
        group=change.group,
        compactor=change.compactor,
        since_s=now_s,
        now_s=now_s,
        request=change.request,
    )


# ---- Commit
#
# While the entry exists, inputs cannot be taken, and the selection cannot be dropped, cancelled or
# split, without a change of `running`. So a commit that dropped no rows watches nothing else.


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt(Change):
    """Replace the inputs of an attempt by its outputs."""

    tablet: TabletId
    attempt: str
    outputs: tuple[DataFile, ...]
    counts: RowCounts
    dropped: DroppedRows | None = None
    """Set if dead rows were dropped and older versions of them must stay out."""
    outside: tuple[str, ...] = ()
    """Paths of the non-input files that the kernel considered when it dropped rows."""
    elapsed_s: float = 0.0
    reason: str = ""
    """The job's reason, for the history."""
    inputs: tuple[str, ...] = ()
    """Its inputs, if known: saves a round trip. The reservation is authoritative."""
    statistics: Statistics | None = None
    """Result of an analysis, which replaces nothing; written to files that still exist."""
    expected_bytes: int = 0
    """Estimates, for the history: bytes of the outputs."""
    expected_files: int = 0
    """Number of outputs; 0: the job has no estimates."""
    expected_s: float = 0.0
    """Time that the attempt takes; 0: unknown."""


def may_commit(
    tablet: Tablet,
    attempt: str,
    *,
    dropped: DroppedRows | None = None,
    outside: Container[str] = (),
) -> Refusal | None:
    """Return why an attempt may not replace its inputs now, or None if it may.

    Args:
        tablet: The current tablet. Only the inputs among its files matter, unless rows were
            dropped.
        attempt: The fencing token; reservations are compared by it alone.
        dropped: Dead rows that the attempt dropped.
        outside: Non-input files that it considered when it dropped them.
    """
    entry = tablet.running.get(attempt)
    if entry is None:
        return Refusal(
            RefusalCode.RELEASED, f"tablet {tablet.id}: attempt {attempt} holds no reservation"
        )
    if missing := sorted(path for path in entry.inputs if path not in tablet.files):
        return Refusal(
            RefusalCode.GONE, f"tablet {tablet.id}: inputs are gone: {some_names(missing)}"
        )
    if entry.request is not None and (
        refusal := _refused_to_user(tablet, entry.inputs, entry.request)
    ):
        return refusal
    if dropped is None:
        return None
    reserved = {*entry.inputs}
    for file in tablet.files.values():
        if (
            file.path not in reserved
            and file.path not in outside
            and may_hold_dropped_key(file, dropped)
        ):
            return Refusal(
                RefusalCode.RESURFACE,
                f"tablet {tablet.id}: {file.path} was added later and may hold rows older than "
                f"those that attempt {attempt} dropped",
            )
    return None


def may_hold_dropped_key(file: DataFile, dropped: DroppedRows) -> bool:
    """Return whether a file may hold an older row of a dropped key."""
    if not dropped.meets(file.key_min, file.key_max):
        return False
    return file.version_min is None or file.version_min <= dropped.version_max


@transaction_of.register
def commit_attempt(change: CommitAttempt) -> Transaction:
    """Return the transaction that replaces inputs by outputs. Mark: `running[t]` gone."""
    if change.statistics is not None:
        return _commit_statistics(change, change.statistics)
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    needs = attempt_entry(table, keys, change.attempt)
    needs |= Needs((), {"selection": get(keys.selection), "purge": get(keys.purge)})
    if change.dropped is not None:
        # The record is not watched, because adds change `files` as well.
        reads = {"files": hgetall(keys.files), "recent": hget(keys.record, RECENT_ADDS)}
        needs |= Needs((keys.files, keys.purge), reads) | buffer_segments(table)
    elif change.inputs:
        needs |= some_files(keys, change.inputs)
    if any(map(is_in_chunks, change.outputs)):
        needs |= chunk_head(keys)

    def decide(seen: Seen) -> Decision:
        entry = entry_seen(keys, change.attempt, seen)
        if entry is None:
            return end_seen(table, change.attempt, AttemptEnd.COMMITTED, seen)
        if change.dropped is not None or entry.inputs == change.inputs:
            return _commit(change, entry, seen)
        with_inputs = replace(change, inputs=entry.inputs)
        return More(
            some_files(keys, entry.inputs),
            lambda further: _commit(with_inputs, entry, further),
        )

    # It writes files, which a large add watches.
    return Transaction(needs, decide, table.lock)


def _commit(change: CommitAttempt, entry: Reservation, seen: Seen) -> Decision:
    """Decide on a commit whose reservation exists."""
    keys = TabletKeys.of(change.tablet)
    files = _files(change, keys, seen)
    selection = selection_seen(keys, seen["selection"])
    tablet = Tablet(
        id=change.tablet,
        bounds=Bounds(None, change.tablet.end),
        files=files,
        running={entry.attempt: entry},
        selection=selection,
    )
    if refusal := may_commit(
        tablet, change.attempt, dropped=change.dropped, outside=change.outside
    ):
        return refusal
    if change.dropped is not None and (
        refusal := _refused_by_adds(change, change.dropped, keys, seen)
    ):
        return refusal
    if strange := {file.path for file in change.outputs} - {*entry.output_paths}:
        return Refusal(
            RefusalCode.OUTPUTS, f"attempt {change.attempt} did not reserve {sorted(strange)}"
        )
    inputs = tuple(files[path] for path in entry.inputs)
    if "chunks" not in seen.replies and any(map(is_in_chunks, inputs)):
        return More(chunk_head(keys), lambda further: _commit(change, entry, further))
    version = max((file.data_version for file in inputs), default=0)
    outputs = tuple(
        replace(file, job=entry.job, request=entry.request, added_at_s=seen.now_s)
        for file in (with_data_version(file, version) for file in change.outputs)
    )
    return Write(
        (*_replaced(change, entry, inputs, outputs, seen), *_remarks(change, tablet, seen))
    )


def _refused_by_adds(
    change: CommitAttempt, dropped: DroppedRows, keys: TabletKeys, seen: Seen
) -> Refusal | None:
    """Refuse dropped rows that would raise the watermark above the versions of recent adds."""
    lowest = recent_adds_bound(unpack_recent(keys.record, seen["recent"]), seen.now_s)
    if lowest is None or dropped.version_max <= lowest:
        return refused_by_floor(change.tablet, dropped.version_max, seen)
    return Refusal(
        RefusalCode.RESURFACE,
        f"tablet {change.tablet}: attempt {change.attempt} dropped rows of higher versions than "
        "files that were added concurrently",
    )


def _files(change: CommitAttempt, keys: TabletKeys, seen: Seen) -> dict[str, DataFile]:
    if change.dropped is not None:
        return unpack_files(keys.files, seen["files"])
    return _files_found(change.inputs, keys, seen)


def _files_found(paths: Iterable[str], keys: TabletKeys, seen: Seen) -> dict[str, DataFile]:
    entries = zip(paths, seen["some"], strict=True)
    found = ((path, data) for path, data in entries if data is not None)
    return {path: unpack_file(f"{keys.files} {path}", path.encode(), data) for path, data in found}


def _replaced(
    change: CommitAttempt,
    entry: Reservation,
    inputs: tuple[DataFile, ...],
    outputs: tuple[DataFile, ...],
    seen: Seen,
) -> tuple[Command, ...]:
    """Replace files, end the attempt, hand the inputs to the collector."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    paths = tuple(file.path for file in outputs)
    history = replace(
        history_of(change.tablet, entry, AttemptEnd.COMMITTED, seen.now_s),
        outputs=paths,
        bytes_in=sum(file.size_bytes for file in inputs),
        bytes_out=sum(file.size_bytes for file in outputs),
        rows_in=change.counts.rows_in,
        rows_out=change.counts.rows_out,
        superseded=change.counts.superseded,
        tombstones_dropped=change.counts.tombstones_dropped,
        expired_dropped=change.counts.expired_dropped,
        transform_dropped=change.counts.transform_dropped,
        rows_changed=change.counts.changed,
        rows_deleted=change.counts.deleted,
        reason=change.reason,
    )
    if change.expected_files:
        estimates = (change.expected_bytes, change.expected_files, change.expected_s)
        history = with_estimates(history, estimates, inputs, outputs)
    mark = AttemptOutcome(attempt=entry.attempt, end=AttemptEnd.COMMITTED)
    return (
        hdel(keys.files, *entry.inputs),
        *files_written(keys, outputs),
        *chunks_changed(keys, seen.replies.get("chunks"), outputs, inputs),
        *into_garbage(table, change.tablet.end, {file.path: file.key_min for file in inputs}),
        *attempt_ended(table, keys, entry, mark, history),
        hdel(keys.record, FAILURES, FAILURE),
        *tablet_changed(
            change.tablet,
            "commit",
            attempt=entry.attempt,
            counts=file_counts(outputs, inputs, running=-1) | {COMPACTIONS: 1},
        ),
    )


def _remarks(change: CommitAttempt, tablet: Tablet, seen: Seen) -> tuple[Command, ...]:
    """Raise the watermark, and update the selection."""
    entry = tablet.running[change.attempt]
    effects: tuple[Command, ...] = ()
    if change.dropped is not None:
        effects += raise_watermark(tablet.id, seen["purge"], change.dropped.version_max)
    if entry.request is not None and tablet.selection is not None:
        outputs = tuple(file.path for file in change.outputs)
        effects += move_selection(tablet, tablet.selection, entry.inputs, outputs)
    return effects


def raise_watermark(tablet: TabletId, present: bytes | None, dropped: bytes) -> tuple[Command, ...]:
    """Raise the watermark to the highest dropped version; it never falls."""
    if present is not None and present >= dropped:
        return ()
    keys = TabletKeys.of(tablet)
    return set_string(keys.purge, dropped), hset(keys.record, {PURGED: 1})


def move_selection(
    tablet: Tablet, selection: Selection, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[Command, ...]:
    """Replace inputs by outputs in the selection; clear it if the request is done here.

    It is done if nothing is left, or one file which is a result. With several outputs only the
    planner can decide that no further job is wanted (change *complete*).
    """
    keys = TabletKeys.of(tablet.id)
    replaced = {*inputs}
    files = (*(path for path in selection.files if path not in replaced), *outputs)
    results = (*(path for path in selection.results if path not in replaced), *outputs)
    if not files or (len(files) == 1 and files[0] in results):
        return (
            delete(keys.selection),
            sadd(keys.done, selection.request),
            hset(keys.record, {SELECTED: 0}),
            hincrby(keys.record, DONE, 1),
        )
    moved = replace(
        selection, files=files, results=results, completed_jobs=selection.completed_jobs + 1
    )
    return (set_string(keys.selection, SELECTION.pack(moved)),)


def _commit_statistics(change: CommitAttempt, statistics: Statistics) -> Transaction:
    """Return the transaction that stores live bytes of files. Mark: `running[t]` gone.

    Files are watched: if a file changes concurrently, the files are read again, and a file that
    is gone is skipped. Other fields of files are unchanged.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    paths = tuple(file.path for file in statistics.files)
    needs = attempt_entry(table, keys, change.attempt)
    if paths:
        needs |= Needs((keys.files,), {}) | some_files(keys, paths)

    def decide(seen: Seen) -> Decision:
        entry = entry_seen(keys, change.attempt, seen)
        if entry is None:
            return end_seen(table, change.attempt, AttemptEnd.COMMITTED, seen)
        if entry.inputs or change.outputs:
            return Refusal(
                RefusalCode.OUTPUTS,
                f"attempt {change.attempt} is an analysis, but has inputs or outputs",
            )
        measured = []
        for counted, data in zip(statistics.files, seen["some"] if paths else (), strict=True):
            file = None
            if data is not None:
                file = unpack_file(f"{keys.files} {counted.path}", counted.path.encode(), data)
            if file is not None and file.size_bytes == counted.size_bytes:
                live_bytes = min(counted.live_bytes, file.size_bytes)
                measured.append(
                    replace(
                        file,
                        live_bytes=live_bytes,
                        measured_at_s=entry.now_s,
                        measured_version=statistics.tablet_version,
                    )
                )
        history = replace(
            history_of(change.tablet, entry, AttemptEnd.COMMITTED, seen.now_s),
            bytes_in=statistics.read_bytes,
            rows_in=statistics.rows,
            reason=f"{change.reason}: {_result_text(statistics)}",
        )
        mark = AttemptOutcome(attempt=entry.attempt, end=AttemptEnd.COMMITTED)
        return Write(
            (
                *files_written(keys, measured),
                *attempt_ended(table, keys, entry, mark, history),
                hdel(keys.record, ANALYSIS_GROUP),
                *tablet_changed(
                    change.tablet,
                    "commit",
                    attempt=entry.attempt,
                    counts={RUNNING: -1},
                    flags=_statistics_field(statistics, entry.now_s),
                ),
            )
        )

    return Transaction(needs, decide, table.lock)


def _statistics_field(statistics: Statistics, now_s: float) -> dict[str, Word]:
    """Return the field of the record with facts about a tablet's rows, if there are any."""
    if statistics.tablet is None:
        return {}
    version = statistics.tablet_version
    tablet_statistics = replace(statistics.tablet, tablet_version=version, measured_at_s=now_s)
    return {STATISTICS: pack_statistics(tablet_statistics)}


def _result_text(statistics: Statistics) -> str:
    """Return the result of an analysis as text, for the history."""
    size = sum(file.size_bytes for file in statistics.files)
    live = sum(file.live_bytes for file in statistics.files)
    return (
        f"{format_count(len(statistics.files), 'file')}, {format_bytes(live)} of "
        f"{format_bytes(size)} live; {format_bytes(statistics.read_bytes)} read in "
        f"{statistics.elapsed_s:.1f} s"
    )


# -------------------------------------------------------------------------------------------- Retag


@dataclass(frozen=True, slots=True, kw_only=True)
class RetagFiles(Change):
    """Change the tags of an attempt's inputs and end the attempt; file contents stay unchanged."""

    tablet: TabletId
    attempt: str
    tags: tuple[tuple[str, str], ...]
    """They replace tags of the same names; other tags stay."""
    elapsed_s: float = 0.0
    reason: str = ""
    """The job's reason, for the history."""
    inputs: tuple[str, ...] = ()
    """Its inputs, which must match the reservation."""


@transaction_of.register
def retag_files(change: RetagFiles) -> Transaction:
    """Return the transaction that changes tags of files. Mark: `running[t]` gone.

    No file is added or removed, and none becomes garbage. Entries keep all other fields. Reserved
    files have no other writer: repairs refuse them and disturb `running`.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    needs = attempt_entry(table, keys, change.attempt)
    if change.inputs:
        needs |= some_files(keys, change.inputs)

    def decide(seen: Seen) -> Decision:
        entry = entry_seen(keys, change.attempt, seen)
        if entry is None:
            return end_seen(table, change.attempt, AttemptEnd.COMMITTED, seen)
        if entry.inputs != change.inputs or entry.kind is not Kind.SYSTEM:
            expected = "only the inputs of a system job, which it has reserved"
            return Refusal(RefusalCode.OUTPUTS, f"attempt {change.attempt} may tag {expected}")
        files = _files_found(change.inputs, keys, seen)
        if missing := sorted(set(entry.inputs) - files.keys()):
            return Refusal(RefusalCode.FILES, f"files are gone: {', '.join(missing)}")
        return Write(_retagged(change, entry, [files[path] for path in entry.inputs], seen.now_s))

    return Transaction(needs, decide, table.lock)


def _retagged(
    change: RetagFiles, entry: Reservation, files: Iterable[DataFile], now_s: float
) -> tuple[Command, ...]:
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    moved = [with_tags(file, change.tags) for file in files]
    history = replace(
        history_of(change.tablet, entry, AttemptEnd.COMMITTED, now_s),
        outputs=entry.inputs,
        reason=change.reason,
    )
    mark = AttemptOutcome(attempt=entry.attempt, end=AttemptEnd.COMMITTED)
    return (
        *files_written(keys, moved),
        *attempt_ended(table, keys, entry, mark, history),
        hdel(keys.record, FAILURES, FAILURE),
        *tablet_changed(
            change.tablet,
            "commit",
            attempt=entry.attempt,
            counts=file_counts((), running=-1) | {COMPACTIONS: 1},
        ),
    )


# ------------------------------------------------------------------------------------------ Release


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAttempt(Guarded):
    """Give up a reservation without replacing files."""

    tablet: TabletId
    attempt: str
    end: AttemptEnd
    """FAILED counts as a failure of the tablet; the others do not."""
    cause: str
    coordinator: str | None = None
    """For a release because of silence: the id of the coordinator that must still lead."""
    halvings: int = 0
    """Halvings for the next attempt at this job; 0: none."""


@transaction_of.register
def release_attempt(change: ReleaseAttempt) -> Transaction:
    """Return the transaction that releases a reservation. Mark: `running[t]` gone."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    leader = Needs((), {"coordinator": get(COORDINATOR)})

    def decide(seen: Seen) -> Decision:
        entry = entry_seen(keys, change.attempt, seen)
        if entry is None:
            return end_seen(table, change.attempt, change.end, seen)
        claim = claim_seen(seen["coordinator"])
        if change.coordinator is not None and (
            claim is None or claim.coordinator != change.coordinator
        ):
            return Refusal(
                RefusalCode.COORDINATOR, f"{change.coordinator} is no longer the coordinator"
            )
        return Write(_released(change, entry, seen.now_s))

    return Transaction(attempt_entry(table, keys, change.attempt) | leader, decide)


def _released(change: ReleaseAttempt, entry: Reservation, now_s: float) -> tuple[Command, ...]:
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    failed = change.end is AttemptEnd.FAILED
    flags: dict[str, Word] = {FAILURE: change.cause[:FAILURE_CHARS_MAX]} if failed else {}
    if change.halvings:
        flags[HALVED] = pack([entry.job, change.halvings])
    history = replace(history_of(change.tablet, entry, change.end, now_s), cause=change.cause)
    mark = AttemptOutcome(attempt=entry.attempt, end=change.end, cause=change.cause)
    return (
        *uncommitted_outputs(table, change.tablet.end, entry),
        *attempt_ended(table, keys, entry, mark, history),
        *tablet_changed(
            change.tablet,
            "release",
            attempt=entry.attempt,
            counts={RUNNING: -1, FAILURES: int(failed)},
            flags=flags,
        ),
    )


# ------------------------------------------------------------------------------ What all ends share


def attempt_entry(keys: TableKeys, tablet: TabletKeys, attempt_id: str) -> Needs:
    """Need one watched reservation, and its attempt's outcome if it is gone."""
    return Needs(
        (tablet.running,),
        {
            "entry": hget(tablet.running, attempt_id),
            "outcome": get(keys.outcome(attempt_id)),
        },
    )


def entry_seen(keys: TabletKeys, attempt: str, seen: Seen) -> Reservation | None:
    """Return the reservation of an attempt, or None."""
    stored = seen["entry"]
    if stored is None:
        return None
    return RESERVATION.unpack(f"{keys.running} {attempt}", stored, attempt=attempt)


def outcome_seen(keys: TableKeys, attempt_id: str, seen: Seen) -> AttemptOutcome | None:
    """Return how the attempt ended, if it has a mark."""
    stored = seen["outcome"]
    if stored is None:
        return None
    return codec_table.OUTCOME.unpack(keys.outcome(attempt_id), stored, attempt=attempt_id)


def end_seen(table: TableKeys, attempt: str, wanted: AttemptEnd, seen: Seen) -> Decision:
    """Distinguish an attempt that has ended as wanted from one that ended otherwise."""
    mark = outcome_seen(table, attempt, seen)
    if mark is not None and mark.end is wanted:
        return NoWrite()
    fact = f"has ended already: {mark.end.value}" if mark else "holds no reservation"
    code = RefusalCode(mark.end.value) if mark else RefusalCode.RELEASED
    return Refusal(code, f"attempt {attempt} {fact}, expected {wanted.value}")
