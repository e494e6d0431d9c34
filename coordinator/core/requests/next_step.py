"""What a request does next: in one tablet, and over all of them. Pure.

Everything is decided from what the store shows; `PluginAnswers` carries what plug-ins have
said of exactly the tablet given. A step may be refused by the store, where the same
rules hold: then the tablet is looked at again. See `docs/design/0003-user-compactions.md`.
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
from common.metadata.request_predicates import cancelled_here, may_hold_range
from common.model.file import DataFile
from common.model.key_values import NANOS, KeyType, key_type_of
from common.model.keys import encode_value
from common.model.request import (
    OutputSpec,
    Request,
    RequestState,
    SelectorSpec,
    TransformKind,
)
from common.model.table import Table, TableState
from common.model.tablet import Bounds, Selection, Tablet
from common.rows.partitions import partition_types, partition_values
from common.spi.planner import RequestFacts
from common.spi.selector import Chosen

# ------------------------------------------------------ Small questions about a request in a tablet


TIME_ROUNDED_S = 1e-3
"""More than a time of a file, which is a float, may be off."""
TIMES_MAX_S = 1e11
"""Up to here: some thousand years. Floats beyond are too coarse."""


def meets_tablet(request: Request, bounds: Bounds) -> bool:
    """Return whether a tablet may hold rows of a request's range."""
    return may_hold_range(request.range, bounds)


def closed_files(tablet: Tablet) -> tuple[DataFile, ...]:
    """Return the files that are no longer written, by path."""
    return tuple(file for _, file in sorted(tablet.files.items()) if not file.open)


def shown_files(request: Request, tablet: Tablet) -> tuple[DataFile, ...]:
    """Return what a request's selector is shown: files with keys in its range, by path."""
    closed = closed_files(tablet)
    if tablet.bounds.partition is not None:
        return closed  # The range is one of partitions.
    return tuple(file for file in closed if _in_range(request, file))


def matching_files(
    request: Request, table: Table, tablet: Tablet, files: Sequence[DataFile]
) -> tuple[DataFile, ...]:
    """Return the files that may hold rows which the request's transform means.

    A request without one means all files, or none if a rewrite `changes_nothing`. Only
    `delete where` leaves files out: by the values of the tablet's partition, and by the bounds of
    their versions, their times and the first column of their keys.

    Args:
        request: Any.
        table: Its table.
        tablet: As it was read.
        files: Of the tablet.
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
    """Return whether a rewrite would only copy the one file of a tablet.

    A file does not tell by which settings it was written. So one of a request with outputs of its
    own, or of a table whose settings have been changed since its creation, is written again.
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
    """Return the bounds of a time column of moments: seconds as floats, rounded outwards.

    Files do not tell whether there are nulls besides.
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
    """Return what dispatchers and planners may know of a request."""
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
    """Return whether a tablet has a marker, selection or running entry of a request."""
    waits = request.id in tablet.waiting
    return waits or holds_selection(request, tablet) or bool(attempts_of(request, tablet))


def attempts_of(request: Request, tablet: Tablet) -> tuple[str, ...]:
    """Return a request's attempts under way in a tablet."""
    return tuple(
        attempt for attempt, entry in sorted(tablet.running.items()) if entry.request == request.id
    )


def is_done(request: Request, tablet: Tablet) -> bool:
    """Return whether a request has its done marker in a tablet."""
    return request.id in tablet.done


def holds_selection(request: Request, tablet: Tablet) -> bool:
    """Return whether the selection of a tablet is a request's."""
    return tablet.selection is not None and tablet.selection.request == request.id


def _in_range(request: Request, file: DataFile) -> bool:
    if file.key_min is None or file.key_max is None:
        return True
    start, until = request.range.start, request.range.until
    return (start is None or file.key_max >= start) and (until is None or file.key_min < until)


# ------------------------------------------------------------------------------------ The next step


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """Nothing is left to do here, whatever changes in the tablet."""


@dataclass(frozen=True, slots=True)
class WaitForTablet:
    """Nothing can be done until the tablet changes."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskSelector:
    """The selector has to be asked about the tablet as it was read."""


@dataclass(frozen=True, slots=True)
class AskPlanner:
    """The planner has to be asked for the jobs of the selection as it was read."""


@dataclass(frozen=True, slots=True)
class FailRequest:
    """The request cannot end well: it is cancelled everywhere, and ends FAILED."""

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
    """The answers of plug-ins about one reading of a tablet; they hold for no other reading."""

    chosen: Chosen | None = None
    """The selector's answer."""
    jobs: int | None = None
    """How many further jobs the planner wants for the selection."""
    left: str = ""
    """If it wants none: why."""
    given_up: str = ""
    """Why one of these jobs is not tried any more; empty: all are."""
    problem: str = ""
    """How a plug-in has failed."""


NO_ANSWERS = PluginAnswers()


def next_step(request: Request, tablet: Tablet, answers: PluginAnswers = NO_ANSWERS) -> RequestStep:
    """Return what a request does next in a tablet that may hold keys of its range.

    Args:
        request: As it was read; the store checks its state again.
        tablet: As it was read, at one moment.
        answers: What plug-ins have said of this reading; after an `Ask…`, the answer.
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
    """Return the requests that may do something in a tablet now; the others wait.

    Among those that are not done here the oldest is first; one that holds the selection
    goes on in any case, and so does all clearing away.

    Args:
        requests: Of the tablet's table, the oldest first.
        tablet: As it was read.
    """
    here = tuple(request for request in requests if meets_tablet(request, tablet.bounds))
    first = first_request(here, tablet)
    return tuple(
        request
        for request in here
        if request is first or holds_selection(request, tablet) or not _wants_files(request, tablet)
    )


def first_request(requests: Iterable[Request], tablet: Tablet) -> Request | None:
    """Return the first of these requests that still wants files of a tablet, or None."""
    return next((request for request in requests if _wants_files(request, tablet)), None)


def why_cancel(request: Request, table: Table | None, now_s: float) -> MoveRequest | None:
    """Return the change that ends an ACTIVE request before its time, or None.

    Args:
        request: Any request.
        table: Its table; None: it has lost its name.
        now_s: The time now, by the store.
    """
    if request.state is not RequestState.ACTIVE:
        return None
    if table is None or table.state is TableState.GOING:
        return begin_cancel(request, "its table is being dropped")
    if request.deadline_s is not None and now_s >= request.deadline_s:
        return begin_cancel(request, "its deadline has passed", fails=True)
    return None


def next_state(request: Request, unsettled: int) -> MoveRequest | None:
    """Return the change that moves a request on when its tablets allow it, or None.

    Args:
        request: As it was read before its tablets.
        unsettled: In how many tablets of its range something is left to do.
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
    """Return whether a request will have to select, or has selected, files of a tablet."""
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
