"""`neve compact`, `neve request …`: answers, JSON, exit codes; a wait that ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.metadata.changes import (
    Applied,
    CancelHere,
    MoveRequest,
    SelectFiles,
)
from common.model.request import RequestState
from common.model.tablet import TabletId
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.shell import Shell


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def neve(gateway: Gateway, tmp_path: Path) -> Iterator[Shell]:
    """Return a shell with a table `events` of one tablet."""
    shell = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    words = ["--location", str(tmp_path / "e"), "--key", "id", "--version", "v"]
    shell.run("table", "create", "events", *words, "--schema", "id:int64,v:int64,name:string")
    yield shell
    shell.run("table", "drop", "events", "--yes")


def test_a_request_from_asking_to_cancelling(neve: Shell) -> None:
    neve.run("request", "list", says="none")
    words = ["--start", "1", "--end", "9", "--set", "name = 'x'", "--hint", "pace=slow"]
    more = ["--selector", "age:older_than=1h", "--boost", "5", "--deadline", "10m"]
    asked = neve.json("compact", "events", *words, *more, "--codec", "gzip", "--row-group", "64MB")
    request = asked["id"]

    assert asked["selector"] == {"name": "age", "options": {"older_than": "1h"}}
    assert (asked["hints"], asked["boost"]) == ({"pace": "slow"}, 5)
    assert asked["output"]["row_group_bytes"] == 64 * 1024**2
    short = request[:12]
    neve.run("request", "list", "events", says=f"{short} events")
    neve.run("request", "list", "events", "--verbose", says=f"{request} events")
    assert neve.json("request", "list", "events")[0]["id"] == request
    neve.run("request", "list", says="set name = 'x'")
    neve.run("request", "show", "events", short, says="keys [1] to [9]")
    neve.run("request", "cancel", "events", short, "--tablet", "last", says="part of")
    neve.run("request", "cancel", "events", request, says=f"{request} is being cancelled")
    assert neve.json("request", "show", "events", request)["state"] == "cancelling"
    neve.run("compact", "events", says="shows its progress")


def test_mistakes_end_with_two(neve: Shell) -> None:
    neve.run("compact", "events", "--set", "id = 1", code=2, says="column id may not be set")
    neve.run("compact", "events", "--selector", ":x=1", code=2, says="has no name")
    neve.run("compact", "events", "--selector", "all:x", code=2, says="form name=value")
    neve.run("compact", "events", "--hint", "x", code=2, says="hint 'x' is not of the form")
    neve.run("compact", "events", "--timeout", "1", code=2, says="--timeout needs --wait")
    neve.run("request", "show", "events", "req-1", code=2, says="has no request 'req-1'")


def test_a_dry_run_starts_nothing(neve: Shell) -> None:
    neve.run("compact", "events", "--dry-run", "--set", "name = 'x'", says="rows touched")
    assert neve.json("compact", "events", "--dry-run")["files"] == 0
    neve.run("request", "list", "events", says="none")


def test_a_wait_ends_with_the_request(gateway: Gateway, neve: Shell) -> None:
    request = neve.json("compact", "events")["id"]
    words = ["request", "show", "events", request, "--wait"]
    neve.run(*words, "--timeout", "soon", code=2, says="--timeout 'soon' is not a duration")
    neve.run(*words, "--timeout", "300ms", code=4, says="is not done within 0.3 s; it goes on")
    neve.run(*words, "--timeout", "0.3", code=4, says="is not done within 0.3 s; it goes on")

    ending = threading.Timer(0.3, lambda: end_all(gateway, RequestState.DONE))
    ending.start()
    neve.run(*words, says="state done")
    ending.join()
    assert neve.json("request", "show", "events", request)["progress"]["fraction"] == 1.0


def test_a_request_that_fails_ends_with_one(gateway: Gateway, neve: Shell) -> None:
    ending = threading.Timer(0.5, lambda: end_all(gateway, RequestState.FAILED))
    ending.start()
    neve.run("compact", "events", "--wait", code=1, says="is failed: too late")
    ending.join()


def test_a_request_that_is_done_in_part_ends_with_one(gateway: Gateway, neve: Shell) -> None:
    request = neve.json("compact", "events")["id"]
    neve.run("request", "cancel", "events", request, "--tablet", "last", says="part of")
    ending = threading.Timer(0.5, lambda: end_all(gateway, RequestState.DONE_IN_PART))
    ending.start()
    words = ["request", "show", "events", request, "--wait"]
    neve.run(*words, code=1, says="is done in part: cancelled for the keys first to last")
    ending.join()
    neve.run("request", "show", "events", request, says="state done_in_part")
    assert len(neve.json("request", "show", "events", request)["cancelled"]) == 1


def end_all(gateway: Gateway, state: RequestState) -> None:
    """End the requests of the one table, as a coordinator would."""
    (table,) = gateway.ask(gateway.store.tables())  # type: ignore[misc]  # any answer
    tablet = TabletId.parse(table.id, "last")
    for request in gateway.ask(gateway.store.open_requests(table.id)):  # type: ignore[attr-defined]  # any answer
        move = MoveRequest(table=table.id, request=request.id, state=state)
        before = SelectFiles(tablet=tablet, request=request.id, chosen=(), shown=())
        if state is RequestState.DONE_IN_PART:
            before = CancelHere(tablet=tablet, request=request.id)  # type: ignore[assignment]  # another change
        if state is RequestState.FAILED:
            before = MoveRequest(  # type: ignore[assignment]  # another change
                table=table.id,
                request=request.id,
                state=RequestState.CANCELLING,
                cause="too late",
                fails=True,
            )
        for change in (before, move):
            assert isinstance(gateway.ask(gateway.store.apply(change)), Applied)
