"""Splits and merges over HTTP and on the command line: wishes, refusals, what is under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from common.metadata.changes import (
    Applied,
    Change,
    EndOperation,
    MarkWaiting,
    SubmitRequest,
)
from common.model.request import Request
from common.model.tablet import TabletId
from coordinator.core.split_merge import (
    AbandonStep,
    WaitForTablets,
    next_change,
)
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NotFoundError,
    RefusedError,
    RequestFailedError,
    UnavailableError,
)
from neve.gateway.tablets import middle_first
from tests.support.gateway import Gateway, serving

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        folder = str(tmp_path / "e")
        made.create_table("events", folder, schema=SCHEMA, key=["id"], version_column="v")
        yield made
        made.drop("events")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, schema=SCHEMA)


def make(gateway: Gateway, change: Change) -> None:
    outcome = gateway.ask(gateway.store.apply(change))
    assert isinstance(outcome, Applied), outcome


def go_on(gateway: Gateway, client: Client) -> int:
    """Take every step that can be taken, as a coordinator does; return how many ended."""
    table, ended = client.describe("events").id, 0
    for _ in range(10):
        tablets = gateway.ask(gateway.store.read_range(table))
        busy = [tablet for tablet in tablets if tablet.operation is not None]
        if not busy:
            break
        own = [each for each in busy if each.operation == busy[0].operation]
        change = next_change(own, 0.0, lasts_max_s=1e9)
        if isinstance(change, WaitForTablets | AbandonStep):
            break
        make(gateway, change)
        ended += isinstance(change, EndOperation)
    return ended


class Drives:
    """Drives the operations of a table until it is told to stop."""

    def __init__(self, gateway: Gateway, client: Client) -> None:
        self.ended = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(gateway, client))

    def _run(self, gateway: Gateway, client: Client) -> None:
        while not self._stop.wait(0.01):
            self.ended += go_on(gateway, client)

    def __enter__(self) -> Drives:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def ends(client: Client) -> list[str | None]:
    return [tablet.end for tablet in client.tablets("events")]


def test_a_split_at_a_key_and_back(gateway: Gateway, client: Client) -> None:
    for held in ((1, 5), (6, 9)):
        client.append("events", rows(*held))
    begun = client.split("events", at="5")
    assert begun.operation is not None
    assert (begun.keys, begun.operation.at, begun.operation.step) == (("[5]",), "[5]", "cut")
    assert begun.operation.reason == "a user wished for it"
    again = client.split("events", at="5")
    assert again.operation == begun.operation
    assert client.split("events", tablet="last").operation == begun.operation
    assert client.operations("events") == [begun.operation]
    assert go_on(gateway, client) == 1
    assert ends(client) == ["[5]", "+inf"]
    assert client.split("events", at="5").operation is None
    assert client.operations("events") == []

    left = client.tablets("events")[0].tablet
    merged = client.merge("events", tablet=left)
    assert merged.operation is not None
    assert (merged.operation.tablets, merged.operation.step) == ((left, "last"), "drain")
    assert client.merge("events", start="1", end="9").operation == merged.operation
    assert client.operations("events", tablet=left) == [merged.operation]
    assert go_on(gateway, client) == 1
    assert ends(client) == ["+inf"]
    assert client.merge("events", start="1", end="9").operation is None
    with pytest.raises(NotFoundError, match="has no tablet"):
        client.merge("events", tablet=left)


def test_keys_are_chosen_that_balance_and_a_range_becomes_one(
    gateway: Gateway, client: Client
) -> None:
    for number in range(8):
        client.append("events", rows(10 * number, 10 * number + 9))
    with Drives(gateway, client) as drives:
        begun = client.split("events", tablet="last", into=4, wait=True, timeout_s=60)
        assert begun.keys == ("[39]", "[19]", "[59]")
        assert ends(client) == ["[19]", "[39]", "[59]", "+inf"]
        heard: list[str | None] = []
        client.merge(
            "events", start="20", end="45", wait=True, timeout_s=60,
            progress=lambda each: heard.append(each.at),
        )  # fmt: skip
        assert heard == ["[39]"]
        client.merge("events", wait=True, timeout_s=60)
        assert ends(client) == ["+inf"]
        # The wait ends when no operation is there, a moment before the driver has counted.
    assert drives.ended == 3 + 1 + 2
    assert client.count("events") == 16


def test_split_keys_are_tried_from_the_middle() -> None:
    keys = [bytes([number]) for number in range(7)]
    assert [key[0] for key in middle_first(keys)] == [3, 1, 0, 2, 5, 4, 6]


def test_a_split_says_what_it_waits_for_and_can_be_abandoned(client: Client) -> None:
    client.append("events", rows(1, 9))
    client.split("events", at="5")
    (found,) = client.operations("events")
    assert "files cross the cut: _neve/append/" in found.waits
    with pytest.raises(UnavailableError, match="is not over in time; it goes on"):
        client.split("events", at="5", wait=True, timeout_s=0.05)
    for _ in range(2):
        client.abandon("events", found.id)
    assert client.operations("events") == []
    assert ends(client) == ["+inf"]


def test_a_wait_tells_that_an_operation_was_abandoned(client: Client) -> None:
    client.append("events", rows(1, 9))
    with pytest.raises(RequestFailedError, match=r"was abandoned; `neve explain` shows why"):
        client.split(
            "events", at="5", wait=True, progress=lambda each: client.abandon("events", each.id)
        )


def test_wishes_that_are_not_clear(client: Client) -> None:
    for wish in ({}, {"at": "1", "tablet": "last"}):
        with pytest.raises(CallerError, match="give either `at`, a key, or `tablet`"):
            client.split("events", **wish)
    with pytest.raises(CallerError, match="`into` goes with `tablet`"):
        client.split("events", at="1", into=3, wait=True)
    with pytest.raises(CallerError, match="number of parts less one 64 is out of range"):
        client.split("events", tablet="last", into=65, wait=True)
    with pytest.raises(CallerError, match="goes with wait"):
        client.split("events", tablet="last", into=3)
    for key in ("+inf", "[]"):
        with pytest.raises(CallerError, match="no tablet can be split at"):
            client.split("events", at=key)
    with pytest.raises(NotFoundError, match="has no tablet 'ab'"):
        client.split("events", tablet="ab")
    with pytest.raises(CallerError, match="not both"):
        client.merge("events", tablet="last", start="1")
    with pytest.raises(CallerError, match="the last tablet has no next one"):
        client.merge("events", tablet="last")
    with pytest.raises(CallerError, match="no key lies from '9' to '1'"):
        client.merge("events", start="9", end="1")


def test_a_split_or_merge_that_cannot_begin_is_refused(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="no key known from its files divides"):
        client.split("events", tablet="last")
    client.split("events", at="5")
    with pytest.raises(RefusedError, match="a split is under way") as caught:
        client.split("events", at="6")
    assert caught.value.code == "operation"
    go_on(gateway, client)
    table = client.describe("events").id
    tablet = TabletId(table, gateway.ask(gateway.store.tablet_ids(table))[0].end)
    make(gateway, SubmitRequest(request=Request(id="r1", table=table)))
    make(gateway, MarkWaiting(tablet=tablet, request="r1"))
    with pytest.raises(RefusedError, match="requests wait: r1") as caught:
        client.split("events", at="3")
    assert caught.value.code == "waiting"
    with pytest.raises(RefusedError, match="requests wait: r1"):
        client.merge("events", tablet=tablet.text)

    for name, more in {"bag": {}, "months": {"partition_by": ["id"], "key": ["id"]}}.items():
        columns = {"version_column": "v"} if more else {}
        client.create_table(name, str(tmp_path / name), schema=SCHEMA, **more, **columns)
        for wish in (lambda: client.split(name, at="5"), lambda: client.merge(name)):  # noqa: B023  called at once
            with pytest.raises(RefusedError, match="its tablets are not key ranges"):
                wish()
        for setting in ("split_bytes", "merge_bytes"):
            with pytest.raises(CallerError, match=f"{setting} is for tablets that are ranges"):
                client.set(name, {setting: "1GB"})
        client.drop(name)
