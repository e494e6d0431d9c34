"""A client follows a request: until it ends, over an outage, not longer than it wants."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import httpx
import pytest

from neve import api
from neve.client import http, requests
from neve.client.errors import (
    NotFoundError,
    RequestFailedError,
    UnavailableError,
)
from neve.client.http import Connection
from neve.client.requests import Request, sentence
from tests.support.predictable import ManualClock

TOLD: dict[str, Any] = {
    "id": "req-1",
    "table": "events",
    "state": "active",
    "submitted_at_s": 1.0,
    "progress": {"tablets": 3, "done": 1, "waiting": 2, "running": 1, "eta_s": 65.0},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "POLL_FIRST_S", 0.001)
    monkeypatch.setattr(http, "POLL_MAX_S", 0.002)


def following(*answers: dict[str, Any] | int) -> Request:
    """Return a request whose looks get these answers, the last one for ever."""
    left: Iterator[dict[str, Any] | int] = iter(answers)
    last, clock = answers[-1], ManualClock()

    def answer(_: httpx.Request) -> httpx.Response:
        told = next(left, last)
        return httpx.Response(told) if isinstance(told, int) else httpx.Response(200, json=told)

    made = Connection(
        "http://service",
        None,
        sleep=clock.advance,
        clock=clock.now_s,
        transport=httpx.MockTransport(answer),
    )
    return Request(made, "events", "req-1")


def test_waiting_ends_when_it_is_done() -> None:
    found = following(TOLD, TOLD, TOLD | {"state": "done"}).wait()

    assert (found.state, found.ended) == ("done", True)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_request_that_ended_undone_is_an_error(state: str) -> None:
    with pytest.raises(RequestFailedError, match=f"req-1 of table 'events' is {state}: too late"):
        following(TOLD, TOLD | {"state": state, "cause": "too late"}).wait()


def test_a_request_done_in_part_is_an_error() -> None:
    cancelled = [{"start": "100", "end": "200"}, {"start": "300", "end_included": False}]
    told = TOLD | {"state": "done_in_part", "cancelled": cancelled}
    with pytest.raises(RequestFailedError, match=r"keys 100 to 200, 300 to last$") as raised:
        following(TOLD, told).wait()
    assert raised.value.code == "done_in_part"


def test_a_wait_has_an_end_and_the_request_goes_on() -> None:
    with pytest.raises(UnavailableError, match=r"not done within 0.01 s; it goes on"):
        following(TOLD).wait(timeout_s=0.01)


def test_an_outage_is_waited_out_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert following(*[503] * 9, TOLD | {"state": "done"}).wait().state == "done"

    monkeypatch.setattr(requests, "OUTAGE_MAX_S", 0.0)
    with pytest.raises(UnavailableError):
        following(503).wait()
    with pytest.raises(NotFoundError):
        following(404).wait()


def test_a_bar_is_shown_on_standard_error_if_it_is_wanted() -> None:
    for wanted in (True, False):
        with redirect_stderr(io.StringIO()) as shown:
            following(TOLD, TOLD | {"state": "done"}).wait(progress=wanted)
        assert ("compact events" in shown.getvalue()) is wanted


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({}, "1/3 tablets · 2 wait · 1 job runs · 1 m 05 s left"),
        ({"state": "cancelling"}, "cancelling · 1/3 tablets · 2 wait · 1 job runs · 1 m 05 s left"),
        ({"state": "failed", "cause": "too late"}, "failed: too late"),
        (
            {"progress": api.Progress(tablets=2, selected=1, pending=1, running=2)},
            "0/2 tablets · 1 selected · 1 pending · 2 jobs run",
        ),
        ({"progress": api.Progress(tablets=1, eta_s=7260)}, "0/1 tablet · 2 h 01 m left"),
        ({"progress": None}, "active"),
    ],
)
def test_a_line_says_how_far_it_is(told: dict[str, Any], line: str) -> None:
    given = TOLD | {"progress": api.Progress(**TOLD["progress"])} | told

    assert sentence(api.Request(**given)) == line


def test_the_repr_of_a_request_names_id_and_table() -> None:
    assert repr(following(TOLD)) == "<request req-1 of table events>"
