"""The life of tables, from create to drop, as their users see it."""

from __future__ import annotations

import pytest
import redis

from neve.client.errors import NotFoundError, RefusedError
from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
from tests.support.stack import COMPACTORS, Service

pytestmark = [pytest.mark.slow]

SPLITS = ["100", "200", "300"]
TABLETS = len(SPLITS) + 1
MARKS = (b":outcome:", b":call:", b":retired:", b":dropped")
"""In names of keys that outlive their table for a day, by design."""


def everywhere(version: int, *, step: int = 1, gone: bool = False) -> list:
    """Return rows for every tablet of a table cut at `SPLITS`, one part per tablet."""
    return [
        keyed_rows(range(100 * n + 1, 100 * n + 101, step), version, gone=gone)
        for n in range(TABLETS)
    ]


def test_a_keyed_table_comes_to_rest(service: Service) -> None:
    client = service.client
    table = LedgerTable(
        client, service.folder, keyed=True, splits=SPLITS, paused=True, settings={"ratio": 1.2}
    )
    for version in range(3):
        assert table.add(*everywhere(version, step=version + 1)).rows > 0
    table.add(*everywhere(7, step=10, gone=True))
    table.append(keyed_rows(range(50, 350, 3), 5))
    table.append(keyed_rows(range(350, 360), 9))
    table.check_rows()
    assert client.describe(table.name).files == len(table.listed()) == 4 * TABLETS + 5
    assert table.stored() == table.listed()

    client.resume(table.name)
    service.wait_until_at_rest(table)

    table.check_rows()
    now = client.describe(table.name)
    assert (now.tablets, now.files) == (TABLETS, TABLETS), client.explain(table.name)
    done = client.history(table.name)
    assert {each.end for each in done} == {"committed"}
    assert {each.compactor for each in done} == set(COMPACTORS)
    assert table.listed() == {path for each in done for path in each.outputs} - {
        path for inputs in table.commits() for path in inputs
    }
    service.wait_until_clean(table)
    for tablet in client.explain(table.name):
        assert any("wanted nothing" in sentence for sentence in tablet.sentences), tablet
        assert set(tablet.left) <= table.listed()
        assert tablet.queued == tablet.running == ()


def test_an_append_only_table_keeps_every_row_as_often_as_it_came(service: Service) -> None:
    table = LedgerTable(service.client, service.folder, keyed=False, stem="bag")
    rows = bag_rows(500, seed=1)
    table.add(rows, rows, bag_rows(400, seed=2))
    table.append(rows)
    service.wait_until_at_rest(table)
    table.append(bag_rows(300, seed=3))
    table.add(bag_rows(300, seed=4), bag_rows(300, seed=4))
    service.wait_until_at_rest(table)

    table.check_rows()
    assert table.commits()
    service.wait_until_clean(table)


def test_new_settings_plan_anew(service: Service) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=False, settings={"ratio": 50})
    table.add(*(bag_rows(200, seed) for seed in range(4)))
    service.wait(
        "plan that wants nothing",
        lambda: any(
            "wanted nothing" in sentence for sentence in client.explain(table.name)[0].sentences
        ),
        table=table,
    )
    assert "reaches 50 times" in " ".join(client.explain(table.name)[0].left.values())
    assert len(table.listed()) == 4
    before = client.describe(table.name)

    after = client.set(table.name, {"ratio": 2})
    assert after.settings_version > before.settings_version
    with pytest.raises(RefusedError):
        client.set(table.name, {"ratio": 3}, settings_version=before.settings_version)

    service.wait("compaction", lambda: len(table.listed()) == 1, table=table)
    assert len(table.commits()) == 1
    table.check_rows()


def test_a_pause_stops_the_handing_out_and_a_resume_goes_on(service: Service) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=True)
    client.pause(table.name)
    table.add(*(keyed_rows(range(300), version) for version in range(5)))
    service.wait(
        "sentence about the pause",
        lambda: any(
            "is paused" in sentence for sentence in client.explain(table.name)[0].sentences
        ),
        table=table,
    )
    other = LedgerTable(client, service.folder, keyed=False, stem="other")
    other.add(*(bag_rows(200, seed) for seed in range(4)))
    service.wait("compaction of another table", other.commits, table=other)
    assert client.history(table.name) == []
    assert len(table.listed()) == 5
    assert service.running(table) is None

    client.resume(table.name)
    service.wait_until_at_rest(table)
    assert len(table.listed()) == 1
    table.check_rows()


@pytest.mark.parametrize("delete_files", [True, False])
def test_a_dropped_table_leaves_no_key(service: Service, delete_files: bool) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=False, stem="gone", splits=[])
    table.add(*(bag_rows(200, seed) for seed in range(4)))
    service.wait_until_at_rest(table)
    table.add(bag_rows(10, seed=9))
    kept, replaced = table.listed(), {path for inputs in table.commits() for path in inputs}

    client.drop(table.name, delete_files=delete_files)

    with redis.Redis.from_url(service.stack.redis_url) as store:

        def keys() -> list[bytes]:
            # Marks of calls and attempts outlive their table for a day, by design.
            found = store.scan_iter(f"neve:*{table.id}*", 1000)
            return [key for key in found if not any(mark in key for mark in MARKS)]

        service.wait("store without its keys", lambda: not keys())
    with pytest.raises(NotFoundError):
        client.describe(table.name)
    left = table.stored()
    # What was replaced since the last manifest stays where files stay.
    assert left == set() if delete_files else kept <= left <= kept | replaced
    assert table.name not in {each.name for each in client.tables()}
