"""Requests over HTTP: refused at the door, stored once, followed, cancelled, tried dry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.metadata.changes import (
    Applied,
    CancelHere,
    MarkWaiting,
    MoveRequest,
    SelectFiles,
)
from common.model.request import RequestState
from common.model.tablet import TabletId
from neve.api import Plugin
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NotFoundError,
    RefusedError,
)
from neve.client.http import new_call
from tests.support.gateway import Gateway, serving

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.int64()),
        ("gone", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
    ]
)
KEYED = {"key": ["id"], "version_column": "v", "tombstone_column": "gone", "time_column": "at"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    """Return a client of a service with `events`: two tablets, (…, 100] and (100, …)."""
    gateway.coordinator.up = True
    with gateway.client() as made:
        made.create_table("events", str(tmp_path / "e"), schema=SCHEMA, splits=["100"], **KEYED)
        yield made
        for table in made.tables():
            made.drop(table.name)


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "v": [1] * len(ids),
            "gone": [False] * len(ids),
            "at": [None] * len(ids),
            "note": ["a"] * len(ids),
        },
        schema=SCHEMA,
    )


def tablet_ids(client: Client) -> list[TabletId]:
    table = client.describe("events").id
    return [TabletId.parse(table, tablet.tablet) for tablet in client.tablets("events")]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"start": "x"}, "key value 'x' cannot be read as int"),
    ({"start": "2", "end": "1"}, "no key lies from '2' to '1', expected start before end"),
    ({"start": "+inf"}, "no key lies from '\\+inf' to None"),
    ({"delete_where": "note = "}, "line 1, column 8: .*expected"),
    ({"delete_where": "nota = 'a'"}, "there is no column nota.*note"),
    ({"delete_where": "id"}, "id is integer"),
    ({"set": "id = 1"}, "column id may not be set"),
    ({"set": "v = 1"}, "column v may not be set"),
    ({"set": "gone = true"}, "column gone may not be set"),
    ({"set": "at = null"}, "column at may not be set"),
    ({"set": "note = 1"}, "column note is string"),
    ({"set": "note = 'b'", "delete_where": "id > 1"}, "delete_where and set are given"),
    ({"transform": "upper"}, "neve.transforms: 'upper' is not installed"),
    ({"selector": "best"}, "neve.selectors: 'best' is not installed; installed: .*all"),
    ({"selector": ("all", {"x": "1"})}, "'?x'?"),
    ({"codec": "rar"}, "codec 'rar' is unknown, expected one of zstd"),
    (
        {"codec": "gzip", "codec_level": 12},
        "codec_level 12 is not one of gzip, expected 1 to 9",
    ),
    ({"row_group_bytes": "1KB"}, "row_group_bytes '1KB' is out of range, expected 64 KiB to 1 GiB"),
    ({"boost": 20_001}, "boost 20001 is out of range, expected -20000 to 20000"),
    ({"deadline": "soon"}, "deadline 'soon' is not a duration"),
    ({"deadline": 0}, "deadline 0.* is out of range, expected 1s to 366d"),
    ({"hints": {"a": "x" * 257}}, "hints.a: String should have at most 256 characters"),
    ({"hints": {str(n): "x" for n in range(33)}}, "hints: Dictionary should have at most 32 items"),
]


@pytest.mark.parametrize(("wanted", "message"), REFUSED)
def test_a_wrong_request_is_refused_and_not_stored(
    client: Client, wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises(CallerError, match=message):
        client.compact("events", **wanted)
    with pytest.raises(CallerError, match=message):
        client.dry_run("events", **wanted)
    assert client.requests("events") == []


def test_a_name_that_nobody_knows_is_refused_on_both_sides(client: Client) -> None:
    with pytest.raises(TypeError, match="bost"):
        client.compact("events", bost=3)
    with pytest.raises(NotFoundError, match="did you mean 'events'"):
        client.compact("event")


def test_a_request_shows_what_was_asked_for(client: Client) -> None:
    request = client.compact(
        "events",
        start="7",
        end="200",
        selector=("age", {"older_than": "1h"}),
        set="note = 'b'",
        codec="gzip",
        codec_level=9,
        row_group_bytes="64MB",
        hints={"pace": "slow"},
        boost=-5,
        deadline="10m",
    )

    found = request.status()
    assert found == client.request("events", request.id).status()
    assert (found.table, found.state, found.transform) == ("events", "active", "set note = 'b'")
    assert found.selector == Plugin(name="age", options={"older_than": "1h"})
    assert found.keys is not None
    assert (found.keys.start, found.keys.end) == ("[7]", "[200]")
    assert (found.keys.start_included, found.keys.end_included) == (True, True)
    assert found.output is not None
    assert (found.output.codec, found.output.codec_level) == ("gzip", 9)
    assert found.output.row_group_bytes == 64 * 1024**2
    assert (found.boost, found.hints) == (-5, {"pace": "slow"})
    assert found.deadline_at_s is not None
    assert found.deadline_at_s == pytest.approx(found.submitted_at_s + 600, abs=60)
    assert [each.id for each in client.requests("events")] == [request.id]


def test_the_same_call_again_is_the_same_request(client: Client) -> None:
    call = new_call()

    first = client.compact("events", deadline="10m", call=call)
    again = client.compact("events", deadline="10m", call=call)
    assert first.id == again.id
    assert first.status().deadline_at_s == again.status().deadline_at_s
    with pytest.raises(RefusedError, match="exists already, with other content"):
        client.compact("events", boost=1, deadline="10m", call=call)
    with pytest.raises(CallerError, match="call id 'mine' is not a UUIDv7"):
        client.compact("events", call="mine")
    assert len(client.requests("events")) == 1
    assert client.compact("events").id != first.id


def test_a_table_that_is_being_dropped_takes_no_request(client: Client) -> None:
    client.drop("events")
    with pytest.raises((NotFoundError, RefusedError), match="events"):
        client.compact("events")


def test_a_bag_of_rows_is_transformed_as_a_whole(client: Client, tmp_path: Path) -> None:
    client.create_table("bag", str(tmp_path / "bag"), schema=SCHEMA)

    with pytest.raises(CallerError, match="'bag' has no key, so it has no range"):
        client.compact("bag", start="1")
    request = client.compact("bag", delete_where="note is null")
    assert request.status().transform == "delete where note is null"


def test_deleting_needs_a_tombstone_column(client: Client, tmp_path: Path) -> None:
    without = {**KEYED, "tombstone_column": None}
    client.create_table("plain", str(tmp_path / "plain"), schema=SCHEMA, **without)

    with pytest.raises(CallerError, match="table plain has no tombstone column"):
        client.compact("plain", delete_where="note is null")


def test_progress_is_told_per_tablet(gateway: Gateway, client: Client) -> None:
    for _ in range(2):
        client.append("events", rows(1, 150))
    request = client.compact("events")
    first, last = tablet_ids(client)
    files = sorted(file.path for file in client.files("events") if file.tablet == first.text)

    found = request.status().progress
    assert found is not None
    assert (found.tablets, found.pending, found.fraction, found.eta_s) == (2, 2, 0.0, None)
    assert found.bytes_left == client.describe("events").size_bytes

    held = SelectFiles(tablet=first, request=request.id, chosen=tuple(files), shown=tuple(files))
    assert isinstance(gateway.ask(gateway.store.apply(held)), Applied)
    none = SelectFiles(tablet=last, request=request.id, chosen=(), shown=())
    assert isinstance(gateway.ask(gateway.store.apply(none)), Applied)

    told = request.status()
    assert told.progress is not None
    assert (told.progress.selected, told.progress.done) == (1, 1)
    assert (told.progress.files_left, told.progress.running) == (2, 0)
    assert [tablet.state for tablet in told.tablets] == ["selected", "done"]
    assert [tablet.end for tablet in told.tablets] == ["[100]", "+inf"]
    assert request.status(tablets=1).tablets == told.tablets[:1]
    assert request.status(tablets=0).tablets == ()
    gateway.coordinator.up = False
    assert request.status().progress == told.progress


def test_a_waiting_request_says_so(gateway: Gateway, client: Client) -> None:
    request = client.compact("events", end="50")
    waits = MarkWaiting(tablet=tablet_ids(client)[0], request=request.id)
    assert isinstance(gateway.ask(gateway.store.apply(waits)), Applied)

    found = request.status()
    assert found.progress is not None
    assert (found.progress.tablets, found.progress.waiting) == (1, 1)


def test_a_request_is_cancelled_as_a_whole(gateway: Gateway, client: Client) -> None:
    request = client.compact("events")
    table = client.describe("events").id

    assert request.cancel().state == "cancelling"
    assert request.cancel().cause == "cancelled by a user"
    moved = MoveRequest(table=table, request=request.id, state=RequestState.CANCELLED)
    assert isinstance(gateway.ask(gateway.store.apply(moved)), Applied)
    found = request.status()
    assert (found.state, found.ended, found.progress) == ("cancelled", True, None)
    assert found.ended_at_s is not None
    with pytest.raises(RefusedError, match="is cancelled"):
        request.cancel()


def test_a_part_that_is_cancelled_is_made_of_whole_tablets(
    gateway: Gateway, client: Client
) -> None:
    request = client.compact("events")
    first, last = tablet_ids(client)

    with pytest.raises(CallerError, match="no tablet of 'events' lies wholly from '5' to '300'"):
        request.cancel(start="5", end="300")
    with pytest.raises(CallerError, match="give either tablet, or start and end, not both"):
        request.cancel(start="5", tablet="last")
    with pytest.raises(NotFoundError, match="has no tablet"):
        request.cancel(tablet="0123")
    (part,) = request.cancel(end="150").cancelled
    assert (part.start, part.end, part.end_included) == (None, "[100]", True)

    # The other tablet is not touched: it may be cancelled by its name alone.
    other = CancelHere(tablet=last, request=request.id)
    assert not isinstance(gateway.ask(gateway.store.apply(other)), Applied)
    here = CancelHere(tablet=first, request=request.id)
    assert isinstance(gateway.ask(gateway.store.apply(here)), Applied)
    assert request.status().progress.cancelled == 1  # type: ignore[union-attr]  # it has not ended
    part = request.cancel(tablet="last").cancelled[1]
    assert (part.start, part.start_included, part.end) == ("[100]", False, None)


def test_a_tablet_without_a_key_of_the_request_is_not_cancelled(client: Client) -> None:
    request = client.compact("events", end="50")

    with pytest.raises(CallerError, match="tablet 'last' has no key of request"):
        request.cancel(tablet="last")


def test_a_request_that_nobody_made_is_told(client: Client) -> None:
    with pytest.raises(NotFoundError, match="has no request 'req-1'") as caught:
        client.request("events", "req-1").status()
    assert caught.value.error == "UnknownRequestError"


def test_a_dry_run_counts_and_stores_nothing(client: Client) -> None:
    client.append("events", rows(1, 5, 150))
    client.append("events", rows(5, 9, 150))

    whole = client.dry_run("events")
    assert (whole.tablets, whole.files, whole.rows, whole.rows_in_range) == (2, 4, 6, 6)
    assert whole.size_bytes == client.describe("events").size_bytes
    part = client.dry_run("events", start="5", end="8", delete_where="note = 'a'")
    assert (part.tablets, part.files, part.rows, part.rows_in_range) == (1, 2, 4, 2)
    assert part.transform == "delete where note = 'a'"
    assert [(each.end, each.held) for each in part.per_tablet] == [("[100]", False)]
    none = client.dry_run("events", start="300")
    assert (none.tablets, none.rows_in_range, none.per_tablet) == (0, 0, ())
    assert client.requests("events") == []


def test_a_deletion_takes_only_files_that_may_have_such_rows(
    client: Client, tmp_path: Path
) -> None:
    keys = {"key": ["note", "id"], "version_column": "v", "tombstone_column": "gone"}
    place = str(tmp_path / "months")
    client.create_table("months", place, schema=SCHEMA, partition_by=["note"], **keys)
    for name in "abc":
        client.append("months", rows(1, 2).set_column(4, "note", pa.array([name, name])))
    taken = client.dry_run("months", delete_where="note = 'b' and id > 0")
    assert [each.partition for each in taken.per_tablet] == ["note=b"]
    client.append("events", rows(1, 5))
    client.append("events", rows(7, 9))
    assert client.dry_run("events", delete_where="id > 6").files == 1


def test_a_request_notes_what_the_retention_keeps(client: Client) -> None:
    client.append("events", rows(1))
    for found in (
        client.dry_run("events", selector="expired"),
        client.compact("events", delete_where="id = 1").status(),
    ):
        (note,) = found.notes
        assert "less than tombstone_retention_s = 86400 s" in note
    assert client.dry_run("events").notes == ()
    client.set("events", {"tombstone_retention": "0s"})
    assert client.dry_run("events", selector="expired").notes == ()


def test_a_range_of_partitions_is_of_their_values(client: Client, tmp_path: Path) -> None:
    client.create_table(
        "days",
        str(tmp_path / "days"),
        schema=SCHEMA,
        key=["note", "id"],
        version_column="v",
        partition_by=["id"],
    )
    client.append("days", rows(1, 2, 3))

    found = client.dry_run("days", start="2", end="3")
    assert [each.partition for each in found.per_tablet] == ["id=2", "id=3"]
    assert (found.rows, found.rows_in_range) == (2, 2)
    with pytest.raises(CallerError, match="not the first columns of its key"):
        client.compact("days", start="2", set="at = null")
    request = client.compact("days", start="2")
    assert request.status().progress.tablets == 2  # type: ignore[union-attr]  # it has not ended
    (part,) = request.cancel(tablet=request.status().tablets[0].tablet).cancelled
    assert (part.start, part.end) == ("[2]", "[2]")
