"""Compactions that users ask for, on real parts: each row once, while files keep arriving."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from neve.client import Client
from neve.client.errors import RequestFailedError
from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
from tests.support.patience import SERVICE_S
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

APPEND_EVERY_S = 0.1


def rows_of(table: LedgerTable) -> dict[int, tuple[int, str]]:
    """Return key → version and text, as a reader sees them."""
    found = table.client.scan(table.name).to_pylist()
    rows = {row["k"]: (row["v"], row["text"]) for row in found}
    assert len(rows) == len(found), "keys are doubled"
    return rows


def loaded(service: Service, **more: Any) -> LedgerTable:
    """Return a table of two tablets with several files in each, all compaction paused."""
    table = LedgerTable(
        service.client, service.folder, keyed=True, splits=["200"], paused=True, **more
    )
    for version in range(1, 6):
        table.add(keyed_rows(range(1, 201, version), version))
        table.add(keyed_rows(range(201, 401, version), version))
    return table


def test_deleting_and_correcting_touch_each_row_of_the_range_once(service: Service) -> None:
    table = loaded(service)
    before = rows_of(table)
    client = service.client
    client.resume(table.name)
    range_of = {"start": "101", "end": "300"}
    wishes = [
        client.compact(table.name, delete_where="v = 5", **range_of),
        client.compact(table.name, set="text = concat(text, '!')", **range_of),
    ]
    for number in range(5):
        table.add(keyed_rows(range(1000 + number, 1100 + number), 20 + number))
    for wish in wishes:
        assert wish.wait(timeout_s=SERVICE_S).state == "done"
    service.wait_until_at_rest(table)

    after = {key: row for key, row in rows_of(table).items() if key < 1000}
    wanted = {
        key: (v, text + "!" if 101 <= key <= 300 else text)
        for key, (v, text) in before.items()
        if not (v == 5 and 101 <= key <= 300)
    }
    assert after == wanted
    assert {each.end for each in client.history(table.name)} == {"committed"}
    service.wait_until_clean(table)


def test_an_expression_that_fails_on_a_row_ends_its_request_and_harms_nobody(
    service: Service,
) -> None:
    table, client = loaded(service), service.client
    before = rows_of(table)
    client.resume(table.name)
    wish = client.compact(table.name, set="text = cast(1 / (v - 3) as string)")
    with pytest.raises(RequestFailedError, match=r"DIVIDE_BY_ZERO.*at column 17: 1 / \(v - 3\)"):
        wish.wait(timeout_s=SERVICE_S)
    assert wish.status().state == "failed"
    assert {compactor.failures for compactor in client.compactors()} == {0}
    assert client.status().quarantined == 0
    service.wait_until_at_rest(table)
    failed = [each for each in client.history(table.name) if each.end == "failed"]
    assert 1 <= len(failed) <= len(client.tablets(table.name)), "no job is tried twice"
    assert rows_of(table) == before
    service.wait_until_clean(table)


def test_a_deletion_in_one_partition_leaves_the_others_as_they_are(service: Service) -> None:
    client = service.client
    schema = pa.schema([("month", pa.int32()), ("n", pa.int64())])
    place = (service.folder / "months").as_uri()
    client.create_table("months", place, schema=schema, partition_by=["month"])
    for month in (3, 4, 5):
        client.append("months", pa.table({"month": [month] * 10, "n": range(10)}, schema=schema))
    before = {file.path for file in client.files("months")}
    wish = client.compact("months", delete_where="month = 4 and n < 9")
    done = wish.wait(timeout_s=SERVICE_S)
    assert (done.state, done.result is not None) == ("done", True)
    assert done.result is not None
    told = (done.result.jobs, done.result.files_before, done.result.files_after)
    assert told == (1, 1, 1)
    assert (done.result.rows_before, done.result.rows_after, done.result.deleted) == (10, 1, 9)
    assert done.result.complete
    after = {file.path: file.request for file in client.files("months")}
    assert [request for request in after.values() if request] == [wish.id]
    changed = client.compact("months", set="n = n + 1").wait(timeout_s=SERVICE_S)
    assert changed.result is not None
    assert (changed.result.changed, changed.result.deleted) == (21, 0)
    assert len(before & after.keys()) == 2, "of the other months nothing was rewritten"
    assert client.count("months") == 21
    client.drop("months")


def test_a_request_of_which_a_job_was_cancelled_is_done_in_part(service: Service) -> None:
    table = loaded(service, settings={"codec": "zstd", "codec_level": 19})
    before, client = rows_of(table), service.client
    with service.halted(*service.tasks()):
        client.resume(table.name)
        wish = client.compact(table.name, set="text = concat(text, '!')")
        job = service.wait("job", lambda: service.running(table), table=table)
        client.cancel_job(job.attempt)
        service.wait("cancelled range", lambda: wish.status().cancelled, table=table)
    with pytest.raises(RequestFailedError, match="is done in part: cancelled for the") as raised:
        wish.wait(timeout_s=SERVICE_S)
    assert raised.value.code == "done_in_part"
    (left_out,) = wish.status().cancelled
    last = left_out.start is not None
    assert rows_of(table) == {
        key: (v, text if (key > 200) is last else text + "!") for key, (v, text) in before.items()
    }
    service.wait_until_at_rest(table)


@pytest.mark.long
def test_a_request_brings_each_tablet_of_its_range_to_one_file(service: Service) -> None:
    table = loaded(service, settings={"ratio": 50, "max_files": 3})
    before = rows_of(table)
    service.client.resume(table.name)
    done = service.client.compact(table.name, end="200").wait(timeout_s=SERVICE_S)

    assert done.state == "done"
    files = service.client.files(table.name)
    tablets = {tablet.tablet: tablet.files for tablet in service.client.tablets(table.name)}
    assert sorted(tablets.values()) == [1, 5], tablets
    assert {file.request for file in files} == {None, done.id}
    assert rows_of(table) == before


@pytest.mark.long
def test_rows_of_files_that_are_not_selected_stay_as_they_are(service: Service) -> None:
    client = service.client
    table = LedgerTable(
        client, service.folder, keyed=False, stem="bag", settings={"ratio": 50}, paused=True
    )
    table.add(*(bag_rows(300, seed) for seed in range(4)))
    client.resume(table.name)
    some = ("name", {"pattern": "in-00[01].parquet"})
    client.compact(table.name, delete_where="n >= 100", selector=some).wait(timeout_s=SERVICE_S)
    found = client.scan(table.name)["n"].to_pylist()
    assert sorted(found) == sorted([*range(100)] * 2 + [*range(300)] * 2)
    assert {"in-002.parquet", "in-003.parquet"} < table.listed()
    assert len(table.listed()) == 3


@pytest.mark.long
def test_three_requests_at_once_each_touch_their_own_rows_once(service: Service) -> None:
    table = loaded(service)
    before = rows_of(table)
    client = service.client
    client.resume(table.name)
    ranges = {"a": (1, 300), "b": (101, 400), "c": (151, 250)}
    wishes = [
        client.compact(
            table.name, set=f"text = concat(text, '{word}')", start=str(low), end=str(up)
        )
        for word, (low, up) in ranges.items()
    ]
    for wish in wishes:
        assert wish.wait(timeout_s=SERVICE_S).state == "done"
    wanted = {
        key: (v, text + "".join(word for word, (low, up) in ranges.items() if low <= key <= up))
        for key, (v, text) in before.items()
    }
    assert rows_of(table) == wanted
    service.wait_until_at_rest(table)
    service.wait_until_clean(table)


def test_a_request_ends_though_rows_are_appended_all_the_while(service: Service) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=False, stem="bag", paused=True)
    table.add(*(bag_rows(300, seed) for seed in range(25)))
    old = table.listed()
    client.resume(table.name)
    wish, over = client.compact(table.name), threading.Event()
    appended: list[int] = []

    def append() -> None:
        while not over.wait(APPEND_EVERY_S):
            table.append(bag_rows(10, 1000 + len(appended)))
            appended.append(10)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        assert wish.wait(timeout_s=SERVICE_S).state == "done"
        # Whoever looks as soon as the call has returned sees the files that it made.
        files = Client(service.stack.gateway_url, token=service.stack.token).files(table.name)
        assert not old & {file.path for file in files}
    finally:
        over.set()
        writer.join()
    assert appended, "nothing was appended meanwhile"
    service.wait_until_at_rest(table)
    table.check_rows()
    service.wait_until_clean(table)


def test_a_table_of_which_a_third_is_deleted_compacts_by_itself(service: Service) -> None:
    client = service.client
    settings = {"ratio": 50, "selector": "deletes", "selector_options": {"threshold": "0.3"}}
    table = LedgerTable(client, service.folder, keyed=True, settings=settings)
    table.add(keyed_rows(range(700), 1), keyed_rows(range(300), 2))
    service.wait_until_at_rest(table)
    assert len(table.listed()) == 2
    assert not client.requests(table.name)

    client.pause_group("default")
    try:
        table.add(keyed_rows(range(330), 3, gone=True))
        (own,) = service.wait("request", lambda: client.requests(table.name), table=table)
        says = f"request {own.id} (made by the table's selector) holds 3 files"
        service.wait(
            "hold that is explained",
            lambda: any(
                sentence.startswith(says) for sentence in client.explain(table.name)[0].sentences
            ),
            table=table,
        )
    finally:
        client.resume_group("default")
    assert own.automatic
    assert client.request(table.name, own.id).wait(timeout_s=SERVICE_S).state == "done"
    (file,) = client.files(table.name)
    assert file.request == own.id
    service.wait_until_at_rest(table)
    assert len(client.requests(table.name)) == 1, "it asks once"
    table.check_rows()
    service.wait_until_clean(table)
