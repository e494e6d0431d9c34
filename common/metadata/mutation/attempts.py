"""Reserve, commit, retag, release, drop a hold: rights to replace files, and the ends of attempts.

Commit, retag and release all watch `running`; the attempt's entry in it is the fencing token.
"""

from collections.abc import Iterable
from dataclasses import replace

from common.metadata.changes import (
    Applied,
    CommitAttempt,
    DropHold,
    ReleaseAttempt,
    ReserveFiles,
    RetagFiles,
)
from common.metadata.codec.layout import pack
from common.metadata.codec.table import SETTINGS, unpack_settings
from common.metadata.codec.tablet import (
    ANALYSIS_GROUP,
    COMPACTIONS,
    FAILURE,
    FAILURES,
    HALVED,
    RECENT_ADDS,
    RESERVATION,
    RUNNING,
    SELECTED,
    STATISTICS,
    pack_statistics,
    unpack_file,
    unpack_files,
    unpack_recent,
)
from common.metadata.commands import Command, Word, delete, get, hdel, hget, hgetall, hset
from common.metadata.keys import COORDINATOR, TableKeys, TabletKeys
from common.metadata.mutation import needs as need
from common.metadata.mutation.effects import (
    FAILURE_CHARS_MAX,
    attempt_ended,
    file_counts,
    files_written,
    history_of,
    into_garbage,
    move_selection,
    raise_watermark,
    tablet_changed,
    uncommitted_outputs,
)
from common.metadata.mutation.needs import (
    refused_by_table,
    state_seen,
    table_state,
    tablet_gone,
    tablet_seen,
    whole_tablet,
)
from common.metadata.mutation.transaction import (
    Decision,
    More,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Unresolved,
    Write,
)
from common.metadata.predicates import may_commit, may_drop_hold, may_reserve
from common.metadata.recent_adds import bound
from common.metadata.store_values import AttemptOutcome
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import AttemptEnd, DroppedRows, Refusal, RefusalCode, Statistics
from common.model.tablet import Bounds, Reservation, Tablet
from common.units import format_bytes, format_count

# --------------------------------------------------------------------------- Reservations and holds


def reserve(change: ReserveFiles) -> Transaction:
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
        if (mine := tablet.running.get(change.attempt)) is not None:
            return NoWrite(Applied(reservation=mine, tablet=tablet))
        if seen.sent:
            return Unresolved(f"attempt {change.attempt} may still be reserved; use a new one")
        refusal = may_reserve(
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

    return Transaction(table_state(table) | whole_tablet(keys, watch), decide)


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


def drop_hold(change: DropHold) -> Transaction:
    """Return the transaction that drops an expired hold. Mark: no selection."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    settings = Needs((), {"settings": hget(table.table, SETTINGS)})
    needs = (
        table_state(table, watch=False)
        | settings
        | whole_tablet(keys, (keys.running, keys.selection))
    )

    def decide(seen: Seen) -> Decision:
        tablet = tablet_seen(change.tablet, keys, seen)
        if refusal := refused_by_table(table, seen):
            return refusal
        if tablet is None:
            return tablet_gone(change.tablet)
        if tablet.selection is None:
            return NoWrite()
        expiry_s = unpack_settings(table.table, seen["settings"]).hold_expiry_s
        if refusal := may_drop_hold(tablet, now_s=seen.now_s, expiry_s=expiry_s):
            return refusal
        effects = (
            delete(keys.selection),
            *tablet_changed(change.tablet, "hold", flags={SELECTED: 0}),
        )
        return Write(effects)

    return Transaction(needs, decide)


# ---- Commit and release
#
# While the entry exists, inputs cannot be taken, and the selection cannot be dropped, cancelled or
# split, without a change of `running`. So a commit that dropped no rows watches nothing else.


def commit(change: CommitAttempt) -> Transaction:
    """Return the transaction that replaces inputs by outputs. Mark: `running[t]` gone."""
    if change.statistics is not None:
        return _commit_statistics(change, change.statistics)
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    needs = need.attempt_entry(table, keys, change.attempt)
    needs |= Needs((), {"selection": get(keys.selection), "purge": get(keys.purge)})
    if change.dropped is not None:
        # The record is not watched, because adds change `files` as well.
        reads = {"files": hgetall(keys.files), "recent": hget(keys.record, RECENT_ADDS)}
        needs |= Needs((keys.files, keys.purge), reads)
    elif change.inputs:
        needs |= need.some_files(keys, change.inputs)

    def decide(seen: Seen) -> Decision:
        entry = _entry(keys, change.attempt, seen)
        if entry is None:
            return _ended(table, change.attempt, AttemptEnd.COMMITTED, seen)
        if change.dropped is not None or entry.inputs == change.inputs:
            return _commit(change, entry, seen)
        with_inputs = replace(change, inputs=entry.inputs)
        return More(
            need.some_files(keys, entry.inputs),
            lambda further: _commit(with_inputs, entry, further),
        )

    # It writes files, which a large add watches.
    return Transaction(needs, decide, table.turn)


def _commit_statistics(change: CommitAttempt, statistics: Statistics) -> Transaction:
    """Return the transaction that stores live bytes of files. Mark: `running[t]` gone.

    Files are watched: if a file changes concurrently, the files are read again, and a file that
    is gone is skipped. Other fields of files are unchanged.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    paths = tuple(file.path for file in statistics.files)
    needs = need.attempt_entry(table, keys, change.attempt)
    if paths:
        needs |= Needs((keys.files,), {}) | need.some_files(keys, paths)

    def decide(seen: Seen) -> Decision:
        entry = _entry(keys, change.attempt, seen)
        if entry is None:
            return _ended(table, change.attempt, AttemptEnd.COMMITTED, seen)
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
                    flags=_found(statistics, entry.now_s),
                ),
            )
        )

    return Transaction(needs, decide, table.turn)


def _found(statistics: Statistics, now_s: float) -> dict[str, Word]:
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


def retag(change: RetagFiles) -> Transaction:
    """Return the transaction that changes tags of files. Mark: `running[t]` gone.

    No file is added or removed, and none becomes garbage. Entries keep all other fields. Reserved
    files have no other writer: repairs refuse them and disturb `running`.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    needs = need.attempt_entry(table, keys, change.attempt)
    if change.inputs:
        needs |= need.some_files(keys, change.inputs)

    def decide(seen: Seen) -> Decision:
        entry = _entry(keys, change.attempt, seen)
        if entry is None:
            return _ended(table, change.attempt, AttemptEnd.COMMITTED, seen)
        if entry.inputs != change.inputs or entry.kind is not Kind.SYSTEM:
            own = "only the inputs of a system job, which it has reserved"
            return Refusal(RefusalCode.OUTPUTS, f"attempt {change.attempt} may tag {own}")
        files = _files_found(change.inputs, keys, seen)
        if gone := sorted(set(entry.inputs) - files.keys()):
            return Refusal(RefusalCode.FILES, f"files are gone: {', '.join(gone)}")
        return Write(_retagged(change, entry, [files[path] for path in entry.inputs], seen.now_s))

    return Transaction(needs, decide, table.turn)


def _retagged(
    change: RetagFiles, entry: Reservation, files: Iterable[DataFile], now_s: float
) -> tuple[Command, ...]:
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    given = dict(change.tags)
    moved = [
        replace(file, tags=(*(tag for tag in file.tags if tag[0] not in given), *change.tags))
        for file in files
    ]
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


def release(change: ReleaseAttempt) -> Transaction:
    """Return the transaction that releases a reservation. Mark: `running[t]` gone."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    leader = Needs((), {"coordinator": get(COORDINATOR)})

    def decide(seen: Seen) -> Decision:
        entry = _entry(keys, change.attempt, seen)
        if entry is None:
            return _ended(table, change.attempt, change.end, seen)
        claim = need.claim_seen(seen["coordinator"])
        if change.coordinator is not None and (
            claim is None or claim.coordinator != change.coordinator
        ):
            return Refusal(
                RefusalCode.COORDINATOR, f"{change.coordinator} is no longer the coordinator"
            )
        return Write(_released(change, entry, seen.now_s))

    return Transaction(need.attempt_entry(table, keys, change.attempt) | leader, decide)


def _entry(keys: TabletKeys, attempt: str, seen: Seen) -> Reservation | None:
    stored = seen["entry"]
    if stored is None:
        return None
    return RESERVATION.unpack(f"{keys.running} {attempt}", stored, attempt=attempt)


def _ended(table: TableKeys, attempt: str, wanted: AttemptEnd, seen: Seen) -> Decision:
    """Distinguish an attempt that has ended as wanted from one that ended otherwise."""
    mark = need.outcome_seen(table, attempt, seen)
    if mark is not None and mark.end is wanted:
        return NoWrite()
    how = f"has ended already: {mark.end.value}" if mark else "holds no reservation"
    code = RefusalCode(mark.end.value) if mark else RefusalCode.RELEASED
    return Refusal(code, f"attempt {attempt} {how}, expected {wanted.value}")


def _commit(change: CommitAttempt, entry: Reservation, seen: Seen) -> Decision:
    """Decide on a commit whose reservation exists."""
    keys = TabletKeys.of(change.tablet)
    files = _files(change, keys, seen)
    selection = need.selection_seen(keys, seen["selection"])
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
    outputs = tuple(
        replace(file, job=entry.job, request=entry.request, added_at_s=seen.now_s)
        for file in change.outputs
    )
    inputs = tuple(files[path] for path in entry.inputs)
    return Write(
        (*_replaced(change, entry, inputs, outputs, seen), *_remarks(change, tablet, seen))
    )


def _refused_by_adds(
    change: CommitAttempt, dropped: DroppedRows, keys: TabletKeys, seen: Seen
) -> Refusal | None:
    """Refuse dropped rows that would raise the watermark above the versions of recent adds."""
    lowest = bound(unpack_recent(keys.record, seen["recent"]), seen.now_s)
    if lowest is None or dropped.version_max <= lowest:
        return None
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
    return {
        path: unpack_file(f"{keys.files} {path}", path.encode(), data)
        for path, data in entries
        if data is not None
    }


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
    mark = AttemptOutcome(attempt=entry.attempt, end=AttemptEnd.COMMITTED)
    return (
        hdel(keys.files, *entry.inputs),
        *files_written(keys, outputs),
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
