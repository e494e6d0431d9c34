"""The next step of a request: in one tablet, and across all tablets. Pure.

All decisions depend on the state in the store; `PluginAnswers` has the answers of plug-ins for
exactly the given version of the tablet. The store applies the same rules and may refuse a step; the
tablet is then read again. See `docs/design/0003-user-compactions.md`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.errors import RequestError
from common.expressions.file_pruning import ColumnBounds, may_be_true
from common.metadata.changes import (
    CancelHere,
    CompleteHere,
    FinishHere,
    MarkWaiting,
    MoveRequest,
    SelectFiles,
)
from common.metadata.changes.selections import cancelled_here, may_hold_range
from common.model.file import DataFile
from common.model.key_values import NANOS, KeyType, key_type_of
from common.model.keys import encode_value
from common.model.request import (
    AUTOMATIC_PREFIX,
    OutputSpec,
    Request,
    RequestProgressInTablet,
    RequestState,
    SelectorSpec,
    TabletProgress,
    TransformKind,
    key_range_of,
)
from common.model.table import Table, TableState
from common.model.tablet import Bounds, Selection, Tablet
from common.primitives import digest
from common.rows.key_encoding import partition_types, partition_values
from common.spi.planner import Chosen, RequestFacts

# ------------------------------------------------------------ Predicates on a request and a tablet


TIME_ROUNDED_S = 1e-3
"""Upper bound of the rounding error of a file's times, which are floats."""
TIMES_MAX_S = 1e11
"""Largest supported time, about three thousand years; larger floats are too coarse."""


def meets_tablet(request: Request, bounds: Bounds) -> bool:
    """Return whether a tablet may hold rows of a request's range."""
    return may_hold_range(request.range, bounds)


def closed_files(tablet: Tablet) -> tuple[DataFile, ...]:
    """Return the files that are no longer written, ordered by path."""
    return tuple(file for _, file in sorted(tablet.files.items()) if not file.open)


def shown_files(request: Request, tablet: Tablet) -> tuple[DataFile, ...]:
    """Return the files that a request's selector gets: those with keys in its range, by path."""
    closed = closed_files(tablet)
    if tablet.bounds.partition is not None:
        return closed  # The range is a range of partitions.
    return tuple(file for file in closed if _in_range(request, file))


def matching_files(
    request: Request, table: Table, tablet: Tablet, files: Sequence[DataFile]
) -> tuple[DataFile, ...]:
    """Return the files that may hold rows affected by the request's transform.

    A request without a transform affects all files, or none if a rewrite `changes_nothing`. Only
    `delete where` excludes files, based on the values of the tablet's partition and on the bounds
    of versions, times and the first key column.

    Args:
        request: The request.
        table: Its table.
        tablet: The version that was read.
        files: Files of the tablet.
    """
    if changes_nothing(request, table, tablet):
        return ()
    transform = request.transform
    if transform.kind is not TransformKind.DELETE_WHERE:
        return tuple(files)
    of_partition = _partition_bounds(table, tablet)
    return tuple(
        file
        for file in files
        if may_be_true(transform.text, {**_file_bounds(table, file), **of_partition})
    )


def changes_nothing(request: Request, table: Table, tablet: Tablet) -> bool:
    """Return whether a rewrite would only copy the single file of a tablet.

    A file does not record the settings that it was written with. It is therefore rewritten if the
    request has its own output options, or if the settings of the table have changed since its
    creation.
    """
    files = closed_files(tablet)
    if len(files) != 1 or request.transform.kind is not TransformKind.NONE:
        return False
    (file,) = files
    as_usual = request.output == OutputSpec() and request.selector == SelectorSpec()
    as_written = file.job is not None and file.request is None and table.settings_version == 1
    may_drop_rows = table.settings.ttl_s is not None or (bool(table.key) and not file.clean)
    sound = file.schema_id == table.schema_id and not file.has_faulty_layout
    return as_usual and as_written and sound and not may_drop_rows


def _partition_bounds(table: Table, tablet: Tablet) -> Mapping[str, ColumnBounds]:
    if tablet.bounds.partition is None:
        return {}
    try:
        values = partition_values(table, tablet.bounds.partition)
    except RequestError:
        return {}
    bounds = {}
    for (name, value), kind in zip(values.items(), partition_types(table), strict=True):
        key = encode_value(value, kind)
        bounds[name] = ColumnBounds(type=_type(table, name), least=key, greatest=key)
    return bounds


def _file_bounds(table: Table, file: DataFile) -> Mapping[str, ColumnBounds]:
    bounds = dict(_time_bounds(table, file))
    ends = [(table.version_column, file.version_min, file.version_max)]
    if table.key:
        ends.append((table.key[0], file.key_min, file.key_max))
    for name, least, greatest in ends:
        if name is not None and least is not None and greatest is not None:
            bounds[name] = ColumnBounds(type=_type(table, name), least=least, greatest=greatest)
    return bounds


def _time_bounds(table: Table, file: DataFile) -> Mapping[str, ColumnBounds]:
    """Return the bounds of a timestamp column, from seconds as floats rounded outwards.

    Files do not record whether the column has nulls, so nulls are assumed.
    """
    name, first_s, last_s = table.time_column, file.time_min_s, file.time_max_s
    if name is None or first_s is None or last_s is None:
        return {}
    column, kind = _type(table, name), KeyType.TIMESTAMP
    if key_type_of(column) is not kind or not max(-first_s, last_s) < TIMES_MAX_S:
        return {}
    least, greatest = (
        encode_value(math.floor(end_s * NANOS), kind)
        for end_s in (first_s - TIME_ROUNDED_S, last_s + TIME_ROUNDED_S)
    )
    return {name: ColumnBounds(type=column, least=least, greatest=greatest, nulls=True)}


def _type(table: Table, name: str) -> str:
    return next(column.type for column in table.schema if column.name == name)


def facts_of(request: Request) -> RequestFacts:
    """Return the facts about a request that dispatchers and planners get."""
    output = request.output
    chosen = {
        "codec": output.codec,
        "codec_level": output.codec_level,
        "row_group_bytes": output.row_group_bytes,
    }
    return RequestFacts(
        request=request.id,
        hints=request.hints,
        boost=request.boost,
        output={name: value for name, value in chosen.items() if value is not None},
    )


def has_traces(request: Request, tablet: Tablet) -> bool:
    """Return whether a tablet has a waiting marker, selection or running entry of a request."""
    waits = request.id in tablet.waiting
    return waits or holds_selection(request, tablet) or bool(attempts_of(request, tablet))


def attempts_of(request: Request, tablet: Tablet) -> tuple[str, ...]:
    """Return the running attempts of a request in a tablet."""
    return tuple(
        attempt for attempt, entry in sorted(tablet.running.items()) if entry.request == request.id
    )


def is_done(request: Request, tablet: Tablet) -> bool:
    """Return whether a request has its done marker in a tablet."""
    return request.id in tablet.done


def holds_selection(request: Request, tablet: Tablet) -> bool:
    """Return whether a request owns the selection of a tablet."""
    return tablet.selection is not None and tablet.selection.request == request.id


def _in_range(request: Request, file: DataFile) -> bool:
    if file.key_min is None or file.key_max is None:
        return True
    start, until = request.range.start, request.range.until
    return (start is None or file.key_max >= start) and (until is None or file.key_min < until)


# ------------------------------------------------------------------------------------ The next step


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """The request has no further work in the tablet, even if the tablet changes."""


@dataclass(frozen=True, slots=True)
class WaitForTablet:
    """The request waits for a change of the tablet."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskSelector:
    """The selector must be called with the version of the tablet that was read."""


@dataclass(frozen=True, slots=True)
class AskPlanner:
    """The planner must be called for the jobs of the selection that was read."""


@dataclass(frozen=True, slots=True)
class FailRequest:
    """The request cannot succeed: it is cancelled in all tablets and ends FAILED."""

    cause: str


RequestStep = (
    NothingLeft
    | WaitForTablet
    | AskSelector
    | AskPlanner
    | FailRequest
    | MarkWaiting
    | SelectFiles
    | CompleteHere
    | CancelHere
    | FinishHere
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginAnswers:
    """The answers of plug-ins for one version of a tablet, and only for that version."""

    chosen: Chosen | None = None
    """The selector's answer."""
    jobs: int | None = None
    """Number of further jobs that the planner wants for the selection."""
    left: str = ""
    """Why the planner wants no further jobs."""
    given_up: str = ""
    """Why one of these jobs is no longer retried; empty if there is no such job."""
    problem: str = ""
    """Error of a failed plug-in; empty if none failed."""


NO_ANSWERS = PluginAnswers()


def next_step(request: Request, tablet: Tablet, answers: PluginAnswers = NO_ANSWERS) -> RequestStep:
    """Return the next step of a request in a tablet that may hold keys of its range.

    Args:
        request: The version that was read; the store checks its state again.
        tablet: A consistent snapshot.
        answers: Answers of plug-ins for this snapshot; after an `Ask…` step, its answer.
    """
    here = (tablet.id, request.id)
    if request.state.ended:
        return (
            FinishHere(tablet=here[0], request=here[1])
            if is_done(request, tablet)
            else NothingLeft()
        )
    if request.state is RequestState.CANCELLING:
        return (
            CancelHere(tablet=here[0], request=here[1])
            if has_traces(request, tablet)
            else NothingLeft()
        )
    if is_done(request, tablet):
        return NothingLeft()
    if tablet.operation is not None:
        return WaitForTablet(f"a {tablet.operation.kind.value} of the tablet is in progress")
    if cancelled_here(request, tablet.bounds):
        return CancelHere(tablet=here[0], request=here[1])
    if tablet.selection is None:
        return _step_before_selection(request, tablet, answers)
    if tablet.selection.request != request.id:
        return WaitForTablet(f"request {tablet.selection.request} has precedence here")
    return _step_with_selection(request, tablet, tablet.selection, answers)


def requests_in_turn(requests: Iterable[Request], tablet: Tablet) -> tuple[Request, ...]:
    """Return the requests that may act in a tablet now; the others wait.

    Among the requests that are not done in the tablet, the oldest has precedence. The owner of the
    selection always proceeds, and so does every request that only cleans up.

    Args:
        requests: Requests of the tablet's table, oldest first.
        tablet: The version that was read.
    """
    here = tuple(request for request in requests if meets_tablet(request, tablet.bounds))
    first = first_request(here, tablet)
    return tuple(
        request
        for request in here
        if request is first or holds_selection(request, tablet) or not _wants_files(request, tablet)
    )


def first_request(requests: Iterable[Request], tablet: Tablet) -> Request | None:
    """Return the first request that still needs files of a tablet, or None."""
    return next((request for request in requests if _wants_files(request, tablet)), None)


def why_cancel(request: Request, table: Table | None, now_s: float) -> MoveRequest | None:
    """Return the change that cancels an ACTIVE request because of its table or deadline, or None.

    Args:
        request: The request.
        table: Its table; None if the table no longer has a name.
        now_s: The store's time.
    """
    if request.state is not RequestState.ACTIVE:
        return None
    if table is None or table.state is TableState.GOING:
        return begin_cancel(request, "its table is being dropped")
    if request.deadline_s is not None and now_s >= request.deadline_s:
        return begin_cancel(request, "its deadline has passed", fails=True)
    return None


def next_state(request: Request, unsettled: int) -> MoveRequest | None:
    """Return the change that ends a request once no tablet has work left, or None.

    Args:
        request: The request, read before its tablets.
        unsettled: Number of tablets in its range with work left.
    """
    if unsettled or request.state.ended:
        return None
    state = request.done_state
    if request.state is RequestState.CANCELLING:
        state = RequestState.FAILED if request.fails else RequestState.CANCELLED
    return MoveRequest(table=request.table, request=request.id, state=state, cause=request.cause)


def begin_cancel(request: Request, cause: str, *, fails: bool = False) -> MoveRequest:
    """Return the change that begins to cancel a request."""
    return MoveRequest(
        table=request.table,
        request=request.id,
        state=RequestState.CANCELLING,
        cause=cause,
        fails=fails,
    )


def _wants_files(request: Request, tablet: Tablet) -> bool:
    """Return whether a request has selected files of a tablet, or still has to."""
    over = is_done(request, tablet) or cancelled_here(request, tablet.bounds)
    return request.state is RequestState.ACTIVE and not over


def _step_before_selection(request: Request, tablet: Tablet, answers: PluginAnswers) -> RequestStep:
    if tablet.running:
        if request.id in tablet.waiting:
            return WaitForTablet(
                f"{_jobs(len(tablet.running))} here; no system job starts until then"
            )
        return MarkWaiting(tablet=tablet.id, request=request.id)
    if answers.problem:
        return FailRequest(answers.problem)
    shown = shown_files(request, tablet)
    chosen = answers.chosen if shown else Chosen(reason="no file has keys in the range")
    if chosen is None:
        return AskSelector()
    return SelectFiles(
        tablet=tablet.id,
        request=request.id,
        chosen=chosen.files,
        shown=tuple(file.path for file in shown),
    )


def _step_with_selection(
    request: Request, tablet: Tablet, selection: Selection, answers: PluginAnswers
) -> RequestStep:
    if under_way := attempts_of(request, tablet):
        return WaitForTablet(f"{_jobs(len(under_way))} of it")
    if answers.problem or answers.given_up:
        return FailRequest(answers.problem or answers.given_up)
    if answers.jobs is None:
        return AskPlanner()
    if answers.jobs:
        return WaitForTablet("its next job waits for a compactor")
    if rest := sorted(set(selection.files).difference(selection.results)):
        return FailRequest(f"tablet {tablet.id}: no planner takes {_named(rest)}: {answers.left}")
    return CompleteHere(tablet=tablet.id, request=request.id, files=selection.files)


def _jobs(count: int) -> str:
    return "one job runs" if count == 1 else f"{count} jobs run"


def _named(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


# ---------------------------------------------------------------------------------------- Automatic
# Requests that the service creates for tables with a selector. Pure.
#
# The selector is called whenever files or settings have changed since its last call: the tablet's
# record stores a digest of both, which is also part of the request's id. An answer that depends on
# time includes the times at which it changes. The record stores the next of these times, and the
# selector is called again at that time.
#
# Files that such a request has written do not cause a new request, so that a selector that chooses
# all files does not loop. The exception is a file that time has made eligible since it was written.


def table_selector(table: Table) -> SelectorSpec | None:
    """Return the selector that a table has, or None."""
    settings = table.settings
    if not settings.selector:
        return None
    return SelectorSpec(name=settings.selector, options=settings.selector_options)


def selector_hash(tablet: Tablet, table: Table, spec: SelectorSpec) -> str:
    """Return the digest of everything except time that a selector's answer depends on."""
    closed = sorted(path for path, file in tablet.files.items() if not file.open)
    settings = table.settings
    limits = (repr(settings.ttl_s), repr(settings.tombstone_retention_s), repr(table.schema_id))
    return f"{_spec_digest(spec)}-{digest([*limits, *closed])}"


def must_ask_selector(tablet: Tablet, table: Table, spec: SelectorSpec, now_s: float) -> bool:
    """Return whether the table's selector must be called for a tablet now.

    The call waits while the tablet has a selection, a split or a merge; the end of each is a
    change, which leads to a new check.
    """
    if tablet.selection is not None or tablet.operation is not None:
        return False
    is_seen = tablet.record.selector_hash == selector_hash(tablet, table, spec)
    return not is_seen or _time_has_come(tablet, now_s)


def ask_again_at_s(chosen: Chosen, now_s: float) -> float | None:
    """Return when a selector must be called again even if nothing has changed, or None."""
    return min((time_s for time_s in chosen.times_s.values() if time_s >= now_s), default=None)


def automatic_request(
    tablet: Tablet, table: Table, spec: SelectorSpec, chosen: Chosen, now_s: float
) -> Request | None:
    """Return the request for the choice of a table's selector, or None if no request is needed.

    Args:
        tablet: The version that the selector was called with.
        table: Its table.
        spec: The table's selector.
        chosen: The answer of the selector.
        now_s: Time of the call.
    """
    request_prefix = AUTOMATIC_PREFIX + _spec_digest(spec)
    if not any(
        _is_news(tablet.files.get(path), chosen, request_prefix, now_s) for path in chosen.files
    ):
        return None
    parts: list[str | bytes] = [tablet.id.table, tablet.id.end, selector_hash(tablet, table, spec)]
    if _time_has_come(tablet, now_s):
        # A request with the same digest may exist; the due time makes the id unique.
        parts.append(repr(tablet.record.selector_due_s))
    return Request(
        id=f"{request_prefix}-{digest(parts)}",
        table=tablet.id.table,
        range=key_range_of(tablet.bounds),
        selector=spec,
        automatic=True,
    )


def _time_has_come(tablet: Tablet, now_s: float) -> bool:
    due_s = tablet.record.selector_due_s
    return due_s is not None and due_s <= now_s


def _is_news(file: DataFile | None, chosen: Chosen, prefix: str, now_s: float) -> bool:
    if file is None or not (file.request or "").startswith(prefix):
        return True
    came_s = chosen.times_s.get(file.path)
    return came_s is not None and file.added_at_s < came_s <= now_s


def _spec_digest(spec: SelectorSpec) -> str:
    options = [text for pair in sorted(spec.options.items()) for text in pair]
    return digest([spec.name, *options], length=8)


# ----------------------------------------------------------------------------------------- Progress
# Progress of a request in a tablet, computed from the state in the store. Pure.


_ENDS = {
    RequestState.DONE: TabletProgress.DONE,
    RequestState.DONE_IN_PART: TabletProgress.DONE,
    RequestState.CANCELLED: TabletProgress.CANCELLED,
    RequestState.FAILED: TabletProgress.CANCELLED,
}


def tablet_progress(
    request: Request, tablet: Tablet, others: Iterable[Request] = ()
) -> RequestProgressInTablet:
    """Return the progress of a request in one tablet of its range."""
    state = _state(request, tablet)
    selection = tablet.selection
    files, results, completed = 0, 0, 0
    left = 0
    if state is TabletProgress.SELECTED and selection is not None:
        files, results = len(selection.files), len(selection.results)
        completed = selection.completed_jobs
        rest = set(selection.files).difference(selection.results)
        left = sum(tablet.files[path].size_bytes for path in rest if path in tablet.files)
    elif state in {TabletProgress.PENDING, TabletProgress.WAITING}:
        left = sum(file.size_bytes for file in shown_files(request, tablet))
    return RequestProgressInTablet(
        tablet=tablet.id,
        state=state,
        reason=_reason(request, tablet, state, tuple(others)),
        files=files,
        results=results,
        bytes_left=left,
        completed_jobs=completed,
        running=attempts_of(request, tablet),
    )


def _state(request: Request, tablet: Tablet) -> TabletProgress:
    """Return the state of a request in a tablet.

    An ended request has no markers in the tablet, so its own state decides.
    """
    if cancelled_here(request, tablet.bounds):
        return TabletProgress.CANCELLED
    if request.state in _ENDS:
        return _ENDS[request.state]
    if request.id in tablet.done:
        return TabletProgress.DONE
    if tablet.selection is not None and tablet.selection.request == request.id:
        return TabletProgress.SELECTED
    return TabletProgress.WAITING if request.id in tablet.waiting else TabletProgress.PENDING


def _reason(
    request: Request, tablet: Tablet, state: TabletProgress, others: tuple[Request, ...]
) -> str:
    match state:
        case TabletProgress.DONE:
            return "done here"
        case TabletProgress.CANCELLED:
            return request.cause or "cancelled here"
        case _:
            pass
    if request.state is RequestState.CANCELLING:
        return f"is being cancelled: {request.cause}"
    first = first_request([other for other in others if meets_tablet(other, tablet.bounds)], tablet)
    if state is TabletProgress.PENDING and first is not None and first.id != request.id:
        return f"request {first.id} has precedence here"
    step = next_step(request, tablet)
    return step.reason if isinstance(step, WaitForTablet) else "its next step is in progress"
