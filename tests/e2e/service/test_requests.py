"""Compactions that users ask for, on real parts: each row once, while files keep arriving."""

from __future__ import annotations

from typing import Any

import pytest

from neve.client_errors import RequestFailedError
from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
from tests.support.stack import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DONE_MAX_S = 180.0


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
        assert wish.wait(timeout_s=DONE_MAX_S).state == "done"
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


def test_a_request_brings_each_tablet_of_its_range_to_one_file(service: Service) -> None:
    table = loaded(service, settings={"ratio": 50, "max_files": 3})
    before = rows_of(table)
    service.client.resume(table.name)
    done = service.client.compact(table.name, end="200").wait(timeout_s=DONE_MAX_S)

    assert done.state == "done"
    files = service.client.files(table.name)
    tablets = {tablet.tablet: tablet.files for tablet in service.client.tablets(table.name)}
    assert sorted(tablets.values()) == [1, 5], tablets
    assert {file.request for file in files} == {None, done.id}
    assert rows_of(table) == before


def test_rows_of_a_bag_are_deleted(service: Service) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=False, stem="bag")
    table.add(*(bag_rows(300, seed) for seed in range(3)))
    client.compact(table.name, delete_where="n >= 100").wait(timeout_s=DONE_MAX_S)
    found = client.scan(table.name)
    assert sorted(found["n"].to_pylist()) == sorted([*range(100)] * 3)


def test_a_correction_that_fails_leaves_every_row_as_it_was(service: Service) -> None:
    table = loaded(service)
    before = rows_of(table)
    service.client.resume(table.name)
    wish = service.client.compact(table.name, set="text = cast(1 / (v - v) as string)")
    with pytest.raises(RequestFailedError):
        wish.wait(timeout_s=DONE_MAX_S)
    assert rows_of(table) == before
