"""An Iceberg table with an attempt on three of its four files, for races with other writers."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from common.errors import CompactionError, UnavailableError
from common.lake import rules
from common.lake.iceberg.source import IcebergSource, open_iceberg
from common.lake.source import Answer, Commit, Look, Snapshot
from tests.support.iceberg_catalogs import CatalogSite
from tests.support.iceberg_rows import spec_rows
from tests.support.iceberg_tables import IcebergTable
from tests.support.race_attempt import LakeAttempt

ATTEMPT = "0123456789abcdef"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", StringType()))
BY_P = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))


class Files:
    """Data files of a table, for an attempt."""

    def __init__(self, writer: IcebergTable, source: IcebergSource) -> None:
        self.writer, self.source = writer, source

    def _uri(self, path: str) -> str:
        return path if "://" in path else f"{self.writer.table.location()}/{path}"

    def stored(self, path: str) -> pa.Table:
        return self.writer.stored(self._uri(path))

    def put(self, path: str, data: bytes) -> None:
        with self.writer.table.io.new_output(self._uri(path)).create() as stream:
            stream.write(data)

    def stats(self, head: Snapshot, data: bytes, _rows: int) -> str:
        return self.source.statistics(head, pq.read_metadata(pa.BufferReader(data)))


class Race:
    """A table of four files with 10 rows each, and an attempt on three of them.

    Output 0 has the rows of two files, output 1 those of the third; the fourth file stays.
    """

    def __init__(self, site: CatalogSite, spec: PartitionSpec = BY_P) -> None:
        self.site = site
        self.catalog = site.client()
        self.name = f"t{uuid.uuid4().hex}"
        self.writer = IcebergTable.create(self.catalog, self.name, SCHEMA, spec)
        for first in range(0, 40, 10):
            self.append(first)
        self.source = self.opened()
        self.attempt = LakeAttempt(ATTEMPT, self.source, Files(self.writer, self.source))
        self.rows = Counter(range(40))
        self.head = self.source.load()
        self.paths = sorted(self.head.files, key=lambda path: self.head.files[path].sequence)

    def opened(self) -> IcebergSource:
        """Return a source of another process."""
        return open_iceberg(f"prod:db.{self.name}", self.site.properties)

    @property
    def table(self) -> Table:
        return self.writer.table

    @property
    def last(self) -> int:
        """The last sequence number that was given."""
        return self.table.metadata.last_sequence_number

    def append(self, first: int, count: int = 10) -> None:
        self.writer.append(pa.table({"id": range(first, first + count), "p": ["x"] * count}))

    def appended(self, first: int, count: int = 10) -> None:
        """Append rows that the table has to have."""
        self.append(first, count)
        self.rows.update(range(first, first + count))

    def delete(self, *ids: int, single: bool = True) -> None:
        """Delete rows by position."""
        self.writer.delete(ids, single=single)
        self.rows.subtract(ids)

    def delete_equal(self, *ids: int) -> None:
        """Delete rows by value, whatever file has them."""
        self.writer.delete_equal(pa.table({"id": ids}))
        for number in ids:
            self.rows[number] = 0

    def set_main(self, snapshot_id: int) -> None:
        """Let the branch go to another snapshot, as a rollback does."""
        table = self.table
        self.catalog.commit_table(
            table,
            (AssertRefSnapshotId(ref="main", snapshot_id=table.metadata.current_snapshot_id),),
            (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id),),
        )

    def plan(self, *groups: Iterable[int]) -> rules.Publishing:
        """Rewrite files, by number; each group gives an output."""
        self.head = self.source.load()
        chosen = groups or ((0, 1), (2,))
        return self.attempt.rewrite(
            self.head, [[self.paths[number] for number in group] for group in chosen]
        )

    def publish(self, state: rules.Publishing) -> rules.EndPublishing:
        return self.attempt.publish(state)

    def between(self, kind: type[rules.PublishStep], act: Callable[[], Any], nth: int = 1) -> None:
        """Let another writer in before the nth step of a kind."""

        def act_once(step: rules.PublishStep) -> None:
            steps = [other for other in self.attempt.steps if isinstance(other, kind)]
            if isinstance(step, kind) and len(steps) == nth:
                act()

        self.attempt.between = act_once

    def require_rows(self) -> None:
        """Check that every reader sees exactly the rows that the writers left."""
        expected = +self.rows
        table = self.table
        assert spec_rows(table, "id") == Counter({(row,): n for row, n in expected.items()})
        contents = {file.content for file in self.live_files()}
        if DataFileContent.EQUALITY_DELETES not in contents:
            assert Counter(table.scan().to_arrow()["id"].to_pylist()) == expected

    def live_files(self) -> list[Any]:
        """Return all live files of the head, delete files too."""
        return [
            entry.data_file
            for entry in self.entries()
            if entry.status != ManifestEntryStatus.DELETED
        ]

    def entries(self) -> list[Any]:
        """Return all entries of the head."""
        table = self.table
        snapshot = table.current_snapshot()
        return [
            entry
            for manifest in (snapshot.manifests(table.io) if snapshot else ())
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        ]

    def live(self) -> set[str]:
        """Return which inputs and outputs are live, by number."""
        names = {path: f"input {number}" for number, path in enumerate(self.paths)}
        folder = self.paths[0].rpartition("/")[0]
        names |= {
            f"{folder}/part-{ATTEMPT}-{number}.parquet": f"output {number}" for number in (0, 1)
        }
        return {names[path] for path in self.source.load().files if path in names}


def stale(race: Race) -> Commit:
    """Return a commit that was validated, and was not sent in time."""
    late: list[Commit] = []
    source = race.opened()
    attempt = LakeAttempt(ATTEMPT, source, Files(race.writer, source))

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(source, name)

        def send(self, commit: Commit) -> Answer:
            late.append(commit)
            raise UnavailableError("the request is on its way")

        def look(self, *_: object) -> Any:
            raise InterruptedError

    attempt.source = Late()  # type: ignore[assignment]  # by attributes
    with pytest.raises(InterruptedError):
        attempt.publish(attempt.rewrite(race.head, [race.paths[:2], race.paths[2:3]]))
    return late[0]


def require_refused(race: Race, commit: Commit) -> None:
    """Send a commit that must not arrive."""
    try:
        answer = race.opened().send(commit)
    except CompactionError:
        answer = Answer.UNKNOWN
    assert answer is not Answer.COMMITTED
    assert race.opened().look(ATTEMPT, [output.path for output in commit.outputs], 4).look in {
        Look.ABSENT
    }
    race.require_rows()
