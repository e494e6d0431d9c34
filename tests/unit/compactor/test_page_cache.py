"""Pages of files that a job has read or written: they leave memory when somebody wants that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs as arrow_fs

from common.errors import ConfigError
from common.parquet.location import Location, open_location
from common.settings import CompactorSettings
from compactor.rewrite.file_io import forget_pages
from compactor.rewrite.memory_budget import PAGE_CACHE_SETTING
from compactor.spark.application import spark_configs
from compactor.spark.driver_protocol import driver_settings
from tests.support.page_cache import resident_bytes

pytestmark = pytest.mark.unit

SIZE_BYTES = 1 << 20


def durable(path: Path) -> Path:
    """Write a file as outputs are: it is on the disk, and still in memory."""
    with path.open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        os.fsync(file.fileno())
    return path


def test_pages_of_the_named_files_leave_memory_and_no_others(tmp_path: Path) -> None:
    ours, other = durable(tmp_path / "ours.parquet"), durable(tmp_path / "other.parquet")
    assert resident_bytes(ours) == resident_bytes(other) == SIZE_BYTES
    before = ours.read_bytes()

    forget_pages(open_location(tmp_path.as_uri()), ["ours.parquet", "gone.parquet"])

    assert (resident_bytes(ours), resident_bytes(other)) == (0, SIZE_BYTES)
    assert ours.read_bytes() == before
    assert resident_bytes(ours) == SIZE_BYTES, "it was a hint, and no more"


def test_a_path_of_an_object_store_is_no_file_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bucket" / "table"
    folder.mkdir(parents=True)
    here = durable(folder / "a.parquet")
    monkeypatch.chdir(tmp_path)

    storage = arrow_fs.S3FileSystem(region="eu-central-1", anonymous=True)
    forget_pages(Location("s3://bucket/table", storage, "bucket/table"), ["a.parquet"])

    assert resident_bytes(here) == SIZE_BYTES


def test_the_setting_reaches_the_driver() -> None:
    def told(settings: CompactorSettings) -> str:
        return spark_configs(driver_settings(settings, name="c1"))[PAGE_CACHE_SETTING]

    assert told(CompactorSettings()) == "keep"
    assert told(CompactorSettings(page_cache="drop")) == "drop"
    with pytest.raises(ConfigError, match="page_cache"):
        CompactorSettings(page_cache="flush")
