"""A Delta table attached to a running service: mirrored, planned, shown, detached."""

from __future__ import annotations

import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from neve import api
from neve.client import Client
from neve.client.errors import RefusedError
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

ROWS = pa.table({"day": ["a", "b", "a"], "amount": [1, 2, 3]})


def lake_of(client: Client) -> api.LakeMirror:
    """Return the mirror of the table `sales`."""
    lake = client.describe("sales").lake
    assert lake is not None
    return lake


def test_a_delta_table_is_attached_planned_and_detached(service: Service) -> None:
    client, folder = service.client, service.folder / "delta" / "sales"
    for _ in range(6):
        write_deltalake(folder, ROWS, mode="append", partition_by="day")
    shown = client.attach("sales", delta=str(folder), dry_run=True)
    assert (shown.files, shown.tablets, shown.jobs, shown.refusal) == (12, 2, 2, "")
    client.attach("sales", delta=str(folder), paused=True)
    service.wait("the log is mirrored", lambda: lake_of(client).version == 5)
    table = client.describe("sales")
    assert (table.files, table.rows, table.tablets) == (12, 18, 2)
    with pytest.raises(RefusedError, match="deltalake or Spark"):
        client.append("sales", ROWS)

    DeltaTable(folder).delete("day = 'b'")
    service.wait("a delete of another writer is mirrored", lambda: lake_of(client).version == 6)
    service.wait("its files are gone", lambda: client.describe("sales").files == 6)

    before = sorted(path for path in folder.rglob("*") if path.is_file())
    client.detach("sales")
    service.wait("it is detached", lambda: "sales" not in {table.name for table in client.tables()})
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before
    assert not (folder / "_neve").exists()
    assert DeltaTable(folder).to_pyarrow_table().num_rows == 12


def test_a_native_table_is_a_delta_table_to_other_engines(service: Service) -> None:
    client, folder = service.client, service.folder / "published"
    settings = {"publish": "delta", "manifest_interval_s": "1s", "target": "1MB"}
    client.create_table("published", str(folder), schema=ROWS.schema, settings=settings)
    wanted = []
    for number in range(12):
        rows = pa.table({"day": [str(number)], "amount": [number]})
        client.append("published", rows)
        wanted += rows.to_pylist()

    def shown() -> api.PublishedLog:
        published = client.describe("published").published
        assert published is not None
        return published

    client.wait_until_at_rest("published", timeout_s=120)
    files = len(client.files("published"))
    assert files < len(wanted), "files were merged"
    service.wait("the log has all rows", lambda: (shown().files, shown().rows) == (files, 12))
    rows = DeltaTable(folder).to_pyarrow_table().sort_by("amount").to_pylist()
    assert rows == wanted
    with pytest.raises(DeltaError, match="neveManaged"):
        write_deltalake(folder, ROWS, mode="append")
    assert "neve_published_logs 1" in metrics(service)
    client.set("published", {"publish": "off"})
    service.wait("the log is gone", lambda: not (folder / "_delta_log").exists())
    client.set("published", {"publish": "delta"})
    service.wait("it begins again", lambda: shown().version is not None)
    client.drop("published", delete_files=True)
    assert not (folder / "_delta_log").exists()


def test_metrics_count_lake_tables(service: Service) -> None:
    client, folder = service.client, service.folder / "delta" / "counted"
    write_deltalake(folder, ROWS)
    client.attach("counted", delta=str(folder))
    service.wait("the metric counts the table", lambda: "neve_lake_tables 1" in metrics(service))
    client.detach("counted")
    service.wait("it counts it no more", lambda: "neve_lake_tables 0" in metrics(service))


def metrics(service: Service) -> str:
    """Return the metrics of the gateway as text."""
    token = {"Authorization": f"Bearer {service.stack.token}"}
    return httpx.get(f"{service.stack.gateway_url}/metrics", headers=token).text
