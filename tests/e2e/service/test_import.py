"""An existing directory, imported and compacted in place, read by engines that know no Névé."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from common.model.location_identity import is_guard
from neve.api import ImportReport
from tests.support.living_folder import files_below
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

FILES = 200
DAYS = 5
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.date32())])
PARTITION = ds.partitioning(pa.schema([SCHEMA.field("day")]), flavor="hive")


def written(folder: Path) -> list[tuple[Any, ...]]:
    """Write a hive-partitioned directory of small files with pyarrow; return its rows."""
    every: list[tuple[Any, ...]] = []
    for number in range(FILES // DAYS):
        rows = [
            (number * DAYS + day, f"row {number}", date(2024, 1, 1 + day)) for day in range(DAYS)
        ]
        columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True))
        ds.write_dataset(
            pa.table(columns, schema=SCHEMA),
            folder,
            format="parquet",
            partitioning=PARTITION,
            basename_template=f"{number:03}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
        )
        every += rows
    return sorted(every)


class Lake:
    """A directory that is imported, as the service and as other engines see it."""

    def __init__(self, service: Service) -> None:
        self.client = service.client
        self.folder = service.folder / "lake"
        self.rows = written(self.folder)
        self.pointer = self.folder / "_neve/manifest/latest.json"

    def import_(self, **more: Any) -> ImportReport:
        settings = {"manifest_interval_s": "1s"}
        return self.client.import_table(str(self.folder), "lake", settings=settings, **more)

    def listed(self) -> set[str]:
        return {file.path for file in self.client.files("lake")}

    def stored(self) -> set[str]:
        found = (path.relative_to(self.folder) for path in files_below(self.folder))
        parquet = (path for path in found if path.suffix == ".parquet" and not is_guard(path.name))
        return {str(path) for path in parquet if "manifest" not in path.parts}

    def rests(self) -> bool:
        plan = self.client.plan("lake")
        return not plan.jobs and not plan.running and len(self.listed()) < FILES

    def part_files(self) -> list[str]:
        found = json.loads(self.pointer.read_text("utf-8"))
        return [part["file"] for part in found["parts"]]

    def published(self) -> bool:
        return set(pl.read_parquet(self.part_files())["path"].to_list()) == self.listed()

    def read_by_others(self) -> bool:
        """Assert that Polars and DuckDB read every row; return that they do."""
        files = pl.read_parquet(self.part_files())["file"].to_list()
        frame = pl.scan_parquet(files, hive_partitioning=True, missing_columns="insert")
        assert sorted(frame.select(*SCHEMA.names).collect().rows()) == self.rows
        with duckdb.connect() as duck:
            parts = duck.read_parquet(self.part_files()).select("file").fetchall()
            found = duck.read_parquet([name for (name,) in parts], hive_partitioning=True)
            assert sorted(found.select(", ".join(SCHEMA.names)).fetchall()) == self.rows
        return True


def test_a_directory_is_compacted_in_place_under_the_eyes_of_other_engines(
    service: Service,
) -> None:
    lake = Lake(service)
    assert len(lake.stored()) == FILES
    done = lake.import_()
    assert (done.added, done.state, done.partitions) == (FILES, "paused", DAYS)
    service.wait("first manifest", lambda: lake.pointer.exists() and lake.published())
    assert lake.read_by_others()
    assert lake.client.history("lake") == [], "nothing is compacted before readers are ready"

    again = lake.import_(readers_use_manifest=True)
    assert (again.added, again.already, again.state) == (0, FILES, "live")
    service.wait("rest", lake.rests)
    after = lake.listed()
    assert any(path.startswith("_neve/") and "/day=2024-01-0" in path for path in after), after
    service.wait("manifest of what is there now", lake.published)
    assert lake.read_by_others()
    assert lake.client.manifest("lake")["totals"]["rows"] == len(lake.rows)
    service.wait("end of what was replaced", lambda: lake.stored() == lake.listed())
    assert lake.read_by_others()
    assert lake.client.fsck("lake", deep=True).sound

    lake.client.drop("lake", delete_files=True)
    notes = [lake.folder / "_neve" / name for name in ("table.json", "generation", "manifest")]
    # The collector deletes notes and files in one batch, in no order.
    service.wait("end of the notes", lambda: not any(note.exists() for note in notes))
    service.wait("end of the files", lambda: not lake.stored())
