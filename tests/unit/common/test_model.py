"""Values refuse what cannot be, and keep what a newer release adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.file import DataFile
from common.model.outcome import RefusalCode
from common.model.table import Column, Table, recovery_note

pytestmark = pytest.mark.unit

TABLE = Table(id="t1", name="events", location="file:///e", schema=(Column("x", "int64"),))


@pytest.mark.parametrize("path", ["", "/a.parquet", "a/../../b.parquet"])
def test_the_path_of_a_file_is_below_the_location(path: str) -> None:
    with pytest.raises(ValueError, match="must be relative to the location, without"):
        DataFile(path=path, size_bytes=1, rows=1)


@pytest.mark.parametrize("field", ["size_bytes", "rows", "tombstones"])
def test_a_file_counts_nothing_below_zero(field: str) -> None:
    file = DataFile(path="a.parquet", size_bytes=1, rows=1)
    with pytest.raises(ValueError, match=r"a\.parquet: .* must not be negative"):
        replace(file, **{field: -1})  # type: ignore[arg-type]  # by name


def test_a_code_of_a_newer_release_is_kept_and_a_number_is_no_code() -> None:
    assert RefusalCode("of-a-newer-release") == "of-a-newer-release"
    with pytest.raises(ValueError, match="7 is not a valid RefusalCode"):
        RefusalCode(7)  # type: ignore[arg-type]  # what a damaged message may have


def test_an_incomplete_table_has_a_note() -> None:
    assert recovery_note(TABLE) == ""
    assert "table 'events' is incomplete" in recovery_note(replace(TABLE, incomplete=True))
