"""How far a request has come, from what the store shows."""

from dataclasses import replace
from typing import Any

import pytest

from common.model.job import Kind
from common.model.request import KeyRange, Request, RequestState
from common.model.tablet import Bounds, Reservation, Selection, Tablet, TabletId
from coordinator.core.requests import meets_tablet, tablet_progress
from tests.support.planning import files_of

pytestmark = pytest.mark.unit
REQUEST = Request(id="r1", table="t1", range=KeyRange(until=b"x"))
OTHER = Request(id="r0", table="t1")


def tablet(end: bytes, after: bytes | None = None, **given: Any) -> Tablet:
    files = files_of(dict.fromkeys("abcd", 100))
    facts: dict[str, Any] = {
        "id": TabletId("t1", end),
        "bounds": Bounds(after, end),
        "files": files,
    }
    return Tablet(**(facts | given))


def running(request: str | None) -> dict[str, Reservation]:
    kind = Kind.SYSTEM if request is None else Kind.USER
    reservation = Reservation(
        attempt="at1", job="j", kind=kind, inputs=("a", "b"), output_prefix="o", outputs_max=1,
        group="default", compactor="c", since_s=0, now_s=0, request=request,
    )  # fmt: skip
    return {"at1": reservation}


SELECTED = tablet(
    b"m",
    selection=Selection(
        request="r1", files=("a", "b", "c"), results=("c",), completed_jobs=1, since_s=0
    ),
    running=running("r1"),
)


def test_progress_over_three_tablets() -> None:
    waiting = tablet(b"p", b"m", waiting={"r1": 1.0}, running=running(None))
    done = tablet(b"s", b"p", done=frozenset({"r1"}))
    elsewhere = tablet(b"z", b"x")
    tablets = [SELECTED, waiting, done, elsewhere]
    progress = [
        tablet_progress(REQUEST, each) for each in tablets if meets_tablet(REQUEST, each.bounds)
    ]

    assert [here.state.value for here in progress] == ["selected", "waiting", "done"]
    first = progress[0]
    assert (first.files, first.results, first.bytes_left) == (3, 1, 200)
    assert (first.completed_jobs, first.running) == (1, ("at1",))
    assert [here.bytes_left for here in progress] == [200, 400, 0]


@pytest.mark.parametrize(
    ("request_now", "seen", "state", "reason"),
    [
        (REQUEST, SELECTED, "selected", "one job runs of it"),
        (REQUEST, tablet(b"m", running=running(None)), "pending", "its next step is in progress"),
        (
            REQUEST,
            tablet(b"m", waiting={"r1": 1.0}, running=running(None)),
            "waiting",
            "one job runs here; no system job starts until then",
        ),
        (
            replace(REQUEST, state=RequestState.CANCELLING, cause="enough"),
            SELECTED,
            "selected",
            "is being cancelled: enough",
        ),
        (replace(REQUEST, state=RequestState.DONE), tablet(b"m"), "done", "done here"),
        (replace(REQUEST, state=RequestState.DONE_IN_PART), tablet(b"m"), "done", "done here"),
        (replace(REQUEST, state=RequestState.FAILED, cause="no"), tablet(b"m"), "cancelled", "no"),
        (
            replace(REQUEST, cancelled_ranges=(KeyRange(until=b"m\x00"),)),
            tablet(b"m"),
            "cancelled",
            "cancelled here",
        ),
    ],
)
def test_progress_in_one_tablet(
    request_now: Request, seen: Tablet, state: str, reason: str
) -> None:
    here = tablet_progress(request_now, seen)
    assert (here.state.value, here.reason) == (state, reason)


def test_progress_says_which_request_is_first() -> None:
    assert tablet_progress(REQUEST, tablet(b"m"), [OTHER, REQUEST]).reason == (
        "request r0 has precedence here"
    )
    over = tablet(b"m", done=frozenset({"r0"}))
    assert tablet_progress(REQUEST, over, [OTHER, REQUEST]).reason == "its next step is in progress"


def test_what_has_ended_has_no_bytes_left() -> None:
    assert tablet_progress(replace(REQUEST, state=RequestState.DONE), tablet(b"m")).bytes_left == 0
