"""Updates of a large base: counted by column, merged among themselves, and into it at last."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from neve.api import MaintenanceOperation
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

THREADS = 8


def test_deltas_shrink_by_minor_and_go_by_major_compactions(service: Service) -> None:
    client = service.client
    settings = {
        "planner": "delta",
        "planner_options": "major_ratio=0.5",
        "triggers": "change,analysis",
        "analysis_share": 0.9,
        "analysis_columns": "text",
    }
    table = LedgerTable(client, service.folder, keyed=True, stem="deltas", settings=settings)
    table.append(keyed_rows(range(20_000), 1))

    def analysed() -> bool:
        (tablet,) = client.live_bytes(table.name)
        return tablet.measured_files == 1 and not tablet.waiting

    service.wait("analysis that a trigger asks for", analysed, table=table)
    updated(service, table)
    counted(service, table)
    size_before = sum(file.size_bytes for file in client.files(table.name))
    client.set(table.name, {"planner_options": "major_ratio=0.2"})
    service.wait("major compaction", lambda: len(table.commits()) == 2, table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    (last,) = client.files(table.name)
    assert (last.rows, last.tags) == (20_000, {"delta": "major"})
    assert last.size_bytes < size_before
    client.drop(table.name, delete_files=True)


def updated(service: Service, table: LedgerTable) -> None:
    """Update 4,200 rows by four files, which a minor compaction merges with each other."""
    client = service.client
    (base,) = table.listed()
    client.set(table.name, {"triggers": "admin"})
    for version in range(2, 6):
        table.append(keyed_rows(range(1000 * version, 1000 * version + 1200), version))
    size_before = sum(file.size_bytes for file in client.files(table.name))
    client.trigger(table.name)
    service.wait("minor compaction", lambda: len(table.commits()) == 1, table=table)
    client.set(table.name, {"triggers": "change"})
    service.wait_until_at_rest(table)
    table.check_rows()
    (minor,) = table.commits()
    assert len(minor) == 4
    assert base not in minor, "the base is not rewritten"
    files = {file.path: file for file in client.files(table.name)}
    (delta,) = files.keys() - {base}
    assert files[delta].tags == {"delta": "minor"}
    assert files[delta].rows == 4200, "600 versions that newer ones hide are gone"
    size_after = sum(file.size_bytes for file in files.values())
    print(f"bytes of the table: {size_before} before, {size_after} after the minor compaction")
    assert size_after < size_before


def counted(service: Service, table: LedgerTable) -> None:
    """Have the updates counted by column; the listing of operations goes by that."""
    client = service.client
    (measured,) = client.analyze(table.name, timeout_s=90)
    assert measured.updated_share == pytest.approx(4200 / 24_200)
    assert measured.changed_shares == {"text": 1.0}
    assert (measured.compared_rows, measured.merged_share) == (4200, 1.0)
    assert measured.merged_shares == {"text": 1.0}
    ends = [*measured.key_quantiles]
    assert ends
    assert all(one < other for one, other in pairwise(ends)), ends
    says = "newer rows hid 17.4% of its 24,200 rows; of 4,200 updates, so many change text 100%"

    def explained() -> bool:
        (tablet,) = client.explain(table.name)
        return any(says in sentence for sentence in tablet.sentences)

    service.wait("sentence about updates", explained)
    rows: dict[str, MaintenanceOperation] = {
        operation.kind: operation for operation in client.maintenance(table.name).operations
    }
    assert rows["minor-delta"].state == rows["major-delta"].state == "idle"
    assert "21 % of the rows of 1 base file are updated by 1 delta" in rows["major-delta"].why
    assert rows["major-delta"].score > 0.1


def test_operations_are_read_from_outside_while_plans_change(service: Service) -> None:
    """Eight readers at once see whole listings: every kind once, each with its reason."""
    client = service.client
    table = LedgerTable(
        client, service.folder, keyed=True, stem="read", settings={"planner": "delta"}
    )
    table.append(keyed_rows(range(3000), 1))

    def kinds(_number: int) -> list[str]:
        rows = client.maintenance(table.name).operations
        assert all(row.why and row.state for row in rows), rows
        assert all(row.rank is None or row.state == "runnable" for row in rows), rows
        return [row.kind for row in rows]

    with ThreadPoolExecutor(THREADS) as readers:
        readings = [readers.submit(kinds, number) for number in range(4 * THREADS)]
        for version in range(2, 6):
            table.append(keyed_rows(range(500), version))
        readings += [readers.submit(kinds, number) for number in range(4 * THREADS)]
        listings = [reading.result() for reading in readings]
    assert len(listings) == 8 * THREADS
    assert all(listing == listings[0] for listing in listings)
    assert len(set(listings[0])) == len(listings[0])
    service.wait_until_at_rest(table)
    table.check_rows()
    client.drop(table.name, delete_files=True)
