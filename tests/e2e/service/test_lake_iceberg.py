"""An Iceberg table of other writers, compacted in place: no row is lost, doubled or back.

Each test compares the table as independent readers see it with the rows that its writers have
acknowledged: DuckDB, and PyIceberg while the table has no equality deletes.
"""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus

from tests.support.iceberg_tables import IcebergTable, sqlite_catalog
from tests.support.independent_reader import independent_reader
from tests.support.lake_writers import WrittenTable, writing
from tests.support.s3_process import AGED
from tests.support.s3_server import S3Server
from tests.support.shell import Shell
from tests.support.stack import COMPACTORS, SETTINGS, Service

pytestmark = [pytest.mark.slow]

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.string())])
DAYS = ("a", "b c")
ROWS = 200
"""Rows of a file."""


class Events(WrittenTable):
    """An Iceberg table, and the rows that its writers have acknowledged."""

    crowd_pause_s = 0.05

    def __init__(
        self,
        service: Service,
        name: str,
        objects: S3Server | None = None,
        seed: int = 1,
        **options: Any,
    ) -> None:
        """Create a table on this machine, or in an object store; options are those of PyIceberg."""
        super().__init__(service, name)
        self.objects = objects
        self.catalog = "cloud" if objects else "prod"
        in_s3 = {"warehouse": "s3://tables/iceberg", **objects.properties} if objects else None
        catalog = sqlite_catalog(service.folder / "iceberg", self.catalog, in_s3)
        self.lake = IcebergTable.create(catalog, name, SCHEMA, **options)
        with self.lake.table.update_spec() as update:
            update.add_identity("day")
        self.chance = Random(seed)
        self.rows: dict[int, str] = {}
        """Day of each row by id."""
        self._next = 0

    def append(self, count: int = ROWS) -> None:
        """Append a file to one of the partitions."""
        ids = range(self._next, self._next + count)
        day = self.chance.choice(DAYS)
        texts = [f"row {row}" for row in ids]
        self.lake.append(pa.table({"id": ids, "text": texts, "day": [day] * count}))
        self._next += count
        self.rows |= dict.fromkeys(ids, day)

    def crowd(self) -> None:
        """Append one row."""
        self.append(1)

    def _chosen(self, share: float) -> set[int]:
        return set(self.chance.sample(sorted(self.rows), max(1, int(share * len(self.rows)))))

    def _forget(self, gone: set[int]) -> None:
        self.rows = {row: day for row, day in self.rows.items() if row not in gone}

    def delete(self, share: float = 0.05) -> None:
        """Delete some rows by position, in turn with one delete file or several."""
        gone = self._chosen(share)
        self.lake.delete(gone, single=self.chance.random() < 0.5)
        self._forget(gone)

    def delete_by_value(self) -> None:
        """Delete some rows by value, and write one of them again."""
        gone = self._chosen(0.02)
        again = min(gone)
        self.lake.delete_equal(pa.table({"id": sorted(gone)}))
        day, text = self.rows[again], f"row {again}"
        self._forget(gone)
        self.lake.append(pa.table({"id": [again], "text": [text], "day": [day]}))
        self.rows[again] = day

    def delete_by_copy(self) -> None:
        """Delete a row by writing its file anew."""
        (gone,) = self._chosen(0)
        self.lake.delete_by_copy(f"id == {gone}")
        self._forget({gone})

    def attach(self) -> None:
        """Let the service compact the table."""
        self.service.client.attach(self.name, iceberg=f"{self.catalog}:{self.lake.identifier}")

    def manifests(self) -> set[str]:
        """Return the manifests of the head."""
        head = self.lake.table.current_snapshot()
        assert head is not None
        return {manifest.manifest_path for manifest in head.manifests(self.lake.table.io)}

    def paths(self) -> set[str]:
        """Return the live data files, relative to the table."""
        prefix = f"{self.lake.table.location()}/"
        return {path.removeprefix(prefix) for path in self.lake.live()}

    @property
    def expected(self) -> Counter[tuple[object, ...]]:
        """The rows that readers must see."""
        return Counter((row, f"row {row}", day) for row, day in self.rows.items())

    def check(self, *, by_value: bool = False) -> None:
        """Compare the rows that readers see with those that were acknowledged."""
        options = self.objects.environ if self.objects else None
        seen = independent_reader().iceberg_rows(
            self.lake.metadata, "id", "text", "day", options=options
        )
        assert seen == self.expected
        if not by_value:
            assert self.read() == self.expected

    def read(self, snapshot_id: int | None = None) -> Counter[tuple[object, ...]]:
        """Return the rows of a snapshot as PyIceberg reads them."""
        rows = self.lake.table.scan(snapshot_id=snapshot_id).to_arrow()
        columns = rows.select(["id", "text", "day"]).to_pydict().values()
        return Counter(zip(*columns, strict=True))

    def stored(self) -> set[str]:
        """Return the URIs of the service's own data files in the table's folder."""
        folder = Path(self.lake.table.location().removeprefix("file://"))
        return {path.as_uri() for path in folder.rglob("neve-*.parquet") if "data" in path.parts}

    def named(self) -> set[str]:
        """Return every data file that some snapshot has added."""
        table = self.lake.table
        return {
            Path(entry.data_file.file_path.removeprefix("file://")).as_uri()
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            if entry.status != ManifestEntryStatus.DELETED
        }


def shell(service: Service) -> Shell:
    """Return the command line, for the service."""
    url, token = service.stack.gateway_url, service.stack.token
    return Shell(service.folder / "home", NEVE_URL=url, NEVE_TOKEN=token)


def filled(service: Service, name: str, objects: S3Server | None = None) -> Events:
    events = Events(service, name, objects)
    events.fill()
    return events


def test_a_table_is_compacted_beside_its_writers(service: Service) -> None:
    events = filled(service, "events")
    head = events.lake.table.current_snapshot()
    assert head is not None
    before = events.read(head.snapshot_id)
    events.attach()
    with writing(events.append, events.delete, events.append, events.delete_by_copy):
        service.wait("three commits", lambda: events.commits() >= 3)
    events.wait_until_at_rest()
    events.check()
    # The planner `bin-pack` lets four small files of a partition rest.
    assert len(events.lake.live()) <= 4 * len(DAYS)
    # The snapshot before the first compaction is still there, long after its files were replaced.
    time.sleep(3 * SETTINGS.coordinator.garbage_grace_s)
    assert events.read(head.snapshot_id) == before
    # Outputs that no version has are deleted after a version that follows their grace.
    events.wait_until_clean()
    service.client.detach(events.name)
    assert events.read(head.snapshot_id) == before


def test_old_snapshots_expire(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files stay for now: the storage knows that they are new, whatever the writer says."""
    with monkeypatch.context() as past:
        now_s = time.time()
        past.setattr("pyiceberg.table.snapshots.time.time", lambda: now_s - 10 * 86_400)
        events = Events(service, "expiring")
        for _ in range(3):
            events.append()
    *old, newest = (snapshot.snapshot_id for snapshot in events.lake.table.snapshots())
    events.attach()
    neve = shell(service)
    neve.run("maintain", "expiring", "expire-snapshots", "--dry-run", says="without 2 snapshots")
    assert len(events.lake.table.snapshots()) == len(old) + 1
    neve.run("maintain", "expiring", "expire-snapshots", says="metadata without 2 snapshots")
    assert [snapshot.snapshot_id for snapshot in events.lake.table.snapshots()] == [newest]
    events.check()
    rows = service.client.maintenance("expiring").operations
    (row,) = [row for row in rows if row.kind == "expire-snapshots"]
    assert "the last run wrote the metadata without 2 snapshots" in row.why
    neve.run("maintain", "expiring", "vacuum", code=2, says="expected one of expire-snapshots")
    service.client.detach(events.name)
    events.check()


class Aged(Events):
    """A table with files that nothing names, and with another table of the catalog in its folder.

    By the clock of their storage, all files are four days old: nothing stays for its age.
    """

    def __init__(self, service: Service, objects: S3Server) -> None:
        self.folder, self.store = f"{AGED}/tidied", objects
        super().__init__(service, "tidied", objects, location=f"s3://{self.folder}")
        self.fill()
        catalog, location = self.lake.catalog, f"s3://{self.folder}/in"
        self.inner = IcebergTable.create(catalog, "inner", SCHEMA, location=location)
        self.inner.append(pa.table({"id": [1], "text": ["row 1"], "day": ["a"]}))
        self.put("in/data/dead.parquet")
        self.of_inner = objects.stored(f"{self.folder}/in")
        self.orphans = {self.put("data/day=a/dead.parquet"), self.put("metadata/dead-m0.avro")}
        self.put("data/notes.txt")
        self.neve = shell(service)

    def put(self, path: str) -> str:
        """Store a file that nothing names."""
        with self.lake.table.io.new_output(f"s3://{self.folder}/{path}").create() as stream:
            stream.write(b"x")
        return path

    def whole(self) -> set[str]:
        """Return all files of the folder."""
        return self.store.stored(self.folder)

    def maintain(self, operation: str, *words: str) -> Any:
        return self.neve.json("maintain", self.name, operation, *words)

    def last_run(self, operation: str) -> str:
        """Return what `neve ops` shows of an operation."""
        rows = self.service.client.maintenance(self.name).operations
        (row,) = [row for row in rows if row.kind == operation]
        return row.why

    def sweep(self) -> None:
        """Delete the orphans, and nothing else."""
        before = self.whole()
        self.neve.run("table", "set", self.name, "lake_orphan_age=5d")
        young = self.maintain("orphan-files", "--dry-run")
        count = len(self.orphans) + len(self.of_inner)
        assert (young["files"], young["spared"]["younger than the retention"]) == (0, count)
        self.neve.run("table", "set", self.name, "lake_orphan_age=3d")
        dry = self.maintain("orphan-files", "--dry-run")
        assert (dry["state"], {*dry["paths"]}) == ("dry-run", self.orphans)
        assert dry["spared"]["of another table in this folder"] == len(self.of_inner)
        assert dry["spared"]["hidden, or of another kind"] == 1
        assert self.whole() == before

        first = self.maintain("orphan-files")
        assert (first["state"], first["files"]) == ("waiting", len(self.orphans))
        assert first["why"] == "files are deleted after 1s, unless a version names them by then"
        self.service.wait("the orphans' end", lambda: self.whole() == before - self.orphans)
        self.service.wait(
            "the run's end", lambda: "deleted 2 files" in self.last_run("orphan-files")
        )

    def merge(self) -> None:
        """Merge the manifests."""
        before = self.whole(), self.manifests()
        dry = self.maintain("manifests", "--dry-run")
        assert dry["created"] == f"version with 2 manifests in place of {len(before[1])}"
        assert (self.whole(), self.manifests()) == before
        done = self.maintain("manifests")
        assert (done["state"], done["created"]) == ("done", dry["created"])
        assert len(self.manifests()) == 2
        assert "wrote the version with 2 manifests" in self.last_run("manifests")


def test_orphans_go_and_manifests_are_merged_while_a_job_runs(
    service: Service, objects: S3Server
) -> None:
    aged = Aged(service, objects)
    with service.halted(*map(service.driver, COMPACTORS)):
        aged.attach()
        job = service.wait("a job", lambda: next(iter(service.client.jobs()), None))
        assert job.table == aged.name
        folder = posixpath.dirname(job.files[0])
        output = aged.put(f"{folder}/neve-{job.id}-{job.attempt}-0.parquet")
        aged.sweep()
        assert output in aged.whole()
        aged.merge()
        aged.check()
    aged.wait_until_at_rest()
    # The job that ran meanwhile commits, or another one if a halted driver was taken for dead.
    assert aged.commits() >= 1
    aged.check()
    assert objects.stored(f"{aged.folder}/in") == aged.of_inner
    assert aged.inner.table.scan().to_arrow().num_rows == 1
    service.client.detach(aged.name)


@pytest.mark.parametrize("storage", [pytest.param("disk", marks=pytest.mark.long), "s3"])
def test_rows_are_deleted_by_value_beside_compactions(
    service: Service, objects: S3Server, storage: str
) -> None:
    """The service finds the object store by its own environment."""
    events = filled(service, f"by-value-{storage}", objects if storage == "s3" else None)
    location = events.lake.table.location()
    assert location.startswith("s3://tables/" if storage == "s3" else "file://")
    events.attach()
    with writing(events.append, events.delete_by_value, events.delete):
        service.wait("two commits", lambda: events.commits() >= 2)
    events.wait_until_at_rest()
    events.check(by_value=True)
    service.client.compact(events.name).wait()
    # Equality deletes apply to no file any more, so PyIceberg reads the table again.
    events.check()
    service.client.detach(events.name)


@pytest.mark.long
def test_a_compactor_is_killed_while_it_publishes(service: Service) -> None:
    filled(service, "killed").outlive_its_compactor()


@pytest.mark.long
def test_the_coordinator_is_killed_beside_writers(service: Service) -> None:
    filled(service, "leader").outlive_the_coordinator()
