"""Every row of the table of steps, and what follows over all tablets."""

from dataclasses import replace
from typing import Any

import pytest

from common.metadata.changes import (
    CancelHere,
    CompleteHere,
    FinishHere,
    MarkWaiting,
    MoveRequest,
    SelectFiles,
)
from common.metadata.changes.selections import cancelled_here
from common.model.file import FAULTY_LAYOUT, DataFile
from common.model.job import Kind
from common.model.request import (
    KeyRange,
    OutputSpec,
    Request,
    RequestState,
    SelectorSpec,
    TransformKind,
    TransformSpec,
)
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Reservation,
    Selection,
    Tablet,
)
from common.spi.planner import Chosen
from coordinator.core.requests import (
    AskPlanner,
    AskSelector,
    FailRequest,
    NothingLeft,
    PluginAnswers,
    RequestStep,
    WaitForTablet,
    changes_nothing,
    facts_of,
    matching_files,
    next_state,
    next_step,
    requests_in_turn,
    shown_files,
    why_cancel,
)
from tests.support.planning import TABLET, files_of

pytestmark = pytest.mark.unit
REQUEST = Request(id="r1", table="t1")
OTHER = Request(id="r2", table="t1")
HERE: dict[str, Any] = {"tablet": TABLET, "request": "r1"}
TABLE = Table(id="t1", name="events", location="file:///x", schema=())


def tablet(**given: Any) -> Tablet:
    facts: dict[str, Any] = {
        "id": TABLET,
        "bounds": Bounds(None, TABLET.end),
        "files": files_of(dict.fromkeys("ab", 1)),
    }
    return Tablet(**(facts | given))


def entry(*inputs: str, request: str | None = None) -> dict[str, Reservation]:
    kind = Kind.SYSTEM if request is None else Kind.USER
    reservation = Reservation(
        attempt="at1", job="j", kind=kind, inputs=inputs, output_prefix="o", outputs_max=1,
        group="default", compactor="c", since_s=0, now_s=0, request=request,
    )  # fmt: skip
    return {"at1": reservation}


def selection(*files: str, results: str = "", request: str = "r1") -> Selection:
    return Selection(request=request, files=files, results=tuple(results))


CANCELLING = replace(REQUEST, state=RequestState.CANCELLING, cause="enough")
SPLIT = Operation(OperationKind.SPLIT, "o1", OperationStep.DRAIN)
SHOWN = ("a", "b")


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        ({"waiting": {"r1": 1.0}}, CancelHere(**HERE)),
        ({"selection": selection("a")}, CancelHere(**HERE)),
        ({"running": entry("a", request="r1")}, CancelHere(**HERE)),
        ({"running": entry("a")}, NothingLeft()),
        ({"waiting": {"r2": 1.0}, "done": frozenset({"r1"})}, NothingLeft()),
    ],
)
def test_a_request_being_cancelled_leaves(seen: dict[str, Any], step: RequestStep) -> None:
    assert next_step(CANCELLING, tablet(**seen)) == step


@pytest.mark.parametrize("state", ["done", "cancelled", "failed"])
def test_a_request_that_has_ended_takes_its_marker_away(state: str) -> None:
    ended = replace(REQUEST, state=RequestState(state))
    assert next_step(ended, tablet(done=frozenset({"r1"}))) == FinishHere(**HERE)
    assert next_step(ended, tablet(done=frozenset({"r2"}))) == NothingLeft()


def test_where_it_is_done_nothing_is_left_to_do() -> None:
    seen = tablet(done=frozenset({"r1"}), running=entry("a"), operation=SPLIT)
    assert next_step(REQUEST, seen) == NothingLeft()


WHOLE, HALF = KeyRange(), KeyRange(b"c", b"k")
UP_TO_M = KeyRange(until=b"m\x00")
FROM_M = KeyRange(b"m\x00", b"x\x00")


@pytest.mark.parametrize(
    ("wanted", "bounds", "cancelled", "over"),
    [
        (WHOLE, Bounds(None, b"m"), (), False),
        (WHOLE, Bounds(None, b"m"), (UP_TO_M,), True),
        (WHOLE, Bounds(None, b"m"), (KeyRange(until=b"m"),), False),
        (WHOLE, Bounds(None, b"m"), (KeyRange(b"a", b"z"),), False),
        (WHOLE, Bounds(b"m", b"x"), (UP_TO_M,), False),
        (WHOLE, Bounds(b"m", b"x"), (FROM_M,), True),
        (WHOLE, Bounds(None, b"x"), (UP_TO_M,), False),
        (WHOLE, Bounds(None, b"x"), (FROM_M, UP_TO_M), True),
        (WHOLE, Bounds(None, b"x"), (FROM_M, KeyRange(until=b"m")), False),
        (WHOLE, Bounds(b"x", PLUS_INFINITY), (KeyRange(b"m"),), True),
        (WHOLE, Bounds(b"x", PLUS_INFINITY), (KeyRange(b"m", b"z"),), False),
        (WHOLE, Bounds(None, PLUS_INFINITY), (WHOLE,), True),
        (HALF, Bounds(None, b"m"), (KeyRange(b"c", b"k"),), True),
        (HALF, Bounds(None, b"m"), (KeyRange(b"d", b"k"),), False),
        (HALF, Bounds(b"e", PLUS_INFINITY), (KeyRange(b"e", b"k"),), True),
        (WHOLE, Bounds(None, b"p", "day=1"), (KeyRange(b"p", b"p\x00"),), True),
        (WHOLE, Bounds(None, b"p", "day=1"), (KeyRange(b"q"),), False),
    ],
)
def test_a_tablet_is_over_when_all_that_is_wanted_of_it_is_cancelled(
    wanted: KeyRange, bounds: Bounds, cancelled: tuple[KeyRange, ...], over: bool
) -> None:
    request = replace(REQUEST, range=wanted, cancelled_ranges=cancelled)
    assert cancelled_here(request, bounds) is over


def test_a_part_that_was_cancelled_is_cancelled_here_and_then_done() -> None:
    part = replace(REQUEST, cancelled_ranges=(UP_TO_M,))
    left, right = Bounds(None, b"m"), Bounds(b"m", b"x")
    assert next_step(part, tablet(bounds=left)) == CancelHere(**HERE)
    assert next_step(part, tablet(bounds=left, done=frozenset({"r1"}))) == NothingLeft()
    assert next_step(part, tablet(bounds=right)) == AskSelector()
    # No split may end over a done marker, so none comes meanwhile.
    split = tablet(bounds=left, operation=SPLIT)
    assert next_step(part, split) == WaitForTablet("a split of the tablet is in progress")
    # After a merge the rest of the tablet is still wanted.
    assert next_step(part, tablet(bounds=Bounds(None, b"x"))) == AskSelector()


@pytest.mark.parametrize(
    ("seen", "asked", "step"),
    [
        (
            {"operation": SPLIT},
            PluginAnswers(),
            WaitForTablet("a split of the tablet is in progress"),
        ),
        (
            {"selection": selection("a", request="r2")},
            PluginAnswers(),
            WaitForTablet("request r2 has precedence here"),
        ),
        ({"running": entry("a")}, PluginAnswers(), MarkWaiting(**HERE)),
        (
            {"running": entry("a"), "waiting": {"r1": 1.0}},
            PluginAnswers(),
            WaitForTablet("one job runs here; no system job starts until then"),
        ),
        ({}, PluginAnswers(), AskSelector()),
        ({"waiting": {"r1": 1.0}}, PluginAnswers(), AskSelector()),
        ({}, PluginAnswers(problem="selector x: no"), FailRequest("selector x: no")),
        (
            {},
            PluginAnswers(chosen=Chosen(files=("a",), reason="it is old")),
            SelectFiles(**HERE, chosen=("a",), shown=SHOWN),
        ),
        (
            {},
            PluginAnswers(chosen=Chosen(reason="none is")),
            SelectFiles(**HERE, chosen=(), shown=SHOWN),
        ),
        ({"files": {}}, PluginAnswers(), SelectFiles(**HERE, chosen=(), shown=())),
    ],
)
def test_next_step_before_a_selection(
    seen: dict[str, Any], asked: PluginAnswers, step: RequestStep
) -> None:
    assert next_step(REQUEST, tablet(**seen), asked) == step


@pytest.mark.parametrize(
    ("selected", "running", "asked", "step"),
    [
        (
            selection("a", "b"),
            entry("a", request="r1"),
            PluginAnswers(),
            WaitForTablet("one job runs of it"),
        ),
        (selection("a", "b"), entry("c"), PluginAnswers(), AskPlanner()),
        (
            selection("a", "b"),
            {},
            PluginAnswers(jobs=2),
            WaitForTablet("its next job waits for a compactor"),
        ),
        (
            selection("a", "b", results="ab"),
            {},
            PluginAnswers(jobs=0),
            CompleteHere(**HERE, files=("a", "b")),
        ),
        (
            selection("a", "b", results="b"),
            {},
            PluginAnswers(jobs=0, left="too large"),
            FailRequest("tablet t1;last: no planner takes a: too large"),
        ),
        (
            selection("a", "b"),
            {},
            PluginAnswers(jobs=0, left="no"),
            FailRequest("tablet t1;last: no planner takes a and 1 more: no"),
        ),
        (selection("a"), {}, PluginAnswers(jobs=1, given_up="failed"), FailRequest("failed")),
        (
            selection("a"),
            {},
            PluginAnswers(problem="planner ratio: no"),
            FailRequest("planner ratio: no"),
        ),
    ],
)
def test_next_step_with_a_selection(
    selected: Selection, running: dict[str, Reservation], asked: PluginAnswers, step: RequestStep
) -> None:
    seen = tablet(selection=selected, running=running, files=files_of(dict.fromkeys("abc", 1)))
    assert next_step(REQUEST, seen, asked) == step


def test_a_selector_is_shown_closed_files_with_keys_of_the_range() -> None:
    files = {
        path: replace(file, key_min=path.encode(), key_max=path.encode() * 2, open=path == "d")
        for path, file in files_of(dict.fromkeys("abcde", 1)).items()
    }
    files["x"] = files_of(dict.fromkeys("x", 1))["x"]
    part = replace(REQUEST, range=KeyRange(b"bb", b"e"))
    shown = shown_files(part, tablet(files=files))
    assert [file.path for file in shown] == ["b", "c", "x"]
    of_partition = tablet(files=files, bounds=Bounds(None, b"d", "d=1"))
    assert len(shown_files(part, of_partition)) == 5


def test_requests_take_turns_by_age() -> None:
    both = (REQUEST, OTHER)
    assert requests_in_turn(both, tablet()) == (REQUEST,)
    assert requests_in_turn(both, tablet(done=frozenset({"r1"}))) == both
    assert requests_in_turn(both, tablet(selection=selection("a", request="r2"))) == both
    assert requests_in_turn((CANCELLING, OTHER), tablet()) == (CANCELLING, OTHER)
    elsewhere = replace(REQUEST, range=KeyRange(start=b"x"))
    assert requests_in_turn((elsewhere, OTHER), tablet(bounds=Bounds(None, b"m"))) == (OTHER,)


def moved(state: RequestState, cause: str = "", *, fails: bool = False) -> MoveRequest:
    return MoveRequest(table="t1", request="r1", state=state, cause=cause, fails=fails)


def test_when_nothing_is_left_anywhere_the_request_moves_on() -> None:
    assert next_state(REQUEST, 1) is None
    assert next_state(REQUEST, 0) == moved(RequestState.DONE)
    in_part = replace(REQUEST, cancelled_ranges=(KeyRange(until=b"b"),))
    assert next_state(in_part, 0) == moved(RequestState.DONE_IN_PART)
    assert next_state(replace(in_part, state=RequestState.DONE_IN_PART), 0) is None
    assert next_state(CANCELLING, 2) is None
    assert next_state(CANCELLING, 0) == moved(RequestState.CANCELLED, "enough")
    failing = replace(CANCELLING, fails=True)
    assert next_state(failing, 0) == moved(RequestState.FAILED, "enough")
    assert next_state(replace(REQUEST, state=RequestState.DONE), 0) is None


def test_a_passed_deadline_or_dropped_table_cancels_a_request() -> None:
    late = replace(REQUEST, deadline_s=10.0)
    assert why_cancel(late, TABLE, 9.9) is None
    passed = moved(RequestState.CANCELLING, "its deadline has passed", fails=True)
    assert why_cancel(late, TABLE, 10.0) == passed
    dropped = moved(RequestState.CANCELLING, "its table is being dropped")
    assert why_cancel(REQUEST, None, 0.0) == dropped
    assert why_cancel(REQUEST, replace(TABLE, state=TableState.GOING), 0.0) == dropped
    assert why_cancel(CANCELLING, None, 0.0) is None


def test_planners_learn_hints_boost_and_output() -> None:
    given = replace(REQUEST, hints={"k": "v"}, boost=7, output=OutputSpec(codec="gzip"))
    facts = facts_of(given)
    assert (facts.request, facts.hints, facts.boost) == ("r1", {"k": "v"}, 7)
    assert facts.output == {"codec": "gzip"}


@pytest.mark.parametrize(
    ("after", "last", "meets"),
    [(None, b"m", True), (b"m", b"z", False), (b"a", b"k", False), (b"a", b"m", True)],
)
def test_the_range_of_one_tablet_meets_no_neighbour(
    after: bytes | None, last: bytes, meets: bool
) -> None:
    keys = KeyRange(b"k" + b"\x00", b"m" + b"\x00")
    assert keys.meets(after, last) is meets


ALONE = replace(files_of({"a": 1})["a"], job="j0", clean=True)
KEYED = replace(TABLE, key=("k",))


@pytest.mark.parametrize(
    ("request_", "table", "file", "expected"),
    [
        (REQUEST, KEYED, ALONE, True),
        (REQUEST, TABLE, replace(ALONE, clean=False), True),
        (REQUEST, KEYED, replace(ALONE, clean=False), False),
        (REQUEST, KEYED, replace(ALONE, job=None), False),
        (REQUEST, KEYED, replace(ALONE, request="r0"), False),
        (REQUEST, KEYED, replace(ALONE, schema_id=1), False),
        (REQUEST, KEYED, replace(ALONE, tags=(FAULTY_LAYOUT,)), False),
        (REQUEST, replace(KEYED, settings_version=2), ALONE, False),
        (REQUEST, replace(KEYED, settings=TableSettings(ttl_s=60.0)), ALONE, False),
        (replace(REQUEST, output=OutputSpec(codec="zstd")), KEYED, ALONE, False),
        (replace(REQUEST, selector=SelectorSpec(name="age")), KEYED, ALONE, False),
        (replace(REQUEST, transform=TransformSpec(kind=TransformKind.SET)), KEYED, ALONE, False),
    ],
)
def test_what_only_copies_a_file_is_left_out(
    request_: Request, table: Table, file: DataFile, expected: bool
) -> None:
    alone = tablet(files={"a": file})
    assert changes_nothing(request_, table, alone) is expected
    if expected:
        assert matching_files(request_, table, alone, (file,)) == ()
    two = {"a": file, "b": replace(file, path="b")}
    assert not changes_nothing(request_, table, tablet(files=two))
