"""Conversion of keys, files and tablets from and to user notation."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from common.errors import RequestError
from common.metadata.store_values import Mirror
from common.model.file import DataFile
from common.model.key_values import KeyType, key_type_of
from common.model.keys import PLUS_INFINITY, format_key, parse_key
from common.model.request import KeyRange
from common.model.table import LakeTable, Table
from common.model.tablet import Analysis, Record, Tablet
from common.units import format_count
from common.wire import StoryEntry, StoryKind, TabletStory
from neve import api


def key_types(table: Table) -> tuple[KeyType, ...]:
    """Return the type families of a table's key columns, in order."""
    types = {column.name: column.type for column in table.schema}
    return tuple(key_type_of(types[name]) for name in table.key)


def range_types(table: Table) -> tuple[KeyType, ...]:
    """Return the type families of a range's values: partition columns if any, else key columns."""
    if not table.partition_by:
        return key_types(table)
    return tuple(map(key_type_of, table.partition_types))


def key_range(table: Table, start: str | None, end: str | None) -> KeyRange:
    """Return a range from the texts of its first and last key, both inclusive.

    Args:
        table: Table of the keys; for a partitioned table, keys are partition values.
        start: A key, or a prefix of one; None: from the beginning.
        end: A key, or a prefix, which includes all keys that begin with it; None: to the end.

    Raises:
        RequestError: A key cannot be parsed, or the range is empty.
    """
    if start is None and end is None:
        return KeyRange()
    types = range_types(table)
    if not types:
        raise RequestError(f"table {table.name!r} has no key, so it has no range of keys")
    first = None if start is None else parse_key(start, types) or None
    last = PLUS_INFINITY if end is None else parse_key(end, types) or PLUS_INFINITY
    # After every key that begins with `last`: the first byte of the next value is at most 02.
    until = None if last == PLUS_INFINITY else last + b"\xff"
    if first == PLUS_INFINITY or (first is not None and until is not None and first >= until):
        raise RequestError(f"no key lies from {start!r} to {end!r}, expected start before end")
    return KeyRange(first, until)


def file_view(file: DataFile, tablet: str, types: Sequence[KeyType]) -> api.File:
    """Return the wire model of a file.

    Args:
        file: The file, as stored.
        tablet: Text of the tablet's end.
        types: Type families of the key columns.
    """
    return api.File(
        path=file.path,
        tablet=tablet,
        size_bytes=file.size_bytes,
        rows=file.rows,
        key_min=key_text(file.key_min, types),
        key_max=key_text(file.key_max, types),
        tombstones=file.tombstones,
        schema_id=file.schema_id,
        clean=file.clean,
        open=file.open,
        added_at_s=file.added_at_s,
        time_min_s=file.time_min_s,
        time_max_s=file.time_max_s,
        tags=dict(file.tags),
        job=file.job,
        request=file.request,
        live_bytes=file.live_bytes,
        measured_at_s=file.measured_at_s,
    )


def tablet_view(tablet: Tablet, types: Sequence[KeyType]) -> api.Tablet:
    """Return the wire model of a tablet.

    Args:
        tablet: The tablet, as stored.
        types: Type families of the key columns.
    """
    ranged = tablet.bounds.partition is None
    operation = tablet.operation
    return api.Tablet(
        tablet=tablet.id.text,
        files=len(tablet.files),
        size_bytes=sum(file.size_bytes for file in tablet.files.values()),
        rows=sum(file.rows for file in tablet.files.values()),
        start=key_text(tablet.bounds.start, types) if ranged else None,
        end=key_text(tablet.bounds.end, types) if ranged else None,
        partition=tablet.bounds.partition,
        running=len(tablet.running),
        waiting=len(tablet.waiting),
        selected=tablet.selection is not None,
        operation=None if operation is None else f"{operation.kind.value} ({operation.step.value})",
        analysis=_analysis_of(tablet.record).value,
        failures=tablet.record.failures,
        failure=tablet.record.failure,
        compactions=tablet.record.compactions,
    )


def _analysis_of(record: Record) -> Analysis:
    """Return the analysis of a tablet, which holds for the version that was planned."""
    is_current = record.analysis_version == record.version
    return record.analysis if is_current else Analysis.UNKNOWN


def key_text(key: bytes | None, types: Sequence[KeyType]) -> str | None:
    """Return a key in user notation; hex if its bytes do not match the types."""
    if key is None:
        return None
    if key == PLUS_INFINITY:
        return "+inf"
    try:
        return format_key(key, types)
    except ValueError:
        return f"0x{key.hex()}"


# -------------------------------------------------------------------------------------- Story views
# The story of a tablet as sentences, derived from the facts that the coordinator keeps.


STARTED, FORGOTTEN = "coordinator-started", "forgotten"
"""Kinds of the first entries, which mark the start of the known story."""
_STEPS = {
    "MarkWaiting": "request {0} waits for files here: no system job starts meanwhile",
    "SelectFiles": "request {0} chose {1} here and holds them",
    "CompleteHere": "request {0} is done here: its files are free again",
    "CancelHere": "request {0} was cancelled here: its files are free again",
    "FinishHere": "request {0} has ended, and left nothing here",
    "FailRequest": "request {0} fails because of this tablet",
    "BeginSplit": "split {0} began",
    "BeginMerge": "merge {0} began",
    "StepOperation": "split or merge {0} took its next step",
    "EndOperation": "split or merge {0} was carried out",
    "AbandonOperation": "split or merge {0} was abandoned",
}
"""Step → sentence template with the id and the number of files."""


def story_view(story: TabletStory, table: Table) -> api.Story:
    """Return the wire model of a tablet's story.

    Args:
        story: Story from the coordinator.
        table: Table of the tablet.
    """
    entries = [_started(story)]
    if story.forgotten or story.gap_until_s is not None:
        entries.append(_forgotten(story))
    return api.Story(
        tablet=story.tablet,
        table=table.name,
        coordinator=story.coordinator,
        entries=(*entries, *(_entry_view(entry) for entry in story.entries)),
    )


def _started(story: TabletStory) -> api.StoryEntry:
    return api.StoryEntry(
        at_s=story.started_s,
        kind=STARTED,
        sentence=f"the coordinator {story.coordinator} started; what happened before is not known",
    )


def _forgotten(story: TabletStory) -> api.StoryEntry:
    until_s = story.entries[0].at_s if story.forgotten and story.entries else story.gap_until_s
    dropped = f"{format_count(story.forgotten, 'older entry', 'older entries')} dropped"
    older = "older entries of this tablet may have been dropped"
    return api.StoryEntry(
        at_s=story.started_s if until_s is None else until_s,
        kind=FORGOTTEN,
        sentence=f"{dropped if story.forgotten else older}: a story has bounds",
    )


def _entry_view(entry: StoryEntry) -> api.StoryEntry:
    sentence = _SENTENCES[entry.kind](entry) + _pause(entry)
    if entry.times > 1 and entry.last_s is not None:
        sentence += f" ({entry.times:,} times, last at {_clock_text(entry.last_s)})"
    return api.StoryEntry(
        at_s=entry.at_s,
        kind=entry.kind.value,
        sentence=sentence,
        code=entry.code,
        reason=entry.reason,
        job=entry.job,
        attempt=entry.attempt,
        compactor=entry.compactor,
        request=entry.request,
        group=entry.group,
        files=entry.files,
        times=entry.times,
        last_s=entry.last_s,
        until_s=entry.until_s,
        quarantined=entry.quarantined,
    )


def _planned(entry: StoryEntry) -> str:
    jobs = format_count(entry.number, "job")
    match entry.code:
        case "queued":
            return f"planned: {jobs} wanted, queued in group {entry.group}{_because(entry)}"
        case "held":
            return f"planned: {jobs} wanted, held back{_because(entry)}"
        case "deferred":
            return f"planned: {jobs} wanted, deferred because the queue of {entry.group} is full"
        case _:
            return f"planned: no job is wanted{_because(entry)}"


def _assigned(entry: StoryEntry) -> str:
    inputs = format_count(entry.number, "file")
    wish = f" of request {entry.request}" if entry.request else ""
    return f"{entry.compactor} began {entry.job}{wish} over {inputs}{_because(entry)}"


def _committed(entry: StoryEntry) -> str:
    files_text = format_count(entry.number, "file")
    done = f"{entry.compactor} committed {entry.job}"
    if not entry.files:
        return done
    more = entry.number - len(entry.files)
    names = ", ".join(entry.files) + (f" and {more:,} more" if more else "")
    return f"{done}, {files_text}: {names}"


def _failed(entry: StoryEntry) -> str:
    error = ": ".join(filter(None, (entry.code, entry.reason)))
    return f"{entry.job} failed on {entry.compactor}: {error}"


def _step(entry: StoryEntry) -> str:
    template = _STEPS.get(entry.step, "{0} took a step")
    files = format_count(entry.number, "file")
    return template.format(entry.request, files) + _because(entry)


def _table(entry: StoryEntry) -> str:
    return f"the table is {entry.code}, with version {entry.step} of its settings"


_SENTENCES: Mapping[StoryKind, Callable[[StoryEntry], str]] = {
    StoryKind.PLANNED: _planned,
    StoryKind.PLANNING_FAILED: lambda entry: f"planning failed: {entry.reason}",
    StoryKind.FILE_QUARANTINED: lambda entry: f"{entry.files[0]} is quarantined: {entry.reason}",
    StoryKind.SHED: lambda entry: (
        f"jobs of other tablets took its place in the full queue {entry.group}"
    ),
    StoryKind.ASSIGNED: _assigned,
    StoryKind.REFUSED: lambda entry: (
        f"the store refused {entry.job} ({entry.code}): {entry.reason}"
    ),
    StoryKind.UNKNOWN: lambda entry: f"the store did not answer the reservation of {entry.job}",
    StoryKind.FOUND: lambda entry: (
        f"{entry.job} was found reserved in the store for {entry.compactor}"
    ),
    StoryKind.FAILED: _failed,
    StoryKind.GIVEN_BACK: lambda entry: (
        f"{entry.compactor} gave {entry.job} back, {entry.code}{_because(entry)}"
    ),
    StoryKind.RELEASING: lambda entry: (
        f"{entry.job} was taken from {entry.compactor or 'no compactor'} as {entry.code}"
        f"{_because(entry)}"
    ),
    StoryKind.RELEASED: lambda entry: f"the files of {entry.job} are free again",
    StoryKind.COMMITTED: _committed,
    StoryKind.LIFTED: lambda entry: "an operator lifted its quarantine",
    StoryKind.STEP: _step,
    StoryKind.STEP_REFUSED: lambda entry: (
        f"the store refused step {entry.step} of {entry.request} ({entry.code}){_because(entry)}"
    ),
    StoryKind.GONE: lambda entry: "the tablet is gone: merged into its neighbour, or dropped",
    StoryKind.TABLE: _table,
    StoryKind.GROUP_PAUSED: lambda entry: f"an operator paused group {entry.group}",
    StoryKind.GROUP_RESUMED: lambda entry: f"an operator resumed group {entry.group}",
}


def _because(entry: StoryEntry) -> str:
    return f": {entry.reason}" if entry.reason else ""


def _pause(entry: StoryEntry) -> str:
    if entry.quarantined:
        return "; its files are quarantined until an operator lifts it"
    if entry.until_s is not None:
        return f"; its files pause until {_clock_text(entry.until_s)}"
    return ""


def _clock_text(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")


def lake_view(lake: LakeTable, mirror: Mirror) -> api.LakeMirror:
    """Return the wire model of the log of a lake table and its mirror."""
    head = mirror.head
    read = head if head is not None and head.version >= 0 else None
    return api.LakeMirror(
        format=lake.format,
        uri=lake.uri,
        table_id=lake.table_id,
        version=None if read is None else read.version,
        moved_at_s=None if read is None else read.moved_s,
        problem="" if head is None else head.problem,
    )
