"""How files in an object store are reached: as the catalog lends or says, or by environment."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from common.errors import CompactionError
from common.lake.iceberg.source import RENEWED_S, open_iceberg, renewal_s
from common.lake.mirror import mirrored_file
from common.lake.open import CatalogAccess
from common.metadata.changes import CommitAttempt, MirrorFiles
from common.model.file import DataFile, MirroredFiles
from common.model.table import LakeTable, Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet import location as locations
from common.parquet.location import existing_files, open_location, s3_filesystem
from compactor.core import CommitApplied
from compactor.lake_commit import LakePublisher, Loan
from compactor.rewrite.lake import lake_result, make_lake_plan, read_lake_inputs, rewrite_lake
from compactor.rewrite.memory_budget import TASK_BYTES
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.verify import verify
from compactor.service import TableStorage
from tests.support.assignments import an_assignment
from tests.support.iceberg_catalogs import CatalogSite, rest_site, sqlite_site
from tests.support.iceberg_race import SCHEMA
from tests.support.iceberg_tables import IcebergTable
from tests.support.lent_access import LendingDoor, lending_door
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import ManualClock
from tests.support.s3_server import REGION, VARIABLES, s3_server
from tests.support.store_harness import Harness, applied, reserve

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BUCKET = "lake"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def door() -> Iterator[LendingDoor]:
    with s3_server() as server, lending_door(server) as made:
        server.create_bucket(BUCKET)
        yield made


@pytest.fixture
def site(
    door: LendingDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CatalogSite]:
    """Return a catalog that lends, in a service whose own credentials the store does not take."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    own = {"AWS_ACCESS_KEY_ID": "service", "AWS_SECRET_ACCESS_KEY": "service"}
    more = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{door.port}", "AWS_REGION": REGION}
    for name, value in (own | more).items():
        monkeypatch.setenv(name, value)
    door.life_s = 3600.0
    door.refused.clear()
    storage = {**door.access("owner"), "s3.endpoint": door.server.endpoint}
    with rest_site(tmp_path, {**storage, "warehouse": f"s3://{BUCKET}/warehouse"}) as made:
        assert made.rest is not None
        made.rest.lends = lambda: door.lend(time.time())
        yield made


def owner_of(site: CatalogSite) -> SqlCatalog:
    """Return the catalog with the owner's access to the store."""
    assert site.rest is not None
    site.rest.inner.create_namespace_if_not_exists("db")
    return site.rest.inner


class Job:
    """A table of four files, and the service's access to it."""

    def __init__(self, site: CatalogSite, folder: Path) -> None:
        self.site, self.folder = site, folder
        name = f"t{uuid.uuid4().hex}"
        self.writer = IcebergTable.create(owner_of(site), name, SCHEMA)
        for first in range(0, 40, 10):
            self.writer.append(pa.table({"id": range(first, first + 10), "p": ["x"] * 10}))
        self.uri = f"prod:db.{name}"
        properties = {"type": "rest", "uri": site.properties["uri"]}
        self.access = CatalogAccess(named={"prod": properties}, locations=("s3://",))
        self.source = open_iceberg(self.uri, site.properties)
        self.head = self.source.load()
        self.table = Table(
            id="t1",
            name="sales",
            location=self.writer.table.location(),
            schema=self.head.columns,
            partition_by=(),
            lake=LakeTable(
                format="iceberg",
                uri=self.uri,
                table_id=self.head.table_id,
                root=self.head.root,
                data_folder="data",
            ),
        )

    def assignment(self, attempt: str) -> Any:
        inputs = tuple(map(mirrored_file, self.head.files.values()))
        made = an_assignment(inputs, attempt=attempt, table=self.table, outputs_max=1)
        prefix = f"data/neve-{attempt}"
        return replace(made, reservation=replace(made.reservation, output_prefix=prefix))

    def rewritten(self, assignment: Any, between: Callable[[], None] = lambda: None) -> Any:
        """Rewrite as the driver does, with each task in a process of its own."""
        loan = Loan.of(assignment, self.access)
        loan.take()
        inputs = read_lake_inputs(assignment, self.access, lambda: None)
        folder = self.folder / assignment.reservation.attempt
        folder.mkdir()
        plan = make_lake_plan(assignment, inputs, str(folder), (TASK_BYTES, 0), lambda: None)
        between()

        def run(_plan: RewritePlan, calls: Sequence[Callable[[], object]]) -> list[Any]:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                parcels = [pickle.dumps(call) for call in calls]
                assert not any(b"secret" in parcel for parcel in parcels)
                return [pool.submit(run_parcel, parcel).result() for parcel in parcels]

        result = rewrite_lake(plan, loan.around(run), 2, small=True)
        between()
        facts = verify(plan.rewrite, result, lambda: False)
        files = tuple(
            DataFile(path=file.path, size_bytes=size_bytes, rows=file.rows)
            for file, (size_bytes, _) in zip(result.files, facts, strict=True)
        )
        between()
        return files, result.counts, lake_result(plan, result, facts)


def run_parcel(parcel: bytes) -> object:
    """Do what a task does."""
    return pickle.loads(parcel)()


@pytest.mark.long
async def test_files_are_reached_with_what_the_catalog_lends(
    site: CatalogSite, door: LendingDoor, tmp_path: Path
) -> None:
    await compact(site, door, tmp_path, lambda: None)
    assert site.rest is not None
    # All files that a process opens share what was lent, besides loads of the protocol.
    assert site.rest.loads <= 15


async def test_lent_credentials_are_renewed_before_they_end(
    site: CatalogSite, door: LendingDoor, tmp_path: Path
) -> None:
    door.life_s = 0.0  # so that they are renewed before each file
    await compact(site, door, tmp_path, door.end_all)


async def compact(
    site: CatalogSite, door: LendingDoor, folder: Path, between: Callable[[], None]
) -> None:
    """Compact a table; between two steps something happens to what was lent."""
    job = Job(site, folder)
    clock = ManualClock()
    memory = MemoryKeyspace(clock)
    harness = Harness("memory", memory, clock)
    table = await harness.table(
        splits=(),
        key=(),
        version_column=None,
        lake=job.table.lake,
        location=job.table.location,
        schema=job.table.schema,
    )
    tablet = TabletId(table.id, PLUS_INFINITY)
    came = tuple(map(mirrored_file, job.head.files.values()))
    change = MirrorFiles(
        table=table.id,
        after="",
        token="t1",
        version=job.head.version,
        files={tablet.end: MirroredFiles(came=came, went=())},
    )
    applied(await harness.apply(change))
    wanted = replace(
        reserve(tablet, "att-1", *(file.path for file in came)),
        output_prefix="data/neve-att-1",
        outputs_max=1,
    )
    reservation = applied(await harness.apply(wanted)).reservation
    assert reservation is not None
    job.table = table
    assignment = replace(job.assignment("att-1"), reservation=reservation, table=table)
    files, counts, packed = job.rewritten(assignment, between)
    between()
    locations._lent.pop(table.location)  # The compactor publishes in another process.
    logged: list[str] = []
    publisher = LakePublisher(
        store=harness.store,
        files=TableStorage(harness.store.store_id, clock),
        clock=clock,
        log=lambda event, **fields: logged.append(f"{event} {fields}"),
        catalog=job.access,
    )
    commit = CommitAttempt(tablet=tablet, attempt="att-1", outputs=files, counts=counts)
    answer = await publisher.publish(assignment, commit, packed)

    assert isinstance(answer, CommitApplied), (answer, logged)
    rows = job.writer.table.scan().to_arrow()["id"].to_pylist()
    assert sorted(rows) == list(range(40))
    assert len(job.source.load().files) == 1
    assert not door.refused, door.refused
    values = memory.values
    stored = " ".join(str(values.find(key)) for key in [*values.keys()])
    assert "secret" not in stored + " ".join(logged)


def test_the_service_cannot_reach_files_without_a_loan(
    site: CatalogSite, door: LendingDoor, tmp_path: Path
) -> None:
    job = Job(site, tmp_path)
    location = f"s3://{BUCKET}/warehouse/elsewhere"
    with pytest.raises(CompactionError):
        existing_files(open_location(location), ["a.parquet"])
    assert door.refused["service"] > 0
    assert job.source.files(BUCKET) is not None


@pytest.mark.parametrize(
    "own", [(), ("s3.region",), ("s3.endpoint",)], ids=["nothing", "the region", "the endpoint"]
)
def test_what_a_catalog_does_not_say_comes_from_the_environment(
    door: LendingDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    server = door.server
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"} if "s3.endpoint" in own else {}
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in (server.environ | nowhere).items():
        monkeypatch.setenv(name, value)
    storage = {"warehouse": f"s3://{BUCKET}/{uuid.uuid4().hex}", **server.properties}
    writer = IcebergTable.create(sqlite_site(tmp_path, storage).client(), "sales", SCHEMA)
    (path,) = writer.append(pa.table({"id": [1, 2, 3], "p": ["x"] * 3}))
    writer.delete([2])
    given = {name: server.properties[name] for name in own}
    uri = f"sqlite:///{tmp_path}/catalog.db"
    source = open_iceberg("prod:db.sales", {"type": "sql", "uri": uri, **given})

    (file,) = source.load().files.values()
    assert source.positions(file).tolist() == [1]
    # Data files are reached as metadata and delete files are.
    files = source.files(BUCKET)
    assert (files is None) == (not own)
    storage_of_data = files or s3_filesystem(BUCKET, os.environ)
    info = storage_of_data.get_file_info(path.removeprefix("s3://"))
    assert info.size == file.size_bytes


def test_credentials_are_renewed_after_half_of_their_life() -> None:
    assert renewal_s({}, 100.0) == 100.0 + RENEWED_S
    ends = "s3.session-token-expires-at-ms"
    assert renewal_s({ends: "200000"}, 100.0) == 150.0
    assert renewal_s({ends: "99000000"}, 100.0) == 100.0 + RENEWED_S
    assert renewal_s({ends: "soon"}, 100.0) == 100.0 + RENEWED_S
