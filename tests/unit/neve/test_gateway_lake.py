"""Lake tables at the gateway: attach, dry run, refusals, what verbs show, detach."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from common.metadata.changes import MirrorFiles, NoteMirrorProblem
from common.runtime import SystemClock
from neve.client import Client
from neve.client.errors import CallerError, NeveError, NotFoundError, RefusedError
from neve.gateway import requests
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.iceberg_tables import IcebergTable, sqlite_catalog, sqlite_properties
from tests.support.memory_store import MemoryStore
from tests.support.shell import Shell
from tests.support.store_harness import applied

ROWS = pa.table({"day": ["a", "b", "a"], "amount": [1, 2, 3]})


def delta_table(folder: Path, writes: int = 6, **options: object) -> Path:
    """Write a Delta table with several small files."""
    for _ in range(writes):
        write_deltalake(folder, ROWS, mode="append", **options)  # type: ignore[call-overload]  # any option
    return folder


@contextmanager
def attached(folder: Path, **options: object) -> Iterator[tuple[Gateway, Client, MemoryStore]]:
    """Serve a gateway with the table `sales` attached."""
    store = MemoryStore(SystemClock())
    with serving(store=store) as gateway, gateway.client() as client:
        client.attach("sales", delta=str(delta_table(folder)), **options)  # type: ignore[arg-type]  # any option
        yield gateway, client, store


def test_a_dry_run_shows_the_plan_and_attaches_nothing(tmp_path: Path) -> None:
    folder = delta_table(tmp_path / "sales", partition_by="day")
    DeltaTable(folder).delete("amount = 2")
    with serving() as gateway, gateway.client() as client:
        shown = client.attach("sales", delta=str(folder), dry_run=True)
        assert (shown.dry_run, shown.refusal, shown.format) == (True, "", "delta")
        assert (shown.version, shown.partition_by, shown.tablets) == (6, ("day",), 1)
        assert (shown.files, shown.rows) == (6, 12)
        assert (shown.jobs, shown.planned_files) == (1, 6)
        assert "bin-pack" in shown.planner
        assert shown.reasons == ("6 files",)
        with pytest.raises(NotFoundError):
            client.describe("sales")
    assert sorted(path.name for path in folder.iterdir() if path.name != "day=a") == [
        "_delta_log",
        "day=b",
    ]


def test_an_attached_table_is_shown_with_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "sales"
    with attached(folder, settings={"target_bytes": "64MB"}) as (_, client, store):
        table = client.describe("sales")
        assert table.lake is not None
        assert (table.lake.format, table.lake.version) == ("delta", None)
        assert table.lake.text == "delta, not read"
        assert table.lake.uri == table.location == folder.as_uri()
        assert [(column.name, column.type) for column in table.schema] == [
            ("day", "string"),
            ("amount", "int64"),
        ]
        assert table.settings["planner"] == "bin-pack"
        assert table.settings["target_bytes"] == 64 * 1024**2
        assert table.settings["manifest_interval_s"] is None
        step = MirrorFiles(table=table.id, after="", token="m1", version=5)
        applied(asyncio.run(store.apply(step)))
        problem = NoteMirrorProblem(table=table.id, problem="the bucket is gone")
        applied(asyncio.run(store.apply(problem)))
        (listed,) = client.tables()
        assert listed.lake is not None
        assert (listed.lake.text, listed.lake.problem) == ("delta, version 5", "the bucket is gone")
        assert listed.state_text == "live (not followed)"
    assert not (folder / "_neve").exists()


def test_the_target_size_of_the_log_is_taken_over(tmp_path: Path) -> None:
    folder = delta_table(tmp_path / "sales", 1, configuration={"delta.targetFileSize": "1048576"})
    with serving() as gateway, gateway.client() as client:
        client.attach("sales", delta=str(folder))
        assert client.describe("sales").settings["target_bytes"] == 1024**2


@pytest.mark.parametrize(
    "place", [".", "inside", ".."], ids=["the-same", "a-folder-in-it", "a-folder-above-it"]
)
def test_two_tables_do_not_share_files(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "tables" / "sales"
    with attached(folder) as (_, client, _):
        other = (folder / place).resolve()
        delta_table(other if place != "." else folder, 1)
        with pytest.raises(RefusedError, match="two tables may not share files"):
            client.attach("again", delta=str(other))
        with pytest.raises(RefusedError):
            client.create_table("again", str(other), schema=ROWS.schema)


def test_a_native_table_is_not_attached(tmp_path: Path) -> None:
    native = tmp_path / "native"
    with serving() as gateway, gateway.client() as client:
        client.create_table("native", str(native), schema=ROWS.schema)
        for folder in (native, native / "below"):
            delta_table(folder, 1)
            with pytest.raises(RefusedError, match="two tables may not share files"):
                client.attach("sales", delta=str(folder))
    # Another store has no such table, but the folder has the mark of its owner.
    with serving() as gateway, gateway.client() as client:
        for folder in (native, native / "below"):
            with pytest.raises(RefusedError, match="belongs to a table of the store"):
                client.attach("sales", delta=str(folder))


def test_a_name_is_attached_once(tmp_path: Path) -> None:
    with attached(tmp_path / "sales") as (_, client, _):
        other = delta_table(tmp_path / "other", 1)
        with pytest.raises(RefusedError, match="'sales' exists already"):
            client.attach("sales", delta=str(other))
        with pytest.raises(CallerError, match="DNS label"):
            client.attach("Sales!", delta=str(other))


def test_what_is_no_delta_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with serving() as gateway, gateway.client() as client:
        with pytest.raises(NeveError):
            client.attach("sales", delta=str(tmp_path / "empty"))
        with pytest.raises(CallerError, match=r"catalog\.options_file"):
            client.attach("sales", delta="s3://bucket/sales?endpoint_override=x")
        assert client.tables() == []


def test_a_location_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    folder = delta_table(tmp_path / "sales", 1)
    elsewhere = (str(tmp_path / "other"),)
    with serving(locations=elsewhere) as gateway, gateway.client() as client:
        with pytest.raises(RefusedError, match=r"gateway\.locations"):
            client.attach("sales", delta=str(folder))
        assert client.tables() == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"planner": "budgeted"}, "'budgeted'"),
        ({"planner": "size-tiered"}, "choose one of bin-pack, ratio"),
        ({"directory_guard": True}, "directory_guard"),
        ({"manifest_interval_s": 60}, "manifest_interval_s"),
        ({"triggers": ["analysis"]}, "analysis"),
        ({"ttl_s": "1d"}, "time_column"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, settings: dict[str, object], says: str
) -> None:
    with attached(tmp_path / "sales") as (_, client, _):
        with pytest.raises(CallerError, match=says):
            client.set("sales", settings)
        other = delta_table(tmp_path / "other", 1)
        with pytest.raises(CallerError, match=says):
            client.attach("other", delta=str(other), settings=settings)
        assert client.set("sales", {"planner": "ratio"}).settings["planner"] == "ratio"


def test_verbs_that_need_a_table_of_the_service_name_the_engine(tmp_path: Path) -> None:
    with attached(tmp_path / "sales") as (_, client, _):
        calls = {
            "deltalake or Spark": [
                lambda: client.append("sales", ROWS),
                lambda: client.add_files("sales", ["x.parquet"]),
                lambda: client.compact("sales", delete_where="amount = 1"),
                lambda: client.compact("sales", set="amount = 1"),
            ],
            "DuckDB or Polars": [
                lambda: client.scan("sales"),
                lambda: client.manifest("sales"),
            ],
            "its own engine": [
                lambda: client.set("sales", add_columns={"x": "int64"}),
                lambda: client.fsck("sales"),
                lambda: client.gc("sales"),
            ],
            "neve detach sales": [
                lambda: client.drop("sales"),
                lambda: client.drop("sales", delete_files=True),
            ],
            "need no analysis": [lambda: client.analyze("sales")],
            "partitions": [lambda: client.split("sales", at="1")],
        }
        for says, refused in calls.items():
            for call in refused:
                with pytest.raises(RefusedError, match=says) as caught:
                    call()
                assert caught.value.code == "lake", says
        with pytest.raises(RefusedError, match="log"):
            client.backup(tmp_path / "archive", ["sales"])


def test_a_request_waits_until_the_log_was_read(tmp_path: Path) -> None:
    with attached(tmp_path / "sales") as (_, client, store):
        table = client.describe("sales").id

        def mirror() -> None:
            step = MirrorFiles(table=table, after="", token="m1", version=5)
            applied(asyncio.run(store.apply(step)))

        later = threading.Timer(0.6, mirror)
        later.start()
        client.compact("sales")
        (state,) = asyncio.run(store.mirrors([table]))
        assert state.head is not None, "a request that knows no files would be done at once"
        later.join()


def test_a_log_that_is_not_read_is_said_to_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MIRROR_WAIT_MAX_S", 0.0)
    with attached(tmp_path / "sales") as (gateway, _, _):
        answer = httpx.post(
            f"{gateway.url}/v1/tables/sales/compactions",
            json={},
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        assert answer.status_code == 503
        assert "has not been read" in answer.json()["detail"]


def test_a_detached_table_is_gone_and_its_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "sales"
    with attached(folder) as (_, client, _):
        before = sorted(folder.rglob("*"))
        assert client.detach("sales").name_free_at_s is None
        assert client.tables() == []
        assert sorted(folder.rglob("*")) == before
        client.attach("sales", delta=str(folder))
        assert client.describe("sales").lake is not None
        client.create_table("own", str(tmp_path / "own"), schema=ROWS.schema)
        with pytest.raises(CallerError, match="is no lake table"):
            client.detach("own")


def test_options_of_storages_come_from_a_file(tmp_path: Path) -> None:
    options = tmp_path / "options.toml"
    options.write_text('["s3://other"]\naws_region = "x"\n')
    missing = {"options_file": str(tmp_path / "missing.toml")}
    folder = delta_table(tmp_path / "sales", 1)
    with serving(catalog=missing) as gateway, gateway.client() as client:
        with pytest.raises(NeveError, match=r"missing\.toml cannot be read"):
            client.attach("sales", delta=str(folder))
        assert client.tables() == []
    with serving(catalog={"options_file": str(options)}) as gateway, gateway.client() as client:
        client.attach("sales", delta=str(folder))


def test_the_command_line_attaches_lists_and_detaches(tmp_path: Path) -> None:
    folder = delta_table(tmp_path / "sales")
    store = MemoryStore(SystemClock())
    with serving(store=store) as gateway:
        neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
        words = ("attach", "sales", "--delta", str(folder))
        neve.run(*words, "--dry-run", says="1 job would be planned: 6 files")
        neve.run(*words, "--dry-run", says="nothing is attached: this was a dry run")
        neve.run(*words, says="attached sales; the service reads its log and plans it")
        neve.run(*words, code=3, says="exists already")
        neve.run("table", "list", says="delta, not read")
        neve.run("table", "describe", "sales", says="delta, not read")
        neve.run("table", "drop", "sales", "--yes", code=3, says="neve detach sales")
        neve.run("detach", "sales", "--yes", says="detached sales")
        assert neve.json("table", "list") == []


def test_attach_and_detach_are_in_the_audit(tmp_path: Path) -> None:
    with attached(tmp_path / "sales") as (_, client, _):
        client.detach("sales")
        routes = [entry.action for entry in client.audit()]
        assert "POST /v1/tables/{table}/detach" in routes
        assert "POST /v1/tables/{table}/attach" in routes


def test_an_operation_is_run_or_shown_for_a_lake_table_only(tmp_path: Path) -> None:
    with attached(tmp_path / "sales") as (gateway, client, _):
        table = client.describe("sales")
        run = client.maintain("sales", "vacuum", dry_run=True, files=7)
        assert (run.state, run.files, run.spared) == (
            "dry-run", 2, {"younger than the retention": 3},
        )  # fmt: skip
        assert client.maintain("sales", "checkpoint").state == "waiting"
        assert [words[1:] for words in gateway.coordinator.told if words[0] == "maintain"] == [
            (table.id, "vacuum", "True", "7"),
            (table.id, "checkpoint", "False", "None"),
        ]
        with pytest.raises(CallerError, match="expected one of checkpoint, log-cleanup, vacuum"):
            client.maintain("sales", "optimize")
        with pytest.raises(CallerError, match="files"):
            client.maintain("sales", "vacuum", files=0)
        client.create_table("plain", str(tmp_path / "plain"), schema=ROWS.schema)
        with pytest.raises(CallerError, match="'plain' is no lake table"):
            client.maintain("plain", "vacuum")


def test_operations_are_turned_on_for_lake_tables_only(tmp_path: Path) -> None:
    with attached(tmp_path / "sales") as (_, client, _):
        client.set(
            "sales", {"lake_maintenance": "checkpoint,vacuum", "lake_maintenance_interval": "12h"}
        )
        settings = client.describe("sales").settings
        assert list(settings["lake_maintenance"]) == ["checkpoint", "vacuum"]
        assert settings["lake_maintenance_interval_s"] == 43_200
        for name in ("optimize", "expire-snapshots"):
            with pytest.raises(CallerError, match="lake_maintenance"):
                client.set("sales", {"lake_maintenance": name})
        client.create_table("plain", str(tmp_path / "plain"), schema=ROWS.schema)
        with pytest.raises(CallerError, match="setting lake_maintenance is for lake tables"):
            client.set("plain", {"lake_maintenance": "vacuum"})


# ----------------------------------------------------------------------------------------- Iceberg

NUMBERED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "day", StringType(), required=False),
)
BY_DAY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"), spec_id=0)


def iceberg_table(folder: Path, **properties: str) -> IcebergTable:
    """Write an Iceberg table with six small files in two partitions."""
    catalog = sqlite_catalog(folder)
    table = IcebergTable.create(catalog, "events", NUMBERED, BY_DAY, properties)
    for first in range(3):
        table.append(pa.table({"id": [first, first + 10], "day": ["a", "b"]}))
    return table


def with_catalog(folder: Path) -> dict[str, dict[str, str]]:
    return {"prod": {"type": "sql", **sqlite_properties(folder)}}


def test_an_iceberg_table_is_attached_by_its_catalog(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path, **{"write.target-file-size-bytes": "1048576"})
    table.delete([1, 11], single=False)
    table.delete_equal(pa.table({"id": [2]}))
    with serving(catalogs=with_catalog(tmp_path)) as gateway, gateway.client() as client:
        shown = client.attach("events", iceberg="prod:db.events", dry_run=True)
        assert (shown.format, shown.uri, shown.refusal) == ("iceberg", "prod:db.events", "")
        assert (shown.version, shown.partition_by) == (5, ("spec", "partition"))
        assert (shown.tablets, shown.files, shown.rows, shown.deleted_rows) == (2, 6, 6, 2)
        assert shown.files_with_deletes == 6
        assert (shown.jobs, shown.planned_files) == (2, 6)
        assert client.tables() == []

        client.attach("events", iceberg="prod:db.events")
        table_view = client.describe("events")
        assert table_view.lake is not None
        assert table_view.lake.uri == "prod:db.events"
        assert table_view.location == (tmp_path / "warehouse/db/events").as_uri()
        assert [column.name for column in table_view.schema] == ["id", "day"]
        assert table_view.settings["target_bytes"] == 1024**2
        with pytest.raises(RefusedError, match="two tables may not share files"):
            client.attach("again", iceberg="prod:db.events")
        for operation in ("checkpoint", "optimize"):
            with pytest.raises(CallerError, match="expected one of expire-snapshots"):
                client.maintain("events", operation)
        client.set("events", {"lake_maintenance": "expire-snapshots"})
        with pytest.raises(CallerError, match="vacuum: not for table 'events' of the format ice"):
            client.set("events", {"lake_maintenance": "vacuum"})
        with pytest.raises(CallerError, match="start before end"):
            client.compact("events", start='[1, "day=a"]', end='[0, "day=b"]')
        client.detach("events")


def test_an_iceberg_table_of_another_catalog_or_place_is_refused(tmp_path: Path) -> None:
    iceberg_table(tmp_path / "in")
    catalogs = with_catalog(tmp_path / "in")
    elsewhere = (str(tmp_path / "other"),)
    with serving(catalogs=catalogs, locations=elsewhere) as gateway, gateway.client() as client:
        with pytest.raises(RefusedError, match=r"gateway\.locations"):
            client.attach("events", iceberg="prod:db.events")
        with pytest.raises(NeveError, match=r"'test' is not configured \(configured: prod\)"):
            client.attach("events", iceberg="test:db.events")
        with pytest.raises(CallerError, match=r"CATALOG:NAMESPACE\.TABLE"):
            client.attach("events", iceberg="prod:events")
        with pytest.raises(ValueError, match="either delta or iceberg"):
            client.attach("events")
        assert client.tables() == []


def test_secrets_of_a_catalog_come_from_the_file_of_options(tmp_path: Path) -> None:
    iceberg_table(tmp_path)
    options = tmp_path / "options.toml"
    uri = sqlite_properties(tmp_path)["uri"]
    options.write_text(f'[prod]\nuri = "{uri}"\n')
    catalog, catalogs = {"options_file": str(options)}, {"prod": {"type": "sql"}}
    with serving(catalog=catalog, catalogs=catalogs) as gateway, gateway.client() as client:
        client.attach("events", iceberg="prod:db.events")
        shown = {setting.name: setting.text for setting in client.config()}
        assert shown["catalogs.prod.type"] == "sql"
        assert uri not in shown.values()


def test_the_command_line_attaches_an_iceberg_table(tmp_path: Path) -> None:
    iceberg_table(tmp_path)
    with serving(store=MemoryStore(SystemClock()), catalogs=with_catalog(tmp_path)) as gateway:
        neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
        neve.run("attach", "events", "--iceberg", "prod:db.events", says="attached events")
        neve.run("table", "describe", "events", says="iceberg, not read")
        neve.run("attach", "more", code=2, says="give either --delta or --iceberg")
